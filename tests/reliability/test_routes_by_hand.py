"""Routes of children that a person makes by hand: below an owner that pays, without a label, or in place of others.

Their namespaces have no default group, so that a child without a label names no group. In each a tenant with the role
`edit` tries to have a group charged beyond its four cores.
"""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import (
    another_group,
    attempt,
    attempts,
    cores,
    for_a_while,
    gone,
    has_running,
    may_operate,
    one_by_one,
    owned,
    pod,
    ray_cluster,
    replica_set,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import (
    DEPLOYMENTS,
    PODS,
    RAYCLUSTERS,
    RAYSERVICES,
    REPLICASETS,
    TFJOBS,
    Object,
    rayservice,
    tfjob,
)
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY, ROUNDS = 12, 4


@pytest_asyncio.fixture(loop_scope="module")
async def other(tenant: Tenant, unique: str) -> str:
    return await another_group(tenant, unique)


def unlabelled(tenant: Tenant, kind: str, name: str, uid: str, version: str = "apps/v1") -> list[Object]:
    pods = [pod(tenant, f"p{n}", label=None, app="x", slow=True) for n in range(MANY)]
    return [owned(each, kind, name, uid, version) for each in pods]


async def test_pods_without_a_label_below_a_replica_set(tenant: Tenant, live: LivePods) -> None:
    """Its controller ends those that are too many, which takes them a day."""
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 1, slow=True))
    await tenant.running(1)
    await attempts(
        tenant.create(PODS, each) for each in unlabelled(tenant, "ReplicaSet", "rs", made["metadata"]["uid"])
    )
    await live.settled()


@pytest.mark.parametrize("is_labelled_later", [False, True], ids=["labelled", "labelled later"])
async def test_a_large_pod_among_those_that_a_stateful_set_makes_one_by_one(
    tenant: Tenant, live: LivePods, cluster: Cluster, is_labelled_later: bool
) -> None:
    """It waits an hour between two: a person makes the second, of three cores, and has it make the others."""
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets make all their pods at once")
    made = await tenant.create(STATEFULSETS, one_by_one(tenant, None if is_labelled_later else ""))
    uid = made["metadata"]["uid"]
    await tenant.running(1)
    second = owned(pod(tenant, "web-1", label=None, app="x"), "StatefulSet", "web", uid)
    second["spec"]["containers"][0]["resources"] = {part: {"cpu": "3"} for part in ("limits", "requests")}
    await attempt(tenant.create(PODS, second))
    if is_labelled_later:
        await attempt(tenant.patch(STATEFULSETS, "web", {"metadata": {"labels": {LABEL: tenant.name}}}))
    await tenant.patch(STATEFULSETS, "web", {"spec": {"minReadySeconds": 0}})
    await for_a_while(lambda: has_running(tenant, 4), 10)
    if is_labelled_later:
        assert await cores(tenant, tenant.name) == 0
    else:
        await live.settled()


async def test_pods_without_a_label_below_what_no_controller_reads(tenant: Tenant, live: LivePods) -> None:
    await may_operate(tenant, RAYCLUSTERS)
    uid = (await tenant.create(RAYCLUSTERS, ray_cluster(tenant, "own", 0)))["metadata"]["uid"]
    pods = unlabelled(tenant, "RayCluster", "own", uid, RAYCLUSTERS.api_version)
    assert await attempts(tenant.create(PODS, each) for each in pods) <= 4
    await live.settled()


async def test_pods_that_get_an_owner(tenant: Tenant, live: LivePods) -> None:
    """They were nobody's when they were made."""
    await may_operate(tenant, RAYCLUSTERS)
    uid = (await tenant.create(RAYCLUSTERS, ray_cluster(tenant, "own", 0)))["metadata"]["uid"]
    pods = unlabelled(tenant, "RayCluster", "own", uid, RAYCLUSTERS.api_version)
    for each in pods:
        await tenant.create(PODS, {**each, "metadata": {**each["metadata"], "ownerReferences": []}})
    changes = [{"metadata": {"ownerReferences": each["metadata"]["ownerReferences"]}} for each in pods]
    names = [each["metadata"]["name"] for each in pods]
    given = [tenant.patch(PODS, name, change) for name, change in zip(names, changes, strict=True)]
    assert await attempts(given) <= 4
    await asyncio.sleep(2)
    assert await cores(tenant, tenant.name) <= 4


