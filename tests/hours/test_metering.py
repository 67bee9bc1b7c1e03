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
    """Return what these amounts cost in an hour, in nano-units x milliseconds."""
    return {name: amount * HOUR for name, amount in res(amounts).items()}


def at(page: RecordPage, now: int, *intervals: Known, ended: Mapping[str, int] | None = None) -> RecordPage:
    ends = {uid: Interval(T, T + end) for uid, end in (ended or {}).items()}
    return advance(page, {**dict(intervals), **ends}, T + now)


def left(page: RecordPage, uid: str, amounts: str) -> RecordPage:
    """Return the page after a child of this uid is deleted that spent these amounts for an hour."""
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


def test_running_pods_are_charged_up_to_the_last_look() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(page) == res("cash/gpu=1")
    assert spent(at(page, 3 * HOUR, interval("a", 0))) == res("cash/gpu=3")


def test_a_pod_that_starts_after_the_look_costs_nothing_yet() -> None:
    """The controller's clock may be behind the one that bound the pod."""
    assert spent(at(RecordPage(), 0, interval("a", 5 * MINUTE))) == {}


def test_the_reported_end_replaces_the_estimate() -> None:
    page = at(RecordPage(), 2 * HOUR, interval("a", 0))
    assert spent(at(page, 3 * HOUR, interval("a", 0, HOUR))) == res("cash/gpu=1")


def test_the_watermark_never_moves_back() -> None:
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


def test_a_deleted_pod_is_charged_until_its_deletion_was_seen() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(at(page, 9 * HOUR, ended={"a": 3 * HOUR})) == res("cash/gpu=3")


def test_a_pod_that_vanished_unseen_is_charged_up_to_the_last_look_that_found_it() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0))
    assert spent(at(page, 9 * HOUR)) == res("cash/gpu=1")


def test_a_pod_whose_cost_is_unknown_keeps_its_recorded_rate() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0, cost="gpu=2"))
    assert spent(at(page, 2 * HOUR, interval("a", HOUR, 2 * HOUR, cost=""))) == res("cash/gpu=4")


def test_intervals_between_two_looks_are_charged() -> None:
    page = at(at(RecordPage(), HOUR), 2 * HOUR, interval("a", HOUR, 2 * HOUR))
    assert spent(page) == res("cash/gpu=1")


def test_an_interval_is_settled_once_even_if_the_reply_of_the_write_is_lost() -> None:
    gone = interval("a", 0, HOUR)
    stored = at(RecordPage(), HOUR, gone)
    again = at(stored, HOUR + MINUTE, gone)
    assert spent(again) == spent(stored) == res("cash/gpu=1")
    assert at(again, HOUR + 2 * MINUTE).finished == frozenset()


@pytest.mark.parametrize("known", [interval("a", 0), interval("a", 0, HOUR)], ids=["running", "finished"])
def test_a_known_interval_is_not_charged_again_when_its_pod_is_gone(known: Known) -> None:
    page = at(RecordPage(), HOUR, known)
    assert spent(at(page, 2 * HOUR, interval("a", 0, HOUR))) == spent(page) == res("cash/gpu=1")


def test_hours_before_a_change_of_cost_are_settled_at_the_old_cost() -> None:
    before = at(RecordPage(), HOUR, interval("a", 0))
    after = at(before, 2 * HOUR, interval("a", 0, cost="gpu=3"))
    assert spent(after) == res("cash/gpu=2")
    assert spent(at(after, 3 * HOUR, interval("a", 0, 3 * HOUR, cost="gpu=3"))) == res("cash/gpu=5")


def test_a_parent_inherits_a_childs_hours_once() -> None:
    page = at(RecordPage(), HOUR, interval("a", 0, HOUR))
    took = left(left(page, "child", "gpu=5 cpu=1"), "child", "gpu=7")
    assert spent(took) == res("cash/gpu=6 cash/cpu=1")


def test_a_parent_inherits_exact_hours_not_rounded_ones() -> None:
    child = at(RecordPage(), 1, interval("a", 0, 1))
    assert spent(child) == res("cash/gpu=1m")
    assert (
        period_total(inherit(RecordPage(), "child", "nlp", [ClosedPeriod(ALL_TIME, period_total(child))]))
        == period_total(child)
        == {"requests.nvidia.com/gpu": 10**9}
    )
    assert to_hours(period_total(child)) == spent(child)


def test_inherited_hours_stay_when_the_child_is_gone() -> None:
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


def test_no_function_changes_its_argument() -> None:
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


def test_a_line_of_a_workload_includes_its_running_pods() -> None:
    train = "jobs.batch/team-b/train"
    page = at(RecordPage(), HOUR, interval("a", 0, HOUR), interval("b", 0), interval("c", 0, HOUR, workload=train))
    assert with_running(page, page.open).settled == {WEB: for_an_hour("gpu=2"), train: for_an_hour("gpu=1")}


def test_an_inferred_end_is_listed_with_both_bounds() -> None:
    page = at(at(RecordPage(), HOUR, interval("a", 0)), 9 * HOUR)
    [gone] = page.inferred
    assert (gone.uid, gone.start, gone.charged_to, gone.seen_gone) == ("a", T, T + HOUR, T + 9 * HOUR)
    assert gone.rate == rate("gpu=1")


