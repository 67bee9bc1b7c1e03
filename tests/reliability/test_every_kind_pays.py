"""Kinds that make pods and were free: a tenant with the role `edit` tries each to get more than the group has.

What is held against `hard` are the pods that there are, which no code of bizrq is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.kube.client import AlreadyExists, KubeClient, NotFound
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, REQUIRED
from tests.support.cluster import Cluster, eventually, refusal
from tests.support.logged_errors import LoggedErrors
from tests.support.nodes import agent
from tests.support.objects import CONFIG_MAPS, NAMESPACES, NODES, PODS, Object, deployment, group, template
from tests.support.proxy import Proxy
from tests.support.serving import Parts
from tests.support.tenant import DAEMONSETS, REPLICATION_CONTROLLERS, Tenant, tenant_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    async with Parts(cluster, tmp_path_factory.mktemp("kinds-pay")) as parts:
        if cluster.is_real:
            await parts.enter(agent(parts.client))
        await parts.webhooks()
        await parts.controller(recount_interval=parts.often)
        await parts.register()
        yield parts


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(
    logged: LoggedErrors, parts: Parts, client: KubeClient, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Tenant]:
    """Four cores and a tenant who may edit one namespace."""
    await client.create(GROUPS, group(namespace, cpu="4"))
    folder = tmp_path_factory.mktemp(namespace)
    async with tenant_of(parts.cluster, client, namespace, folder) as tenant:
        await tenant.uses("0")
        yield tenant
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, namespace)


def replication_controller(tenant: Tenant, replicas: int, *, label: bool = True, name: str = "rc") -> Object:
    made = deployment(name, tenant.name if label else None, replicas, namespace=tenant.name)
    made["spec"]["selector"] = {"app": "x"}
    return {**made, "apiVersion": "v1", "kind": "ReplicationController"}


async def test_a_replication_controller_pays_for_its_pods(tenant: Tenant) -> None:
    """By its own label: no more than the group has, at its creation and by /scale."""
    error = await refusal(tenant.create(REPLICATION_CONTROLLERS, replication_controller(tenant, 5)))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=5; what is left is shown to" in error.message
    await tenant.create(REPLICATION_CONTROLLERS, replication_controller(tenant, 2))
    await tenant.uses("2")
    error = await refusal(tenant.scale(REPLICATION_CONTROLLERS, "rc", 5))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=3; what is left is shown to" in error.message
    await tenant.scale(REPLICATION_CONTROLLERS, "rc", 4)
    await tenant.uses("4")
    await tenant.client.delete(REPLICATION_CONTROLLERS, "rc", tenant.name)
    for pod in (await tenant.admin.list(PODS, tenant.name))[0]:
        with contextlib.suppress(NotFound):
            await tenant.admin.delete(PODS, pod["metadata"]["name"], tenant.name)
    await tenant.uses("0")


async def test_a_replication_controller_is_charged_to_the_default_of_its_namespace(tenant: Tenant) -> None:
    await tenant.has_default(**{LABEL: tenant.name})
    made = replication_controller(tenant, 12, label=False)
    assert "requested: limits.cpu=12" in (await refusal(tenant.create(REPLICATION_CONTROLLERS, made))).message
    await tenant.create(REPLICATION_CONTROLLERS, replication_controller(tenant, 3, label=False))
    await tenant.uses("3")


async def test_a_replication_controller_names_a_group_where_one_is_required(tenant: Tenant) -> None:
    await tenant.has_default(**{REQUIRED: "true"})
    made = replication_controller(tenant, 12, label=False)
    error = await refusal(tenant.create(REPLICATION_CONTROLLERS, made))
    assert f"namespace {tenant.name} requires a group: label ReplicationController" in error.message
    assert await tenant.live() == 0


OPERATOR = {"Impersonate-User": "system:serviceaccount:kube-system:operator", "Impersonate-Group": "system:masters"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeClient]:
    """A controller of kube-system that is not Kubernetes' own."""
    path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    async with (
        Proxy(parts.cluster.kubeconfig, OPERATOR) as proxy,
        KubeClient.from_kubeconfig(proxy.write_kubeconfig(path)) as client,
    ):
        yield client


