"""The record of a group's card-hours on the wire: BizGroupCardHours moves, a BizGroupStatement never does.

This file alone decides how a stored record reads; docs/card-hours.md shows it to people. What it means is
`bizrq.hours.metering`'s. Amounts in it are integers of nano-units x milliseconds, costs and carried hours quantities.
A group's record is the sum of its pages, each an object of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from bizrq.api.group import API_GROUP, API_VERSION, GROUP_LABEL, ObjectMeta
from bizrq.hours import metering
from bizrq.hours.metering import Inherited, RecordPage, Segment, UsageRate, period_total, to_hours
from bizrq.hours.periods import Period
from bizrq.units import quantity
from bizrq.units.resources import text_of
from bizrq.units.times import format_timestamp, parse_timestamp

CARD_HOURS, CARD_HOURS_PLURAL = "BizGroupCardHours", "bizgroupcardhours"
STATEMENT, STATEMENTS_PLURAL = "BizGroupStatement", "bizgroupstatements"
#: On the last statements of a group whose hours another has.
HEIR_LABEL = f"{API_GROUP}/heir"

Amounts = dict[str, str]
_Shape = TypeVar("_Shape")


class HoursUnreadable(ValueError):
    """A stored record that cannot be counted with; says which line and why."""


class StoredCorrection(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A credit or debit of a person, as a line of the period in which the controller found it."""

    uid: str
    amounts: Amounts = {}
    at: str = ""
    by: str = ""
    reason: str = ""


