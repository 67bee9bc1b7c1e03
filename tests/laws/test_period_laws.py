"""Laws of periods: they cover all time, once, and to cut an interval at their boundaries changes nothing."""

from __future__ import annotations

from itertools import pairwise
from zoneinfo import available_timezones

from hypothesis import given
from hypothesis import strategies as st

from bizrq.hours.periods import NOTICE, PERIODS, SLACK, Period, Schedule, as_scheduled, first, following, split
from tests.support.language import at

DAY = 86_400_000
ZONES = sorted(zone for zone in available_timezones() if zone not in ("localtime", "Factory"))
#: Where days were skipped or had twice, and where clocks move by half an hour, or at midnight.
ODD = ("Pacific/Apia", "Pacific/Kwajalein", "America/Juneau", "Asia/Manila", "Australia/Lord_Howe", "Asia/Beirut")
#: From before most zones were agreed on.
TIMES = st.integers(at("1840-01-01T00:00Z"), at("2200-01-01T00:00Z"))
RECENT = st.integers(at("1990-01-01T00:00Z"), at("2100-01-01T00:00Z"))
SCHEDULES = st.builds(
    Schedule,
    st.sampled_from(PERIODS),
    st.sampled_from(ODD) | st.sampled_from(ZONES),
    st.datetimes().map(lambda anchor: anchor.replace(microsecond=0)),
)
ANY = SCHEDULES | st.just(Schedule())
LONGEST = {"daily": 1, "weekly": 7, "monthly": 31}
SHORTEST = {"daily": 1, "weekly": 7, "monthly": 28}


def after(plan: Schedule, now: int) -> int:
    found = plan.after(now)
    assert found is not None
    return found


@given(SCHEDULES, TIMES)
def test_boundaries_strictly_grow_and_none_is_left_out(plan: Schedule, now: int) -> None:
    """Whatever a zone did to its clocks: a boundary that one instant sees, all instants before it see or see one
    before it.
    """
    then = after(plan, now)
    assert then > now
    assert after(plan, then - 1) == then
    middle = (now + then) // 2
    assert after(plan, middle) == then
    assert after(plan, then) > then


@given(SCHEDULES, RECENT)
def test_a_period_is_as_long_as_it_is_called(plan: Schedule, now: int) -> None:
    """But for what clocks are moved by: a day, where a zone changed its side of the date line."""
    start = after(plan, now)
    length = after(plan, start) - start
    assert (SHORTEST[plan.period] - 1) * DAY < length <= (LONGEST[plan.period] + 1) * DAY


@given(SCHEDULES, RECENT, st.integers(1, 40))
def test_periods_cover_time_without_gap_or_overlap(plan: Schedule, now: int, count: int) -> None:
    period = first(plan, now)
    assert period.start is None
    assert period.end is not None
    assert period.end > now + NOTICE
    for _ in range(count):
        then = following(plan, period)
        assert then.start == period.end
        assert then.end is not None
        assert then.end > period.end + SLACK
        assert as_scheduled(plan, then, now) == then
        period = then


@given(st.lists(st.tuples(ANY, st.integers(0, 90 * DAY)), min_size=1, max_size=6), RECENT)
def test_however_often_a_schedule_is_changed_nothing_that_is_over_moves(
    edits: list[tuple[Schedule, int]], now: int
) -> None:
    """An open end only moves on, a lifetime's comes with notice, and what is over stays over."""
    current, over = first(edits[0][0], now), []
    for plan, passed in edits:
        told = as_scheduled(plan, current, now)
        assert told.start == current.start
        assert told.end is not None or current.end is None
        if told != current:
            assert told.end is not None
            assert told.end > (current.end if current.end is not None else now + NOTICE)
        assert as_scheduled(plan, told, now) == told
        current, now = told, now + passed
        while current.end is not None and current.end <= now:
            over.append(current)
            current = following(plan, current)
    for earlier, later in pairwise([*over, current]):
        assert later.start == earlier.end


@given(SCHEDULES, RECENT, st.integers(0, 100 * DAY), st.integers(0, 100 * DAY))
def test_to_split_an_interval_at_boundaries_changes_nothing(plan: Schedule, now: int, begin: int, length: int) -> None:
    periods = [first(plan, now)]
    while (periods[-1].end or 0) < now + 200 * DAY:
        periods.append(following(plan, periods[-1]))
    periods[-1] = Period(periods[-1].start)
    start, end = now + begin, now + begin + length
    pieces = split(start, end, [each.start for each in periods if each.start is not None])
    assert sum(last - head for head, last in pieces) == length == sum(each.within(start, end) for each in periods)
    for head, last in pieces:
        [period] = [each for each in periods if each.holds(head)]
        assert period.within(head, last) == last - head > 0
    assert [each for each in periods if each.within(start, end)] == [
        each for each in periods if any(each.holds(head) for head, _ in pieces)
    ]
