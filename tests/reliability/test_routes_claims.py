"""Routes by claims that say of themselves that they were made for a pod: such a claim is charged with its pod.

The tenant's group has four devices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import parse
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import attempt, gone, owned, pod, web
from tests.support.objects import CLAIMS, DEPLOYMENTS, DEVICE_CLASSES, PODS, Object, claim, device_class, sharing
from tests.support.oracle import settled
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "requests.nvidia.com/gpu"


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def devices(client: KubeClient, tenant: Tenant) -> AsyncIterator[None]:
    await client.create(DEVICE_CLASSES, device_class("gpu"))
    await client.patch(GROUPS, tenant.name, {"spec": {"hard": {GPU: "4"}}})
    yield
    await client.delete(DEVICE_CLASSES, "gpu")


async def of_a_pod(tenant: Tenant, name: str, devices: int, **labels: str) -> Object:
    """A claim c of this pod, which is created for that."""
    made = await tenant.create(PODS, pod(tenant, name))
    wanted = claim("c", devices, namespace=tenant.name)
    wanted["metadata"]["labels"] = labels
    return owned(wanted, "Pod", name, made["metadata"]["uid"], "v1")


async def has_at_most_four(tenant: Tenant) -> None:
    [found] = (await settled(tenant.admin, [tenant.name])).values()
    assert parse((found.status.used or {})[GPU]) <= parse("4")


async def test_a_claim_of_a_pod_is_let_go(tenant: Tenant) -> None:
    """Its label charges nobody as long as a pod owns it."""
    await attempt(tenant.create(CLAIMS, await of_a_pod(tenant, "p", 32, **{LABEL: tenant.name})))
    await attempt(tenant.patch(CLAIMS, "c", {"metadata": {"ownerReferences": None}}))
    await has_at_most_four(tenant)


async def test_a_claim_that_a_workload_names_comes_again_larger(tenant: Tenant) -> None:
    """The garbage collector deletes it with its pod, and asks nobody whether it is in use."""
    await attempt(tenant.create(CLAIMS, await of_a_pod(tenant, "p", 1)))
    await attempt(tenant.create(DEPLOYMENTS, sharing(web(tenant, 1), "c")))
    await has_at_most_four(tenant)
    await tenant.delete(PODS, "p", grace=0)
    await gone(tenant, CLAIMS, "c")
    await attempt(tenant.create(CLAIMS, await of_a_pod(tenant, "q", 32)))
    await has_at_most_four(tenant)