async def test_pods_without_a_label_below_what_another_group_pays_for(tenant: Tenant, other: str) -> None:
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 0, slow=True, label=other))
    await attempts(
        tenant.create(PODS, each) for each in unlabelled(tenant, "ReplicaSet", "rs", made["metadata"]["uid"])
    )
    await asyncio.sleep(3)
    assert await cores(tenant, other) <= 4


@pytest.mark.parametrize("kept", [False, True], ids=["collected", "kept by another owner"])
@pytest.mark.parametrize("labelled", [False, True], ids=["without a label", "of another group"])
async def test_pods_that_name_an_owner_which_has_just_gone(
    tenant: Tenant, other: str, kept: bool, labelled: bool
) -> None:
    """A controller that is late makes such pods, and the group pays for those."""
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 0, slow=True, label=other))
    await tenant.delete(REPLICASETS, "rs", "Background")
    await gone(tenant, REPLICASETS, "rs")
    # A pod's creation is known to the second.
    await asyncio.sleep(1)
    pods = unlabelled(tenant, "ReplicaSet", "rs", made["metadata"]["uid"])
    if kept:
        keeper = await tenant.create(REPLICASETS, replica_set(tenant, "keeper", 0, label=None, app="k"))
        uid = keeper["metadata"]["uid"]
        more = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "keeper", "uid": uid}
        for each in pods:
            each["metadata"]["ownerReferences"].append(more)
    if labelled:
        for each in pods:
            each["metadata"]["labels"][LABEL] = tenant.name
    refused = [await attempt(tenant.create(PODS, each)) for each in pods]
    if not labelled:
        assert all(each is not None and "there is no ReplicaSet rs" in each.message for each in refused)
    await asyncio.sleep(3)
    assert await cores(tenant, other) <= 0


@pytest.mark.parametrize("to", ["without a label", "of another group"])
async def test_pods_that_run_get_an_owner_which_has_gone(tenant: Tenant, other: str, to: str) -> None:
    label = None if to == "without a label" else tenant.name
    pods = [pod(tenant, f"p{n}", label=label, app="x", slow=True) for n in range(4)]
    for each in pods:
        await tenant.create(PODS, each)
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 0, label=other, app="rs"))
    await tenant.delete(REPLICASETS, "rs", "Background")
    await gone(tenant, REPLICASETS, "rs")
    [reference] = owned(pods[0], "ReplicaSet", "rs", made["metadata"]["uid"])["metadata"]["ownerReferences"]
    change = {"metadata": {"ownerReferences": [reference]}}
    refused = [await attempt(tenant.patch(PODS, each["metadata"]["name"], change)) for each in pods]
    assert all(each is not None and "there is no ReplicaSet rs" in each.message for each in refused)
    assert await cores(tenant, other) == 0


async def test_pods_that_a_workload_adopts_which_goes_at_once(tenant: Tenant, other: str) -> None:
    """Their group admitted them, and the other one has admitted none."""
    for number in range(4):
        await tenant.create(PODS, pod(tenant, f"p{number}", app="x", slow=True))
    await tenant.uses("4")
    await tenant.create(REPLICASETS, replica_set(tenant, "rs", 0, slow=True, label=other))
    await tenant.delete(REPLICASETS, "rs", "Background")
    await asyncio.sleep(1)

    async def stay() -> bool:
        return (await cores(tenant, tenant.name), await cores(tenant, other)) == (4, 0)

    await eventually(stay, 15, "the group that admitted them pays")


