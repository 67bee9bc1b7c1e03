"""Metering of card-hours: turn the intervals of a group's pods into spent hours, charged once, period by period.

This file alone decides how time becomes hours. It knows no pods and no clocks: times are integer milliseconds, and
amounts nano-units; a spent amount is nano-units x milliseconds. An interval is the time in which a pod, or a claim for
devices, occupies what it requests; it is half open. A segment is the part of an interval at one rate in one group. A
line is the sum of one workload in a period. A page is a complete record of some of a group's intervals: nothing is in
two pages, and a group is the sum of its pages.

A running interval is charged up to the watermark by arithmetic, not by additions: the end that the pod reports replaces
the estimate. So to look twice, or to split an interval at any moment, changes no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, TypeVar

from bizrq.hours import compaction
from bizrq.hours.compaction import MAX_INFERRED
from bizrq.hours.periods import ALL_TIME, Period
from bizrq.units.names import cash_name, metered_resource
from bizrq.units.resources import Resources, nonzero, subtract_floor
from bizrq.units.resources import total as sum_of
from bizrq.units.slot import GROUP_SLOT_KIND

HOUR = 3_600_000
_MILLI = 1_000_000

#: How long after a period or a segment the end of an interval in it may still be delivered, in milliseconds.
GRACE = 600_000
#: Most closed periods, and most segments besides the last of each interval. More of them are folded or settled.
MAX_PERIODS = 60
MAX_SEGMENTS = 1_000

Amounts: TypeAlias = Mapping[str, int]
"""Resource to nano-units x milliseconds."""


class UsageRate(NamedTuple):
    """The cost of one pod of a workload. All its pods at one cost are one entry of the record."""

    workload: str
    cost: tuple[tuple[str, int], ...]


class Interval(NamedTuple):
    """The time of a pod or an allocated claim: from PodScheduled to its last container's end, or its deletion.

    `end` is None while it runs. `rate` is None where it is no longer known: the stored one is kept. `moved_at` is when
    another group, or none, began to pay for it.
    """

    start: int
    end: int | None = None
    rate: UsageRate | None = None
    moved_at: int | None = None


class Segment(NamedTuple):
    """The part of an interval before its rate or group changed: up to `until`, or to the interval's end if earlier."""

    uid: str
    start: int
    until: int
    rate: UsageRate


class InferredInterval(NamedTuple):
    """An interval whose end nobody saw: charged up to the last look that found it. `seen_gone` is the next look."""

    uid: str
    start: int
    charged_to: int
    seen_gone: int
    rate: UsageRate


class Correction(NamedTuple):
    """A credit (below 0) or debit that a person made."""

    uid: str
    amounts: Amounts
    at: int = 0
    by: str = ""
    reason: str = ""


class ClosedPeriod(NamedTuple):
    """The sum of a closed period."""

    period: Period
    amounts: Amounts


class Inherited(NamedTuple):
    """The hours of a child that is being deleted, by period; they are lines of the record already."""

    name: str
    periods: tuple[ClosedPeriod, ...]


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """The sums of one period that is not closed. Intervals that still run are not in them.

    `settled` has the lines of workloads: what ended in the period. `late` has lines of periods that were closed before
    that was known, by their start; below 0 where a running interval had been charged beyond its end. `carried` is the
    rollover from the period before, in nano-units x hours by `cash/` name, and no part of the sum.
    """

    period: Period = ALL_TIME
    settled: Mapping[str, Amounts] = field(default_factory=dict)
    late: Mapping[tuple[int | None, str], Amounts] = field(default_factory=dict)
    corrections: tuple[Correction, ...] = ()
    carried: Resources = field(default_factory=dict)

    def total(self) -> dict[str, int]:
        return sum_of([*self.settled.values(), *self.late.values(), *(c.amounts for c in self.corrections)])


