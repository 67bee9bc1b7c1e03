"""What is charged to a group: its stored workloads with what each costs.

This file alone decides how they are found: by the label, and by the namespaces whose default the group is. It counts
as the controller counts objects; pods that outlive them are not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.cli.around import Around
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.related import NAMESPACES, resources_of
from bizrq.quota import quantity
from bizrq.quota.resources import Resources
from bizrq.settings import Settings
from bizrq.workloads import counting
from bizrq.workloads.adapters import Adapter
from bizrq.workloads.labels import LABEL
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.owners import payer

Object = dict[str, Any]
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Charged:
    """A stored workload and its cost in nano-units; `error` where it cannot be counted."""

    kind: str
    namespace: str
    name: str
    cost: Resources
    error: str = ""

    def text(self, resource: str) -> str:
        return quantity.text(resource, self.cost.get(resource, 0))


@dataclass(frozen=True, slots=True)
class Found:
    """`unread` says what nobody let us see."""

    workloads: Sequence[Charged]
    unread: Sequence[str]


async def charged_to(client: KubeClient, settings: Settings, group: str) -> Found:
    """The workloads of a group, by kind and name; raises ApiError, Unreachable."""
    around = Around(client, settings.registry, ())
    namespaces = await _list(client, [NAMESPACES], around.unread, f"{LABEL}={group}")
    defaulted = [namespace["metadata"]["name"] for namespace in namespaces]
    lists = await asyncio.gather(
        *(_of_kind(client, adapter, group, defaulted, around.unread) for adapter in settings.registry.charged)
    )
    found: list[Charged] = []
    for adapter, items in zip(settings.registry.charged, lists, strict=True):
        for item in items:
            lookup = await around.resolve(lambda known, item=item: _cost(item, settings, known), _SECONDS)
            try:
                if payer(item, settings.registry, lookup) is None and counting.is_live(item, adapter):
                    found.append(_charged(item, _cost(item, settings, lookup)))
            except Malformed as error:
                found.append(_charged(item, {}, str(error)))
    found.sort(key=lambda each: (each.kind, each.namespace, each.name))
    return Found(found, sorted(around.unread))


def _cost(item: Object, settings: Settings, lookup: Any) -> Resources:
    return counting.in_all(counting.demand(item, settings.registry, lookup, settings.counting))


def _charged(item: Object, cost: Resources, error: str = "") -> Charged:
    metadata = item["metadata"]
    return Charged(item["kind"], metadata.get("namespace", ""), metadata["name"], cost, error)


async def _of_kind(
    client: KubeClient, adapter: Adapter, group: str, defaulted: list[str], unread: set[str]
) -> list[Object]:
    lists = await asyncio.gather(
        _list(client, resources_of(adapter), unread, f"{LABEL}={group}"),
        *(_list(client, resources_of(adapter), unread, f"!{LABEL}", namespace) for namespace in defaulted),
    )
    return [item for items in lists for item in items]


async def _list(
    client: KubeClient, versions: Sequence[Resource], unread: set[str], selector: str, namespace: str | None = None
) -> list[Object]:
    """The objects of a kind, in the first of its versions that is served."""
    for resource in versions:
        try:
            return (await client.list(resource, namespace, label_selector=selector))[0]
        except NotFound:
            continue
        except Forbidden:
            unread.add(resource.plural)
            break
    return []
