"""InferenceService: an estimate. What it costs is charged through the Deployments that KServe makes of it.

A ServingRuntime adds to what stands here, and an autoscaler changes the numbers; nobody should be refused for this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import a_count, a_list, a_map, malformed

_COMPONENTS = ("predictor", "transformer", "explainer")
#: Where a component says what serves the model, besides plain containers.
_SERVERS = (
    "model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm",
    "paddle", "art",
)  # fmt: skip


def pod_sets(
    obj: dict[str, Any], _declared: Callable[[], list[PodSet]], _namespace: str, _lookup: Lookup
) -> list[PodSet]:
    """The least number of pods of each component; none at all while the service is stopped by annotation."""
    metadata = a_map(obj.get("metadata"), "metadata")
    if a_map(metadata.get("annotations"), "metadata.annotations").get("serving.kserve.io/stop") == "true":
        return []
    spec = a_map(obj.get("spec"), "spec")
    sets: list[PodSet] = []
    for name in _COMPONENTS:
        if spec.get(name) is None:
            continue
        path = f"spec.{name}"
        component = a_map(spec[name], path)
        if component.get("workerSpec") is not None:
            raise malformed(f"{path}.workerSpec", "services of several nodes cannot be estimated")
        replicas = component.get("minReplicas")
        containers = [*a_list(component.get("containers"), f"{path}.containers")]
        for server in _SERVERS:
            if component.get(server) is not None:
                given = a_map(component[server], f"{path}.{server}")
                containers.append({"name": "kserve-container", "resources": given.get("resources")})
        pod_spec = {**component, "containers": containers, "resources": None}
        count = 1 if replicas is None else a_count(replicas, f"{path}.minReplicas")
        annotations = a_map(component.get("annotations"), f"{path}.annotations")
        sets.append(PodSet(name, count, pod_spec, path, annotations, a_map(component.get("labels"), f"{path}.labels")))
    return sets
