"""CronJob: it has no pods, its Jobs are charged. It is only asked whether they will carry its label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bizrq.workloads.labels import LABEL, group_of, label
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.malformed import a_map, malformed, show
from bizrq.workloads.roles import PodSet


def pod_sets(
    obj: dict[str, Any], _declared: Callable[[], list[PodSet]], _namespace: str, _lookup: Lookup
) -> list[PodSet]:
    """No pods. Raises Malformed where the Jobs would escape the group that the CronJob names.

    A Job gets the labels of jobTemplate, and those of its pod template where that has none at all (kubernetes
    `cronjob/utils.go`, `batch/v1/defaults.go`).
    """
    group = group_of(obj)
    if group is None:
        return []
    path = "spec.jobTemplate"
    template = a_map(a_map(obj.get("spec"), "spec").get("jobTemplate"), path)
    labels = a_map(a_map(template.get("metadata"), f"{path}.metadata").get("labels"), f"{path}.metadata.labels")
    if not labels:
        spec = a_map(template.get("spec"), f"{path}.spec")
        pods = a_map(spec.get("template"), f"{path}.spec.template")
        metadata = a_map(pods.get("metadata"), f"{path}.spec.template.metadata")
        labels = a_map(metadata.get("labels"), f"{path}.spec.template.metadata.labels")
    named = label(labels, LABEL)
    if named != group:
        raise malformed(
            f"{path}.metadata.labels.{LABEL}",
            f"must be {group} as on the CronJob, because its Jobs are charged, but is {show(named)}",
        )
    return []
