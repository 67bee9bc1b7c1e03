"""The intervals in which a group's pods and their claims ran, by their own timestamps.

This file alone decides which intervals a record takes over. `bizrq.hours.metering` turns time into hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from bizrq.hours.metering import Interval, UsageRate
from bizrq.units.names import Catalog
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import Adapter
from controller.hours.allocations import ClaimAllocations
from controller.hours.claim_intervals import ClaimIntervals
from controller.hours.collected import CollectedIntervals, Collection, HandOver, RecordIndex, uids_of
from controller.hours.metered_names import MeteredNames
from controller.hours.pod_rates import PodRates
from controller.hours.pod_transitions import PodTransitions
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.transitions import Transitions
from controller.usage.claim_payers import ClaimPayers
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod
from controller.watch.time_slice import Yielder

Object = dict[str, Any]

#: How long a pod may outlive its workload before it is reported, in milliseconds: the garbage collector deletes it.
_LINGERS = 60_000


class IntervalCollector:
    """Collects the intervals of groups. Subscribe it to the cluster, so that it learns of ends and moves."""

    def __init__(
        self,
        cluster: Cluster,
        observed: ObservedUsage,
        claim_payers: ClaimPayers,
        record_store: RecordStore,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
        catalog: Catalog,
    ) -> None:
        """`now` returns milliseconds since 1970."""
        self._cluster = cluster
        self._observed = observed
        self._now = now
        self._catalog = catalog
        #: Charged pods whose workload is gone, by group and as text, with the time when that was first seen.
        self._unowned: dict[str, dict[str, int]] = {}
        self._hand_over = HandOver(record_store)
        self._transitions = Transitions()
        self._rates = PodRates(observed)
        self._pods = PodTransitions(cluster, self._rates, self._transitions, enqueue, now)
        allocations = ClaimAllocations(cluster, observed, claim_payers, now)
        self._claims = ClaimIntervals(
            cluster.informers,
            observed,
            allocations,
            self._rates,
            self._transitions,
            self._hand_over,
            enqueue,
            now,
        )

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Note a pod's change."""
        self._pods.on_pod(old, new)

    def on_move(self, old: Object, new: Object) -> None:
        """Note a workload's move to another group."""
        self._pods.on_move(old, new)

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Note a claim's allocation or deallocation."""
        self._claims.on_claim(old, new)

    def drop_group(self, group: str) -> None:
        """Forget the finished intervals of a group that keeps no record or is gone."""
        self._transitions.drop_group(group)
        self._unowned.pop(group, None)

    def mark_stored(self, group: str, collected: CollectedIntervals) -> None:
        """Forget finished intervals that the group's record has taken over, and remember pods without a workload."""
        self._transitions.mark_stored(group, collected.finished)
        known = self._unowned.get(group, {})
        self._unowned[group] = {pod: known.get(pod, collected.at) for pod in collected.unowned}

    def unowned(self, group: str) -> list[str]:
        """Return the pods that are still charged to the group although their workload is gone, as text."""
        now = self._now()
        return [pod for pod, since in self._unowned.get(group, {}).items() if now - since >= _LINGERS]

    async def collect(
        self, group: str, tracked: AbstractSet[str], stored_pages: Sequence[StoredPage]
    ) -> CollectedIntervals:
        """Return the intervals that the group pays for, and what is known of all that its record has, at one moment.

        `tracked` are the metered resource names. The work yields to the event loop. Pods that change meanwhile are
        collected again at the end without a pause, so the result is the state of that moment.
        """
        yielder = Yielder()
        record = await RecordIndex.of(stored_pages, yielder)
        collection = Collection(group, record, MeteredNames(tracked, stored_pages, self._catalog))
        with self._pods.tracking_changes() as changed:
            await self._gather(collection, yielder)
            missing = await _missing(collection, yielder)
        # From here nothing awaits.
        missing |= dict.fromkeys(uid for uid in changed if uid in record.pages)
        for uid in changed:
            self._gather_again(collection, uid)
        collection.found.at = self._now()
        collection.found.seen = self._revisions()
        self._add_finished(collection)
        self._claims.add(collection)
        self._add_recorded(collection, missing)
        return collection.found

    def is_awaited(self, uid: str, group: str) -> bool:
        """Return True if another group's record has yet to take over an interval that left this group."""
        if "@" in uid:
            return self._hand_over.is_awaited(uid, self._claims.paying_group(uid), group)
        pod = self._cluster.informers.pod(uid)
        if pod is None or pod.ended is not None:
            return False
        pays = self._cluster.ownership.workload_of(pod.plain())
        payer = self._cluster.ownership.group_of(pays[1]) if pays is not None else None
        return self._hand_over.is_awaited(uid, payer, group)

    # Gather.

    async def _gather(self, collection: Collection, yielder: Yielder) -> None:
        """Collect the pods of all workloads that the group pays for."""
        for adapter, workload in self._cluster.placements.charged_to(collection.group):
            # A workload may have thousands of pods, but has only a handful of rates.
            rates: dict[object, UsageRate | None] = {}
            for pod in self._cluster.descendants.each_pod_of(workload):
                await yielder.step()
                if pod.started is None:
                    continue
                key = self._observed.equivalence_key(pod)
                if key not in rates:
                    rates[key] = self._rates.of_pod(pod, adapter, workload, collection.names)
                self._add_pod(collection, pod, adapter, workload, rates[key])
            await yielder.step()

    def _gather_again(self, collection: Collection, uid: str) -> None:
        """Replace what was collected of a pod that has changed since."""
        collection.found.intervals.pop(uid, None)
        collection.with_claims.pop(uid, None)
        pod = self._cluster.informers.pod(uid)
        if pod is None or pod.started is None:
            return
        pays = self._cluster.ownership.workload_of(pod.plain())
        if pays is None or self._cluster.ownership.group_of(pays[1]) != collection.group:
            return
        self._add_pod(collection, pod, *pays, self._rates.of_pod(pod, *pays, collection.names), changed=True)

    def _add_pod(
        self,
        collection: Collection,
        pod: Pod,
        adapter: Adapter,
        workload: Object,
        rate: UsageRate | None,
        *,
        changed: bool = False,
    ) -> None:
        """Collect one pod of the group, unless it cannot be counted or another group's record still has it."""
        record, uid, start = collection.record, pod.uid, pod.started
        if rate is not None and start is not None:
            begins: int | None = start
            if changed or uid not in record.pages or uid in record.split:
                moved = self._transitions.moved_at(workload["metadata"]["uid"])
                begins = self._hand_over.start_in(collection, uid, max(start, moved))
            if begins is not None:
                collection.found.intervals[uid] = Interval(begins, pod.ended, rate)
        if self._observed.may_have_claims(pod):
            collection.with_claims[uid] = pod, adapter, workload

    def _revisions(self) -> dict[str, int]:
        """Return the revisions of pods and claims that the informers have, by `plural.group`."""
        pods, claims = self._cluster.informers.pods, self._cluster.informers.claims
        return {"pods": pods.store.resource_version, claims.resource.key: claims.store.resource_version}

    # Complete.

    def _add_finished(self, collection: Collection) -> None:
        """Add intervals of deleted objects until the record has them, so that a write whose reply is lost settles once.

        An interval that the record does not know was charged by a former leader if the record has seen its deletion.
        """
        found, seen, added = collection.found, collection.record.seen, list[str]()
        for key, finished in self._transitions.finished_in(collection.group).items():
            is_known = key in collection.record.pages
            if not is_known and finished.revision <= seen.get(finished.kind, 0):
                continue
            start: int | None = finished.interval.start
            if not is_known:
                start = self._hand_over.start_in(collection, key, finished.interval.start)
            if start is None:
                continue
            workload = finished.interval.rate.workload if finished.interval.rate else ""
            rate = self._rates.of_cost(workload, finished.cost, collection.names)
            found.intervals[key] = Interval(start, finished.interval.end, rate)
            added.append(key)
        found.finished = frozenset(added)

    def _add_recorded(self, collection: Collection, missing: Iterable[str]) -> None:
        """Add what is known of intervals that the record has and the group's workloads do not."""
        for uid in missing:
            if uid in collection.found.intervals:
                continue
            stored_page = collection.record.pages[uid]
            interval = (
                self._claims.recorded(collection.group, uid, stored_page)
                if "@" in uid
                else self._recorded(collection, uid, stored_page)
            )
            if interval is not None:
                collection.found.intervals[uid] = interval

    def _recorded(self, collection: Collection, uid: str, stored_page: StoredPage) -> Interval | None:
        """Return what is known of a pod that the record has and the group's workloads do not.

        None where it is settled, or its end was not seen.
        """
        found, ownership = collection.found, self._cluster.ownership
        left = self._transitions.left_at(collection.group, uid)
        pod = self._cluster.informers.pod(uid)
        if pod is None or pod.started is None:
            end = self._transitions.end_of(uid)
            is_over = uid in stored_page.page.finished or (end is None and left is None)
            return None if is_over else Interval(0, end, None, left)
        pays = ownership.workload_of(pod.plain())
        if pays is None:
            found.unowned.append(f"Pod {pod.namespace}/{pod.name}")
            return Interval(pod.started, pod.ended)
        payer = ownership.group_of(pays[1])
        if payer == collection.group:
            return Interval(pod.started, pod.ended)
        if payer is None and left is None and (released := self._released_owner(pod, stored_page)) is not None:
            found.released.append(released)
            return Interval(pod.started, pod.ended)
        # If no controller saw it move, it was this group's up to the record's watermark.
        return Interval(pod.started, pod.ended, None, stored_page.page.watermark if left is None else left)

    def _released_owner(self, pod: Pod, stored_page: StoredPage) -> tuple[Slot, str] | None:
        """Return the released object that the pod is or belongs to, if the record has the pod under another workload.

        A workload whose own label was removed is no longer its group's: None.
        """
        top = self._cluster.ownership.unowned_above(pod.plain()) if pod.ended is None else None
        recorded = next((rate.workload for rate, since in stored_page.page.running.items() if pod.uid in since), None)
        return top if top is not None and recorded not in (None, str(top[0])) else None


async def _missing(collection: Collection, yielder: Yielder) -> dict[str, None]:
    """Return the keys of intervals that the record has and that are not collected."""
    missing: dict[str, None] = {}
    for stored_page in collection.record.stored_pages:
        missing.update((uid, None) for uid in uids_of(stored_page.page) if uid not in collection.found.intervals)
        await yielder.yield_if_due()
    return missing
