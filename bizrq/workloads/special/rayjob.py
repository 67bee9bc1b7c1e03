"""RayJob: a RayCluster of its own (declared) and a pod that submits the job.

Source: KubeRay `ray.io/v1`, `rayjob_controller.go` and `common/job.go`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet, pod_set_of_spec, pod_set_of_template
from bizrq.workloads.pods.roles import pod_sets as pod_sets_of_roles
from bizrq.workloads.validation import child_path, describe_value, expect_list, expect_map, expect_text, malformed

DESCRIPTION = (
    "and what submits it: a pod (`submitterPodTemplate`) in K8sJobMode, a container of the head in SidecarMode. "
    "With `clusterSelector` only that"
)

_SUBMITTER = {
    "name": "ray-job-submitter",
    "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
}
_MODES = ("K8sJobMode", "SidecarMode", "HTTPMode", "InteractiveMode")


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the pods of its cluster, unless it selects an existing one, and those of its submitter."""
    spec = expect_map(obj.get("spec"), "spec")
    mode = expect_text(spec.get("submissionMode"), "spec.submissionMode") or _MODES[0]
    if mode not in _MODES:
        raise malformed("spec.submissionMode", f"must be one of {', '.join(_MODES)}, not {describe_value(mode)}")
    sets = (
        [] if expect_map(spec.get("clusterSelector"), "spec.clusterSelector") else pod_sets_of_roles(obj, adapter, {})
    )
    if mode == "SidecarMode":
        return [_with_submitter(pods) if pods.name == "head" else pods for pods in sets]
    if mode == "K8sJobMode":
        path = "spec.submitterPodTemplate"
        template = spec.get("submitterPodTemplate")
        if template is None:
            sets.append(pod_set_of_spec("submitter", 1, {"containers": [_SUBMITTER]}, path))
        else:
            sets.append(pod_set_of_template("submitter", 1, template, path))
    return sets


def _with_submitter(head: PodSet) -> PodSet:
    own = expect_list(head.spec.get("containers"), child_path(head.path, "containers"))
    return replace(head, spec={**head.spec, "containers": [*own, _SUBMITTER]})
