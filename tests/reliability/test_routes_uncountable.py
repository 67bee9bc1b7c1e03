"""Routes of pods that run and cannot be counted as they are: by a label of a model, or a claim template that is gone.

In each a tenant with the role `edit` tries to run more than the four cores of a group, or its devices for no hours.
"""

from __future__ import annotations

import asyncio

import pytest

from bizrq.api import group as wire
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import parse
from bizrq.workloads.labels import MODEL_LABELS
from tests.reliability.routes import attempt, changed, for_a_while, has_running, may_operate, of_kind, owned, pod, web
from tests.support.live_pods import LivePods
from tests.support.objects import (
    CLAIM_TEMPLATES,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    PODS,
    REPLICASETS,
    TFJOBS,
    Object,
    claim_template,
    device_class,
    tfjob,
)
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 12
MODEL = MODEL_LABELS["gpu"]
GPU = "nvidia.com/gpu"


def without_devices() -> Object:
    """A strategic merge patch by which a template asks for hardly anything any more."""
    asks = {part: {"cpu": "1m", GPU: None} for part in ("limits", "requests")}
    container = {"name": "c", "image": "x", "resources": asks}
    spec = {"containers": [container], "nodeSelector": None, "resourceClaims": None}
    return {"spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize("kind", [REPLICASETS, STATEFULSETS], ids=lambda each: each.kind)
async def test_pods_get_a_model_that_their_device_cannot_have(tenant: Tenant, live: LivePods, kind: Resource) -> None:
    """A pod of a ReplicaSet names no group, so that its other labels may change. `gpu.shared` is another resource."""
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {f"requests.{GPU}": "4"}}})
    for number in range(3):
        made = of_kind(kind, web(tenant, 4, name=f"web{number}", app=f"web{number}", cpu="900m"))
        made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] |= {GPU: "1"}
        if kind is STATEFULSETS:
            made["spec"]["updateStrategy"] = {"type": "OnDelete"}
        if await attempt(tenant.create(kind, made)):
            break
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        await changed(tenant, kind, f"web{number}", without_devices())
        for each in await tenant.pods():
            await attempt(tenant.patch(PODS, each["metadata"]["name"], {"metadata": {"labels": {MODEL: "shared"}}}))
        await asyncio.sleep(3)
    await live.settled()


@pytest.mark.parametrize("kind", [REPLICASETS, STATEFULSETS], ids=lambda each: each.kind)
async def test_the_claim_template_of_pods_is_deleted(
    tenant: Tenant, live: LivePods, kind: Resource, client: KubeClient
) -> None:
    """The workload that made them names it no more."""
    await client.create(DEVICE_CLASSES, device_class("gpu"))
    try:
        for number in range(3):
            name = f"web{number}"
            await attempt(tenant.create(CLAIM_TEMPLATES, claim_template(name, 1, namespace=tenant.name)))
            made = of_kind(kind, web(tenant, 4, name=name, app=name, cpu="900m"))
            made["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": name}]
            if kind is STATEFULSETS:
                made["spec"]["updateStrategy"] = {"type": "OnDelete"}
            if await attempt(tenant.create(kind, made)):
                break
            await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
            await changed(tenant, kind, name, without_devices())
            await attempt(tenant.delete(CLAIM_TEMPLATES, name))
            await asyncio.sleep(3)
        await live.settled()
    finally:
        await client.delete(DEVICE_CLASSES, "gpu")


async def test_children_that_cannot_be_counted_leave_room_for_others(tenant: Tenant, live: LivePods) -> None:
    """People make the pods of a job by hand, which asks for all that the group has."""
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {f"requests.{GPU}": "4"}}})
    await may_operate(tenant, TFJOBS)
    job = await tenant.create(TFJOBS, tfjob("job", tenant.name, 4, namespace=tenant.name))
    for number in range(MANY):
        child = owned(pod(tenant, f"x{number}", label=None), "TFJob", "job", job["metadata"]["uid"], TFJOBS.api_version)
        child["spec"]["containers"][0]["resources"]["limits"] |= {GPU: "1"}
        await attempt(tenant.create(PODS, child))
        await attempt(tenant.patch(PODS, f"x{number}", {"metadata": {"labels": {MODEL: "shared"}}}))
        if number % 4 == 3:
            await asyncio.sleep(2)
    await live.settled()


async def test_the_hours_of_a_pod_that_cannot_be_counted(tenant: Tenant) -> None:
    """It runs within the group's devices. Its label would change as soon as it is there."""
    hours = f"cash/requests.{GPU}"
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {f"requests.{GPU}": "4", hours: "100"}}})
    await asyncio.sleep(2)
    made = web(tenant, 4)
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] |= {GPU: "1"}
    await tenant.create(DEPLOYMENTS, made)
    named: set[str] = set()
    while len(named) < 4:
        for name in {each["metadata"]["name"] for each in await tenant.pods()} - named:
            refused = await attempt(tenant.patch(PODS, name, {"metadata": {"labels": {MODEL: "shared"}}}))
            assert refused is not None
            assert f"requests.{GPU}.shared is another resource" in refused.message
            named.add(name)

    async def spent() -> str:
        return str((wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status.used or {}).get(hours))

    await asyncio.sleep(25)
    await tenant.scale(DEPLOYMENTS, "web", 0)
    await asyncio.sleep(8)
    # 4 devices for 25 seconds.
    assert parse(await spent()) >= parse("27m")
