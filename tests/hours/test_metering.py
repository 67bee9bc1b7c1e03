"""What an interval costs, and when it is charged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bizrq.hours.metering import (
    GRACE,
    HOUR,
    ClosedPeriod,
    Interval,
    PeriodTotals,
    RecordPage,
    UsageRate,
    adopt_periods,
    advance,
    close_period,
    forget_children,
    inherit,
    may_close,
    period_total,
    to_hours,
    with_running,
)
from bizrq.hours.periods import ALL_TIME, Period
from tests.support.language import res

T = 1_700_000_000_000
MINUTE, SECOND = 60_000, 1_000


WEB = "deployments.apps/team-a/web"
Known = tuple[str, Interval]


def rate(cost: str, workload: str = WEB) -> UsageRate:
    return UsageRate(workload, tuple(sorted(res(cost).items())))


def interval(uid: str, start: int, end: int | None = None, cost: str = "gpu=1", workload: str = WEB) -> Known:
    """Return an interval by uid. Times are milliseconds after T; a cost of "" is no longer known."""
    return uid, Interval(T + start, None if end is None else T + end, rate(cost, workload) if cost else None)


def spent(page: RecordPage) -> dict[str, int]:
    return to_hours(period_total(page))


def for_an_hour(amounts: str) -> dict[str, int]:
    """What these amounts come to in an hour, in nano-units x milliseconds."""
    return {name: amount * HOUR for name, amount in res(amounts).items()}


def at(page: RecordPage, now: int, *intervals: Known, ended: Mapping[str, int] | None = None) -> RecordPage:
    ends = {uid: Interval(T, T + end) for uid, end in (ended or {}).items()}
    return advance(page, {**dict(intervals), **ends}, T + now)


def left(page: RecordPage, uid: str, amounts: str) -> RecordPage:
    """A child with this uid leaves what it spent in so many hours."""
    return inherit(page, uid, uid, [ClosedPeriod(ALL_TIME, for_an_hour(amounts))])


HOURS = [
    ("a card for an hour", [interval("a", 0, HOUR)], "cash/gpu=1"),
    ("eight cards for two hours", [interval(str(n), 0, 2 * HOUR) for n in range(8)], "cash/gpu=16"),
    (
        "every resource that the pod occupies",
        [interval("a", 0, HOUR, "cpu=500m mem=2Gi")],
        "cash/cpu=500m cash/mem=2Gi",
    ),
    ("a model's hours are the base's too", [interval("a", 0, HOUR, "gpu=1 gpu.A100=1")], "cash/gpu=1 cash/gpu.A100=1"),
    ("ten seconds between two looks", [interval("a", 3 * SECOND, 13 * SECOND, "gpu=360")], "cash/gpu=1"),
    ("a millisecond, rounded up to a thousandth of an hour", [interval("a", 0, 1)], "cash/gpu=1m"),
    ("the sum is rounded, not each interval", [interval(str(n), 0, 1) for n in range(100)], "cash/gpu=1m"),
    ("nothing for no time", [interval("a", 7, 7)], ""),
    ("nothing where the end comes before the start", [interval("a", 10, 3)], ""),
    ("nothing for what costs nothing", [interval("a", 0, HOUR, "gpu=0")], ""),
    ("two intervals that touch are one", [interval("a", 0, HOUR // 2), interval("b", HOUR // 2, HOUR)], "cash/gpu=1"),
    ("what began long before the first look", [interval("a", -HOUR, HOUR)], "cash/gpu=2"),
]


@pytest.mark.parametrize(("why", "intervals", "hours"), HOURS, ids=[row[0] for row in HOURS])
def test_an_interval_costs(why: str, intervals: list[Known], hours: str) -> None:
    assert spent(at(RecordPage(), 2 * HOUR, *intervals)) == res(hours)


def test_what_runs_is_charged_up_to_the_last_look() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(page) == res("cash/gpu=1")
    assert spent(at(page, 3 * HOUR, interval("a", 0))) == res("cash/gpu=3")


def test_what_starts_after_the_look_costs_nothing_yet() -> None:
    """The controller's clock may be behind the one that bound the pod."""
    assert spent(at(RecordPage(), 0, interval("a", 5 * MINUTE))) == {}


