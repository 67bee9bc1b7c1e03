"""Templates that workloads refer to, as kubectl writes them: the workload that grows pays, and is asked first."""

from __future__ import annotations

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from tests.support.cluster import eventually, refusal
from tests.support.objects import (
    CLAIM_TEMPLATES,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NAMESPACES,
    RAYCLUSTERS,
    RAYJOBS,
    ROLLOUTS,
    claim_template,
    claiming,
    deployment,
    device_class,
    group,
    ray_spec,
    raycluster,
    rayjob,
    referring,
    template,
)
from tests.support.oracle import settled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("station")]


async def uses(client: KubeClient, name: str, resource: str, amount: str) -> None:
    async def used() -> bool:
        status = (await client.get(GROUPS, name)).get("status", {})
        return status.get("used", {}).get(resource) == amount and not status.get("reservations")

    await eventually(used, 60, f"{name} uses {resource}={amount}")


async def test_a_template_that_grows_is_checked_in_the_group_of_the_rollout(
    client: KubeClient, namespace: str, unique: str
) -> None:
    await client.create(GROUPS, group(unique, cpu="10"))
    await settled(client, [unique])
    shape = await client.create(DEPLOYMENTS, deployment("shape", None, 0, namespace=namespace))
    await client.create(ROLLOUTS, referring("web", unique, shape, 3, namespace=namespace))
    await uses(client, unique, "limits.cpu", "3")
    larger = {"spec": {"template": template("4")}}
    error = await refusal(client.patch(DEPLOYMENTS, "shape", larger, namespace=namespace))
    assert f"exceeded quota: {unique}, requested: limits.cpu=9" in error.message
    assert f"charged for Rollout {namespace}/web, which refers to Deployment shape" in error.message
    await client.patch(DEPLOYMENTS, "shape", {"spec": {"template": template("3")}}, namespace=namespace)
    await uses(client, unique, "limits.cpu", "9")
    await client.delete(ROLLOUTS, "web", namespace)
    await uses(client, unique, "limits.cpu", "0")


async def test_a_cluster_that_grows_beyond_its_job_is_checked_in_the_jobs_group(
    client: KubeClient, namespace: str, unique: str
) -> None:
    """The operator made it without the label."""
    await client.create(GROUPS, group(unique, cpu="8"))
    await settled(client, [unique])
    job = await client.create(RAYJOBS, rayjob("train", unique, 2, namespace=namespace))
    await client.create(RAYCLUSTERS, raycluster("train-abc", 2, job))
    await uses(client, unique, "limits.cpu", "4")
    error = await refusal(client.patch(RAYCLUSTERS, "train-abc", {"spec": ray_spec(7)}, namespace=namespace))
    assert f"charged for RayJob {namespace}/train, which made RayCluster train-abc" in error.message
    await client.patch(RAYCLUSTERS, "train-abc", {"spec": ray_spec(6)}, namespace=namespace)
    await uses(client, unique, "limits.cpu", "8")


async def test_a_claim_template_stays_while_it_is_used_and_goes_with_its_namespace(
    client: KubeClient, namespace: str, unique: str
) -> None:
    await client.create(GROUPS, group(unique, gpu="8"))
    await settled(client, [unique])
    await client.create(DEVICE_CLASSES, device_class(f"{unique}.example.com"))
    devices = claim_template("devices", 2, f"{unique}.example.com", namespace=namespace)
    await client.create(CLAIM_TEMPLATES, devices)
    await client.create(DEPLOYMENTS, claiming(deployment("web", unique, 3, namespace=namespace), "devices"))
    await uses(client, unique, "requests.nvidia.com/gpu", "6")
    error = await refusal(client.delete(CLAIM_TEMPLATES, "devices", namespace))
    assert f"ResourceClaimTemplate {namespace}/devices is used by Deployment {namespace}/web" in error.message
    await client.delete(NAMESPACES, namespace)
    await uses(client, unique, "requests.nvidia.com/gpu", "0")
