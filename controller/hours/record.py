"""One look at one group's hours: gather, tick, write its record, page by page.

This file alone decides when a record is written and in which order, so that whoever dies between any two writes leaves
what the next one needs. The sums are `bizrq.hours.metering`'s; what a group's status says of them is the recount's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog

from bizrq.api import group as wire
from bizrq.api import hours as written
from bizrq.api.group import GroupObject
from bizrq.hours import budget, metering, periods
from bizrq.hours.metering import ClosedPeriod, Correction, Interval, RecordPage
from bizrq.hours.periods import Period
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS as GROUP
from bizrq.units.names import Catalog, is_cash, metered_resource
from bizrq.units.resources import Limits, larger, restrict
from bizrq.units.resources import total as sum_of
from controller.hours.corrections import CorrectionTracker
from controller.hours.pod_intervals import CollectedIntervals, IntervalCollector, uids_of
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.retention import StatementRetention
from controller.watch.cluster import Cluster
from controller.watch.time_slice import Yielder

log = structlog.get_logger(__name__)

#: What one page takes: more stays, or more text than this, and new ones go to the next.
MAX_INTERVALS = 5_000
MAX_TEXT = 256 * 1024
#: About how many characters a line of the record takes without its uids, and each of those.
_LINE, _UID = 120, 52
_READ = 5.0
#: How long a pod may outlive its workload before people are told: the garbage collector takes it. Milliseconds.
_LINGERS = 60_000


class RecordResult(NamedTuple):
    """Whether the record is as it should be, and the seconds after which to look again."""

    is_done: bool
    requeue_after: float


class RecordReconciler:
    """Keeps the records of groups. One look at a time for each group."""

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
        #: Charged pods whose workload is there no more, by group, in words, and since when that is so.
        self._unowned: dict[str, dict[str, int]] = {}
        self._corrections = corrections
        self._retention = retention

    def pages(self, group: str) -> list[RecordPage]:
        """The group's record as it was stored last. Raises HoursUnreadable."""
        return [stored_page.page for stored_page in self._record_store.of(group)]

    def unowned(self, group: str) -> list[str]:
        """Pods that go on being charged though their workload is there no more, in words."""
        now = self._now()
        return [pod for pod, since in self._unowned.get(group, {}).items() if now - since >= _LINGERS]

    def forget(self, group: str) -> None:
        """The group is no more."""
        self._collector.drop_group(group)
        self._unowned.pop(group, None)
        self._retention.forget(group)

    async def reconcile(self, group: GroupObject, hard: Limits) -> RecordResult:
        """Move the group's record on to now.

        Raises ApiError, Unreachable; HoursUnreadable; GroupUnreadable where the tree's root cannot be read.
        """
        stored_pages = self._record_store.of(group.name)
        if any(stored_page.spec.uid != group.metadata.uid for stored_page in stored_pages):
            await self._close_orphaned(
                [stored_page for stored_page in stored_pages if stored_page.spec.uid != group.metadata.uid]
            )
            return RecordResult(False, 0.0)
        tracked = {metered_resource(name) for name in hard if is_cash(name)}
        is_leaving = group.metadata.deletion_timestamp is not None
        if not stored_pages and (is_leaving or not (tracked or self._sets_periods(group))):
            self.forget(group.name)
            return RecordResult(True, float("inf"))
        if wire.FINALIZER not in group.metadata.finalizers and not is_leaving:
            await self._hold(group)
            return RecordResult(False, 0.0)
        if not stored_pages:
            stored_pages = [await self._record_store.create(group, 0)]
        if (told := self._calendar(group, stored_pages[0].page)) is None:
            return RecordResult(False, 1.0)
        stored_pages = await self._claim_pages(group, stored_pages)
        found = await self._collector.collect(group.name, tracked, stored_pages)
        self._cluster.adopt_detached(group.name, found.released)
        placed = await self._placed(stored_pages, found)
        if placed is None:
            await self._grow(group, stored_pages)
            return RecordResult(False, 0.0)
        moved: list[RecordPage] = []
        for stored_page, intervals in zip(stored_pages, placed, strict=True):
            page = metering.adopt_periods(stored_page.page, told, found.at)
            page = metering.advance(
                page, intervals, found.at, holds=lambda uid: self._collector.is_awaited(uid, group.name)
            )
            moved.append(page)
            await asyncio.sleep(0)
        corrected = await self._corrections.pending(group.name, stored_pages[0].page.applied)
        moved[0] = self._from_elsewhere(corrected, moved[0], found.at)
        moved[0] = self._carry(group, hard, moved)
        await self._write(stored_pages, moved, found)
        await self._corrections.mark_applied(group.name, corrected)
        await self._retention.prune(group.name, stored_pages[0].page, moved)
        self._collector.mark_stored(group.name, found.gone)
        self._note_unowned(group.name, found)
        self._enqueue_affected(group, stored_pages, moved, found)
        return RecordResult(True, self._again(moved, found.at))

    def _sets_periods(self, group: GroupObject) -> bool:
        return not group.parent and bool(wire.terms_of(group, self._catalog).schedule.period)

    async def _claim_pages(self, group: GroupObject, stored_pages: Sequence[StoredPage]) -> list[StoredPage]:
        """The pages, where there are several, each with our sign: what another has decided by now cannot be written.

        A page may be missing that was announced and not made.
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
        """Announce one page more, then make it."""
        await self._record_store.write(
            stored_pages[0], stored_pages[0].page, pages=len(stored_pages) + 1, writer=self._identity
        )
        await self._record_store.create(group, len(stored_pages))

    async def _placed(
        self, stored_pages: Sequence[StoredPage], collected: CollectedIntervals
    ) -> list[dict[str, Interval]] | None:
        """The stays by page; new ones go where there is room. None where there is no room for all."""
        count = len(collected.intervals)
        if len(stored_pages) == 1 and count <= MAX_INTERVALS and count * (_UID + _LINE) < MAX_TEXT:
            return [collected.intervals]
        slices = Yielder()
        placed: list[dict[str, Interval]] = [{} for _ in stored_pages]
        sizes = [_size(stored_page.page) for stored_page in stored_pages]
        place: dict[str, int] = {}
        for index, stored_page in enumerate(stored_pages):
            place.update(dict.fromkeys(uids_of(stored_page.page), index))
            await slices.yield_if_due()
        rates = [set(stored_page.page.running) for stored_page in stored_pages]
        for uid, interval in collected.intervals.items():
            await slices.step()
            index = place.get(uid)
            if index is None:
                fits = (n for n, size in enumerate(sizes) if size[0] < MAX_INTERVALS and size[1] < MAX_TEXT)
                index = next(fits, None)
                if index is None:
                    return None
                more = _UID if interval.rate is None or interval.rate in rates[index] else _UID + _LINE
                if interval.rate is not None:
                    rates[index].add(interval.rate)
                sizes[index] = sizes[index][0] + 1, sizes[index][1] + more
            placed[index][uid] = interval
        return placed

    def _from_elsewhere(self, corrected: Sequence[Correction], page: RecordPage, now: int) -> RecordPage:
        """What people corrected, once, and what children left that are gone by now."""
        groups = self._cluster.groups.informer.store
        page = metering.forget_children(page, lambda uid: groups.by_uid(uid) is not None)
        for correction in corrected:
            page = metering.apply_correction(page, correction._replace(at=now))
        uids = {correction.uid for correction in corrected}
        return metering.forget_confirmed(page, uids.__contains__)

    async def _write(
        self, stored_pages: Sequence[StoredPage], moved: list[RecordPage], collected: CollectedIntervals
    ) -> None:
        """Write what has changed or is due: statements first, the first page last.

        That one says which deletions are known, so it is written whenever any other changed.
        """
        changed, slices = False, Yielder()
        for index in reversed(range(len(stored_pages))):
            await slices.yield_if_due()
            stored_page = stored_pages[index]
            page = moved[index] = await self._closed(stored_page, moved[index], collected.at)
            runs = bool(page.running or page.split)
            due = runs and collected.at - stored_page.page.watermark >= self._interval
            # A period that has begun is told though nothing runs.
            differs = replace(page, watermark=stored_page.page.watermark) != stored_page.page
            changed = changed or differs or page.open.period != stored_page.page.open.period
            if due or (changed if index == 0 else differs or page.open.period != stored_page.page.open.period):
                await self._record_store.write(stored_page, page, seen=collected.seen)

    async def _closed(self, stored_page: StoredPage, page: RecordPage, now: int) -> RecordPage:
        """The page without the periods that are over for good; the statement of each is stored before it goes."""
        while metering.may_close(page, now):
            lines = page.periods[0]
            statement = written.statement(
                stored_page.spec, page, metering.with_running(page, lines), lines.period.end or 0
            )
            stated = await self._record_store.find_statement(statement.metadata.name)
            if stated is None:
                await self._record_store.write_statement(statement)
            page, _ = metering.close_period(page, written.period_totals(stated.spec) if stated is not None else None)
        return page

    # The tree.

    def _calendar(self, group: GroupObject, page: RecordPage) -> Sequence[Period] | None:
        """The periods of the group's tree that are not closed; None until its root has told them."""
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
        told = [periods.first_period(schedule, now)] if page.is_new else [lines.period for lines in page.periods]
        last = told[-1]
        if last.end is None or now < last.end:
            told[-1] = last = periods.rescheduled(schedule, last, now)
        while last.end is not None and last.end <= now:
            last = periods.next_period(schedule, last)
            told.append(last)
        return told

    def root(self, group: GroupObject) -> GroupObject | None:
        """The root of a group's tree; None while an ancestor is not there."""
        found: GroupObject | None = group
        seen: set[str] = set()
        while found is not None and found.parent and found.name not in seen:
            seen.add(found.name)
            found = self._cluster.groups.cached(found.parent)
        return found

    def _carry(self, group: GroupObject, hard: Limits, moved: Sequence[RecordPage]) -> RecordPage:
        """The first page with what comes over to its open period, as long as the period before may still change."""
        page, asked = moved[0], wire.terms_of(group, self._catalog)
        lines = list(page.periods)
        for index in range(1, len(lines)):
            used = self._used(group, moved, lines[index - 1].period)
            lines[index] = replace(lines[index], carried=budget.carried_over(asked, hard, used))
        return replace(page, periods=tuple(lines)) if lines != list(page.periods) else page

    def _used(self, group: GroupObject, pages: Sequence[RecordPage], period: Period) -> dict[str, int]:
        """What a group and its children had used of a period, by `cash/` name, as `used` would say."""
        held = [metering.to_hours(metering.spent_beyond_carried(pages, period))]
        for child in self._cluster.groups.values():
            if child.parent == group.name:
                hard = {name: most for name, most in wire.hard_of(child, self._catalog).items() if is_cash(name)}
                used = self._used(child, self.pages(child.name), period)
                held.append(larger(hard, restrict(used, hard)))
        return sum_of(held)

    def _enqueue_affected(
        self,
        group: GroupObject,
        stored_pages: Sequence[StoredPage],
        moved: Sequence[RecordPage],
        collected: CollectedIntervals,
    ) -> None:
        """Have those groups looked at that this look has something for."""
        for name in collected.awaited:
            self._enqueue(name, 0.0)
            self._enqueue(group.name, 1.0)
        for stored_page, page in zip(stored_pages, moved, strict=True):
            if page.split != stored_page.page.split:
                for part in page.split:
                    pod = self._cluster.pod(part.uid)
                    pays = self._cluster.workload_of(pod.plain()) if pod is not None else None
                    payer = self._cluster.group_of(pays[1]) if pays is not None else None
                    if payer not in (None, group.name):
                        self._enqueue(payer, 0.0)
        told = [[lines.period for lines in page.periods] for page in (stored_pages[0].page, moved[0])]
        if not group.parent and told[0] != told[1]:
            for other in self._cluster.groups.values():
                if other.parent and (root := self.root(other)) is not None and root.name == group.name:
                    self._enqueue(other.name, 0.0)

    def _note_unowned(self, group: str, collected: CollectedIntervals) -> None:
        known = self._unowned.get(group, {})
        self._unowned[group] = {pod: known.get(pod, collected.at) for pod in collected.unowned}

    def _again(self, pages: Sequence[RecordPage], now: int) -> float:
        """Seconds until the record has to move: what runs goes on, a period ends, or may be closed."""
        due = [float("inf")]
        for page in pages:
            if page.running or page.split:
                due.append(self._interval)
            ends = (lines.period.end for lines in page.periods)
            due.extend(max(1, (end if end > now else end + metering.GRACE) - now) for end in ends if end is not None)
        return min(due) / 1000

    # The end.

    async def transfer_to_parent(self, group: GroupObject) -> None:
        """Write a deleted group's last statements, hand what it has spent to its parent, once, and let it go."""
        if wire.FINALIZER not in group.metadata.finalizers:
            return
        stored_pages = self._record_store.of(group.name)
        own = [stored_page for stored_page in stored_pages if stored_page.spec.uid == group.metadata.uid]
        await self._state_all(own, group.parent)
        if own and group.parent:
            await self._hand_over(group, [stored_page.page for stored_page in own])
        for stored_page in sorted(own, key=lambda each: -each.spec.page):
            await self._record_store.remove(stored_page)
        await self._set_finalizers(group, [f for f in group.metadata.finalizers if f != wire.FINALIZER])
        self.forget(group.name)

    async def _close_orphaned(self, stored_pages: Sequence[StoredPage]) -> None:
        """A record whose group was taken away by force, and whose name has another now."""
        await self._state_all(stored_pages)
        for stored_page in stored_pages:
            log.warning("record of a group that is no more", group=stored_page.spec.group, page=stored_page.name)
            await self._record_store.remove(stored_page)

    async def _state_all(self, stored_pages: Iterable[StoredPage], heir: str = "") -> None:
        for stored_page in stored_pages:
            for lines in stored_page.page.periods:
                found = metering.with_running(stored_page.page, lines)
                end = min(lines.period.end or stored_page.page.watermark, stored_page.page.watermark)
                statement = written.statement(stored_page.spec, stored_page.page, found, end, heir)
                if not any(found.total().values()) or await self._record_store.find_statement(statement.metadata.name):
                    continue
                await self._record_store.write_statement(statement)

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
                await self._hold(parent)
            stored_pages = [await self._record_store.create(parent, 0)]
            told = self._calendar(parent, stored_pages[0].page)
            stored_pages[0] = replace(
                stored_pages[0], page=metering.adopt_periods(stored_pages[0].page, told or (), self._now())
            )
        page = metering.inherit(stored_pages[0].page, group.metadata.uid, group.name, parts)
        await self._record_store.write(stored_pages[0], page)
        self._enqueue(parent.name, 0.0)

    async def _hold(self, group: GroupObject) -> None:
        """See to it that a group with a record cannot go before its statement is written and its hours are left."""
        await self._set_finalizers(group, [*group.metadata.finalizers, wire.FINALIZER])
        await self._cluster.groups.read(group.name, _READ)

    async def _set_finalizers(self, group: GroupObject, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": group.metadata.resource_version, "finalizers": finalizers}
        await self._client.patch(GROUP, group.name, {"metadata": metadata})


def _size(page: RecordPage) -> tuple[int, int]:
    """How many stays a page has, and about how much text they are."""
    count = sum(map(len, page.running.values())) + len(page.finished) + len(page.split)
    return count, count * _UID + (len(page.running) + len(page.split)) * _LINE