async def pod_of_a_config_map(tenant: Tenant, name: str) -> Object:
    """A pod whose controller is of a kind that nobody charges."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": tenant.name}}
    stored = await tenant.client.create(CONFIG_MAPS, owner)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": stored["metadata"]["uid"]}
    metadata = {"name": name, "namespace": tenant.name, "ownerReferences": [{**reference, "controller": True}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template()["spec"]}


async def test_pods_of_an_owner_that_does_not_pay_need_a_group_where_one_is_required(
    tenant: Tenant, operator: KubeClient
) -> None:
    """Though an account of kube-system makes them."""
    await tenant.has_default(**{REQUIRED: "true"})
    error = await refusal(operator.create(PODS, await pod_of_a_config_map(tenant, "stray")))
    assert f"namespace {tenant.name} requires a group: label Pod {tenant.name}/stray" in error.message


async def test_pods_of_an_owner_that_does_not_pay_are_charged_to_the_default(
    tenant: Tenant, operator: KubeClient
) -> None:
    await tenant.has_default(**{LABEL: tenant.name})
    for number in range(4):
        await operator.create(PODS, await pod_of_a_config_map(tenant, f"stray-{number}"))
    error = await refusal(operator.create(PODS, await pod_of_a_config_map(tenant, "stray")))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=1" in error.message
    await tenant.uses("4")


async def test_what_stood_there_before_a_group_was_required_keeps_its_pods(tenant: Tenant) -> None:
    """Kubernetes replaces them; nobody may grow it."""
    await tenant.create(REPLICATION_CONTROLLERS, replication_controller(tenant, 2, label=False))
    await eventually(lambda: has_pods(tenant, 2), 60, "its pods")
    await tenant.has_default(**{REQUIRED: "true"})
    pods = (await tenant.admin.list(PODS, tenant.name))[0]
    gone = {pod["metadata"]["uid"] for pod in pods}
    for pod in pods:
        await tenant.admin.request(
            "DELETE", PODS.path(tenant.name, pod["metadata"]["name"]), body=b'{"gracePeriodSeconds":0}'
        )

    async def replaced() -> bool:
        found = {pod["metadata"]["uid"] for pod in (await tenant.admin.list(PODS, tenant.name))[0]}
        return len(found - gone) == 2

    await eventually(replaced, 60, "its pods are replaced")
    error = await refusal(tenant.scale(REPLICATION_CONTROLLERS, "rc", 3))
    assert f"namespace {tenant.name} requires a group" in error.message


async def has_pods(tenant: Tenant, count: int) -> bool:
    return await tenant.live() == count


async def node(client: KubeClient, name: str, label: str, *taints: Object) -> None:
    obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pays": label}}}
    with contextlib.suppress(AlreadyExists):
        await client.create(NODES, {**obj, "spec": {"taints": list(taints)}})


def daemonset(tenant: Tenant, **pods: Any) -> Object:
    made = deployment("ds", tenant.name, namespace=tenant.name)
    del made["spec"]["replicas"]
    made["spec"]["template"]["spec"].update({"nodeSelector": {"pays": tenant.name}, **pods})
    return {**made, "kind": "DaemonSet"}


@pytest_asyncio.fixture(loop_scope="module")
async def nodes(tenant: Tenant) -> AsyncIterator[list[str]]:
    """Three nodes, two more with a taint, and one that is cordoned."""
    taint = {"key": "pays.example.com/gpu", "effect": "NoSchedule"}
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    names = [f"{tenant.name}-{number}" for number in range(6)]
    for number, name in enumerate(names):
        taints = [taint] if number in (3, 4) else [cordoned] if number == 5 else []
        await node(tenant.admin, name, tenant.name, *taints)
    yield names
    for name in [*names, f"{tenant.name}-new"]:
        with contextlib.suppress(NotFound):
            await tenant.admin.delete(NODES, name)


async def test_a_daemonset_pays_at_its_creation_for_the_nodes_that_it_fits(tenant: Tenant, nodes: list[str]) -> None:
    """Six cores with a toleration of everything, four without, of which one is on a node that is cordoned."""
    error = await refusal(tenant.create(DAEMONSETS, daemonset(tenant, tolerations=[{"operator": "Exists"}])))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=6; what is left is shown to" in error.message
    assert await tenant.live() == 0
    await tenant.create(DAEMONSETS, daemonset(tenant))

    async def counted() -> bool:
        found = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        return (found.used or {}).get("limits.cpu") == "4" and not found.reservations

    await eventually(counted, 60, "the recount agrees with admission")
    patch = {"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}}
    error = await refusal(tenant.client.patch(DAEMONSETS, "ds", patch, namespace=tenant.name))
    assert f"exceeded quota: {tenant.name}, requested: limits.cpu=2; what is left is shown to" in error.message
    await tenant.client.patch(
        DAEMONSETS, "ds", {"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}, namespace=tenant.name
    )
    assert await tenant.live() <= 6


async def test_the_surge_of_a_daemonset_fits_into_a_full_group(tenant: Tenant, nodes: list[str], parts: Parts) -> None:
    """Its pods never become available, so every node has a second one. They are free for ten minutes."""
    if not parts.cluster.is_real:
        pytest.skip("the sandbox does not update DaemonSets")
    made = daemonset(tenant)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made["spec"] |= {"minReadySeconds": 3000, "updateStrategy": rolling}
    await tenant.create(DAEMONSETS, made)
    await tenant.uses("4")
    await tenant.patch(DAEMONSETS, "ds", {"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}})
    await tenant.running(8)

    async def counted() -> bool:
        """As soon as a recount has seen all of them."""
        found = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        newest = max(int(pod["metadata"]["resourceVersion"]) for pod in await tenant.pods())
        return int(found.counted_at.get("pods", "0")) >= newest and not found.reservations

    await eventually(counted, 60, "all pods are counted")
    found = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    assert (found.used or {}).get("limits.cpu") == "4"
    assert not {"OverQuota", "Surplus", "Overlap"} & await tenant.conditions()


async def test_nodes_that_come_later_are_charged(tenant: Tenant, nodes: list[str], logged: LoggedErrors) -> None:
    """Nobody can refuse a node, so it shows as drift and OverQuota; one that goes is refunded."""
    logged.expect("drift")
    await tenant.create(DAEMONSETS, daemonset(tenant))
    await node(tenant.admin, f"{tenant.name}-new", tenant.name)

    last: list[object] = []

    async def used(cpu: str) -> bool:
        found = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        last[:] = [found.used, found.reservations, *(pod["metadata"]["name"] for pod in await tenant.pods())]
        return (found.used or {}).get("limits.cpu") == cpu and not found.reservations

    await eventually(lambda: used("5"), 60, lambda: f"the new node is charged: {last}")
    # The controller of DaemonSets takes back only pods that are on a node.
    await tenant.running(5)
    assert "OverQuota" in await tenant.conditions()
    await tenant.admin.patch(NODES, nodes[0], {"metadata": {"labels": {"pays": None}}})
    await tenant.admin.patch(NODES, nodes[1], {"metadata": {"labels": {"pays": None}}})
    await eventually(lambda: used("3"), 60, lambda: f"nodes that no longer fit are refunded: {last}")
