"""The reliability experiments in seconds each: the laws hold at every revision that was recorded, nothing leaks.

`make reliability` runs them in full; the numbers in the names are those of its table.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from bizrq.api import group as wire
from bizrq.kube.client import ApiError, KubeClient, NotFound
from bizrq.kube.groups import GROUPS
from tests.cluster import eventually
from tests.contract.conftest import Hook, rule, webhook
from tests.controller.conftest import Monotonic
from tests.objects import DEPLOYMENTS, Object, deployment, group
from tests.oracle import Recorder, settled
from tests.reliability.conftest import expire
from tests.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def answers(requests: Sequence[Callable[[], Awaitable[Any]]], concurrency: int) -> list[ApiError | None]:
    """The refusal of each request, None for a yes; so many at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(request: Callable[[], Awaitable[Any]]) -> ApiError | None:
        async with gate:
            try:
                await request()
            except ApiError as error:
                return error
        return None

    return await asyncio.gather(*map(one, requests))


def creates(
    client: KubeClient, of: str, namespace: str, count: int, **more: Any
) -> list[Callable[[], Awaitable[Object]]]:
    """Creates of that many Deployments without replicas: they cost their count."""

    def make(number: int) -> Callable[[], Awaitable[Object]]:
        obj = deployment(f"w{number}", of, 0, namespace=namespace)
        return lambda: client.create(DEPLOYMENTS, obj)

    return [make(number) for number in range(count)]


async def counted(client: KubeClient, name: str) -> str:
    [found] = (await settled(client, [name], 30)).values()
    return str((found.status.used or {}).get("count/deployments.apps"))


async def test_r1_of_300_creates_at_once_exactly_the_100_that_fit_are_admitted(
    parts: Parts, client: KubeClient, namespace: str, unique: str
) -> None:
    """Three replicas; no false refusal, no 409 reaches a client, few writes for each admission."""
    await client.create(GROUPS, group(unique, count="100"))
    await settled(client, [unique])
    before = sum(webhooks.reserver.writes for webhooks, _ in parts.running)
    async with Recorder(client, unique) as recorder:
        refused = await answers(creates(client, unique, namespace, 300), 50)
        assert sum(error is None for error in refused) == 100
        assert {(e.status, "exceeded quota" in e.message) for e in refused if e} == {(403, True)}
        writes = sum(webhooks.reserver.writes for webhooks, _ in parts.running) - before
        assert writes <= 40
        assert await counted(client, unique) == "100"
        assert await recorder.laws() >= 100


async def test_r2_what_another_webhook_refuses_leaks_nothing(
    parts: Parts, client: KubeClient, chaos: Hook, clock: Monotonic, namespace: str, unique: str
) -> None:
    """Half of the creates are refused beside us; their promises expire. Creates of one name charge one slot more."""
    await client.create(GROUPS, group(unique, count="200"))
    await settled(client, [unique])
    rng = random.Random(2)

    async def half(_: Object) -> Object:
        await asyncio.sleep(rng.random() * 0.02)
        return {"allowed": rng.random() < 0.5, "status": {"code": 403, "message": "chaos"}}

    chaos.answer = half
    await chaos.register(webhook("chaos", rule("apps", "deployments", "CREATE")))
    async with Recorder(client, unique) as recorder:
        refused = await answers(creates(client, unique, namespace, 80), 20)
        stored = sum(error is None for error in refused)
        assert {e.message.split(": ")[-1] for e in refused if e} == {"chaos"}
        again = await answers(creates(client, unique, namespace, 1) * 50, 20)
        assert sum(error is None for error in again) <= 1
        stored += sum(error is None for error in again)
        await _seen(client, unique, stored)
        account = wire.account_of(wire.from_dict(await client.get(GROUPS, unique)))
        # At most the 80 slots that were ever asked for, and until the next recount one that is stored besides.
        assert account.taken("count/deployments.apps") <= 81 * 10**9
        await expire(client, clock, unique)
        assert await counted(client, unique) == str(stored)
        await recorder.laws()


