"""Attacks that combine what is allowed: templates that pods do not have, owners that are held, labels that are added.

In each a tenant with the role `edit` and a group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import asyncio

import pytest

from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from tests.reliability.routes import (
    attempt,
    attempts,
    changed,
    for_a_while,
    gone,
    has_running,
    image_of,
    of_deployment,
    of_kind,
    owned,
    pod,
    relabel_pods,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object, group
from tests.support.tenant import JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3
HELD = {"metadata": {"finalizers": ["example.org/held"]}}


# The pods that come have not the template that is asked for.


async def test_a_paused_deployment_is_scaled_on_its_old_template(tenant: Tenant, live: LivePods) -> None:
    """Its template shrinks, and its controller scales what it has: the old version."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    await changed(tenant, DEPLOYMENTS, "web", image_of("other", "1m"))
    await attempt(tenant.scale(DEPLOYMENTS, "web", 1))
    await live.settled()
    await attempt(tenant.scale(DEPLOYMENTS, "web", 40))
    await for_a_while(lambda: has_running(tenant, 40), 5)
    await live.settled()


async def test_a_stalled_rollout_is_scaled_in_proportion(tenant: Tenant, live: LivePods) -> None:
    made = web(tenant, 4, strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    await tenant.create(DEPLOYMENTS, made)
    await tenant.running(4)
    await live.settled()
    await attempt(tenant.scale(DEPLOYMENTS, "web", 2))
    await tenant.running(2)
    change = image_of("other", "1m")
    change["spec"]["minReadySeconds"] = 3000
    change["spec"]["progressDeadlineSeconds"] = 4000
    await changed(tenant, DEPLOYMENTS, "web", change)
    # The sandbox ends a rollout at once.
    await for_a_while(lambda: has_running(tenant, 3), 10)
    await live.settled()
    await attempt(tenant.scale(DEPLOYMENTS, "web", 40))
    await for_a_while(lambda: has_running(tenant, 40), 5)
    await live.settled()


async def test_a_stateful_set_is_scaled_below_its_partition(tenant: Tenant, live: LivePods) -> None:
    """What is below the partition comes of the old revision."""
    made = of_kind(STATEFULSETS, web(tenant, 1))
    made["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1000}}
    await tenant.create(STATEFULSETS, made)
    await tenant.running(1)
    await changed(tenant, STATEFULSETS, "web", image_of("other", "1m"))
    await live.settled()
    await attempt(tenant.scale(STATEFULSETS, "web", 40))
    await for_a_while(lambda: has_running(tenant, 40), 5)
    await live.settled()


# Owners that are held while they are deleted.


async def test_pods_leave_a_deployment_that_is_held_while_it_is_deleted(tenant: Tenant, live: LivePods) -> None:
    """Its ReplicaSet makes others all the same."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await attempt(tenant.patch(DEPLOYMENTS, "web", HELD))
    await attempt(tenant.delete(DEPLOYMENTS, "web", "Background"))
    for _ in range(ROUNDS):
        await relabel_pods(tenant, {"app": "mine"}, 4)
    await live.settled()
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}))


async def test_replica_sets_that_are_held_while_they_are_deleted_leave_their_deployment(
    tenant: Tenant, live: LivePods
) -> None:
    """It makes others in their place, while their pods run on."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for number in range(ROUNDS):
        for made in await of_deployment(tenant):
            name = made["metadata"]["name"]
            if "deletionTimestamp" in made["metadata"]:
                continue
            await attempt(tenant.patch(REPLICASETS, name, HELD))
            await attempt(tenant.delete(REPLICASETS, name, "Background"))
            await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"labels": {"app": "mine"}}}))
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)), 4)
    await live.settled()
    for made in await of_deployment(tenant):
        await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], {"metadata": {"finalizers": None}}))


# Labels that are added.


@pytest.mark.parametrize("rule", ["DoesNotExist", "NotIn"])
async def test_pods_are_detached_by_a_label_that_is_added(tenant: Tenant, live: LivePods, rule: str) -> None:
    """Nothing of what they had changes."""
    made = web(tenant, 4)
    expression: Object = {"key": "out", "operator": rule}
    if rule == "NotIn":
        expression["values"] = ["yes"]
    made["spec"]["selector"]["matchExpressions"] = [expression]
    await tenant.create(DEPLOYMENTS, made)
    await tenant.running(4)
    for number in range(ROUNDS):
        names = [each["metadata"]["name"] for each in await tenant.pods() if "out" not in each["metadata"]["labels"]]
        await attempts(tenant.patch(PODS, name, {"metadata": {"labels": {"out": "yes"}}}) for name in names)
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 2)), 3)
    await live.settled()


