"""R17: what people are billed for, against the integral of the pods' own timestamps.

Controllers lead with clocks that are half a minute off, die at each write that has a name and at any other moment, are
away for ten minutes, and two lead at once. In full they are processes that kill -9 ends, of which one stands by and
another goes on believing that it leads, and the ten minutes pass; in short they are in this process, and the ten
minutes are a shift of all later clocks and timestamps.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson

import crds
from bizrq.api import hours as wire
from bizrq.hours.metering import Interval, RecordPage, UsageRate, advance, group_total, period_total
from bizrq.hours.periods import ALL_TIME
from bizrq.kube.client import NotFound
from bizrq.kube.lease import LEASES
from bizrq.store.groups import GROUPS
from bizrq.store.hours import statements
from bizrq.units.quantity import NANO
from controller.manager import LEASE
from sandbox.server import Sandbox
from tests.reliability.desk import GPU, PATIENCE, Desk, inferred, running
from tests.reliability.leaders import Apart, apart
from tests.reliability.stage import Ground, Outcome, ground_on, under_way
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import PODS, TFJOBS, group, tfjob

#: Seconds by which the controllers' clocks are off, in turn.
SKEWS = (30, -30)
#: The writes at which a controller dies, before it is sent and after it was stored.
RECORDING = tuple(itertools.product(("finalizer", "page", "record", "status"), ("before", "after")))
LEAVING = tuple(itertools.product(("statement", "record", "removal", "finalizer"), ("before", "after")))


async def r17(ground: Ground, *, rounds: int, outage: int) -> Outcome:
    async with _alone(ground) as quiet:
        return await _r17(quiet, rounds, outage)


@asynccontextmanager
async def _alone(ground: Ground) -> AsyncIterator[Ground]:
    """Where nobody but us makes or ends pods: on the sandbox one of our own, without its stand-ins for controllers."""
    if ground.cluster.box is None:
        yield ground
        return
    async with Sandbox(controllers=False) as box:
        cluster = Cluster("sandbox", box.write_kubeconfig(ground.folder / "alone"), box)
        async with ground_on(cluster, ground.folder, seed=ground.seed, say=ground.say, clock=ground.clock) as alone:
            yield alone


async def _r17(ground: Ground, rounds: int, outage: int) -> Outcome:
    await has_kinds(ground.client, [*crds.load(), *crds.stand_ins()])
    chance = ground.random("R17")
    desk = Desk(ground, ground.name(), ground.name())
    for name, parent in ((desk.parent, ""), (desk.name, desk.parent)):
        await ground.client.create(GROUPS, group(name, parent, gpu="1000", hours="1M"))
    desk.job = await ground.client.create(TFJOBS, tfjob(desk.name, desk.name, 1, gpu=desk.cards))
    await _at_named_writes(desk, rounds)
    await _at_any_moment(desk, rounds, chance)
    await _looked_at(desk, rounds)
    took_over = await _stood_by_for(desk, rounds, chance) if desk.waits else 0
    await _away(desk, outage)
    spent = await _two_at_once(desk)
    _replayed(desk, chance)
    await _left(desk, spent)
    figures = [
        f"{len(desk.lives)} pods to the millisecond by clocks of ±30 s",
        f"{desk.kills} kills of {'processes by kill -9' if desk.waits else 'clients'}",
        *([f"{took_over} of leaders for whom another stood by"] if took_over else []),
        f"{outage} s without a controller{'' if desk.waits else ' by the clocks'}",
        f"{len(desk.unseen)} inferred, within their bounds; two controllers; the same again",
    ]
    return Outcome("; ".join(figures))


async def _at_named_writes(desk: Desk, rounds: int) -> None:
    """Each controller dies at a write; what runs and what ends is the next one's."""
    lasts = await desk.pod(3600)
    for number in range(rounds):
        # A record is begun once.
        points = RECORDING[4:] if number else RECORDING
        for skew, point in zip(itertools.cycle(SKEWS), points, strict=False):
            begins, ends = await desk.pod(100), await desk.pod(200)
            async with desk.controller(skew, point) as leader:
                await desk.ends(ends, ago=50)
                await asyncio.wait_for(leader.dead.wait(), PATIENCE)
                desk.kills += 1
                await desk.ends(begins)
        desk.ground.say(f"{desk.kills} kills at named writes")
    async with desk.controller(0):
        await desk.knows([await desk.ends(lasts)])
        await desk.is_exact()


