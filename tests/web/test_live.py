"""What an open page hears."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from bizrq.store.groups import GROUPS
from tests.support import objects
from tests.support.proxy import Proxy
from tests.web.conftest import Browser, Pages, World, serving
from web.live import PACE, SLOW, Turns
from web.reading.visitors import PROOF


class Stream:
    """The events of one stream, as a browser gets them."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> tuple[str, str]:
        """Return the next event and its data; ("", "") at the end."""
        name = data = ""
        async for raw in self.response.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data:"):
                data = line.removeprefix("data:").strip()
            elif not line and name:
                return name, data
        return "", ""


@asynccontextmanager
async def listening(browser: Browser, path: str) -> AsyncIterator[Stream]:
    """Open the stream that a page names."""
    page = (await browser.get(path)).text
    address = page.split('sse-connect="')[1].split('"')[0].replace("&amp;", "&")
    async with browser.session.get(browser.address + address) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        yield Stream(response)


async def test_a_page_hears_that_its_group_changed_and_of_no_other(world: World, pages: Pages):
    await world.group("nlp", cpu=10)
    await world.group("vision", cpu=10)
    browser = await pages.signed_in(world.box.token)
    async with listening(browser, "/groups/nlp") as one, listening(browser, "/tree") as all_of_them:
        await world.count("vision", cpu=1)
        assert await all_of_them.event() == ("changed", "")
        await world.count("nlp", cpu=2)
        assert await one.event() == ("changed", "")
        assert "2 of 10" in (await browser.get("/tree")).words


async def test_a_page_hears_of_a_new_child_of_its_group_and_of_its_parent(world: World, pages: Pages):
    for name, parent in (("corp", ""), ("ai", "corp"), ("nlp", "ai"), ("chat", "nlp")):
        await world.group(name, parent, cpu=10)
    browser = await pages.signed_in(world.box.token)
    await browser.reads("/tree", "chat")
    lena = await pages.signed_in(await world.user("lena", "get", "watch", names=["ai", "nlp"]))
    async with listening(browser, "/groups/ai") as one, listening(lena, "/groups/ai") as of_lena:
        await world.admin.patch(GROUPS, "chat", {"spec": {"owner": "Ada"}})
        await world.admin.create(GROUPS, objects.group("vision", "ai", cpu=1))
        assert await one.event() == ("changed", "")
        await browser.reads("/groups/ai", "vision")
        async with listening(browser, "/groups/vision") as sibling:
            await world.admin.create(GROUPS, objects.group("speech", "ai", cpu=1))
            assert await one.event() == ("changed", "")
            assert await sibling.event() == ("changed", "")
            await world.admin.delete(GROUPS, "speech")
            assert await one.event() == ("changed", "")
            assert await sibling.event() == ("changed", "")
        # A child that they may read is heard by whoever follows groups by name, too.
        await world.admin.patch(GROUPS, "nlp", {"spec": {"owner": "Ada"}})
        assert await of_lena.event() == ("changed", "")


async def test_pages_of_hours_hear_of_the_groups_below_and_not_too_often(world: World, pages: Pages):
    for name, parent in (("ai", ""), ("nlp", "ai"), ("vision", "")):
        await world.group(name, parent, hours=100)
    browser = await pages.signed_in(world.box.token)
    loop = asyncio.get_running_loop()
    for view in ("", "?view=burn-down", "?view=statements"):
        async with listening(browser, f"/hours/ai{view}") as stream, listening(browser, f"/hours{view}") as every:
            await world.count("vision", hours=1)
            assert await every.event() == ("changed", "")
            await world.count("vision", hours=0)
            await world.count("nlp", hours=2)
            assert await stream.event() == ("changed", "")
            began = loop.time()
            await world.count("nlp", hours=3)
            assert await stream.event() == ("changed", "")
            assert await every.event() == ("changed", "")
            assert loop.time() - began >= SLOW * 0.9
            await world.admin.create(GROUPS, objects.group(f"new{len(view)}", "nlp", hours=1))
            assert await stream.event() == ("changed", "")
    assert "sse-connect" not in (await browser.get("/hours/ai?view=audit")).text
    assert "sse-connect" not in (await browser.get("/hours/ai?period=soon")).text


async def test_a_change_between_the_page_and_its_stream_is_not_lost(world: World, pages: Pages):
    await world.group("nlp", cpu=10)
    browser = await pages.signed_in(world.box.token)
    page = (await browser.get("/groups/nlp")).text
    address = page.split('sse-connect="')[1].split('"')[0].replace("&amp;", "&")
    await world.count("nlp", cpu=3)
    await browser.reads("/groups/nlp", "10 3 3")
    async with browser.session.get(browser.address + address) as response:
        assert await Stream(response).event() == ("changed", "")