@dataclass(frozen=True, slots=True)
class RecordPage:
    """One page of a group's record, all of it stored in one write.

    `periods` are those that are not closed, oldest first. `finished` has settled intervals whose pods may still exist,
    so that none is settled twice. `split` has segments that an earlier end of their interval may still shorten.
    """

    watermark: int = 0
    periods: tuple[PeriodTotals, ...] = (PeriodTotals(),)
    running: Mapping[UsageRate, Mapping[str, int]] = field(default_factory=dict)
    split: tuple[Segment, ...] = ()
    finished: frozenset[str] = frozenset()
    closed: tuple[ClosedPeriod, ...] = ()
    earlier: ClosedPeriod | None = None
    inferred: tuple[InferredInterval, ...] = ()
    inferred_earlier: int = 0
    inherited: Mapping[str, Inherited] = field(default_factory=dict)
    applied: frozenset[str] = frozenset()

    @property
    def open(self) -> PeriodTotals:
        """Return the open period: the last that the watermark has reached."""
        begun = [totals for totals in self.periods if (totals.period.start or 0) <= self.watermark]
        return begun[-1] if begun else self.periods[0]

    @property
    def calendar(self) -> list[Period]:
        """Return the periods that are not closed, oldest first."""
        return [totals.period for totals in self.periods]

    @property
    def is_new(self) -> bool:
        """Return True before the first look."""
        return not self.watermark and len(self.periods) == 1 and self.periods[0] == PeriodTotals()


def advance(
    page: RecordPage,
    intervals: Mapping[str, Interval],
    now: int,
    *,
    holds: Callable[[str], bool] = lambda _: False,
) -> RecordPage:
    """Return the page moved on to `now`.

    `intervals` has each interval that the page has and that is still known, and those that it is to have, by uid. A
    running one that is not among them vanished unseen, and is charged up to the last look that found it. Segments of an
    interval that `holds` are kept until another group's record has the rest.
    """
    step = _Advance(page, intervals, now)
    step.continue_running()
    step.enter_new()
    step.settle_segments(holds)
    return step.result()