async def test_pods_below_an_owner_that_has_just_gone_where_a_default_pays(tenant: Tenant, other: str) -> None:
    """The default's group would admit them, and the other one pay."""
    await tenant.has_default(**{LABEL: tenant.name})
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 1, slow=True, label=other))
    await tenant.running(1)
    await asyncio.sleep(1)
    await tenant.delete(REPLICASETS, "rs", "Orphan")
    await gone(tenant, REPLICASETS, "rs")
    await asyncio.sleep(1)
    pods = unlabelled(tenant, "ReplicaSet", "rs", made["metadata"]["uid"])
    assert not await attempts(tenant.create(PODS, each) for each in pods)
    await asyncio.sleep(2)
    assert await cores(tenant, other) == 1


async def test_pods_without_a_label_below_what_a_workload_has_left(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 1, slow=True))
    await tenant.running(1)
    await tenant.uses("1")
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    [left] = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    await asyncio.sleep(2)
    pods = unlabelled(tenant, "ReplicaSet", left["metadata"]["name"], left["metadata"]["uid"])
    for each in pods:
        each["metadata"]["labels"] |= left["spec"]["selector"]["matchLabels"]
    # Its controller deletes them at once, so that others may fit.
    await attempts(tenant.create(PODS, each) for each in pods)
    await live.settled()


async def test_pods_of_another_group_below_what_a_workload_has_left(tenant: Tenant, other: str) -> None:
    """Their own label decides nothing: the group that pays for what is left pays for them, within its quota."""
    await tenant.create(DEPLOYMENTS, web(tenant, 1, slow=True, label=other))
    await tenant.running(1)
    await asyncio.sleep(1)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    [left] = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    await asyncio.sleep(2)
    for turn in range(3):
        pods = [pod(tenant, f"p{turn}-{n}", app="x", slow=True) for n in range(4)]
        for each in pods:
            each["metadata"]["labels"] |= left["spec"]["selector"]["matchLabels"]
        made = [owned(each, "ReplicaSet", left["metadata"]["name"], left["metadata"]["uid"]) for each in pods]
        await attempts(tenant.create(PODS, each) for each in made)
        await asyncio.sleep(2)
    await _pays_alone(tenant, other)


@pytest.mark.parametrize("labelled", [False, True], ids=["without a label", "of another group"])
async def test_pods_below_what_an_operators_workload_has_left(tenant: Tenant, other: str, labelled: bool) -> None:
    """No controller of Kubernetes reads it, and an account that is not listed adds pods."""
    await may_operate(tenant, RAYSERVICES)
    await may_operate(tenant, RAYCLUSTERS)
    above = await tenant.create(RAYSERVICES, rayservice("serve", other, 1, namespace=tenant.name))
    cluster = owned(ray_cluster(tenant, "own", 1), "RayService", "serve", above["metadata"]["uid"], "ray.io/v1")
    del cluster["metadata"]["labels"]
    uid = (await tenant.create(RAYCLUSTERS, cluster))["metadata"]["uid"]
    first = owned(pod(tenant, "first", label=None, app="x"), "RayCluster", "own", uid, "ray.io/v1")
    assert await attempts([tenant.create(PODS, first)]) == 1
    await asyncio.sleep(2)
    await tenant.delete(RAYSERVICES, "serve", "Orphan")
    await gone(tenant, RAYSERVICES, "serve")
    await asyncio.sleep(2)
    pods = unlabelled(tenant, "RayCluster", "own", uid, "ray.io/v1")
    if labelled:
        for each in pods:
            each["metadata"]["labels"][LABEL] = tenant.name
    assert await attempts(tenant.create(PODS, each) for each in pods) == 3
    await _pays_alone(tenant, other)


