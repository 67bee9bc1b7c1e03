"""Claims of PodGroups on a real API server that serves this alpha of Kubernetes 1.36, by its own controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

import crds
from bizrq.cli.standalone import Standalone, TargetCluster
from bizrq.kube.client import KubeClient, Resource
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.e2e.test_devices import allocate, bind, hours, remove, uses
from tests.support.cluster import Real, eventually, has_kinds, refusal
from tests.support.objects import CLAIM_TEMPLATES as TEMPLATES
from tests.support.objects import (
    CLAIMS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    Object,
    claim_template,
    claiming,
    deployment,
    device_class,
    group,
    node,
)

GATES = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true"
POD_GROUPS = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # The alpha is that of Kubernetes 1.36.
    pytest.mark.real(version="v1.36."),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeClient]:
    """An administrator's client of a cluster of its own, with bizrq, a class of devices and a node."""
    alpha = {"kube-apiserver": [GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"]}
    real = Real(tmp_path_factory.mktemp("alpha"), flags={**alpha, "kube-controller-manager": [GATES]})
    try:
        await asyncio.to_thread(real.start)
        async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
            await has_kinds(client, [*crds.load(), *crds.stand_ins()])
            await client.create(DEVICE_CLASSES, device_class("gpu"))
            await client.create(NODES, node("n1"))
            where = TargetCluster(real.kubeconfig, None, real.kubeconfig)
            async with Standalone(settings({}), where, recount_interval=1.0, cash_interval=1.0):
                yield client
    finally:
        await asyncio.to_thread(real.stop)


def member(name: str, owner: str, replicas: int) -> Object:
    """A workload whose pods are of the PodGroup, and name the claim as it does."""
    made = claiming(deployment(name, owner, replicas), "devices")
    made["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
    return made


async def test_pods_of_a_pod_group_have_its_claim_together(client: KubeClient) -> None:
    """Two devices for three pods, for an hour; another group's pods may not have them."""
    for name in ("nlp", "vision"):
        await client.create(GROUPS, group(name, gpu="4", hours="100"))
    await client.create(TEMPLATES, claim_template("devices", 2))
    web = member("web", "nlp", 3)
    [named] = web["spec"]["template"]["spec"]["resourceClaims"]
    spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": [named]}
    pod_group = await client.create(POD_GROUPS, {
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "pg",
        "namespace": "default"}, "spec": spec})  # fmt: skip
    for name in ("nlp", "vision"):
        await uses(client, name, gpu="0")
    await client.create(DEPLOYMENTS, web)
    await uses(client, "nlp", gpu="2")
    error = await refusal(client.create(DEPLOYMENTS, member("other", "vision", 1)))
    assert "claim of PodGroup 'pg.devices' is charged to group nlp, not to vision" in error.message

    async def made() -> tuple[list[Object], str] | None:
        pods, _ = await client.list(PODS, "default")
        told = {s.get("resourceClaimName") for p in pods for s in p["status"].get("resourceClaimStatuses") or [{}]}
        return (pods, str(told.pop())) if len(pods) == 3 and len(told) == 1 and None not in told else None

    found = await eventually(made, 60, "three pods with one claim")
    assert found is not None
    pods, claim = found
    [owner] = (await client.get(CLAIMS, claim, "default"))["metadata"]["ownerReferences"]
    assert owner["kind"] == "PodGroup"
    for pod in pods:
        await bind(client, pod)
    users = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups"}
    await allocate(client, claim, [pod_group], "a", "b", ago=timedelta(hours=1), **users)

    async def spent() -> bool:
        return 2 <= hours(await uses(client, "nlp", gpu="2")) < 2.2

    await eventually(spent, 60, "two card-hours")
    await client.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
    await uses(client, "vision", gpu="2")
    await uses(client, "nlp", gpu="0")
    await client.delete(DEPLOYMENTS, "web", "default")
    await remove(client, pods)
    await uses(client, "vision", gpu="0")
