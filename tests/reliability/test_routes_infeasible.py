"""A route through an in-place resize that the node calls infeasible: what is asked for after that counts as well."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.api import group as wire
from bizrq.store.groups import GROUPS
from tests.reliability.routes import (
    STRATEGIC,
    attempt,
    pod,
    web,
)
from tests.support.cluster import Cluster
from tests.support.objects import DEPLOYMENTS, PODS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")


def resize(**resources: str) -> Object:
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": resources, "limits": resources}}]}}


async def test_a_pod_is_resized_after_what_was_infeasible(cluster: Cluster, tenant: Tenant) -> None:
    """The group has no ceiling of memory, and the node changes none (its memory manager has the policy Static).

    Then the pod asks for cores alone, and its status still tells of the resize before.
    """
    made = pod(tenant, "p")
    made["spec"]["containers"][0]["resources"] = {
        part: {"cpu": "1", "memory": "64Mi"} for part in ("requests", "limits")
    }
    await tenant.create(PODS, made)
    await tenant.create(DEPLOYMENTS, web(tenant, 3))
    await tenant.running(4)
    await tenant.uses("4")

    async def resized(change: Object) -> Object:
        # The role `edit` does not have it; an autoscaler does, whose limits the tenant writes.
        return await tenant.admin.patch(
            PODS, "p", change, namespace=tenant.name, subresource="resize", content_type=STRATEGIC
        )

    stored = await resized(resize(cpu="1", memory="128Mi"))
    # As a kubelet says it (kubernetes pkg/kubelet/allocation).
    generation = stored["metadata"].get("generation")
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": generation}
    has = {part: {"cpu": "1", "memory": "64Mi"} for part in ("requests", "limits")}
    status = (await tenant.admin.get(PODS, "p", tenant.name))["status"]
    others = [each for each in status.get("conditions") or () if each["type"] != "PodResizePending"]
    shown = {"name": "c", "ready": True, "restartCount": 0, "image": "x", "imageID": "x", "resources": has}
    told = {
        "conditions": [*others, pending],
        "containerStatuses": [{**shown, "allocatedResources": has["requests"]}],
    }
    await tenant.admin.patch(PODS, "p", {"status": told}, namespace=tenant.name, subresource="status")
    await asyncio.sleep(1)
    refused = await attempt(resized(resize(cpu="4", memory="64Mi")))
    after = await tenant.admin.get(PODS, "p", tenant.name)
    asks = after["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    status_of = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    assert refused is not None, f"the pod asks for {asks} cores; used {(status_of.used or {})['limits.cpu']} of 4"
    assert "exceeded quota" in refused.message
