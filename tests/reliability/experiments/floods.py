"""R14: a flood of creates by ordinary accounts, at an API server with few seats: our own requests get theirs.

Each create holds a seat while our webhooks decide on it, and for that they write.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from bizrq.cli.manifests_of_bizrq import priority_objects, resource_of
from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.client import ApiError, Unreachable
from bizrq.store.groups import GROUPS
from tests.reliability.stage import Ground, Outcome, ground_on, real_on
from tests.support.accounts import SYSTEM, store
from tests.support.classified import classified, uid_of
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.serving import Parts


async def r14(ground: Ground, *, creates: int, seats: int, replicas: int, p99: float) -> Outcome:
    """So many creates at once, first without our priority level and then with it.

    The API server gives each level its share of the `seats`, which it has for all requests together.
    """
    async with _few_seats(ground, seats) as there, there.parts() as parts:
        for _ in range(replicas):
            await parts.webhook_process()
        await parts.controller_process()
        await parts.register()
        # What is reserved for creates that were refused takes a minute to expire: each flood has a group of its own.
        floods = [await there.group(there.name(), cpu="100000") for _ in range(2)]
        objects = priority_objects(SYSTEM)
        for obj in reversed(objects):
            await parts.client.delete(resource_of(obj), obj["metadata"]["name"])
        await eventually(lambda: _is_with(parts, ours=False), 30, "our accounts are like all others")
        stored_without, slow_without = await _flood(there, floods[0], creates)
        there.say(f"without: {stored_without} of {creates} stored, p99 {slow_without:.1f} s")
        await store(parts.client, objects)
        await eventually(lambda: _is_with(parts, ours=True), 30, "our accounts have a level")
        stored, slow = await _flood(there, floods[1], creates)
    missed = []
    if stored_without == creates and slow_without <= p99:
        missed.append("the flood is too small to show anything: it passed without our level")
    if stored < creates:
        missed.append(f"{stored} of {creates} stored with our level")
    if slow >= p99:
        missed.append(f"p99 {slow:.1f} s with our level, {p99:g} s allowed")
    return Outcome(
        f"{creates} creates at once by service accounts, {seats} seats, {replicas} webhooks: without our level "
        f"{stored_without} stored, p99 {slow_without:.1f} s; with it {stored} stored, p99 {slow:.1f} s",
        missed,
    )


@contextlib.asynccontextmanager
async def _few_seats(ground: Ground, seats: int) -> AsyncIterator[Ground]:
    """A real API server of its own."""
    folder = ground.folder / ground.name()
    folder.mkdir()
    flags = [f"--max-mutating-requests-inflight={seats}", "--max-requests-inflight=0"]
    async with (
        real_on(folder, "namespace-controller", apiserver=flags) as (_, cluster),
        ground_on(cluster, folder, seed=ground.seed, say=ground.say, clock=ground.clock) as there,
    ):
        yield there


async def _is_with(parts: Parts, *, ours: bool) -> bool:
    found, _ = await classified(parts.client, parts.cluster, WEBHOOKS, GROUPS.path())
    with contextlib.suppress(ApiError):
        return (found == await uid_of(parts.client, "FlowSchema", WEBHOOKS)) is ours
    # There is none any more; the API server learns of it a moment later.
    return found == await uid_of(parts.client, "FlowSchema", "service-accounts")


async def _flood(there: Ground, name: str, creates: int) -> tuple[int, float]:
    """Return how many were stored, and the seconds after which 99 of 100 had their answer."""
    loop = asyncio.get_running_loop()
    taken: list[float] = []
    await there.namespace(name)

    async def create(number: int) -> bool:
        began = loop.time()
        try:
            await there.people.create(DEPLOYMENTS, deployment(f"w{number}", name, 1, namespace=name))
        except (ApiError, Unreachable):
            return False
        finally:
            taken.append(loop.time() - began)
        return True

    created = await asyncio.gather(*map(create, range(creates)))
    return sum(created), sorted(taken)[math.ceil(0.99 * creates) - 1]
