"""Stored pods that stay while others are added, and those that cannot be counted as they are."""

from __future__ import annotations

import pytest

from bizrq.builtin import builtin_registry
from bizrq.units.resources import Resources, restrict
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.counting import Demand, RoleDemand, adapter_of, beside_stored, demand_at_least
from bizrq.workloads.labels import MODEL_LABELS
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.special.statefulset import BELOW_PARTITION, MAIN, shift_of_ordinals
from tests.support.workload_language import CONFIG, Object, cost, count, deployment, refusal, template, tfjob, workload


def beside(old: Object, new: Object, shift: int = 0) -> Resources:
    return restrict(beside_stored(count(new), count(old), shift), ["requests.cpu"])


SMALLER = [
    ("the template alone", (4, "cpu=1"), (4, "cpu=500m"), ""),
    ("the number alone", (4, "cpu=1"), (8, "cpu=1"), ""),
    ("more and smaller", (4, "cpu=1"), (8, "cpu=500m"), "cpu=2"),
    ("more and larger", (4, "cpu=1"), (8, "cpu=2"), ""),
    ("fewer and smaller", (4, "cpu=1"), (2, "cpu=500m"), ""),
    ("from none", (0, "cpu=1"), (8, "cpu=500m"), ""),
]


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in SMALLER], ids=[row[0] for row in SMALLER])
def test_larger_pods_stay_beside_added_ones(old: tuple[int, str], new: tuple[int, str], expected: str):
    assert beside(deployment(*old), deployment(*new)) == cost(expected)


def test_each_role_counts_by_itself():
    """Totals are compared by workload, so that a role may shrink for another that grows."""
    old = tfjob(Worker=(4, "cpu=1"), PS=(2, "cpu=1"))
    assert beside(old, tfjob(Worker=(4, "cpu=500m"), PS=(4, "cpu=1"))) == {}
    assert beside(old, tfjob(Worker=(8, "cpu=500m"), PS=(2, "cpu=1"))) == cost("cpu=2")


@pytest.mark.parametrize("shift", [3, -3])
def test_pods_that_leave_stay_at_what_they_cost(shift: int):
    old, new = deployment(4, "cpu=1"), deployment(4, "cpu=500m")
    assert beside(old, new, shift) == cost("cpu=3500m")
    assert beside(old, old, 3 * shift) == cost("cpu=4")


def test_what_only_leaves_ends():
    assert beside(deployment(4, "cpu=1"), deployment(2, "cpu=500m"), -2) == {}


def parted(below: str, above: str) -> Demand:
    """Return the demand of a StatefulSet of pods with these CPUs; those `above` the partition are its first role."""
    roles = [(MAIN, above.split()), (BELOW_PARTITION, below.split())]
    found = tuple(RoleDemand(name, len(cpus), {"cpu": int(cpus[0])}) for name, cpus in roles if cpus)
    return Demand({"cpu": sum(role.replicas * role.per_pod["cpu"] for role in found)}, found)


@pytest.mark.parametrize(
    ("before", "after", "shift", "expected"),
    [
        (("8 8 8 8", ""), ("", "1 1 1 1 1"), 0, 28),
        (("8 8", "4 4"), ("8 8", "4 4 4"), 0, 0),
        (("8 8", "4 4"), ("", "4 4 4 4 4"), 0, 8),
        (("8 8", "4 4"), ("", "4 4 4 4"), 0, 0),
        (("8 8", "4 4"), ("8 8", "4 4"), 2, 16),
        (("8 8", "4 4"), ("8 8", "4 4"), -2, 16),
        (("", "8 8 8 8"), ("1 1", "1 1"), -100, 32),
    ],
)
def test_the_pods_below_a_partition_are_the_first_of_a_stateful_set(
    before: tuple[str, str], after: tuple[str, str], shift: int, expected: int
):
    assert beside_stored(parted(*after), parted(*before), shift).get("cpu", 0) == expected


@pytest.mark.parametrize(("old", "new", "expected"), [(0, 2, -2), (100, 0, 100), (None, "x", 0), (3, 3, 0)])
def test_how_far_other_ordinals_move_the_pods(old: object, new: object, expected: int):
    first, then = ({"spec": {"ordinals": {"start": start}, "replicas": 4}} for start in (old, new))
    assert shift_of_ordinals(first, then) == expected


GPU = MODEL_LABELS["gpu"]
CARD = "requests.nvidia.com/gpu"


def at_least(pod: Object, payer: Object, config: CountingConfig = CONFIG) -> Resources:
    registry = builtin_registry()
    found = demand_at_least(pod, adapter_of(pod, registry), payer, DocumentLookup([]), config)
    return restrict(found.resources, ["requests.cpu", CARD, f"{CARD}.A100"])


def a_pod(text: str, **labels: str) -> Object:
    return workload("v1", "Pod", template(text)["spec"], None, **labels)


@pytest.mark.parametrize(
    ("payer", "expected"), [("A100", f"cpu=1 gpu=1 {CARD}.A100=1"), ("", "cpu=1 gpu=1"), ("shared", "cpu=1 gpu=1")]
)
def test_a_model_that_a_card_cannot_have_is_none(payer: str, expected: str):
    """`gpu.shared` is the name of another resource. The model of who pays counts, if that can."""
    assert at_least(a_pod("cpu=1 gpu=/1", gpu="shared"), deployment(1, "", gpu=payer)) == cost(expected)


def test_a_claim_template_that_is_gone_costs_nothing_and_the_rest_stays():
    pod = a_pod("cpu=1")
    pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": "gone"}]
    assert at_least(pod, deployment(1, "")) == cost("cpu=1")


@pytest.mark.parametrize("claims", [0, 300])
def test_a_stored_pod_costs_what_it_asks_for_however_much_it_names(claims: int):
    """Where a person writes it, it is too much to count."""
    pod = a_pod("cpu=1")
    pod["spec"]["resourceClaims"] = [{"name": f"c{n}", "resourceClaimName": "gone"} for n in range(claims)]
    names = {} if claims else {f"a.b/c{n}": "0" for n in range(30_000)}
    pod["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1", **names}
    assert "no more than 25000 can be counted" in refusal(pod)
    assert at_least(pod, deployment(1, "")) == cost("cpu=1")


def test_each_limit_of_a_template_counts_as_a_request_too():
    """The API server gives pods requests that equal their limits."""
    made = deployment(1, "cpu=1")
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"] = {f"a.b/c{n}": "0" for n in range(13_000)}
    assert "no more than 25000 can be counted" in refusal(made)
