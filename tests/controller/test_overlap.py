"""The stored list is kept as the controller wants it, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import crds
from bizrq.api import overlap
from bizrq.kube.client import KubeClient, NotFound
from bizrq.units.times import format_timestamp
from controller.overlap import OVERLAPS, OverlapList
from sandbox.server import Sandbox
from tests.support.cluster import eventually, has_kinds
from tests.support.proxy import Proxy

#: Seconds between two looks at the list.
CHECK = 4.0
LISTED = {"uid": "exceeded quota: nlp"}


def now() -> int:
    """The loop's own milliseconds: a test does not wait for them."""
    return round(1000 * asyncio.get_running_loop().time())


@asynccontextmanager
async def kept(client: KubeClient) -> AsyncIterator[OverlapList]:
    found = OverlapList(client, now, check=CHECK)
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def proxied(folder: Path) -> AsyncIterator[tuple[Proxy, KubeClient]]:
    """A cluster without our kinds, behind a proxy that counts requests."""
    async with (
        Sandbox(controllers=False) as box,
        Proxy(box.write_kubeconfig(folder / "direct")) as proxy,
        KubeClient.from_kubeconfig(proxy.write_kubeconfig(folder / "proxied")) as client,
    ):
        yield proxy, client


async def is_stored(client: KubeClient) -> bool:
    with suppress(NotFound):
        return (await client.get(OVERLAPS, overlap.NAME))["listed"] == LISTED
    return False


async def test_without_the_crd_it_is_tried_again_ever_more_rarely_until_it_is_there(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, client), kept(client) as found:
        found.set("nlp", LISTED)
        await asyncio.sleep(10 * CHECK)
        tries = proxy.sent("POST", OVERLAPS.plural)
        # After 1, 2 and 4 seconds, and then every 4.
        assert 8 <= tries <= 13
        await has_kinds(client, crds.load())
        await eventually(lambda: is_stored(client), 2 * CHECK, "the list is stored")


async def test_a_list_that_somebody_deletes_or_changes_is_stored_again(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (proxy, client):
        await has_kinds(client, crds.load())
        async with kept(client) as found:
            found.set("nlp", LISTED)
            await eventually(lambda: is_stored(client), 5, "the list is stored")
            await client.delete(OVERLAPS, overlap.NAME)
            await eventually(lambda: is_stored(client), 2 * CHECK, "the list is stored again")
            await client.patch(OVERLAPS, overlap.NAME, {"listed": {"uid": None, "stranger": "no"}})
            await eventually(lambda: is_stored(client), 2 * CHECK, "the list is what it was")
            written = proxy.sent("POST", OVERLAPS.plural), proxy.sent("PATCH", overlap.NAME)
            await asyncio.sleep(5 * CHECK)
            # What is as it should be is not written.
            assert (proxy.sent("POST", OVERLAPS.plural), proxy.sent("PATCH", overlap.NAME)) == written


async def test_a_change_is_stored_at_once(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())
        async with kept(client) as found:
            await asyncio.sleep(CHECK / 2)
            found.set("nlp", LISTED)
            await eventually(lambda: is_stored(client), 1, "the list is stored")
            found.forget("nlp")

            async def is_empty() -> bool:
                return (await client.get(OVERLAPS, overlap.NAME)).get("listed") == {}

            await eventually(is_empty, 2, "nothing is listed")


async def test_a_key_of_two_groups_ends_with_the_later_one_if_both_end(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())

        async def ends() -> dict[str, str]:
            with suppress(NotFound):
                return (await client.get(OVERLAPS, overlap.NAME)).get("ends") or {}
            return {}

        async def has(expected: dict[str, str]) -> None:
            async def it_has() -> bool:
                return await is_stored(client) and await ends() == expected

            await eventually(it_has, 3, f"the ends are {expected}")

        early, late = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"
        async with kept(client) as found:
            found.set("nlp", LISTED, {"uid": late})
            await has({"uid": late})
            found.set("vision", LISTED, {"uid": early})
            await asyncio.sleep(1.5)
            await has({"uid": late})
            found.set("vision", LISTED)
            await has({})
            found.forget("vision")
            found.set("nlp", LISTED, {"uid": early})
            await has({"uid": early})


async def test_a_group_that_goes_while_the_list_is_read_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())
        get = client.get

        async def get_and_forget(*args: Any, **kwargs: Any) -> Any:
            stored = await get(*args, **kwargs)
            found.forget("vision")
            return stored

        async with kept(client) as found:
            found.set("nlp", LISTED)
            await eventually(lambda: is_stored(client), 5, "the list is stored")
            monkeypatch.setattr(client, "get", get_and_forget)
            found.set("vision", {"other": "exceeded quota: vision"}, {"other": "2026-01-01T00:00:00.000Z"})
            await asyncio.sleep(2)
            monkeypatch.undo()
            found.set("nlp", {**LISTED, "more": "exceeded quota: nlp"})
            await eventually(lambda: has_more(client), 3, "it is written on")


