"""Routes by what a template says: smaller pods beside those of before, and other ordinals.

In each a tenant with the role `edit` tries to run more than the four cores of a group.
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
    web,
)
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, NODES, PODS, REPLICASETS
from tests.support.tenant import DAEMONSETS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_stateful_set_without_partition_makes_pods_of_its_current_revision(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    """Without `rollingUpdate` its controller makes as many of the first pods of that revision as others are of it.

    It makes none before the first one is gone, which a finalizer keeps.
    """
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets have no revisions")
    made = of_kind(STATEFULSETS, web(tenant, 8, cpu="500m"))
    made["spec"] |= {"updateStrategy": {"type": "RollingUpdate"}, "podManagementPolicy": "OrderedReady"}
    await tenant.create(STATEFULSETS, made)
    await tenant.running(8)
    smaller = image_of("y", "1m")
    smaller["spec"]["minReadySeconds"] = 3600
    await changed(tenant, STATEFULSETS, "web", smaller)
    await asyncio.sleep(3)
    await tenant.patch(PODS, "web-0", {"metadata": {"finalizers": ["example.org/held"]}})
    for number in range(3):
        await tenant.delete(PODS, f"web-{number}", grace=1)
    await asyncio.sleep(4)
    for number in range(4):
        await attempt(tenant.create(DEPLOYMENTS, web(tenant, 1, name=f"m{number}", app=f"m{number}", cpu="500m")))
    await asyncio.sleep(2)
    await tenant.patch(PODS, "web-0", {"metadata": {"finalizers": None}})
    await tenant.patch(STATEFULSETS, "web", {"spec": {"minReadySeconds": 0}})
    await for_a_while(lambda: has_running(tenant, 9), 8)
    await tenant.patch(STATEFULSETS, "web", {"spec": {"minReadySeconds": 3600}})
    await live.settled()


@pytest.mark.parametrize("kind", [REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS], ids=lambda each: each.kind)
async def test_more_pods_of_a_smaller_template_again_and_again(tenant: Tenant, live: LivePods, kind: Resource) -> None:
    """Each change asks for four cores, as before, so it declares no growth; its controller replaces no pod."""
    made = of_kind(kind, web(tenant, 4))
    if kind is STATEFULSETS:
        made["spec"]["updateStrategy"] = {"type": "OnDelete"}
    await tenant.create(kind, made)
    await tenant.running(4)
    for number in range(1, 5):
        change = image_of("x", f"{1000 >> number}m")
        change["spec"]["replicas"] = 4 << number
        await changed(tenant, kind, "web", change)
        await for_a_while(lambda number=number: has_running(tenant, 4 << number), 5)
        await asyncio.sleep(1)
    await live.settled()


async def test_the_partition_goes_where_pods_of_a_smaller_template_are_added(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    """The stored pods were below it. The controller makes the others first, and replaces these one by one, if ever."""
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets have no revisions")
    made = of_kind(STATEFULSETS, web(tenant, 4, minReadySeconds=3600))
    made["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 4}}
    await tenant.create(STATEFULSETS, made)
    await tenant.running(4)
    await changed(tenant, STATEFULSETS, "web", image_of("x", "1m"))
    await asyncio.sleep(2)
    change = image_of("x", "125m")
    change["spec"] |= {"replicas": 32, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
    await changed(tenant, STATEFULSETS, "web", change)
    await for_a_while(lambda: has_running(tenant, 32), 5)
    await live.settled()


async def test_the_ordinals_of_a_stateful_set_start_elsewhere_again_and_again(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    """Its controller deletes pods out of range only once all in range are available, and makes one that is not yet."""
    if not cluster.is_real:
        pytest.skip("the sandbox's StatefulSets make all their pods at once")
    made = of_kind(STATEFULSETS, web(tenant, 4))
    made["spec"]["podManagementPolicy"] = "OrderedReady"
    await tenant.create(STATEFULSETS, made)
    await tenant.running(4)
    for number in range(1, 9):
        change = {"minReadySeconds": 3600, "ordinals": {"start": 100 * number}}
        await attempt(tenant.patch(STATEFULSETS, "web", {"spec": change}))
        await for_a_while(lambda number=number: has_running(tenant, 4 + number), 5)
        await asyncio.sleep(1)
    await live.settled()


async def test_a_daemon_set_goes_from_some_tainted_nodes_to_others(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    """It asks for three pods, as before. Its controller keeps those on nodes that repel them now."""
    if not cluster.is_real:
        pytest.skip("the sandbox's DaemonSets delete such pods")
    keys, room = ("a", "b", "c"), {"cpu": "64", "memory": "64Gi", "pods": "100"}
    names = [f"{tenant.name}-{key}{number}" for key in keys for number in range(3)]
    for name in names:
        taint = {"key": f"{name[:-1]}", "effect": "NoSchedule"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [taint]}}
        ready = {"type": "Ready", "status": "True"}
        await tenant.admin.create(NODES, node | {"status": {"allocatable": room, "conditions": [ready]}})
    try:
        made = of_kind(DAEMONSETS, web(tenant, 1))
        made["spec"]["updateStrategy"] = {"type": "OnDelete"}
        for key in keys:
            tolerated = [{"key": f"{tenant.name}-{key}", "operator": "Exists"}]
            made["spec"]["template"]["spec"]["tolerations"] = tolerated
            if key == "a":
                await tenant.create(DAEMONSETS, made)
            else:
                change = {"spec": {"template": {"spec": {"tolerations": tolerated}}}}
                await attempt(tenant.patch(DAEMONSETS, "web", change))
            await for_a_while(lambda key=key: has_running(tenant, {"a": 3, "b": 6, "c": 9}[key]), 6)
            await asyncio.sleep(1)
        await live.settled()
    finally:
        await attempt(tenant.delete(DAEMONSETS, "web"))
        for name in names:
            await tenant.admin.delete(NODES, name)
