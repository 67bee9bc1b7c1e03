"""bizrq in parts on a cluster, and a second webhook that refuses or delays: validators run side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bizrq.kube.client import KubeClient
from bizrq.kube.groups import GROUPS
from tests.cluster import Cluster, eventually
from tests.contract.conftest import Hook
from tests.controller.conftest import Monotonic
from tests.serving import Parts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clock() -> Monotonic:
    """The controller's own clock: setting it forward makes promises expire."""
    return Monotonic()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, clock: Monotonic, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """Three webhooks behind one address and a controller, registered."""
    async with Parts(cluster, tmp_path_factory.mktemp("parts")) as parts:
        await parts.webhooks(3)
        await parts.controller(clock=clock, recount_interval=0.5)
        await parts.register()
        yield parts


@pytest_asyncio.fixture(loop_scope="module")
async def chaos(client: KubeClient, tmp_path: Path) -> AsyncIterator[Hook]:
    """Answers as the test says, beside ours."""
    hook = Hook(client, tmp_path)
    await hook.start()
    yield hook
    await hook.stop()


async def expire(client: KubeClient, clock: Monotonic, *names: str) -> None:
    """Have the promises that these groups have now expire: once the controller has seen them."""
    for name in names:
        for _ in range(2):
            before = (await client.get(GROUPS, name))["status"].get("lastReconcileTime")

            async def looked(name: str = name, before: object = before) -> bool:
                return (await client.get(GROUPS, name))["status"].get("lastReconcileTime") != before

            await eventually(looked, 15, f"{name} is looked at")
    clock.advance(61)
