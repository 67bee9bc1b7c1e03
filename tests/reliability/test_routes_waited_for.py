"""Routes by pods that end slowly and are said to be waited for, and by who scales for a tenant.

In each a tenant with the role `edit` and a group of four cores tries to run more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from bizrq.kube import config
from bizrq.kube.client import KubeClient, Resource
from tests.reliability.routes import (
    attempt,
    attempts,
    changed,
    for_a_while,
    has_running,
    image_of,
    of_deployment,
    of_kind,
    web,
)
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS
from tests.support.tenant import DAEMONSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
ROUNDS = 6
#: The account of Kubernetes' autoscaler, which writes `/scale` for whoever makes a HorizontalPodAutoscaler.
AUTOSCALER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"


async def delete_fresh(tenant: Tenant, live: LivePods) -> None:
    """Delete all pods that nobody deletes, and give their controller time to make others.

    What is replaced counts once our controller sees it, which takes a while on a busy machine.
    """
    names = [each["metadata"]["name"] for each in await tenant.pods() if "deletionTimestamp" not in each["metadata"]]
    await attempts(tenant.delete(PODS, name) for name in names)
    await for_a_while(lambda: has_running(tenant, 4), 6)
    await for_a_while(lambda: is_counted(live), 10)
    await asyncio.sleep(1)


async def is_counted(live: LivePods) -> bool:
    found = live.sample()
    return found is not None and found.hidden <= 0


@asynccontextmanager
async def held(tenant: Tenant) -> AsyncIterator[None]:
    """A Deployment that is being deleted for as long as this lasts; nobody deletes its ReplicaSet."""
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": ["example.org/held"]}}))
    await attempt(tenant.delete(DEPLOYMENTS, "web", "Background"))
    try:
        yield
    finally:
        await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}))


async def test_pods_of_a_deployment_that_is_held_while_it_is_deleted(tenant: Tenant, live: LivePods) -> None:
    """Its ReplicaSet makes others all the same."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    async with held(tenant):
        for _ in range(ROUNDS):
            await delete_fresh(tenant, live)
        await live.settled(over=4, ever=8)


async def test_pods_of_a_paused_deployment_that_recreates(tenant: Tenant, live: LivePods) -> None:
    """It is paused, so that no new version comes and the old one makes others."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy={"type": "Recreate"}))
    await tenant.running(4)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}))
    await changed(tenant, DEPLOYMENTS, "web", image_of("other"))
    for _ in range(ROUNDS):
        await delete_fresh(tenant, live)
    await live.settled(over=4, ever=8)


@pytest_asyncio.fixture(loop_scope="module")
async def nodes(tenant: Tenant) -> AsyncIterator[list[str]]:
    """Nodes with a label of their own each."""
    names = [f"{tenant.name}-{number}" for number in range(ROUNDS)]
    room = {"cpu": "64", "pods": "100", "memory": "64Gi"}
    for name in names:
        made = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"stop": name}},
            "status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        await tenant.admin.create(NODES, made)
    yield names
    await attempts(tenant.admin.delete(NODES, name) for name in names)


async def test_a_daemon_set_goes_from_node_to_node(tenant: Tenant, live: LivePods, nodes: list[str]) -> None:
    """On each it leaves a pod that ends slowly; its controller waits on the nodes of its template only."""
    made = of_kind(DAEMONSETS, web(tenant, 1, slow=True, cpu="4"))
    made["spec"]["template"]["spec"]["nodeSelector"] = {"stop": nodes[0]}
    await tenant.create(DAEMONSETS, made)
    await tenant.running(1)
    for name in nodes[1:]:
        change = {"spec": {"template": {"spec": {"nodeSelector": {"stop": name}}}}}
        await attempt(tenant.patch(DAEMONSETS, "web", change))
        await for_a_while(lambda: has_running(tenant, 1), 3)
        await asyncio.sleep(1.5)
    # One step is the time that the recount takes to see the first pod end.
    await live.settled(over=8, ever=12)


async def test_an_autoscaler_scales_the_replica_set_of_a_deployment_that_is_held(
    cluster: Cluster, tenant: Tenant, live: LivePods
) -> None:
    """It does what a person asks it for, with an account of Kubernetes."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    as_it = config.from_kubeconfig(cluster.kubeconfig, None, config.Overrides(impersonated=AUTOSCALER))
    async with held(tenant), KubeClient(as_it) as scaler:
        [made] = await of_deployment(tenant)
        named = {"name": made["metadata"]["name"], "namespace": tenant.name}
        wanted = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": named, "spec": {"replicas": 40}}
        refused = await attempt(scaler.replace(REPLICASETS, wanted, subresource="scale"))
        assert refused is not None
        assert "exceeded quota" in refused.message
        await live.settled()