def test_the_last_hundred_inferred_ends_are_listed_and_the_others_counted() -> None:
    page = at(RecordPage(), HOUR, *(interval(f"{n}", 0) for n in range(130)))
    page = at(page, 2 * HOUR)
    assert (len(page.inferred), page.inferred_earlier) == (100, 30)
    assert spent(page) == res("cash/gpu=130")


def test_an_interval_that_moved_is_charged_up_to_the_move_and_an_earlier_end_shortens_it() -> None:
    page = at(RecordPage(), MINUTE, interval("a", 0))
    away = "a", Interval(T, None, None, T + MINUTE)
    gone = at(page, 2 * MINUTE, away)
    assert (gone.running, [segment.until for segment in gone.split]) == ({}, [T + MINUTE])
    assert period_total(at(gone, 3 * MINUTE, away)) == period_total(gone)
    over = at(gone, 3 * MINUTE, ("a", Interval(T, T + SECOND, None, T + MINUTE)))
    assert period_total(over) == {"requests.nvidia.com/gpu": SECOND * 10**9}
    assert not over.split


def test_a_segment_is_settled_after_the_grace_unless_the_other_group_has_yet_to_take_over() -> None:
    page = at(at(RecordPage(), MINUTE, interval("a", 0)), 2 * MINUTE, ("a", Interval(T, None, None, T + MINUTE)))
    away = {"a": Interval(T, None, None, T + MINUTE)}
    late = T + MINUTE + GRACE
    assert advance(page, away, late - 1).split
    assert advance(page, away, late, holds=lambda uid: uid == "a").split
    after = advance(page, away, late)
    assert not after.split
    assert period_total(after) == period_total(page)


def test_a_workload_without_a_metered_name_costs_nothing_from_then_on() -> None:
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


def test_an_interval_over_the_end_of_a_period_is_charged_to_both_periods() -> None:
    page = at(adopt_periods(RecordPage(), WEEK, T), 3 * HOUR, interval("a", 0))
    assert spent(page) == res("cash/gpu=2")
    after, totals = closed(page, 3 * HOUR)
    assert totals.settled == {WEB: for_an_hour("gpu=1")}
    assert after.closed == (ClosedPeriod(WEEK[0], for_an_hour("gpu=1")),)
    assert spent(after) == res("cash/gpu=2")


def test_a_period_is_closed_when_no_end_in_it_can_arrive_any_more() -> None:
    page = adopt_periods(RecordPage(), WEEK, T)
    assert not may_close(advance(page, {}, T + HOUR + GRACE - 1), T + HOUR + GRACE - 1)
    assert may_close(advance(page, {}, T + HOUR + GRACE), T + HOUR + GRACE)


def test_an_end_in_a_closed_period_is_a_negative_late_line_that_names_the_period() -> None:
    after, _ = closed(at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR, interval("a", 0)), 2 * HOUR)
    late = at(after, 3 * HOUR, interval("a", 0, HOUR // 2))
    assert late.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}
    assert not late.open.settled


def test_an_interval_that_is_first_seen_after_its_period_was_closed_is_charged_late() -> None:
    after, _ = closed(at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR), 2 * HOUR)
    for end in (None, 2 * HOUR):
        late = at(after, 2 * HOUR, interval("a", 0, end))
        assert late.open.late == {(None, WEB): for_an_hour("gpu=1")}
        assert with_running(late, late.open).settled == {WEB: for_an_hour("gpu=1")}


def test_a_stored_statement_is_kept_and_later_differences_are_late_lines() -> None:
    """The controller died between statement and record, and then the end arrived."""
    page = at(adopt_periods(RecordPage(), WEEK, T), 2 * HOUR, interval("a", 0))
    _, stated = closed(page, 2 * HOUR)
    after, totals = close_period(at(page, 3 * HOUR, interval("a", 0, HOUR // 2)), stated)
    assert totals == stated
    assert after.closed == (ClosedPeriod(WEEK[0], for_an_hour("gpu=1")),)
    assert after.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}


def test_a_node_with_a_clock_ahead_may_end_an_interval_in_a_period_that_is_not_published_yet() -> None:
    page = at(adopt_periods(RecordPage(), WEEK[:1], T), HOUR - 1, interval("a", 0, HOUR + SECOND))
    assert [totals.period for totals in page.periods] == WEEK
    published = adopt_periods(page, [WEEK[0], Period(T + HOUR, T + 2 * HOUR)], T + HOUR)
    assert published.periods[-1].period.end == T + 2 * HOUR
    assert period_total(published, published.periods[-1]) == {"requests.nvidia.com/gpu": SECOND * 10**9}


def test_the_last_sixty_closed_periods_are_listed_one_by_one() -> None:
    published = [Period(None if n == 0 else T + n * HOUR, T + (n + 1) * HOUR) for n in range(70)]
    page = adopt_periods(RecordPage(), [*published, Period(T + 70 * HOUR, None)], T)
    page = at(page, 71 * HOUR, interval("a", 0))
    while may_close(page, T + 71 * HOUR):
        page, _ = close_period(page)
    assert page.earlier is not None
    assert (len(page.closed), page.earlier.period.end) == (60, T + 10 * HOUR)
    assert page.earlier.amounts == {name: 10 * n for name, n in for_an_hour("gpu=1").items()}
    assert spent(page) == res("cash/gpu=1")
    late = at(page, 72 * HOUR, interval("a", 0, HOUR // 2))
    assert sum(n for each in late.open.late.values() for n in each.values()) == -69 * HOUR * 10**9 - HOUR * 10**9 // 2
