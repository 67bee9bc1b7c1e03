"""How much a stay costs, and when it is charged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bizrq.hours.metering import (
    GRACE,
    HOUR,
    Lines,
    Page,
    Rate,
    Stay,
    Total,
    close,
    follow,
    forget,
    hours,
    inherit,
    is_over,
    lines_of,
    tick,
    total,
)
from bizrq.hours.periods import LIFETIME, Period
from tests.support.language import res

T = 1_700_000_000_000
MINUTE, SECOND = 60_000, 1_000


WEB = "deployments.apps/team-a/web"
Known = tuple[str, Stay]


def rate(cost: str, workload: str = WEB) -> Rate:
    return Rate(workload, tuple(sorted(res(cost).items())))


def stay(uid: str, start: int, end: int | None = None, cost: str = "gpu=1", workload: str = WEB) -> Known:
    """Times are milliseconds after T; a cost of "" is known no more."""
    return uid, Stay(T + start, None if end is None else T + end, rate(cost, workload) if cost else None)


def spent(page: Page) -> dict[str, int]:
    return hours(total(page))


def for_an_hour(amounts: str) -> dict[str, int]:
    """What these amounts come to in an hour, in nano-units x milliseconds."""
    return {name: amount * HOUR for name, amount in res(amounts).items()}


def at(page: Page, now: int, *stays: Known, ended: Mapping[str, int] | None = None) -> Page:
    ends = {uid: Stay(T, T + end) for uid, end in (ended or {}).items()}
    return tick(page, {**dict(stays), **ends}, T + now)


def left(page: Page, uid: str, amounts: str) -> Page:
    """A child with this uid leaves what it spent in so many hours."""
    return inherit(page, uid, uid, [Total(LIFETIME, for_an_hour(amounts))])


HOURS = [
    ("a card for an hour", [stay("a", 0, HOUR)], "cash/gpu=1"),
    ("eight cards for two hours", [stay(str(n), 0, 2 * HOUR) for n in range(8)], "cash/gpu=16"),
    ("every resource that the pod occupies", [stay("a", 0, HOUR, "cpu=500m mem=2Gi")], "cash/cpu=500m cash/mem=2Gi"),
    ("a model's hours are the base's too", [stay("a", 0, HOUR, "gpu=1 gpu.A100=1")], "cash/gpu=1 cash/gpu.A100=1"),
    ("ten seconds between two looks", [stay("a", 3 * SECOND, 13 * SECOND, "gpu=360")], "cash/gpu=1"),
    ("a millisecond, rounded up to a thousandth of an hour", [stay("a", 0, 1)], "cash/gpu=1m"),
    ("the sum is rounded, not each stay", [stay(str(n), 0, 1) for n in range(100)], "cash/gpu=1m"),
    ("nothing for no time", [stay("a", 7, 7)], ""),
    ("nothing where the end comes before the start", [stay("a", 10, 3)], ""),
    ("nothing for what costs nothing", [stay("a", 0, HOUR, "gpu=0")], ""),
    ("two stays that touch are one", [stay("a", 0, HOUR // 2), stay("b", HOUR // 2, HOUR)], "cash/gpu=1"),
    ("what began long before the first look", [stay("a", -HOUR, HOUR)], "cash/gpu=2"),
]


@pytest.mark.parametrize(("why", "stays", "hours"), HOURS, ids=[row[0] for row in HOURS])
def test_a_stay_costs(why: str, stays: list[Known], hours: str) -> None:
    assert spent(at(Page(), 2 * HOUR, *stays)) == res(hours)


def test_what_runs_is_charged_up_to_the_last_look() -> None:
    page = at(Page(), HOUR, stay("a", 0))
    assert spent(page) == res("cash/gpu=1")
    assert spent(at(page, 3 * HOUR, stay("a", 0))) == res("cash/gpu=3")


def test_what_starts_after_the_look_costs_nothing_yet() -> None:
    """The controller's clock may be behind the one that bound the pod."""
    assert spent(at(Page(), 0, stay("a", 5 * MINUTE))) == {}


