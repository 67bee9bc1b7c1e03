"""Which ReplicaSets take over below a paused Deployment, and with how many pods."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.workloads.ownership.takeover import NOTES, takeover
from tests.support.objects import Object, template


def deployment(replicas: int, cpu: str = "1", **strategy: Any) -> Object:
    rolling = {"maxSurge": 1, **strategy}
    return {"spec": {"replicas": replicas, "template": template(cpu), "strategy": {"rollingUpdate": rolling}}}


def version(name: str, cpu: str, replicas: int, notes: tuple[int, int] | None = None, **metadata: str) -> Object:
    annotations = dict(zip(NOTES, map(str, notes), strict=True)) if notes else {}
    made = {"name": name, "uid": name, "annotations": annotations, "creationTimestamp": name, **metadata}
    return {"metadata": made, "spec": {"replicas": replicas, "template": template(cpu)}}


A, B, C = "2026-01-01", "2026-01-02", "2026-01-03"
ROWS = {
    "the only one that runs has all": ([version(A, "5", 4)], "", 0),
    "the only one that runs has too few": ([version(A, "5", 1)], A, 3),
    "the current one runs alone": ([version(A, "5", 0), version(B, "1", 2)], "", 0),
    "the current one is made to run where none does": ([version(A, "1", 0), version(B, "5", 0)], "", 0),
    "the newest is where none is current": ([version(A, "9", 0), version(C, "5", 0), version(B, "7", 0)], C, 4),
    "one that is being deleted counts as gone": (
        [version(A, "5", 0), version(B, "1", 4, deletionTimestamp="now")], A, 4),
    "an old one that runs alone takes over from the current one": ([version(A, "5", 1), version(B, "1", 0)], A, 3),
    "what is missing with the surge is divided": ([version(A, "5", 1), version(B, "1", 1)], A, 3),
    "nothing is missing": ([version(A, "5", 2), version(B, "1", 3)], "", 0),
    "the current one has all and the notes are right": (
        [version(A, "5", 0), version(B, "2", 1, (4, 7)), version(C, "1", 4, (4, 7))], "", 0),
    "a note is wrong": ([version(B, "2", 1, (9, 1)), version(C, "1", 4, (4, 7))], B, 2),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_takeover(row: str) -> None:
    made, name, pods = ROWS[row]
    surge = 3 if "note" in row else 1
    found = takeover(deployment(4, maxSurge=surge), made)
    assert ("".join(each["metadata"]["name"] for each in found.versions), found.pods) == (name, pods)


def test_recreate_divides_nothing() -> None:
    paused = deployment(4)
    paused["spec"]["strategy"] = {"type": "Recreate"}
    assert takeover(paused, [version(A, "5", 1), version(B, "1", 1)]).pods == 0
    assert takeover(paused, [version(A, "5", 0)]).pods == 4