class _Advance:
    """One move of a page to `now`, in the phases that `advance` lists.

    `running` is what runs after the move, `entering` what joins it, both by rate and uid; `ends` are ends by uid.
    """

    def __init__(self, page: RecordPage, intervals: Mapping[str, Interval], now: int) -> None:
        self._page, self._intervals, self._now = page, intervals, now
        self._seen = max(page.watermark, now)
        self._builder = _PageBuilder(page)
        self._running: dict[UsageRate, Mapping[str, int]] = {}
        self._entering: dict[UsageRate, dict[str, int]] = {}
        self._ends: dict[str, int] = {}
        self._segments: list[Segment] = []
        self._inferred: list[InferredInterval] = []

    def continue_running(self) -> None:
        """Keep what goes on as it is; settle what ended, and cut what changed its rate or its group."""
        for rate, since in self._page.running.items():
            changed = {uid: found for uid in since if _has_changed(found := self._intervals.get(uid), rate)}
            self._running[rate] = {u: start for u, start in since.items() if u not in changed} if changed else since
            for uid, interval in changed.items():
                if interval is None:
                    self._infer_end(rate, uid, since[uid])
                elif interval.end is not None:
                    self._ends[uid] = interval.end
                    self._builder.settle(rate, since[uid], _charged_to(interval, interval.end))
                else:
                    self._cut(rate, uid, since[uid], interval)

    def enter_new(self) -> None:
        """Settle or begin what the page does not know yet: new intervals, and those that ran elsewhere meanwhile."""
        page = self._page
        known = set[str]().union(*page.running.values(), page.finished)
        before: dict[str, int] = {}
        for segment in page.split:
            before[segment.uid] = max(segment.until, before.get(segment.uid, segment.until))
        for uid, interval in self._intervals.items():
            if uid in known:
                continue
            start = max(interval.start, before.get(uid, interval.start))
            if interval.end is not None:
                self._ends[uid] = interval.end
                if interval.rate is not None and (interval.moved_at is None or uid not in before):
                    self._builder.settle(interval.rate, start, _charged_to(interval, interval.end), known=False)
            elif interval.moved_at is None and interval.rate is not None:
                self._builder.begin(interval.rate, start)
                self._entering.setdefault(interval.rate, {})[uid] = start

    def settle_segments(self, holds: Callable[[str], bool]) -> None:
        """Settle segments whose interval has a known end or can no longer get one; keep the others."""
        waiting = sorted((*self._page.split, *self._segments), key=_when)
        early = _too_many(waiting)
        for index, segment in enumerate(waiting):
            end = self._ends.get(segment.uid)
            may_end = self._seen < segment.until + GRACE or holds(segment.uid)
            if end is None and index not in early and may_end:
                self._builder.split.append(segment)
            else:
                until = segment.until if end is None else min(end, segment.until)
                self._builder.settle(segment.rate, segment.start, until, segment.until)

    def result(self) -> RecordPage:
        for rate, since in self._entering.items():
            self._running[rate] = {**self._running.get(rate, {}), **since}
        running = {rate: since for rate, since in self._running.items() if since}
        workloads = {rate.workload for rate in running}
        page, inferred = self._page, (*self._page.inferred, *self._inferred)
        return replace(
            page,
            watermark=self._seen,
            periods=tuple(_folded(totals, workloads) for totals in self._builder.totals()),
            running=running,
            split=tuple(self._builder.split),
            finished=frozenset(uid for uid in (*page.finished, *self._ends) if uid in self._intervals),
            inferred=inferred[-MAX_INFERRED:],
            inferred_earlier=page.inferred_earlier + len(inferred[:-MAX_INFERRED]),
        )

    def _infer_end(self, rate: UsageRate, uid: str, start: int) -> None:
        end = self._ends[uid] = max(start, min(self._page.watermark, self._now))
        self._inferred.append(InferredInterval(uid, start, end, self._now, rate))
        self._builder.settle(rate, start, end)

    def _cut(self, rate: UsageRate, uid: str, start: int, interval: Interval) -> None:
        """End a running segment: the interval goes on at another rate, or in another group's record."""
        at = max(start, self._seen if interval.moved_at is None else interval.moved_at)
        self._builder.cut(rate, at)
        if at > start:
            self._segments.append(Segment(uid, start, at, rate))
        if interval.moved_at is None and interval.rate is not None:
            self._entering.setdefault(interval.rate, {})[uid] = at


def _has_changed(interval: Interval | None, rate: UsageRate) -> bool:
    """Return True for a running interval that vanished, ended, moved, or has another rate now."""
    return (
        interval is None
        or interval.end is not None
        or interval.moved_at is not None
        or interval.rate not in (None, rate)
    )


def _charged_to(interval: Interval, end: int) -> int:
    """Return when the group stops paying for an interval that ended: at its end, or when another took it over."""
    return end if interval.moved_at is None else min(interval.moved_at, end)


