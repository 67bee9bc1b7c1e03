"""The hours that groups have spent, as their records and statements tell them, for the verbs that bill, foresee, check.

This file alone decides which lines of a record stand in a bill, of which period a person speaks, and how hours read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from zoneinfo import ZoneInfo

from bizrq.api import hours as wire
from bizrq.api.corrections import CorrectionObject, CorrectionUnreadable, from_dict
from bizrq.api.group import GroupObject, GroupUnreadable, terms_of
from bizrq.api.hours import CardHours, HoursUnreadable, Statement, StoredCorrection, StoredPeriod
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.hours import metering
from bizrq.hours.bill import BillLine
from bizrq.hours.metering import HOUR
from bizrq.hours.periods import Period, next_period
from bizrq.kube.client import KubeClient
from bizrq.store import hours as stored
from bizrq.store.groups import GROUPS, without_managed_fields
from bizrq.units import hierarchy, quantity
from bizrq.units.names import Catalog
from bizrq.units.resources import Resources
from bizrq.units.slot import GROUP_SLOT_KIND as GROUP_KIND
from bizrq.units.times import parse_timestamp

#: What stands where a workload does, of hours that are none's.
CORRECTIONS = "corrections"
_GIB = 2**30


@dataclass(frozen=True)
class HoursRecords:
    """All of it, read at about one time. `groups` are by name, the rest in the order of groups, periods and pages."""

    groups: Mapping[str, GroupObject]
    pages: Sequence[CardHours]
    statements: Sequence[Statement]
    catalog: Catalog

    @cached_property
    def heirs(self) -> dict[str, str]:
        """Who has the hours of a group that is gone, unless its name is another's by now."""
        return {each.spec.group: each.spec.heir for each in self.statements if self._is_last(each)}

    def _is_last(self, statement: Statement) -> bool:
        return bool(statement.spec.heir) and statement.spec.group not in self.groups

    def _parent(self, group: str) -> str:
        return self.groups[group].parent if group in self.groups else self.heirs.get(group, "")

    def ancestors(self, group: str) -> list[str]:
        """The groups above one, the nearest first; above one that is gone those that it left its hours to."""
        return hierarchy.ancestry(group, self._parent)

    def root(self, group: str) -> str:
        return hierarchy.root(group, self._parent)

    def zone(self, group: str) -> str:
        """The time zone by which the periods of a group's tree begin; of a tree that is gone, that of all others."""
        roots = [self.groups.get(self.root(group))]
        if roots == [None]:
            roots = [each for each in self.groups.values() if not each.parent]
        zones = {each.spec.cash.time_zone if each.spec.cash is not None else "" for each in roots if each is not None}
        return (zones.pop() if len(zones) == 1 else "") or "UTC"

    def subtree(self, top: str | None) -> HoursRecords:
        """What belongs to a group and to those below it; without one all, groups that are gone among them."""
        if top is None:
            return self
        children = hierarchy.children((name, self._parent(name)) for name in {*self.groups, *self.heirs})
        names = set(hierarchy.subtree(top, lambda name: children.get(name, ())))
        return replace(
            self,
            pages=[page for page in self.pages if page.spec.group in names],
            statements=[statement for statement in self.statements if statement.spec.group in names],
        )

    def open_lines(self) -> list[BillLine]:
        """What the open periods have come to, running pods up to the last look. Raises Failure."""
        return _read(lambda: self._told(line for page in self.pages for line in lines_of_page(page, page.status.open)))

    def closed_lines(self) -> list[BillLine]:
        """What stands in statements, and what is over and may still change. Raises Failure."""
        closing = ((page, period) for page in self.pages for period in page.status.closing)
        lines = [lines_of_page(page, period) for page, period in closing]
        lines += [lines_of(each) for each in self.statements if not each.spec.heir]
        return _read(lambda: self._told(chain.from_iterable(lines)))

    def _told(self, lines: Iterable[BillLine]) -> list[BillLine]:
        """The lines, and in place of what a group that is gone left to its parent that group's own, where they are."""
        found: list[BillLine] = []
        todo = deque(lines)
        used: set[tuple[str, str, int | None]] = set()
        while todo:
            line = todo.popleft()
            line = line._replace(period=line.period._replace(end=self.until(line.group, line.period)))
            child = line.workload.removeprefix(f"{GROUP_KIND}//")
            key = line.group, child, line.period.start
            if key not in self._last or key in used:
                found.append(line)
                continue
            used.add(key)
            todo.extendleft(own._replace(period=line.period) for each in self._last[key] for own in lines_of(each))
        return found

    def until(self, group: str, period: Period) -> int | None:
        """When a period ends: a record hears it from its root only a moment after the period has begun."""
        root = self.groups.get(self.root(group))
        if period.end is not None or period.start is None or root is None:
            return period.end
        return next_period(terms_of(root, self.catalog).schedule, Period(None, period.start)).end

    @cached_property
    def _last(self) -> dict[tuple[str, str, int | None], list[Statement]]:
        """The last statements of groups that are gone, by heir, name, and beginning of the period."""
        found: dict[tuple[str, str, int | None], list[Statement]] = {}
        for each in filter(self._is_last, self.statements):
            start = period_of(each.spec.start, each.spec.end).start
            found.setdefault((each.spec.heir, each.spec.group, start), []).append(each)
        return found


def _read(lines: Callable[[], list[BillLine]]) -> list[BillLine]:
    try:
        return lines()
    except HoursUnreadable as error:
        raise Failure(f"{error}; bizrq audit says where", EXIT_BAD_INPUT) from None
    except GroupUnreadable as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


