"""Recompute statements and records from their lines, with other code than wrote them.

This file alone decides which amounts must match, and which lines deserve a remark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from bizrq.api import group as groups
from bizrq.api import hours as wire
from bizrq.api.corrections import CorrectionObject, CorrectionUnreadable, amounts_of
from bizrq.api.group import GroupObject
from bizrq.api.hours import CardHours, HoursUnreadable, RunningLine, Statement, StatementSpec, StoredPeriod
from bizrq.figures.hours.records import HoursRecords, format_hours, lines_of_page
from bizrq.hours import metering
from bizrq.units import quantity
from bizrq.units.base import seconds
from bizrq.units.names import Catalog, is_cash, metered_resource
from bizrq.units.resources import Resources, total
from bizrq.units.slot import GROUP_SLOT_KIND
from bizrq.units.text import by_number, sanitize
from bizrq.units.times import parse_timestamp

T = TypeVar("T")


def audit_verdict(wrong: int, count: int) -> str:
    """Return how many of the checked objects do not match their lines."""
    if wrong:
        return f"{wrong} of {count} {by_number(wrong, 'does not match its', 'do not match their')} lines"
    return f"all {count} match their lines" if count != 1 else "the only one matches its lines"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A recomputed object: a `statement`, a page of a `record`, the status of a `group`, or a `correction`."""

    kind: str
    name: str
    group: str
    start: str | None
    lines: int
    differences: tuple[str, ...]


def check_records(records: HoursRecords, corrections: Iterable[CorrectionObject] = ()) -> list[CheckResult]:
    """Return a result with the mismatches of each record, statement, group and correction."""
    found = [_statement(statement) for statement in records.statements]
    found += [_page(page, records.statements) for page in records.pages]
    of_group: dict[str, list[CardHours]] = {}
    for page in records.pages:
        of_group.setdefault(page.spec.group, []).append(page)
    for name, pages in of_group.items():
        if name in records.groups:
            found.append(_group(records.groups[name], pages))
    lines: dict[str, list[wire.StoredCorrection]] = {}
    for of in (
        *(each.spec for each in records.statements),
        *(line for page in records.pages for line in _periods(page)),
    ):
        for each in of.corrections:
            lines.setdefault(each.uid, []).append(each)
    applied = (each for each in corrections if each.status.applied)
    found += [_correction(each, lines.get(each.metadata.uid, []), records.catalog) for each in applied]
    return found


def _periods(page: CardHours) -> tuple[StoredPeriod, ...]:
    return page.status.open, *page.status.closing


def _correction(correction: CorrectionObject, lines: Sequence[wire.StoredCorrection], catalog: Catalog) -> CheckResult:
    """Check that a correction is in one line of the same content; deleted statements cannot be checked."""
    problems = [f"appears in {len(lines)} lines"] if len(lines) > 1 else []
    for line in lines:
        problems += _differ(
            _amounts(line.amounts, problems), _corrected(correction, problems, catalog), "its line says", "it says"
        )
        if (line.by, line.reason) != (correction.spec.by, correction.spec.reason):
            problems.append(f"its line says {line.by}: {line.reason}")
    return CheckResult("correction", correction.metadata.name, correction.spec.group, None, len(lines), tuple(problems))


def _statement(statement: Statement) -> CheckResult:
    spec = statement.spec
    problems: list[str] = []
    sums = _added(spec, problems)
    problems += _differ(sums, _amounts(spec.total, problems), "its lines come to", "its total says")
    problems += _misread(spec.spent, sums)
    return _checked("statement", statement.metadata.name, spec.group, spec, problems)


def _page(page: CardHours, statements: Sequence[Statement]) -> CheckResult:
    """Check that a page matches its lines, and its closed periods their statements."""
    problems: list[str] = []
    for period in _periods(page):
        _added(period, problems)
    uids = Counter(uid for _, _, since in _running(page, problems) for uid in since)
    problems += [f"{uid} is listed as running twice" for uid, times in uids.items() if times > 1]
    problems += [f"{uid} is listed both as running and as finished" for uid in page.status.finished if uid in uids]
    mine = {s.spec.start: s for s in statements if (s.spec.uid, s.spec.page) == (page.spec.uid, page.spec.page)}
    for period in page.status.periods:
        if period.start in mine:
            whole = _amounts(mine[period.start].spec.total, problems)
            says = f"the statement of {period.start or 'the first period'} says"
            problems += _differ(_amounts(period.total, problems), whole, "it says", says)
    problems += _misread(page.status.spent, _open(page))
    return _checked("record", page.metadata.name, page.spec.group, page.status.open, problems)


def _group(group: GroupObject, pages: Sequence[CardHours]) -> CheckResult:
    """Check that selfUsed in the status matches the pages' open period."""
    problems: list[str] = []
    # An unreadable line is reported for its page.
    spent = total(_open(page) for page in pages)
    for page in pages:
        for name, text in page.status.open.carried.items():
            spent[metered_resource(name)] = (
                spent.get(metered_resource(name), 0) - quantity.parse_sum(text) * metering.HOUR
            )
    mine = metering.to_hours({name: max(0, amount) for name, amount in spent.items()})
    own = {name: n for name, n in groups.parse_amounts(group, group.status.self_used).items() if is_cash(name)}
    for name in sorted(own):
        if own[name] != mine.get(name, 0):
            stated, recorded = quantity.text(name, own[name]), quantity.text(name, mine.get(name, 0))
            problems.append(f"{name}: its status says {stated}, its record {recorded}")
    both = Counter(chain.from_iterable({uid for each in _running(page, []) for uid in each.since} for page in pages))
    problems += [f"{uid} is listed as running on two pages" for uid, times in both.items() if times > 1]
    return CheckResult("group", group.name, group.name, pages[0].status.open.start, len(own), tuple(problems))


