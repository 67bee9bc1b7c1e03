"""Find the workloads that are charged to a group, with their costs.

This file alone decides how they are found: by the label, and by the namespaces of which the group is the default. It
counts objects as the controller does, but not the pods that outlive them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.figures.simulate.lookup import FileReferenceReader, describe_unread, readable_payers
from bizrq.figures.simulate.reviews import SYSTEM_NAMESPACE
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.settings import Settings
from bizrq.store.reference_resolver import NAMESPACES, RESOURCE_CLAIMS, resources_of
from bizrq.units import quantity
from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.devices.dra import CLAIM, CLAIMS, POD_GROUP, POD_GROUPS, ClaimContext, claim_cost, is_made_for_pod
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL, labels_of
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.ownership.payers import Remembered, anywhere, paid_by
from bizrq.workloads.validation import Malformed

Object = dict[str, Any]
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ChargedWorkload:
    """A stored workload and its cost in nano-units; `error` says why it cannot be counted."""

    kind: str
    namespace: str
    name: str
    cost: Resources
    error: str = ""

    def text(self, resource: str) -> str:
        return quantity.text(resource, self.cost.get(resource, 0))


@dataclass(frozen=True, slots=True)
class ChargedWorkloads:
    """The workloads of a group; `unread` names what the user may not read.

    `only_in` is the namespace to which the search is limited because the user may not list everywhere, "" for none.
    """

    workloads: Sequence[ChargedWorkload]
    unread: Sequence[str]
    only_in: str = ""

    def by_cost(self, resource: str) -> list[ChargedWorkload]:
        """Return the workloads that cost some of a resource, those that cost most first."""
        mine = (each for each in self.workloads if each.cost.get(resource))
        return sorted(mine, key=lambda each: -each.cost[resource])

    @property
    def missing(self) -> list[str]:
        """Return what the user may not read, in words."""
        outside = [f"workloads outside namespace {self.only_in}"] if self.only_in else []
        return [*outside, *self.unread]


class _Lister:
    """Lists objects everywhere, and where the user may not, in their own namespace."""

    def __init__(self, client: KubeClient, unread: set[str]) -> None:
        self._client = client
        self._unread = unread
        self.only_in = ""

    async def list(self, versions: Sequence[Resource], selector: str, namespace: str | None = None) -> list[Object]:
        """Return the objects of a kind, in the first version that the cluster serves."""
        for resource in versions:
            try:
                return (await self._client.list(resource, namespace, label_selector=selector))[0]
            except NotFound:
                continue
            except Forbidden:
                if namespace is not None or not resource.namespaced:
                    self._unread.add(describe_unread(resource, namespace or ""))
                    return []
                found = await self.list([resource], selector, self._client.namespace)
                self.only_in = self._client.namespace
                return found
        return []

    async def namespaces(self, group: str) -> list[str]:
        """Return the namespaces of which the group is the default."""
        try:
            items = (await self._client.list(NAMESPACES, label_selector=f"{LABEL}={group}"))[0]
        except Forbidden:
            self.only_in = self._client.namespace
            try:
                here = await self._client.get(NAMESPACES, self.only_in)
            except (Forbidden, NotFound):
                self._unread.add(f"namespace {self.only_in}")
                return []
            items = [here] if labels_of(here).get(LABEL) == group else []
        return [item["metadata"]["name"] for item in items]


async def charged_to(
    client: KubeClient, settings: Settings, groups: Iterable[GroupObject], group: str
) -> ChargedWorkloads:
    """Return the workloads of one of the groups and the claims that they share, sorted.

    Raise ApiError or Unreachable.
    """
    settings = settings.around(SYSTEM_NAMESPACE)
    resolver = FileReferenceReader(client, settings.registry, ())
    lister = _Lister(client, resolver.unread)
    defaulted = await lister.namespaces(group)
    lists = await asyncio.gather(*(_of_kind(lister, each, group, defaulted) for each in settings.registry.charged))
    kinds = [each.group_kind for each, items in zip(settings.registry.charged, lists, strict=True) if items]
    payers = await readable_payers(client, settings.registry, groups, kinds, resolver.unread)
    found: list[ChargedWorkload] = []
    shared: dict[Slot, Resources] = {}
    for adapter, items in zip(settings.registry.charged, lists, strict=True):
        for item in items:

            def count(known: Lookup, item: Object = item) -> counting.Demand | None:
                return _demand(item, group, settings, known, payers)

            lookup = await resolver.resolve(count, _SECONDS)
            try:
                demand = count(lookup) if counting.is_live(item, adapter) else None
                if demand is not None:
                    found.append(_charged(item, demand.resources))
                    shared = counting.larger_by_slot(shared, demand.shared)
            except Malformed as error:
                found.append(_charged(item, {}, str(error)))
    scope = settings.registry.scope
    for claim in await lister.list([RESOURCE_CLAIMS], f"{LABEL}={group}"):
        namespace = claim["metadata"]["namespace"]
        lookup = await resolver.resolve(lambda known, name=namespace: scope.manages_named(name, known), _SECONDS)
        if scope.manages_named(namespace, lookup) and not is_made_for_pod(claim):
            place = Slot(CLAIMS, claim["metadata"]["namespace"], claim["metadata"]["name"])
            shared = counting.larger_by_slot(shared, {place: await _of_claim(claim, settings, resolver)})
    kinds = {CLAIMS: CLAIM[1], POD_GROUPS: POD_GROUP[1]}
    found += [ChargedWorkload(kinds[place.kind], place.namespace, place.name, cost) for place, cost in shared.items()]
    found.sort(key=lambda each: (each.kind, each.namespace, each.name))
    return ChargedWorkloads(found, sorted(resolver.unread), lister.only_in)


def _demand(item: Object, group: str, settings: Settings, lookup: Lookup, payers: Remembered) -> counting.Demand | None:
    """Return the demand of an object that the group pays for in its own slot; None of any other. Raise Malformed."""
    paid = paid_by(item, settings.registry, lookup, payers, anywhere)
    if paid is None or paid.group != group or paid.payer != item["metadata"]["uid"]:
        return None
    return counting.own_demand(item, counting.adapter_of(item, settings.registry), lookup, settings.counting)


async def _of_claim(claim: Object, settings: Settings, resolver: FileReferenceReader) -> Resources:
    """Return the cost of a claim with a group label; nothing if it cannot be counted."""

    def count(known: Lookup) -> Resources:
        claims = ClaimContext(labels_of(claim), claim["metadata"]["namespace"], known, settings.counting)
        return claim_cost(claim, claims)

    try:
        return count(await resolver.resolve(count, _SECONDS))
    except Malformed:
        return {}


def _charged(item: Object, cost: Resources, error: str = "") -> ChargedWorkload:
    metadata = item["metadata"]
    return ChargedWorkload(item["kind"], metadata.get("namespace", ""), metadata["name"], cost, error)


async def _of_kind(lister: _Lister, adapter: Adapter, group: str, defaulted: Sequence[str]) -> list[Object]:
    lists = await asyncio.gather(
        lister.list(resources_of(adapter), f"{LABEL}={group}"),
        *(lister.list(resources_of(adapter), f"!{LABEL}", namespace) for namespace in defaulted),
    )
    return [item for items in lists for item in items]
