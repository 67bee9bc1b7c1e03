"""Pods below the partition of a StatefulSet cost no less than those of its current revision."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.builtin import builtin_registry
from bizrq.units.quantity import NANO
from bizrq.workloads.demand import counting
from bizrq.workloads.lookup import DocumentLookup
from tests.support.objects import Object, deployment, template
from tests.support.workload_language import CONFIG

REVISION = {
    "apiVersion": "apps/v1",
    "kind": "ControllerRevision",
    "metadata": {"name": "db-1", "namespace": "default"},
}


def cores(cpu: str, current: object, strategy: Object, replicas: int = 4, revision: str = "db-1", **spec: Any) -> int:
    """The cores of a StatefulSet with this template, and the current revision's in the cluster."""
    made = {
        **deployment("db", "nlp", replicas, cpu=cpu),
        "kind": "StatefulSet",
        "status": {"currentRevision": revision},
    }
    made["spec"] |= {"updateStrategy": strategy, **spec}
    stored = {**REVISION, "data": {"spec": {"template": current}}}
    adapter = counting.adapter_of(made, builtin_registry())
    demand = counting.own_demand(made, adapter, DocumentLookup([stored]), CONFIG)
    assert sum(role.replicas for role in demand.roles) == replicas
    return demand.resources.get("limits.cpu", 0) // NANO


def below(number: object) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}


@pytest.mark.parametrize(
    ("strategy", "cost"), [({"type": "RollingUpdate"}, 40), ({"type": "OnDelete"}, 4), ({}, 4), (None, 4)]
)
def test_with_the_type_alone_all_pods_may_be_of_the_current_revision(strategy: Any, cost: int) -> None:
    assert cores("1", template("10"), strategy) == cost


@pytest.mark.parametrize(
    ("partition", "cost"), [(0, 4), (1, 13), (3, 31), (4, 40), (1000, 40), (None, 4), ("4", 4), (True, 4), (-1, 4)]
)
def test_pods_below_the_partition_cost_what_the_larger_revision_does(partition: object, cost: int) -> None:
    assert cores("1", template("10"), below(partition)) == cost


def test_a_smaller_current_revision_makes_nothing_cheaper() -> None:
    assert cores("10", template("1"), below(4)) == 40


def test_the_range_of_ordinals_does_not_matter() -> None:
    assert cores("1", template("10"), below(1), ordinals={"start": 7}) == 13


@pytest.mark.parametrize("current", [None, "text", {}, {"spec": {"containers": "?"}}, template("none")])
def test_a_revision_that_cannot_be_counted_adds_nothing(current: object) -> None:
    assert cores("1", current, below(4)) == 4


def test_a_revision_that_is_gone_or_not_noted_yet_adds_nothing() -> None:
    for name in ("", "db-2"):
        assert cores("1", template("10"), below(4), revision=name) == 4


def test_without_a_rolling_update_all_pods_are_of_the_template() -> None:
    assert cores("1", template("10"), {"type": "OnDelete"}) == 4
