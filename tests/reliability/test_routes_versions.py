"""Routes through an older template that a controller makes pods of while the workload says another.

In each a tenant with the role `edit` stores a large template that asks for nothing, because no pod is declared, then a
small one that is admitted, and has the controller make pods of the large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bizrq.kube.client import Resource
from tests.reliability.routes import (
    STRATEGIC,
    attempt,
    attempts,
    changed,
    for_a_while,
    gone,
    has_running,
    image_of,
    of_deployment,
    of_kind,
    web,
)
from tests.support import nodes
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Cores of a pod of the large template: no group here has so many.
LARGE = "10"


async def observed(tenant: Tenant, resource: Resource, name: str = "web") -> None:
    """Wait until the workload's controller has seen what is stored."""

    async def is_observed() -> bool:
        stored = await tenant.admin.get(resource, name, tenant.name)
        return stored.get("status", {}).get("observedGeneration") == stored["metadata"]["generation"]

    assert await for_a_while(is_observed, 20)


async def shrink(tenant: Tenant, resource: Resource, **spec: Any) -> None:
    change = image_of("small", "1m")
    change["spec"].update(spec)
    await changed(tenant, resource, "web", change)
    await observed(tenant, resource)


async def test_a_paused_deployment_gets_its_first_pod_of_an_older_template(tenant: Tenant, live: LivePods) -> None:
    """One pod: its controller scales the only ReplicaSet that there is."""
    await tenant.create(DEPLOYMENTS, web(tenant, 0, cpu=LARGE))
    await for_a_while(lambda: _has_replica_sets(tenant, 1), 20)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    await shrink(tenant, DEPLOYMENTS)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 1))
    await for_a_while(lambda: has_running(tenant, 1), 5)
    await live.settled()


async def test_a_stateful_set_gets_its_first_pod_of_an_older_revision(tenant: Tenant, live: LivePods) -> None:
    """With OnDelete the older revision stays the current one, and below a partition pods are made of that."""
    made = of_kind(STATEFULSETS, web(tenant, 0, cpu=LARGE))
    made["spec"]["updateStrategy"] = {"type": "OnDelete"}
    await tenant.create(STATEFULSETS, made)
    await observed(tenant, STATEFULSETS)
    await shrink(tenant, STATEFULSETS)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1000}}
    await attempt(tenant.patch(STATEFULSETS, "web", {"spec": {"replicas": 1, "updateStrategy": strategy}}))
    await for_a_while(lambda: has_running(tenant, 1), 5)
    await live.settled()


