"""CronJob: it has no pods, its Jobs are charged. Only their labels are checked."""

from __future__ import annotations

from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL, group_of
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import Malformed, describe_value, expect_map, malformed

DESCRIPTION = "none: its Jobs pay. It is refused if they would not carry its label"


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return no pods. Raises Malformed where the Jobs would not charge the group that the CronJob names.

    A Job gets the labels of jobTemplate (kubernetes `cronjob/utils.go`).
    """
    group = group_of(obj)
    if group is None:
        return []
    path = "spec.jobTemplate"
    template = expect_map(expect_map(obj.get("spec"), "spec").get("jobTemplate"), path)
    try:
        named = group_of({**template, "apiVersion": "batch/v1", "kind": "Job"})
    except Malformed as wrong:
        raise Malformed(f"{path} -> {wrong}") from None
    if named != group:
        raise malformed(
            f"{path}.metadata.labels.{LABEL}",
            f"must be {group} as on the CronJob, because its Jobs are charged, but is {describe_value(named)}",
        )
    return []