# References that stay and name another kind.


@pytest.mark.parametrize("default", [True, False], ids=["default", "no default"])
async def test_pods_name_another_kind_of_the_same_uid(tenant: Tenant, live: LivePods, default: bool) -> None:
    if default:
        await tenant.has_default()
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name))):
            break
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        for each in await tenant.pods():
            references = each["metadata"].get("ownerReferences") or []
            change = [{**reference, "apiVersion": "example.org/v1", "kind": "Thing"} for reference in references]
            body = {"metadata": {"ownerReferences": change}}
            await attempt(tenant.patch(PODS, each["metadata"]["name"], body))
        for made in await of_deployment(tenant, name):
            change = [
                {**ref, "apiVersion": "example.org/v1", "kind": "Thing"} for ref in made["metadata"]["ownerReferences"]
            ]
            await attempt(
                tenant.patch(REPLICASETS, made["metadata"]["name"], {"metadata": {"ownerReferences": change}})
            )
        await attempt(tenant.delete(DEPLOYMENTS, name, "Background"))
        await gone(tenant, DEPLOYMENTS, name)
    await live.settled()


# Leftovers that several workloads count as their own.


async def test_many_workloads_adopt_the_same_leftovers_at_once(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
    await gone(tenant, DEPLOYMENTS, "web")
    await live.settled()
    await attempts(tenant.create(DEPLOYMENTS, web(tenant, 4, name=f"new{number}")) for number in range(6))
    await for_a_while(lambda: has_running(tenant, 20), 5)
    await live.settled()


async def test_leftovers_are_adopted_again_and_again_under_one_name(tenant: Tenant, live: LivePods) -> None:
    """What one create was promised, the next one may have taken: they come while it is deleted, pods and all."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for _ in range(ROUNDS):
        await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
        await gone(tenant, DEPLOYMENTS, "web")
        made = web(tenant, 4)
        await asyncio.gather(
            attempts(tenant.create(DEPLOYMENTS, made) for _ in range(4)),
            attempts(tenant.delete(DEPLOYMENTS, "web", policy) for policy in ("Background", "Orphan")),
            attempts(tenant.create(DEPLOYMENTS, made) for _ in range(4)),
        )
        await for_a_while(lambda: has_running(tenant, 8), 1.5)
    await live.settled()


@pytest.mark.parametrize("resource", [REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS], ids=lambda each: each.plural)
async def test_a_large_pod_is_adopted_by_a_workload_of_small_ones(
    tenant: Tenant, live: LivePods, resource: Resource
) -> None:
    """It stands for one of them, and the others come besides."""
    await tenant.create(resource, of_kind(resource, web(tenant, 1, cpu="4")))
    await tenant.running(1)
    await attempt(tenant.delete(resource, "web", "Orphan"))
    await gone(tenant, resource, "web")
    await live.settled()
    await attempt(tenant.create(resource, of_kind(resource, web(tenant, 4))))
    await for_a_while(lambda: has_running(tenant, 4), 4)
    await live.settled()


async def test_leftovers_are_adopted_by_a_workload_of_many_small_pods(tenant: Tenant, live: LivePods) -> None:
    """What it adopts is scaled, not what it asks for."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
    await gone(tenant, DEPLOYMENTS, "web")
    await live.settled()
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 40, name="new", cpu="1m", paused=True)))
    await for_a_while(lambda: has_running(tenant, 40), 5)
    await live.settled()


async def test_one_stateful_set_goes_and_another_adopts_what_it_left_and_makes_more(
    tenant: Tenant, live: LivePods
) -> None:
    """Pods of one core in the range of a StatefulSet that asks for little."""
    await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 4)))
    await tenant.running(4)
    await attempt(tenant.delete(STATEFULSETS, "web", "Orphan"))
    await gone(tenant, STATEFULSETS, "web")
    made = of_kind(STATEFULSETS, web(tenant, 4, cpu="1m"))
    made["spec"]["updateStrategy"] = {"type": "OnDelete"}
    await attempt(tenant.create(STATEFULSETS, made))
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 3, name="more", app="more")))
    await for_a_while(lambda: has_running(tenant, 7), 4)
    await live.settled()


