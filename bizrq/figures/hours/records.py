"""Read the used hours of groups from their records and statements.

This file alone decides which lines of a record are in a bill, which period a user means, and how hours are printed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from zoneinfo import ZoneInfo

from bizrq.api import hours as wire
from bizrq.api.corrections import CorrectionObject, CorrectionUnreadable, from_dict
from bizrq.api.group import GroupObject, GroupUnreadable, terms_of
from bizrq.api.hours import CardHours, HoursUnreadable, Statement, StoredCorrection, StoredPeriod
from bizrq.figures.errors import BadValue, NotAllowed, NotThere, Unreadable, UnreadableLine
from bizrq.figures.groups.view import meant_resources
from bizrq.hours import metering
from bizrq.hours.bill import BillLine
from bizrq.hours.metering import HOUR
from bizrq.hours.periods import Period, next_period
from bizrq.kube.client import Forbidden, KubeClient
from bizrq.store import hours as stored
from bizrq.units import hierarchy, quantity
from bizrq.units.names import Catalog, base_and_model, metered_resource
from bizrq.units.resources import Resources
from bizrq.units.slot import GROUP_SLOT_KIND as GROUP_KIND
from bizrq.units.text import sanitize
from bizrq.units.times import parse_timestamp

#: The name in place of a workload, for hours of no workload.
CORRECTIONS = "corrections"
_GIB = 2**30


@dataclass(frozen=True)
class HoursRecords:
    """All records, read at about one time: groups by name, the rest in the order of groups, periods and pages."""

    groups: Mapping[str, GroupObject]
    pages: Sequence[CardHours]
    statements: Sequence[Statement]
    catalog: Catalog
    #: What the person may not read, in words, of what these records should have.
    unread: frozenset[str] = frozenset()
    #: False where there may be groups that the person may not read.
    is_complete: bool = True

    @cached_property
    def heirs(self) -> dict[str, str]:
        """Return the group that inherited the hours of each deleted group, unless a new group has its name."""
        return {each.spec.group: each.spec.heir for each in self.statements if self._is_last(each)}

    def _is_last(self, statement: Statement) -> bool:
        return bool(statement.spec.heir) and statement.spec.group not in self.groups

    def _parent(self, group: str) -> str:
        return self.groups[group].parent if group in self.groups else self.heirs.get(group, "")

    def ancestors(self, group: str) -> list[str]:
        """Return the groups above one, the nearest first; for a deleted group, those that inherited its hours."""
        return hierarchy.ancestry(group, self._parent)

    def root(self, group: str) -> str:
        return hierarchy.root(group, self._parent)

    def zone(self, group: str) -> str:
        """Return the time zone of the periods of a group's tree; for a deleted tree, that of all other trees."""
        roots = [self.groups.get(self.root(group))]
        if roots == [None]:
            roots = [each for each in self.groups.values() if not each.parent]
        zones = {each.spec.cash.time_zone if each.spec.cash is not None else "" for each in roots if each is not None}
        return (zones.pop() if len(zones) == 1 else "") or "UTC"

    def subtree(self, top: str | None) -> HoursRecords:
        """Return the records of a group and its subgroups; all records, also of deleted groups, without one."""
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
        """Return the lines of the open periods, with running pods up to the watermark. Raise NoAnswer."""
        return _read(
            lambda: self._expanded(line for page in self.pages for line in lines_of_page(page, page.status.open))
        )

    def closed_lines(self) -> list[BillLine]:
        """Return the lines of statements, and of past periods that may still change. Raise NoAnswer."""
        closing = ((page, period) for page in self.pages for period in page.status.closing)
        lines = [lines_of_page(page, period) for page, period in closing]
        lines += [lines_of(each) for each in self.statements if not each.spec.heir]
        return _read(lambda: self._expanded(chain.from_iterable(lines)))

    def _expanded(self, lines: Iterable[BillLine]) -> list[BillLine]:
        """Replace each inherited line by the deleted group's own lines, where they are stored."""
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
        """Return the end of a period, computed by the root's schedule until the record has it."""
        root = self.groups.get(self.root(group))
        if period.end is not None or period.start is None or root is None:
            return period.end
        return next_period(terms_of(root, self.catalog).schedule, Period(None, period.start)).end

    def open_periods(self, group: str) -> set[Period]:
        """Return the open periods of a group's tree, with their ends: one, but for a moment when it closes."""
        return self._open_periods.get(self.root(group), set())

    def is_open_anywhere(self, period: Period) -> bool:
        """Return True if a tree has this period open."""
        return any(period in periods for periods in self._open_periods.values())

    @cached_property
    def closing_periods(self) -> set[Period]:
        """Return the periods that are over and not closed yet: late ends of pods may still be added."""
        return {
            (period := period_of(each.start, each.end))._replace(end=self.until(page.spec.group, period))
            for page in self.pages
            for each in page.status.closing
        }

    @cached_property
    def _open_periods(self) -> dict[str, set[Period]]:
        found: dict[str, set[Period]] = {}
        for page in self.pages:
            group, period = page.spec.group, period_of(page.status.open.start, page.status.open.end)
            found.setdefault(self.root(group), set()).add(period._replace(end=self.until(group, period)))
        return found

    @cached_property
    def _last(self) -> dict[tuple[str, str, int | None], list[Statement]]:
        """Return the last statements of deleted groups, by inheriting group, name and start of the period."""
        found: dict[tuple[str, str, int | None], list[Statement]] = {}
        for each in filter(self._is_last, self.statements):
            start = period_of(each.spec.start, each.spec.end).start
            found.setdefault((each.spec.heir, each.spec.group, start), []).append(each)
        return found