def test_the_end_settles_what_the_clock_only_estimated() -> None:
    page = at(Page(), 2 * HOUR, stay("a", 0))
    assert spent(at(page, 3 * HOUR, stay("a", 0, HOUR))) == res("cash/gpu=1")


def test_time_does_not_run_backwards() -> None:
    page = at(Page(), 2 * HOUR, stay("a", 0))
    back = at(page, HOUR, stay("a", 0))
    assert back.watermark == T + 2 * HOUR
    assert spent(back) == spent(page)


def test_a_finished_pod_that_still_exists_is_charged_once() -> None:
    over = stay("a", 0, HOUR)
    page = at(at(at(Page(), HOUR, over), 2 * HOUR, over), 3 * HOUR, over)
    assert spent(page) == res("cash/gpu=1")
    assert page.finished == {"a"}
    assert at(page, 4 * HOUR).finished == frozenset()


def test_a_pod_that_vanished_is_charged_until_its_deletion_was_seen() -> None:
    page = at(Page(), HOUR, stay("a", 0))
    assert spent(at(page, 9 * HOUR, ended={"a": 3 * HOUR})) == res("cash/gpu=3")


def test_a_pod_that_vanished_unseen_is_charged_up_to_its_last_proof_of_life() -> None:
    page = at(Page(), HOUR, stay("a", 0))
    assert spent(at(page, 9 * HOUR)) == res("cash/gpu=1")


def test_a_pod_costs_what_it_cost_when_it_was_first_seen() -> None:
    page = at(Page(), HOUR, stay("a", 0, cost="gpu=2"))
    assert spent(at(page, 2 * HOUR, stay("a", HOUR, 2 * HOUR, cost=""))) == res("cash/gpu=4")


def test_stays_between_two_looks_are_charged_though_their_pods_are_gone() -> None:
    page = at(at(Page(), HOUR), 2 * HOUR, stay("a", HOUR, 2 * HOUR))
    assert spent(page) == res("cash/gpu=1")


def test_a_stay_that_was_settled_in_a_write_whose_reply_was_lost_is_not_settled_again() -> None:
    gone = stay("a", 0, HOUR)
    stored = at(Page(), HOUR, gone)
    again = at(stored, HOUR + MINUTE, gone)
    assert spent(again) == spent(stored) == res("cash/gpu=1")
    assert at(again, HOUR + 2 * MINUTE).finished == frozenset()


@pytest.mark.parametrize("known", [stay("a", 0), stay("a", 0, HOUR)], ids=["running", "finished"])
def test_a_stay_that_is_known_is_not_charged_again_because_it_is_gone(known: Known) -> None:
    page = at(Page(), HOUR, known)
    assert spent(at(page, 2 * HOUR, stay("a", 0, HOUR))) == spent(page) == res("cash/gpu=1")


def test_what_a_running_pod_occupied_before_its_cost_changed_is_settled_at_that_cost() -> None:
    before = at(Page(), HOUR, stay("a", 0))
    after = at(before, 2 * HOUR, stay("a", 0, cost="gpu=3"))
    assert spent(after) == res("cash/gpu=2")
    assert spent(at(after, 3 * HOUR, stay("a", 0, 3 * HOUR, cost="gpu=3"))) == res("cash/gpu=5")


def test_a_parent_takes_over_what_a_child_has_spent_once() -> None:
    page = at(Page(), HOUR, stay("a", 0, HOUR))
    took = left(left(page, "child", "gpu=5 cpu=1"), "child", "gpu=7")
    assert spent(took) == res("cash/gpu=6 cash/cpu=1")


def test_a_parent_takes_over_exactly_what_was_spent_not_what_was_shown() -> None:
    child = at(Page(), 1, stay("a", 0, 1))
    assert spent(child) == res("cash/gpu=1m")
    assert (
        total(inherit(Page(), "child", "nlp", [Total(LIFETIME, total(child))]))
        == total(child)
        == {"requests.nvidia.com/gpu": 10**9}
    )
    assert hours(total(child)) == spent(child)


