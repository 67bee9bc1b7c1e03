"""Routes by adoption: what one group pays for, or none, gets an owner that another group pays for.

In each a tenant with the role `edit` tries to run more than the groups have together, or to have one of them charged
beyond its four cores, so that nobody in it may grow any more.
"""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from tests.reliability.routes import (
    SLOWLY,
    another_group,
    attempt,
    attempts,
    for_a_while,
    gone,
    has_running,
    of_kind,
    owned,
    pod,
    replica_set,
    web,
)
from tests.support.cluster import Cluster
from tests.support.gate import as_maker
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3
MANY = 12


@pytest_asyncio.fixture(loop_scope="module")
async def other(tenant: Tenant) -> str:
    return await another_group(tenant, "other")


@pytest.mark.parametrize(
    "kind", [REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS], ids=["ReplicaSet", "RC", "StatefulSet"]
)
async def test_pods_without_an_owner_are_adopted_by_what_wants_none(
    tenant: Tenant, other: str, both: LivePods, kind: Resource
) -> None:
    """It ends them, which takes a day, and another group pays for it."""
    for number in range(ROUNDS):
        app, name = f"x{number}", f"taker{number}"
        pods = [pod(tenant, f"{name}-{each}", app=app, slow=True) for each in range(4)]
        await attempts(tenant.create(PODS, each) for each in pods)
        await for_a_while(lambda: has_running(tenant, 4), 5)
        await asyncio.sleep(1)
        await attempt(tenant.create(kind, of_kind(kind, web(tenant, 0, name=name, label=other, app=app))))

        async def is_taken() -> bool:
            return all("deletionTimestamp" in each["metadata"] for each in await tenant.pods())

        await for_a_while(is_taken, 8)
        await asyncio.sleep(2)
    await both.settled()


@pytest.mark.parametrize(
    "kind",
    [REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS, DEPLOYMENTS],
    ids=["ReplicaSet", "RC", "StatefulSet", "Deployment"],
)
async def test_large_ones_of_no_group_are_adopted_by_a_small_one(tenant: Tenant, kind: Resource) -> None:
    """Of those that its owner adopts, the group pays for as many as fit."""
    if kind is DEPLOYMENTS:
        await tenant.create(REPLICASETS, _to_adopt(replica_set(tenant, "taker", MANY, label=None, app="taker")))
    else:
        for number in range(MANY):
            await tenant.create(PODS, pod(tenant, f"taker-{number}", label=None, app="taker"))
    await tenant.running(MANY)
    small = web(tenant, MANY, name="taker", app="taker", cpu="1m", **({} if kind is not DEPLOYMENTS else SLOWLY))
    await tenant.create(kind, of_kind(kind, small))
    await _is_never_over(tenant)
    await tenant.delete(kind, "taker", "Orphan")
    await _is_never_over(tenant)


async def job_that_left_pods(tenant: Tenant, live: LivePods) -> Object:
    """A Job of four pods, which it has left."""
    made = of_kind(JOBS, web(tenant, 4, slow=True))
    made["spec"] |= {"manualSelector": True, "selector": {"matchLabels": {"app": "x"}}}
    await tenant.create(JOBS, made)
    await tenant.running(4)
    await live.settled()
    await tenant.delete(JOBS, "web", "Orphan")
    await gone(tenant, JOBS, "web")
    await live.settled()
    return made


@pytest.mark.parametrize("suspend", [True, False])
async def test_pods_are_left_to_a_job_that_nobody_manages(tenant: Tenant, live: LivePods, suspend: bool) -> None:
    """Nobody adopts them: what it asks for comes besides, and where that is nothing they are charged all the same."""
    made = await job_that_left_pods(tenant, live)
    refused = await attempt(tenant.create(JOBS, {**made, "spec": {**made["spec"], **NOBODYS, "suspend": suspend}}))
    assert (refused is None) is suspend
    await asyncio.sleep(2)
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="more", app="more")))
    await live.settled()


async def test_pods_leave_a_job_that_nobody_manages(tenant: Tenant, live: LivePods) -> None:
    """Right after it was created, as if it came in place of another."""
    made = of_kind(JOBS, web(tenant, 2))
    made["spec"] |= {**NOBODYS, "manualSelector": True, "selector": {"matchLabels": {"app": "x"}}}
    uid = (await tenant.create(JOBS, made))["metadata"]["uid"]
    for turn in range(3):
        names = [f"p{turn}-{number}" for number in range(2)]
        child = [owned(pod(tenant, name, label=None, app="x"), "Job", "web", uid, "batch/v1") for name in names]
        await attempts(tenant.create(PODS, each) for each in child)
        await attempts(tenant.patch(PODS, name, {"metadata": {"ownerReferences": None}}) for name in names)
        await asyncio.sleep(1)
    await live.settled()


NOBODYS = {"managedBy": "example.com/nobody"}


async def test_pods_of_no_index_are_left_to_an_indexed_job(tenant: Tenant, live: LivePods) -> None:
    """It would adopt them, delete them, which takes a day, and make as many."""
    made = await job_that_left_pods(tenant, live)
    made["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    refused = await attempt(tenant.create(JOBS, made))
    assert refused is not None
    assert "exceeded quota" in refused.message
    assert (
        await attempt(tenant.create(JOBS, {**made, "spec": {**made["spec"], "completionMode": "NonIndexed"}})) is None
    )
    await live.settled()


async def test_what_is_adopted_as_its_adopter_goes_is_charged_to_none(cluster: Cluster, tenant: Tenant) -> None:
    """A controller asks once whether it may adopt pods, and then adopts one after the other."""
    made = await tenant.create(REPLICASETS, replica_set(tenant, "taker", 3, app="taker"))
    await tenant.uses("3")
    for number in range(MANY):
        await tenant.create(PODS, pod(tenant, f"late-{number}", label=None, app="late", slow=True))
    await tenant.running(MANY + 3)
    await tenant.delete(REPLICASETS, "taker", "Orphan")
    await gone(tenant, REPLICASETS, "taker")
    async with as_maker(cluster.kubeconfig) as maker:
        change = owned({"metadata": {}}, "ReplicaSet", "taker", made["metadata"]["uid"])
        for number in range(MANY):
            await maker.patch(PODS, f"late-{number}", change, namespace=tenant.name)
    await _is_never_over(tenant)


def _to_adopt(version: Object) -> Object:
    """The ReplicaSet with the label by which Deployments find theirs."""
    version["metadata"]["labels"]["app"] = "taker"
    return version


async def _is_never_over(tenant: Tenant) -> None:
    seen: list[wire.GroupStatus] = []

    async def is_over() -> bool:
        seen[:] = [wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status]
        return quantity.parse((seen[0].used or {})["limits.cpu"]) > 4 * quantity.NANO

    assert not await for_a_while(is_over, 8), str(seen)
