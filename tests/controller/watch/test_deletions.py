"""Workloads that are gone are remembered until the watches below them have come as far, and never too many."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from bizrq.builtin import builtin_registry
from bizrq.kube.informer import Informer
from bizrq.workloads.kinds.declaration import Adapter
from controller.watch import deletions
from controller.watch.deletions import Deletions
from controller.watch.informers import Informers
from tests.support.objects import Object

REPLICASETS, PODS = ("apps", "ReplicaSet"), ("", "Pod")


class Watches:
    """What two watches have reached, and the deletions that the first one shows."""

    def __init__(self) -> None:
        self._kinds = {
            kind: SimpleNamespace(installed=True, store=SimpleNamespace(resource_version=1))
            for kind in (REPLICASETS, PODS)
        }
        self.deletions = Deletions(cast(Informers, SimpleNamespace(kinds=self._kinds)), builtin_registry())

    def reach(self, kind: tuple[str, str], revision: int) -> None:
        self._kinds[kind].store.resource_version = revision

    def show(self, uid: str, revision: int) -> None:
        self.reach(REPLICASETS, revision)
        self.deletions.note(replica_set(uid))

    def late(self, uid: str) -> list[int]:
        return [revision for _, revision in self.deletions.late(uid, self._below)]

    def _below(self, _adapter: Adapter) -> Iterable[Informer]:
        return [cast(Informer, self._kinds[PODS])]


def replica_set(uid: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"uid": uid}}


def test_a_watch_is_late_until_it_has_come_as_far_as_the_deletion() -> None:
    watches = Watches()
    watches.show("web", 5)
    assert watches.late("web") == [5]
    watches.reach(PODS, 4)
    assert watches.late("web") == [5]
    watches.reach(PODS, 5)
    assert watches.late("web") == []


def test_while_a_watch_stands_still_the_first_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "MOST", 2)
    watches = Watches()
    for revision, uid in enumerate(("first", "second", "third"), 5):
        watches.show(uid, revision)
    assert [watches.late(uid) for uid in ("first", "second", "third")] == [[], [6], [7]]
