"""The charge of a slot: the table of docs/ownership.md, and the laws of the formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.units.resources import Resources, growth, nonzero, subtract_floor, total
from bizrq.workloads.ownership.charge import Held, slot_charge, weigh
from bizrq.workloads.ownership.lives import Life
from bizrq.workloads.ownership.overlap import FREE_FOR, free
from bizrq.workloads.pods.surge import surge_demand
from tests.support.language import res

NOW = 1_700_000_000_000
MINUTE = 60_000
GRACE = 86_400_000


def pods(text: str, *, now: int = NOW) -> list[Held]:
    """Pods in words: `5 of v1` run, `2 of v2 young` are a minute old, `5 of v1 ending`; `at cpu=1m` is what each costs.

    `awaited` and `lost` (past its grace) are ending ones; groups of pods are separated by commas.
    """
    found: list[Held] = []
    for words in (part.split() for part in text.split(",") if part.strip()):
        number, version = int(words[0]), words[2]
        cost = res(next((word for word in words if "=" in word), "cpu=1"))
        created = now - (MINUTE if "young" in words else 60 * MINUTE)
        deleted = {"ending": now, "awaited": now, "lost": now - GRACE}
        at = next((deleted[word] for word in words if word in deleted), None)
        life = Life("Running", "n1", created, at, GRACE if at is not None else None)
        found += [Held(f"{len(found) + i}", version, life, cost, "awaited" in words) for i in range(number)]
    return found


#: docs/ownership.md, "The charge".
TABLE = [
    ("rollout, surge 2", "cpu=5", "5 of v1, 2 of v2 young", "cpu=5"),
    ("the same after ten minutes", "cpu=5", "5 of v1, 2 of v2", "cpu=7"),
    ("scaled 5 to 0 to 5, old pods ending", "cpu=5", "5 of v1, 5 of v1 ending", "cpu=10"),
    ("template shrunk to 1m, one pod replaced so far", "cpu=5m",
     "4 of v1 cpu=1, 1 of v2 cpu=1m young, 1 of v1 ending", "cpu=5001m"),
    ("web-0 of a StatefulSet deleted", "cpu=5", "4 of v1, 1 of v1 awaited", "cpu=5"),
    ("three delete loops over all pods of a Deployment", "cpu=5", "5 of v1, 15 of v1 ending", "cpu=20"),
    ("moved away", "", "", ""),
    ("moved here", "cpu=5", "5 of v1", "cpu=5"),
    ("on a lost node, past its grace", "cpu=5", "5 of v1, 5 of v1 lost", "cpu=5"),
    ("nothing made yet", "cpu=5", "", "cpu=5"),
    ("scaled to 0, pods not told yet", "", "5 of v1", "cpu=5"),
    ("surge of 200 beside 2, ten minutes on", "cpu=2", "2 of v1, 200 of v2", "cpu=202"),
    ("the same at once: no more are free than are declared", "cpu=2", "2 of v1, 200 of v2 young", "cpu=200"),
    ("more pods of one version are not free", "cpu=5", "7 of v1 young", "cpu=7"),
]  # fmt: skip


@pytest.mark.parametrize(("demand", "held", "charge"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(demand, held, charge):
    declared = 2 if demand == "cpu=2" else (5 if demand else 0)
    found = weigh(res(demand), declared, pods(held), NOW, surges=True)
    assert nonzero(found.charge) == res(charge)
    assert found.beyond == growth(found.charge, res(demand))


def test_each_resource_has_its_own_maximum():
    charge = slot_charge(res("cpu=5 mem=1Gi"), res("cpu=1 mem=8Gi"), res("mem=1Gi"), res("gpu=2"))
    assert charge == res("cpu=5 mem=7Gi gpu=2")


def test_pods_that_are_declared_and_not_there_come_besides_larger_old_ones():
    held = pods("4 of v1")
    assert weigh(res("cpu=5m"), 5, held, NOW, surges=True, per_pod=res("cpu=1m")).charge == res("cpu=4001m")
    assert weigh(res("cpu=5"), 5, held, NOW, surges=True, per_pod=res("cpu=1")).charge == res("cpu=5")


@pytest.mark.parametrize(("declared", "ends"), [(5, 0), (4, 1), (0, 2)])
def test_no_more_pods_are_awaited_than_are_declared(declared, ends):
    """Others run in the place of the rest: whoever waits for a pod that is being deleted makes none meanwhile."""
    awaited = Held("a", "v1", Life(node="n", deleted=NOW), res("cpu=1"), awaited=True, many=2)
    found = weigh(res(f"cpu={declared}"), declared, [awaited, *pods("3 of v2 young")], NOW, surges=True)
    assert sum(pod.many for pod in found.ending) == ends
    assert found.charge == res(f"cpu={max(5, declared)}")
    assert found.free == ()


def test_surge_that_is_counted_may_be_awaited_too():
    awaited = Held("a", "v1", Life(node="n", deleted=NOW), res("cpu=1"), awaited=True)
    found = weigh(res("cpu=6"), 4, [awaited, *pods("5 of v2")], NOW, surges=False, awaits=6)
    assert (found.charge, found.ending) == (res("cpu=6"), ())


def test_surge_that_is_counted_is_not_free():
    held = pods("5 of v1, 2 of v2 young")
    assert weigh(res("cpu=5"), 5, held, NOW, surges=False).charge == res("cpu=7")


def test_the_clock_alone_changes_the_charge_at_that_moment():
    held = pods("5 of v1, 2 of v2 young")
    found = weigh(res("cpu=5"), 5, held, NOW, surges=True)
    assert found.again == NOW - MINUTE + FREE_FOR
    assert weigh(res("cpu=5"), 5, held, found.again - 1, surges=True).charge == res("cpu=5")
    assert weigh(res("cpu=5"), 5, held, found.again, surges=True).charge == res("cpu=7")


def test_a_free_pod_that_was_resized_takes_no_more_off_than_the_demand():
    held = pods("5 of v1, 1 of v2 young cpu=100")
    assert weigh(res("cpu=5"), 5, held, NOW, surges=True).charge == res("cpu=100")


def test_the_youngest_are_free():
    held = pods("5 of v1, 3 of v2, 2 of v3 young")
    assert {pod.version for pod in free(held, 5, NOW)} == {"v3"}
    assert len(free(held, 5, NOW)) == 2


def test_a_pod_that_does_not_say_when_it_was_made_is_not_free():
    held = [Held("a", "v1", Life(), {}), Held("b", "v2", Life(), {})]
    assert free(held, 1, NOW) == []


def test_a_clock_that_is_behind_moves_the_ten_minutes_by_as_much():
    held = [Held("a", "v1", Life(created=NOW - 99 * MINUTE), {}), Held("b", "v2", Life(created=NOW + 5 * MINUTE), {})]
    assert len(free(held, 1, NOW)) == 1
    assert free(held, 1, NOW + 5 * MINUTE + FREE_FOR) == []


@pytest.mark.parametrize(("declared", "surge", "demand"), [(2, 200, 198), (5, 2, 0), (0, 200, 0), (3, 3, 0), (1, 2, 1)])
def test_declared_surge_beyond_the_replicas_is_demand(declared, surge, demand):
    assert surge_demand(declared, surge) == demand


amounts = st.dictionaries(st.sampled_from(["cpu", "mem", "gpu", "pods"]), st.integers(0, 10**12))


@st.composite
def parts(draw: st.DrawFn) -> tuple[Resources, Resources, Resources, Resources]:
    fresh = draw(st.lists(amounts, max_size=6))
    spared = draw(st.integers(0, len(fresh)))
    return draw(amounts), total(fresh), total(fresh[:spared]), draw(amounts)


@given(parts())
def test_the_charge_is_never_below_the_live_pods_without_the_free_ones(found):
    demand, fresh, spared, ending = found
    charge = slot_charge(demand, fresh, spared, ending)
    live = total((subtract_floor(fresh, spared), ending))
    assert not growth(live, charge)
    assert not growth(demand, charge)


@given(parts(), amounts)
def test_more_pods_are_never_charged_less(found, more):
    demand, fresh, spared, ending = found
    charge = slot_charge(demand, fresh, spared, ending)
    assert not growth(charge, slot_charge(demand, total((fresh, more)), spared, ending))
    assert not growth(charge, slot_charge(demand, fresh, spared, total((ending, more))))
    assert not growth(charge, slot_charge(total((demand, more)), fresh, spared, ending))


@given(amounts, st.integers(0, 8))
def test_a_settled_slot_is_charged_its_demand(cost, declared):
    life = Life("Running", "n1", NOW)
    held = [Held(str(i), "v1", life, cost) for i in range(declared)]
    demand = total(pod.cost for pod in held)
    found = weigh(demand, declared, held, NOW, surges=True)
    assert found.charge == demand
    assert (found.beyond, found.ending, found.free, found.again) == ({}, (), (), None)


lives = st.builds(
    Life,
    phase=st.sampled_from(["Pending", "Running", "Succeeded"]),
    node=st.sampled_from([None, "n1"]),
    created=st.none() | st.integers(NOW - 20 * MINUTE, NOW + MINUTE),
    deleted=st.none() | st.integers(NOW - MINUTE, NOW + MINUTE),
    grace=st.none() | st.integers(0, 2 * MINUTE),
    own_grace=st.integers(0, MINUTE),
    gone=st.none() | st.integers(NOW - MINUTE, NOW),
)


@given(
    st.lists(st.tuples(st.sampled_from(["v1", "v2"]), lives, st.booleans()), max_size=8),
    st.integers(0, 5),
    lives,
)
def test_another_of_equal_pods_is_never_charged_less(found, declared, another):
    one = res("cpu=1")
    held = [Held(str(i), version, life, one, awaited) for i, (version, life, awaited) in enumerate(found)]
    demand = {"limits.cpu": declared * one["limits.cpu"]}
    before = weigh(demand, declared, held, NOW, surges=False).charge
    after = weigh(demand, declared, [*held, Held("x", "v1", another, one)], NOW, surges=False).charge
    assert not growth(before, after)


@given(st.lists(st.tuples(st.sampled_from(["v1", "v2"]), lives, amounts), max_size=8), amounts, st.integers(0, 5))
def test_what_is_free_is_at_most_the_declared_pods_and_the_demand(found, demand, declared):
    held = [Held(str(i), version, life, cost) for i, (version, life, cost) in enumerate(found)]
    counted = weigh(demand, declared, held, NOW, surges=True)
    strict = weigh(demand, declared, held, NOW, surges=False)
    assert sum(pod.many for pod in counted.free) <= declared
    assert not growth(strict.charge, total((counted.charge, demand)))
    assert not growth(demand, counted.charge)