async def has_more(client: KubeClient) -> bool:
    found, _ = await listed(client)
    return found.keys() == {*LISTED, "more"}


async def listed(client: KubeClient) -> tuple[dict[str, str], dict[str, str]]:
    stored = await client.get(OVERLAPS, overlap.NAME)
    return stored.get("listed") or {}, stored.get("ends") or {}


async def is_lowered(client: KubeClient, uid: str) -> bool:
    with suppress(NotFound):
        return (await listed(client))[0].get(uid) == overlap.LOWERED
    return False


async def test_what_asks_for_fewer_is_listed_until_its_controller_has_seen_that(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())

        async with kept(client) as found:
            found.reject_late("lowered", now() + 600_000, overlap.LOWERED, "nlp")
            await eventually(lambda: is_lowered(client, "lowered"), 5, "it is listed")
            found.reject_late("lowered", 0, overlap.LOWERED, "")

            async def is_left_out() -> bool:
                return not await is_lowered(client, "lowered")

            await eventually(is_left_out, 5, "it is listed no longer")


async def test_what_is_gone_is_listed_until_its_end_by_whoever_leads(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())
        until = {"soon": now() + 3_000, "later": now() + 600_000}

        async def are_listed(*uids: str) -> bool:
            wanted = {uid: format_timestamp(until[uid]) for uid in uids}
            with suppress(NotFound):
                return await listed(client) == (LISTED | dict.fromkeys(uids, overlap.GONE), wanted)
            return False

        async with kept(client) as found:
            found.set("nlp", LISTED)
            found.reject_late("soon", until["soon"], overlap.GONE, "nlp")
            found.reject_late("later", until["later"], overlap.GONE, "nlp")
            await eventually(lambda: are_listed("soon", "later"), 5, "both are listed")
            found.reject_late("lowered", until["later"], overlap.LOWERED, "nlp")
            await eventually(lambda: is_lowered(client, "lowered"), 5, "what asks for fewer is listed")
        async with kept(client) as next_leader:
            next_leader.set("nlp", LISTED)
            await eventually(lambda: are_listed("later"), 3 * CHECK, "the one that has ended is not")


class Told:
    """The groups that were told."""

    def __init__(self) -> None:
        self.groups: set[str] = set()

    def __call__(self, group: str) -> None:
        self.groups.add(group)

    async def are(self, *groups: str, seconds: float = 3) -> None:
        async def they_are() -> bool:
            return self.groups == {*groups}

        await eventually(they_are, seconds, f"{groups} are told")


async def test_pods_of_what_is_gone_may_pass_until_it_is_listed(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())
        told = Told()
        async with kept(client) as found:
            found.subscribe(told)
            found.reject_late("gone", now() + 600_000, overlap.GONE, "nlp")
            found.reject_late("lowered", now() + 600_000, overlap.LOWERED, "vision")
            assert found.may_pass(["other", "gone"])
            assert not found.may_pass(["other", "lowered"]), "its demand counts on"
            await told.are("nlp")
            assert not found.may_pass(["gone"])


async def test_no_group_takes_the_last_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 places the first group gets 4 and the second 2. Who has one keeps it; who has none waits for the end."""
    monkeypatch.setattr("controller.overlap._MOST", {overlap.LOWERED: 2, overlap.GONE: 8})
    async with proxied(tmp_path) as (_, client):
        await has_kinds(client, crds.load())
        told = Told()
        async with kept(client) as found:
            found.subscribe(told)
            until = now() + 20_000

            def waiting(name: str) -> int:
                return sum(found.may_pass([f"{name}{number}"]) for number in range(9))

            for name, groups in (("a", "a"), ("b", "ab")):
                for number in range(9):
                    found.reject_late(f"{name}{number}", until, overlap.GONE, name)
                assert waiting(name) == 9
                await told.are(*groups)
            assert (waiting("a"), waiting("b")) == (5, 7)
            assert [f"a{number}" for number in range(9) if not found.may_pass([f"a{number}"])] == [
                "a0",
                "a1",
                "a2",
                "a3",
            ]
            found.reject_late("lowered", until, overlap.LOWERED, "a")
            await eventually(lambda: is_lowered(client, "lowered"), 3, "what asks for fewer has places of its own")
            told.groups.clear()
            await told.are("a", "b", seconds=60)
            assert (waiting("a"), waiting("b")) == (0, 0)


async def test_nothing_waits_for_a_list_that_cannot_be_stored(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (_, client), kept(client) as found:
        told = Told()
        found.subscribe(told)
        found.reject_late("gone", now() + 600_000, overlap.GONE, "nlp")
        assert found.may_pass(["gone"])
        await told.are("nlp")
        assert not found.may_pass(["gone"])
