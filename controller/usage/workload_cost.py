"""What one stored workload costs, as it stands now, with what it refers to and what hangs below it.

This file alone decides when what is found below a workload is believed, and at what one is held that cannot be counted.
The counting is `bizrq.workloads.demand.counting`'s and `controller.usage.excess`'s; when to count
again is `controller.usage.usage_cache`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from bizrq.quota.reservation import LIFETIME
from bizrq.units.resources import Resources, add, growth, larger
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.lookup import Lookup, Reference, TrackingLookup
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import NO_EXCESS, Excess, ExcessUsage
from controller.watch.cluster import CATCH_UP, Cluster, Object

#: Seconds a read of what a workload refers to may take.
_READ = 5.0


class WorkloadCost(msgspec.Struct, frozen=True):
    """What a stored object costs. `settled` where nothing that no watch tells can change it."""

    settled: bool
    resources: Resources
    #: Claims that others may name as well, as in `counting.Demand`.
    shared: Mapping[Slot, Resources] = msgspec.field(default_factory=dict)
    problem: str = ""
    #: What it was counted by.
    asked: Collection[Reference] = ()
    #: What it and all below it hold; what of that is counted beyond its own demand, and that in words; whether it was
    #: more than had been known, and since when there is any.
    held: Resources = msgspec.field(default_factory=dict)
    excess: Resources = msgspec.field(default_factory=dict)
    finding: str = ""
    grown: bool = False
    since: float = 0.0


class WorkloadCosts:
    """Counts workloads, and remembers of each what it was last found to cost."""

    def __init__(
        self,
        cluster: Cluster,
        excess: ExcessUsage,
        claim_payers: ClaimPayers,
        config: CountingConfig,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._excess = excess
        self._claim_payers = claim_payers
        self._config = config
        self._clock = clock
        self._counted: dict[str, WorkloadCost] = {}
        #: What each workload asked for when it could last be counted, by uid: it is held at least at that.
        self._last: dict[str, counting.Demand] = {}

    def of(self, uid: str) -> WorkloadCost:
        """What it cost when it was last counted. KeyError for one that never was."""
        return self._counted[uid]

    def was_counted(self, uid: str) -> bool:
        """Whether a workload could ever be counted."""
        return uid in self._last

    async def count(self, group: str, adapter: Adapter, obj: Object, promised: Mapping[Slot, Resources]) -> None:
        """Count a workload as it is stored now; where it changes while others are awaited, it has to be counted again.

        `promised` is what its group's status holds for each slot: so much may hang below a workload that asks for less
        by now. Raises ApiError, Unreachable.
        """
        uid, slot = obj["metadata"]["uid"], slot_of(adapter, obj)
        cost = await self._cost(adapter, obj, promised.get(slot, {}))
        known = self._counted.get(uid)
        self._claim_payers.drop(uid, set(known.shared if known is not None else ()).difference(cost.shared))
        self._counted[uid] = cost
        created = str(obj["metadata"].get("creationTimestamp"))
        for claim in cost.shared:
            self._claim_payers.add(claim, uid, created, group, slot)

    def remembered(self) -> Collection[str]:
        """The uids of all that were counted and not forgotten."""
        return self._counted.keys()

    def forget(self, uid: str) -> None:
        """The workload is no more."""
        known = self._counted.pop(uid, None)
        self._last.pop(uid, None)
        self._claim_payers.drop(uid, known.shared if known is not None else ())

    async def _cost(self, adapter: Adapter, obj: Object, promised: Resources) -> WorkloadCost:
        """Count a workload's demand, and what is below it beyond that.

        More than was known of it, and more than was `promised` to it, is believed once the watches of all owners have
        caught up: one may be behind that of the pods. Everything is counted again then. What the workload refers to may
        have changed meanwhile, and the journal notes that only for those that have a line already.
        """
        uid = obj["metadata"]["uid"]
        cost, found = await self._now(adapter, obj)
        if (
            found is not None
            and found.at_once
            and growth(add(cost.resources, found.resources), self._held(uid, promised))
        ):
            await self._catch_up(found.kinds)
            fresh = self._cluster.informers.workloads[adapter.resource].store.by_uid(uid)
            if fresh is None or fresh["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                # It is counted anew, or is gone.
                return msgspec.structs.replace(cost, held=self._held(uid, promised) or cost.resources)
            cost, found = await self._now(adapter, obj)
        return cost if found is None else self._with_excess(uid, cost, found, promised)

    async def _now(self, adapter: Adapter, obj: Object) -> tuple[WorkloadCost, Excess | None]:
        """Count a workload's demand and what is below it, both as of the moment of return.

        One that has ended costs what its pods that still run do. For that one, and for one that cannot be counted,
        nothing below is looked at: None. Raises ApiError, Unreachable.
        """
        uid = obj["metadata"]["uid"]
        asked: dict[Reference, None] = {}
        counted: list[tuple[counting.Demand, Excess]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            recording = TrackingLookup(found)
            try:
                demand = self._demand(adapter, obj, recording)
                counted.append((demand, self._excess.of(adapter, obj, demand.resources, recording)))
            finally:
                asked.update(recording.asked)

        lookup = await self._cluster.resolver.resolve(count, _READ)
        try:
            if counting.is_charged_for_pods(obj, adapter, self._config):
                pods = [pod.plain() for pod in self._cluster.descendants.pods_of(obj)]
                demand = counting.demand_of_live_pods(obj, pods, lookup, self._config)
                settled = not pods and not lookup.has_read
                return WorkloadCost(settled, demand.resources, demand.shared, asked=tuple(asked)), None
            # What could not be counted raises again.
            demand, found = counted[0] if counted else (self._demand(adapter, obj, lookup), NO_EXCESS)
        except Malformed as error:
            demand = self._last.get(uid, counting.NO_DEMAND)
            return WorkloadCost(False, demand.resources, demand.shared, str(error), tuple(asked)), None
        self._last[uid] = demand
        return WorkloadCost(not lookup.has_read, demand.resources, demand.shared, asked=tuple(asked)), found

    def _demand(self, adapter: Adapter, obj: Object, lookup: Lookup) -> counting.Demand:
        """What a workload asks for, with children that may have grown beyond it. Raises Malformed."""
        demand = counting.demand(obj, self._cluster.registry, lookup, self._config)
        if not adapter.grows or has_ended(obj, adapter):
            return demand
        made = [
            counting.own_demand(child, kind, lookup, self._config)
            for child in self._cluster.descendants.children_of(obj, adapter.grows)
            if (kind := self._cluster.registry.of(child)) is not None
        ]
        return counting.with_children(demand, made, adapter, self._config)

    def _held(self, uid: str, promised: Resources) -> Resources:
        """Return what a workload and all below it were known or promised to hold."""
        known = self._counted.get(uid)
        return larger(promised, known.held if known is not None else {})

    def _with_excess(self, uid: str, cost: WorkloadCost, found: Excess, promised: Resources) -> WorkloadCost:
        """Add to a cost what was `found` below the workload beyond it.

        More than had been known counts at once. Less is what a smaller demand has left behind, and counts if it has
        not gone in time; so does what the children of a workload that rolls still have of an earlier version.
        """
        if not found.resources:
            # While one child replaces another there are more than it asks for, and they stay when it asks for less.
            return msgspec.structs.replace(cost, held=larger(larger(cost.resources, promised), found.below))
        known, held = self._counted.get(uid), add(cost.resources, found.resources)
        grown = (known is not None and known.grown) or (found.at_once and bool(growth(held, self._held(uid, promised))))
        since = known.since if known is not None and known.since else self._clock()
        if not grown and self._clock() - since < LIFETIME / 1000:
            return msgspec.structs.replace(cost, settled=False, held=held, since=since)
        return msgspec.structs.replace(
            cost, held=held, since=since, grown=True, excess=found.resources, finding=found.finding
        )

    async def _catch_up(self, kinds: Iterable[GroupKind]) -> None:
        """Have the snapshots of these kinds be no older than this moment. Raises ApiError, Unreachable."""
        revision = await self._cluster.client.revision(self._cluster.informers.resource("pods"))
        for kind in kinds:
            adapter = self._cluster.registry.by_kind(*kind)
            informer = self._cluster.informers.get(adapter.resource) if adapter is not None else None
            if informer is not None:
                await informer.catch_up(revision, CATCH_UP)


def slot_of(adapter: Adapter, obj: Object) -> Slot:
    return Slot(adapter.resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
