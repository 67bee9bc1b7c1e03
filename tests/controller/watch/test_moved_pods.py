"""For which group the pods of what moves were made."""

from __future__ import annotations

import pytest

from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership.memory import Memory as Payer
from tests.controller.usage.test_excess import Memory, pod, replica_set
from tests.support.objects import Object, deployment


def move(memory: Memory, web: Object, group: str) -> Object:
    moved = memory.put({**web, "metadata": {**web["metadata"], "labels": {**web["metadata"]["labels"], LABEL: group}}})
    memory.cluster.workload_changed(web, moved)
    return moved


@pytest.fixture
def memory() -> Memory:
    return Memory()


def web_in(memory: Memory, group: str) -> Object:
    web = memory.put(deployment("web", group, 1))
    memory.put(pod("web-1-a"), memory.put(replica_set("web-1", 1), web))
    return web


def test_pods_are_those_of_the_group_that_the_workload_leaves_first(memory: Memory) -> None:
    web = web_in(memory, "nlp")
    move(memory, move(memory, web, "vision"), "lab")
    assert memory.cluster.moved_pods.of("web-1-a") == "nlp"


def test_after_a_start_they_are_those_of_the_group_that_remembers_the_workload(memory: Memory) -> None:
    """It passed the one that it leaves now, where it was never counted."""
    web = web_in(memory, "vision")
    memory.cluster.payers.remember("web-1", Payer("nlp", "Deployment/default/web", 1))
    move(memory, web, "lab")
    assert memory.cluster.moved_pods.of("web-1-a") == "nlp"


def test_they_are_those_of_the_group_that_is_left_if_it_counted_the_workload_too(memory: Memory) -> None:
    web = web_in(memory, "vision")
    memory.cluster.payers.remember("web-1", Payer("nlp", "Deployment/default/web", 1))
    memory.cluster.payers.remember("web", Payer("vision", "Deployment/default/web", 2))
    move(memory, web, "lab")
    assert memory.cluster.moved_pods.of("web-1-a") == "vision"
