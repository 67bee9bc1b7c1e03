"""For which group the pods of what moves were made."""

from __future__ import annotations

import pytest

from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership.memory import Memory as Payer
from tests.controller.usage.test_excess import Memory, pod, replica_set
from tests.support.objects import Object, deployment


def move(memory: Memory, web: Object, group: str) -> Object:
    labels = {**web["metadata"]["labels"], LABEL: group}
    revision = str(memory.revision + 1)
    moved = memory.put({**web, "metadata": {**web["metadata"], "labels": labels}}, resourceVersion=revision)
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


def test_they_are_those_of_the_group_that_is_left_if_another_counted_the_workload_later(memory: Memory) -> None:
    """It came back, and the group that it was in meanwhile is not counted again yet."""
    web = web_in(memory, "vision")
    memory.cluster.payers.remember("web", Payer("vision", "Deployment/default/web", 1))
    memory.cluster.payers.remember("web", Payer("nlp", "Deployment/default/web", 2))
    move(memory, web, "nlp")
    assert memory.cluster.moved_pods.of("web-1-a") == "vision"


def test_what_it_makes_where_it_is_not_counted_is_made_for_that_group_once_a_move_was_seen(memory: Memory) -> None:
    """It came back from a group that had forgotten it, and another one remembers it still."""
    web = web_in(memory, "nlp")
    memory.cluster.payers.remember("web", Payer("nlp", "Deployment/default/web", 1))
    web = move(memory, web, "vision")
    memory.put(pod("web-1-b"), memory.put(replica_set("web-1", 1), web))
    move(memory, web, "nlp")
    assert memory.cluster.moved_pods.of("web-1-a") == "nlp"
    assert memory.cluster.moved_pods.of("web-1-b") == "vision"


def test_a_move_is_forgotten_with_its_workload(memory: Memory) -> None:
    web = move(memory, web_in(memory, "nlp"), "vision")
    assert memory.cluster.moved_pods.has_moved("web")
    memory.cluster.workload_changed(web, None)
    assert not memory.cluster.moved_pods.has_moved("web")


def test_what_is_left_is_that_of_the_group_that_the_workload_was_in(memory: Memory) -> None:
    """Nobody has counted it there; the group that it left pays for its own pods, by their notes."""
    web = web_in(memory, "nlp")
    memory.cluster.payers.remember("web", Payer("nlp", "Deployment/default/web", 1))
    web = move(memory, web, "vision")
    memory.cluster.workload_changed(web, None)
    left, before = memory.cluster.payers.get("web"), memory.cluster.payers.in_group("nlp", "web")
    assert left is not None
    assert before is not None
    assert (left.group, left.gone is not None, before.gone) == ("vision", True, None)


class Late:
    """A workload whose pods the watch shows late, with the revision of each of its writes."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.web = memory.put(deployment("web", "nlp", 1))
        self.made = memory.put(replica_set("web-1", 1), self.web)

    def now(self) -> int:
        """Return the revision of something that is written now."""
        self.memory.revision += 1
        return self.memory.revision

    def move(self, group: str) -> None:
        self.web = move(self.memory, self.web, group)

    def see(self, name: str, revision: int) -> str | None:
        """Let the watch show a pod as it was at a revision, and return the group that it was made for."""
        self.memory.put(pod(name), self.made, resourceVersion=str(revision))
        self.memory.cluster.pod_changed(None, self.memory.cluster.informers.pod(name))
        return self.memory.cluster.moved_pods.of(name)


@pytest.fixture
def late(memory: Memory) -> Late:
    return Late(memory)


def test_a_pod_that_is_seen_late_is_that_of_the_group_that_its_workload_left_next(late: Late) -> None:
    first = late.now()
    late.move("vision")
    second = late.now()
    late.move("lab")
    assert late.see("a", first) == "nlp"
    assert late.see("b", second) == "vision"
    assert late.see("c", late.now()) is None


def test_a_pod_that_is_seen_late_stays_that_of_its_group_when_its_workload_comes_back(late: Late) -> None:
    first = late.now()
    late.move("vision")
    late.see("a", first)
    late.move("nlp")
    assert late.memory.cluster.moved_pods.of("a") == "nlp"


def test_no_pod_is_expected_from_before_what_the_watch_has_reached(late: Late) -> None:
    first = late.now()
    late.memory.cluster.informers.pods.store.resource_version = first + 2
    late.move("vision")
    assert late.see("a", first) is None


def test_no_pod_is_expected_once_revisions_count_anew(late: Late) -> None:
    first = late.now()
    late.move("vision")
    late.memory.cluster.restored(late.memory.revision, first)
    assert late.see("a", first) is None


@pytest.mark.parametrize("is_below_first", [False, True])
def test_a_pod_that_is_seen_when_its_workload_is_gone_is_that_of_the_group_that_it_left(
    late: Late, is_below_first: bool
) -> None:
    first = late.now()
    late.move("vision")
    for obj in (late.made, late.web) if is_below_first else (late.web, late.made):
        late.memory.cluster.informers.workloads[late.memory.adapter(obj).resource].store.remove(obj)
        late.memory.cluster.workload_changed(obj, None)
    moved = late.memory.cluster.moved_pods
    assert late.see("a", first) == "nlp"
    made = moved.made_for("web", "nlp")
    assert made is not None
    assert (made.place, made.uids) == ("Deployment/default/web", {"a"})
    assert moved.expected("web") > first
    assert late.see("b", late.now()) is None
    moved.forget("a")
    assert moved.of("a") is None
