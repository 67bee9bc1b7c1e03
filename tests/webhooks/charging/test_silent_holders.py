"""Holders of allowances that are killed or frozen in a storm: never over, and nobody else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from bizrq.kube.client import KubeClient
from bizrq.quota.allowance import Line, is_line
from bizrq.quota.reservation import LIFETIME
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.groups import GroupStore
from bizrq.store.journals import JournalStore
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.language import NOW, create, name, res
from tests.support.objects import NAMESPACES
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api
from webhooks.charging.group_commit import Reserver
from webhooks.charging.notes import Notebook
from webhooks.charging.recall import Recaller

SYSTEM = "bizrq-system"
HARD = 60
#: What each of three processes holds ahead, and what asks each of them.
AHEAD, ASKED = 10, 40
#: Seconds for which a process is frozen: longer than its Lease, an answer and a write together.
FROZEN = 70.0


class Process:
    """A webhook process: what it answers by allowances and by the group."""

    def __init__(self, client: KubeClient, identity: str) -> None:
        clock = asyncio.get_running_loop().time
        self.store = GroupStore(client)
        journals = JournalStore(client, SYSTEM)
        now = lambda: NOW - LIFETIME  # noqa: E731 short
        self.notebook = Notebook(journals, self.store, identity=identity, catalog=CATALOG, now=now, clock=clock)
        self.reserver = Reserver(
            self.store,
            clock=clock,
            now=now,
            catalog=CATALOG,
            recaller=Recaller(self.store, journals, catalog=CATALOG),
            notebook=self.notebook,
        )
        self.identity = identity

    def storm(self, count: int = ASKED, of: str = "w") -> list[asyncio.Task[Verdict]]:
        """One create of one core after another, without waiting for answers."""
        until = asyncio.get_running_loop().time() + 8
        charges = [create(f"{self.identity}-{of}{number}", "cpu=1") for number in range(count)]
        return [asyncio.create_task(self.reserver.reserve("nlp", charge, until)) for charge in charges]


@asynccontextmanager
async def process(client: KubeClient, identity: str) -> AsyncIterator[Process]:
    made = Process(client, identity)
    journal = asyncio.create_task(made.notebook.run())

    async def is_there() -> bool:
        return bool(made.notebook.name)

    await eventually(is_there, what="the journal is stored")
    try:
        yield made
    finally:
        journal.cancel()
        await asyncio.gather(journal, return_exceptions=True)


@pytest.fixture
async def three(api: Api, through: KubeClient) -> AsyncIterator[list[Process]]:
    """Three processes, each with an allowance; what the first one sends goes through the proxy."""
    await api.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    await api.group("nlp", cpu=str(HARD))
    async with process(through, "a") as first, process(api.client, "b") as second, process(api.client, "c") as third:
        made = [first, second, third]
        group = await api.read("nlp")
        lines = [Line(each.notebook.name, group.resource_version, 1, res(f"cpu={AHEAD}")).entry for each in made]
        await api.count("nlp", *lines)
        for each in made:
            await each.store.read("nlp", 5)
        yield made


def granted(answers: list[Verdict]) -> int:
    return sum(isinstance(answer, Granted) for answer in answers)


def reasons(answers: list[Verdict]) -> set[Reason]:
    return {answer.reason for answer in answers if isinstance(answer, Denied)}


async def taken(api: Api) -> int:
    """The cores that entries hold, once no line is there any more."""
    entries = await api.entries("nlp")
    assert not any(map(is_line, entries))
    return sum(entry.amount[name("cpu")] for entry in entries) // res("cpu=1")[name("cpu")]


Freeze = Callable[[Proxy, asyncio.Event], None]


def before_its_write(proxy: Proxy, thaw: asyncio.Event) -> None:
    async def waits(_: str) -> web.Response | None:
        await thaw.wait()
        return None

    proxy.before.append(waits)


def after_its_write(proxy: Proxy, thaw: asyncio.Event) -> None:
    async def waits(_: str, __: int) -> bool:
        await thaw.wait()
        return False

    proxy.after.append(waits)


@pytest.mark.parametrize("freeze", [before_its_write, after_its_write])
async def test_a_holder_that_is_frozen_in_a_storm_is_not_waited_for_and_admits_nothing_more(
    api: Api, three: list[Process], proxy: Proxy, freeze: Freeze
) -> None:
    frozen, *others = three
    clock, thaw = asyncio.get_running_loop().time, asyncio.Event()
    freeze(proxy, thaw)
    late = frozen.storm(AHEAD)
    await asyncio.sleep(0.1)
    began = clock()
    answers = await asyncio.gather(*(task for each in others for task in each.storm()))
    assert clock() - began < 8
    assert reasons(answers) == {Reason.EXCEEDED}
    noted = await taken(api) - granted(answers)
    assert await taken(api) == HARD, "all that the frozen one has not noted is given out"
    assert noted == (AHEAD if freeze is after_its_write else 0)
    await asyncio.sleep(FROZEN)
    thaw.set()
    of_frozen = await asyncio.gather(*late)
    assert granted(of_frozen) <= noted
    again = await asyncio.gather(*frozen.storm(of="later"))
    assert reasons(again) == {Reason.EXCEEDED}
    assert granted(again) == 0
    assert await taken(api) == HARD


@pytest.mark.parametrize("is_stored", [False, True], ids=["before its write", "after its write"])
async def test_a_holder_that_is_killed_in_a_storm_leaves_its_room_to_others_at_once(
    api: Api, three: list[Process], proxy: Proxy, *, is_stored: bool
) -> None:
    killed, *others = three
    never = asyncio.Event()
    (after_its_write if is_stored else before_its_write)(proxy, never)
    lost = killed.storm(AHEAD)
    running = [task for each in others for task in each.storm()]
    await asyncio.sleep(0.1)
    for task in lost:
        task.cancel()
    answers = await asyncio.gather(*running)
    assert reasons(answers) == {Reason.EXCEEDED}
    assert await taken(api) == HARD
    assert HARD - granted(answers) == (AHEAD if is_stored else 0)
