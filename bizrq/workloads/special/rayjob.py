"""RayJob: a RayCluster of its own (declared) and a pod that submits the job.

Source: KubeRay `ray.io/v1`, `rayjob_controller.go` and `common/job.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet, of_pod_spec, of_template
from bizrq.workloads.validation import a_list, a_map, a_text, child, malformed, show

_SUBMITTER = {
    "name": "ray-job-submitter",
    "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
}
_MODES = ("K8sJobMode", "SidecarMode", "HTTPMode", "InteractiveMode")


def pod_sets(
    obj: dict[str, Any], declared: Callable[[], list[PodSet]], _namespace: str, _lookup: Lookup
) -> list[PodSet]:
    """The cluster, unless the job takes one that is there, and whatever submits the job."""
    spec = a_map(obj.get("spec"), "spec")
    mode = a_text(spec.get("submissionMode"), "spec.submissionMode") or _MODES[0]
    if mode not in _MODES:
        raise malformed("spec.submissionMode", f"must be one of {', '.join(_MODES)}, not {show(mode)}")
    sets = [] if a_map(spec.get("clusterSelector"), "spec.clusterSelector") else declared()
    if mode == "SidecarMode":
        return [_with_submitter(pods) if pods.name == "head" else pods for pods in sets]
    if mode == "K8sJobMode":
        path = "spec.submitterPodTemplate"
        template = spec.get("submitterPodTemplate")
        if template is None:
            sets.append(of_pod_spec("submitter", 1, {"containers": [_SUBMITTER]}, path))
        else:
            sets.append(of_template("submitter", 1, template, path))
    return sets


def _with_submitter(head: PodSet) -> PodSet:
    own = a_list(head.spec.get("containers"), child(head.path, "containers"))
    return replace(head, spec={**head.spec, "containers": [*own, _SUBMITTER]})
