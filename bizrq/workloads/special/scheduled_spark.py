"""ScheduledSparkApplication: it has no pods; its applications have its labels and are charged.

Admission only checks that they can be counted.
"""

from __future__ import annotations

from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.special import spark
from bizrq.workloads.validation import Malformed, expect_map

DESCRIPTION = "none: its applications carry its label and pay. It is refused if they cannot be counted"


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return no pods. Raises Malformed where the applications that it makes could not be counted."""
    template = expect_map(expect_map(obj.get("spec"), "spec").get("template"), "spec.template")
    try:
        spark.pod_sets({**obj, "spec": template}, adapter, namespace, lookup)
    except Malformed as wrong:
        raise Malformed(f"spec.template -> {wrong}") from None
    return []