def test_the_end_settles_what_the_clock_only_estimated() -> None:
    page = at(RecordPage(), 2 * HOUR, interval("a", 0))
    assert spent(at(page, 3 * HOUR, interval("a", 0, HOUR))) == res("cash/gpu=1")


def test_time_does_not_run_backwards() -> None:
    page = at(RecordPage(), 2 * HOUR, interval("a", 0))
    back = at(page, HOUR, interval("a", 0))
    assert back.watermark == T + 2 * HOUR
    assert spent(back) == spent(page)


def test_a_finished_pod_that_still_exists_is_charged_once() -> None:
    over = interval("a", 0, HOUR)
    page = at(at(at(RecordPage(), HOUR, over), 2 * HOUR, over), 3 * HOUR, over)
    assert spent(page) == res("cash/gpu=1")
    assert page.finished == {"a"}
    assert at(page, 4 * HOUR).finished == frozenset()


def test_a_pod_that_vanished_is_charged_until_its_deletion_was_seen() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(at(page, 9 * HOUR, ended={"a": 3 * HOUR})) == res("cash/gpu=3")


def test_a_pod_that_vanished_unseen_is_charged_up_to_its_last_proof_of_life() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(at(page, 9 * HOUR)) == res("cash/gpu=1")


def test_a_pod_costs_what_it_cost_when_it_was_first_seen() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0, cost="gpu=2"))
    assert spent(at(page, 2 * HOUR, interval("a", HOUR, 2 * HOUR, cost=""))) == res("cash/gpu=4")


def test_intervals_between_two_looks_are_charged_though_their_pods_are_gone() -> None:
    page = at(at(RecordPage(), HOUR), 2 * HOUR, interval("a", HOUR, 2 * HOUR))
    assert spent(page) == res("cash/gpu=1")


def test_an_interval_that_was_settled_in_a_write_whose_reply_was_lost_is_not_settled_again() -> None:
    gone = interval("a", 0, HOUR)
    stored = at(RecordPage(), HOUR, gone)
    again = at(stored, HOUR + MINUTE, gone)
    assert spent(again) == spent(stored) == res("cash/gpu=1")
    assert at(again, HOUR + 2 * MINUTE).finished == frozenset()


@pytest.mark.parametrize("known", [interval("a", 0), interval("a", 0, HOUR)], ids=["running", "finished"])
def test_an_interval_that_is_known_is_not_charged_again_because_it_is_gone(known: Known) -> None:
    page = at(RecordPage(), HOUR, known)
    assert spent(at(page, 2 * HOUR, interval("a", 0, HOUR))) == spent(page) == res("cash/gpu=1")


def test_what_a_running_pod_occupied_before_its_cost_changed_is_settled_at_that_cost() -> None:
    before = at(RecordPage(), HOUR, interval("a", 0))
    after = at(before, 2 * HOUR, interval("a", 0, cost="gpu=3"))
    assert spent(after) == res("cash/gpu=2")
    assert spent(at(after, 3 * HOUR, interval("a", 0, 3 * HOUR, cost="gpu=3"))) == res("cash/gpu=5")


def test_a_parent_takes_over_what_a_child_has_spent_once() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0, HOUR))
    took = left(left(page, "child", "gpu=5 cpu=1"), "child", "gpu=7")
    assert spent(took) == res("cash/gpu=6 cash/cpu=1")


def test_a_parent_takes_over_exactly_what_was_spent_not_what_was_shown() -> None:
    child = at(RecordPage(), 1, interval("a", 0, 1))
    assert spent(child) == res("cash/gpu=1m")
    assert (
        period_total(inherit(RecordPage(), "child", "nlp", [ClosedPeriod(ALL_TIME, period_total(child))]))
        == period_total(child)
        == {"requests.nvidia.com/gpu": 10**9}
    )
    assert to_hours(period_total(child)) == spent(child)


