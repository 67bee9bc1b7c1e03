"""Routes through children: other labels, owners that are not there, children at the same moment, pods taken out.

In each a tenant with the role `edit` and a group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import (
    attempt,
    attempts,
    counted,
    for_a_while,
    gone,
    has_running,
    may_operate,
    of_deployment,
    of_kind,
    owned,
    pod,
    ray_cluster,
    relabel_pods,
    replica_set,
    slowly,
    used,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    RAYCLUSTERS,
    REPLICASETS,
    TFJOBS,
    Object,
    group,
    tfjob,
)
from tests.support.tenant import JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3


# Children with another label.


@pytest.mark.parametrize(
    "labels",
    [
        {"app": "mine", LABEL: "nosuch"},
        {"app": "mine", LABEL: ""},
        {"app": "mine", LABEL: None},
        {"app": None, LABEL: "nosuch"},
    ],
    ids=["no such group", "empty", "no label", "no app"],
)
async def test_pods_are_relabelled_again_and_again(tenant: Tenant, live: LivePods, labels: Object) -> None:
    """Each time their ReplicaSet makes others."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, pods={LABEL: tenant.name}))
    await tenant.running(4)
    for _ in range(ROUNDS):
        await relabel_pods(tenant, labels, 4)
    await live.settled()


@pytest.mark.parametrize("resource", [REPLICATION_CONTROLLERS, STATEFULSETS, JOBS], ids=lambda each: each.kind)
async def test_pods_of_another_kind_are_relabelled(tenant: Tenant, live: LivePods, resource: Resource) -> None:
    await tenant.create(resource, of_kind(resource, web(tenant, 4)))
    await tenant.running(4)
    found = await tenant.pods()
    clear = dict.fromkeys(found[0]["metadata"]["labels"])
    for _ in range(ROUNDS):
        await relabel_pods(tenant, {**clear, "app": "mine", LABEL: "nosuch"}, 4)
    await live.settled()


async def test_pods_are_relabelled_in_two_steps(tenant: Tenant, live: LivePods) -> None:
    """First our label, which nothing selects by, then the one that their ReplicaSet selects by."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    for _ in range(ROUNDS):
        await tenant.running(4) if not await tenant.live() > 4 else None
        pods = [each["metadata"]["name"] for each in await tenant.pods()]
        await attempts(tenant.patch(PODS, name, {"metadata": {"labels": {LABEL: "nosuch"}}}) for name in pods)
        await relabel_pods(tenant, {"app": "mine"}, 4)
    await live.settled()


async def test_pods_are_put_with_another_label_and_without_owner(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for number in range(ROUNDS):
        for each in await tenant.pods():
            found = await tenant.client.get(PODS, each["metadata"]["name"], tenant.name)
            found["metadata"]["labels"] = {LABEL: "nosuch"}
            found["metadata"].pop("ownerReferences", None)
            await attempt(tenant.client.replace(PODS, found))
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)))
    await live.settled()


@pytest.mark.parametrize("label", ["nosuch", "", None], ids=["no such group", "empty", "no label"])
async def test_a_replica_set_is_relabelled_before_it_is_orphaned(
    tenant: Tenant, live: LivePods, label: str | None
) -> None:
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name))):
            break
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        for made in await of_deployment(tenant, name):
            await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], {"metadata": {"labels": {LABEL: label}}}))
        for each in await tenant.pods():
            await attempt(tenant.patch(PODS, each["metadata"]["name"], {"metadata": {"labels": {LABEL: label}}}))
        await attempt(tenant.delete(DEPLOYMENTS, name, "Orphan"))
        await gone(tenant, DEPLOYMENTS, name)
    await live.settled()


async def test_a_replica_set_is_taken_from_its_deployment_by_a_label(tenant: Tenant, live: LivePods) -> None:
    """The Deployment makes another beside it."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for number in range(ROUNDS):
        for made in await of_deployment(tenant):
            change = {"metadata": {"labels": {"app": "mine", LABEL: "nosuch"}}}
            await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], change))
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)), 3)
    await live.settled()


async def foreign(client: KubeClient, name: str) -> str:
    """Another group, which takes nothing from the tenant's namespace."""
    obj = group(name, cpu="2")
    obj["spec"]["namespaceSelector"] = {"matchLabels": {"team": "other"}}
    await client.create(GROUPS, obj)
    await counted(client, name)
    return name