def test_what_was_taken_over_stays_when_the_child_is_gone_for_good() -> None:
    took = left(left(Page(), "one", "gpu=5"), "two", "gpu=2")
    kept = forget(took, {"two"}.__contains__)
    assert set(kept.inherited) == {"two"}
    assert spent(kept) == spent(took) == res("cash/gpu=7")
    gone = forget(kept, lambda _: False)
    assert gone.inherited == {}
    assert gone.open.settled == {
        f"bizgroupresourcequotas.quota.biz.group//{name}": for_an_hour(cost)
        for name, cost in (("one", "gpu=5"), ("two", "gpu=2"))
    }


def test_nothing_is_changed_in_place() -> None:
    page = left(at(Page(), 1, stay("a", 0), stay("b", 0, 1), stay("c", 0)), "child", "gpu=1")
    before = repr(page)
    for after in (
        at(page, HOUR, stay("a", 0, HOUR), stay("c", 0, cost="gpu=2")),
        left(page, "other", "gpu=1"),
        forget(page, lambda _: False),
        follow(page, [Period(None, T + HOUR)], T),
    ):
        assert after != page
    lines_of(page, page.open)
    assert repr(page) == before


# -- Lines -------------------------------------------------------------------------------------------------------------


def test_what_a_workload_spent_stands_under_its_name_and_what_runs_with_it() -> None:
    train = "jobs.batch/team-b/train"
    page = at(Page(), HOUR, stay("a", 0, HOUR), stay("b", 0), stay("c", 0, HOUR, workload=train))
    assert lines_of(page, page.open).settled == {WEB: for_an_hour("gpu=2"), train: for_an_hour("gpu=1")}


def test_what_vanished_unseen_is_listed_with_both_bounds() -> None:
    page = at(at(Page(), HOUR, stay("a", 0)), 9 * HOUR)
    [gone] = page.inferred
    assert (gone.uid, gone.start, gone.charged_to, gone.seen_gone) == ("a", T, T + HOUR, T + 9 * HOUR)
    assert gone.rate == rate("gpu=1")


def test_of_what_vanished_the_last_hundred_are_listed_and_the_others_counted() -> None:
    page = at(Page(), HOUR, *(stay(f"{n}", 0) for n in range(130)))
    page = at(page, 2 * HOUR)
    assert (len(page.inferred), page.inferred_earlier) == (100, 30)
    assert spent(page) == res("cash/gpu=130")


def test_a_stay_that_left_is_charged_up_to_then_and_its_end_may_still_show_that_it_was_shorter() -> None:
    page = at(Page(), MINUTE, stay("a", 0))
    away = "a", Stay(T, None, None, T + MINUTE)
    gone = at(page, 2 * MINUTE, away)
    assert (gone.running, [part.until for part in gone.split]) == ({}, [T + MINUTE])
    assert total(at(gone, 3 * MINUTE, away)) == total(gone)
    over = at(gone, 3 * MINUTE, ("a", Stay(T, T + SECOND, None, T + MINUTE)))
    assert total(over) == {"requests.nvidia.com/gpu": SECOND * 10**9}
    assert not over.split


def test_a_part_is_settled_after_the_grace_unless_the_other_group_has_still_to_take_over() -> None:
    page = at(at(Page(), MINUTE, stay("a", 0)), 2 * MINUTE, ("a", Stay(T, None, None, T + MINUTE)))
    away = {"a": Stay(T, None, None, T + MINUTE)}
    late = T + MINUTE + GRACE
    assert tick(page, away, late - 1).split
    assert tick(page, away, late, holds=lambda uid: uid == "a").split
    after = tick(page, away, late)
    assert not after.split
    assert total(after) == total(page)


def test_a_workload_whose_last_tracked_name_goes_costs_nothing_from_then_on() -> None:
    page = at(Page(), HOUR, stay("a", 0))
    free = "a", Stay(T, None, Rate(WEB, ()))
    page = at(at(page, HOUR, free), 5 * HOUR, free)
    assert spent(page) == res("cash/gpu=1")
    again = at(page, 6 * HOUR, stay("a", 0))
    assert spent(at(again, 7 * HOUR, stay("a", 0))) == res("cash/gpu=2")


# -- Periods -----------------------------------------------------------------------------------------------------------

