"""What the API server and the way to it do wrong, met by the webhooks: an answer in time, and one promise at most."""

from __future__ import annotations

import asyncio
import time

import pytest

from bizrq.store.groups import GROUPS
from bizrq.units.quantity import NANO
from tests.support.cluster import eventually
from tests.support.faults import WATCHES, WRITES, Fault, refused, slow
from tests.support.objects import Object, deployment
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, message


@pytest.mark.parametrize("fault", WRITES.values(), ids=WRITES)
async def test_a_status_write_that_goes_wrong_is_made_again_and_charges_once(
    api: Api, hooks: Hooks, proxy: Proxy, fault: Fault
) -> None:
    """Five at once, of which four fit: with whatever writes they took, four are promised, once each."""
    await api.group("nlp", cpu="4")
    fault(proxy, "PUT", "/nlp/status")
    answers = await asyncio.gather(*(hooks.create(deployment(f"w{n}", "nlp", 1)) for n in range(5)))
    assert [answer["allowed"] for answer in answers].count(True) == 4
    [no] = [answer for answer in answers if not answer["allowed"]]
    assert "exceeded quota: nlp" in message(no)
    entries = await api.entries("nlp")
    assert len({entry.slot for entry in entries}) == len(entries) == 4
    assert sum(entry.amount["limits.cpu"] for entry in entries) == 4 * NANO


@pytest.mark.parametrize(
    "fault", [refused(429, 10**6, Retry_After="1"), refused(503, 10**6), slow(60, 10**6)], ids=["429", "503", "silence"]
)
async def test_a_write_that_never_succeeds_is_try_again_within_the_deadline_and_promises_nothing(
    api: Api, hooks: Hooks, proxy: Proxy, fault: Fault
) -> None:
    await api.group("nlp", cpu="4")
    fault(proxy, "PUT", "/nlp/status")
    began = time.monotonic()
    answer = await hooks.create(deployment("web", "nlp", 1), timeout="2s")
    assert time.monotonic() - began < 2
    assert "try again" in message(answer)
    assert answer["status"]["code"] == 429
    assert await api.entries("nlp") == []


@pytest.mark.parametrize(
    "fault",
    [refused(429, 2, Retry_After="0"), refused(500, 2), refused(503, 2), slow(0.5, 1)],
    ids=["429", "500", "503", "slow"],
)
async def test_a_fresh_read_that_goes_wrong_is_no_refusal(api: Api, hooks: Hooks, proxy: Proxy, fault: Fault) -> None:
    """The cache says full; the read that has to confirm it fails first, then shows that there is room."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    await eventually(lambda: _cached(hooks), 60, "the webhooks know nlp")
    proxy.freeze(GROUPS.path())
    await api.count("nlp", cpu="1")
    fault(proxy, "GET", GROUPS.path(name="nlp"))
    assert (await hooks.create(deployment("web", "nlp", 3)))["allowed"]


@pytest.mark.parametrize("last", WATCHES.values(), ids=WATCHES)
async def test_a_watch_that_breaks_is_followed_again(api: Api, hooks: Hooks, proxy: Proxy, last: bytes) -> None:
    """A group that is created while the watch is broken becomes known; a deleted one is dropped."""
    await api.group("nlp", cpu="4")
    await eventually(lambda: _cached(hooks), 60, "the webhooks know nlp")
    assert await proxy.spoil(GROUPS.path(), last) >= 1
    await api.group("vision", cpu="4")
    await api.client.delete(GROUPS, "nlp")
    await eventually(lambda: _cached(hooks, "vision"), 60, "the webhooks know vision")
    assert (await hooks.create(deployment("web", "vision", 4)))["allowed"]
    assert "quota nlp does not exist" in message(await hooks.create(deployment("web", "nlp", 1)))


async def _cached(hooks: Hooks, name: str = "nlp") -> bool:
    return hooks.webhooks.store.cached(name) is not None


async def test_a_large_review_behind_two_that_take_long_is_refused_in_time(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    """A small one passes them. The two are answered once the API server is."""
    groups = ("nlp", "vision")
    for group in groups:
        await api.group(group, cpu="4")
    is_answering, held = asyncio.Event(), list[str]()

    async def hold(line: str) -> None:
        if line.startswith("PUT") and line.endswith("/status") and not is_answering.is_set():
            held.append(line)
            await is_answering.wait()

    async def are_held() -> bool:
        return len(held) == len(groups)

    proxy.before.append(hold)
    long = [asyncio.create_task(hooks.create(large(f"w-{group}", group))) for group in groups]
    await eventually(are_held, 60, "two status writes are under way")
    began = time.monotonic()
    refused, small = await asyncio.gather(
        hooks.create(large("third", "nlp"), timeout="3s"), hooks.create(deployment("small", None, 1), timeout="3s")
    )
    assert time.monotonic() - began < 3
    assert (refused["allowed"], refused["status"]["code"], small["allowed"]) == (False, 429, True)
    assert "too many large reviews are under way; try again" in message(refused)
    is_answering.set()
    assert [answer["allowed"] for answer in await asyncio.gather(*long)] == [True, True]


def large(name: str, group: str) -> Object:
    made = deployment(name, group, 1)
    made["metadata"]["annotations"] = {"note": "x" * 70_000}
    return made
