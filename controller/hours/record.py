"""One reconciliation of one group's record of card-hours: gather intervals, advance the pages, write them.

This file alone decides the order of writes, so that a controller that stops between any two of them leaves what the
next one needs. `bizrq.hours.metering` does the sums, `record_transfer` ends a record, and the recount decides what a
status says of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.hours import metering
from bizrq.hours.metering import Correction, Interval, RecordPage
from bizrq.hours.periods import Period
from bizrq.units import hierarchy
from bizrq.units.names import is_cash, metered_resource
from bizrq.units.resources import Limits
from controller.hours.collected import CollectedIntervals
from controller.hours.corrections import CorrectionTracker
from controller.hours.page_placement import place_intervals
from controller.hours.page_writer import PageWriter
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.record_transfer import RecordTransfer
from controller.hours.retention import StatementRetention
from controller.hours.tree_calendar import TreeCalendar
from controller.watch.cluster import Cluster

log = structlog.get_logger(__name__)


class RecordResult(NamedTuple):
    """`is_done` is False while steps are left. `requeue_after` is in seconds."""

    is_done: bool
    requeue_after: float


class RecordReconciler:
    """Keeps the records of groups. `reconcile` must not run twice at a time for one group."""

    def __init__(
        self,
        cluster: Cluster,
        collector: IntervalCollector,
        record_store: RecordStore,
        calendar: TreeCalendar,
        writer: PageWriter,
        corrections: CorrectionTracker,
        retention: StatementRetention,
        enqueue: Callable[[str, float], None],
    ) -> None:
        self._cluster = cluster
        self._collector = collector
        self._record_store = record_store
        self._calendar = calendar
        self._writer = writer
        self._corrections = corrections
        self._retention = retention
        self._enqueue = enqueue
        self._transfer = RecordTransfer(cluster.client, cluster.groups, record_store, calendar, writer, enqueue)

    def pages(self, group: str) -> list[RecordPage]:
        """Return the pages of the group's record as stored last. Raises HoursUnreadable."""
        return self._record_store.pages(group)

    def root(self, group: GroupObject) -> GroupObject | None:
        """Return the root of a group's tree. None while an ancestor is missing."""
        return self._calendar.root(group)

    def unowned(self, group: str) -> list[str]:
        """Return the pods that are still charged although their workload is gone, as text."""
        return self._collector.unowned(group)

    def forget(self, group: str) -> None:
        """Forget a group that is gone or keeps no record."""
        self._collector.drop_group(group)
        self._retention.forget(group)

    async def reconcile(self, group: GroupObject, hard: Limits) -> RecordResult:
        """Move the group's record on to now: gather, decide, write.

        Raises ApiError, Unreachable; HoursUnreadable; GroupUnreadable where the tree's root cannot be read.
        """
        tracked = {metered_resource(name) for name in hard if is_cash(name)}
        prepared = await self._prepare(group, tracked)
        if isinstance(prepared, RecordResult):
            return prepared
        stored_pages, calendar = prepared
        collected = await self._collector.collect(group.name, tracked, stored_pages)
        self._cluster.releases.adopt(group.name, collected.released)
        placed = await place_intervals([stored_page.page for stored_page in stored_pages], collected.intervals)
        if placed is None:
            await self._writer.add_page(group, stored_pages)
            return RecordResult(False, 0.0)
        moved = await self._advance(group, stored_pages, calendar, placed, collected.at)
        corrections = await self._corrections.pending(group.name, stored_pages[0].page.applied)
        moved[0] = self._apply_corrections(corrections, moved[0], collected.at)
        moved[0] = self._calendar.with_rollover(group, hard, moved)
        await self._writer.write(stored_pages, moved, collected)
        await self._corrections.mark_applied(group.name, corrections)
        await self._retention.prune(group.name, stored_pages[0].page, moved)
        self._collector.mark_stored(group.name, collected)
        self._enqueue_affected(group, stored_pages, moved, collected)
        return RecordResult(True, self._again(moved, collected.at))

    async def _prepare(
        self, group: GroupObject, tracked: Collection[str]
    ) -> tuple[list[StoredPage], Sequence[Period]] | RecordResult:
        """Return the group's pages, signed and ready to be moved on, and the periods of its tree.

        A RecordResult where there is nothing to move on, or where one step had to come first.
        """
        stored_pages = self._record_store.of(group.name)
        orphaned = [stored_page for stored_page in stored_pages if stored_page.spec.uid != group.metadata.uid]
        if orphaned:
            await self._transfer.close_orphaned(orphaned)
            return RecordResult(False, 0.0)
        is_leaving = group.metadata.deletion_timestamp is not None
        if not stored_pages and (is_leaving or not (tracked or self._calendar.sets_periods(group))):
            self.forget(group.name)
            return RecordResult(True, float("inf"))
        if wire.FINALIZER not in group.metadata.finalizers and not is_leaving:
            await self._transfer.add_finalizer(group)
            return RecordResult(False, 0.0)
        if not stored_pages:
            stored_pages = [await self._record_store.create(group, 0)]
        calendar = self._calendar.periods(group, stored_pages[0].page)
        if calendar is None:
            return RecordResult(False, 1.0)
        return await self._writer.sign(group, stored_pages), calendar

    async def _advance(
        self,
        group: GroupObject,
        stored_pages: Sequence[StoredPage],
        calendar: Sequence[Period],
        placed: Sequence[Mapping[str, Interval]],
        at: int,
    ) -> list[RecordPage]:
        """Return each page moved on to `at` with its intervals."""
        moved: list[RecordPage] = []
        for stored_page, intervals in zip(stored_pages, placed, strict=True):
            page = metering.adopt_periods(stored_page.page, calendar, at)
            page = metering.advance(page, intervals, at, holds=lambda uid: self._collector.is_awaited(uid, group.name))
            moved.append(page)
            await asyncio.sleep(0)
        return moved

    def _apply_corrections(self, corrected: Sequence[Correction], page: RecordPage, now: int) -> RecordPage:
        """Return the page with corrections applied once, and without marks of deleted children."""
        groups = self._cluster.groups.informer.store
        page = metering.forget_children(page, lambda uid: groups.by_uid(uid) is not None)
        for correction in corrected:
            page = metering.apply_correction(page, correction._replace(at=now))
        uids = {correction.uid for correction in corrected}
        return metering.forget_confirmed(page, uids.__contains__)

    def _enqueue_affected(
        self,
        group: GroupObject,
        stored_pages: Sequence[StoredPage],
        moved: Sequence[RecordPage],
        collected: CollectedIntervals,
    ) -> None:
        """Enqueue the groups that have to react to this record."""
        for name in collected.awaited:
            self._enqueue(name, 0.0)
            self._enqueue(group.name, 1.0)
        for stored_page, page in zip(stored_pages, moved, strict=True):
            if page.split != stored_page.page.split:
                for segment in page.split:
                    pod = self._cluster.informers.pod(segment.uid)
                    pays = self._cluster.ownership.workload_of(pod.plain()) if pod is not None else None
                    payer = self._cluster.ownership.group_of(pays[1]) if pays is not None else None
                    if payer not in (None, group.name):
                        self._enqueue(payer, 0.0)
        if not group.parent and moved[0].calendar != stored_pages[0].page.calendar:
            for name in hierarchy.subtree(group.name, self._cluster.groups.child_names)[1:]:
                self._enqueue(name, 0.0)

    def _again(self, pages: Sequence[RecordPage], now: int) -> float:
        """Return the seconds until the record is due: intervals run, a period ends, or may be closed."""
        due = [float("inf")]
        for page in pages:
            if page.running or page.split:
                due.append(self._writer.interval)
            ends = (period.end for period in page.calendar)
            due.extend(max(1, (end if end > now else end + metering.GRACE) - now) for end in ends if end is not None)
        return min(due) / 1000

    async def transfer_to_parent(self, group: GroupObject) -> None:
        """End the record of a deleted group, and add its hours to its parent's. Raises as `reconcile`."""
        if wire.FINALIZER in group.metadata.finalizers:
            await self._transfer.transfer_to_parent(group)
            self.forget(group.name)
