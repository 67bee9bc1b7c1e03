"""The cost of one stored workload, with what it refers to and what hangs below it.

This file alone decides when an excess below a workload is believed, and at what an uncountable workload is held.
`bizrq.workloads.demand.counting` and `controller.usage.excess` count; `controller.usage.usage_cache` decides when.
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
    """The cost of a stored object. `settled` is False if it can change without a watch event."""

    settled: bool
    resources: Resources
    #: The cost of claims that other workloads may name too, as in `counting.Demand`.
    shared: Mapping[Slot, Resources] = msgspec.field(default_factory=dict)
    problem: str = ""
    #: Which fields count as the largest that they can mean, because they cannot be read.
    unreadable: str = ""
    #: The references that it was counted by.
    asked: Collection[Reference] = ()
    #: What the workload and all below it hold; the excess over its own demand, and that as text; whether the excess was
    #: more than known; since when there is one.
    held: Resources = msgspec.field(default_factory=dict)
    excess: Resources = msgspec.field(default_factory=dict)
    finding: str = ""
    grown: bool = False
    since: float = 0.0


class WorkloadCosts:
    """Counts workloads, and remembers the last cost of each."""

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
        #: The last countable demand of each workload, by uid. An uncountable workload is held at it.
        self._last: dict[str, counting.Demand] = {}

    def of(self, uid: str) -> WorkloadCost:
        """Return the last cost of a workload. Raises KeyError if it was never counted."""
        return self._counted[uid]

    def was_counted(self, uid: str) -> bool:
        """Return True if the workload could be counted at least once."""
        return uid in self._last

    async def count(self, group: str, adapter: Adapter, obj: Object, promised: Mapping[Slot, Resources]) -> None:
        """Count a workload as it is stored now. If it changes during an await, count it again.

        `promised` is what its group's status reserves for each slot: a workload that asks for less by now may still
        have that much below it. Raises ApiError, Unreachable.
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
        """Return the uids of all workloads that were counted and not forgotten."""
        return self._counted.keys()

    def forget(self, uid: str) -> None:
        """Forget a workload that is gone."""
        known = self._counted.pop(uid, None)
        self._last.pop(uid, None)
        self._claim_payers.drop(uid, known.shared if known is not None else ())

    async def _cost(self, adapter: Adapter, obj: Object, promised: Resources) -> WorkloadCost:
        """Count a workload's demand, and the excess below it.

        An excess over what was known and `promised` is believed once the watches of all owners have caught up, because
        one may be behind that of the pods. Everything is counted again then: references may have changed meanwhile, and
        only workloads with cached usage are marked for that.
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
                # It changed, so it is counted again, or it is gone.
                return msgspec.structs.replace(cost, held=self._held(uid, promised) or cost.resources)
            cost, found = await self._now(adapter, obj)
        return cost if found is None else self._with_excess(uid, cost, found, promised)

    async def _now(self, adapter: Adapter, obj: Object) -> tuple[WorkloadCost, Excess | None]:
        """Count a workload's demand and what is below it, both as of the moment of return.

        A finished workload costs what its running pods cost. For a finished or uncountable workload the excess is not
        looked for: None. Raises ApiError, Unreachable.
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
            # A demand that could not be counted raises again.
            demand, found = counted[0] if counted else (self._demand(adapter, obj, lookup), NO_EXCESS)
        except Malformed as error:
            demand = self._last.get(uid, counting.NO_DEMAND)
            return WorkloadCost(False, demand.resources, demand.shared, str(error), asked=tuple(asked)), None
        self._last[uid] = demand
        unreadable = "; ".join(demand.unreadable)
        settled = not lookup.has_read
        return WorkloadCost(settled, demand.resources, demand.shared, "", unreadable, tuple(asked)), found

    def _demand(self, adapter: Adapter, obj: Object, lookup: Lookup) -> counting.Demand:
        """Return what a workload asks for, with children that may grow beyond it. Raises Malformed."""
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

        An excess over what was known counts at once. A smaller one remains of a larger demand, or of an earlier version
        during a rolling update, and counts if it is still there after the lifetime of a reservation.
        """
        if not found.resources:
            # During a surge there are more children than the workload asks for, and they remain when it asks for less.
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
        """Wait until the stores of these kinds are no older than this moment. Raises ApiError, Unreachable."""
        revision = await self._cluster.client.revision(self._cluster.informers.resource("pods"))
        for kind in kinds:
            adapter = self._cluster.registry.by_kind(*kind)
            informer = self._cluster.informers.get(adapter.resource) if adapter is not None else None
            if informer is not None:
                await informer.catch_up(revision, CATCH_UP)


def slot_of(adapter: Adapter, obj: Object) -> Slot:
    """Return the slot of a stored workload."""
    return Slot(adapter.resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
