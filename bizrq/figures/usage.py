"""What manifests would be charged, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.api.group import KIND as GROUP_KIND
from bizrq.settings import Settings
from bizrq.units import base, quantity
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.offline import UsageRow, objects_in, usage
from bizrq.workloads.devices.models import known_model, models_named, unknown_model
from bizrq.workloads.labels import unknown_label
from bizrq.workloads.validation import expect_map


@dataclass(frozen=True, slots=True)
class OfflineUsage:
    """The cost of one workload, and sentences about labels and models that nobody knows."""

    row: UsageRow
    warnings: Sequence[str]


def usage_of(documents: Sequence[Any], settings: Settings) -> list[OfflineUsage]:
    """Return the cost of each workload; the other documents stand for the cluster."""
    rows = usage(documents, settings.counting, settings.registry)

    def warnings(row: UsageRow) -> list[str]:
        keys = row.unknown_keys if settings.unknown_labels != "ignore" else ()
        return [*map(unknown_label, keys), *_unknown_models(row, documents, settings.counting)]

    return [OfflineUsage(row, warnings(row)) for row in rows]


def plain_usage(found: OfflineUsage) -> dict[str, Any]:
    """Return the item with whole numbers of a base unit in place of quantities."""
    row = found.row
    item = row.as_json()
    if row.usage is not None:
        item["usage"] = {name: base.plain(name, quantity.parse_sum(text)) for name, text in row.usage.items()}
    return {**item, "warnings": list(found.warnings)}


def _unknown_models(row: UsageRow, documents: Sequence[Any], config: CountingConfig) -> list[str]:
    """Return a sentence for each model of a workload that neither the files nor the configuration know.

    Where they know no model of its sort at all, they say nothing about it.
    """
    groups = [each for each in objects_in(documents) if each.get("kind") == GROUP_KIND]
    ceilings = {str(name) for each in groups for name in expect_map((each.get("spec") or {}).get("hard"), "spec.hard")}
    known = models_named(ceilings, config.catalog) | {("gpu", model) for model in config.gpu_models}
    sorts = {sort for sort, _ in known}
    return [
        unknown_model(sort, model, known, "a group in these files or of gpuModels")
        for sort, model in sorted(models_named(row.usage or {}, config.catalog) - known)
        if sort in sorts and (sort != "gpu" or known_model(model, config) is None)
    ]
