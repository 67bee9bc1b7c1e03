"""Children of what pays: a tenant with the role `edit` tries by their labels and owners to get more than the group has.

What is held against `hard` are the pods that there are, which no code of bizrq is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, REQUIRED
from tests.support.cluster import Cluster, eventually, refusal
from tests.support.objects import (
    DEPLOYMENTS,
    PODS,
    RAYCLUSTERS,
    REPLICASETS,
    Object,
    deployment,
    group,
    ray_spec,
    template,
)
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
#: What the tenant's group has.
HARD = 4


async def deployed(tenant: Tenant, replicas: int) -> list[Object]:
    """The pods of a Deployment of the tenant."""
    await tenant.create(DEPLOYMENTS, deployment("web", tenant.name, replicas, namespace=tenant.name))
    await tenant.uses(str(replicas))
    return await tenant.pods()


async def label(tenant: Tenant, resource: Resource, obj: Object, **labels: str | None) -> None:
    """As `kubectl label` does."""
    body = {"metadata": {"labels": labels}}
    await tenant.client.patch(resource, obj["metadata"]["name"], body, namespace=tenant.name)


async def allowed(*requests: Awaitable[object]) -> int:
    """How many of these, all at once, are not refused."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert all(not isinstance(answer, BaseException) or isinstance(answer, ApiError) for answer in answers), answers
    return sum(not isinstance(answer, BaseException) for answer in answers)


async def orphaned(tenant: Tenant, resource: Resource, name: str) -> None:
    """Delete an object and keep what it made, as `kubectl delete --cascade=orphan` does."""
    await tenant.delete(resource, name, "Orphan")

    async def gone() -> bool:
        try:
            await tenant.admin.get(resource, name, tenant.name)
        except NotFound:
            return True
        return False

    await eventually(gone, 60, f"{name} is gone")


@pytest.mark.parametrize("other", ["nosuch", "foreign"])
async def test_the_label_of_a_child_cannot_change(tenant: Tenant, other: str) -> None:
    """Again and again, on pods and on their ReplicaSet; a group of others is not charged either."""
    name = other if other == "nosuch" else f"{tenant.name}-foreign"
    if other == "foreign":
        foreign = group(name, cpu="9")
        foreign["spec"]["namespaceSelector"] = {"matchLabels": {"team": "others"}}
        await tenant.admin.create(GROUPS, foreign)
    await deployed(tenant, 2)
    for _ in range(3):
        [owner] = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
        for resource, obj in [(REPLICASETS, owner), *((PODS, pod) for pod in await tenant.pods())]:
            error = await refusal(label(tenant, resource, obj, **{LABEL: name}))
            assert (error.status, "cannot change to" in error.message) == (403, True), error
    for pod in await tenant.pods():
        await label(tenant, PODS, pod, tier="a", **{LABEL: tenant.name})
        await label(tenant, PODS, pod, **{LABEL: None})
    await tenant.uses("2")


async def test_children_that_are_taken_out_have_to_fit(tenant: Tenant) -> None:
    """A tenant detaches pods again and again; the ReplicaSet makes others in their place."""
    await deployed(tenant, 2)
    for number in range(12):
        for pod in await tenant.pods():
            if pod["metadata"]["labels"].get("app") == "x":
                await allowed(label(tenant, PODS, pod, app=f"mine-{number}"))
        assert await tenant.live() <= HARD
    [owner] = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    await allowed(label(tenant, REPLICASETS, owner, app="mine"))
    assert await tenant.live() <= HARD


async def test_a_label_that_no_selector_uses_may_change(tenant: Tenant) -> None:
    """Pods of one Deployment elect a leader, in a group that is full."""
    found = await deployed(tenant, HARD)
    for role in ("master", "replica", "master", None):
        for pod in found:
            await label(tenant, PODS, pod, role=role)
    await tenant.uses(str(HARD))