def _checked(
    kind: str, name: str, group: str, period: StoredPeriod | StatementSpec, problems: list[str]
) -> CheckResult:
    count = len(period.settled) + len(period.late) + len(period.corrections)
    return CheckResult(kind, name, group, period.start, count, tuple(dict.fromkeys(problems)))


# Lines


def _added(period: StoredPeriod | StatementSpec, problems: list[str]) -> dict[str, int]:
    settled = [amounts for _, amounts in _each(wire.parse_settled, period.settled, problems)]
    late = [amounts for _, _, amounts in _each(wire.parse_late, period.late, problems)]
    return total([*settled, *late, *(_amounts(each.amounts, problems) for each in period.corrections)])


def _each(read: Callable[[str], T], texts: Iterable[str], problems: list[str]) -> Iterator[T]:
    """Yield every readable line, and note the others as problems."""
    for text in texts:
        try:
            yield read(text)
        except ValueError as error:
            problems.append(f"unreadable line: {error}")


def _amounts(stored: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    try:
        return wire.parse_amounts(stored)
    except ValueError as error:
        problems.append(str(error))
        return {}


def _corrected(correction: CorrectionObject, problems: list[str], catalog: Catalog) -> dict[str, int]:
    try:
        return amounts_of(correction, catalog)
    except CorrectionUnreadable as error:
        problems.append(str(error))
        return {}


def _running(page: CardHours, problems: list[str]) -> Iterator[RunningLine]:
    return _each(wire.parse_running, page.status.running, problems)


def _open(page: CardHours) -> dict[str, int]:
    """Return a page's amounts of the open period, with running pods up to the watermark."""
    try:
        return total(line.amounts for line in lines_of_page(page, page.status.open))
    except HoursUnreadable:
        return {}


def _misread(text: str, amounts: Resources) -> list[str]:
    """Compare the human-readable text with the recomputed amounts."""
    true = wire.format_spent({name: amount for name, amount in amounts.items() if amount})
    words = " ".join(word for word in text.split() if not word.endswith("=0h"))
    if not text or words == true:
        return []
    return [f"its text says {sanitize(words)[:200]}, its lines come to {true or 'nothing'}"]


def _differ(found: Resources, stated: Resources, says: str, other: str) -> list[str]:
    """Return a sentence for each resource of which two exact sums differ."""
    return [
        f"{name}: {says} {format_hours(name, a)} ({a}), {other} {format_hours(name, b)} ({b})"
        for name in sorted({*found, *stated})
        if (a := found.get(name, 0)) != (b := stated.get(name, 0))
    ]


# Remarks


def remarks(records: HoursRecords, corrections: Iterable[CorrectionObject] = ()) -> Iterator[dict[str, Any]]:
    """Yield a remark for each correction, and for each late, inferred or inherited line."""
    for each in corrections:
        if not each.status.applied:
            at, why = each.metadata.creation_timestamp or "", each.spec.reason
            hours = _corrected(each, [], records.catalog)
            yield _remark("waiting", each.spec.group, at, each.spec.by, hours, why)
    for statement in records.statements:
        yield from _of_lines(statement.spec.group, statement.spec, statement.spec.inferred)
    for page in records.pages:
        # An inferred line stays in the record until a statement has it too.
        for period in page.status.closing:
            yield from _of_lines(page.spec.group, period, ())
        yield from _of_lines(page.spec.group, page.status.open, page.status.inferred)
        if page.status.inferred_earlier:
            yield _remark("inferred", page.spec.group, why=f"{page.status.inferred_earlier} more, no longer listed")


def _of_lines(group: str, period: StoredPeriod | StatementSpec, inferred: Iterable[str]) -> Iterator[dict[str, Any]]:
    bad: list[str] = []  # reported already, for the object that has them
    for each in period.corrections:
        yield _remark("correction", group, each.at, each.by, _amounts(each.amounts, bad), each.reason)
    for start, workload, amounts in _each(wire.parse_late, period.late, bad):
        yield _remark(
            "late", group, period.start or "", workload, amounts, f"belongs to the period from {start or 'the first'}"
        )
    for workload, amounts in _each(wire.parse_settled, period.settled, bad):
        if workload.startswith(f"{GROUP_SLOT_KIND}/"):
            yield _remark("inherited", group, period.start or "", workload.rpartition("/")[2], amounts, "was deleted")
    for gone in _each(wire.parse_inferred, inferred, bad):
        length = parse_timestamp(gone.seen_gone) - parse_timestamp(gone.charged_to)
        more = {name: n * length for name, n in gone.cost.items()}
        why = f"ran at least until {gone.charged_to}; the hours are the most that it can have run after that"
        yield _remark("inferred", group, gone.seen_gone, f"{gone.workload} {gone.uid}", more, why)


def _remark(
    what: str, group: str, at: str = "", who: str = "", amounts: Resources | None = None, why: str = ""
) -> dict[str, Any]:
    spent = dict(sorted((amounts or {}).items()))
    hours = ", ".join(f"{name} {format_hours(name, amount)}" for name, amount in spent.items())
    values = {"what": what, "group": group, "at": at, "who": who, "hours": hours, "why": why}
    texts = {key: sanitize(value) for key, value in values.items()}
    return {**texts, "seconds": {name: seconds(name, amount) for name, amount in spent.items()}}
