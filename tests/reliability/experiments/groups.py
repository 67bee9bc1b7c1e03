"""R8, R9 and R12: groups that come, go and change while they are charged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bizrq.api import group as wire
from bizrq.kube.client import Conflict
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import NANO
from tests.reliability.stage import COUNT, Outcome, Stage, answers, creates, told
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.objects import group
from tests.support.oracle import settled


async def r8(stage: Stage, *, requests: int, children: int, concurrency: int) -> Outcome:
    """Children are made, changed and deleted at once; together they want somewhat more than there is."""
    rng = stage.random("R8")
    name = await stage.group(stage.name(), cpu=str(5 * children))
    stored: set[str] = set()

    def act(number: int) -> Callable[[], Awaitable[Any]]:
        child, size, what = f"{name}-{number % children}", str(rng.randrange(1, 16)), rng.random()

        async def one() -> None:
            """What may go through as things stand, though others may be at the same child."""
            if child not in stored:
                await stage.people.create(GROUPS, group(child, name, cpu=size))
                stored.add(child)
            elif what < 0.7:
                await stage.people.patch(GROUPS, child, {"spec": {"hard": {"limits.cpu": size}}})
            else:
                await stage.people.delete(GROUPS, child)
                stored.discard(child)

        return one

    async with stage.recorder(name) as recorder:
        refused = await answers([act(n) for n in range(requests)], concurrency)
        # 404: what is not there. 409: what is there already, by us or the API server, or its own conflict. 504 is its
        # own, too.
        assert {e.status for e in refused if e} <= {403, 404, 409, 429, 504}, told(refused)
        ours = [e for e in refused if isinstance(e, Conflict) and "denied the request" in e.message]
        assert not ours, f"a conflict of ours reached a client: {told(ours)}"
        await stage.expire(name)
        await settled(stage.client, [name], stage.patience)
        revisions = await recorder.laws()
    done = sum(error is None for error in refused)
    return Outcome(f"{done} of {requests} went through, the others {told(refused)}; {revisions} revisions checked")


async def r9(stage: Stage, *, rounds: int, at_once: int, both: float) -> Outcome:
    """A parent is deleted while a child is created; `both` is the share of rounds in which neither may win."""
    name = stage.name()
    gate = asyncio.Semaphore(at_once)
    neither, done = 0, 0
    async with stage.recorder(name) as recorder:

        async def one(number: int) -> None:
            nonlocal neither, done
            parent, child = f"{name}-p{number}", f"{name}-c{number}"
            async with gate:
                await stage.group(parent, cpu="10")
                deleted, created = await answers(
                    [
                        lambda: stage.people.delete(GROUPS, parent),
                        lambda: stage.people.create(GROUPS, group(child, parent, cpu="1")),
                    ],
                    2,
                )
                assert deleted is not None or created is not None, f"an orphan in round {number}"
                neither += deleted is not None and created is not None
            done += 1
            if done % 100 == 0:
                stage.say(f"{done} rounds")

        await asyncio.gather(*map(one, range(rounds)))
        revisions = await recorder.laws()
    there = {obj["metadata"]["name"]: obj for obj in (await stage.client.list(GROUPS))[0]}
    orphans = [n for n, obj in there.items() if obj["spec"].get("parentBizGroup", "") not in ("", *there)]
    assert orphans == [], orphans
    await stage.clear_groups(name)
    share = neither / rounds
    missed = [f"both failed in {share:.1%} of the rounds, {both:.0%} allowed"] if share > both else []
    return Outcome(f"{rounds} rounds, no orphan, both failed in {share:.1%}; {revisions} revisions checked", missed)


async def r12(stage: Stage, *, requests: int, concurrency: int) -> Outcome:
    """`hard` is lowered below what is used, of a child and of its parent, while creates land."""
    name = stage.name()
    await stage.namespace(name)
    parent, child = f"{name}-p", f"{name}-c"
    most = requests * 3 // 4
    await stage.group(parent, count=str(requests))
    await stage.group(child, parent, count=str(most))

    async def lower(of: str, hard: int) -> None:
        await stage.people.patch(GROUPS, of, {"spec": {"hard": {COUNT: str(hard)}}})

    mixed: list[Callable[[], Awaitable[Any]]] = []
    for number, create in enumerate(creates(stage.people, child, name, requests)):
        mixed.append(create)
        if number % (requests // 4) == requests // 8:
            mixed.append(lambda n=number: lower(child, most - n // 2))
    async with stage.recorder(name) as recorder:
        refused = await answers(mixed, concurrency)
        assert {e.status for e in refused if e} <= {403}, told(refused)
        # The parent itself below what it holds: that it is over then, people are told, and it gets no worse.
        await stage.expire(parent, child)
        found = await settled(stage.client, [parent, child], stage.patience)
        used = wire.parse_amounts(found[parent], found[parent].status.used)[COUNT] // NANO
        assert used <= requests, f"the parent ends with {used} of {requests}"
        own = wire.parse_amounts(found[child], found[child].status.used)[COUNT] // NANO
        hard = wire.hard_of(found[child], CATALOG)[COUNT] // NANO

        async def is_right() -> bool:
            conditions = wire.from_dict(await stage.client.get(GROUPS, child)).status.conditions
            return {c.type: c.status == "True" for c in conditions}["OverQuota"] is (own > hard)

        await eventually(is_right, 60, f"{child} is told whether {own} of {hard} is over")
        revisions = await recorder.laws(lowered={child})
        await lower(parent, used // 2)

        async def more() -> Any:
            return await stage.people.create(GROUPS, group(f"{name}-d", parent, count="1"))

        [error] = await answers([more], 1)
        assert error is not None, "a parent that is over took another child"
        assert error.status == 403, error

        async def is_told() -> bool:
            conditions = wire.from_dict(await stage.client.get(GROUPS, parent)).status.conditions
            return {c.type: c.status for c in conditions}["OverQuota"] == "True"

        await eventually(is_told, 60, f"{parent} is told OverQuota")
        revisions += await recorder.laws(lowered={child, parent})
    await stage.clear(name)
    return Outcome(
        f"child {own} of {hard} at the end, its parent {used} of {requests}, never over; a parent lowered to "
        f"{used // 2} is told OverQuota; {revisions} revisions checked"
    )
