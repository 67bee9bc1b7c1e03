"""One reconciliation of one group's record of card-hours: gather intervals, advance the pages, write them.

This file alone decides the order of writes, so that a controller that stops between any two of them leaves what the
next one needs. `bizrq.hours.metering` does the sums; the recount decides what a status says of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.hours import budget, metering, periods
from bizrq.hours.metering import ClosedPeriod, Correction, Interval, RecordPage
from bizrq.hours.periods import Period
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS as GROUP
from bizrq.units import hierarchy
from bizrq.units.names import Catalog, is_cash, metered_resource
from bizrq.units.resources import Limits, larger, restrict
from bizrq.units.resources import total as sum_of
from controller.hours.collected import CollectedIntervals
from controller.hours.corrections import CorrectionTracker
from controller.hours.page_placement import place_intervals
from controller.hours.page_writer import PageWriter
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.retention import StatementRetention
from controller.watch.cluster import Cluster

log = structlog.get_logger(__name__)

_READ = 5.0
#: How long a pod may outlive its workload before it is reported, in milliseconds: the garbage collector deletes it.
_LINGERS = 60_000


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
        corrections: CorrectionTracker,
        retention: StatementRetention,
        enqueue: Callable[[str, float], None],
        *,
        identity: str,
        catalog: Catalog,
        cash_interval: float = 60.0,
        now: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._client: KubeClient = cluster.client
        self._collector = collector
        self._record_store = record_store
        self._enqueue = enqueue
        self._identity = identity
        self._catalog = catalog
        self._interval = int(cash_interval * 1000)
        self._now = now
        #: Charged pods whose workload is gone, by group and as text, with the time when that was first seen.
        self._unowned: dict[str, dict[str, int]] = {}
        self._corrections = corrections
        self._retention = retention
        self._writer = PageWriter(record_store, self._interval)

    def pages(self, group: str) -> list[RecordPage]:
        """Return the pages of the group's record as stored last. Raises HoursUnreadable."""
        return [stored_page.page for stored_page in self._record_store.of(group)]

    def unowned(self, group: str) -> list[str]:
        """Return the pods that are still charged although their workload is gone, as text."""
        now = self._now()
        return [pod for pod, since in self._unowned.get(group, {}).items() if now - since >= _LINGERS]

    def forget(self, group: str) -> None:
        """Forget a group that is gone or keeps no record."""
        self._collector.drop_group(group)
        self._unowned.pop(group, None)
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
            await self._grow(group, stored_pages)
            return RecordResult(False, 0.0)
        moved = await self._advance(group, stored_pages, calendar, placed, collected.at)
        corrections = await self._corrections.pending(group.name, stored_pages[0].page.applied)
        moved[0] = self._apply_corrections(corrections, moved[0], collected.at)
        moved[0] = self._carry(group, hard, moved)
        await self._writer.write(stored_pages, moved, collected)
        await self._corrections.mark_applied(group.name, corrections)
        await self._retention.prune(group.name, stored_pages[0].page, moved)
        self._collector.mark_stored(group.name, collected.gone)
        self._note_unowned(group.name, collected)
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
            await self._close_orphaned(orphaned)
            return RecordResult(False, 0.0)
        is_leaving = group.metadata.deletion_timestamp is not None
        if not stored_pages and (is_leaving or not (tracked or self._sets_periods(group))):
            self.forget(group.name)
            return RecordResult(True, float("inf"))
        if wire.FINALIZER not in group.metadata.finalizers and not is_leaving:
            await self._add_finalizer(group)
            return RecordResult(False, 0.0)
        if not stored_pages:
            stored_pages = [await self._record_store.create(group, 0)]
        calendar = self._calendar(group, stored_pages[0].page)
        if calendar is None:
            return RecordResult(False, 1.0)
        return await self._claim_pages(group, stored_pages), calendar

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

    def _sets_periods(self, group: GroupObject) -> bool:
        return not group.parent and bool(wire.terms_of(group, self._catalog).schedule.period)

    async def _claim_pages(self, group: GroupObject, stored_pages: Sequence[StoredPage]) -> list[StoredPage]:
        """Return the pages. Of several, each is first written with our identity: another controller's writes then fail.

        Creates a page that was announced and not created.
        """
        if stored_pages[0].pages == 1:
            return list(stored_pages)
        numbers = {stored_page.spec.page: stored_page for stored_page in stored_pages}
        signed: list[StoredPage] = []
        for number in range(stored_pages[0].pages):
            stored_page = numbers.get(number) or await self._record_store.create(group, number)
            if stored_page.writer != self._identity:
                stored_page = await self._record_store.write(stored_page, stored_page.page, writer=self._identity)
            signed.append(stored_page)
        return signed

    async def _grow(self, group: GroupObject, stored_pages: Sequence[StoredPage]) -> None:
        """Announce one more page, then create it."""
        await self._record_store.write(
            stored_pages[0], stored_pages[0].page, pages=len(stored_pages) + 1, writer=self._identity
        )
        await self._record_store.create(group, len(stored_pages))

    def _apply_corrections(self, corrected: Sequence[Correction], page: RecordPage, now: int) -> RecordPage:
        """Return the page with corrections applied once, and without marks of deleted children."""
        groups = self._cluster.groups.informer.store
        page = metering.forget_children(page, lambda uid: groups.by_uid(uid) is not None)
        for correction in corrected:
            page = metering.apply_correction(page, correction._replace(at=now))
        uids = {correction.uid for correction in corrected}
        return metering.forget_confirmed(page, uids.__contains__)

    # The tree.

    def _calendar(self, group: GroupObject, page: RecordPage) -> Sequence[Period] | None:
        """Return the periods of the group's tree, oldest first. None until the record of its root has them."""
        root = self.root(group)
        if root is None:
            return [lines.period for lines in page.periods]
        schedule = wire.terms_of(root, self._catalog).schedule
        if root.name != group.name:
            pages = self.pages(root.name)
            if pages:
                return [*(total.period for total in pages[0].closed), *(lines.period for lines in pages[0].periods)]
            if not schedule.period:
                return [periods.LIFETIME]
            self._enqueue(root.name, 0.0)
            return None
        now = max(self._now(), page.watermark)
        calendar = [periods.first_period(schedule, now)] if page.is_new else [lines.period for lines in page.periods]
        last = calendar[-1]
        if last.end is None or now < last.end:
            calendar[-1] = last = periods.rescheduled(schedule, last, now)
        while last.end is not None and last.end <= now:
            last = periods.next_period(schedule, last)
            calendar.append(last)
        return calendar

    def root(self, group: GroupObject) -> GroupObject | None:
        """Return the root of a group's tree. None while an ancestor is missing."""
        if not group.parent:
            return group
        groups = self._cluster.groups
        return groups.cached(hierarchy.root(group.parent, groups.parent_of))

    def _carry(self, group: GroupObject, hard: Limits, moved: Sequence[RecordPage]) -> RecordPage:
        """Return the first page with the rollover into each period, while the period before may still change."""
        page, asked = moved[0], wire.terms_of(group, self._catalog)
        lines = list(page.periods)
        for index in range(1, len(lines)):
            used = self._used(group, moved, lines[index - 1].period)
            lines[index] = replace(lines[index], carried=budget.carried_over(asked, hard, used))
        return replace(page, periods=tuple(lines)) if lines != list(page.periods) else page

    def _used(self, group: GroupObject, pages: Sequence[RecordPage], period: Period) -> dict[str, int]:
        """Return what a group and its children used in a period, by `cash/` name, as in the status's `used`."""
        groups, used = self._cluster.groups, dict[str, dict[str, int]]()
        # Children come before their parents here.
        for name in reversed(hierarchy.subtree(group.name, groups.child_names)):
            own = pages if name == group.name else self.pages(name)
            held = [metering.to_hours(metering.spent_beyond_carried(own, period))]
            for child in groups.known_children(name):
                if child.name in used:
                    hard = {each: most for each, most in wire.hard_of(child, self._catalog).items() if is_cash(each)}
                    held.append(larger(hard, restrict(used[child.name], hard)))
            used[name] = sum_of(held)
        return used[group.name]

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
                for part in page.split:
                    pod = self._cluster.informers.pod(part.uid)
                    pays = self._cluster.ownership.workload_of(pod.plain()) if pod is not None else None
                    payer = self._cluster.ownership.group_of(pays[1]) if pays is not None else None
                    if payer not in (None, group.name):
                        self._enqueue(payer, 0.0)
        calendars = [[lines.period for lines in page.periods] for page in (stored_pages[0].page, moved[0])]
        if not group.parent and calendars[0] != calendars[1]:
            for name in hierarchy.subtree(group.name, self._cluster.groups.child_names)[1:]:
                self._enqueue(name, 0.0)

    def _note_unowned(self, group: str, collected: CollectedIntervals) -> None:
        known = self._unowned.get(group, {})
        self._unowned[group] = {pod: known.get(pod, collected.at) for pod in collected.unowned}

    def _again(self, pages: Sequence[RecordPage], now: int) -> float:
        """Return the seconds until the record is due: intervals run, a period ends, or may be closed."""
        due = [float("inf")]
        for page in pages:
            if page.running or page.split:
                due.append(self._interval)
            ends = (lines.period.end for lines in page.periods)
            due.extend(max(1, (end if end > now else end + metering.GRACE) - now) for end in ends if end is not None)
        return min(due) / 1000

    # Deletion.

    async def transfer_to_parent(self, group: GroupObject) -> None:
        """Write a deleted group's last statements, transfer its hours to its parent once, and remove the finalizer."""
        if wire.FINALIZER not in group.metadata.finalizers:
            return
        stored_pages = self._record_store.of(group.name)
        own = [stored_page for stored_page in stored_pages if stored_page.spec.uid == group.metadata.uid]
        await self._writer.write_final_statements(own, group.parent)
        if own and group.parent:
            await self._hand_over(group, [stored_page.page for stored_page in own])
        for stored_page in sorted(own, key=lambda each: -each.spec.page):
            await self._record_store.remove(stored_page)
        await self._set_finalizers(group, [f for f in group.metadata.finalizers if f != wire.FINALIZER])
        self.forget(group.name)

    async def _close_orphaned(self, stored_pages: Sequence[StoredPage]) -> None:
        """Close a record whose group was deleted by force and whose name another group has now."""
        await self._writer.write_final_statements(stored_pages)
        for stored_page in stored_pages:
            log.warning("record of a deleted group removed", group=stored_page.spec.group, page=stored_page.name)
            await self._record_store.remove(stored_page)

    async def _hand_over(self, group: GroupObject, pages: Sequence[RecordPage]) -> None:
        parent = await self._cluster.groups.read(group.parent, _READ)
        if parent is None:
            return
        spent = {lines.period.start: lines.period for page in pages for lines in page.periods}
        parts = [ClosedPeriod(period, metering.spent_beyond_carried(pages, period)) for period in spent.values()]
        parts = [part for part in parts if any(part.amounts.values())]
        stored_pages = self._record_store.of(parent.name)
        if not parts or any(group.metadata.uid in stored_page.page.inherited for stored_page in stored_pages):
            return
        if not stored_pages:
            if wire.FINALIZER not in parent.metadata.finalizers:
                await self._add_finalizer(parent)
            stored_pages = [await self._record_store.create(parent, 0)]
            calendar = self._calendar(parent, stored_pages[0].page)
            stored_pages[0] = replace(
                stored_pages[0], page=metering.adopt_periods(stored_pages[0].page, calendar or (), self._now())
            )
        page = metering.inherit(stored_pages[0].page, group.metadata.uid, group.name, parts)
        await self._record_store.write(stored_pages[0], page)
        self._enqueue(parent.name, 0.0)

    async def _add_finalizer(self, group: GroupObject) -> None:
        """Keep a group with a record until its statements are written and its hours are transferred."""
        await self._set_finalizers(group, [*group.metadata.finalizers, wire.FINALIZER])
        await self._cluster.groups.read(group.name, _READ)

    async def _set_finalizers(self, group: GroupObject, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": group.metadata.resource_version, "finalizers": finalizers}
        await self._client.patch(GROUP, group.name, {"metadata": metadata})
