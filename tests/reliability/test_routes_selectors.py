"""Routes by selectors: that of a ReplicationController, which can be changed, and those that name a pod's own labels.

The controller of the first goes by what it saw last: it makes pods for a template of before, and lets them go once it
sees the next selector. The tenant's group has four cores, and the namespace no default. The oracle counts the pods that
there are.
"""

from __future__ import annotations

import asyncio

import pytest

from bizrq.kube.client import Resource
from tests.reliability.routes import (
    attempt,
    changed,
    for_a_while,
    has_running,
    image_of,
    of_kind,
    owned,
    pod,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import DAEMONSETS, REPLICATION_CONTROLLERS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3


def selecting(app: str, **spec: object) -> Object:
    return {"spec": {"selector": {"app": app}, "template": {"metadata": {"labels": {"app": app}}}, **spec}}


async def changes(tenant: Tenant, of: int, *, replicas: int | None = None) -> None:
    """Change the selector ten times, some milliseconds apart."""
    spec = {} if replicas is None else {"replicas": replicas}
    for number in range(10):
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", selecting(f"x{of}-{number}", **spec)))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("replicas", [4, 1])
@pytest.mark.parametrize("then", ["orphaned", "deleted", "scaled", "standing"])
async def test_a_selector_changes_often(tenant: Tenant, live: LivePods, replicas: int, then: str) -> None:
    for of in range(ROUNDS):
        made = of_kind(REPLICATION_CONTROLLERS, web(tenant, replicas, app=f"x{of}", slow=then == "deleted"))
        await attempt(tenant.create(REPLICATION_CONTROLLERS, made))
        await changes(tenant, of)
        if then == "scaled":
            await attempt(tenant.scale(REPLICATION_CONTROLLERS, "web", 0))
            await attempt(tenant.scale(REPLICATION_CONTROLLERS, "web", replicas))
        elif then != "standing":
            how = {"orphaned": "Orphan", "deleted": "Background"}[then]
            await attempt(tenant.delete(REPLICATION_CONTROLLERS, "web", how))
        await asyncio.sleep(0.5)
    await live.settled()


@pytest.mark.parametrize("replicas", [4, 2])
async def test_a_selector_changes_often_with_the_replicas_by_turns(
    tenant: Tenant, live: LivePods, replicas: int
) -> None:
    made = of_kind(REPLICATION_CONTROLLERS, web(tenant, replicas))
    await tenant.create(REPLICATION_CONTROLLERS, made)
    for of in range(ROUNDS * 4):
        change = selecting(f"x{of}", replicas=0)
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", change))
        await asyncio.sleep(0.01)
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", {"spec": {"replicas": replicas}}))
        await asyncio.sleep(0.01)
    await live.settled()


async def test_a_selector_widens_and_narrows(tenant: Tenant, live: LivePods) -> None:
    """The template changes between: the selector keeps the old pods, the new ones, or both."""
    made = of_kind(REPLICATION_CONTROLLERS, web(tenant, 2, pods={"v": "0"}))
    await tenant.create(REPLICATION_CONTROLLERS, made)
    for of in range(1, ROUNDS * 4):
        for selector, v in (({"app": "x", "v": None}, of - 1), ({}, of), ({"app": "x", "v": f"{of}"}, of)):
            template = {"metadata": {"labels": {"app": "x", "v": f"{v}"}}}
            change = {"spec": {"selector": selector, "template": template}}
            await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", change))
            await asyncio.sleep(0.01)
    await live.settled()


async def test_what_its_selector_drops_is_kept_by_a_finalizer(tenant: Tenant, live: LivePods) -> None:
    """The controller of an object that is being deleted lets nothing go."""
    for of in range(ROUNDS):
        made = of_kind(REPLICATION_CONTROLLERS, web(tenant, 2, name=f"web{of}", app=f"x{of}"))
        made["metadata"]["finalizers"] = ["example.org/x"]
        await attempt(tenant.create(REPLICATION_CONTROLLERS, made))
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, f"web{of}", selecting(f"y{of}")))
        await attempt(tenant.delete(REPLICATION_CONTROLLERS, f"web{of}", "Background"))
        await asyncio.sleep(1)
    await live.settled()
    for of in range(ROUNDS):
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, f"web{of}", {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize("is_defaulted", [False, True])
async def test_pods_name_an_owner_of_another_selector(tenant: Tenant, live: LivePods, is_defaulted: bool) -> None:
    """Nobody else may add to what the owner drops."""
    if is_defaulted:
        await tenant.has_default()
    made = of_kind(REPLICATION_CONTROLLERS, web(tenant, 2))
    uid = (await tenant.create(REPLICATION_CONTROLLERS, made))["metadata"]["uid"]
    await tenant.running(2)
    for number in range(9):
        each = pod(tenant, f"p{number}", label=None if number % 2 else "", app=f"p{number % 3}", slow=True)
        await attempt(tenant.create(PODS, owned(each, "ReplicationController", "web", uid, "v1")))
        await attempt(
            tenant.create(PODS, owned(pod(tenant, f"q{number}", app="x"), "ReplicationController", "web", uid, "v1"))
        )
        await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", selecting(f"p{number % 3}")))
    await live.settled()


# What is no route.


async def test_a_selector_changes_where_there_is_room_for_both(tenant: Tenant, live: LivePods) -> None:
    """At once after its creation, and again once the pods of before are gone."""
    made = of_kind(REPLICATION_CONTROLLERS, web(tenant, 2))
    await tenant.create(REPLICATION_CONTROLLERS, made)
    await tenant.running(2)
    for app in ("y", "z"):
        before = {each["metadata"]["name"] for each in await tenant.pods()}
        await tenant.patch(REPLICATION_CONTROLLERS, "web", selecting(app))
        await tenant.running(4)
        await tenant.uses("4")
        for name in before:
            await tenant.delete(PODS, name, grace=1)
        await tenant.uses("2")
    await live.settled()


async def test_a_selector_changes_in_a_full_group_while_nothing_runs(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(REPLICATION_CONTROLLERS, of_kind(REPLICATION_CONTROLLERS, web(tenant, 4)))
    await tenant.running(4)
    refused = await attempt(tenant.patch(REPLICATION_CONTROLLERS, "web", selecting("y")))
    assert refused is not None
    assert "exceeded quota" in refused.message
    await tenant.scale(REPLICATION_CONTROLLERS, "web", 0)
    await tenant.uses("0")
    await tenant.patch(REPLICATION_CONTROLLERS, "web", selecting("y"))
    await tenant.scale(REPLICATION_CONTROLLERS, "web", 4)
    await tenant.running(4)
    await tenant.uses("4")
    await live.settled()


#: Labels of which some controllers give each pod a value of its own.
OWN_LABELS = (
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
    "batch.kubernetes.io/job-completion-index",
)


@pytest.mark.parametrize("key", OWN_LABELS)
async def test_pods_by_a_selector_with_a_label_of_ordinals(tenant: Tenant, live: LivePods, key: str) -> None:
    """Their ReplicaSet, which asks for less after a while, has given all of them the same."""
    for number in range(3):
        name = f"web{number}"
        made = of_kind(REPLICASETS, web(tenant, 4, name=name, app=name, cpu="900m"))
        made["spec"]["selector"]["matchLabels"][key] = made["spec"]["template"]["metadata"]["labels"][key] = "0"
        if await attempt(tenant.create(REPLICASETS, made)):
            break
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        await changed(tenant, REPLICASETS, name, image_of("x", "1m"))
        await asyncio.sleep(3)
    await live.settled()


async def test_such_pods_of_a_deployment_are_deleted_again_and_again(tenant: Tenant, live: LivePods) -> None:
    """They take a day to stop, and others are made in their place."""
    made = web(tenant, 4, slow=True)
    made["spec"]["selector"]["matchLabels"][OWN_LABELS[0]] = "0"
    made["spec"]["template"]["metadata"]["labels"][OWN_LABELS[0]] = "0"
    await tenant.create(DEPLOYMENTS, made)
    await tenant.running(4)
    for number in range(4):
        for each in await tenant.pods():
            if "deletionTimestamp" not in each["metadata"]:
                await attempt(tenant.delete(PODS, each["metadata"]["name"]))
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)), 5)
        await asyncio.sleep(2)
    await live.settled(ever=4, over=4)


@pytest.mark.parametrize(
    ("kind", "key"),
    [(DEPLOYMENTS, "pod-template-hash"), (DAEMONSETS, "controller-revision-hash")],
    ids=["Deployment", "DaemonSet"],
)
async def test_what_a_workload_makes_does_not_match_its_selector(
    tenant: Tenant, live: LivePods, kind: Resource, key: str
) -> None:
    """Its controller gives that label another value, lets go what it has made, and makes others without end."""
    made = web(tenant, 4, cpu="900m")
    made["spec"]["selector"]["matchLabels"][key] = made["spec"]["template"]["metadata"]["labels"][key] = "x"
    if await attempt(tenant.create(kind, of_kind(kind, made) if kind is DAEMONSETS else made)) is None:
        await for_a_while(lambda: has_running(tenant, 12), 5)
        await tenant.delete(kind, "web")
    await live.settled()
