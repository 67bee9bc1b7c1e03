"""Routes by pods that stay: a child, or what an owner has left, asks for more pods of a smaller template."""

from __future__ import annotations

import asyncio

import pytest

from tests.reliability.routes import (
    attempt,
    changed,
    for_a_while,
    gone,
    has_running,
    image_of,
    of_deployment,
    of_kind,
    operated,
    owned,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, LEADER_WORKER_SETS, REPLICASETS, Object
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 40


def smaller(cpu: str, replicas: int | None = None) -> Object:
    change = image_of("x", cpu)
    if replicas is not None:
        change["spec"]["replicas"] = replicas
    return change


async def _stay(tenant: Tenant, live: LivePods) -> None:
    await for_a_while(lambda: has_running(tenant, MANY), 5)
    await live.settled()


async def left(tenant: Tenant, live: LivePods) -> str:
    """The name of the ReplicaSet of four that a Deployment has left."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.uses("4")
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await live.settled()
    [made] = await of_deployment(tenant)
    return str(made["metadata"]["name"])


async def test_what_a_deployment_left(tenant: Tenant, live: LivePods) -> None:
    await changed(tenant, REPLICASETS, await left(tenant, live), smaller("100m", MANY))
    await _stay(tenant, live)


async def test_what_a_deployment_left_again_and_again(tenant: Tenant, live: LivePods) -> None:
    """Each time it asks for four cores."""
    name = await left(tenant, live)
    for number in range(1, 5):
        await changed(tenant, REPLICASETS, name, smaller(f"{1000 >> number}m", 4 << number))
        await asyncio.sleep(2)
    await live.settled()


@pytest.mark.parametrize("how", ["at once", "scaled", "edited"])
async def test_a_replica_set_whose_deployment_is_held(tenant: Tenant, live: LivePods, how: str) -> None:
    """No controller works for the Deployment, since somebody deletes it and keeps it."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.uses("4")
    await tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": ["example.org/held"]}})
    await tenant.delete(DEPLOYMENTS, "web")
    [made] = await of_deployment(tenant)
    name = made["metadata"]["name"]
    try:
        await changed(tenant, REPLICASETS, name, smaller("100m", MANY if how == "at once" else None))
        if how == "scaled":
            await attempt(tenant.scale(REPLICASETS, name, MANY))
        elif how == "edited":
            await changed(tenant, REPLICASETS, name, {"spec": {"replicas": MANY}})
        await _stay(tenant, live)
    finally:
        await tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("is_left", [False, True], ids=["below it", "left"])
async def test_a_stateful_set_of_a_leader_worker_set(tenant: Tenant, live: LivePods, is_left: bool) -> None:
    """It replaces none of its pods itself."""
    template = web(tenant, 1, label=None)["spec"]["template"]
    leaders = {"replicas": 4, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    uid = await operated(tenant, LEADER_WORKER_SETS, leaders)
    made = of_kind(STATEFULSETS, web(tenant, 4, label=None))
    made["spec"] |= {"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel"}
    await tenant.create(STATEFULSETS, owned(made, "LeaderWorkerSet", "own", uid, LEADER_WORKER_SETS.api_version))
    await tenant.running(4)
    await live.settled()
    if is_left:
        await tenant.delete(LEADER_WORKER_SETS, "own", "Orphan")
        await gone(tenant, LEADER_WORKER_SETS, "own")
        await live.settled()
    await changed(tenant, STATEFULSETS, "web", smaller("100m", MANY))
    await _stay(tenant, live)
