"""Routes of versions that a standing Deployment loses with their pods: its controller makes others in their place.

In each a tenant with the role `edit` does so again and again. The group has four cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson
import pytest

from tests.reliability.routes import attempt, changed, for_a_while, has_running, image_of, of_deployment, web
from tests.support.live_pods import LivePods
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS = 3


async def without_its_pods(tenant: Tenant, version: str) -> None:
    await attempt(tenant.delete(REPLICASETS, version, "Orphan"))


async def by_its_finalizer(tenant: Tenant, version: str) -> None:
    await attempt(tenant.patch(REPLICASETS, version, {"metadata": {"finalizers": ["orphan"]}}))
    await attempt(tenant.client.request("DELETE", REPLICASETS.path(tenant.name, version), body=orjson.dumps({})))


async def by_a_second_owner(tenant: Tenant, version: str) -> None:
    """The garbage collector takes the first owner out of its pods, whatever the options of the deletion say."""
    keeper = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"of-{version}", "namespace": tenant.name}}
    await attempt(tenant.create(CONFIG_MAPS, keeper))
    uid = (await tenant.client.get(CONFIG_MAPS, f"of-{version}", tenant.name))["metadata"]["uid"]
    second = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"of-{version}", "uid": uid}
    for each in await tenant.pods():
        owners: list[Object] = each["metadata"].get("ownerReferences") or []
        if [owner["name"] for owner in owners] == [version]:
            change = {"metadata": {"ownerReferences": [*owners, second]}}
            await attempt(tenant.patch(PODS, each["metadata"]["name"], change))
    await asyncio.sleep(1)
    await attempt(tenant.delete(REPLICASETS, version))


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "rolling"])
@pytest.mark.parametrize("leaves", [without_its_pods, by_its_finalizer, by_a_second_owner])
async def test_versions_leave_their_pods(
    tenant: Tenant, live: LivePods, leaves: Callable[[Tenant, str], Awaitable[None]], is_paused: bool
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    slowly = {"minReadySeconds": 600, "progressDeadlineSeconds": 700}
    await tenant.create(DEPLOYMENTS, web(tenant, 4, strategy=strategy, **slowly))
    await tenant.running(4)
    for turn in range(1, TURNS + 1):
        if is_paused:
            await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
            await asyncio.sleep(0.5)
        await changed(tenant, DEPLOYMENTS, "web", image_of(f"v{turn}"))
        await asyncio.sleep(1)
        for each in await of_deployment(tenant):
            if each["spec"]["template"]["spec"]["containers"][0]["image"] != f"v{turn}":
                await leaves(tenant, each["metadata"]["name"])
        await asyncio.sleep(1.5)
        if is_paused:
            await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}}))
        await for_a_while(lambda turn=turn: has_running(tenant, 4 * turn + 4), 5)
    await live.settled()
