"""Routes of what somebody makes below a pod: few kinds have pods that make others.

In each a tenant with the role `edit` tries to run more than the four cores of a group. What is below a pod and names a
group pays for itself.
"""

from __future__ import annotations

import asyncio

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import (
    attempt,
    for_a_while,
    gone,
    has_running,
    of_kind,
    one_by_one,
    operated,
    owned,
    pod,
    web,
)
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, LEADER_WORKER_SETS, PODS, Object
from tests.support.tenant import JOBS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 12


def below(made: Object, above: Object) -> Object:
    return owned(made, "Pod", above["metadata"]["name"], above["metadata"]["uid"], "v1")


@pytest.mark.parametrize("kind", [DEPLOYMENTS, STATEFULSETS, JOBS], ids=lambda each: each.kind)
async def test_pods_below_the_pod_of_a_workload(tenant: Tenant, live: LivePods, kind: Resource) -> None:
    """Three at a time have room in the group."""
    await tenant.create(kind, of_kind(kind, web(tenant, 1)))
    [first] = await tenant.running(1)
    for number in range(MANY):
        label = None if number % 2 else tenant.name
        await attempt(tenant.create(PODS, below(pod(tenant, f"x{number}", label=label), first)))
        if number % 3 == 2:
            await asyncio.sleep(2)
    await live.settled()


async def test_pods_that_pay_get_the_pod_of_a_workload_as_owner(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 1)))
    [first] = await tenant.running(1)
    owners = below(pod(tenant, "x"), first)["metadata"]["ownerReferences"]
    for number in range(6):
        await attempt(tenant.create(PODS, pod(tenant, f"x{number}")))
        await asyncio.sleep(0.5)
        await attempt(tenant.patch(PODS, f"x{number}", {"metadata": {"ownerReferences": owners}}))
        await attempt(tenant.patch(PODS, f"x{number}", {"metadata": {"labels": {LABEL: None}}}))
        await asyncio.sleep(1)
    await live.settled()


async def test_pods_below_one_of_those_that_a_stateful_set_makes_one_by_one(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    """They would take the part of those that its controller makes later."""
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets make all their pods at once")
    await tenant.create(STATEFULSETS, one_by_one(tenant))
    [first] = await tenant.running(1)
    for number in range(3):
        await attempt(tenant.create(PODS, below(pod(tenant, f"x{number}", label=None), first)))
    await tenant.patch(STATEFULSETS, "web", {"spec": {"minReadySeconds": 0}})
    await tenant.running(4)
    await live.settled()


@pytest.mark.parametrize("kind", [PODS, STATEFULSETS], ids=["pods", "a StatefulSet"])
@pytest.mark.parametrize("default", [False, True], ids=["label", "default"])
async def test_below_a_pod_that_is_left(tenant: Tenant, live: LivePods, kind: Resource, default: bool) -> None:
    """The group is full."""
    if default:
        await tenant.has_default()
    await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 4, label=None if default else "")))
    first = next(each for each in await tenant.running(4) if each["metadata"]["name"] == "web-0")
    await tenant.delete(STATEFULSETS, "web", "Orphan")
    await gone(tenant, STATEFULSETS, "web")
    await asyncio.sleep(2)
    if kind is PODS:
        for number in range(MANY):
            await attempt(tenant.create(PODS, below(pod(tenant, f"x{number}", label=None), first)))
    else:
        more = of_kind(STATEFULSETS, web(tenant, MANY, name="more", app="more", label=None))
        await attempt(tenant.create(STATEFULSETS, below(more, first)))
    await for_a_while(lambda: has_running(tenant, 4 + MANY), 6)
    await asyncio.sleep(2)
    await live.settled()


async def test_a_chain_of_owners_that_is_longer_than_is_followed(tenant: Tenant, live: LivePods) -> None:
    """The pods of a LeaderWorkerSet make StatefulSets, whose pods make others."""
    template = of_kind(STATEFULSETS, web(tenant, 1, label=None))["spec"]["template"]
    spec = {"replicas": 4, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
    uid = await operated(tenant, LEADER_WORKER_SETS, spec)
    above = ("LeaderWorkerSet", "own", uid, LEADER_WORKER_SETS.api_version)
    for number in range(9):
        each = of_kind(STATEFULSETS, web(tenant, 1, name=f"s{number}", app=f"s{number}", label=None, cpu="1m"))
        await attempt(tenant.create(STATEFULSETS, owned(each, *above)))
        if not await for_a_while(lambda number=number: has_running(tenant, number + 1), 10):
            break
        found = await tenant.admin.get(PODS, f"s{number}-0", tenant.name)
        above = ("Pod", f"s{number}-0", found["metadata"]["uid"], "v1")
    large = of_kind(STATEFULSETS, web(tenant, MANY, name="large", app="large", label=None))
    await attempt(tenant.create(STATEFULSETS, owned(large, *above)))
    await for_a_while(lambda: has_running(tenant, MANY), 6)
    await live.settled()
