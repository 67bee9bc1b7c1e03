"""How much a stay costs, and when it is charged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bizrq.quota.cash import HOUR, Meter, Occupied, Running, forget, hours, inherit, spent, tick, total
from tests.language import res

T = 1_700_000_000_000
MINUTE, SECOND = 60_000, 1_000


def stay(uid: str, start: int, end: int | None = None, cost: str = "gpu=1") -> Occupied:
    """Times are milliseconds after T."""
    return Occupied(uid, T + start, None if end is None else T + end, res(cost))


def for_an_hour(amounts: str) -> dict[str, int]:
    """What these amounts come to in an hour, in nano-units x milliseconds."""
    return {name: amount * HOUR for name, amount in res(amounts).items()}


def at(meter: Meter, now: int, *stays: Occupied, ended: Mapping[str, int] | None = None) -> Meter:
    ends = {uid: T + end for uid, end in (ended or {}).items()}
    return tick(meter, stays, T + now, ended=ends.get)


HOURS = [
    ("a card for an hour", [stay("a", 0, HOUR)], "cash/gpu=1"),
    ("eight cards for two hours", [stay(str(n), 0, 2 * HOUR) for n in range(8)], "cash/gpu=16"),
    ("every resource that the pod occupies", [stay("a", 0, HOUR, "cpu=500m mem=2Gi")], "cash/cpu=500m cash/mem=2Gi"),
    ("a model's hours are the base's too", [stay("a", 0, HOUR, "gpu=1 gpu.A100=1")], "cash/gpu=1 cash/gpu.A100=1"),
    ("ten seconds between two looks", [stay("a", 3 * SECOND, 13 * SECOND, "gpu=360")], "cash/gpu=1"),
    ("a millisecond, rounded up to a thousandth of an hour", [stay("a", 0, 1)], "cash/gpu=1m"),
    ("the sum is rounded, not each stay", [stay(str(n), 0, 1) for n in range(100)], "cash/gpu=1m"),
    ("nothing for no time", [stay("a", 7, 7)], "cash/gpu=0"),
    ("nothing where the end comes before the start", [stay("a", 10, 3)], "cash/gpu=0"),
    ("nothing for what costs nothing", [stay("a", 0, HOUR, "gpu=0")], ""),
    ("two stays that touch are one", [stay("a", 0, HOUR // 2), stay("b", HOUR // 2, HOUR)], "cash/gpu=1"),
    ("what began long before the first look", [stay("a", -HOUR, HOUR)], "cash/gpu=2"),
]


@pytest.mark.parametrize(("why", "stays", "hours"), HOURS, ids=[row[0] for row in HOURS])
def test_a_stay_costs(why: str, stays: list[Occupied], hours: str) -> None:
    assert spent(at(Meter(), 2 * HOUR, *stays)) == res(hours)


def test_what_runs_is_charged_up_to_the_last_look() -> None:
    meter = at(Meter(), HOUR, stay("a", 0))
    assert spent(meter) == res("cash/gpu=1")
    assert spent(at(meter, 3 * HOUR, stay("a", 0))) == res("cash/gpu=3")


def test_what_starts_after_the_look_costs_nothing_yet() -> None:
    """The controller's clock may be behind the one that bound the pod."""
    assert spent(at(Meter(), 0, stay("a", 5 * MINUTE))) == res("cash/gpu=0")


def test_the_end_settles_what_the_clock_only_estimated() -> None:
    meter = at(Meter(), 2 * HOUR, stay("a", 0))
    assert spent(at(meter, 3 * HOUR, stay("a", 0, HOUR))) == res("cash/gpu=1")


def test_time_does_not_run_backwards() -> None:
    meter = at(Meter(), 2 * HOUR, stay("a", 0))
    back = at(meter, HOUR, stay("a", 0))
    assert back.watermark == T + 2 * HOUR
    assert spent(back) == spent(meter)


def test_a_finished_pod_that_still_exists_is_charged_once() -> None:
    over = stay("a", 0, HOUR)
    meter = at(at(at(Meter(), HOUR, over), 2 * HOUR, over), 3 * HOUR, over)
    assert spent(meter) == res("cash/gpu=1")
    assert meter.finished == {"a"}
    assert at(meter, 4 * HOUR).finished == frozenset()


