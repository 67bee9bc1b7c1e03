"""Laws of card-hours: what pods occupied is what is charged, whenever somebody looked and whoever crashed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bizrq.api import hours as wire
from bizrq.api.group import ObjectMeta
from bizrq.hours.compaction import MAX_AMOUNTS, MAX_LINES
from bizrq.hours.metering import (
    GRACE,
    MAX_SEGMENTS,
    ClosedPeriod,
    Correction,
    Interval,
    PeriodTotals,
    RecordPage,
    UsageRate,
    adopt_periods,
    advance,
    apply_correction,
    close_period,
    forget_children,
    forget_confirmed,
    group_total,
    inherit,
    inherited_from,
    may_close,
    period_total,
    with_running,
)
from bizrq.hours.periods import ALL_TIME, Period
from bizrq.units.quantity import NANO
from bizrq.units.resources import nonzero
from bizrq.units.resources import total as sum_of

T = 1_700_000_000_000
STEP = 97_777
GPU, A100, CPU = "requests.nvidia.com/gpu", "requests.nvidia.com/gpu.A100", "limits.cpu"
COSTS = st.dictionaries(st.sampled_from((GPU, A100, CPU)), st.integers(0, 2**63 - 1), max_size=3)
TIMES = st.integers(0, 40).map(lambda steps: T + steps * STEP)
LAST = T + 41 * STEP
WORKLOADS = st.sampled_from(("deployments.apps/team-a/web", "jobs.batch/team-a/train", "jobs.batch/team-b/train"))


@dataclass(frozen=True)
class Pod:
    """A pod's life: bound at `start`, over at `end`, which the watch tells `late` after, deleted at `gone`."""

    uid: str
    start: int
    end: int
    gone: int
    rate: UsageRate
    late: int = 0

    def interval(self, now: int) -> Interval:
        """Return what a watch knows of the pod at `now`."""
        return Interval(self.start, self.end if self.end + self.late <= now else None, self.rate)


def _life(times: tuple[int, int, int], rate: UsageRate, late: int) -> Pod:
    first, second, third = sorted(times)
    return Pod("", first, second, max(third, second + late), rate, late)


RATES = st.builds(lambda workload, cost: UsageRate(workload, tuple(sorted(cost.items()))), WORKLOADS, COSTS)


AT_ONCE = st.just(0)


def pods(lateness: st.SearchStrategy[int] = AT_ONCE) -> st.SearchStrategy[list[Pod]]:
    lives = st.lists(st.builds(_life, st.tuples(TIMES, TIMES, TIMES), RATES, lateness), max_size=5)
    return lives.map(lambda found: [replace(pod, uid=f"pod-{n}") for n, pod in enumerate(found)])


LOOKS = st.lists(TIMES, max_size=8, unique=True).map(sorted)


def written_and_read(page: RecordPage) -> RecordPage:
    """The page as the next process finds it."""
    record = wire.CardHours(ObjectMeta(name="nlp"), wire.CardHoursSpec("nlp", "uid"), wire.status_of(page))
    return wire.page_of(wire.record_of(wire.to_json(record)))


def look(page: RecordPage, lives: Sequence[Pod], now: int, since: int) -> RecordPage:
    """What a controller does at `now` that has stored its look at `since`, and watched from there."""
    seen = {pod.uid: pod.interval(now) for pod in lives if pod.start <= now and pod.gone > since}
    return advance(page, seen, now)


def all_of(page: RecordPage) -> dict[str, int]:
    """Everything that the page has ever charged."""
    closed = [*([page.earlier] if page.earlier else []), *page.closed]
    return nonzero(sum_of([*(each.amounts for each in closed), *(period_total(page, lines) for lines in page.periods)]))


def integral(lives: Sequence[Pod], until: int, period: Period = ALL_TIME) -> dict[str, int]:
    """What was occupied, from the pods' own times: the oracle."""
    parts = (
        {name: amount * period.overlap(pod.start, min(pod.end, until)) for name, amount in pod.rate.cost}
        for pod in lives
    )
    return nonzero(sum_of(parts))