def test_what_was_taken_over_stays_when_the_child_is_gone_for_good() -> None:
    took = left(left(RecordPage(), "one", "gpu=5"), "two", "gpu=2")
    kept = forget_children(took, {"two"}.__contains__)
    assert set(kept.inherited) == {"two"}
    assert spent(kept) == spent(took) == res("cash/gpu=7")
    gone = forget_children(kept, lambda _: False)
    assert gone.inherited == {}
    assert gone.open.settled == {
        f"bizgroupresourcequotas.quota.biz.group//{name}": for_an_hour(cost)
        for name, cost in (("one", "gpu=5"), ("two", "gpu=2"))
    }


def test_nothing_is_changed_in_place() -> None:
    page = left(at(RecordPage(), 1, interval("a", 0), interval("b", 0, 1), interval("c", 0)), "child", "gpu=1")
    before = repr(page)
    for after in (
        at(page, HOUR, interval("a", 0, HOUR), interval("c", 0, cost="gpu=2")),
        left(page, "other", "gpu=1"),
        forget_children(page, lambda _: False),
        adopt_periods(page, [Period(None, T + HOUR)], T),
    ):
        assert after != page
    with_running(page, page.open)
    assert repr(page) == before


# -- Lines -------------------------------------------------------------------------------------------------------------


def test_what_a_workload_spent_stands_under_its_name_and_what_runs_with_it() -> None:
    train = "jobs.batch/team-b/train"
    page = at(RecordPage(), HOUR, interval("a", 0, HOUR), interval("b", 0), interval("c", 0, HOUR, workload=train))
    assert with_running(page, page.open).settled == {WEB: for_an_hour("gpu=2"), train: for_an_hour("gpu=1")}


def test_what_vanished_unseen_is_listed_with_both_bounds() -> None:
    page = at(at(RecordPage(), HOUR, interval("a", 0)), 9 * HOUR)
    [gone] = page.inferred
    assert (gone.uid, gone.start, gone.charged_to, gone.seen_gone) == ("a", T, T + HOUR, T + 9 * HOUR)
    assert gone.rate == rate("gpu=1")


def test_of_what_vanished_the_last_hundred_are_listed_and_the_others_counted() -> None:
    page = at(RecordPage(), HOUR, *(interval(f"{n}", 0) for n in range(130)))
    page = at(page, 2 * HOUR)
    assert (len(page.inferred), page.inferred_earlier) == (100, 30)
    assert spent(page) == res("cash/gpu=130")


def test_an_interval_that_left_is_charged_up_to_then_and_its_end_may_still_show_that_it_was_shorter() -> None:
    page = at(RecordPage(), MINUTE, interval("a", 0))
    away = "a", Interval(T, None, None, T + MINUTE)
    gone = at(page, 2 * MINUTE, away)
    assert (gone.running, [segment.until for segment in gone.split]) == ({}, [T + MINUTE])
    assert period_total(at(gone, 3 * MINUTE, away)) == period_total(gone)
    over = at(gone, 3 * MINUTE, ("a", Interval(T, T + SECOND, None, T + MINUTE)))
    assert period_total(over) == {"requests.nvidia.com/gpu": SECOND * 10**9}
    assert not over.split


def test_a_segment_is_settled_after_the_grace_unless_the_other_group_has_still_to_take_over() -> None:
    page = at(at(RecordPage(), MINUTE, interval("a", 0)), 2 * MINUTE, ("a", Interval(T, None, None, T + MINUTE)))
    away = {"a": Interval(T, None, None, T + MINUTE)}
    late = T + MINUTE + GRACE
    assert advance(page, away, late - 1).split
    assert advance(page, away, late, holds=lambda uid: uid == "a").split
    after = advance(page, away, late)
    assert not after.split
    assert period_total(after) == period_total(page)


def test_a_workload_whose_last_tracked_name_goes_costs_nothing_from_then_on() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    free = "a", Interval(T, None, UsageRate(WEB, ()))
    page = at(at(page, HOUR, free), 5 * HOUR, free)
    assert spent(page) == res("cash/gpu=1")
    again = at(page, 6 * HOUR, interval("a", 0))
    assert spent(at(again, 7 * HOUR, interval("a", 0))) == res("cash/gpu=2")