async def test_a_busy_group_is_said_at_most_once_a_second(world: World, pages: Pages):
    await world.group("nlp", cpu=1000)
    browser = await pages.signed_in(world.box.token)
    loop = asyncio.get_running_loop()
    async with listening(browser, "/groups/nlp") as stream:

        async def change() -> None:
            for number in itertools.count():
                await world.count("nlp", cpu=number)
                await asyncio.sleep(0.05)

        changing = asyncio.create_task(change())
        times: list[float] = []
        for _ in range(3):
            assert await stream.event() == ("changed", "")
            times.append(loop.time())
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    assert all(later - earlier >= PACE * 0.9 for earlier, later in itertools.pairwise(times))


def test_many_pages_hear_at_once_after_a_calm_and_then_at_a_steady_rate():
    turns = Turns(at_once=3, a_second=2.0)
    assert [turns.take(100.0) for _ in range(6)] == [100.0, 100.0, 100.0, 100.0, 100.5, 101.0]
    assert turns.take(101.2) == 101.5
    assert [turns.take(200.0) for _ in range(5)] == [200.0, 200.0, 200.0, 200.0, 200.5]


async def test_a_page_waits_for_its_turn(world: World, pages: Pages, monkeypatch):
    await world.group("nlp", cpu=10)
    browser = await pages.signed_in(world.box.token)
    loop = asyncio.get_running_loop()
    taken: list[float] = []

    def later(_: Turns, now: float) -> float:
        taken.append(now)
        return now + 0.7

    monkeypatch.setattr(Turns, "take", later)
    async with listening(browser, "/groups/nlp") as stream:
        for number in range(1, 3):
            await world.count("nlp", cpu=number)
            assert await stream.event() == ("changed", "")
            assert len(taken) == number
            assert loop.time() >= taken[-1] + 0.7


async def test_a_lead_hears_of_their_group(world: World, pages: Pages):
    await world.group("nlp", cpu=10)
    browser = await pages.signed_in(await world.user("lena", "get", "watch", names=["nlp"]))
    async with listening(browser, "/") as stream:
        await world.count("nlp", cpu=2)
        assert await stream.event() == ("changed", "")


async def test_a_stream_ends_within_a_minute_of_the_end_of_its_token_and_says_so(world: World, pages: Pages):
    token = await world.user("ada", "get", "list", "watch")
    browser = await pages.signed_in(token)
    loop = asyncio.get_running_loop()
    async with listening(browser, "/") as stream:
        world.box.remove_token(token)
        began = loop.time()
        name, data = await stream.event()
        assert name == "notice"
        assert "The API server no longer accepts your credentials" in data
        assert "Sign in again" in data
        assert (await stream.event())[0] == "ended"
        assert await stream.event() == ("", "")
        assert loop.time() - began <= 60
    assert PROOF < 60
    assert (await browser.get("/live?since=x&ask=1")).status == 401


async def test_a_stream_ends_when_its_user_signs_out(world: World, pages: Pages):
    browser = await pages.signed_in(world.box.token)
    async with listening(browser, "/") as stream:
        await browser.post("/sign-out", {})
        assert (await stream.event())[0] == "notice"
        assert (await stream.event())[0] == "ended"


async def test_while_the_api_server_is_away_pages_say_since_when_and_recover_by_themselves(world: World, tmp_path):
    await world.group("nlp", cpu=10)
    async with Proxy(tmp_path / "admin") as proxy, serving(world, server=proxy.url) as pages:
        browser = await pages.signed_in(world.box.token)
        async with listening(browser, "/") as stream:
            await proxy.hang_up()
            while (event := await stream.event())[0] != "notice":
                assert event[0] == "changed"
            assert "Not current since" in event[1]
            page = await browser.get("/")
            assert page.status == 200
            assert "Not current since" in page.words
            assert "nlp" in page.words
            await proxy.listen()
            await world.admin.create(GROUPS, objects.group("vision", cpu=1))
            said = [await stream.event(), await stream.event()]
            assert ("notice", "") in said
            assert ("changed", "") in said
        assert "Not current" not in (await browser.get("/")).words


async def test_one_user_cannot_take_the_streams_of_all_others(
    world: World, pages: Pages, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("web.live.OF_ONE", 2)
    nina = [await pages.signed_in(await world.user("nina")) for _ in range(2)]
    async with listening(nina[0], "/"), listening(nina[1], "/"):
        for browser in nina:
            answer = await browser.get("/live")
            assert (answer.status, "You have 2 pages open" in answer.words) == (429, True)
        async with listening(await pages.signed_in(world.box.token), "/"):
            pass
