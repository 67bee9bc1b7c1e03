"""The group store: its index of children, and how it lists the stored children of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bizrq.kube.client import Forbidden, KubeClient
from bizrq.store.groups import GROUPS, GroupStore
from tests.support.cluster import eventually
from tests.support.fake_server import FakeServer
from tests.support.objects import group

PLURAL = GROUPS.plural


def put(server: FakeServer, name: str, parent: str = "") -> None:
    server.put(PLURAL, name, "", spec=group(name, parent)["spec"])


@asynccontextmanager
async def following(client: KubeClient) -> AsyncIterator[GroupStore]:
    store = GroupStore(client)
    task = asyncio.create_task(store.informer.run())
    try:
        await store.informer.synced.wait()
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds)


async def test_the_index_follows_the_watch(server: FakeServer, client: KubeClient) -> None:
    put(server, "corp")
    put(server, "ai", "corp")
    async with following(client) as store:
        assert set(store.child_names("corp")) == {"ai"}
        put(server, "web", "corp")
        put(server, "nlp", "ai")
        await until(lambda: store.cached("nlp") is not None)
        assert set(store.child_names("corp")) == {"ai", "web"}
        assert [child.name for child in store.known_children("ai")] == ["nlp"]
        assert store.parent_of("nlp") == "ai"
        server.remove(PLURAL, "ai", "")
        await until(lambda: store.cached("ai") is None)
        assert set(store.child_names("corp")) == {"web"}
        assert store.parent_of("ai") == ""


async def test_a_group_of_the_same_name_under_another_parent_changes_its_place(
    server: FakeServer, client: KubeClient
) -> None:
    for name in ("corp", "web"):
        put(server, name)
    put(server, "nlp", "corp")
    async with following(client) as store:
        server.remove(PLURAL, "nlp", "")
        put(server, "nlp", "web")
        await until(lambda: store.parent_of("nlp") == "web")
        assert (set(store.child_names("corp")), set(store.child_names("web"))) == (set(), {"nlp"})


async def test_a_fresh_read_adds_a_child_before_the_watch(server: FakeServer, client: KubeClient) -> None:
    put(server, "nlp", "corp")
    store = GroupStore(client)
    assert await store.read("nlp", 5) is not None
    assert set(store.child_names("corp")) == {"nlp"}
    server.remove(PLURAL, "nlp", "")
    assert await store.read("nlp", 5) is None
    assert set(store.child_names("corp")) == set()


async def test_after_a_rollback_the_index_holds_what_is_stored(server: FakeServer, client: KubeClient) -> None:
    put(server, "corp")
    put(server, "ai", "corp")
    before = server.revision
    put(server, "web", "corp")
    async with following(client) as store:
        assert set(store.child_names("corp")) == {"ai", "web"}
        server.restore(before)
        server.cut()
        await until(lambda: set(store.child_names("corp")) == {"ai"})


async def test_children_are_listed_by_a_selector(server: FakeServer, client: KubeClient) -> None:
    put(server, "ai", "corp")
    put(server, "web", "other")
    assert [child.name for child in await GroupStore(client).children("corp")] == ["ai"]
    assert len(server.requests) == 1


async def test_a_server_without_the_selector_lists_all_groups(server: FakeServer, client: KubeClient) -> None:
    put(server, "ai", "corp")
    put(server, "web", "other")
    server.refuse("GET", 400)
    assert [child.name for child in await GroupStore(client).children("corp")] == ["ai"]
    assert len(server.requests) == 2


async def test_any_other_refusal_is_raised(server: FakeServer, client: KubeClient) -> None:
    server.refuse("GET", 403)
    with pytest.raises(Forbidden):
        await GroupStore(client).children("corp")
