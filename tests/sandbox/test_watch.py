"""Watches: order, selectors, bookmarks, expiry."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from sandbox.server import Sandbox
from tests.support.sandbox_client import CONFIG_MAPS, Client, bearer, config_map, eventually


def told(events: list[dict]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


async def test_a_watch_from_a_list_tells_what_came_after_it(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    await api.create(CONFIG_MAPS, config_map("b"))
    await api.merge(CONFIG_MAPS + "/a", {"data": {"a": "2"}})
    last = await api.ok("DELETE", CONFIG_MAPS + "/b")
    events = await api.watch(CONFIG_MAPS, 3, resourceVersion=version)
    assert told(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)
    assert last["status"] == "Success"


async def test_a_watch_without_a_version_starts_with_what_is_there(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    [event] = await api.watch(CONFIG_MAPS, 1)
    assert told([event]) == [("ADDED", "a")]
    assert event["object"]["kind"] == "ConfigMap"


async def test_a_watch_list_ends_its_start_with_a_bookmark(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    events = await api.watch(
        CONFIG_MAPS,
        2,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    code, status = await api.send("GET", CONFIG_MAPS, watch="true", sendInitialEvents="true")
    assert (code, status["reason"]) == (422, "Invalid")


async def test_bookmarks_show_how_far_a_quiet_watch_is(api: Client):
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    await api.create(
        "/api/v1/namespaces/default/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    )
    [event] = await api.watch(CONFIG_MAPS, 1, resourceVersion=version, allowWatchBookmarks="true")
    assert event["type"] == "BOOKMARK"
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(version)


async def test_a_selected_watch_adds_what_comes_in_and_deletes_what_leaves(api: Client):
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.merge(CONFIG_MAPS + "/a", {"metadata": {"labels": {"in": "yes"}}})
    await api.merge(CONFIG_MAPS + "/a", {"data": {"a": "2"}})
    await api.merge(CONFIG_MAPS + "/a", {"metadata": {"labels": None}})
    events = await api.watch(CONFIG_MAPS, 3, resourceVersion=version, labelSelector="in=yes")
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_from_before_the_history_is_gone(box: Sandbox, api: Client):
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    await api.create(CONFIG_MAPS, config_map("a"))
    box.compact()
    [event] = await api.watch(CONFIG_MAPS, 1, resourceVersion=version)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


async def test_a_watch_ends_at_its_timeout(api: Client):
    async with asyncio.timeout(5):
        assert await api.watch(CONFIG_MAPS, 1, timeoutSeconds="1") == []


async def test_broken_watches_end_without_a_word(box: Sandbox, api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    async with api.session.get(CONFIG_MAPS, params={"watch": "true"}) as response:
        assert json.loads(await response.content.readline())["type"] == "ADDED"
        box.break_watches()
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


async def test_a_table_watch_names_its_columns_once(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.create(CONFIG_MAPS, config_map("b"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    async with api.session.get(CONFIG_MAPS, params={"watch": "1"}, headers={"Accept": accept}) as response:
        events = [json.loads(await response.content.readline()) for _ in range(2)]
    assert [bool(event["object"]["columnDefinitions"]) for event in events] == [True, False]
    assert events[1]["object"]["rows"][0]["cells"][0] == "b"


async def test_a_watcher_that_left_is_forgotten(box: Sandbox, api: Client):
    async with aiohttp.ClientSession(box.url, headers=bearer(box)) as leaving:
        response = await leaving.get(CONFIG_MAPS, params={"watch": "true", "resourceVersion": "1"})
        assert box.open_watches == 1
        response.close()
    await eventually(lambda: _forgotten(box))


async def _forgotten(box: Sandbox) -> bool:
    return box.open_watches == 0
