"""When pods and their claims began and ended, by their own timestamps, for the group that pays for them.

This file alone decides which stays a record is told. How time becomes hours is `bizrq.hours.metering`'s question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from bizrq.hours.metering import Interval, RecordPage, UsageRate
from bizrq.units.names import Catalog
from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.units.times import parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.validation import Malformed
from controller.hours.allocations import ClaimAllocations, User, workload_name
from controller.hours.metered_names import MeteredNames
from controller.hours.record_store import RecordStore, StoredPage
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod
from controller.watch.time_slice import Yielder

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: How long the end of a deleted pod is remembered, in milliseconds: far longer than a write or a failover takes.
_KEPT = 600_000


class _EndedInterval(NamedTuple):
    """A stay whose end the watch told, once; `revision` is that of its deletion, `noted` when we heard of it."""

    interval: Interval
    cost: Resources
    kind: str
    revision: int
    noted: int


@dataclass(slots=True)
class CollectedIntervals:
    """One consistent snapshot of what a group pays for.

    `seen` are the revisions of pods and claims that it shows, `gone` the uids of what is told until it is stored.
    """

    intervals: dict[str, Interval] = field(default_factory=dict)
    at: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    #: Groups whose records still have what runs for this one.
    awaited: set[str] = field(default_factory=set)
    #: Pods that are charged though their workload is there no more, in words.
    unowned: list[str] = field(default_factory=list)
    #: What was let go of while nobody watched: places and uids. The record says whose it was.
    released: list[tuple[Slot, str]] = field(default_factory=list)


class IntervalCollector:
    """Remembers what the watch says only once: ends of pods and of claims' allocations, and moves of workloads."""

    def __init__(
        self,
        cluster: Cluster,
        observed: ObservedUsage,
        record_store: RecordStore,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
        catalog: Catalog,
    ) -> None:
        self._cluster = cluster
        self._observed = observed
        self._record_store = record_store
        self._enqueue = enqueue
        self._now = now
        self._catalog = catalog
        self._allocations = ClaimAllocations(cluster, observed, now)
        #: When what is gone ended, by uid; of claims by allocation.
        self._ended: dict[str, int] = {}
        #: The latest time at which a pod that is being deleted has to be over.
        self._deadlines: dict[str, int] = {}
        self._group: dict[str, str] = {}
        self._gone: dict[str, dict[str, _EndedInterval]] = {}
        #: When a workload came to its group, by its uid, and when a pod left a group, by that and the pod's uid.
        self._moved: dict[str, int] = {}
        self._left: dict[tuple[str | None, str], int] = {}
        #: What has changed since a gathering began, for each that is on its way.
        self._changed: list[set[str]] = []
        self._rates: dict[UsageRate, UsageRate] = {}
        cluster.on_pod = self.on_pod
        cluster.on_move = self.on_move
        cluster.on_claim = self.on_claim

    def drop_group(self, group: str) -> None:
        """Forget what ended in a group that does not meter, or is no more."""
        self._gone.pop(group, None)

    def on_move(self, old: Object, new: Object) -> None:
        """Remember when a workload came to another group: its pods' hours end here and begin there."""
        uid, now = new["metadata"]["uid"], self._now()
        self._moved.pop(uid, None)
        self._moved[uid] = now
        left, entered = self._cluster.group_of(old), self._cluster.group_of(new)
        for pod in self._cluster.pods_of(new):
            self._left.pop((entered, pod.uid), None)
            self._left.pop((left, pod.uid), None)
            self._left[left, pod.uid] = now
            self._note_change(pod.uid)
        self._forget()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Take note of a pod's change, and have its group counted where the record has to know at once."""
        pod = new or old
        if pod is None or pod.started is None:
            return
        self._note_change(pod.uid)
        _, deadline = _deletion(pod)
        if deadline is not None and new is not None:
            self._deadlines[pod.uid] = max(deadline, self._deadlines.get(pod.uid, deadline))
        found = self._cluster.workload_of(pod.plain())
        group = self._cluster.group_of(found[1]) if found else self._group.get(pod.uid)
        if group is not None:
            self._group[pod.uid] = group
        if new is None:
            self._note_end(pod, group, found)
        if group is not None and (
            new is None or old is None or old.started is None or (new.ended is not None) != (old.ended is not None)
        ):
            self._enqueue(group, 0.0)

    def _note_change(self, uid: str) -> None:
        for changed in self._changed:
            changed.add(uid)

    def _note_end(self, pod: Pod, group: str | None, found: tuple[Adapter, Object] | None) -> None:
        """A pod is gone: the watch says so only once, and a list that lacks it does not say when."""
        requested, deadline = _deletion(pod)
        latest = self._deadlines.pop(pod.uid, deadline)
        told = pod.revision == self._cluster.pods.store.resource_version
        end = pod.ended
        if end is None and (told or latest is not None):
            # Between the request and the time that it gave, by the API server's clock; in between by ours.
            end = self._now()
            end = end if latest is None else min(end, latest)
            end = end if requested is None else max(end, requested)
        if end is not None:
            self._ended.pop(pod.uid, None)
            self._ended[pod.uid] = end
        cost = self._cost(pod, found[1]) if found and end is not None else None
        if group is not None and found is not None and cost is not None:
            start = max(pod.started or 0, self._moved.get(found[1]["metadata"]["uid"], 0))
            interval = Interval(start, end, UsageRate(workload_name(*found), ()))
            self._note_gone(group, pod.uid, _EndedInterval(interval, cost, "pods", pod.revision, self._now()))
        self._group.pop(pod.uid, None)
        self._forget()

    def _note_gone(self, group: str, key: str, gone: _EndedInterval) -> None:
        self._gone.setdefault(group, {})[key] = gone

    async def collect(
        self, group: str, tracked: Collection[str], stored_pages: Sequence[StoredPage]
    ) -> CollectedIntervals:
        """What the group pays for now, and what is known of all that its record has; at one moment.

        It is gathered in slices, so that the event loop goes on. Whatever changes meanwhile is looked at again at the
        end, in one go: what comes out is the state at that moment.
        """
        found, changed, slices = CollectedIntervals(), set[str](), Yielder()
        names = MeteredNames(tracked, stored_pages, self._catalog)
        known: dict[str, StoredPage] = {}
        for stored_page in stored_pages:
            known.update(dict.fromkeys(uids_of(stored_page.page), stored_page))
            await slices.yield_if_due()
        allocations = [key for key in known if "@" in key]
        # What was split off may have come back since.
        split = {part.uid for stored_page in stored_pages for part in stored_page.page.split}
        await slices.yield_if_due()
        self._changed.append(changed)
        try:
            with_claims: dict[str, User] = {}
            for adapter, workload in self._cluster.charged_to(group):
                moved = self._moved.get(workload["metadata"]["uid"], 0)
                # By what they have in common: a workload has thousands of pods, and a handful of costs.
                rates: dict[object, UsageRate | None] = {}
                for pod in self._cluster.pods_of(workload):
                    await slices.step()
                    if pod.started is None:
                        continue
                    key = self._observed.equivalence_key(pod)
                    if key not in rates:
                        rates[key] = self._rate(pod, adapter, workload, names)
                    if (rate := rates[key]) is not None:
                        has = pod.uid in known and pod.uid not in split
                        start = pod.started if has else self._entered(pod, group, moved, found)
                        if start is not None:
                            found.intervals[pod.uid] = Interval(start, pod.ended, rate)
                    if self._observed.may_have_claims(pod):
                        with_claims[pod.uid] = pod, adapter, workload
                await slices.step()
            missing: dict[str, None] = {}
            for stored_page in stored_pages:
                missing.update((uid, None) for uid in uids_of(stored_page.page) if uid not in found.intervals)
                await slices.yield_if_due()
        finally:
            self._changed.remove(changed)
        # From here nothing awaits.
        missing |= dict.fromkeys(uid for uid in changed if uid in known)
        for uid in changed:
            found.intervals.pop(uid, None)
            with_claims.pop(uid, None)
            self._collect_again(group, uid, names, found, with_claims)
        found.at = self._now()
        pods, claims = self._cluster.pods.store, self._cluster.claims.store
        found.seen = {"pods": pods.resource_version, self._cluster.claims.resource.key: claims.resource_version}
        self._add_gone(group, names, stored_pages, known, found)
        self._add_claims(group, names, allocations, with_claims.values(), found)
        for uid in missing:
            if uid not in found.intervals and (interval := self._known(group, uid, known[uid], found)) is not None:
                found.intervals[uid] = interval
        return found

    def _collect_again(
        self,
        group: str,
        uid: str,
        names: MeteredNames,
        collected: CollectedIntervals,
        with_claims: dict[str, User],
    ) -> None:
        """A pod that changed while others were gathered, as it is now."""
        pod = self._cluster.pod(uid)
        if pod is None or pod.started is None:
            return
        pays = self._cluster.workload_of(pod.plain())
        if pays is None or self._cluster.group_of(pays[1]) != group:
            return
        moved = self._moved.get(pays[1]["metadata"]["uid"], 0)
        start, rate = self._entered(pod, group, moved, collected), self._rate(pod, *pays, names)
        if start is not None and rate is not None:
            collected.intervals[uid] = Interval(start, pod.ended, rate)
        if self._observed.may_have_claims(pod):
            with_claims[uid] = pod, *pays

    def _entered(self, pod: Pod, group: str, moved: int, collected: CollectedIntervals) -> int | None:
        """When a pod's hours begin in a group whose record has not got it; None while another's still has."""
        return self._begins(pod.uid, max(pod.started or 0, moved), group, collected)

    def _begins(self, key: str, start: int, group: str, collected: CollectedIntervals) -> int | None:
        place = self._record_store.page_elsewhere(key, group)
        if place is None:
            return start
        until = [part.until for part in place.page.split if part.uid == key]
        if not until or any(key in since for since in place.page.running.values()):
            collected.awaited.add(place.spec.group)
            return None
        return max(start, *until)

    def _add_gone(
        self,
        group: str,
        names: MeteredNames,
        stored_pages: Sequence[StoredPage],
        known: Mapping[str, StoredPage],
        collected: CollectedIntervals,
    ) -> None:
        """What ended and is gone stands among the stays until it is stored: a write whose reply is lost settles once.

        What the record does not know was charged, all the same, if it had seen the deletion: by whoever led then.
        """
        seen = next((stored_page.seen for stored_page in stored_pages if not stored_page.spec.page), None) or {}
        told: list[str] = []
        for key, gone in self._gone.get(group, {}).items():
            if key not in known and gone.revision <= seen.get(gone.kind, 0):
                continue
            start = gone.interval.start if key in known else self._begins(key, gone.interval.start, group, collected)
            if start is None:
                continue
            workload = gone.interval.rate.workload if gone.interval.rate else ""
            collected.intervals[key] = Interval(start, gone.interval.end, self._rate_of(workload, gone.cost, names))
            told.append(key)
        collected.gone = frozenset(told)

    def mark_stored(self, group: str, gone: Iterable[str]) -> None:
        """What was told as gone is in the record now."""
        kept = self._gone.get(group, {})
        for key in gone:
            kept.pop(key, None)
        if not kept:
            self._gone.pop(group, None)

    def _known(self, group: str, uid: str, stored_page: StoredPage, collected: CollectedIntervals) -> Interval | None:
        """What is known of a stay that the record has and the group's workloads do not; None where nobody saw it go.

        And for what is settled and gone: it need not be remembered any longer.
        """
        end, left = self._ended.get(uid), self._left.get((group, uid))
        if "@" in uid:
            return self._known_claim(group, uid, stored_page, end)
        pod = self._cluster.pod(uid)
        if pod is None or pod.started is None:
            is_over = uid in stored_page.page.finished or (end is None and left is None)
            return None if is_over else Interval(0, end, None, left)
        pays = self._cluster.workload_of(pod.plain())
        if pays is None:
            collected.unowned.append(f"Pod {pod.namespace}/{pod.name}")
            return Interval(pod.started, pod.ended)
        payer = self._cluster.group_of(pays[1])
        if payer == group:
            return Interval(pod.started, pod.ended)
        if payer is None and left is None and (let_go := self._released_owner(pod, stored_page)) is not None:
            collected.released.append(let_go)
            return Interval(pod.started, pod.ended)
        # Where nobody saw it move, it was this group's as long as the record says.
        return Interval(pod.started, pod.ended, None, stored_page.page.watermark if left is None else left)

    def _released_owner(self, pod: Pod, stored_page: StoredPage) -> tuple[Slot, str] | None:
        """What nobody owns that was made by the workload which the record has the pod of; None where there is none.

        A workload whose own label was taken away is its group's no longer.
        """
        top = self._cluster.unowned_above(pod.plain()) if pod.ended is None else None
        recorded = next((rate.workload for rate, since in stored_page.page.running.items() if pod.uid in since), None)
        return top if top is not None and recorded not in (None, str(top[0])) else None

    def is_awaited(self, uid: str, group: str) -> bool:
        """Whether another group's record has still to take over what left this one."""
        if "@" in uid:
            claim = self._allocations.claim(uid)
            payer = self._allocations.payer(claim) if claim is not None else None
            if payer is None or payer[0] == group:
                return False
            return self._record_store.page_elsewhere(uid, group) is None and self._record_store.has(payer[0])
        pod = self._cluster.pod(uid)
        pays = self._cluster.workload_of(pod.plain()) if pod is not None else None
        payer = self._cluster.group_of(pays[1]) if pays is not None else None
        if payer in (None, group) or pod is None or pod.ended is not None:
            return False
        place = self._record_store.page_elsewhere(uid, group)
        return place is None and self._record_store.has(payer or "")

    def _rate(self, pod: Pod, adapter: Adapter, workload: Object, names: MeteredNames) -> UsageRate | None:
        cost = self._cost(pod, workload)
        return None if cost is None else self._rate_of(workload_name(adapter, workload), cost, names)

    def _rate_of(self, workload: str, cost: Resources, names: MeteredNames) -> UsageRate:
        """What is recorded of a cost."""
        rate = UsageRate(workload, tuple((name, cost[name]) for name in names.of(cost)))
        if len(self._rates) > 100_000:
            self._rates.clear()
        return self._rates.setdefault(rate, rate)

    def _cost(self, pod: Pod, payer: Object | None) -> Resources | None:
        """What a pod occupies besides its claims; None where it cannot be counted."""
        try:
            return self._observed.cost(pod, payer)
        except Malformed as error:
            log.warning("pod not metered", pod=pod.uid, error=str(error))
            return None

    # Claims: from their allocation to their deallocation, once, however many pods share them.

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Take note of a claim's change, and have its group counted where the record has to know at once."""
        before = self._allocations.name(old) if old is not None else None
        after = self._allocations.name(new) if new is not None else None
        if before == after:
            return
        allocated = [claim for claim, key in ((old, before), (new, after)) if claim is not None and key]
        pay = [self._allocations.payer(claim) for claim in allocated]
        if old is not None and before is not None:
            self._note_deallocation(old, before, pay[0])
        for group in {payer[0] for payer in pay if payer is not None}:
            self._enqueue(group, 0.0)

    def _note_deallocation(self, claim: Object, key: str, payer: tuple[str, User] | None) -> None:
        """A claim's devices are free again: the watch says so only once."""
        self._ended.pop(key, None)
        end = self._ended[key] = self._now()
        if payer is not None and (found := self._cost_of_claim(claim, *payer[1])) is not None:
            start, cost = found
            interval = Interval(start, end, UsageRate(workload_name(*payer[1][1:]), ()))
            claims = self._cluster.claims
            revision = claims.store.resource_version
            self._note_gone(payer[0], key, _EndedInterval(interval, cost, claims.resource.key, revision, self._now()))
        self._allocations.forget(claim)
        self._forget()

    def _cost_of_claim(
        self, claim: Object, pod: Pod, _adapter: Adapter, workload: Object
    ) -> tuple[int, Resources] | None:
        """Since when a claim is charged to a workload, and what it occupies; None where it cannot be counted."""
        try:
            cost = self._observed.cost_of_claim(claim, pod, workload)
        except Malformed as error:
            log.warning("claim not metered", claim=claim["metadata"]["name"], error=str(error))
            return None
        return max(self._allocations.since(claim), self._moved.get(workload["metadata"]["uid"], 0)), cost

    def _add_claims(
        self,
        group: str,
        names: MeteredNames,
        known: Collection[str],
        users: Iterable[User],
        collected: CollectedIntervals,
    ) -> None:
        """The allocated claims of the group's pods, once each."""
        self._allocations.learn_starts(known)
        looked_at: set[str] = set()
        for pod, adapter, workload in users:
            for uid, claim in self._observed.claims_of(pod).items():
                if uid in looked_at:
                    continue
                looked_at.add(uid)
                payer, user = self._allocations.payer(claim) or (group, (pod, adapter, workload))
                key = self._allocations.name(claim)
                counted = self._cost_of_claim(claim, *user) if payer == group else None
                if key is None or key in collected.intervals or counted is None:
                    continue
                start = counted[0] if key in known else self._begins(key, counted[0], group, collected)
                if start is not None:
                    collected.intervals[key] = Interval(
                        start, None, self._rate_of(workload_name(*user[1:]), counted[1], names)
                    )
                    self._allocations.note_payer(claim, group, user)

    def _known_claim(self, group: str, key: str, stored_page: StoredPage, end: int | None) -> Interval | None:
        """What is known of an allocation that the record has and the group's pods do not."""
        claim = self._allocations.claim(key)
        if claim is None:
            return None if end is None or key in stored_page.page.finished else Interval(0, end)
        payer = self._allocations.payer(claim)
        if payer is None or payer[0] == group or key in stored_page.page.finished:
            return Interval(self._allocations.since(claim))
        _, (_, _, workload) = payer
        left = self._moved.get(workload["metadata"]["uid"], stored_page.page.watermark)
        return Interval(self._allocations.since(claim), None, None, left)

    def _forget(self) -> None:
        horizon = self._now() - _KEPT
        for noted in (self._ended, self._moved, self._left):
            _forget_before(noted, horizon)
        for group in [*self._gone]:
            gone = self._gone[group]
            while gone and gone[oldest := next(iter(gone))].noted < horizon - 6 * _KEPT:
                del gone[oldest]
            if not gone:
                del self._gone[group]


def uids_of(page: RecordPage) -> Iterable[str]:
    """All that a page knows."""
    for since in page.running.values():
        yield from since
    yield from (part.uid for part in page.split)
    yield from page.finished


def _deletion(pod: Pod) -> tuple[int | None, int | None]:
    """When a pod's deletion was asked for, and by when it has to be over; by the API server's clock."""
    metadata = (pod.rest or {}).get("metadata", {})
    if metadata.get("deletionTimestamp") is None:
        return None, None
    latest = parse_timestamp(metadata["deletionTimestamp"])
    return latest - 1000 * int(metadata.get("deletionGracePeriodSeconds") or 0), latest


def _forget_before(noted: dict[Any, int], horizon: int) -> None:
    """What was noted stands in that order: most often one look at the oldest is enough."""
    while noted and noted[oldest := next(iter(noted))] < horizon:
        del noted[oldest]
