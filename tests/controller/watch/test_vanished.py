"""Pods that are gone from the API are remembered while their node may run them, and no longer."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.units.times import format_timestamp
from bizrq.workloads.ownership.lives import ends_at
from controller.watch import vanished
from controller.watch.pods import Pod, SharedParts, staying_over, trimmed_pod
from controller.watch.vanished import VanishedPods
from tests.support.objects import Object

T = 1_800_000_000_000


class Clock:
    now = T

    def __call__(self) -> int:
        return self.now


def pod(name: str = "a", phase: str = "Running", node: str | None = "n", grace: object = None, **metadata: Any) -> Pod:
    """A pod of the owner `rs`; `grace` is its own one in seconds."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    known = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "ownerReferences": [owner]}
    spec = {"containers": [], "nodeName": node, "terminationGracePeriodSeconds": grace}
    made: Object = {"metadata": {**known, **metadata}, "spec": spec, "status": {"phase": phase}}
    return trimmed_pod(made, SharedParts())


def going(grace: int, left: int) -> Object:
    """The metadata of a pod that has so many seconds left of its grace."""
    return {"deletionTimestamp": format_timestamp(T + left * 1000), "deletionGracePeriodSeconds": grace}


def forced(before: Pod) -> Pod:
    """A pod as it is while it is deleted by force."""
    return staying_over(before, pod(**going(0, 0)), T)


@pytest.mark.parametrize(
    ("why", "gone", "seconds"),
    [
        ("it was deleted by force", pod(), 30),
        ("it was deleted by force with its own grace", pod(grace=600), 600),
        ("its own grace cannot be read", pod(grace="forever"), 2**31 - 1),
        ("it was deleted, and then by force", pod(grace=600, **going(600, 590)), 600),
        ("it was deleted with a shorter grace, and then by force", pod(grace=600, **going(5, 4)), 9),
        ("its time was up", pod(**going(30, 0)), 0),
        ("its time was up, and then it was deleted by force", forced(pod(**going(5, -5))), 0),
        ("its time was not up, and then it was deleted by force", forced(pod(**going(5, -4))), 30),
        ("it has ended", pod(phase="Succeeded"), 0),
        ("it has no node", pod(node=None), 0),
        ("it was lost with its node", pod(**going(30, -100)), 0),
        ("the pod garbage collector removed it after its node", pod(phase="Failed", **going(0, 0)), 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_long_a_pod_that_is_gone_is_remembered(why: str, gone: Pod, seconds: int) -> None:
    clock = Clock()
    known = VanishedPods(clock)
    known.record(gone, None)
    clock.now = T + seconds * 1000 - 1
    assert [each.pod for each in known.of("rs")] == ([gone] if seconds else [])
    clock.now += 1
    assert known.of("rs") == ()


def test_a_pod_that_is_restored_without_its_deletion_runs() -> None:
    assert ends_at(staying_over(pod(**going(5, -9)), pod(), T).life()) is None


def test_a_clock_that_was_wrong_for_a_while_ends_no_pod() -> None:
    before = pod(**going(60, 30))
    seen = staying_over(before, pod(**going(60, 30)), T + 86_400_000)
    assert seen == before
    over = staying_over(pod(**going(5, -9)), pod(**going(0, 0)), T)
    assert staying_over(over, pod(**going(0, 0)), T - 86_400_000).was_over


def test_a_pod_whose_containers_have_ended_has_not_vanished() -> None:
    made = pod(**going(30, 20))
    status = {"phase": "Running", "containerStatuses": [
        {"name": "c", "state": {"terminated": {"finishedAt": format_timestamp(T)}}}]}  # fmt: skip
    ended = trimmed_pod({**made.plain(), "status": status}, SharedParts())
    known = VanishedPods(Clock())
    known.record(ended, None)
    assert known.of("rs") == ()


def test_a_pod_that_comes_back_has_not_vanished() -> None:
    known = VanishedPods(Clock())
    known.record(pod(), None)
    known.record(None, pod())
    assert known.of("rs") == ()


def test_of_too_many_those_that_end_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vanished, "MOST", 2)
    known = VanishedPods(Clock())
    for name, grace in (("a", 10), ("b", 30), ("c", 20)):
        known.record(pod(name, grace=grace), None)
    assert [each.pod.name for each in known.of("rs")] == ["b", "c"]


def test_a_pod_without_controller_is_its_own() -> None:
    known = VanishedPods(Clock())
    known.record(pod("bare", ownerReferences=[]), None)
    assert [each.pod.name for each in known.of("bare")] == ["bare"]
