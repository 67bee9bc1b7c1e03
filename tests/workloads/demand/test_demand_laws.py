"""Laws of demand that hold for all workloads."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bizrq.units.quantity import NANO
from bizrq.workloads.pods.podspec import aggregate
from tests.support.workload_language import count, deployment, rollout, template

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x.com/y"]), st.integers(0, 5), max_size=3)
STEPS = st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=5)


def by_the_book(containers: list[dict[str, int]], inits: list[tuple[dict[str, int], bool]], name: str) -> int:
    """Return the cost by KEP-753: the larger of what runs and of every step with the sidecars before it."""
    running = sum(c.get(name, 0) for c in containers) + sum(c.get(name, 0) for c, sidecar in inits if sidecar)
    steps = []
    for index, (asked, _) in enumerate(inits):
        before = sum(c.get(name, 0) for c, other in inits[:index] if other)
        steps.append(before + asked.get(name, 0))
    return max([running, *steps])


@settings(max_examples=300)
@given(st.lists(AMOUNTS, max_size=4), STEPS)
def test_a_pod_holds_what_the_enhancement_proposal_says(containers, inits):
    found = aggregate(containers, inits)
    for name in ("cpu", "memory", "x.com/y"):
        assert found.get(name, 0) == by_the_book(containers, inits, name)


CONTAINER = st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from(["", "init", "sidecar"]))
CONTAINERS = st.lists(CONTAINER, max_size=4)


def pod(given_containers: list[tuple[int, int, str]]) -> dict[str, Any]:
    parts = [f"{role} cpu={cpu}/{cpu} gpu=/{gpu}" for cpu, gpu, role in given_containers]
    return template(" | ".join([*parts, "cpu=1"]))


@settings(max_examples=100)
@given(CONTAINERS, st.integers(0, 1000))
def test_n_pods_cost_n_times_one(containers, replicas):
    one, many = count(rollout(1, pod(containers))).resources, count(rollout(replicas, pod(containers))).resources
    for name in {**one, **many}:
        times = 1 if name.startswith("count/") else replicas
        assert many.get(name, 0) == times * one.get(name, 0)


@settings(max_examples=100)
@given(CONTAINERS, CONTAINER)
def test_one_container_more_never_costs_less(containers, another):
    before = count(rollout(1, pod(containers))).resources
    after = count(rollout(1, pod([*containers, another]))).resources
    assert all(after.get(name, 0) >= amount for name, amount in before.items())


@settings(max_examples=100)
@given(CONTAINERS, st.sampled_from(["A4", "A40", "x.y"]))
def test_a_model_costs_what_its_base_costs_and_the_base_stays(containers, model):
    plain = count(deployment(2, pod(containers))).resources
    labelled = count(deployment(2, pod(containers), cpu=model, gpu=model)).resources
    assert {name: labelled.get(name) for name in plain} == plain
    for name in plain:
        if name.endswith((".cpu", "nvidia.com/gpu")):
            assert labelled[f"{name}.{model}"] == plain[name]


@settings(max_examples=100)
@given(CONTAINERS, st.integers(0, 50))
def test_the_roles_and_the_object_are_all_that_is_charged(containers, replicas):
    demand = count(deployment(replicas, pod(containers), cpu="A4"))
    total = {"count/deployments.apps": NANO}
    for role in demand.roles:
        for name, amount in role.per_pod.items():
            if role.replicas:
                total[name] = total.get(name, 0) + amount * role.replicas
    assert demand.resources == total