async def test_a_stateful_set_gets_a_partition_above_its_pods(
    tenant: Tenant, live: LivePods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number of pods stays. Those that are deleted come again of the older revision, which no write asked for.

    They are never ready: its controller would take the new revision for the current one.
    """
    told = nodes.Agent._status

    async def never_ready(self: nodes.Agent, pod: Any, phase: str, ready: str, **preconditions: str) -> None:
        await told(self, pod, phase, "False", **preconditions)

    monkeypatch.setattr(nodes.Agent, "_status", never_ready)
    made = of_kind(STATEFULSETS, web(tenant, 0, cpu=LARGE))
    made["spec"]["updateStrategy"] = {"type": "OnDelete"}
    await tenant.create(STATEFULSETS, made)
    await observed(tenant, STATEFULSETS)
    await shrink(tenant, STATEFULSETS)
    await tenant.scale(STATEFULSETS, "web", 4)
    pods = await tenant.running(4)
    await live.settled()
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1000}}
    await attempt(tenant.patch(STATEFULSETS, "web", {"spec": {"updateStrategy": strategy}}))
    await observed(tenant, STATEFULSETS)
    await attempts(tenant.delete(PODS, each["metadata"]["name"], grace=0) for each in pods)
    await asyncio.sleep(2)
    await for_a_while(lambda: has_running(tenant, 4), 5)
    await live.settled()


async def deleted(tenant: Tenant, name: str) -> None:
    await paused(tenant)
    await attempt(tenant.delete(REPLICASETS, name, "Background"))
    await gone(tenant, REPLICASETS, name)


async def deleted_first(tenant: Tenant, name: str) -> None:
    """The controller makes it anew, unless the pause is faster."""
    await attempt(tenant.delete(REPLICASETS, name, "Background"))
    await paused(tenant)


async def held_while_deleted(tenant: Tenant, name: str) -> None:
    """It is gone as soon as its finalizer is, and nobody reviews that."""
    await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"finalizers": ["example.com/hold"]}}))
    await attempt(tenant.delete(REPLICASETS, name, "Background"))
    await paused(tenant)
    await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"finalizers": None}}))


async def let_go(tenant: Tenant, name: str) -> None:
    await paused(tenant)
    await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"labels": {"app": "y"}}}))
    await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"ownerReferences": None, "labels": {"app": "z"}}}))


@pytest.mark.parametrize("goes", [deleted, deleted_first, held_while_deleted, let_go])
async def test_the_version_that_runs_goes_below_a_paused_deployment(
    tenant: Tenant, live: LivePods, goes: Callable[[Tenant, str], Awaitable[None]]
) -> None:
    """Its controller scales the only other ReplicaSet to all of its replicas, and nobody has asked for more."""
    await two_versions(tenant)
    await tenant.scale(DEPLOYMENTS, "web", 4)
    await tenant.running(4)
    await live.settled()
    for each in await of_deployment(tenant):
        if each["spec"]["replicas"]:
            await goes(tenant, each["metadata"]["name"])
    await asyncio.sleep(2)
    await for_a_while(lambda: has_running(tenant, 4), 5)
    await live.settled()


# What honest people do in a group that is exactly full.


async def test_old_versions_are_deleted_and_the_current_one_is_made_anew(tenant: Tenant, live: LivePods) -> None:
    await two_versions(tenant)
    await tenant.client.patch(DEPLOYMENTS, "web", image_of("third", "1"), namespace=tenant.name, content_type=STRATEGIC)
    await for_a_while(lambda: _has_replica_sets(tenant, 3), 20)
    await tenant.scale(DEPLOYMENTS, "web", 4)
    await tenant.running(4)
    old = [each for each in await of_deployment(tenant) if not each["spec"]["replicas"]]
    [current] = [each for each in await of_deployment(tenant) if each["spec"]["replicas"]]
    await tenant.delete(REPLICASETS, current["metadata"]["name"], "Background")
    await gone(tenant, REPLICASETS, current["metadata"]["name"])
    await tenant.running(4)
    await paused(tenant)
    for each in old:
        await tenant.delete(REPLICASETS, each["metadata"]["name"], "Background")
    await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": None}})
    await live.settled(ever=8)


async def test_a_rollout_is_paused_and_resumed(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await tenant.client.patch(DEPLOYMENTS, "web", image_of("next"), namespace=tenant.name, content_type=STRATEGIC)
    for value in (True, None) * 4:
        await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": value}})
        await asyncio.sleep(0.1)
    await tenant.running(4)
    await live.settled(ever=8)


async def test_a_stateful_set_is_rolled_by_its_partition_and_back(tenant: Tenant, live: LivePods) -> None:
    made = of_kind(STATEFULSETS, web(tenant, 4))
    made["spec"]["updateStrategy"] = _partition(4)
    await tenant.create(STATEFULSETS, made)
    await tenant.running(4)
    await observed(tenant, STATEFULSETS)
    await tenant.client.patch(
        STATEFULSETS, "web", image_of("next", "500m"), namespace=tenant.name, content_type=STRATEGIC
    )
    for partition in (3, 2, 4, 0):
        await once_room(tenant, {"spec": {"updateStrategy": _partition(partition)}})
        await observed(tenant, STATEFULSETS)
    await tenant.running(4)
    await once_room(tenant, image_of("x", "1"))
    await tenant.running(4)
    await live.settled(ever=8)


async def once_room(tenant: Tenant, change: dict[str, Any]) -> None:
    """Change the StatefulSet once the pods have gone that were replaced."""

    async def is_changed() -> bool:
        request = tenant.client.patch(STATEFULSETS, "web", change, namespace=tenant.name, content_type=STRATEGIC)
        return await attempt(request) is None

    assert await for_a_while(is_changed, 30)


async def test_a_pod_below_the_partition_comes_back_as_it_was(tenant: Tenant, live: LivePods) -> None:
    """What it costs stays charged while it is away, so that nobody else takes its place."""
    made = of_kind(STATEFULSETS, web(tenant, 4))
    made["spec"]["updateStrategy"] = _partition(4)
    await tenant.create(STATEFULSETS, made)
    pods = await tenant.running(4)
    await shrink(tenant, STATEFULSETS)
    await live.settled()
    await attempts(tenant.delete(PODS, each["metadata"]["name"]) for each in pods)
    await attempts(tenant.create(DEPLOYMENTS, web(tenant, 1, name=f"more-{n}", app=f"m{n}")) for n in range(8))
    await asyncio.sleep(2)
    await live.settled(ever=4)


def _partition(number: int) -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}


async def paused(tenant: Tenant) -> None:
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    await observed(tenant, DEPLOYMENTS)


async def two_versions(tenant: Tenant) -> None:
    """A Deployment without pods that had a large template and has a small one."""
    await tenant.create(DEPLOYMENTS, web(tenant, 0, cpu=LARGE))
    await for_a_while(lambda: _has_replica_sets(tenant, 1), 20)
    await shrink(tenant, DEPLOYMENTS)
    await for_a_while(lambda: _has_replica_sets(tenant, 2), 20)


async def _has_replica_sets(tenant: Tenant, count: int) -> bool:
    return len(await of_deployment(tenant)) >= count