async def _pays_alone(tenant: Tenant, other: str) -> None:
    """Wait until the other group pays for all pods that are left, and the tenant's own for none."""

    async def is_settled() -> bool:
        # A bound pod that is gone without a terminal phase is charged for its grace.
        return len(await tenant.pods()) <= await cores(tenant, other) and not await cores(tenant, tenant.name)

    await eventually(is_settled, 20, "the group that paid pays for all that is left")
    assert await cores(tenant, other) <= 4


@pytest.mark.parametrize("resource", [REPLICASETS, TFJOBS, RAYCLUSTERS], ids=lambda each: each.kind)
async def test_a_person_replaces_pods_that_end_slowly(tenant: Tenant, live: LivePods, resource: Resource) -> None:
    """Once its group is over its quota, a slot gets no pod in the place of those that end, from nobody."""
    if resource is REPLICASETS:
        made = await tenant.create(REPLICASETS, replica_set(tenant, "own", 4, slow=True))
        await tenant.running(4)
    else:
        await may_operate(tenant, resource)
        body = ray_cluster(tenant, "own", 3)
        if resource is TFJOBS:
            body = tfjob("own", tenant.name, 4, namespace=tenant.name, gpu=0)
        made = await tenant.create(resource, body)
    uid = made["metadata"]["uid"]
    for number in range(ROUNDS):
        if resource is REPLICASETS or number:
            fresh = [each["metadata"] for each in await tenant.pods() if "deletionTimestamp" not in each["metadata"]]
            await attempts(tenant.delete(PODS, each["name"]) for each in fresh)
            await asyncio.sleep(2)
        pods = [pod(tenant, f"p{number}-{n}", app="x", slow=True) for n in range(4)]
        children = [owned(each, resource.kind, "own", uid, resource.api_version) for each in pods]
        await attempts(tenant.create(PODS, each) for each in children)
        await for_a_while(lambda: has_running(tenant, 4), 3)
        await asyncio.sleep(1)
    await live.settled(over=4, ever=8)


async def test_a_person_replaces_pods_below_what_is_held_while_it_is_deleted(tenant: Tenant, live: LivePods) -> None:
    """No controller makes pods for it any more, so those that end count as the declared ones."""
    made = replica_set(tenant, "own", 4, slow=True)
    made["metadata"]["finalizers"] = ["example.org/held"]
    uid = (await tenant.create(REPLICASETS, made))["metadata"]["uid"]
    await tenant.running(4)
    await tenant.delete(REPLICASETS, "own", "Background")
    for number in range(ROUNDS):
        fresh = [each["metadata"] for each in await tenant.pods() if "deletionTimestamp" not in each["metadata"]]
        await attempts(tenant.delete(PODS, each["name"]) for each in fresh)
        await asyncio.sleep(2)
        pods = [pod(tenant, f"p{number}-{n}", app="x", slow=True) for n in range(4)]
        await attempts(tenant.create(PODS, owned(each, "ReplicaSet", "own", uid)) for each in pods)
        await for_a_while(lambda: has_running(tenant, 4), 3)
    await live.settled(over=4, ever=8)
    await tenant.patch(REPLICASETS, "own", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("many", [1, 2])
async def test_owners_in_a_circle(tenant: Tenant, live: LivePods, many: int) -> None:
    """Each names the next as its controller; then their labels go."""
    made = [await tenant.create(REPLICASETS, replica_set(tenant, f"rs{n}", 1, app=f"rs{n}")) for n in range(many)]
    await tenant.running(many)
    await tenant.uses(str(many))
    for number, each in enumerate(made):
        to = made[(number + 1) % many]["metadata"]
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": to["name"], "uid": to["uid"]}
        change = {"metadata": {"ownerReferences": [{**reference, "controller": True}]}}
        await attempt(tenant.patch(REPLICASETS, each["metadata"]["name"], change))
    await asyncio.sleep(1)
    for labels in ({LABEL: None}, {"other": "x"}):
        for each in made:
            await attempt(tenant.patch(REPLICASETS, each["metadata"]["name"], {"metadata": {"labels": labels}}))
    await live.settled()