# -- Periods -----------------------------------------------------------------------------------------------------------

WEEK = [Period(None, T + HOUR), Period(T + HOUR, None)]


def closed(page: RecordPage, now: int) -> tuple[RecordPage, PeriodTotals]:
    assert may_close(page, T + now)
    return close_period(page)


def test_what_runs_over_the_end_of_a_period_is_charged_to_both() -> None:
    page = at(adopt_periods(RecordPage(), WEEK, T), 3 * HOUR, interval("a", 0))
    assert spent(page) == res("cash/gpu=2")
    after, totals = closed(page, 3 * HOUR)
    assert totals.settled == {WEB: for_an_hour("gpu=1")}
    assert after.closed == (ClosedPeriod(WEEK[0], for_an_hour("gpu=1")),)
    assert spent(after) == res("cash/gpu=2")


def test_a_period_is_closed_when_nothing_of_it_can_be_delivered_any_more() -> None:
    page = adopt_periods(RecordPage(), WEEK, T)
    assert not may_close(advance(page, {}, T + HOUR + GRACE - 1), T + HOUR + GRACE - 1)
    assert may_close(advance(page, {}, T + HOUR + GRACE), T + HOUR + GRACE)


def test_an_end_that_comes_after_the_period_was_closed_is_a_line_below_nothing_that_names_it() -> None:
    after, _ = closed(at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR, interval("a", 0)), 2 * HOUR)
    late = at(after, 3 * HOUR, interval("a", 0, HOUR // 2))
    assert late.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}
    assert not late.open.settled


def test_what_is_first_seen_after_its_period_was_closed_is_charged_late() -> None:
    after, _ = closed(at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR), 2 * HOUR)
    for end in (None, 2 * HOUR):
        late = at(after, 2 * HOUR, interval("a", 0, end))
        assert late.open.late == {(None, WEB): for_an_hour("gpu=1")}
        assert with_running(late, late.open).settled == {WEB: for_an_hour("gpu=1")}


def test_a_statement_that_stands_is_not_edited_and_what_differs_by_now_is_late() -> None:
    """Who wrote it died before the record; then the end came."""
    page = at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR, interval("a", 0))
    _, stated = closed(page, 2 * HOUR)
    after, totals = close_period(at(page, 3 * HOUR, interval("a", 0, HOUR // 2)), stated)
    assert totals == stated
    assert after.closed == (ClosedPeriod(WEEK[0], for_an_hour("gpu=1")),)
    assert after.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}


def test_a_node_whose_clock_is_ahead_ends_an_interval_in_a_period_that_nobody_told_yet() -> None:
    page = at(adopt_periods(RecordPage(), WEEK[:1], T), HOUR - 1, interval("a", 0, HOUR + SECOND))
    assert [totals.period for totals in page.periods] == WEEK
    told = adopt_periods(page, [WEEK[0], Period(T + HOUR, T + 2 * HOUR)], T + HOUR)
    assert told.periods[-1].period.end == T + 2 * HOUR
    assert period_total(told, told.periods[-1]) == {"requests.nvidia.com/gpu": SECOND * 10**9}


def test_of_closed_periods_the_last_sixty_are_told_one_by_one() -> None:
    told = [Period(None if n == 0 else T + n * HOUR, T + (n + 1) * HOUR) for n in range(70)]
    page = adopt_periods(RecordPage(), [*told, Period(T + 70 * HOUR, None)], T)
    page = at(page, 71 * HOUR, interval("a", 0))
    while may_close(page, T + 71 * HOUR):
        page, _ = close_period(page)
    assert page.earlier is not None
    assert (len(page.closed), page.earlier.period.end) == (60, T + 10 * HOUR)
    assert page.earlier.amounts == {name: 10 * n for name, n in for_an_hour("gpu=1").items()}
    assert spent(page) == res("cash/gpu=1")
    late = at(page, 72 * HOUR, interval("a", 0, HOUR // 2))
    assert sum(n for each in late.open.late.values() for n in each.values()) == -69 * HOUR * 10**9 - HOUR * 10**9 // 2
