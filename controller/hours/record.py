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
from bizrq.hours.metering import Correction, Page, Stay, Total
from bizrq.hours.periods import Period
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS as GROUP
from bizrq.units.names import DEFAULT, Catalog, is_cash, uncash
from bizrq.units.resources import Limits, larger, restrict
from bizrq.units.resources import total as sum_of
from controller.hours.corrections import Corrections
from controller.hours.pod_intervals import Gathered, Stays, uids_of
from controller.hours.record_store import Books, Sheet
from controller.hours.retention import Retention
from controller.watch.cluster import Cluster
from controller.watch.time_slice import Slices

log = structlog.get_logger(__name__)

#: What one page takes: more stays, or more text than this, and new ones go to the next.
MOST_STAYS = 5_000
MOST_TEXT = 256 * 1024
#: About how many characters a line of the record takes without its uids, and each of those.
_LINE, _UID = 120, 52
_READ = 5.0
#: How long a pod may outlive its workload before people are told: the garbage collector takes it. Milliseconds.
_LINGERS = 60_000


class Outlook(NamedTuple):
    """Whether the record is as it should be, and the seconds after which to look again."""

    is_done: bool
    again: float


class Hours:
    """Keeps the records of groups. One look at a time for each group."""

    def __init__(
        self,
        cluster: Cluster,
        stays: Stays,
        books: Books,
        corrections: Corrections,
        retention: Retention,
        enqueue: Callable[[str, float], None],
        *,
        identity: str,
        catalog: Catalog = DEFAULT,
        cash_interval: float = 60.0,
        now: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._client: KubeClient = cluster.client
        self._stays = stays
        self._books = books
        self._enqueue = enqueue
        self._identity = identity
        self._catalog = catalog
        self._interval = int(cash_interval * 1000)
        self._now = now
        #: Charged pods whose workload is there no more, by group, in words, and since when that is so.
        self._unowned: dict[str, dict[str, int]] = {}
        self._corrections = corrections
        self._retention = retention

    def pages(self, group: str) -> list[Page]:
        """The group's record as it was stored last. Raises HoursUnreadable."""
        return [sheet.page for sheet in self._books.of(group)]

    def unowned(self, group: str) -> list[str]:
        """Pods that go on being charged though their workload is there no more, in words."""
        now = self._now()
        return [pod for pod, since in self._unowned.get(group, {}).items() if now - since >= _LINGERS]

    def forget(self, group: str) -> None:
        """The group is no more."""
        self._stays.drop(group)
        self._unowned.pop(group, None)
        self._retention.forget(group)

    async def look(self, group: GroupObject, hard: Limits) -> Outlook:
        """Move the group's record on to now.

        Raises ApiError, Unreachable; HoursUnreadable; GroupUnreadable where the tree's root cannot be read.
        """
        sheets = self._books.of(group.name)
        if any(sheet.spec.uid != group.metadata.uid for sheet in sheets):
            await self._retire([sheet for sheet in sheets if sheet.spec.uid != group.metadata.uid])
            return Outlook(False, 0.0)
        tracked = {uncash(name) for name in hard if is_cash(name)}
        is_leaving = group.metadata.deletion_timestamp is not None
        if not sheets and (is_leaving or not (tracked or self._sets_periods(group))):
            self.forget(group.name)
            return Outlook(True, float("inf"))
        if wire.FINALIZER not in group.metadata.finalizers and not is_leaving:
            await self._hold(group)
            return Outlook(False, 0.0)
        if not sheets:
            sheets = [await self._books.create(group, 0)]
        if (told := self._calendar(group, sheets[0].page)) is None:
            return Outlook(False, 1.0)
        sheets = await self._signed(group, sheets)
        found = await self._stays.gather(group.name, tracked, sheets)
        self._cluster.adopt(group.name, found.let_go)
        placed = await self._placed(sheets, found)
        if placed is None:
            await self._grow(group, sheets)
            return Outlook(False, 0.0)
        moved: list[Page] = []
        for sheet, stays in zip(sheets, placed, strict=True):
            page = metering.follow(sheet.page, told, found.at)
            page = metering.tick(page, stays, found.at, holds=lambda uid: self._stays.is_awaited(uid, group.name))
            moved.append(page)
            await asyncio.sleep(0)
        corrected = await self._corrections.waiting(group.name, sheets[0].page.applied)
        moved[0] = self._from_elsewhere(corrected, moved[0], found.at)
        moved[0] = self._carry(group, hard, moved)
        await self._write(sheets, moved, found)
        await self._corrections.tell(group.name, corrected)
        await self._retention.moved(group.name, sheets[0].page, moved)
        self._stays.stored(group.name, found.gone)
        self._note_unowned(group.name, found)
        self._tell(group, sheets, moved, found)
        return Outlook(True, self._again(moved, found.at))

    def _sets_periods(self, group: GroupObject) -> bool:
        return not group.parent and bool(wire.terms_of(group, self._catalog).schedule.period)

    async def _signed(self, group: GroupObject, sheets: Sequence[Sheet]) -> list[Sheet]:
        """The pages, where there are several, each with our sign: what another has decided by now cannot be written.

        A page may be missing that was announced and not made.
        """
        if sheets[0].pages == 1:
            return list(sheets)
        numbers = {sheet.spec.page: sheet for sheet in sheets}
        signed: list[Sheet] = []
        for number in range(sheets[0].pages):
            sheet = numbers.get(number) or await self._books.create(group, number)
            if sheet.writer != self._identity:
                sheet = await self._books.write(sheet, sheet.page, writer=self._identity)
            signed.append(sheet)
        return signed

    async def _grow(self, group: GroupObject, sheets: Sequence[Sheet]) -> None:
        """Announce one page more, then make it."""
        await self._books.write(sheets[0], sheets[0].page, pages=len(sheets) + 1, writer=self._identity)
        await self._books.create(group, len(sheets))

    async def _placed(self, sheets: Sequence[Sheet], found: Gathered) -> list[dict[str, Stay]] | None:
        """The stays by page; new ones go where there is room. None where there is no room for all."""
        count = len(found.stays)
        if len(sheets) == 1 and count <= MOST_STAYS and count * (_UID + _LINE) < MOST_TEXT:
            return [found.stays]
        slices = Slices()
        placed: list[dict[str, Stay]] = [{} for _ in sheets]
        sizes = [_size(sheet.page) for sheet in sheets]
        place: dict[str, int] = {}
        for index, sheet in enumerate(sheets):
            place.update(dict.fromkeys(uids_of(sheet.page), index))
            await slices.now()
        rates = [set(sheet.page.running) for sheet in sheets]
        for uid, stay in found.stays.items():
            await slices.between()
            index = place.get(uid)
            if index is None:
                fits = (n for n, size in enumerate(sizes) if size[0] < MOST_STAYS and size[1] < MOST_TEXT)
                index = next(fits, None)
                if index is None:
                    return None
                more = _UID if stay.rate is None or stay.rate in rates[index] else _UID + _LINE
                if stay.rate is not None:
                    rates[index].add(stay.rate)
                sizes[index] = sizes[index][0] + 1, sizes[index][1] + more
            placed[index][uid] = stay
        return placed

    def _from_elsewhere(self, corrected: Sequence[Correction], page: Page, now: int) -> Page:
        """What people corrected, once, and what children left that are gone by now."""
        groups = self._cluster.groups.informer.store
        page = metering.forget(page, lambda uid: groups.by_uid(uid) is not None)
        for correction in corrected:
            page = metering.correct(page, correction._replace(at=now))
        uids = {correction.uid for correction in corrected}
        return metering.confirmed(page, uids.__contains__)

    async def _write(self, sheets: Sequence[Sheet], moved: list[Page], found: Gathered) -> None:
        """Write what has changed or is due: statements first, the first page last.

        That one says which deletions are known, so it is written whenever any other changed.
        """
        changed, slices = False, Slices()
        for index in reversed(range(len(sheets))):
            await slices.now()
            sheet = sheets[index]
            page = moved[index] = await self._closed(sheet, moved[index], found.at)
            runs = bool(page.running or page.split)
            due = runs and found.at - sheet.page.watermark >= self._interval
            # A period that has begun is told though nothing runs.
            differs = replace(page, watermark=sheet.page.watermark) != sheet.page
            changed = changed or differs or page.open.period != sheet.page.open.period
            if due or (changed if index == 0 else differs or page.open.period != sheet.page.open.period):
                await self._books.write(sheet, page, seen=found.seen)

    async def _closed(self, sheet: Sheet, page: Page, now: int) -> Page:
        """The page without the periods that are over for good; the statement of each is stored before it goes."""
        while metering.is_over(page, now):
            lines = page.periods[0]
            statement = written.statement(sheet.spec, page, metering.lines_of(page, lines), lines.period.end or 0)
            stated = await self._books.stated(statement.metadata.name)
            if stated is None:
                await self._books.state(statement)
            page, _ = metering.close(page, written.lines_of(stated.spec) if stated is not None else None)
        return page

    # The tree.

    def _calendar(self, group: GroupObject, page: Page) -> Sequence[Period] | None:
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
        told = [periods.first(schedule, now)] if page.is_new else [lines.period for lines in page.periods]
        last = told[-1]
        if last.end is None or now < last.end:
            told[-1] = last = periods.as_scheduled(schedule, last, now)
        while last.end is not None and last.end <= now:
            last = periods.following(schedule, last)
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

    def _carry(self, group: GroupObject, hard: Limits, moved: Sequence[Page]) -> Page:
        """The first page with what comes over to its open period, as long as the period before may still change."""
        page, asked = moved[0], wire.terms_of(group, self._catalog)
        lines = list(page.periods)
        for index in range(1, len(lines)):
            used = self._used(group, moved, lines[index - 1].period)
            lines[index] = replace(lines[index], carried=budget.carried(asked, hard, used))
        return replace(page, periods=tuple(lines)) if lines != list(page.periods) else page

    def _used(self, group: GroupObject, pages: Sequence[Page], period: Period) -> dict[str, int]:
        """What a group and its children had used of a period, by `cash/` name, as `used` would say."""
        held = [metering.hours(metering.beyond_carried(pages, period))]
        for child in self._cluster.groups.values():
            if child.parent == group.name:
                hard = {name: most for name, most in wire.hard_of(child, self._catalog).items() if is_cash(name)}
                used = self._used(child, self.pages(child.name), period)
                held.append(larger(hard, restrict(used, hard)))
        return sum_of(held)

    def _tell(self, group: GroupObject, sheets: Sequence[Sheet], moved: Sequence[Page], found: Gathered) -> None:
        """Have those groups looked at that this look has something for."""
        for name in found.awaited:
            self._enqueue(name, 0.0)
            self._enqueue(group.name, 1.0)
        for sheet, page in zip(sheets, moved, strict=True):
            if page.split != sheet.page.split:
                for part in page.split:
                    pod = self._cluster.pod(part.uid)
                    pays = self._cluster.workload_of(pod.plain()) if pod is not None else None
                    payer = self._cluster.group_of(pays[1]) if pays is not None else None
                    if payer not in (None, group.name):
                        self._enqueue(payer, 0.0)
        told = [[lines.period for lines in page.periods] for page in (sheets[0].page, moved[0])]
        if not group.parent and told[0] != told[1]:
            for other in self._cluster.groups.values():
                if other.parent and (root := self.root(other)) is not None and root.name == group.name:
                    self._enqueue(other.name, 0.0)

    def _note_unowned(self, group: str, found: Gathered) -> None:
        known = self._unowned.get(group, {})
        self._unowned[group] = {pod: known.get(pod, found.at) for pod in found.unowned}

    def _again(self, pages: Sequence[Page], now: int) -> float:
        """Seconds until the record has to move: what runs goes on, a period ends, or may be closed."""
        due = [float("inf")]
        for page in pages:
            if page.running or page.split:
                due.append(self._interval)
            ends = (lines.period.end for lines in page.periods)
            due.extend(max(1, (end if end > now else end + metering.GRACE) - now) for end in ends if end is not None)
        return min(due) / 1000

    # The end.

    async def bequeath(self, group: GroupObject) -> None:
        """Write a deleted group's last statements, hand what it has spent to its parent, once, and let it go."""
        if wire.FINALIZER not in group.metadata.finalizers:
            return
        sheets = self._books.of(group.name)
        own = [sheet for sheet in sheets if sheet.spec.uid == group.metadata.uid]
        await self._state_all(own, group.parent)
        if own and group.parent:
            await self._hand_over(group, [sheet.page for sheet in own])
        for sheet in sorted(own, key=lambda each: -each.spec.page):
            await self._books.remove(sheet)
        await self._set_finalizers(group, [f for f in group.metadata.finalizers if f != wire.FINALIZER])
        self.forget(group.name)

    async def _retire(self, sheets: Sequence[Sheet]) -> None:
        """A record whose group was taken away by force, and whose name has another now."""
        await self._state_all(sheets)
        for sheet in sheets:
            log.warning("record of a group that is no more", group=sheet.spec.group, page=sheet.name)
            await self._books.remove(sheet)

    async def _state_all(self, sheets: Iterable[Sheet], heir: str = "") -> None:
        for sheet in sheets:
            for lines in sheet.page.periods:
                found = metering.lines_of(sheet.page, lines)
                end = min(lines.period.end or sheet.page.watermark, sheet.page.watermark)
                statement = written.statement(sheet.spec, sheet.page, found, end, heir)
                if not any(found.total().values()) or await self._books.stated(statement.metadata.name):
                    continue
                await self._books.state(statement)

    async def _hand_over(self, group: GroupObject, pages: Sequence[Page]) -> None:
        parent = await self._cluster.groups.read(group.parent, _READ)
        if parent is None:
            return
        spent = {lines.period.start: lines.period for page in pages for lines in page.periods}
        parts = [Total(period, metering.beyond_carried(pages, period)) for period in spent.values()]
        parts = [part for part in parts if any(part.amounts.values())]
        sheets = self._books.of(parent.name)
        if not parts or any(group.metadata.uid in sheet.page.inherited for sheet in sheets):
            return
        if not sheets:
            if wire.FINALIZER not in parent.metadata.finalizers:
                await self._hold(parent)
            sheets = [await self._books.create(parent, 0)]
            told = self._calendar(parent, sheets[0].page)
            sheets[0] = replace(sheets[0], page=metering.follow(sheets[0].page, told or (), self._now()))
        page = metering.inherit(sheets[0].page, group.metadata.uid, group.name, parts)
        await self._books.write(sheets[0], page)
        self._enqueue(parent.name, 0.0)

    async def _hold(self, group: GroupObject) -> None:
        """See to it that a group with a record cannot go before its statement is written and its hours are left."""
        await self._set_finalizers(group, [*group.metadata.finalizers, wire.FINALIZER])
        await self._cluster.groups.read(group.name, _READ)

    async def _set_finalizers(self, group: GroupObject, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": group.metadata.resource_version, "finalizers": finalizers}
        await self._client.patch(GROUP, group.name, {"metadata": metadata})


def _size(page: Page) -> tuple[int, int]:
    """How many stays a page has, and about how much text they are."""
    count = sum(map(len, page.running.values())) + len(page.finished) + len(page.split)
    return count, count * _UID + (len(page.running) + len(page.split)) * _LINE
