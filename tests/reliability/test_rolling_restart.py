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
from tests.support.newer import ENTRY, FORMAT, REJECTED
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.serving import Parts, Running

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

#: Seconds after SIGTERM until no connection goes to the process any more, and for which it serves on.
LATE, DRAIN = 3.0, 6
REPLICAS, CALLERS = 2, 10
#: Seconds in which a webhook is ready after a rollback: a minute for reservations in a newer format, and some more.
ROLLBACK = 110.0


@contextlib.asynccontextmanager
async def calls(parts: Parts) -> AsyncIterator[Counter[str]]:
    """Create Deployments within the block, and count the answers.

    They are dry runs, so that the API server stores nothing and asks all the more; now and then one is stored, whose
    reservation stays until a recount has seen it.
    """
    done: Counter[str] = Counter()
    ended = asyncio.Event()

    async def call(client: KubeClient, caller: int) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            obj = deployment(f"rolling-{caller}-{number}", "rolling", 1)
            is_stored = number % 20 == 10
            try:
                await client.create(DEPLOYMENTS, obj, dry_run=not is_stored)
                if is_stored:
                    await client.delete(DEPLOYMENTS, obj["metadata"]["name"], "default")
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
            ended.set()
            await asyncio.gather(*calling)
    sys.stdout.write(f"{done}\n")


async def counted(parts: Parts) -> None:
    """Create the group, and wait until it is counted."""
    await parts.client.create(GROUPS, group("rolling", cpu="100000"))

    async def is_counted() -> bool:
        return "used" in (await parts.client.get(GROUPS, "rolling")).get("status", {})

    await eventually(is_counted, 60, "the group is counted")


async def removed(parts: Parts) -> None:
    """Delete the group once it is counted as empty."""
    why = ""

    async def is_deleted() -> bool:
        nonlocal why
        try:
            await parts.client.delete(GROUPS, "rolling")
        except ApiError as error:
            why = str(error)
            return False
        return True

    await eventually(is_deleted, 60, lambda: f"the group is deleted: {why}")


@contextlib.asynccontextmanager
async def formats(parts: Parts) -> AsyncIterator[set[str]]:
    """The formats of the group's reservations that are seen within the block."""
    seen: set[str] = set()

    async def look() -> None:
        while True:
            with contextlib.suppress(Unreachable):
                status = (await parts.client.get(GROUPS, "rolling")).get("status", {})
                seen.update(entry.partition(" ")[0] for entry in status.get("reservations", ()))
            await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        ended = await asyncio.gather(looking, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError), ended


async def replaced(
    parts: Parts, running: Sequence[Running], *, is_newer: bool = False, within: float = 60
) -> list[Running]:
    """Replace these webhooks one by one, each once the next is ready, and return the new ones."""
    found = []
    for old in running:
        found.append(await parts.webhook_process(drain=DRAIN, is_newer=is_newer, within=within))
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
        await removed(parts)
    assert set(done) == {"allowed"}
    assert done["allowed"] > 200


async def test_no_request_fails_in_an_upgrade_and_a_rollback(real_cluster: Real, tmp_path: Path) -> None:
    """The newer version has a path and a format of reservations that this one does not know.

    The path is registered while all webhooks have it, the format is written while all processes read it, and only then.
    """
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

        async def is_written() -> bool:
            return FORMAT in seen

        async def decides() -> bool:
            try:
                await parts.client.create(DEPLOYMENTS, deployment(REJECTED, None, 1), dry_run=True)
            except ApiError as error:
                return "as the newer version says" in error.message
            return False

        async with calls(parts) as done, formats(parts) as seen:
            newer = await parts.controller_process(flags=flags, is_newer=True)
            await controller.end()
            running = await replaced(parts, running[:1], is_newer=True) + running[1:]
            assert not await is_registered(), "an older webhook still runs"
            assert seen == {"v1"}
            running = running[:1] + await replaced(parts, running[1:], is_newer=True)
            await eventually(decides, 90, "the newer version decides")
            await eventually(is_written, 60, "the newer version writes its format")
            before = done["allowed"]
            # The webhooks come back first: they wait for the leader of their version.
            returning = asyncio.create_task(replaced(parts, running, within=ROLLBACK))
            await asyncio.sleep(LATE)
            controller = await parts.controller_process(flags=flags)
            await newer.end()
            await returning
            seen.clear()
            await asyncio.sleep(LATE)
            assert seen == {"v1"}
            assert not await is_registered()
            assert not await decides()
        await removed(parts)
        # It would register the webhooks again.
        await controller.end()
        trusting.cancel()
        await asyncio.gather(trusting, return_exceptions=True)
    assert set(done) == {"allowed"}
    assert before > 200
    assert done["allowed"] > before + 200