class _PageBuilder:
    """Adds intervals to copies of a page's totals: to each period the time that overlaps it."""

    def __init__(self, page: RecordPage) -> None:
        self._periods = list(page.periods)
        self._settled = [dict(totals.settled) for totals in page.periods]
        self._late = dict(page.open.late)
        self._open = page.periods.index(page.open)
        self._first = page.periods[0].period.start
        #: Starts of closed periods, oldest first; what is before the first of them was never recorded.
        closed = [*([page.earlier] if page.earlier else []), *page.closed]
        self._closed = [total.period.start for total in closed]
        self.split: list[Segment] = []

    def settle(self, rate: UsageRate, start: int, end: int, until: int | None = None, *, known: bool = True) -> None:
        """Charge an interval that ended. One that is `known` was charged to closed periods up to `until`."""
        last = self._periods[-1].period.end
        if last is not None and end > last:
            # By the clock of the pod's node the next period has begun; the root has not published its end yet.
            self._periods.append(PeriodTotals(Period(last)))
            self._settled.append({})
        for totals, settled in zip(self._periods, self._settled, strict=True):
            _add(settled, rate, totals.period.overlap(start, end))
        if self._first is not None and start < self._first:
            true = max(start, min(end, self._first))
            if not known:
                self._charge_late(rate, start, true, 1)
            elif true < (charged := self._first if until is None else min(until, self._first)):
                self._charge_late(rate, true, charged, -1)

    def begin(self, rate: UsageRate, start: int) -> None:
        """Begin a running interval; what it spent in closed periods before it was known is charged late."""
        if self._first is not None and start < self._first:
            self._charge_late(rate, start, self._first, 1)

    def cut(self, rate: UsageRate, at: int) -> None:
        """End a running interval at `at`, and take back what closed periods were charged beyond that."""
        if self._first is not None and at < self._first:
            self._charge_late(rate, at, self._first, -1)

    def totals(self) -> list[PeriodTotals]:
        return [
            replace(totals, settled=settled, late=self._late if index == self._open else totals.late)
            for index, (totals, settled) in enumerate(zip(self._periods, self._settled, strict=True))
        ]

    def _charge_late(self, rate: UsageRate, start: int, end: int, sign: int) -> None:
        for index, begun in enumerate(self._closed):
            after = self._closed[index + 1] if index + 1 < len(self._closed) else self._first
            if length := Period(begun, after).overlap(start, end):
                key = begun, rate.workload
                self._late[key] = _plus(self._late.get(key, {}), rate, sign * length)


def _add(sums: dict[str, Amounts], rate: UsageRate, length: int) -> None:
    if length and (more := _plus(sums.get(rate.workload, {}), rate, length)):
        sums[rate.workload] = more


def _plus(amounts: Amounts, rate: UsageRate, length: int) -> dict[str, int]:
    return sum_of([amounts, {name: amount * length for name, amount in rate.cost if amount}])


# The sums of a page.


def with_running(page: RecordPage, totals: PeriodTotals) -> PeriodTotals:
    """Return a period's totals including running intervals, up to the watermark."""
    settled = dict(totals.settled)
    for rate, length in _occupied(page, totals.period):
        _add(settled, rate, length)
    return replace(totals, settled=settled)


def period_total(page: RecordPage, totals: PeriodTotals | None = None) -> dict[str, int]:
    """Return the total of a page's period, by default the open one, up to its watermark; may be below 0."""
    totals = totals or page.open
    amounts = totals.total()
    for rate, length in _occupied(page, totals.period):
        amounts = _plus(amounts, rate, length)
    return amounts


def open_period(pages: Sequence[RecordPage]) -> Period:
    """Return the open period of a group: the latest that any of its pages has reached."""
    return max((page.open.period for page in pages), key=lambda period: period.start or 0)


def group_total(pages: Iterable[RecordPage], period: Period) -> dict[str, int]:
    """Return a group's total of a period that is not closed, up to its watermark."""
    return sum_of(
        period_total(page, totals) for page in pages for totals in page.periods if totals.period.start == period.start
    )


def spent_beyond_carried(pages: Iterable[RecordPage], period: Period) -> dict[str, int]:
    """Return what a group has spent of a period beyond what was carried into it, never below 0."""
    pages = list(pages)
    return subtract_floor(group_total(pages, period), carried_into(pages, period))


def carried_into(pages: Iterable[RecordPage], period: Period) -> dict[str, int]:
    """Return what was carried into a period that is not closed."""
    found = [totals.carried for page in pages for totals in page.periods if totals.period.start == period.start]
    return {metered_resource(name): amount * HOUR for name, amount in sum_of(found).items()}


