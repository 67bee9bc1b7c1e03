"""Routes by references that name the uid of another group's workload, and another name.

In each a tenant with the role `edit` may charge two groups of four cores, and a controller runs. What has the uid alone
pays for itself, whatever becomes of the workload that has it.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.reliability import test_routes_moves
from tests.reliability.routes import (
    attempt,
    cores,
    for_a_while,
    gone,
    has_running,
    of_deployment,
    owned,
    pod,
    replica_set,
    web,
)
from tests.reliability.test_routes_moves import Moving, use
from tests.support.live_pods import LivePods
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

moving, parts, other = test_routes_moves.moving, test_routes_moves.parts, test_routes_moves.other
#: The garbage collector cannot look for an owner in a version that nobody serves, so that the reference stays.
NOWHERE = "apps/v9"


async def victim(tenant: Tenant, other: str, replicas: int, own: int = 0) -> Object:
    """A Deployment of the other group, beside another that uses so much of it."""
    if own:
        await tenant.create(DEPLOYMENTS, web(tenant, own, name="own", app="own", label=other))
    made = await tenant.create(DEPLOYMENTS, web(tenant, replicas, name="victim", app="v", label=other))
    await use(tenant, **{other: str(own + replicas)})
    return made


async def forge(tenant: Tenant, paying: Object, replicas: int, *, version: str = NOWHERE) -> None:
    """Make a ReplicaSet of the tenant's own group whose reference has the uid of that Deployment."""
    mine = replica_set(tenant, "mine", replicas, app="m")
    await tenant.create(REPLICASETS, owned(mine, "Deployment", "ghost", paying["metadata"]["uid"], version))


async def test_it_grows(tenant: Tenant, both: LivePods, other: str, moving: Moving) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="more", app="more"))
    await tenant.running(3)
    paying = await victim(tenant, other, 1)
    await forge(tenant, paying, 1)
    await use(tenant, **{tenant.name: "4", other: "1"})
    for count in (4, 7):
        await attempt(tenant.patch(REPLICASETS, "mine", {"spec": {"replicas": count}}))
        await for_a_while(partial(has_running, tenant, count + 4), 3)
    await both.settled()
    assert await cores(tenant, tenant.name) <= 4
    assert await cores(tenant, other) == 1


async def test_it_grows_before_the_garbage_collector_takes_the_reference(
    tenant: Tenant, both: LivePods, other: str, moving: Moving
) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="more", app="more"))
    await tenant.running(3)
    paying = await victim(tenant, other, 1)
    await use(tenant, **{tenant.name: "3"})
    kept_by = await tenant.create(CONFIG_MAPS, {"metadata": {"name": "keeper", "namespace": tenant.name}})
    mine = owned(replica_set(tenant, "mine", 1, app="m"), "Deployment", "ghost", paying["metadata"]["uid"])
    keeper = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": kept_by["metadata"]["uid"]}
    mine["metadata"]["ownerReferences"].append(keeper)
    await tenant.create(REPLICASETS, mine)
    await attempt(tenant.patch(REPLICASETS, "mine", {"spec": {"replicas": 4}}))
    await for_a_while(partial(has_running, tenant, 8), 4)
    await both.settled()
    assert await cores(tenant, tenant.name) <= 4
    assert await cores(tenant, other) == 1


@pytest.mark.parametrize("how", ["by hand", "by its namesake", "with that"])
async def test_the_reference_goes(tenant: Tenant, both: LivePods, other: str, moving: Moving, how: str) -> None:
    """The other group is full but for one core. A Deployment that is written looks at all that names its uid."""
    paying = await victim(tenant, other, 0, own=3)
    await forge(tenant, paying, 3)
    await tenant.running(6)
    await use(tenant, **{tenant.name: "3", other: "3"})
    if how == "by hand":
        await tenant.patch(REPLICASETS, "mine", {"metadata": {"ownerReferences": None}})
    elif how == "by its namesake":
        await tenant.patch(DEPLOYMENTS, "victim", {"spec": {"minReadySeconds": 1}})
    else:
        await tenant.delete(DEPLOYMENTS, "victim")
        await gone(tenant, DEPLOYMENTS, "victim")
    await asyncio.sleep(3)
    assert await cores(tenant, other) == 3
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="theirs", app="theirs", label=other))
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="fill", app="fill")))
    await for_a_while(partial(has_running, tenant, 8), 3)
    await both.settled()
    assert await cores(tenant, other) == 4


@pytest.mark.parametrize(("of", "kind"), [("the Deployment", "ReplicaSet"), ("its ReplicaSet", "Job")])
async def test_it_goes_and_pods_name_another_kind(
    tenant: Tenant, both: LivePods, other: str, moving: Moving, of: str, kind: str
) -> None:
    """The other group is full, and the tenant's own but for one core. The kind that is named makes pods."""
    paying = await victim(tenant, other, 1, own=3)
    if of == "its ReplicaSet":
        [paying] = await of_deployment(tenant, "victim")
    version = {"ReplicaSet": NOWHERE, "Job": "batch/v9"}[kind]
    for name in ("p0", "p1", "p2"):
        await tenant.create(PODS, owned(pod(tenant, name), kind, "ghost", paying["metadata"]["uid"], version))
    await use(tenant, **{tenant.name: "3", other: "4"})
    await tenant.delete(DEPLOYMENTS, "victim")
    await gone(tenant, DEPLOYMENTS, "victim")
    await tenant.running(6)
    await asyncio.sleep(3)
    await use(tenant, **{tenant.name: "3", other: "3"})
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="fill", app="fill")))
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="theirs", app="theirs", label=other))
    await for_a_while(partial(has_running, tenant, 8), 3)
    await both.settled()
    assert await cores(tenant, other) == 4