def _read(lines: Callable[[], list[BillLine]]) -> list[BillLine]:
    try:
        return lines()
    except HoursUnreadable as error:
        raise UnreadableLine(str(error)) from None
    except GroupUnreadable as error:
        raise Unreadable(str(error)) from None


async def read_records(
    client: KubeClient,
    groups: Iterable[GroupObject],
    catalog: Catalog,
    top: str | None,
    *,
    statements: bool,
    is_complete: bool = True,
) -> HoursRecords:
    """Read the records of these groups, and with `statements` all statements.

    Who may not list records gets those of `top` and below that can be read by name. Unless `is_complete`, there may be
    groups that the person may not read. Raise NoAnswer, ApiError or Unreachable.
    """
    known = {group.name: group for group in groups}
    unread = set() if is_complete else {"the list of groups"}
    try:
        pages = await _read_pages(client, known, top, unread)
        found = await _read_statements(client, pages, unread, every=statements)
    except HoursUnreadable as error:
        raise Unreadable(str(error)) from None
    return HoursRecords(known, pages, found, catalog, frozenset(unread), is_complete)


async def _read_pages(
    client: KubeClient, groups: Mapping[str, GroupObject], top: str | None, unread: set[str]
) -> list[CardHours]:
    """Return all pages, or those of `top` and the groups below it that may be read by name.

    Raise NoAnswer, HoursUnreadable, ApiError or Unreachable.
    """
    try:
        return await stored.pages(client)
    except Forbidden as error:
        if top is None:
            hint = "name a group whose record you may read, or ask for the role bizrq-viewer"
            raise NotAllowed(f"{error}; {hint}") from None
    children = hierarchy.children((group.name, group.parent) for group in groups.values())
    try:
        found = await stored.named_pages(client, top)
    except Forbidden as error:
        # The role of bizrq allow names the pages of one record: a group that is made anew has other ones.
        raise NotAllowed(f"{error}; ask an administrator to run: bizrq allow --read USER {top}") from None
    for name in hierarchy.subtree(top, lambda at: children.get(at, ())):
        if name != top:
            try:
                found += await stored.named_pages(client, name)
            except Forbidden:
                unread.add(f"the record of {name}")
    return found


async def _read_statements(
    client: KubeClient, pages: Sequence[CardHours], unread: set[str], *, every: bool
) -> list[Statement]:
    """Return `every` statement, or only the last ones of deleted groups. Raise ApiError, Unreachable, HoursUnreadable.

    The last ones only say of which workloads inherited hours are: without the right to list them nothing is missing
    unless there are such hours.
    """
    if every:
        return await stored.statements(client)
    try:
        return await stored.last_statements(client)
    except Forbidden:
        if any(f"{GROUP_KIND}/" in line for page in pages for line in page.status.open.settled):
            unread.add("statements of deleted groups")
        return []


async def corrections(client: KubeClient, records: HoursRecords, top: str | None) -> list[CorrectionObject]:
    """Return the corrections of a group and its subgroups. Raise NoAnswer, ApiError or Unreachable."""
    items, _ = await client.list(stored.CORRECTIONS)
    try:
        found = [from_dict(item) for item in items]
    except CorrectionUnreadable as error:
        raise Unreadable(str(error)) from None
    return [each for each in found if top in (None, each.spec.group, *records.ancestors(each.spec.group))]