@pytest.mark.parametrize("what", ["pods", "ReplicaSets", "new pods"])
async def test_children_take_the_label_of_a_group_that_does_not_accept_them(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str, what: str
) -> None:
    """Neither does that group pay for them, nor nobody."""
    other = await foreign(client, f"{tenant.name}-{unique}")
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    [made] = await of_deployment(tenant)
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    match what:
        case "pods":
            for _ in range(ROUNDS):
                await relabel_pods(tenant, {"app": "mine", LABEL: other}, 4)
        case "ReplicaSets":
            await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"labels": {LABEL: other}}}))
            await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
        case _:
            made = [owned(pod(tenant, f"p{n}", label=other, slow=True), "ReplicaSet", name, uid) for n in range(8)]
            await attempts(tenant.create(PODS, each) for each in made)
    await live.settled()
    assert await used(client, other) == "0"


# Owners that are not there, or do not make such objects.


def invented(tenant: Tenant, number: int, version: str, label: str | None) -> Object:
    return owned(pod(tenant, f"p{number}", label=label), "ReplicaSet", "never", str(uuid.uuid4()), version)


@pytest.mark.parametrize("version", ["apps/v9", "example.org/v1", "apps/v1"])
@pytest.mark.parametrize("label", ["", None], ids=["labelled", "default"])
async def test_pods_name_an_owner_that_never_was(
    tenant: Tenant, live: LivePods, version: str, label: str | None
) -> None:
    if label is None:
        await tenant.has_default()
    for burst in range(2):
        await attempts(tenant.create(PODS, invented(tenant, 10 * burst + n, version, label)) for n in range(10))
    await live.settled()


@pytest.mark.parametrize("label", ["", None], ids=["labelled", "default"])
async def test_pods_name_an_owner_that_was_deleted(tenant: Tenant, live: LivePods, label: str | None) -> None:
    if label is None:
        await tenant.has_default()
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    [made] = await of_deployment(tenant)
    await tenant.delete(DEPLOYMENTS, "web", "Background")
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    await attempts(
        tenant.create(PODS, owned(pod(tenant, f"p{n}", label=label), "ReplicaSet", name, uid, "apps/v9"))
        for n in range(10)
    )
    await tenant.running(0) if not await tenant.live() else None
    await attempts(
        tenant.create(PODS, owned(pod(tenant, f"q{n}", label=label), "Deployment", "web", uid, "apps/v9"))
        for n in range(10)
    )
    await live.settled()


async def test_an_unlabelled_replica_set_names_an_owner_that_never_was(tenant: Tenant, live: LivePods) -> None:
    """Where the namespace has a default, this pays: there is no owner that could."""
    await tenant.has_default()
    for number in range(4):
        name = f"rs{number}"
        made = replica_set(tenant, name, 5, label=None, app=name)
        await attempt(tenant.create(REPLICASETS, owned(made, "Deployment", "never", str(uuid.uuid4()), "apps/v9")))
    await live.settled()


async def test_pods_name_an_owner_that_is_held_while_it_is_deleted(tenant: Tenant, live: LivePods) -> None:
    await tenant.has_default()
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    [made] = await of_deployment(tenant)
    await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], {"metadata": {"finalizers": ["example.org/x"]}}))
    await tenant.delete(DEPLOYMENTS, "web", "Background")
    await gone(tenant, DEPLOYMENTS, "web")
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    for label in ("", None):
        names = (f"p{n}" if label is None else f"q{n}" for n in range(6))
        await attempts(
            tenant.create(PODS, owned(pod(tenant, each, label=label), "ReplicaSet", name, uid)) for each in names
        )
    await live.settled()
    await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize("kind", ["ConfigMap", "Deployment", "StatefulSet", "ReplicaSet"])
async def test_pods_name_an_owner_that_would_not_keep_them(tenant: Tenant, live: LivePods, kind: str) -> None:
    """A kind that makes no pods, a kind that makes no such pods, another name, other labels."""
    await tenant.has_default()
    if kind == "ConfigMap":
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "own", "namespace": tenant.name}}
        stored = await tenant.create(CONFIG_MAPS, body)
    elif kind == "StatefulSet":
        stored = await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 4)))
    else:
        stored = await tenant.create(DEPLOYMENTS, web(tenant, 4))
    if kind != "ConfigMap":
        await tenant.running(4)
    if kind == "ReplicaSet":
        [stored] = await of_deployment(tenant)
    reference = stored["metadata"]["name"], stored["metadata"]["uid"], "v1" if kind == "ConfigMap" else "apps/v1"
    app = "x" if kind == "StatefulSet" else "other"
    pods = [pod(tenant, f"p{n}", app=app, slow=True, label="" if n % 2 else None) for n in range(12)]
    await attempts(tenant.create(PODS, owned(each, kind, *reference)) for each in pods)
    await live.settled()


# Children that come at the same moment.