def to_hours(amounts: Amounts) -> dict[str, int]:
    """Convert nano-units x milliseconds to nano-units x hours by `cash/` name, rounded up to milli."""
    return {cash_name(name): -(-amount // (HOUR * _MILLI)) * _MILLI for name, amount in sorted(amounts.items())}


def _occupied(page: RecordPage, period: Period) -> list[tuple[UsageRate, int]]:
    """Return for how long running intervals and kept segments have occupied each rate within the period, in sum."""
    found: list[tuple[UsageRate, int]] = []
    first = period.start if period.start is not None else 0
    last = page.watermark if period.end is None else min(page.watermark, period.end)
    for rate, since in page.running.items():
        length = sum(last - (start if start > first else first) for start in since.values() if start < last)
        if length > 0 and last > first:
            found.append((rate, length))
    segments = (
        (segment.rate, period.overlap(segment.start, min(segment.until, page.watermark))) for segment in page.split
    )
    return [*found, *((rate, length) for rate, length in segments if length)]


# What bounds a page.


def _when(segment: Segment) -> tuple[int, UsageRate, str, int]:
    return segment.until, segment.rate, segment.uid, segment.start


def _too_many(segments: Sequence[Segment]) -> set[int]:
    """Return the places of the oldest segments, if intervals change again and again and there are too many.

    The last segment of each interval is kept: it waits for an end.
    """
    if len(segments) <= MAX_SEGMENTS:
        return set()
    last = {segment.uid: index for index, segment in enumerate(segments)}
    older = [index for index, segment in enumerate(segments) if last[segment.uid] != index]
    return set(older[: max(0, len(older) - MAX_SEGMENTS)])


def _folded(totals: PeriodTotals, running: set[str]) -> PeriodTotals:
    """Return the totals, with the smallest lines folded where there are too many."""
    settled, late = compaction.compact_settled(totals.settled, running), compaction.compact_late(totals.late)
    kept = compaction.kept_count([correction.amounts for correction in totals.corrections], MAX_INFERRED - 1)
    corrections = totals.corrections
    if len(corrections) > kept + 1:
        old, young = corrections[:-kept], corrections[-kept:]
        first = Correction("earlier", sum_of(c.amounts for c in old), reason="earlier corrections together")
        corrections = first, *young
    return replace(totals, settled=settled, late=late, corrections=corrections)


# Periods.


def adopt_periods(page: RecordPage, published: Sequence[Period], now: int) -> RecordPage:
    """Return the page with the periods that its root has published, oldest first.

    A new page gets those in which intervals may still end.
    """
    if page.is_new:
        recent = [period for period in published if period.end is None or period.end + GRACE > now]
        return replace(page, periods=tuple(map(PeriodTotals, recent or (ALL_TIME,))))
    by_start = {period.start: period for period in published}
    periods = list(page.periods)
    periods[-1] = replace(periods[-1], period=by_start.get(periods[-1].period.start, periods[-1].period))
    while (end := periods[-1].period.end) is not None and end in by_start:
        periods.append(PeriodTotals(by_start[end]))
    return page if tuple(periods) == page.periods else replace(page, periods=tuple(periods))


def may_close(page: RecordPage, now: int) -> bool:
    """Return True where the oldest period may be closed: what arrives after that is late."""
    end = page.periods[0].period.end
    return end is not None and len(page.periods) > 1 and min(now, page.watermark) >= end + GRACE


def close_period(page: RecordPage, stated: PeriodTotals | None = None) -> tuple[RecordPage, PeriodTotals]:
    """Return the page without its oldest period, and that period's statement.

    `stated` is the statement where one is written already: it does not change, and differences are charged late.
    """
    found, *rest = page.periods
    totals = with_running(page, found)
    if stated is not None:
        known = {correction.uid for correction in stated.corrections}
        missed = tuple(correction for correction in totals.corrections if correction.uid not in known)
        late = _differences(totals, stated)
        rest[0] = replace(
            rest[0],
            late={key: more for key in {**rest[0].late, **late} if (more := _sum(rest[0].late, late, key))},
            corrections=(*missed, *rest[0].corrections),
        )
        totals = stated
    closed = (*page.closed, ClosedPeriod(found.period, totals.total()))
    earlier = page.earlier
    kept = compaction.kept_count([total.amounts for total in closed], MAX_PERIODS)
    if len(closed) > kept:
        old, closed = closed[:-kept], closed[-kept:]
        older = [*([earlier] if earlier else []), *old]
        span = Period(older[0].period.start, older[-1].period.end)
        earlier = ClosedPeriod(span, sum_of(each.amounts for each in older))
    return replace(page, periods=tuple(rest), closed=closed, earlier=earlier), totals


def _differences(totals: PeriodTotals, stated: PeriodTotals) -> dict[tuple[int | None, str], Amounts]:
    """Return what the totals have beyond those of a statement, by period and workload."""
    start = totals.period.start
    mine, theirs = (
        {**{(start, workload): amounts for workload, amounts in each.settled.items()}, **each.late}
        for each in (totals, stated)
    )
    negative = {key: {name: -amount for name, amount in amounts.items()} for key, amounts in theirs.items()}
    return {key: more for key in {**mine, **theirs} if (more := _sum(mine, negative, key))}


_Key = TypeVar("_Key")


def _sum(one: Mapping[_Key, Amounts], other: Mapping[_Key, Amounts], key: _Key) -> dict[str, int]:
    return nonzero(sum_of([one.get(key, {}), other.get(key, {})]))


# Hours of children and corrections, each added once by uid.


def inherit(page: RecordPage, uid: str, name: str, spent: Sequence[ClosedPeriod]) -> RecordPage:
    """Return the parent's page with the hours of the child of this uid as a line of their own, once."""
    if uid in page.inherited:
        return page
    kept = {**page.inherited, uid: Inherited(name, tuple(spent))}
    periods = list(page.periods)
    starts = [totals.period.start for totals in periods]
    for period, amounts in spent:
        # What is closed here already is late; there is no period yet that begins later than the open one.
        index = starts.index(period.start) if period.start in starts else periods.index(page.open)
        line = f"{GROUP_SLOT_KIND}//{name}"
        settled = sum_of([periods[index].settled.get(line, {}), nonzero(amounts)])
        periods[index] = replace(periods[index], settled={**periods[index].settled, line: settled})
    return replace(page, inherited=kept, periods=tuple(periods))


def inherited_from(page: RecordPage, uid: str) -> dict[str, int]:
    """Return the hours of the open period that a child has already handed to the group, though it still exists."""
    child = page.inherited.get(uid)
    start = page.open.period.start
    return sum_of(total.amounts for total in child.periods if total.period.start == start) if child else {}


def forget_children(page: RecordPage, exists: Callable[[str], bool]) -> RecordPage:
    """Return the page without the entries of children that no longer exist; their hours stay as lines."""
    kept = {uid: child for uid, child in page.inherited.items() if exists(uid)}
    return replace(page, inherited=kept) if len(kept) < len(page.inherited) else page


def apply_correction(page: RecordPage, correction: Correction) -> RecordPage:
    """Return the page with a correction as a line of its open period, once by uid."""
    if correction.uid in page.applied:
        return page
    index = page.periods.index(page.open)
    periods = list(page.periods)
    periods[index] = replace(periods[index], corrections=(*periods[index].corrections, correction))
    return replace(page, periods=tuple(periods), applied=page.applied | {correction.uid})


def forget_confirmed(page: RecordPage, waits: Callable[[str], bool]) -> RecordPage:
    """Return the page without the uids of corrections whose status confirms the line, or that are gone."""
    kept = frozenset(filter(waits, page.applied))
    return replace(page, applied=kept) if len(kept) < len(page.applied) else page