# Lines


def lines_of_page(page: CardHours, lines: StoredPeriod) -> Iterator[BillLine]:
    """Yield the lines of an open period of a page, with running pods up to the watermark. Raise HoursUnreadable."""
    known, period = wire.page_of(page), period_of(lines.start, lines.end)
    for found in (each for each in known.periods if each.period == period):
        totals = wire.stored_period(metering.with_running(known, found))
        yield from _recorded(page.spec.group, period, totals.settled, totals.late, totals.corrections)


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
    workload = sanitize(workload)
    _, namespace, _ = [*workload.split("/", 2), "", ""][:3]
    return BillLine(group, period, namespace, workload, amounts)


def period_of(start: str | None, end: str | None) -> Period:
    return Period(parse_timestamp(start) if start else None, parse_timestamp(end) if end else None)


# Periods


def select_lines(records: HoursRecords, which: str) -> list[BillLine]:
    """Return the lines of the `current`, `last` or `all` periods, or of the one at a date or time. Raise NoAnswer."""
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
    """Return the lines of the periods that begin on this date, or else of those that contain it."""
    try:
        asked = datetime.fromisoformat(which)
    except ValueError:
        raise BadValue(
            f"{which}: expected current, last, all, or a date or time like 2026-01-05 or 2026-01-05T09:00", "period"
        ) from None
    beginning = [line for line in lines if period_name(line.period, records.zone(line.group)).startswith(which)]

    def holds(line: BillLine) -> bool:
        zone = ZoneInfo(records.zone(line.group))
        at = asked if asked.tzinfo else asked.replace(tzinfo=zone)
        return line.period.contains(int(at.timestamp() * 1000))

    found = beginning or [line for line in lines if holds(line)]
    if not found:
        there = sorted({period_name(line.period, records.zone(line.group)) for line in lines})
        others = f"periods begin: {', '.join(there)}" if there else "none are, for any period: bizrq forecast says why"
        raise NotThere(f"no hours are recorded for {which}; {others}")
    return found


def no_budget(top: str | None, resource: str = "hours") -> str:
    """Return that a group and its subgroups, all groups without one, have no budget, and how to set one."""
    which = "no group has a" if top is None else f"group {top} and the groups below it have no"
    command = f"bizrq set {top or 'GROUP'} cash/requests.nvidia.com/gpu=1000"
    return f"{which} budget of {resource}. To set one, run for example: {command}"


def period_name(period: Period, zone: str) -> str:
    """Return the start of a period in local time, by which users name it."""
    return "the beginning" if period.start is None else format_local_time(period.start, zone)


def format_local_time(at: int, zone: str) -> str:
    """Return a time in local time of a zone, as short as possible."""
    text = datetime.fromtimestamp(at // 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None).isoformat()
    return text.removesuffix("T00:00:00").removesuffix(":00")


# Hours


def named_hours(name: str, there: Collection[str], catalog: Catalog) -> set[str]:
    """Return those of these metered resources that a name is for, and their models.

    `cpu` is short for its requests and its limits, as in `tree` and `get`; `cash/` before a name changes nothing.
    """
    bases = {each: (base_and_model(each, catalog) or ("",))[0] for each in there}
    wanted = meant_resources(metered_resource(name), {*bases, *bases.values()}, catalog)
    return {each for each, base in bases.items() if wanted & {each, base}}


def format_hours(resource: str, amount: int) -> str:
    """Return an amount in `unit(resource)`, rounded up to the thousandth."""
    return _decimal(_thousandths(resource, amount))


def format_left(resource: str, hard: int, used: int) -> str:
    """Return what is left, computed from the two amounts as they are shown."""
    return _decimal(_thousandths(resource, hard) - _thousandths(resource, used))


def _thousandths(resource: str, amount: int) -> int:
    return -(-amount // (one_hour(resource) // 1000))


def _decimal(thousandths: int) -> str:
    whole, rest = divmod(abs(thousandths), 1000)
    return f"{'-' if thousandths < 0 else ''}{whole}.{rest:03d}"


def one_hour(resource: str) -> int:
    """Return one `unit(resource)` as an amount: nano-units x milliseconds."""
    return HOUR * quantity.NANO * (_GIB if quantity.in_bytes(resource) else 1)


def unit(resource: str) -> str:
    return "GiB-hours" if quantity.in_bytes(resource) else "hours"
