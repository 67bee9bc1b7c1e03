"""Webhooks are replaced one by one while an API server asks them, by a balancer that learns late which ones end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, NotFound, Unreachable
from bizrq.registration import NAME
from bizrq.store.groups import GROUPS
from tests.support.accounts import SYSTEM
from tests.support.cluster import Cluster, Real, eventually
from tests.support.newer import ENTRY, REJECTED
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.serving import Parts, Running

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

#: Seconds after SIGTERM until no connection goes to the process any more, and for which it serves on.
LATE, DRAIN = 3.0, 6
REPLICAS, CALLERS = 2, 10


@contextlib.asynccontextmanager
async def calls(parts: Parts) -> AsyncIterator[Counter[str]]:
    """Create Deployments within the block, and count the answers.

    They are dry runs, so that the API server stores nothing and asks all the more.
    """
    done: Counter[str] = Counter()

    async def call(client: KubeClient, caller: int) -> None:
        for number in itertools.count():
            obj = deployment(f"rolling-{caller}-{number}", "rolling", 1)
            try:
                await client.create(DEPLOYMENTS, obj, dry_run=True)
                done["allowed"] += 1
            except (ApiError, Unreachable) as error:
                done[str(error)] += 1
            # A pause now and then leaves idle connections, which the API server takes up again.
            await asyncio.sleep(0.5 if number % 20 == 0 else 0.01)

    async with KubeClient.from_kubeconfig(parts.cluster.kubeconfig) as client:
        calling = [asyncio.create_task(call(client, caller)) for caller in range(CALLERS)]
        try:
            yield done
        finally:
            for task in calling:
                task.cancel()
            ended = await asyncio.gather(*calling, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    sys.stdout.write(f"{done}\n")


async def counted(parts: Parts) -> None:
    """Create the group, and wait until it is counted."""
    await parts.client.create(GROUPS, group("rolling", cpu="100000"))

    async def is_counted() -> bool:
        return "used" in (await parts.client.get(GROUPS, "rolling")).get("status", {})

    await eventually(is_counted, 60, "the group is counted")


async def replaced(parts: Parts, running: Sequence[Running], *, is_newer: bool = False) -> list[Running]:
    """Replace these webhooks one by one, each once the next is ready, and return the new ones."""
    found = []
    for old in running:
        found.append(await parts.webhook_process(drain=DRAIN, is_newer=is_newer))
        old.process.terminate()
        asyncio.get_running_loop().call_later(LATE, parts.balancer.backends.remove, old.port)
        assert await asyncio.wait_for(old.process.wait(), 60) == 0
    return found


async def test_no_request_fails_in_a_rolling_restart(real_cluster: Real, tmp_path: Path) -> None:
    async with Parts(Cluster(real_cluster.version, real_cluster.kubeconfig), tmp_path) as parts:
        running = [await parts.webhook_process(drain=DRAIN) for _ in range(REPLICAS)]
        parts.balancer.tries_others = False
        await parts.controller_process()
        await counted(parts)
        await parts.register()
        async with calls(parts) as done:
            await replaced(parts, running)
        await parts.client.delete(GROUPS, "rolling")
    assert set(done) == {"allowed"}
    assert done["allowed"] > 200


async def test_no_request_fails_in_an_upgrade_and_a_rollback(real_cluster: Real, tmp_path: Path) -> None:
    """The newer version has a path that this one does not know: it is registered while all webhooks have it, and only
    then."""
    async with Parts(Cluster(real_cluster.version, real_cluster.kubeconfig), tmp_path) as parts:
        flags = ["--webhook-url", parts.url, "--namespace", SYSTEM]
        running = [await parts.webhook_process(drain=DRAIN) for _ in range(REPLICAS)]
        parts.balancer.tries_others = False
        trusting = asyncio.create_task(parts.trust())
        controller = await parts.controller_process(flags=flags)
        await counted(parts)
        await parts.asked()

        async def is_registered() -> bool:
            with contextlib.suppress(NotFound):
                stored = await parts.client.get(REGISTRATIONS, NAME)
                return any(webhook["name"] == ENTRY for webhook in stored["webhooks"])
            return False

        async def decides() -> bool:
            try:
                await parts.client.create(DEPLOYMENTS, deployment(REJECTED, None, 1), dry_run=True)
            except ApiError as error:
                return "as the newer version says" in error.message
            return False

        async with calls(parts) as done:
            newer = await parts.controller_process(flags=flags, is_newer=True)
            await controller.end()
            running = await replaced(parts, running[:1], is_newer=True) + running[1:]
            assert not await is_registered(), "an older webhook still runs"
            running = running[:1] + await replaced(parts, running[1:], is_newer=True)
            await eventually(decides, 90, "the newer version decides")
            before = done["allowed"]
            # The webhooks come back first: they wait for the leader of their version.
            returning = asyncio.create_task(replaced(parts, running))
            await asyncio.sleep(LATE)
            controller = await parts.controller_process(flags=flags)
            await newer.end()
            await returning
            assert not await is_registered()
            assert not await decides()
        # It would register the webhooks again.
        await controller.end()
        trusting.cancel()
        await asyncio.gather(trusting, return_exceptions=True)
        await parts.client.delete(GROUPS, "rolling")
    assert set(done) == {"allowed"}
    assert before > 200
    assert done["allowed"] > before + 200