async def test_r6_a_scale_down_that_is_refused_elsewhere_frees_nothing(
    parts: Parts, client: KubeClient, chaos: Hook, clock: Monotonic, namespace: str, unique: str
) -> None:
    await client.create(GROUPS, group(unique, cpu="6"))
    await client.create(DEPLOYMENTS, deployment("big", unique, 4, namespace=namespace))
    await settled(client, [unique])

    async def no_scaling_down(review: Object) -> Object:
        await asyncio.sleep(0.01)
        return {"allowed": review["name"] != "big", "status": {"code": 403, "message": "chaos"}}

    chaos.answer = no_scaling_down
    await chaos.register(webhook("chaos", rule("apps", "deployments/scale", "UPDATE")))

    async def scale(replicas: int) -> None:
        await client.patch(
            DEPLOYMENTS, "big", {"spec": {"replicas": replicas}}, namespace=namespace, subresource="scale"
        )

    def one(number: int) -> Callable[[], Awaitable[Object]]:
        return lambda: client.create(DEPLOYMENTS, deployment(f"s{number}", unique, 1, namespace=namespace))

    async with Recorder(client, unique) as recorder:
        mixed = [action for n in range(10) for action in (lambda n=n: scale(n % 4), one(n))]
        refused = await answers(mixed, 10)
        assert sum(error is None for error in refused[1::2]) == 2
        assert all(error is not None for error in refused[::2])
        await expire(client, clock, unique)
        found = (await settled(client, [unique], 30))[unique]
        assert found.status.used == {"limits.cpu": "6"}
        await recorder.laws()


async def test_r7_dry_runs_change_nothing(parts: Parts, client: KubeClient, namespace: str, unique: str) -> None:
    await client.create(GROUPS, group(unique, count="10"))
    before = (await settled(client, [unique]))[unique].status

    def dry(number: int) -> Callable[[], Awaitable[Object]]:
        return lambda: client.create(
            DEPLOYMENTS, deployment(f"w{number}", unique, 0, namespace=namespace), dry_run=True
        )

    assert not any(await answers([dry(n) for n in range(100)], 25))
    after = wire.from_dict(await client.get(GROUPS, unique)).status
    assert (after.used, after.reservations) == (before.used, [])


async def test_r8_children_made_changed_and_deleted_at_once_keep_the_laws(
    parts: Parts, client: KubeClient, clock: Monotonic, unique: str
) -> None:
    await client.create(GROUPS, group(unique, cpu="100"))
    await settled(client, [unique])
    rng = random.Random(8)
    names = [f"{unique}-{n}" for n in range(8)]

    def act(number: int) -> Callable[[], Awaitable[Any]]:
        name, size = names[number % len(names)], str(rng.randrange(1, 40))
        match rng.randrange(3):
            case 0:
                return lambda: client.create(GROUPS, group(name, unique, cpu=size))
            case 1:
                return lambda: client.patch(GROUPS, name, {"spec": {"hard": {"limits.cpu": size}}})
        return lambda: client.delete(GROUPS, name)

    async with Recorder(client, unique) as recorder:
        refused = await answers([act(n) for n in range(80)], 16)
        assert {e.status for e in refused if e} <= {403, 404, 409, 429}
        await expire(client, clock, unique)
        await settled(client, [unique], 30)
        await recorder.laws()


async def test_r9_a_parent_deleted_while_a_child_is_created_leaves_no_orphan(
    parts: Parts, client: KubeClient, unique: str
) -> None:
    """One of the two is refused; both being refused is allowed, seldom."""
    rounds = 12
    async with Recorder(client, unique) as recorder:

        async def round_(number: int) -> int:
            parent, child = f"{unique}-p{number}", f"{unique}-c{number}"
            await client.create(GROUPS, group(parent, cpu="10"))
            await settled(client, [parent])
            deleted, created = await answers(
                [lambda: client.delete(GROUPS, parent), lambda: client.create(GROUPS, group(child, parent, cpu="1"))], 2
            )
            assert deleted is not None or created is not None, number
            return deleted is not None and created is not None

        both = sum([await round_(number) for number in range(rounds)])
        assert both <= rounds // 2
        await recorder.laws()
    there = {obj["metadata"]["name"]: obj for obj in (await client.list(GROUPS))[0]}
    orphans = [n for n, obj in there.items() if obj["spec"].get("parentBizGroup", "") not in ("", *there)]
    assert orphans == []