def below(tenant: Tenant, name: str, api_version: str, kind: str, uid: str, **labels: str) -> Object:
    owner = {"apiVersion": api_version, "kind": kind, "name": "gone", "uid": uid, "controller": True}
    metadata = {"name": name, "namespace": tenant.name, "labels": {"app": "x", **labels}, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template()["spec"]}


@pytest.mark.parametrize("version", ["apps/v1", "apps/v9"])
async def test_an_invented_owner_pays_for_nothing(tenant: Tenant, version: str) -> None:
    made = [below(tenant, f"p{n}", version, "ReplicaSet", f"invented-{n}", **{LABEL: tenant.name}) for n in range(8)]
    assert await allowed(*(tenant.create(PODS, pod) for pod in made))
    assert await tenant.live() <= HARD


async def test_an_invented_owner_is_no_way_round_a_default(tenant: Tenant) -> None:
    await tenant.has_default(**{LABEL: tenant.name})
    made = deployment("rs", None, HARD + 1, namespace=tenant.name)
    reference = below(tenant, "x", "apps/v9", "Deployment", "invented")["metadata"]["ownerReferences"]
    owned = {**made, "kind": "ReplicaSet", "metadata": {**made["metadata"], "ownerReferences": reference}}
    assert "exceeded quota" in (await refusal(tenant.create(REPLICASETS, owned))).message
    pods_of_nobody = (below(tenant, f"p{n}", "apps/v9", "ReplicaSet", "invented") for n in range(2 * HARD))
    assert await allowed(*(tenant.create(PODS, pod) for pod in pods_of_nobody))
    assert await tenant.live() <= HARD


async def test_a_pod_below_an_invented_owner_needs_a_group_where_one_is_required(tenant: Tenant) -> None:
    await tenant.has_default(**{REQUIRED: "true"})
    error = await refusal(tenant.create(PODS, below(tenant, "p", "apps/v1", "ReplicaSet", "invented")))
    assert f"namespace {tenant.name} requires a group" in error.message