async def read_records(client: KubeClient, catalog: Catalog, *, statements: bool) -> HoursRecords:
    """Groups and records, and all statements for who asks for what is over. Raises Failure for what is unreadable."""
    from bizrq.cli.groups import decode_groups

    items, _ = await client.list(GROUPS, transform=without_managed_fields)
    groups = {group.name: group for group in decode_groups(items)}
    try:
        pages = await stored.pages(client)
        told = stored.statements if statements else stored.last_statements
        return HoursRecords(groups, pages, await told(client), catalog)
    except HoursUnreadable as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


async def corrections(client: KubeClient, records: HoursRecords, top: str | None) -> list[CorrectionObject]:
    """What people corrected of a group and of those below it. Raises Failure."""
    items, _ = await client.list(stored.CORRECTIONS)
    try:
        found = [from_dict(item) for item in items]
    except CorrectionUnreadable as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    return [each for each in found if top in (None, each.spec.group, *records.ancestors(each.spec.group))]


# Lines


def lines_of_page(page: CardHours, lines: StoredPeriod) -> Iterator[BillLine]:
    """One period of one page that is not closed, with what runs in it up to the watermark. Raises HoursUnreadable."""
    known, period = wire.page_of(page), period_of(lines.start, lines.end)
    for found in (each for each in known.periods if each.period == period):
        told = wire.stored_period(metering.with_running(known, found))
        yield from _recorded(page.spec.group, period, told.settled, told.late, told.corrections)


def lines_of(statement: Statement) -> Iterator[BillLine]:
    spec = statement.spec
    yield from _recorded(spec.group, period_of(spec.start, spec.end), spec.settled, spec.late, spec.corrections)


def _recorded(
    group: str, period: Period, settled: Iterable[str], late: Iterable[str], corrections: Iterable[StoredCorrection]
) -> Iterator[BillLine]:
    for text in settled:
        yield _line(group, period, *wire.parse_settled(text))
    for text in late:
        yield _line(group, period, *wire.parse_late(text)[1:])
    for correction in corrections:
        yield BillLine(group, period, "", CORRECTIONS, wire.parse_amounts(correction.amounts))


def _line(group: str, period: Period, workload: str, amounts: Resources) -> BillLine:
    workload = terminal.sanitize(workload)
    _, namespace, _ = [*workload.split("/", 2), "", ""][:3]
    return BillLine(group, period, namespace, workload, amounts)


def period_of(start: str | None, end: str | None) -> Period:
    return Period(parse_timestamp(start) if start else None, parse_timestamp(end) if end else None)


# Periods


def select_lines(records: HoursRecords, which: str) -> list[BillLine]:
    """The lines of `current`, `last` or `all` periods, or of the one that begins or lies so; raises Failure."""
    if which == "current":
        return records.open_lines()
    over = records.closed_lines()
    if which == "all":
        return [*over, *records.open_lines()]
    if which == "last":
        last: dict[str, int] = {}
        for line in over:
            root = records.root(line.group)
            last[root] = max(last.get(root, 0), line.period.end or 0)
        return [line for line in over if line.period.end == last[records.root(line.group)]]
    return _named(records, [*over, *records.open_lines()], which)


def _named(records: HoursRecords, lines: Sequence[BillLine], which: str) -> list[BillLine]:
    """Of the periods that begin on this date, or else of those that it lies in."""
    try:
        asked = datetime.fromisoformat(which)
    except ValueError:
        raise Failure(
            f"--period {which}: write current, last, all, or a date or time like 2026-01-05 or 2026-01-05T09:00",
            EXIT_BAD_INPUT,
        ) from None
    beginning = [line for line in lines if period_name(line.period, records.zone(line.group)).startswith(which)]

    def holds(line: BillLine) -> bool:
        zone = ZoneInfo(records.zone(line.group))
        at = asked if asked.tzinfo else asked.replace(tzinfo=zone)
        return line.period.contains(int(at.timestamp() * 1000))

    found = beginning or [line for line in lines if holds(line)]
    if not found:
        there = sorted({period_name(line.period, records.zone(line.group)) for line in lines})
        raise Failure(
            f"no hours are recorded for {which}; periods begin: {', '.join(there) or 'none yet'}", EXIT_BAD_INPUT
        )
    return found


def period_name(period: Period, zone: str) -> str:
    """When a period begins by the wall clock of its tree: the name by which a person calls it."""
    return "the beginning" if period.start is None else format_local_time(period.start, zone)


def format_local_time(at: int, zone: str) -> str:
    """A time by the wall clock of a zone, as short as it can be said."""
    text = datetime.fromtimestamp(at // 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None).isoformat()
    return text.removesuffix("T00:00:00").removesuffix(":00")


# Hours


def format_hours(resource: str, amount: int) -> str:
    """An amount in `unit(resource)`, rounded up to the thousandth."""
    return _decimal(_thousandths(resource, amount))


def format_left(resource: str, hard: int, used: int) -> str:
    """What is left beside what is shown of the two."""
    return _decimal(_thousandths(resource, hard) - _thousandths(resource, used))


def _thousandths(resource: str, amount: int) -> int:
    return -(-amount // (HOUR * quantity.NANO // 1000 * (_GIB if quantity.in_bytes(resource) else 1)))


def _decimal(thousandths: int) -> str:
    whole, rest = divmod(abs(thousandths), 1000)
    return f"{'-' if thousandths < 0 else ''}{whole}.{rest:03d}"


def unit(resource: str) -> str:
    return "GiB-hours" if quantity.in_bytes(resource) else "hours"