@given(pods(), LOOKS)
def test_what_is_charged_is_what_was_occupied_whenever_somebody_looked(lives: list[Pod], looks: list[int]) -> None:
    page, since = RecordPage(), T - 1
    for now in [*looks, LAST]:
        page, since = look(page, lives, now, since), now
        assert nonzero(period_total(page)) == integral(lives, now)
    assert not page.running


FATES = st.sampled_from(["stored", "lost write", "lost reply"])


@given(pods(), LOOKS, st.data())
def test_no_restart_no_lost_write_and_no_lost_reply_charges_twice_or_loses_anything(
    lives: list[Pod], looks: list[int], data: st.DataObject
) -> None:
    """Between any two looks the page is written and read by another; or the write fails and counts for nothing; or it
    is stored and nobody hears of it, so that what ended is told again.
    """
    page, since = RecordPage(), T - 1
    for now in looks:
        after = look(page, lives, now, since)
        fate = data.draw(FATES, label="fate")
        if fate != "lost write":
            page = written_and_read(after)
            assert nonzero(period_total(page)) == integral(lives, now)
        if fate == "stored":
            since = now
    page = written_and_read(look(page, lives, LAST, since))
    assert nonzero(period_total(page)) == integral(lives, LAST)
    assert not page.running


# -- Periods -----------------------------------------------------------------------------------------------------------

#: Ends are told at once, within the grace, or after the period was closed.
LATENESS = st.sampled_from((0, 0, STEP, 3 * STEP, 20 * STEP))


def calendar(edges: Sequence[int]) -> list[Period]:
    """A lifetime that was cut into periods at these times; the last one has no end yet."""
    bounds = [None, *edges, None]
    return [Period(start, end) for start, end in itertools.pairwise(bounds)]


EDGES = st.lists(st.integers(0, 40).map(lambda steps: T + steps * STEP + 13), max_size=4, unique=True).map(sorted)


class Files:
    """A record and its statements, as they are stored; who keeps them may be killed between any two writes."""

    def __init__(self, edges: Sequence[int]) -> None:
        self.told = calendar(edges)
        self.page = adopt_periods(RecordPage(), self.told, T)
        self.statements: dict[int | None, PeriodTotals] = {}
        self.since = T - 1

    def look(self, lives: Sequence[Pod], now: int, *, dies: int = 9) -> None:
        """One look, which writes each statement before the record; it dies after so many writes."""
        page = look(adopt_periods(self.page, self.told, T), lives, now, self.since)
        while may_close(page, now):
            start = page.periods[0].period.start
            page, lines = close_period(page, self.statements.get(start))
            if (dies := dies - 1) < 0:
                return
            self.statements.setdefault(start, written(lines))
        if dies - 1 < 0:
            return
        self.page, self.since = written_and_read(page), now

    def by_period(self) -> dict[int | None, dict[str, int]]:
        """What was charged for each period, late lines with the period that they name."""
        found: dict[int | None, dict[str, int]] = {}

        def add(start: int | None, amounts: Mapping[str, int]) -> None:
            found[start] = sum_of([found.get(start, {}), amounts])

        for lines in (*self.statements.values(), *(with_running(self.page, each) for each in self.page.periods)):
            for amounts in lines.settled.values():
                add(lines.period.start, amounts)
            for (start, _), amounts in lines.late.items():
                add(start, amounts)
        return {start: nonzero(amounts) for start, amounts in found.items()}


def written(lines: PeriodTotals) -> PeriodTotals:
    """A statement as who audits it finds it."""
    return wire.period_totals(wire.stored_period(lines))


FINAL = LAST + 61 * STEP


@given(pods(LATENESS), EDGES, st.lists(st.tuples(TIMES, st.integers(0, 3)), max_size=8))
def test_each_period_has_what_was_occupied_in_it_whatever_was_late_and_whoever_died(
    lives: list[Pod], edges: list[int], looks: list[tuple[int, int]]
) -> None:
    """At the last look everything has been told: what came after a period was closed stands in another one by name."""
    files = Files(edges)
    for now, dies in sorted(looks):
        files.look(lives, now, dies=dies)
        for each in files.page.closed:
            assert files.statements[each.period.start].total() == each.amounts
    files.look(lives, FINAL)
    assert not files.page.running
    assert len(files.page.periods) == 1
    assert files.by_period() == {
        period.start: integral(lives, FINAL, period) for period in files.told if period.start in files.by_period()
    }
    assert all_of(files.page) == integral(lives, FINAL)