async def test_r12_hard_lowered_while_creates_land_never_leaves_the_parent_over(
    parts: Parts, client: KubeClient, clock: Monotonic, namespace: str, unique: str
) -> None:
    """The child may end over its lowered `hard`, and is told so; it is never over what the parent holds for it."""
    parent, child = f"{unique}-p", f"{unique}-c"
    await client.create(GROUPS, group(parent, count="40"))
    await client.create(GROUPS, group(child, parent, count="30"))
    await settled(client, [parent, child])

    async def lower(number: int) -> None:
        hard = {"count/deployments.apps": str(30 - number)}
        await client.patch(GROUPS, child, {"spec": {"hard": hard}})

    requests = creates(client, child, namespace, 40)
    lowered: list[Callable[[], Awaitable[Any]]] = [lambda n=n: lower(n) for n in range(5, 25, 5)]
    mixed = [*requests[:10], lowered[0], *requests[10:20], lowered[1], *requests[20:30], *lowered[2:], *requests[30:]]
    async with Recorder(client, unique) as recorder:
        await answers(mixed, 12)
        await expire(client, clock, parent, child)
        found = await settled(client, [parent, child], 30)
        await recorder.laws(lowered={child})
    used = int(str((found[parent].status.used or {})["count/deployments.apps"]))
    assert used <= 40
    over = {c.type: c.status for c in found[child].status.conditions}["OverQuota"]
    assert (over == "True") is (int(str((found[child].status.used or {})["count/deployments.apps"])) > 10)


async def test_r24_forty_patches_of_one_deployment_at_once_charge_the_larger_once(
    parts: Parts, client: KubeClient, clock: Monotonic, namespace: str, unique: str
) -> None:
    """Many reviews, few writes: what is promised is the most that any of them asked for, not their sum."""
    await client.create(GROUPS, group(unique, cpu="5"))
    await client.create(DEPLOYMENTS, deployment("web", unique, 2, namespace=namespace, cpu="100m"))
    await settled(client, [unique])
    numbers = itertools.cycle(range(2, 8))

    def patch(replicas: int) -> Callable[[], Awaitable[Object]]:
        body = {"spec": {"replicas": replicas, "template": {"metadata": {"annotations": {"n": str(replicas)}}}}}
        return lambda: client.patch(DEPLOYMENTS, "web", body, namespace=namespace)

    async with Recorder(client, unique) as recorder:
        refused = await answers([patch(next(numbers)) for _ in range(40)], 40)
        assert {e.status for e in refused if e} <= {409}
        for version, _, kind, obj in recorder.events:
            if kind is GROUPS and obj["metadata"]["name"] == unique:
                entries = wire.reservations_of(wire.from_dict(obj))
                assert [entry.amount["limits.cpu"] <= 700_000_000 for entry in entries] in ([], [True]), version
        await expire(client, clock, unique)
        found = (await settled(client, [unique], 30))[unique]
        web = await client.get(DEPLOYMENTS, "web", namespace)
        assert wire.amounts(found, found.status.used)["limits.cpu"] == web["spec"]["replicas"] * 100_000_000
        await recorder.laws()


async def _seen(client: KubeClient, name: str, stored: int) -> None:
    """Wait until the controller has counted that many."""

    async def enough() -> bool:
        try:
            group = wire.from_dict(await client.get(GROUPS, name))
        except NotFound:
            return False
        return wire.amounts(group, group.status.used).get("count/deployments.apps") == stored * 10**9

    await eventually(enough, 20, f"{stored} are counted")