@pytest.mark.parametrize("label", ["", None], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("resource", [REPLICASETS, REPLICATION_CONTROLLERS, JOBS], ids=lambda each: each.kind)
async def test_forty_pods_name_one_owner_at_once(
    tenant: Tenant, live: LivePods, resource: Resource, label: str | None
) -> None:
    """The owner's controller deletes what is too much, which then takes a day to stop."""
    if label is None:
        await tenant.has_default()
    made = replica_set(tenant, "web", 4) if resource is REPLICASETS else of_kind(resource, web(tenant, 4))
    stored = await tenant.create(resource, made)
    kept = (await tenant.running(4))[0]["metadata"]["labels"]
    pods: list[Object] = []
    for number in range(40):
        each = pod(tenant, f"p{number}", label=label, slow=True)
        each["metadata"]["labels"] = {**kept, **each["metadata"]["labels"], "app": "x"}
        pods.append(owned(each, resource.kind, "web", stored["metadata"]["uid"], resource.api_version))
    await attempts(tenant.create(PODS, each) for each in pods)
    await live.settled()


@pytest.mark.parametrize("label", ["", None], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("resource", [RAYCLUSTERS, TFJOBS], ids=lambda each: each.kind)
async def test_forty_pods_name_the_owner_of_an_operator_at_once(
    tenant: Tenant, live: LivePods, resource: Resource, label: str | None
) -> None:
    """Whose pods are not there yet: four cores are asked for ten times."""
    if label is None:
        await tenant.has_default()
    await may_operate(tenant, resource)
    if resource is TFJOBS:
        made = tfjob("own", tenant.name, 4, namespace=tenant.name, gpu=0)
        made["spec"]["runPolicy"] = {"suspend": True}
    else:
        made = ray_cluster(tenant, "own", 3)
    uid = (await tenant.create(resource, made))["metadata"]["uid"]
    pods = [pod(tenant, f"p{number}", label=label, slow=True) for number in range(40)]
    children = [owned(each, resource.kind, "own", uid, resource.api_version) for each in pods]
    await attempts(tenant.create(PODS, each) for each in children)
    await live.settled()


@pytest.mark.parametrize("label", ["", None], ids=["labelled", "unlabelled"])
async def test_replica_sets_name_one_paused_deployment_at_once(
    tenant: Tenant, live: LivePods, label: str | None
) -> None:
    """A paused Deployment leaves them be: four of its cores are asked for twenty times."""
    if label is None:
        await tenant.has_default()
    stored = await tenant.create(DEPLOYMENTS, web(tenant, 4, paused=True))
    many: list[Any] = []
    for number in range(10):
        made = replica_set(tenant, f"web-{number}", 2, label=label)
        made["spec"]["template"]["spec"]["containers"][0]["image"] = f"i{number}"
        made["spec"]["selector"] = {"matchLabels": {"app": "x", "n": str(number)}}
        for labels in (made["metadata"].setdefault("labels", {}), made["spec"]["template"]["metadata"]["labels"]):
            labels |= {"app": "x", "n": str(number)}
        many.append(owned(made, "Deployment", "web", stored["metadata"]["uid"]))
    await attempts(tenant.create(REPLICASETS, each) for each in many)
    await live.settled()


# Pods that are taken out.


@pytest.mark.parametrize("app", ["mine", None], ids=["another value", "removed"])
async def test_pods_are_detached_by_a_label_in_a_loop(tenant: Tenant, live: LivePods, app: str | None) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for _ in range(ROUNDS):
        await relabel_pods(tenant, {"app": app}, 4)
    await live.settled()


async def test_pods_are_detached_by_a_change_of_the_selector(tenant: Tenant, live: LivePods) -> None:
    """A ReplicationController's can be changed."""
    await tenant.create(REPLICATION_CONTROLLERS, of_kind(REPLICATION_CONTROLLERS, web(tenant, 4)))
    await tenant.running(4)
    for number in range(ROUNDS):
        app = f"x{number}"
        change = {"spec": {"selector": {"app": app}, "template": {"metadata": {"labels": {"app": app}}}}}
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", change))
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)))
    await live.settled()


async def test_pods_are_detached_where_there_is_room_for_some(tenant: Tenant, live: LivePods) -> None:
    """Two may be taken out of a Deployment of two where four fit, and no third."""
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(2)
    for _ in range(ROUNDS):
        await relabel_pods(tenant, {"app": "mine"}, 2)
    await live.settled()


async def test_detached_pods_are_slow_to_stop(tenant: Tenant, live: LivePods) -> None:
    made = web(tenant, 4)
    slowly(made["spec"]["template"])
    await tenant.create(DEPLOYMENTS, made)
    await tenant.running(4)
    for _ in range(ROUNDS):
        names = [each["metadata"]["name"] for each in await tenant.pods()]
        await relabel_pods(tenant, {"app": "mine"}, 4)
        for name in names:
            each = await tenant.client.get(PODS, name, tenant.name)
            if each["metadata"]["labels"].get("app") == "mine" and "deletionTimestamp" not in each["metadata"]:
                await attempt(tenant.delete(PODS, name))
    await live.settled()