class StoredPeriod(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One period that is not closed. Without `start` it is from the beginning, without `end` it never ends."""

    start: str | None = None
    end: str | None = None
    settled: list[str] = []
    late: list[str] = []
    corrections: list[StoredCorrection] = []
    carried: Amounts = {}


class StoredTotal(msgspec.Struct, omit_defaults=True, rename="camel"):
    start: str | None = None
    end: str | None = None
    total: Amounts = {}


class StoredInheritance(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The hours of a child that is being deleted, by period."""

    uid: str
    name: str
    parts: list[StoredTotal] = []


class CardHoursSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    group: str
    uid: str
    page: int = 0


class CardHoursStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    watermark: str = ""
    pages: int = 1
    writer: str = ""
    spent: str = ""
    count: int = 0
    open: StoredPeriod = msgspec.field(default_factory=StoredPeriod)
    closing: list[StoredPeriod] = []
    periods: list[StoredTotal] = []
    earlier: StoredTotal | None = None
    running: list[str] = []
    finished: list[str] = []
    split: list[str] = []
    inferred: list[str] = []
    inferred_earlier: int = 0
    inherited: list[StoredInheritance] = []
    applied: list[str] = []
    seen: dict[str, str] = {}


class CardHours(msgspec.Struct, rename="camel"):
    """One page of a group's record."""

    metadata: ObjectMeta
    spec: CardHoursSpec
    status: CardHoursStatus = msgspec.field(default_factory=CardHoursStatus)
    api_version: str = API_VERSION
    kind: str = CARD_HOURS


class StatementSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    group: str
    uid: str
    end: str
    start: str | None = None
    heir: str = ""
    page: int = 0
    spent: str = ""
    total: Amounts = {}
    carried: Amounts = {}
    settled: list[str] = []
    late: list[str] = []
    corrections: list[StoredCorrection] = []
    inferred: list[str] = []


class Statement(msgspec.Struct, rename="camel"):
    """One page of what a group spent in one period; never edited."""

    metadata: ObjectMeta
    spec: StatementSpec
    api_version: str = API_VERSION
    kind: str = STATEMENT


def record_of(obj: Mapping[str, Any]) -> CardHours:
    """Return one page from parsed JSON. Raises HoursUnreadable."""
    return _convert(obj, CardHours, CARD_HOURS)


def statement_of(obj: Mapping[str, Any]) -> Statement:
    """Return one statement from parsed JSON. Raises HoursUnreadable."""
    return _convert(obj, Statement, STATEMENT)


def to_json(obj: CardHours | Statement) -> dict[str, Any]:
    """Return the object as JSON values."""
    return msgspec.to_builtins(obj)


def _convert(obj: Mapping[str, Any], shape: type[_Shape], kind: str) -> _Shape:
    try:
        return msgspec.convert(obj, shape)
    except msgspec.MsgspecError as error:
        raise HoursUnreadable(f"not a {kind}: {error}") from None


# Lines. Single spaces separate their words; no name of a kind, a namespace, an object or a resource has a space.


class RunningLine(NamedTuple):
    """The running intervals of one workload at one cost: the start of each, in milliseconds, by uid.

    For a claim the uid is followed by `@` and the time of its allocation.
    """

    workload: str
    cost: dict[str, int]
    since: dict[str, int]


class InferredLine(NamedTuple):
    """An interval whose end nobody saw: charged up to the last look that found it. `seen_gone` is the next look."""

    workload: str
    uid: str
    start: str
    charged_to: str
    seen_gone: str
    cost: dict[str, int]


def settled_line(workload: str, amounts: Mapping[str, int]) -> str:
    """Format `KIND/NAMESPACE/NAME RESOURCE=AMOUNT…`, sorted. KIND is `plural.group`, or `others` for folded lines."""
    return " ".join([workload, *(f"{name}={amount}" for name, amount in sorted(amounts.items()))])


def parse_settled(line: str) -> tuple[str, dict[str, int]]:
    """Return the workload of a line and what it spent, in nano-units x milliseconds; raises HoursUnreadable."""
    workload, *words = line.split(" ")
    return workload, {name: parse_integer(text) for name, text in map(_pair, words)}


def late_line(start: str | None, workload: str, amounts: Mapping[str, int]) -> str:
    """Format a settled line after the start of its closed period; `-` is a period from the beginning."""
    return f"{start or '-'} {settled_line(workload, amounts)}"


def parse_late(line: str) -> tuple[str | None, str, dict[str, int]]:
    """Return the start of the closed period (None: from the beginning), the workload, and amounts; may be below 0.

    Raises HoursUnreadable.
    """
    start, _, rest = line.partition(" ")
    workload, amounts = parse_settled(rest)
    return (None if start == "-" else start), workload, amounts


def running_line(workload: str, cost: Mapping[str, str], since: Mapping[str, int]) -> str:
    """Format `KIND/NAMESPACE/NAME RESOURCE=QUANTITY… : UID@START…`; `cost` has canonical texts."""
    costs = [f"{name}={value}" for name, value in sorted(cost.items())]
    return " ".join([workload, *costs, ":", *(f"{uid}@{start}" for uid, start in sorted(since.items()))])


def parse_running(line: str) -> RunningLine:
    """Parse a line of `running_line`. Raises HoursUnreadable."""
    head, colon, tail = line.partition(" : ")
    if not colon:
        raise HoursUnreadable(f"{line[:80]!r} has no ' : '")
    workload, cost = _head(head)
    since: dict[str, int] = {}
    for word in tail.split(" "):
        uid, _, start = word.rpartition("@")
        since[uid] = parse_integer(start)
    return RunningLine(workload, dict(cost), since)


def inferred_line(found: InferredLine) -> str:
    costs = [f"{name}={quantity.text(name, value)}" for name, value in sorted(found.cost.items())]
    bounds = [f"charged-to={found.charged_to}", f"seen-gone={found.seen_gone}"]
    return " ".join([found.workload, f"{found.uid}@{found.start}", *bounds, *costs])


def parse_inferred(line: str) -> InferredLine:
    """Parse a line of `inferred_line`. Raises HoursUnreadable."""
    words = line.split(" ")
    if len(words) < 4 or not words[2].startswith("charged-to=") or not words[3].startswith("seen-gone="):
        raise HoursUnreadable(f"{line[:80]!r} tells no bounds")
    workload, who, charged_to, seen_gone, *costs = words
    uid, _, start = who.rpartition("@")
    cost = dict(_head(" ".join([workload, *costs]))[1])
    return InferredLine(workload, uid, start, charged_to.partition("=")[2], seen_gone.partition("=")[2], cost)


def segment_lines(segments: Iterable[Segment]) -> Iterator[str]:
    """Format segments as running intervals are, after the time at which all segments of the line ended."""
    for (until, rate), found in groupby(segments, key=lambda segment: (segment.until, segment.rate)):
        cost = {name: quantity.text(name, value) for name, value in rate.cost}
        yield f"until={until} {running_line(rate.workload, cost, {segment.uid: segment.start for segment in found})}"


def parse_segments(line: str) -> list[Segment]:
    """Parse a line of `segment_lines`. Raises HoursUnreadable."""
    until, _, rest = line.partition(" ")
    if not until.startswith("until="):
        raise HoursUnreadable(f"{line[:80]!r} tells no end")
    found = parse_running(rest)
    rate, at = UsageRate(found.workload, tuple(sorted(found.cost.items()))), parse_integer(until.removeprefix("until="))
    return [Segment(uid, start, at, rate) for uid, start in found.since.items()]


def format_amounts(amounts: Mapping[str, int]) -> Amounts:
    """Format integers as text: not every reader of JSON has numbers of this size."""
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def parse_amounts(stored: Mapping[str, str]) -> dict[str, int]:
    """Parse amounts by resource. Raises HoursUnreadable."""
    return {name: parse_integer(text) for name, text in stored.items()}


def parse_integer(text: str) -> int:
    """Parse an integer, which may be below 0. Raises HoursUnreadable."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 60):
        raise HoursUnreadable(f"{text[:80]!r} is no amount")
    return int(text)


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise HoursUnreadable(f"{word[:80]!r} is no RESOURCE=AMOUNT")
    return name, value


# Pages.


def page_of(record: CardHours) -> RecordPage:
    """Return the page of a stored object; raises HoursUnreadable."""
    status = record.status
    try:
        periods = [period_totals(each) for each in (status.open, *status.closing)]
        rates = map(_running, status.running)
        return RecordPage(
            watermark=_time(status.watermark) or 0,
            periods=tuple(sorted(periods, key=lambda each: each.period.start or 0)),
            running={rate: dict(since) for rate, since in rates},
            split=tuple(segment for line in status.split for segment in parse_segments(line)),
            finished=frozenset(status.finished),
            closed=tuple(map(_total, status.periods)),
            earlier=_total(status.earlier) if status.earlier else None,
            inferred=tuple(map(_inferred, status.inferred)),
            inferred_earlier=status.inferred_earlier,
            inherited={each.uid: Inherited(each.name, tuple(map(_total, each.parts))) for each in status.inherited},
            applied=frozenset(status.applied),
        )
    except (ValueError, LookupError) as error:
        raise HoursUnreadable(f"card-hours {record.metadata.name}: {error}") from None


def status_of(page: RecordPage) -> CardHoursStatus:
    """Return the status of a page; the caller adds `pages`, `writer` and `seen`."""
    opened = page.open
    return CardHoursStatus(
        watermark=format_timestamp(page.watermark),
        spent=format_spent(period_total(page)),
        count=sum(map(len, page.running.values())),
        open=stored_period(opened),
        closing=[stored_period(each) for each in page.periods if each is not opened],
        periods=[_stored_total(each) for each in page.closed],
        earlier=_stored_total(page.earlier) if page.earlier else None,
        running=sorted(_rate_line(rate, since) for rate, since in page.running.items()),
        split=list(segment_lines(page.split)),
        finished=sorted(page.finished),
        inferred=[_gone_line(each) for each in page.inferred],
        inferred_earlier=page.inferred_earlier,
        inherited=[
            StoredInheritance(uid, child.name, [_stored_total(each) for each in child.periods])
            for uid, child in sorted(page.inherited.items())
        ],
        applied=sorted(page.applied),
    )


def period_totals(stored: StoredPeriod | StatementSpec) -> metering.PeriodTotals:
    """Return the totals of a stored period, or of a statement; raises HoursUnreadable."""
    late_ = ((start, workload, amounts) for start, workload, amounts in map(parse_late, stored.late))
    return metering.PeriodTotals(
        Period(_time(stored.start), _time(stored.end)),
        dict(map(parse_settled, stored.settled)),
        {(_time(start), workload): amounts for start, workload, amounts in late_},
        tuple(
            metering.Correction(each.uid, parse_amounts(each.amounts), _time(each.at) or 0, each.by, each.reason)
            for each in stored.corrections
        ),
        {name: quantity.parse_sum(value) for name, value in stored.carried.items()},
    )


def stored_period(totals: metering.PeriodTotals) -> StoredPeriod:
    return StoredPeriod(
        start=_text(totals.period.start),
        end=_text(totals.period.end),
        settled=[settled_line(workload, amounts) for workload, amounts in sorted(totals.settled.items())],
        late=[late_line(_text(key[0]), key[1], amounts) for key, amounts in sorted(totals.late.items(), key=_by_start)],
        corrections=[
            StoredCorrection(each.uid, format_amounts(each.amounts), format_timestamp(each.at), each.by, each.reason)
            for each in totals.corrections
        ],
        carried=dict(text_of(totals.carried)),
    )


def statement(
    of: CardHoursSpec, page: RecordPage, totals: metering.PeriodTotals, end: int, parent: str = ""
) -> Statement:
    """Return the statement of one page for a period that ends, or is ended, at `end`.

    `parent` is set for a group that is deleted: its parent has these hours as a line, too.
    """
    start = (
        "0"
        if totals.period.start is None
        else format_timestamp(totals.period.start)[:16].replace("-", "").replace("T", "-")
    )
    name = f"{of.group}.{start.replace(':', '')}.{of.uid[:8]}"
    written, amounts = stored_period(totals), totals.total()
    spec = StatementSpec(
        group=of.group,
        uid=of.uid,
        page=of.page,
        start=written.start,
        end=format_timestamp(end),
        heir=parent,
        spent=format_spent(amounts),
        total=format_amounts(amounts),
        carried=written.carried,
        settled=written.settled,
        late=written.late,
        corrections=written.corrections,
        inferred=[
            _gone_line(each) for each in page.inferred if each.start < end and totals.period.contains(each.charged_to)
        ],
    )
    labels = {GROUP_LABEL: of.group, **({HEIR_LABEL: parent} if parent else {})}
    name += f".{of.page}" if of.page else ""
    return Statement(ObjectMeta(name=name, labels=labels), spec)


def page_name(group: str, uid: str, number: int) -> str:
    """Return the name of a page of the record of a group with this uid."""
    return f"{group}.{number}.{uid[:8]}" if number else group


def format_spent(amounts: Mapping[str, int]) -> str:
    """Format nano-units x milliseconds for people: `requests.nvidia.com/gpu=12.5h`, by resource."""
    found = [(name, value) for name in sorted(amounts) for value in to_hours({name: amounts[name]}).values()]
    return " ".join(f"{name}={_decimal(name, value)}h" for name, value in found)


def _decimal(name: str, value: int) -> str:
    whole, rest = divmod(abs(value), quantity.NANO)
    if not rest:
        return quantity.text(name, value)
    return f"{'-' if value < 0 else ''}{whole}.{rest:09d}".rstrip("0")


def _total(stored: StoredTotal) -> metering.ClosedPeriod:
    return metering.ClosedPeriod(Period(_time(stored.start), _time(stored.end)), parse_amounts(stored.total))


def _stored_total(total_: metering.ClosedPeriod) -> StoredTotal:
    return StoredTotal(_text(total_.period.start), _text(total_.period.end), format_amounts(total_.amounts))


def _inferred(line: str) -> metering.InferredInterval:
    found = parse_inferred(line)
    rate = UsageRate(found.workload, tuple(sorted(found.cost.items())))
    bounds = parse_timestamp(found.charged_to), parse_timestamp(found.seen_gone)
    return metering.InferredInterval(found.uid, parse_integer(found.start), *bounds, rate)


def _gone_line(gone: metering.InferredInterval) -> str:
    bounds = format_timestamp(gone.charged_to), format_timestamp(gone.seen_gone)
    return inferred_line(InferredLine(gone.rate.workload, gone.uid, str(gone.start), *bounds, dict(gone.rate.cost)))


def _running(line: str) -> tuple[UsageRate, Mapping[str, int]]:
    found = parse_running(line)
    return UsageRate(found.workload, tuple(sorted(found.cost.items()))), found.since


def _rate_line(rate: UsageRate, since: Mapping[str, int]) -> str:
    return running_line(rate.workload, text_of(dict(rate.cost)), since)


def _time(text: str | None) -> int | None:
    return parse_timestamp(text) if text else None


def _text(at: int | None) -> str | None:
    return None if at is None else format_timestamp(at)


def _by_start(item: tuple[tuple[int | None, str], object]) -> tuple[int, str]:
    return item[0][0] or 0, item[0][1]


@lru_cache(maxsize=16_384)
def _head(text: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    workload, *words = text.split(" ")
    try:
        return workload, tuple((name, quantity.parse_sum(value)) for name, value in map(_pair, words))
    except quantity.QuantityError as error:
        raise HoursUnreadable(f"{text[:80]!r}: {error}") from None
