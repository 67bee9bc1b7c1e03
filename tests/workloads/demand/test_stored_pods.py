"""Stored pods that stay while others are added, and those that cannot be counted as they are."""

from __future__ import annotations

import pytest

from bizrq.builtin import builtin_registry
from bizrq.units.resources import Resources, restrict
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.counting import adapter_of, beside_stored, demand_at_least
from bizrq.workloads.labels import MODEL_LABELS
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.special.statefulset import leaving_range
from tests.support.workload_language import CONFIG, Object, cost, count, deployment, template, tfjob, workload


def beside(old: Object, new: Object, leaving: int = 0) -> Resources:
    return restrict(beside_stored(count(new), count(old), leaving), ["requests.cpu"])


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


def test_pods_that_leave_stay_at_what_they_cost():
    old, new = deployment(4, "cpu=1"), deployment(4, "cpu=500m")
    assert beside(old, new, 3) == cost("cpu=3500m")
    assert beside(old, old, 9) == cost("cpu=4")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((0, 4), (0, 8), 0),
        ((0, 4), (0, 2), 0),
        ((0, 4), (2, 2), 0),
        ((0, 4), (1, 4), 1),
        ((0, 4), (100, 4), 4),
        ((100, 4), (0, 1), 4),
        ((None, 4), ("x", 4), 0),
    ],
)
def test_how_many_leave_the_range_while_others_come(old: tuple[object, int], new: tuple[object, int], expected: int):
    first, then = ({"spec": {"ordinals": {"start": start}, "replicas": many}} for start, many in (old, new))
    assert leaving_range(first, then) == expected


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