async def test_children_that_come_together_get_no_more_than_their_owner_is_charged(tenant: Tenant) -> None:
    """Three cores are charged and one is left: of twenty pods that come at once four are made."""
    metadata = {"name": "ray", "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    cluster: Object = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": ray_spec(2)}
    owner = await tenant.admin.create(RAYCLUSTERS, cluster)

    def made(number: int) -> Object:
        reference: Any = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "controller": True}
        pod = below(tenant, f"w{number}", "ray.io/v1", "RayCluster", owner["metadata"]["uid"], **{LABEL: tenant.name})
        pod["metadata"]["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
        return pod

    assert await allowed(*(tenant.create(PODS, made(number)) for number in range(20))) <= HARD
    assert await tenant.live() <= HARD

    async def full() -> bool:
        """Those that were told to try again fit as long as there is room."""
        await allowed(*(tenant.create(PODS, made(number)) for number in range(20, 24)))
        assert await tenant.live() <= HARD
        return await tenant.live() == HARD

    await eventually(full, 60, "what fits is admitted")


@pytest.mark.parametrize("named", [True, False], ids=["labelled", "unlabelled"])
async def test_a_stateful_set_is_created_again_in_a_full_group(tenant: Tenant, cluster: Cluster, named: bool) -> None:
    """So volumes are resized: it adopts the pods that it left."""
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets adopt nothing")
    made = {**deployment("db", tenant.name, HARD, namespace=tenant.name), "kind": "StatefulSet"}
    made["spec"]["serviceName"] = "db"
    if named:
        made["spec"]["template"]["metadata"]["labels"][LABEL] = tenant.name
    await tenant.create(STATEFULSETS, made)
    await tenant.uses(str(HARD))
    before = {pod["metadata"]["uid"] for pod in await tenant.pods()}
    await orphaned(tenant, STATEFULSETS, "db")

    async def created() -> bool:
        return await allowed(tenant.create(STATEFULSETS, made)) == 1

    await eventually(created, 60, "it is created again")
    await tenant.uses(str(HARD))
    assert {pod["metadata"]["uid"] for pod in await tenant.pods()} == before


@pytest.mark.parametrize("named", [True, False], ids=["labelled", "unlabelled"])
async def test_what_is_orphaned_is_charged_and_cannot_grow_for_free(tenant: Tenant, named: bool) -> None:
    made = deployment("web", tenant.name, 2, namespace=tenant.name)
    if named:
        made["spec"]["template"]["metadata"]["labels"][LABEL] = tenant.name
    await tenant.create(DEPLOYMENTS, made)
    await tenant.uses("2")
    [left] = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    name = left["metadata"]["name"]

    async def recorded() -> bool:
        group = await tenant.admin.get(GROUPS, tenant.name)
        return left["metadata"]["uid"] in str(group["status"].get("payers"))

    await eventually(recorded, 30, "who pays is stored, as long as the Deployment is there")
    await orphaned(tenant, DEPLOYMENTS, "web")
    error = await refusal(tenant.scale(REPLICASETS, name, HARD + 1))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=3" in error.message
    await tenant.uses("2")
    error = await refusal(label(tenant, REPLICASETS, left, **{LABEL: "nosuch"}))
    assert "nosuch" in error.message
    await tenant.scale(REPLICASETS, name, HARD)
    await tenant.uses(str(HARD))


async def test_what_a_controller_releases_is_never_refused(tenant: Tenant, client: KubeClient) -> None:
    """The garbage collector takes away references in a group that is full."""
    await deployed(tenant, HARD)
    await orphaned(tenant, DEPLOYMENTS, "web")
    [left] = (await client.list(REPLICASETS, tenant.name))[0]
    assert "ownerReferences" not in left["metadata"]
    assert await tenant.live() == HARD


async def test_a_deployment_takes_over_a_larger_replica_set(tenant: Tenant) -> None:
    """The ReplicaSet has a label and a charge of its own until then. Nothing is charged twice in the end, or free."""
    made = deployment("web", tenant.name, HARD - 1, namespace=tenant.name)
    bare = {**made, "kind": "ReplicaSet", "metadata": {**made["metadata"], "name": "bare"}}
    bare["metadata"]["labels"] = {**bare["metadata"]["labels"], "app": "x"}
    await tenant.create(REPLICASETS, bare)
    await tenant.uses(str(HARD - 1))
    error = await refusal(tenant.create(DEPLOYMENTS, deployment("web", tenant.name, 2, namespace=tenant.name)))
    assert f"exceeded quota: {tenant.name}" in error.message
    await tenant.create(DEPLOYMENTS, deployment("web", tenant.name, 1, namespace=tenant.name))
    await tenant.uses("1")
    owners = [
        each["metadata"].get("ownerReferences") for each in (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    ]
    assert all(owners), "it is adopted"
    error = await refusal(tenant.scale(DEPLOYMENTS, "web", HARD + 1))
    assert f"exceeded quota: {tenant.name}" in error.message


@pytest.mark.parametrize("named", [True, False], ids=["labelled", "unlabelled"])
async def test_a_paused_deployment_is_priced_at_what_it_adopts(tenant: Tenant, named: bool) -> None:
    """Its controller scales a ReplicaSet of three cores a pod, whatever its own template asks for."""
    made = deployment("web", tenant.name if named else None, 0, namespace=tenant.name, cpu="3")
    bare = {**made, "kind": "ReplicaSet", "metadata": {**made["metadata"], "name": "bare"}}
    bare["metadata"]["labels"] = {**bare["metadata"]["labels"], "app": "x"}
    await tenant.create(REPLICASETS, bare)
    paused = deployment("web", tenant.name, HARD, namespace=tenant.name, cpu="1m")
    paused["spec"]["paused"] = True
    error = await refusal(tenant.create(DEPLOYMENTS, paused))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=12" in error.message