WEEK = [Period(None, T + HOUR), Period(T + HOUR, None)]


def closed(page: Page, now: int) -> tuple[Page, Lines]:
    assert is_over(page, T + now)
    return close(page)


def test_what_runs_over_the_end_of_a_period_is_charged_to_both() -> None:
    page = at(follow(Page(), WEEK, T), 3 * HOUR, stay("a", 0))
    assert spent(page) == res("cash/gpu=2")
    after, lines = closed(page, 3 * HOUR)
    assert lines.settled == {WEB: for_an_hour("gpu=1")}
    assert after.closed == (Total(WEEK[0], for_an_hour("gpu=1")),)
    assert spent(after) == res("cash/gpu=2")


def test_a_period_is_closed_when_nothing_of_it_can_be_delivered_any_more() -> None:
    page = follow(Page(), WEEK, T)
    assert not is_over(tick(page, {}, T + HOUR + GRACE - 1), T + HOUR + GRACE - 1)
    assert is_over(tick(page, {}, T + HOUR + GRACE), T + HOUR + GRACE)


def test_an_end_that_comes_after_the_period_was_closed_is_a_line_below_nothing_that_names_it() -> None:
    after, _ = closed(at(follow(Page(), WEEK, T), 2 * HOUR, stay("a", 0)), 2 * HOUR)
    late = at(after, 3 * HOUR, stay("a", 0, HOUR // 2))
    assert late.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}
    assert not late.open.settled


def test_what_is_first_seen_after_its_period_was_closed_is_charged_late() -> None:
    after, _ = closed(at(follow(Page(), WEEK, T), 2 * HOUR), 2 * HOUR)
    for end in (None, 2 * HOUR):
        late = at(after, 2 * HOUR, stay("a", 0, end))
        assert late.open.late == {(None, WEB): for_an_hour("gpu=1")}
        assert lines_of(late, late.open).settled == {WEB: for_an_hour("gpu=1")}


def test_a_statement_that_stands_is_not_edited_and_what_differs_by_now_is_late() -> None:
    """Who wrote it died before the record; then the end came."""
    page = at(follow(Page(), WEEK, T), 2 * HOUR, stay("a", 0))
    _, stated = closed(page, 2 * HOUR)
    after, lines = close(at(page, 3 * HOUR, stay("a", 0, HOUR // 2)), stated)
    assert lines == stated
    assert after.closed == (Total(WEEK[0], for_an_hour("gpu=1")),)
    assert after.open.late == {(None, WEB): {name: -n // 2 for name, n in for_an_hour("gpu=1").items()}}


def test_a_node_whose_clock_is_ahead_ends_a_stay_in_a_period_that_nobody_told_yet() -> None:
    page = at(follow(Page(), WEEK[:1], T), HOUR - 1, stay("a", 0, HOUR + SECOND))
    assert [lines.period for lines in page.periods] == WEEK
    told = follow(page, [WEEK[0], Period(T + HOUR, T + 2 * HOUR)], T + HOUR)
    assert told.periods[-1].period.end == T + 2 * HOUR
    assert total(told, told.periods[-1]) == {"requests.nvidia.com/gpu": SECOND * 10**9}


def test_of_closed_periods_the_last_sixty_are_told_one_by_one() -> None:
    told = [Period(None if n == 0 else T + n * HOUR, T + (n + 1) * HOUR) for n in range(70)]
    page = follow(Page(), [*told, Period(T + 70 * HOUR, None)], T)
    page = at(page, 71 * HOUR, stay("a", 0))
    while is_over(page, T + 71 * HOUR):
        page, _ = close(page)
    assert page.earlier is not None
    assert (len(page.closed), page.earlier.period.end) == (60, T + 10 * HOUR)
    assert page.earlier.amounts == {name: 10 * n for name, n in for_an_hour("gpu=1").items()}
    assert spent(page) == res("cash/gpu=1")
    late = at(page, 72 * HOUR, stay("a", 0, HOUR // 2))
    assert sum(n for each in late.open.late.values() for n in each.values()) == -69 * HOUR * 10**9 - HOUR * 10**9 // 2