@given(pods(LATENESS), EDGES, LOOKS)
def test_splitting_at_any_boundary_changes_no_sum(lives: list[Pod], edges: list[int], looks: list[int]) -> None:
    whole, parts = Files([]), Files(edges)
    for now in [*looks, FINAL]:
        whole.look(lives, now)
        parts.look(lives, now)
        assert all_of(whole.page) == all_of(parts.page)
        assert whole.page.running == parts.page.running


# -- Changes of rate and of group --------------------------------------------------------------------------------------

#: All of it within the grace: until then an end may be told that comes before the change.
MOMENTS = st.integers(0, 40).map(lambda steps: T + steps * GRACE // 50)
CHANGES = st.lists(st.tuples(MOMENTS, RATES), max_size=6, unique_by=lambda change: change[0]).map(sorted)


@given(RATES, CHANGES, MOMENTS)
def test_a_stay_costs_what_it_cost_at_each_time_up_to_its_end_even_where_that_is_told_last(
    first: UsageRate, changes: list[tuple[int, UsageRate]], end: int
) -> None:
    """A resize, another model, a name that hard has from now on: seen at a look, it counts from that look."""
    page = advance(RecordPage(), {"a": Interval(T, None, first)}, T)
    expected, rate, since = {}, first, T
    for now, then in [*changes, (LAST, first)]:
        length = max(0, min(now, end) - since)
        expected = sum_of([expected, {name: amount * length for name, amount in rate.cost}])
        if then != rate:
            rate, since = then, now
        elif now != LAST:
            expected = sum_of([expected, {name: -amount * length for name, amount in rate.cost}])
        if now != LAST:
            page = written_and_read(advance(page, {"a": Interval(T, None, then)}, now))
    page = advance(page, {"a": Interval(T, end, rate)}, T + GRACE)
    assert nonzero(period_total(page)) == nonzero(expected)
    assert not page.running
    assert not page.split
    assert advance(page, {"a": Interval(T, end, rate)}, LAST).finished == {"a"}


@given(RATES, MOMENTS, MOMENTS, st.lists(st.sampled_from(("old", "new", "restart")), max_size=12))
def test_a_pod_that_moves_is_charged_to_one_group_at_a_time(
    rate: UsageRate, moved: int, end: int, steps: list[str]
) -> None:
    """The new group begins where the record of the old one says that it ended, whoever looks first and who dies."""
    old, new, now = advance(RecordPage(), {"a": Interval(T, None, rate)}, T), RecordPage(), moved
    for step in [*steps, "old", "new", "old", "end"]:
        now += 7
        over = end if step == "end" else None
        if step in ("old", "end"):
            left = next((segment.until for segment in old.split), moved)
            held = not any(new.running.values())
            old = written_and_read(
                advance(old, {"a": Interval(T, over, None, left)}, now, holds=lambda _, held=held: held)
            )
        if step in ("new", "end") and not any(old.running.values()):
            start = next((segment.until for segment in old.split), moved)
            new = written_and_read(advance(new, {"a": Interval(start, over, rate)}, now))
    halves = sum_of([period_total(old), period_total(new)])
    assert nonzero(halves) == nonzero({name: amount * (end - T) for name, amount in rate.cost})
    assert nonzero(period_total(old)) == nonzero({name: amount * (min(moved, end) - T) for name, amount in rate.cost})


# -- Sums --------------------------------------------------------------------------------------------------------------


@given(pods(LATENESS), LOOKS, st.integers(1, 3))
def test_a_group_is_the_sum_of_its_pages(lives: list[Pod], looks: list[int], count: int) -> None:
    whole, pages, since = RecordPage(), [RecordPage()] * count, T - 1
    for now in [*looks, FINAL]:
        whole = look(whole, lives, now, since)
        pages = [look(page, lives[n::count], now, since) for n, page in enumerate(pages)]
        since = now
        assert nonzero(group_total(pages, ALL_TIME)) == nonzero(period_total(whole))


@given(pods(), LOOKS, st.lists(st.integers(0, 1), max_size=24))
def test_two_controllers_at_once_charge_what_one_does(lives: list[Pod], looks: list[int], turns: list[int]) -> None:
    """Each decides on what it has read, at some time; a write succeeds only on the version that it was made from."""
    version, stored, seen = 0, RecordPage(), T - 1
    copies = [(version, stored, seen)] * 2
    for now, who in zip(itertools.cycle(looks or [T]), turns, strict=False):
        of, page, since = copies[who]
        if now < since:
            continue
        after = look(page, lives, now, since)
        if of == version:
            version, stored, seen = version + 1, written_and_read(after), max(now, seen)
        copies[who] = version, stored, seen
    assert nonzero(period_total(look(stored, lives, LAST, seen))) == integral(lives, LAST)


@given(st.lists(st.tuples(WORKLOADS, st.integers(1, 9), st.sampled_from(("", "A100", "T4"))), max_size=8), LOOKS)
def test_a_base_is_the_sum_of_its_models_and_of_what_has_none(
    found: list[tuple[str, int, str]], looks: list[int]
) -> None:
    """In every line and in the sum: an emitted model stands beside its base, so what is left of the base has none."""
    lives = [
        Pod(f"pod-{n}", T + n * STEP, T + 3 * n * STEP, LAST, rate_of(workload, cards, model))
        for n, (workload, cards, model) in enumerate(found)
    ]
    page, since = RecordPage(), T - 1
    for now in [*looks, LAST]:
        page, since = look(page, lives, now, since), now
    without = nonzero(integral([pod for pod in lives if len(pod.rate.cost) == 1], LAST)).get(GPU, 0)
    amounts = period_total(page)
    assert amounts.get(GPU, 0) == amounts.get(A100, 0) + amounts.get(f"{GPU}.T4", 0) + without
    lines = with_running(page, page.open)
    assert sum_of(lines.settled.values()) == amounts


def rate_of(workload: str, cards: int, model: str) -> UsageRate:
    cost = {GPU: cards * 10**9, **({f"{GPU}.{model}": cards * 10**9} if model else {})}
    return UsageRate(workload, tuple(sorted(cost.items())))


def test_intervals_that_change_all_the_time_leave_few_segments_and_every_hour() -> None:
    """Somebody changes a label every second: each pod's last segment waits for its end, and a thousand others."""
    rates = [rate_of("jobs.batch/a/train", 1, model) for model in ("A100", "T4")]
    page, count, changes = RecordPage(), 300, 12
    for second in range(changes + 1):
        intervals = {f"u{n}": Interval(T, None, rates[second % 2]) for n in range(count)}
        page = advance(page, intervals, T + second * 1000)
        assert period_total(page).get(GPU, 0) == count * second * 1000 * NANO
        assert written_and_read(page) == page
    assert len(page.split) == count + MAX_SEGMENTS
    assert {segment.uid for segment in page.split if segment.until == T + changes * 1000} == {
        f"u{n}" for n in range(count)
    }
    assert len(wire.status_of(page).split) < changes


def test_lines_of_many_resources_are_folded_too() -> None:
    names = [f"requests.example.com/device-{n}" for n in range(150)]
    lives = {
        f"u{n}": Interval(
            T, T + 1 + n, UsageRate(f"jobs.batch/a/job-{n}", tuple((name, NANO) for name in sorted(names)))
        )
        for n in range(100)
    }
    page = advance(RecordPage(), lives, T + STEP)
    assert period_total(page) == {name: NANO * sum(range(1, 101)) for name in names}
    assert sum(map(len, page.open.settled.values())) <= MAX_AMOUNTS
    fixed = [Correction(f"c{n}", dict.fromkeys(names, 1)) for n in range(40)]
    for each in fixed:
        page = apply_correction(page, each)
    page = advance(page, {}, T + STEP)
    assert period_total(page) == {name: NANO * sum(range(1, 101)) + 40 for name in names}
    assert sum(len(each.amounts) for each in page.open.corrections) <= MAX_AMOUNTS + len(names)
    assert page.open.corrections[-1] == fixed[-1]


@given(st.integers(301, 420), st.integers(1, 400), st.integers(0, 30), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_lines_that_are_folded_lose_no_amount(count: int, spaces: int, running: int, random: Any) -> None:
    lives = [
        Pod(f"{n}", T, LAST if n < running else T + 1, LAST, rate)
        for n in range(count)
        for cost in [((CPU, random.randrange(1, 10**9)), (GPU, random.randrange(0, 10**12)))]
        for rate in [UsageRate(f"jobs.batch/{random.randrange(spaces)}/job-{n}", cost)]
    ]
    page = look(RecordPage(), lives, T + STEP, T - 1)
    assert nonzero(period_total(page)) == integral(lives, T + STEP)
    assert len(page.open.settled) <= MAX_LINES
    assert written_and_read(page) == page


@given(pods(), TIMES, st.randoms(use_true_random=False))
def test_the_order_in_which_pods_are_seen_does_not_matter(lives: list[Pod], now: int, random: Any) -> None:
    shuffled = list(lives)
    random.shuffle(shuffled)
    assert look(RecordPage(), lives, now, T - 1) == look(RecordPage(), shuffled, now, T - 1)


@given(pods(), st.lists(st.tuples(TIMES, st.booleans()), max_size=8))
def test_nothing_is_ever_charged_below_zero_and_no_watermark_goes_back(
    lives: list[Pod], looks: list[tuple[int, bool]]
) -> None:
    """Whatever the clock does: the looks are in no order, and ends come before starts."""
    page = RecordPage()
    for now, turned in looks:
        intervals = {
            p.uid: Interval(p.end, p.start, p.rate) if turned else Interval(p.start, None, p.rate) for p in lives
        }
        after = advance(page, intervals, now)
        assert after.watermark >= page.watermark
        assert all(amount >= 0 for amount in period_total(after).values())
        page = after


@given(pods(), TIMES, st.lists(st.tuples(st.sampled_from("xyz"), COSTS, st.booleans()), max_size=4))
def test_what_children_spent_is_their_parents_for_good_and_once(
    lives: list[Pod], now: int, children: list[tuple[str, dict[str, int], bool]]
) -> None:
    page = look(RecordPage(), lives, now, T - 1)
    expected, first = period_total(page), set[str]()
    for uid, cost, gone in children:
        page = written_and_read(inherit(page, uid, f"child-{uid}", [ClosedPeriod(ALL_TIME, cost)]))
        if uid not in first:
            first.add(uid)
            expected = sum_of([expected, cost])
            assert inherited_from(page, uid) == cost
        if gone:
            kept = forget_children(page, lambda known, gone=uid: known != gone)
            assert period_total(kept) == period_total(page)
    assert nonzero(period_total(forget_children(page, lambda _: False))) == nonzero(expected)


@given(pods(), TIMES, st.lists(st.tuples(st.sampled_from("xyz"), st.integers(-(10**18), 10**18)), max_size=5))
def test_a_correction_counts_once_by_uid(lives: list[Pod], now: int, found: list[tuple[str, int]]) -> None:
    page = look(RecordPage(), lives, now, T - 1)
    expected, first = period_total(page), {}
    for uid, amount in found:
        page = written_and_read(apply_correction(page, Correction(uid, {GPU: amount}, now, "ann", "wrong model")))
        first.setdefault(uid, amount)
    assert nonzero(period_total(page)) == nonzero(sum_of([expected, *({GPU: amount} for amount in first.values())]))
    assert forget_confirmed(page, lambda _: False).applied == frozenset()


@given(pods(), TIMES)
def test_a_page_is_itself_after_it_was_written_and_read(lives: list[Pod], now: int) -> None:
    page = inherit(look(RecordPage(), lives, now, T - 1), "child", "nlp", [ClosedPeriod(ALL_TIME, {CPU: 1})])
    assert written_and_read(page) == page
