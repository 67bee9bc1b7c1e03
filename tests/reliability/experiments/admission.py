"""R1, R2, R6, R7 and R24: many requests at one group. Exactly what fits is admitted, nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.quota.allowance import without_lines, without_lines_of
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import NANO
from tests.contract.conftest import NAME
from tests.reliability.stage import CHAOS, COUNT, Outcome, Stage, answers, asked_again, creates, expected, told
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.live_pods import cost, has_ended
from tests.support.objects import DEPLOYMENTS, PODS, Object, deployment
from tests.support.oracle import settled


async def r1(stage: Stage, *, requests: int, fits: int, concurrency: int, writes: float) -> Outcome:
    """More creates than fit. `writes` is how many status writes an admission may cost, recounts among them."""
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, count=str(fits))
    missed: list[str] = []
    async with stage.recorder(name) as recorder:
        began = asyncio.get_running_loop().time()
        asked = creates(stage.people, name, name, requests)
        refused = await answers(asked, concurrency)
        took = asyncio.get_running_loop().time() - began
        refused = await asked_again(asked, refused)
        admitted = sum(error is None for error in refused)
        assert admitted == fits, f"{admitted} admitted where {fits} fit: {told(refused)}"
        false = [e for e in refused if e and (e.status != 403 or "exceeded quota" not in e.message)]
        assert not false, f"refused for another reason: {told(false)}, for one: {false[0]}"
        assert await stage.counts(name) == fits
        revisions = await recorder.laws()
        share = len(recorder.revisions(name)) / fits
    if share > writes:
        missed.append(f"{share:.3f} status writes an admission, {writes:g} allowed")
    await stage.clear(name)
    return Outcome(
        f"{admitted} admitted of {requests} ({requests / took:.0f} answers a second), {share:.3f} status writes an "
        f"admission, {revisions} revisions checked",
        missed,
    )


async def r2(stage: Stage, *, requests: int, again: int, concurrency: int, more: int) -> Outcome:
    """Half of the creates are refused beside us, and one existing name is created again and again.

    At most so many `more` than are stored may be charged for that name.
    """
    rng = stage.random("R2")
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, count=str(2 * requests))

    async def half(_: Object) -> Object:
        await asyncio.sleep(rng.random() * 0.02)
        return {"allowed": rng.random() < 0.5, "status": {"code": 403, "message": "chaos"}}

    async with (
        stage.chaos(half, resource="deployments", operation="CREATE"),
        stage.recorder(name) as recorder,
    ):
        asked = creates(stage.people, name, name, requests)
        refused = await answers(asked, concurrency)
        # What is never stored takes half of the space for entries at most, until it has expired.
        waited = told(refused).get("429", 0)
        refused = await asked_again(asked, refused, 120)
        stored = sum(error is None for error in refused)
        other = [e for e in refused if e and not e.message.endswith("chaos")]
        # Under load chaos may not answer the API server in time: that is its refusal too. Ours has none to give.
        ours = [e for e in other if f'failed calling webhook "{CHAOS}.{NAME}"' not in e.message]
        assert not ours, f"refused for another reason, {told(ours)}: {ours[0].message}"
        most = max(map(_charged, recorder.revisions(name))) // NANO
        # A slot for each name that was ever asked for, and until the next recount one that is stored besides.
        assert most <= requests + 1, f"{most} charged for {requests} names"
        await stage.expire(name)
        began = asyncio.get_running_loop().time()
        left = await stage.counts(name)
        leaked = asyncio.get_running_loop().time() - began
        assert left == stored, f"{left} counted where {stored} are stored"
        revisions = await recorder.laws()
    await stage.clear(name)

    one = stage.name()
    await stage.namespace(one)
    await stage.group(one, count=str(requests))
    await stage.people.create(DEPLOYMENTS, deployment("w0", one, 0, namespace=one))
    await stage.counts(one)
    async with stage.recorder(one) as recorder:
        refused = await answers(creates(stage.people, one, one, 1) * again, concurrency)
        assert {e.status for e in refused if e} == {409}, f"a name that is taken: {told(refused)}"
        assert len([e for e in refused if e]) == again
        slots = max(map(_charged, recorder.revisions(one)), default=NANO) // NANO
        assert slots <= 1 + more, f"{slots} charged where one is stored and one name is asked for"
        await stage.expire(one)
        assert await stage.counts(one) == 1
        revisions += await recorder.laws()
    return Outcome(
        f"{stored} of {requests} stored, {waited} asked again, {len(other)} that chaos did not answer, {left} charged "
        f"{leaked:.0f} s after the last answer; {again} creates of one name charged {slots - 1} slot more; {revisions} "
        "revisions checked"
    )


def _charged(group: GroupObject) -> int:
    """Return what is used and reserved of the count, without what processes hold ahead: nobody has asked for that."""
    return without_lines_of(wire.account_of(group, CATALOG)).taken(COUNT)


async def r6(stage: Stage, *, requests: int, concurrency: int) -> Outcome:
    """A scale-down that is refused elsewhere frees nothing."""
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, cpu="6")
    await stage.people.create(DEPLOYMENTS, deployment("big", name, 4, namespace=name))
    await settled(stage.client, [name], 30)

    async def no_scaling_down(review: Object) -> Object:
        await asyncio.sleep(0.01)
        return {"allowed": review["name"] != "big", "status": {"code": 403, "message": "chaos"}}

    def scale(replicas: int) -> Callable[[], Awaitable[Object]]:
        body = {"spec": {"replicas": replicas}}
        return lambda: stage.people.patch(DEPLOYMENTS, "big", body, namespace=name, subresource="scale")

    def one(number: int) -> Callable[[], Awaitable[Object]]:
        return lambda: stage.people.create(DEPLOYMENTS, deployment(f"s{number}", name, 1, namespace=name))

    async with (
        stage.chaos(no_scaling_down, resource="deployments/scale", operation="UPDATE"),
        stage.recorder(name) as recorder,
    ):
        mixed = [action for n in range(requests) for action in (scale(n % 4), one(n))]
        refused = await answers(mixed, concurrency)
        admitted = sum(error is None for error in refused[1::2])
        assert admitted == 2, f"{admitted} cores admitted beside 4 of 6: {told(refused[1::2])}"
        assert all(refused[::2]), "a scale-down that chaos refuses went through"
        await stage.expire(name)
        found = (await settled(stage.client, [name], stage.patience))[name]
        assert found.status.used == {"limits.cpu": "6"}, found.status.used
        revisions = await recorder.laws()
    return Outcome(
        f"{requests} scale-downs refused, {admitted} of {requests} creates fit; {revisions} revisions checked"
    )


async def r7(stage: Stage, *, requests: int, concurrency: int) -> Outcome:
    """Dry runs are decided and change nothing."""
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, count=str(2 * requests))
    before = wire.from_dict(await stage.client.get(GROUPS, name)).status
    async with stage.recorder(name) as recorder:
        refused = await answers(creates(stage.people, name, name, requests, dry_run=True), concurrency)
        assert not any(refused), told(refused)
        after = wire.from_dict(await stage.client.get(GROUPS, name)).status
        assert (after.used, after.reservations) == (before.used, []), (after.used, after.reservations)
        await recorder.laws()
        promised = [group for group in recorder.revisions(name) if group.status.reservations]
        assert not promised, promised[0].status.reservations
    return Outcome(f"{requests} dry runs: used and reservations as before")


async def r24(stage: Stage, *, patches: int, rounds: int) -> Outcome:
    """Patches of one Deployment at once: of each generation the most that any of them asked for, not their sum.

    Patches of different generations add up until the controller has acted on them (docs/ownership.md, law 1).
    """
    name = stage.name()
    await stage.namespace(name)
    # Room for all patches: what awaits a count of an earlier generation would have to try again.
    await stage.group(name, cpu=str(patches * rounds))
    web = deployment("web", name, 2, namespace=name, cpu="100m")
    # No surge: its pods are free, and stay where no pod becomes available.
    web["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
    await stage.people.create(DEPLOYMENTS, web)
    await settled(stage.client, [name], 30)
    numbers = itertools.cycle(range(2, 8))

    def patch(replicas: int) -> Callable[[], Awaitable[Object]]:
        body = {"spec": {"replicas": replicas, "template": {"metadata": {"annotations": {"n": str(replicas)}}}}}
        return lambda: stage.people.patch(DEPLOYMENTS, "web", body, namespace=name)

    conflicts = again = 0
    async with stage.recorder(name) as recorder:
        for _ in range(rounds):
            requests = [patch(next(numbers)) for _ in range(patches)]
            refused = await answers(requests, patches)
            # On a busy machine a webhook may not see in time what the controller has changed.
            again += told(refused).get("429", 0)
            refused = await asked_again(requests, refused)
            # Five tries on the server's side; what still meets a newer version is told so, by the API server.
            for error in filter(None, refused):
                expected(error, 409)
            conflicts += sum(e is not None for e in refused)
        await recorder.caught_up()
        for group in recorder.revisions(name):
            # One entry for all that are decided on one generation, of which one lands. Its base may be behind `used`
            # where a review was decided on an older object. What its controller raises meanwhile is no patch.
            entries = without_lines(wire.reservations_of(group))
            patched = [entry.generation for entry in entries if entry.pending_write is None]
            assert len(set(patched)) == len(patched), group.status.reservations
            asked = [entry.amount["limits.cpu"] for entry in entries]
            assert all(amount <= 7 * NANO // 10 for amount in asked), f"revision {group.resource_version}: {asked}"
        await stage.expire(name)
        seen: list[str] = []

        async def counted() -> bool:
            """Return True once `used` is what is asked for, or the pods of a rollout where they cost more."""
            found = wire.from_dict(await stage.client.get(GROUPS, name))
            web = await stage.client.get(DEPLOYMENTS, "web", name)
            pods = [pod for pod in (await stage.client.list(PODS, name))[0] if not has_ended(pod)]
            used = wire.parse_amounts(found, found.status.used)["limits.cpu"]
            seen[:] = [f"{used / NANO:g} used, {web['spec']['replicas']} replicas, {len(pods)} pods"]
            asked = web["spec"]["replicas"] * NANO // 10
            there = sum(map(cost, pods)) * NANO // 1000
            return not without_lines(wire.reservations_of(found)) and used == max(asked, there)

        await eventually(counted, stage.patience, lambda: seen)
        revisions = await recorder.laws()
    return Outcome(
        f"{rounds} × {patches} patches, never more than the largest charged; {conflicts} conflicts were the API "
        f"server's own, {again} were told to try again; {revisions} revisions checked"
    )
