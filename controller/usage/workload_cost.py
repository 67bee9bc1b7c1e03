"""The cost of one stored workload, with what it refers to and what hangs below it.

This file alone decides when a smaller demand is believed, and at what an uncountable workload is held.
`bizrq.workloads.demand.counting` counts the workload, `controller.usage.excess` the objects below it, and
`controller.usage.pod_charge` its pods; `controller.usage.usage_cache` decides when.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from bizrq.kube.informer import Informer
from bizrq.units.resources import Resources, add, growth, larger, smaller
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import POD, Adapter
from bizrq.workloads.lookup import Lookup, Reference, TrackingLookup
from bizrq.workloads.ownership.lives import ends_at, is_live
from bizrq.workloads.ownership.observation import has_observed, is_awaited, is_job, is_job_to_say_more
from bizrq.workloads.ownership.payers import created_at
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from controller.usage.below import Below, gather, informers_below
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import NO_EXCESS, ExcessUsage, surplus_message
from controller.usage.pod_charge import Overlap, PodCharges
from controller.watch.cluster import AHEAD, Cluster, Object, patience

#: Seconds a read of what a workload refers to may take.
_READ = 5.0
#: Seconds for which the demand of a kind without `observedGeneration` counts after it fell, and after which a surplus
#: is reported: watches of several kinds show one change within that.
_LAG: Final = 3.0
#: The same where a controller will say what it observed, and has not: a busy one goes by what it saw before. As long as
#: a reservation holds what was promised.
_UNSEEN_LAG: Final = 60.0


class WorkloadCost(msgspec.Struct, frozen=True):
    """The cost of a stored object. `settled` is False if it can change without a watch event.

    `resources` is its demand, and `excess` what it is charged beyond that for what is below it.
    """

    settled: bool
    resources: Resources
    #: The cost of claims that other workloads may name too, as in `counting.Demand`.
    shared: Mapping[Slot, Resources] = msgspec.field(default_factory=dict)
    problem: str = ""
    #: Which fields count as the largest that they can mean, because they cannot be read.
    unreadable: str = ""
    #: The references that it was counted by.
    asked: Collection[Reference] = ()
    excess: Resources = msgspec.field(default_factory=dict)
    finding: str = ""
    overlap: Overlap | None = None
    #: What pods cost and what is asked for below it beyond that, which no overlap explains.
    surplus: Resources = msgspec.field(default_factory=dict)
    #: What of `resources` counts whatever the workload asks for, as its pods show it. None where that is not looked at.
    floor: Resources | None = None
    #: The first moment at which the clock alone changes the charge, in milliseconds since 1970.
    again: int | None = None
    #: The uids of the vanished pods that are charged with it.
    vanished: Sequence[str] = ()
    #: The resourceVersion of the object that was counted.
    version: str = ""


class _Hold(NamedTuple):
    """The demand that counts for a workload: the stored one, or a larger earlier one until that is observed.

    `generation` is that of the object, `group` the one that pays, or did for the earlier demand. `since` is when its
    spec was first seen to ask for less, on the clock, and `revision` that of the object when the stored demand was; 0
    where the stored demand counts. `lags` is True while a controller has to act on it, None where its kind does not
    say. `is_behind` is True where all that is missing is a watch of what is below that has reached the revision.

    `status` is that of a Job when its spec changed, and `is_new` is True where its controller has not written another
    since it asked for more. `lag` is for how many seconds the demand counts where its kind does not say.
    """

    counts: Resources
    stored: Resources
    generation: object
    group: str | None = None
    since: float = 0.0
    revision: int = 0
    lags: bool | None = False
    is_behind: bool = False
    status: object = None
    is_new: bool = False
    lag: float = _LAG


class _Count(NamedTuple):
    """One count of a workload: its cost, and what that remembers. None where nothing below it was looked at."""

    cost: WorkloadCost
    hold: _Hold | None = None
    below: Below | None = None
    #: What fresh pods and other objects cost beyond the workload, in words.
    surplus: str = ""
    #: Something was waited for, and what is stored may have changed meanwhile.
    has_waited: bool = False


class WorkloadCosts:
    """Counts workloads, and remembers the last cost of each."""

    def __init__(
        self,
        cluster: Cluster,
        excess: ExcessUsage,
        claim_payers: ClaimPayers,
        config: CountingConfig,
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`now` returns milliseconds since 1970, `clock` seconds."""
        self._cluster = cluster
        self._excess = excess
        self._pods = PodCharges(cluster, excess, config, now)
        self._claim_payers = claim_payers
        self._config = config
        self._now_ms = now
        self._clock = clock
        self._counted: dict[str, WorkloadCost] = {}
        #: The last countable demand of each workload, by uid. An uncountable workload is held at it.
        self._last: dict[str, counting.Demand] = {}
        self._holds: dict[str, _Hold] = {}
        #: Since when each workload has a surplus, on the clock.
        self._surplus_since: dict[str, float] = {}
        self._informers_below: dict[str, list[Informer]] = {}

    def of(self, uid: str) -> WorkloadCost:
        """Return the last cost of a workload. Raises KeyError if it was never counted."""
        return self._counted[uid]

    def has_fallen(self, uid: str) -> bool:
        """Return True while a larger earlier demand of a workload counts: its controllers may make pods for it."""
        hold = self._holds.get(uid)
        return hold is not None and hold.revision != 0

    def watches_below(self, adapter: Adapter) -> Iterable[Informer]:
        """Return the informers of the installed kinds that may be below a workload of this kind."""
        known = self._informers_below.get(adapter.resource)
        if known is None:
            known = self._informers_below[adapter.resource] = informers_below(self._cluster, adapter)
        return [informer for informer in known if informer.installed]

    def was_counted(self, uid: str) -> bool:
        """Return True if the workload could be counted at least once."""
        return uid in self._last

    async def count(self, group: str, adapter: Adapter, obj: Object) -> bool:
        """Count a workload as it is stored now. Return True if it had to wait: the workload may have changed meanwhile.

        Raises ApiError, Unreachable.
        """
        uid, slot, version = obj["metadata"]["uid"], slot_of(adapter, obj), obj["metadata"]["resourceVersion"]
        found = await self._count(adapter, obj)
        known = self._counted.get(uid)
        if known is not None and known.version != version and self._is_stored(uid, known.version):
            # Another group has counted a later version meanwhile.
            return True
        if found.hold is not None:
            self._holds[uid] = found.hold
        cost = msgspec.structs.replace(self._with_finding(uid, found), version=version)
        self._claim_payers.drop(uid, set(self._claims_of(uid)).difference(cost.shared))
        self._counted[uid] = cost
        created = created_at(obj) or 0
        for claim in cost.shared:
            self._claim_payers.add(claim, uid, created, group, slot)
        return found.has_waited

    def remembered(self) -> Collection[str]:
        """Return the uids of all workloads that were counted and not forgotten."""
        return self._counted.keys()

    def forget(self, uid: str) -> None:
        """Forget a workload that is gone."""
        self._claim_payers.drop(uid, self._claims_of(uid))
        for memory in (self._counted, self._last, self._holds, self._surplus_since):
            memory.pop(uid, None)

    def leave(self, group: str, uid: str) -> None:
        """Record that a group counts a workload no longer: it names no claims there."""
        self._claim_payers.drop(uid, self._claims_of(uid), group)

    def _claims_of(self, uid: str) -> Collection[Slot]:
        """Return the shared claims that a workload named when it was last counted."""
        known = self._counted.get(uid)
        return known.shared.keys() if known is not None else ()

    def _is_stored(self, uid: str, version: str) -> bool:
        """Return True if this is the version of the object that is stored now."""
        obj = self._cluster.placements.stored(uid)
        return obj is not None and obj["metadata"]["resourceVersion"] == version

    async def _count(self, adapter: Adapter, obj: Object) -> _Count:
        """Count a workload, from watches that agree.

        A smaller demand counts once the watches of what is below have reached it. A larger excess may be one whose
        workload is not seen yet: that watch has a moment to show it. Everything is counted again then: references may
        have changed meanwhile, and only workloads with cached usage are marked for that.
        """
        uid = obj["metadata"]["uid"]
        found = await self._now(adapter, obj)
        if late := self._late(adapter, obj, found, self._counted.get(uid)):
            # All at once: until then nobody rejects what comes beside pods that are ending.
            await asyncio.gather(
                *(informer.catch_up(revision, timeout, lag=lag) for informer, revision, timeout, lag in late)
            )
            stored = self._cluster.informers.workloads[adapter.resource].store.by_uid(uid)
            # One that has changed is counted again, and one that is gone is not.
            if stored is not None and stored["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]:
                found = await self._now(adapter, obj)
            found = found._replace(has_waited=True)
        return found

    def _late(
        self, adapter: Adapter, obj: Object, found: _Count, known: WorkloadCost | None
    ) -> list[tuple[Informer, int, float, float | None]]:
        """Return the watches to wait for, to which revision, and for how many seconds: at most, and without a list.

        None is the informer's own.
        """
        if found.hold is None or found.below is None:
            return []
        if found.hold.is_behind:
            # Where nobody says what was observed, the watches have had their time while the demand counted on.
            waited = self._clock() - found.hold.since
            lag = 0.0 if has_observed(obj) is None and _LAG <= waited < math.inf else None
            return [(each, found.hold.revision, patience(each), lag) for each in self.watches_below(adapter)]
        if not growth(found.cost.excess, known.excess if known is not None else {}):
            return []
        latest = self._pods.revision(found.below)
        watches = (self._cluster.informers.workloads[adapter.resource], *self.watches_below(adapter))
        return [
            (each, latest, AHEAD, None) for each in watches if each.installed and each.store.resource_version < latest
        ]

    async def _now(self, adapter: Adapter, obj: Object) -> _Count:
        """Count a workload and what is below it, all as of the moment of return.

        A finished workload costs what its live pods cost, and what grows below it. Raises ApiError, Unreachable.
        """
        uid = obj["metadata"]["uid"]
        asked: dict[Reference, None] = {}
        counted: list[tuple[counting.Demand, _Count]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            recording = TrackingLookup(found)
            try:
                demand = self._demand(adapter, obj, recording)
                counted.append((demand, self._charged(adapter, obj, demand, recording)))
            finally:
                asked.update(recording.asked)

        lookup = await self._cluster.resolver.resolve(count, _READ)
        try:
            if not counted:
                # A demand that could not be counted raises again.
                count(lookup)
        except Malformed as error:
            demand = self._last.get(uid) or counting.demand_at_least(obj, adapter, {}, lookup, self._config)
            cost = WorkloadCost(False, demand.resources, demand.shared, str(error), asked=tuple(asked))
            return _Count(cost, has_waited=lookup.has_read)
        demand, found = counted[0]
        if not has_ended(obj, adapter):
            self._last[uid] = demand
        settled = found.cost.settled and not lookup.has_read
        unreadable = "; ".join(demand.unreadable)
        cost = msgspec.structs.replace(found.cost, settled=settled, unreadable=unreadable, asked=tuple(asked))
        return found._replace(cost=cost, has_waited=lookup.has_read)

    def _demand(self, adapter: Adapter, obj: Object, lookup: Lookup) -> counting.Demand:
        """Return what a workload asks for, with children that may grow beyond it. Raises Malformed.

        A pod is its own workload: it asks for as much as long as it is live. Of one that has ended, the claims of its
        live pods count that others may name too.
        """
        pod = self._cluster.informers.pod(obj["metadata"]["uid"]) if adapter.group_kind == POD else None
        if pod is not None and not is_live(pod.life(), self._now_ms()):
            return counting.NO_DEMAND
        if self._is_charged_for_pods(adapter, obj):
            claiming = (each for each in self._cluster.descendants.pods_of(obj) if "resourceClaims" in each.spec)
            live = [each.plain() for each in claiming if is_live(each.life(), self._now_ms())]
            shared = counting.demand_of_live_pods(obj, live, lookup, self._config).shared if live else {}
            return counting.Demand(shared=shared)
        # No owner pays for it: that is decided already, from more than the object says.
        registry = self._cluster.registry
        demand = counting.own_demand(obj, counting.adapter_of(obj, registry), lookup, self._config)
        if not adapter.grows or has_ended(obj, adapter):
            return demand
        made = [
            counting.own_demand(child, kind, lookup, self._config)
            for child in self._cluster.descendants.children_of(obj, adapter.grows)
            if (kind := self._cluster.registry.of(child)) is not None
        ]
        return counting.with_children(demand, made, adapter, self._config)

    def _charged(self, adapter: Adapter, obj: Object, demand: counting.Demand, lookup: Lookup) -> _Count:
        """Return what a workload with this demand is charged, with what is below it."""
        pod = self._cluster.informers.pod(obj["metadata"]["uid"]) if adapter.group_kind == POD else None
        if pod is not None:
            end = ends_at(pod.life()) or None
            return _Count(WorkloadCost(True, demand.resources, demand.shared, again=end))
        ended = has_ended(obj, adapter)
        if not adapter.creates or not adapter.pays or (ended and not self._is_charged_for_pods(adapter, obj)):
            return _Count(WorkloadCost(True, demand.resources, demand.shared))
        below = gather(self._cluster, adapter, obj)
        group = self._cluster.ownership.group_of(obj)
        hold = self._hold(adapter, obj, group, demand.resources, below, ended=ended)
        between = self._excess.of(adapter, obj, below, demand.resources, lookup)
        if ended and between.resources and not self._has_grown(adapter, obj, below, lookup):
            between = NO_EXCESS
        # What asked for more in another group is held there (`controller.usage.stays`).
        counts = hold.counts if hold.group == group else demand.resources
        # A controller that lags may make pods for the earlier demand besides those that are ending.
        earlier = counts if hold.lags else {}
        found = self._pods.of(adapter, obj, below, demand, earlier, between.resources, lookup)
        charge = larger(counts, found.weighed.charge)
        again = [found.weighed.again] if found.weighed.again is not None else []
        if hold.lags is None:
            again.append(self._now_ms() + round(1000 * max(0.1, hold.since + hold.lag - self._clock())))
        elif hold.is_behind:
            again.append(self._now_ms() + 1000)
        own = found.weighed.runs if ended else demand.resources
        cost = WorkloadCost(
            hold.lags is not None and not hold.is_behind,
            own,
            demand.shared,
            excess=growth(charge, own),
            overlap=found.overlap,
            surplus=add(found.surplus or {}, found.between or {}),
            floor=smaller(found.weighed.runs, own),
            again=min(again, default=None),
            vanished=found.vanished,
        )
        if hold.revision or ended:
            return _Count(cost, hold, below)
        findings = [between.finding] if found.between else []
        if found.surplus:
            findings.append(surplus_message(adapter, obj, self._pods.latest(below), found.surplus))
        return _Count(cost, hold, below, "; ".join(findings))

    def _has_grown(self, adapter: Adapter, obj: Object, below: Below, lookup: Lookup) -> bool:
        """Return True where what a workload has made asks for more than that did until it ended.

        The rest goes with the workload.
        """
        asked: Resources = {}
        with contextlib.suppress(Malformed):
            asked = counting.own_demand({**obj, "status": {}}, adapter, lookup, self._config).resources
        return bool(self._excess.of(adapter, obj, below, asked, lookup).resources)

    def _is_charged_for_pods(self, adapter: Adapter, obj: Object) -> bool:
        return counting.is_charged_for_pods(obj, adapter, self._config)

    def _hold(
        self, adapter: Adapter, obj: Object, group: str | None, stored: Resources, below: Below, *, ended: bool
    ) -> _Hold:
        """Return the demand that counts; `group` is the one that the workload charges.

        One that has `ended` says itself that its controller makes no more pods.
        """
        metadata = obj["metadata"]
        known, generation = self._holds.get(metadata["uid"]), metadata.get("generation")
        told = obj.get("status") if is_job(obj) else None
        is_same = known is not None and known.status == told
        if known is None or not growth(known.counts, stored):
            # Its controller may make pods for the larger demand long after that.
            is_new = told is not None and known is not None and _is_new(known, stored, is_same=is_same)
            return _Hold(stored, stored, generation, group, status=told if is_new else None, is_new=is_new)
        since, revision, status, is_new = known.since, known.revision, known.status, known.is_new
        if known.generation != generation:
            since, status, is_new = self._clock(), told, is_new and is_same
        elif not revision:
            # The status alone asks for less: its controller has written that.
            since = -math.inf
        if not revision or known.stored != stored or known.lags is not False:
            # Up to now its controllers may have made pods for the earlier demand.
            revision = below.revision
        hold = _Hold(larger(known.counts, stored), stored, generation, known.group, since, revision)
        observed = True if ended or (told is not None and told != status) else _is_observed(obj, below)
        if observed is False:
            return hold._replace(lags=True)
        if observed is None:
            hold = hold._replace(status=status, is_new=is_new, lag=_lag(obj, is_new=is_new))
            if self._clock() - since < hold.lag:
                return hold._replace(lags=None)
        if any(each.store.resource_version < revision for each in self.watches_below(adapter)):
            return hold._replace(is_behind=True)
        return _Hold(stored, stored, generation, group)

    def _with_finding(self, uid: str, found: _Count) -> WorkloadCost:
        """Return the cost, with a surplus in words once it has lasted longer than watches lag."""
        if not found.surplus:
            self._surplus_since.pop(uid, None)
            return found.cost
        left = self._surplus_since.setdefault(uid, self._clock()) + _LAG - self._clock()
        if left <= 0:
            return msgspec.structs.replace(found.cost, finding=found.surplus)
        due = self._now_ms() + round(1000 * left)
        again = due if found.cost.again is None else min(found.cost.again, due)
        return msgspec.structs.replace(found.cost, settled=False, again=again)


def _is_new(known: _Hold, stored: Resources, *, is_same: bool) -> bool:
    """Return True while a Job's controller has not acted on the last growth. `is_same` if its status is the former."""
    return bool(growth(stored, known.counts)) or (known.is_new and is_same)


def _lag(obj: Object, *, is_new: bool) -> float:
    """Return for how many seconds a demand counts that fell, where the workload does not say what was observed."""
    is_to_come = is_awaited(obj) or (is_job(obj) and (is_new or is_job_to_say_more(obj)))
    return _UNSEEN_LAG if is_to_come else _LAG


def _is_observed(obj: Object, below: Below) -> bool | None:
    """Return True once the controllers of a workload and of all owners below it have observed what is stored.

    None where the workload's own kind does not say.
    """
    return False if below.lags else has_observed(obj)


def slot_of(adapter: Adapter, obj: Object) -> Slot:
    """Return the slot of a stored workload."""
    return Slot(adapter.resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
