"""Whose pods nobody may replace while a group is over its quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bizrq.api.group import GroupObject, ObjectMeta
from bizrq.quota.recount import CountedObject, Recount
from bizrq.units.quantity import NANO
from bizrq.units.slot import Slot
from bizrq.workloads.ownership.memory import Memory
from controller.usage.overlaps import Rejection, rejections
from controller.usage.pod_charge import Overlap
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage

CPU = {"limits.cpu": NANO}
WEB = Slot("deployments.apps", "team-a", "web")
STANDS = WorkloadUsage(CountedObject(WEB, "w", CPU), place="Deployment/team-a/web")


def left_by(place: str, cost: Mapping[str, int] = CPU) -> WorkloadUsage:
    left = Memory("nlp", place, 0, 0)
    return WorkloadUsage(CountedObject(Slot("pods", "team-a", "web-0"), "p", dict(cost)), place=place, left=left)


GONE = "Deployment/team-a/gone"
KEYS = {"w": ("w", "team-a.web", "r"), "s": ("s",), "x": ("x", "team-a.x", "y")}


class Makers:
    """Of web, the ReplicaSet `old` makes larger pods."""

    def keys(self, uid: str) -> Sequence[str]:
        return KEYS[uid]

    def keys_of_larger(self, uid: str) -> Sequence[str]:
        return ("old",) if uid == "w" else ()

    def keys_at(self, place: str) -> Sequence[str]:
        return ("team-a.gone",) if place == GONE else ()


def rejected(over: Mapping[str, int], *lines: WorkloadUsage) -> dict[str, Rejection]:
    usage = GroupUsage()
    for line in lines:
        usage.put(line.counted.uid, line)
    counted = Recount({}, {}, (), (), {}, dict(over), ())
    return rejections(GroupObject(metadata=ObjectMeta(name="nlp")), counted, usage, Makers())


def test_what_stands_gets_no_pods_in_place_of_those_that_it_has_left():
    found = rejected(CPU, STANDS, left_by("Deployment/team-a/web"))
    why = "deployments.apps/team-a/web has pods that run on: those that it has left"
    assert found == dict.fromkeys(KEYS["w"], Rejection(f"exceeded quota: nlp, of limits.cpu; {why}"))


def test_a_deployment_of_the_name_of_what_stands_is_not_meant():
    place, slot = "StatefulSet/team-a/web", Slot("statefulsets.apps", "team-a", "web")
    stands = WorkloadUsage(CountedObject(slot, "s", CPU), place=place)
    assert rejected(CPU, stands, left_by(place)).keys() == {"s"}


@pytest.mark.parametrize(
    ("over", "line"),
    [
        ({}, left_by("Deployment/team-a/web")),
        ({"requests.memory": 1}, left_by("Deployment/team-a/web")),
        (CPU, left_by("Deployment/team-a/other")),
        (CPU, left_by("StatefulSet/team-a/web")),
        (CPU, left_by("Deployment/team-a/web", {"limits.cpu": 0})),
    ],
)
def test_nothing_is_rejected_for_what_does_not_bear_on_it(over: Mapping[str, int], line: WorkloadUsage):
    assert rejected(over, STANDS, line) == {}


def test_what_comes_in_place_of_a_workload_that_left_pods_gets_no_others():
    found = rejected(CPU, left_by(GONE))
    why = f"{GONE} has pods that run on: those that it has left"
    assert found == {"team-a.gone": Rejection(f"exceeded quota: nlp, of limits.cpu; {why}")}
    assert rejected(CPU, left_by(GONE, {"limits.cpu": 0})) == rejected({}, left_by(GONE)) == {}


def test_pods_that_are_ending_and_those_of_a_long_rollout():
    overlap = Overlap(ending=2, beyond=1, amounts=CPU)
    found = rejected(CPU, WorkloadUsage(CountedObject(WEB, "w", CPU), overlap=overlap))
    assert found.keys() == {*KEYS["w"]}
    assert found["r"].text.endswith("has pods that run on: 2 ending and 1 of a rollout that takes long")


def test_a_rejection_ends_with_the_last_pod_where_the_clock_says_when():
    """So it does while no controller runs, and nobody has to be told. What only an event ends has no end."""
    ending = WorkloadUsage(CountedObject(WEB, "w", CPU), overlap=Overlap(ending=2, beyond=0, amounts=CPU, until=7))
    assert {each.ends for each in rejected(CPU, ending).values()} == {7}
    more = replace(ending, surplus={**CPU, "pods": NANO})
    assert {each.ends for each in rejected(CPU, more).values()} == {None}
    other = replace(ending, surplus={"limits.memory": NANO, "pods": NANO})
    assert {each.ends for each in rejected(CPU, other).values()} == {7}


def test_pods_that_cost_more_than_is_asked_for():
    found = rejected(CPU, WorkloadUsage(CountedObject(WEB, "w", CPU), surplus={**CPU, "pods": NANO}))
    assert found.keys() == {*KEYS["w"]}
    assert found["r"].text.endswith("has pods that run on: more than it asks for")


def test_smaller_pods_come_in_place_of_larger_ones_while_the_group_is_over():
    """As after a lower `hard`: the smaller template is the way back. What makes larger ones makes no more."""
    assert rejected(CPU, WorkloadUsage(CountedObject(WEB, "w", CPU), surplus=CPU)).keys() == {"old"}


def test_what_matters_most_of_each_workload_comes_first():
    """A list has bounds, and a workload may have thousands of ReplicaSets."""
    more = {**CPU, "pods": NANO}
    other = WorkloadUsage(CountedObject(Slot("deployments.apps", "team-a", "x"), "x", CPU), surplus=more)
    found = rejected(CPU, WorkloadUsage(CountedObject(WEB, "w", CPU), surplus=more), other)
    assert list(found) == ["w", "x", "team-a.web", "team-a.x", "r", "y"]


ENDING = WorkloadUsage(CountedObject(WEB, "w", CPU), makers=("w",), overlap=Overlap(1, 0, CPU, until=7))


def other(uid: str, cost: int, **how: Any) -> WorkloadUsage:
    slot = Slot("deployments.apps", "team-b", uid)
    return WorkloadUsage(CountedObject(slot, uid, {"limits.cpu": cost * NANO}), makers=(uid,), **how)


def test_while_pods_are_ending_no_other_workload_of_the_group_gets_pods_in_place_of_others():
    """Each of them could bring replacements otherwise, one after the other. Nobody reads the name of another there."""
    found = rejected(CPU, ENDING, other("x", 1), other("s", 2))
    why = "exceeded quota: nlp, of limits.cpu; pods of other workloads are ending"
    assert list(found) == [*KEYS["w"], "s", "x", "team-a.x", "y"]
    assert {found[key] for key in ("s", "x", "y")} == {Rejection(why, 7)}
    assert "team-a/web has pods that run on: 1 ending" in found["r"].text


def test_others_are_not_rejected_for_a_rollout_that_takes_long():
    """Nobody knows when that ends."""
    found = rejected(CPU, replace(ENDING, overlap=Overlap(0, 1, CPU)), other("x", 1))
    assert found.keys() == {*KEYS["w"]}


@pytest.mark.parametrize(("missing", "is_listed"), [(1, True), (2, False)])
def test_what_has_lost_pods_gets_them_back_while_less_runs_than_is_allowed(missing: int, is_listed: bool):
    """Its pods have gone, as in a drain, and what it gets back is charged already. The group is over by one core."""
    lost = other("x", 3)
    floor = {"limits.cpu": (3 - missing) * NANO}
    lost = replace(lost, counted=replace(lost.counted, demand=lost.counted.cost, floor=floor))
    whole = replace(other("s", 3), counted=replace(other("s", 3).counted, demand=CPU, floor=CPU))
    found = rejected(CPU, ENDING, lost, whole)
    assert ("x" in found) is is_listed
    assert "s" in found


def test_what_makes_smaller_pods_makes_none_either_while_pods_of_another_are_ending():
    found = rejected(CPU, replace(ENDING, counted=CountedObject(WEB, "s", CPU)), other("w", 1, surplus=CPU))
    assert found.keys() == {"s", "old", *KEYS["w"]}
    assert found["old"].text.endswith("more than it asks for")


def test_a_bare_pod_has_nothing_that_replaces_it():
    pod = replace(other("x", 1), makers=())
    assert rejected(CPU, ENDING, pod).keys() == {*KEYS["w"]}


def test_the_largest_of_many_others_are_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("controller.usage.overlaps.MAX_OTHERS", 1)
    assert rejected(CPU, ENDING, other("x", 1), other("s", 2)).keys() == {*KEYS["w"], "s"}
