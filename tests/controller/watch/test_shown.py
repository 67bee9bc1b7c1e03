"""Writes count as shown once the watches reach a revision that was read after them, however long that takes."""

from __future__ import annotations

from typing import cast

import pytest

from bizrq.kube.informer import Informer
from bizrq.kube.store import Store
from controller.watch.shown import ShownWrites
from tests.support.objects import DEPLOYMENTS


class Server:
    """An API server that is written all the time."""

    def __init__(self) -> None:
        self.current = 100
        self.reads = 0

    async def revision(self) -> int:
        self.reads += 1
        self.current += 1
        return self.current


class Watch:
    """A watch that brings nothing: a list that it is asked for is there when it is asked the next time."""

    resource = DEPLOYMENTS

    def __init__(self, server: Server, objects: int = 0) -> None:
        self.server = server
        self.store = Store()
        self.store.resource_version = 100
        self.listing: int | None = None
        self.lists = 0
        self.is_prompt = False
        for number in range(objects):
            metadata = {"uid": str(number), "name": str(number), "namespace": "default"}
            self.store.put({"metadata": metadata})

    def relist(self) -> None:
        self.lists += 1
        self.listing = self.server.current

    async def catch_up(self, revision: int, timeout: float, *, lag: float) -> bool:
        self.store.resource_version = max(self.store.resource_version, self.listing or 0)
        if self.store.resource_version < revision and lag < timeout:
            self.relist()
        if self.is_prompt:
            self.store.resource_version = revision
        return self.store.resource_version >= revision


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_what_takes_longer_than_anybody_waits_is_shown_in_the_end() -> None:
    """Each read finds a later revision, and each list only what was there as it began."""
    server, clock = Server(), Clock()
    watch, shown = Watch(server), ShownWrites(clock)
    of = cast(Informer, watch)
    assert await shown.until("deployments", [of], server.revision, 990.0) is None
    clock.now += 5
    assert await shown.until("deployments", [of], server.revision, 1004.0) == 1000.0
    assert server.reads == 1
    assert await shown.until("deployments", [of], server.revision, 1000.0) == 1000.0
    assert server.reads == 1
    assert await shown.until("deployments", [of], server.revision, 1004.0) is None
    assert server.reads == 2, "what was written after the moment needs another read"


async def test_very_many_objects_are_listed_once_and_only_where_the_watch_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.watch.cluster._MANY", 10)
    monkeypatch.setattr("controller.watch.cluster._LISTED_A_SECOND", 1)
    server, clock = Server(), Clock()
    watch, shown = Watch(server, objects=20), ShownWrites(clock)
    of = cast(Informer, watch)
    for _ in range(4):
        assert await shown.until("deployments", [of], server.revision, 1000.0) is None
        clock.now += 5.1
    assert (watch.lists, server.reads) == (0, 1)
    assert await shown.until("deployments", [of], server.revision, 1000.0) == 1000.0
    assert (watch.lists, server.reads) == (1, 1)


async def test_a_restored_server_is_asked_again() -> None:
    """Its revisions count anew, and the one that was read before may never come."""
    server, clock = Server(), Clock()
    watch, shown = Watch(server), ShownWrites(clock)
    of = cast(Informer, watch)
    assert await shown.until("deployments", [of], server.revision, 1000.0) is None
    server.current, watch.store.resource_version, watch.listing = 10, 10, None
    watch.store.epoch += 1
    watch.is_prompt = True
    assert await shown.until("deployments", [of], server.revision, 1000.0) == 1000.0
    assert server.reads == 2
