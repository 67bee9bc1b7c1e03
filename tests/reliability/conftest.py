"""The ground and the stage for the short forms: webhooks and controller in this process, a clock to set forward.

And a tenant with four cores, whose pods really run: on a real API server a stand-in binds and ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError, KubeClient, NotFound
from bizrq.store.groups import GROUPS
from tests.controller.conftest import Monotonic
from tests.reliability.stage import Ground, Stage, ground_on, stage_on
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.logged_errors import LoggedErrors
from tests.support.objects import NAMESPACES, PODS, group
from tests.support.serving import Parts
from tests.support.tenant import Tenant, tenant_of

SEED = 1


@pytest.fixture
def logged() -> Iterator[LoggedErrors]:
    """Fail a test during which bizrq logged an error: whatever the test saw, something went wrong."""
    errors = LoggedErrors()
    with errors.recorded():
        yield errors
    errors.check()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A cluster on which a test starts what it needs."""
    async with ground_on(cluster, tmp_path_factory.mktemp("ground"), seed=SEED, clock=Monotonic()) as ground:
        yield ground


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(ground: Ground) -> AsyncIterator[Stage]:
    """Three webhooks behind one address and a controller, registered."""
    async with stage_on(ground) as stage:
        yield stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """A webhook and a controller, registered, on a cluster where pods run."""
    async with parts_with_pods(cluster, tmp_path_factory.mktemp("pods")) as parts:
        yield parts


@contextlib.asynccontextmanager
async def parts_with_pods(cluster: Cluster, folder: Path, **config: Any) -> AsyncIterator[Parts]:
    """A webhook and a controller with this configuration, registered, on a cluster where pods run."""
    async with Parts(cluster, folder, **config) as parts:
        await parts.run_pods()
        await parts.webhooks()
        await parts.controller(recount_interval=parts.often)
        await parts.register()
        yield parts


@pytest.fixture(scope="module")
def done() -> list[str]:
    """The groups of tests that have ended, until they are deleted."""
    return []


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(
    logged: LoggedErrors,
    parts: Parts,
    client: KubeClient,
    namespace: str,
    done: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Tenant]:
    """Four cores, and a person who may edit one namespace. No error is logged meanwhile."""
    await client.create(GROUPS, group(namespace, cpu="4"))
    async with tenant_of(parts.cluster, client, namespace, tmp_path_factory.mktemp(namespace)) as tenant:
        await tenant.uses("0")
        yield tenant
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, namespace)
        await end_pods(client, namespace)
    done.append(namespace)
    await delete_groups(client, done)


async def delete_groups(client: KubeClient, done: list[str]) -> None:
    """Delete those of the groups that nothing uses any more: the controller would recount them until the end.

    Some are charged for a day, for pods that were deleted by force. To ask for each again after each test costs much.
    """
    unused = {each.name for each in map(wire.from_dict, (await client.list(GROUPS))[0]) if not _is_charged(each)}
    for name in [name for name in done if name in unused]:
        with contextlib.suppress(ApiError):
            await client.delete(GROUPS, name)
            done.remove(name)


def _is_charged(group: GroupObject) -> bool:
    return any(amount != "0" for amount in (group.status.used or {}).values())


async def end_pods(client: KubeClient, namespace: str) -> None:
    """Delete the pods of a namespace by force: some would take a day to stop."""
    options = orjson.dumps({"gracePeriodSeconds": 0})
    for _ in range(3):
        with contextlib.suppress(ApiError):
            await client.request("DELETE", PODS.path(namespace), body=options)
        await asyncio.sleep(0.2)


@pytest_asyncio.fixture(loop_scope="module")
async def live(cluster: Cluster, tenant: Tenant) -> AsyncIterator[LivePods]:
    """The oracle of the tenant's group, which has no other namespace."""
    async with oracle_of(cluster, tenant) as live:
        yield live


@pytest_asyncio.fixture(loop_scope="module")
async def both(cluster: Cluster, tenant: Tenant, other: str) -> AsyncIterator[LivePods]:
    """The oracle of the tenant's group and of the module's `other` one."""
    async with oracle_of(cluster, tenant, other) as live:
        yield live


@contextlib.asynccontextmanager
async def oracle_of(cluster: Cluster, tenant: Tenant, *others: str) -> AsyncIterator[LivePods]:
    """The oracle of what runs in the tenant's namespace, by the cluster's clock; `others` are groups besides his."""
    box = cluster.box
    now = (lambda: box.clock.now().timestamp()) if box else time.time
    async with (
        KubeClient.from_kubeconfig(cluster.kubeconfig) as client,
        LivePods(client, tenant.name, {tenant.name}, now, others) as live,
    ):
        yield live