async def test_a_stateful_set_adopts_pods_out_of_its_range(tenant: Tenant, live: LivePods) -> None:
    """It deletes them, which takes a day, and makes others."""
    made = of_kind(STATEFULSETS, web(tenant, 4, slow=True))
    await tenant.create(STATEFULSETS, made)
    await tenant.running(4)
    await attempt(tenant.delete(STATEFULSETS, "web", "Orphan"))
    await gone(tenant, STATEFULSETS, "web")
    await live.settled()
    await attempt(tenant.create(STATEFULSETS, {**made, "spec": {**made["spec"], "ordinals": {"start": 10}}}))
    await for_a_while(lambda: has_running(tenant, 8), 4)
    await live.settled()


# Children that are scaled, and pods that are awaited.


@pytest.mark.parametrize("how", ["runs", "paused", "held"])
async def test_a_replica_set_of_a_deployment_is_scaled(tenant: Tenant, live: LivePods, how: str) -> None:
    """Whoever undoes it comes late: the pods are made, and slow to stop."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    if how == "paused":
        await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    if how == "held":
        await attempt(tenant.patch(DEPLOYMENTS, "web", HELD))
        await attempt(tenant.delete(DEPLOYMENTS, "web", "Background"))
    for made in await of_deployment(tenant):
        await attempt(tenant.scale(REPLICASETS, made["metadata"]["name"], 40))
    await for_a_while(lambda: has_running(tenant, 40), 4)
    await live.settled()
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize("how", ["runs", "paused", "left"])
async def test_a_replica_set_without_a_label_is_edited_to_more_pods(tenant: Tenant, live: LivePods, how: str) -> None:
    """Its namespace has no default, so that no selector of ours finds it, and `/scale` is not used."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    if how == "paused":
        await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    if how == "left":
        await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
        await gone(tenant, DEPLOYMENTS, "web")
        await live.settled()
    for made in await of_deployment(tenant):
        await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], {"spec": {"replicas": 40}}))
    await for_a_while(lambda: has_running(tenant, 40), 4)
    await live.settled()


async def test_the_template_of_a_replica_set_without_a_label_is_edited(tenant: Tenant, live: LivePods) -> None:
    """A paused Deployment leaves it be, and each pod that is deleted comes again with the other template."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    for made in await of_deployment(tenant):
        await changed(tenant, REPLICASETS, made["metadata"]["name"], image_of("other", "10"))
    await attempts(tenant.delete(PODS, each["metadata"]["name"]) for each in await tenant.pods())
    await for_a_while(lambda: has_running(tenant, 4), 4)
    await live.settled(ever=4)


async def test_awaited_pods_leave_their_job_while_they_stop(tenant: Tenant, live: LivePods) -> None:
    """It makes no others while it has them."""
    made = of_kind(JOBS, web(tenant, 4, slow=True))
    made["spec"]["podReplacementPolicy"] = "Failed"
    await tenant.create(JOBS, made)
    await tenant.running(4)
    for _ in range(ROUNDS):
        for each in await tenant.pods():
            metadata = each["metadata"]
            if "batch.kubernetes.io/controller-uid" not in metadata["labels"]:
                continue
            await attempt(tenant.delete(PODS, metadata["name"]))
            clear = dict.fromkeys(metadata["labels"])
            await attempt(tenant.patch(PODS, metadata["name"], {"metadata": {"labels": clear}}))
        await for_a_while(lambda: has_running(tenant, 4), 4)
    await live.settled()


# Somebody else's owner.


async def test_pods_name_an_owner_of_another_namespace_that_goes(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str
) -> None:
    """The garbage collector knows no such kind and leaves them; who paid for that owner pays for none of them."""
    name = f"{tenant.name}-{unique}"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await client.create(GROUPS, group(name, cpu="4"))
    victim = Tenant(client, client, name)
    await victim.uses("0")
    stored = await victim.create(DEPLOYMENTS, web(victim, 1))
    await victim.uses("1")
    uid = stored["metadata"]["uid"]
    await attempts(
        tenant.create(PODS, owned(pod(tenant, f"p{n}"), "Thing", "web", uid, "example.org/v1")) for n in range(4)
    )
    await tenant.uses("4")
    await victim.delete(DEPLOYMENTS, "web")
    await victim.uses("0")
    await attempts(tenant.create(PODS, pod(tenant, f"q{n}")) for n in range(4))
    await live.settled()
    await client.delete(NAMESPACES, name)
