"""Webhooks are replaced one by one while an API server asks them, by a balancer that learns late which ones end."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest

from bizrq.kube.client import ApiError, KubeClient, Unreachable
from bizrq.store.groups import GROUPS
from tests.support.cluster import Cluster, Real, eventually
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.serving import Parts

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

#: Seconds after SIGTERM until no connection goes to the process any more, and for which it serves on.
LATE, DRAIN = 3.0, 6
REPLICAS, CALLERS = 2, 10


async def test_no_request_fails_in_a_rolling_restart(real_cluster: Real, tmp_path: Path) -> None:
    """Dry runs, so that the API server stores nothing and asks all the more."""
    cluster = Cluster(real_cluster.version, real_cluster.kubeconfig)
    loop = asyncio.get_running_loop()
    done: Counter[str] = Counter()
    async with Parts(cluster, tmp_path) as parts:
        running = [await parts.webhook_process(drain=DRAIN) for _ in range(REPLICAS)]
        parts.balancer.tries_others = False
        await parts.controller_process()
        await parts.client.create(GROUPS, group("rolling", cpu="100000"))

        async def counted() -> bool:
            return "used" in (await parts.client.get(GROUPS, "rolling")).get("status", {})

        await eventually(counted, 60, "the group is counted")
        await parts.register()

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

        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
            calling = [asyncio.create_task(call(client, caller)) for caller in range(CALLERS)]
            for old in running:
                await parts.webhook_process(drain=DRAIN)
                old.process.terminate()
                loop.call_later(LATE, parts.balancer.backends.remove, old.port)
                assert await asyncio.wait_for(old.process.wait(), 60) == 0
            for task in calling:
                task.cancel()
            ended = await asyncio.gather(*calling, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    sys.stdout.write(f"{done}\n")
    assert set(done) == {"allowed"}
    assert done["allowed"] > 200
