"""InferenceService: an estimate. The Deployments that KServe makes of it are charged.

A ServingRuntime adds to the spec and an autoscaler changes the numbers, so admission does not use this estimate.
"""

from __future__ import annotations

from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import expect_count, expect_list, expect_map, malformed

DESCRIPTION = (
    "an estimate: for predictor, transformer and explainer `minReplicas` (1 if absent). Its Deployments pay; "
    "none while the annotation `serving.kserve.io/stop` is true"
)

_COMPONENTS = ("predictor", "transformer", "explainer")
#: The fields of a component that name a model server.
_SERVERS = (
    "model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm",
    "paddle", "art",
)  # fmt: skip


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the least number of pods of each component; none while an annotation stops the service."""
    metadata = expect_map(obj.get("metadata"), "metadata")
    if expect_map(metadata.get("annotations"), "metadata.annotations").get("serving.kserve.io/stop") == "true":
        return []
    spec = expect_map(obj.get("spec"), "spec")
    sets: list[PodSet] = []
    for name in _COMPONENTS:
        if spec.get(name) is None:
            continue
        path = f"spec.{name}"
        component = expect_map(spec[name], path)
        if component.get("workerSpec") is not None:
            raise malformed(f"{path}.workerSpec", "services of several nodes cannot be estimated")
        replicas = component.get("minReplicas")
        containers = [*expect_list(component.get("containers"), f"{path}.containers")]
        for server in _SERVERS:
            if component.get(server) is not None:
                given = expect_map(component[server], f"{path}.{server}")
                containers.append({"name": "kserve-container", "resources": given.get("resources")})
        pod_spec = {**component, "containers": containers, "resources": None}
        count = 1 if replicas is None else expect_count(replicas, f"{path}.minReplicas")
        annotations = expect_map(component.get("annotations"), f"{path}.annotations")
        sets.append(
            PodSet(name, count, pod_spec, path, annotations, expect_map(component.get("labels"), f"{path}.labels"))
        )
    return sets
