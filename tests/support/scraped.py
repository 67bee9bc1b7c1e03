"""The metrics of this process as a scraper reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bizrq.exposition import GroupFamily, render
from controller.metrics import OF_GROUPS


async def families(of_groups: Sequence[GroupFamily] = OF_GROUPS, collectors: Iterable[Collector] = ()) -> list[Metric]:
    """Return all families of a scrape, as its text says."""
    text = b"".join([piece async for piece in render(of_groups, collectors)]).decode()
    return list(text_string_to_metric_families(text))


async def sample(name: str, /, *, collectors: Iterable[Collector] = (), **labels: str) -> float | None:
    """Return the value of one series of a scrape, None where there is none."""
    for family in await families(collectors=collectors):
        for each in family.samples:
            if each.name == name and each.labels == labels:
                return each.value
    return None


async def of_group(group: str) -> dict[str, dict[str, float]]:
    """Return the figures of a group: by the name of the metric without `bizrq_`, by resource."""
    found: dict[str, dict[str, float]] = {}
    for family in await families():
        for each in family.samples:
            if each.labels.get("group") == group:
                name = each.name.removeprefix("bizrq_")
                found.setdefault(name, {})[each.labels.get("resource", "")] = each.value
    return found