def test_a_pod_that_vanished_is_charged_until_its_deletion_was_seen() -> None:
    meter = at(Meter(), HOUR, stay("a", 0))
    assert spent(at(meter, 9 * HOUR, ended={"a": 3 * HOUR})) == res("cash/gpu=3")


def test_a_pod_that_vanished_unseen_is_charged_up_to_its_last_proof_of_life() -> None:
    meter = at(Meter(), HOUR, stay("a", 0))
    assert spent(at(meter, 9 * HOUR)) == res("cash/gpu=1")


def test_a_pod_costs_what_it_cost_when_it_was_first_seen() -> None:
    meter = at(Meter(), HOUR, stay("a", 0, cost="gpu=2"))
    assert spent(at(meter, 2 * HOUR, stay("a", HOUR, 2 * HOUR, cost=""))) == res("cash/gpu=4")


def test_stays_between_two_looks_are_charged_though_their_pods_are_gone() -> None:
    meter = at(at(Meter(), HOUR), 2 * HOUR, stay("a", HOUR, 2 * HOUR))
    assert spent(meter) == res("cash/gpu=1")


def test_a_stay_that_was_settled_in_a_write_whose_reply_was_lost_is_not_settled_again() -> None:
    gone = stay("a", 0, HOUR)
    stored = at(Meter(), HOUR, gone)
    again = at(stored, HOUR + MINUTE, gone)
    assert spent(again) == spent(stored) == res("cash/gpu=1")
    assert at(again, HOUR + 2 * MINUTE).finished == frozenset()


@pytest.mark.parametrize("known", [stay("a", 0), stay("a", 0, HOUR)], ids=["running", "finished"])
def test_a_stay_that_is_known_is_not_charged_again_because_it_is_gone(known: Occupied) -> None:
    meter = at(Meter(), HOUR, known)
    assert spent(at(meter, 2 * HOUR, stay("a", 0, HOUR))) == spent(meter) == res("cash/gpu=1")


def test_what_a_running_pod_occupied_before_its_cost_changed_is_settled_at_that_cost() -> None:
    before = at(Meter(), HOUR, stay("a", 0))
    after = at(before, 2 * HOUR, stay("a", 0, cost="gpu=3"))
    assert spent(after) == res("cash/gpu=2")
    assert spent(at(after, 3 * HOUR, stay("a", 0, 3 * HOUR, cost="gpu=3"))) == res("cash/gpu=5")


def test_a_parent_takes_over_what_a_child_has_spent_once() -> None:
    meter = at(Meter(), HOUR, stay("a", 0, HOUR))
    took = inherit(inherit(meter, "child", for_an_hour("gpu=5 cpu=1")), "child", for_an_hour("gpu=7"))
    assert spent(took) == res("cash/gpu=6 cash/cpu=1")


def test_a_parent_takes_over_exactly_what_was_spent_not_what_was_shown() -> None:
    child = at(Meter(), 1, stay("a", 0, 1))
    assert spent(child) == res("cash/gpu=1m")
    assert total(inherit(Meter(), "child", total(child))) == total(child) == {"requests.nvidia.com/gpu": 10**9}
    assert hours(total(child)) == spent(child)


def test_what_was_taken_over_stays_when_the_child_is_gone_for_good() -> None:
    took = inherit(inherit(Meter(), "one", for_an_hour("gpu=5")), "two", for_an_hour("gpu=2"))
    left = forget(took, {"two"}.__contains__)
    assert set(left.inherited) == {"two"}
    assert spent(left) == spent(took) == res("cash/gpu=7")
    gone = forget(left, lambda _: False)
    assert gone.inherited == {}
    assert gone.settled == {"requests.nvidia.com/gpu": 7 * 10**9 * HOUR}


def test_nothing_is_changed_in_place() -> None:
    meter = Meter(T, {"pods": 1}, {"a": Running(T, res("gpu=1"))}, frozenset("b"), {"child": for_an_hour("gpu=1")})
    before = repr(meter)
    for after in (
        at(meter, HOUR, stay("a", 0, HOUR)),
        inherit(meter, "other", for_an_hour("gpu=1")),
        forget(meter, lambda _: False),
    ):
        assert after != meter
    spent(meter)
    assert repr(meter) == before
