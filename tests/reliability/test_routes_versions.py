"""Routes through an older template that a controller makes pods of while the workload says another.

In each a tenant with the role `edit` stores a large template that asks for nothing, because no pod is declared, then a
small one that is admitted, and has the controller make pods of the large one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bizrq.kube.client import Resource
from tests.reliability.routes import (
    attempt,
    attempts,
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

STRATEGIC = "application/strategic-merge-patch+json"
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
    await attempt(tenant.client.patch(resource, "web", change, namespace=tenant.name, content_type=STRATEGIC))
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


async def test_the_version_that_runs_is_deleted_below_a_paused_deployment(tenant: Tenant, live: LivePods) -> None:
    """Its controller scales the only other ReplicaSet to all of its replicas, and nobody has asked for more."""
    await tenant.create(DEPLOYMENTS, web(tenant, 0, cpu=LARGE))
    await for_a_while(lambda: _has_replica_sets(tenant, 1), 20)
    [large] = await of_deployment(tenant)
    await shrink(tenant, DEPLOYMENTS)
    await for_a_while(lambda: _has_replica_sets(tenant, 2), 20)
    await tenant.scale(DEPLOYMENTS, "web", 4)
    await tenant.running(4)
    await live.settled()
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    await observed(tenant, DEPLOYMENTS)
    for each in await of_deployment(tenant):
        if each["metadata"]["uid"] != large["metadata"]["uid"]:
            await attempt(tenant.delete(REPLICASETS, each["metadata"]["name"], "Background"))
            await gone(tenant, REPLICASETS, each["metadata"]["name"])
    await asyncio.sleep(2)
    await for_a_while(lambda: has_running(tenant, 4), 5)
    await live.settled()


async def _has_replica_sets(tenant: Tenant, count: int) -> bool:
    return len(await of_deployment(tenant)) >= count