async def _at_any_moment(desk: Desk, rounds: int, chance: random.Random) -> None:
    """Pods begin and end all the time, whether a controller lives or not; each lives for a moment."""

    over = asyncio.Event()

    async def work() -> None:
        names = [await desk.pod(chance.randrange(1, 300)) for _ in range(3)]
        while not over.is_set():
            await asyncio.sleep(chance.random() * 0.2)
            await desk.ends(names.pop(chance.randrange(3)))
            names.append(await desk.pod(chance.randrange(300)))

    # Twice as long as a process takes to begin.
    longest = 12.0 if desk.waits else 0.3
    async with under_way(work()) as working:
        for number in range(2 * rounds):
            async with desk.controller(SKEWS[number % 2]):
                await asyncio.sleep(chance.random() * longest)
                desk.kills += 1
            working.check()
        over.set()
        await working.ended()
    desk.ground.say(f"{desk.kills} kills, the last at any moment")
    for pod in await desk.pods():
        if pod["status"]["phase"] == "Running":
            await desk.ends(pod["metadata"]["name"])
    async with desk.controller(0):
        await desk.is_exact()


async def _looked_at(desk: Desk, rounds: int) -> None:
    """Pods of ten seconds that are gone before anybody looks, and pods that are deleted while they run."""
    for skew in SKEWS * rounds:
        async with desk.controller(skew):
            runs, short = await desk.pod(1000), await desk.pod(10)
            await desk.runs(runs)
            await desk.ends(short)
            gone = {await desk.delete(short), await desk.delete(runs)}
            expected = desk.integral()
            await desk.until(
                lambda record, gone=gone, expected=expected: (
                    not gone & running(record) and group_total(record, ALL_TIME).get(GPU) == expected
                ),
                f"{expected} are charged",
            )


async def _stood_by_for(desk: Desk, rounds: int, chance: random.Random) -> int:
    """Of two processes the one that leads is killed, or stands still until the other leads and then goes on.

    Meanwhile pods begin, end and are deleted: nothing may be inferred, for one always watches. Ticks are a minute
    apart, so that most pods live between two of them.
    """
    space, kubeconfig, over = await desk.lease(), await desk.account(), asyncio.Event()

    async def leads(among: list[Apart]) -> Apart:
        async def found() -> Apart | None:
            with suppress(NotFound):
                lease = await desk.ground.client.get(LEASES, LEASE, space)
                holder = lease["spec"].get("holderIdentity") or ""
                return next((one for one in among if f"_{one.running.process.pid}_" in holder), None)
            return None

        leader = await eventually(found, PATIENCE, "somebody leads")
        assert leader is not None
        return leader

    async def work() -> None:
        while not over.is_set():
            name = await desk.pod(chance.randrange(3))
            await asyncio.sleep(chance.random() * 2)
            if chance.random() < 0.6:
                await desk.ends(name)
            await asyncio.sleep(chance.random() * 0.3)
            await desk.delete(name)

    async with contextlib.AsyncExitStack() as stack:

        async def another(skew: int) -> Apart:
            running = apart(kubeconfig, desk.ground.folder, space, skew, cash_interval=60)
            one = await stack.enter_async_context(running)
            await one.ready()
            return one

        alive = [await another(skew) for skew in SKEWS]
        await leads(alive)
        async with under_way(work(), work(), work()) as working:
            for number in range(rounds):
                await asyncio.sleep(chance.random() * 3)
                leader = await leads(alive)
                alive.remove(leader)
                believes = number % 3 == 2
                if believes:
                    leader.stand_still()
                else:
                    await leader.kill()
                await leads(alive)
                if believes:
                    leader.go_on()
                    await asyncio.sleep(chance.random() * 3)
                    await leader.kill()
                desk.kills += 1
                alive.append(await another(SKEWS[number % 2]))
                working.check()
                desk.ground.say(f"{number + 1} of {rounds} leaders followed by who stood by")
            over.set()
            await working.ended()
        for pod in await desk.pods():
            await desk.delete(pod["metadata"]["name"])
        record = await desk.is_exact()
        assert not inferred(record), inferred(record)
    return rounds


