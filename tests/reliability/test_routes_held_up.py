"""Routes through a controller of Kubernetes that is late: its pods come long after what asked for them has changed.

Its client sends some twenty requests a second, and a tenant may keep it busy with workloads of small pods. In each a
tenant with the role `edit` and a group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bizrq.api import overlap
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.overlaps import OVERLAPS
from tests.reliability.routes import (
    attempt,
    for_a_while,
    gone,
    of_kind,
    one_by_one,
    operated,
    owned,
    pod,
    replica_set,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.gate import as_maker
from tests.support.live_pods import LivePods
from tests.support.objects import PODS, PYTORCHJOBS, REPLICASETS, Object
from tests.support.tenant import JOBS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Seconds: more than a payer's own label decides for (`bizrq.workloads.ownership.payers.LATE`).
LONG = 12.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def maker(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client with the name of the controller that makes the pods of ReplicaSets."""
    async with as_maker(cluster.kubeconfig) as maker:
        yield maker


async def asks_for_four(tenant: Tenant, kind: Resource) -> str:
    """Make what asks for four pods, and has one or none for now. Return its uid."""
    if kind is STATEFULSETS:
        uid = (await tenant.create(kind, one_by_one(tenant)))["metadata"]["uid"]
        await tenant.running(1)
        return uid
    worker = {"replicas": 4, "restartPolicy": "Never", "template": web(tenant, 1)["spec"]["template"]}
    return await operated(tenant, kind, {"pytorchReplicaSpecs": {"Worker": worker}})


async def keep_busy(tenant: Tenant) -> None:
    """Have the controller of Jobs make the last 245 of 500 small pods, in one lot: that takes it 12 seconds."""
    made = of_kind(JOBS, web(tenant, 500, name="decoy", app="decoy", cpu="1m"))
    made["spec"]["completions"] = 500
    made["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
    await tenant.create(JOBS, made)

    async def is_in_last_lot() -> bool:
        return len(await tenant.pods()) >= 250

    await eventually(is_in_last_lot, 60, "the decoy is in its last lot")


async def test_jobs_are_suspended_before_their_pods_come(tenant: Tenant, live: LivePods, cluster: Cluster) -> None:
    """Jobs of three and two cores, in four: the controller makes the pods of each spec that it has seen."""
    if not cluster.is_real:
        pytest.skip("the sandbox makes all pods at once")
    await keep_busy(tenant)
    for number in (3, 2):
        job = of_kind(JOBS, web(tenant, number, name=f"own{number}", app=f"own{number}", slow=True))
        job["spec"]["completions"] = number

        async def is_admitted(job: Object = job) -> bool:
            return await attempt(tenant.create(JOBS, job)) is None

        if await for_a_while(is_admitted, 8):
            await asyncio.sleep(1)
            await attempt(tenant.patch(JOBS, f"own{number}", {"spec": {"suspend": True}}))
    await asyncio.sleep(20)
    await live.settled()


async def comes(maker: KubeClient, tenant: Tenant, kind: Resource, name: str, uid: str) -> str:
    """Make a pod of one core for an object, as its controller does. Return the rejection, "" where there is none."""
    made = owned(pod(tenant, f"{name}-1", label=None), kind.kind, name, uid, kind.api_version)
    refused = await attempt(maker.create(PODS, made))
    return refused.message if refused is not None else ""


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
@pytest.mark.parametrize(("kind", "name"), [(STATEFULSETS, "web"), (PYTORCHJOBS, "own")], ids=["StatefulSet", "own"])
async def test_what_makes_pods_is_gone_before_they_come(
    tenant: Tenant, live: LivePods, cluster: Cluster, maker: KubeClient, kind: Resource, name: str, policy: str
) -> None:
    if kind is STATEFULSETS and not cluster.is_real:
        pytest.skip("the sandbox makes all pods at once")
    uid = await asks_for_four(tenant, kind)
    await tenant.delete(kind, name, policy)
    await gone(tenant, kind, name)
    # The group is free at once, for whoever comes next.
    await eventually(lambda: is_admitted(tenant), 5, "another gets its place")
    await eventually(lambda: is_listed(tenant, uid), 5, "the API server is told")
    assert overlap.GONE in await comes(maker, tenant, kind, name, uid)
    await asyncio.sleep(LONG)
    assert overlap.GONE in await comes(maker, tenant, kind, name, uid)
    await tenant.running(4)
    await live.settled()


async def is_listed(tenant: Tenant, uid: str) -> bool:
    return uid in ((await tenant.admin.get(OVERLAPS, overlap.NAME)).get("listed") or {})


async def is_admitted(tenant: Tenant) -> bool:
    return await attempt(tenant.create(REPLICASETS, replica_set(tenant, "next", 4, app="next"))) is None


async def test_what_has_its_pods_leaves_no_entry(tenant: Tenant, maker: KubeClient) -> None:
    uid = (await tenant.create(REPLICASETS, replica_set(tenant, "late", 2)))["metadata"]["uid"]
    await tenant.running(2)
    await tenant.uses("2")
    await tenant.delete(REPLICASETS, "late")
    await tenant.uses("0")
    await asyncio.sleep(2)
    assert not await is_listed(tenant, uid)
    assert await comes(maker, tenant, REPLICASETS, "late", uid) == ""