async def _away(desk: Desk, outage: int) -> None:
    """Nobody looks for long: pods end, begin and end, and vanish."""
    async with desk.controller(SKEWS[0]):
        ends, vanishes, stays = await desk.pod(500), await desk.pod(700), await desk.pod(20)
        for name in (ends, vanishes, stays):
            await desk.runs(name)
        await desk.passes(10)
        ten = await desk.pod(10)
        await desk.knows([await desk.ends(ten)])
    await desk.vanishes(vanishes)
    await desk.passes(outage // 2)
    await desk.ends(ends)
    came = await desk.pod()
    await desk.passes(outage // 4)
    await desk.ends(came)
    await desk.passes(outage - outage // 2 - outage // 4)
    async with desk.controller(SKEWS[1]):
        await desk.knows([await desk.ends(stays)])


async def _two_at_once(desk: Desk) -> int:
    """Both believe that they lead; then one begins anew. What the record says is the same."""
    async with desk.controller(SKEWS[0]), desk.controller(SKEWS[1]):
        names = [await desk.pod(60 * n) for n in range(1, 9)]
        await desk.knows([await desk.ends(name, ago=5) for name in names])
    record = await desk.record()
    assert not running(record)
    assert not any(page.split for page in record)
    told = inferred(record)
    assert told.keys() == desk.unseen.keys(), (told, desk.unseen)
    skew = max(SKEWS) * 1000
    for uid, (begun, seen) in desk.unseen.items():
        gone = told[uid]
        assert gone.start == begun
        assert gone.charged_to - skew <= seen <= gone.seen_gone + skew
    expected = desk.expected(record)
    assert group_total(record, ALL_TIME) == {GPU: expected}, (group_total(record, ALL_TIME), expected)
    async with desk.controller(SKEWS[1]):
        before = await _counted(desk)
        await eventually(lambda: _is_newer(desk, before), PATIENCE, "the group is looked at")
    again = await desk.record()
    assert [page.open for page in again] == [page.open for page in record]
    return expected


async def _counted(desk: Desk) -> str:
    return (await desk.ground.client.get(GROUPS, desk.name))["status"]["lastReconcileTime"]


async def _is_newer(desk: Desk, than: str) -> bool:
    return await _counted(desk) != than


def _replayed(desk: Desk, chance: random.Random) -> None:
    """The same lives, looked at whenever it may be: what they come to does not depend on it."""
    rate = UsageRate(desk.name, ((GPU, desk.cards * NANO),))
    first, last = min(begun for begun, _ in desk.lives.values()), max(end for _, end in desk.lives.values())
    for _ in range(3):
        page = RecordPage()
        for at in [*sorted(chance.randrange(first, last) for _ in range(20)), last]:
            known = {
                uid: Interval(begun, end if end <= at else None, rate)
                for uid, (begun, end) in desk.lives.items()
                if begun <= at
            }
            page = advance(page, known, at + chance.choice(SKEWS) * 1000)
        assert period_total(page) == {GPU: desk.integral()}


async def _left(desk: Desk, spent: int) -> None:
    """The group goes; who hands over its hours dies at each write on the way. They are the parent's, once."""
    for skew, point in zip(itertools.cycle(SKEWS), LEAVING, strict=False):
        async with desk.controller(skew, point) as leader:
            if point == LEAVING[0]:
                await _remove(desk)
            await asyncio.wait_for(leader.dead.wait(), PATIENCE)
            desk.kills += 1
    async with desk.controller(0):

        async def gone() -> bool:
            with suppress(NotFound):
                await desk.ground.client.get(GROUPS, desk.name)
                return False
            return True

        await eventually(gone, PATIENCE, "the group is gone")
    [statement] = await statements(desk.ground.client, desk.name)
    assert wire.parse_amounts(statement.spec.total) == {GPU: spent}
    assert not await desk.record()
    parent = await desk.record(desk.parent)
    assert period_total(parent[0]) == {GPU: spent}


async def _remove(desk: Desk) -> None:
    """Delete the group with its workloads: nobody admits anything here."""
    for pod in await desk.pods():
        path, options = PODS.path("default", pod["metadata"]["name"]), orjson.dumps({"gracePeriodSeconds": 0})
        await desk.ground.client.request("DELETE", path, body=options)
    await desk.ground.client.delete(TFJOBS, desk.name, "default")
    await desk.ground.client.delete(GROUPS, desk.name)
