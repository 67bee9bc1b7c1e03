"""A review that takes a webhook long: everybody else's wait behind it, and are refused once their time is over.

The tenant's object is as large as an API server takes it. The webhook is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bizrq.kube.client import ApiError, KubeClient, Unreachable
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import NODES
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import attempt, counted, of_kind, owned, pod, replica_set, web
from tests.support.cluster import Cluster
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object, deployment, group
from tests.support.serving import Parts
from tests.support.tenant import DAEMONSETS, Tenant, tenant_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

#: Nodes of a middling cluster.
NODE_COUNT = 300
#: As many as fit into a request of 1.5 MiB, of which an API server takes more.
TERMS = 20_000
#: Seconds within which somebody else has an answer.
PATIENCE = 3.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """A webhook as a process, a controller, and nodes."""
    if not cluster.is_real:
        pytest.skip("the sandbox is in this process, and itself slow to take such objects")
    async with Parts(cluster, tmp_path_factory.mktemp("heavy")) as parts:
        for number in range(NODE_COUNT):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"heavy-{number}"}}
            await parts.client.create(NODES, node)
        await parts.webhook_process()
        await parts.controller(recount_interval=5)
        await parts.register()
        yield parts
        for number in range(NODE_COUNT):
            await parts.client.delete(NODES, f"heavy-{number}")


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(
    parts: Parts, client: KubeClient, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Tenant]:
    await client.create(GROUPS, group(namespace, cpu="4"))
    await counted(client, namespace)
    async with tenant_of(parts.cluster, client, namespace, tmp_path_factory.mktemp(namespace)) as tenant:
        yield tenant


def many_terms(tenant: Tenant) -> Object:
    """A DaemonSet whose terms of affinity match no node: each is tried on each."""
    made = of_kind(DAEMONSETS, web(tenant, 1))
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * TERMS}}
    made["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    return made


async def test_somebody_else_is_answered_meanwhile(tenant: Tenant, client: KubeClient, unique: str) -> None:
    """The tenant's is a dry run: nothing is stored or charged, and he may send it for ever."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await counted(client, other)
    made = many_terms(tenant)

    async def send() -> str:
        began = time.monotonic()
        try:
            await tenant.client.create(DAEMONSETS, made, dry_run=True, timeout=60)
        except (ApiError, Unreachable) as error:
            return f"{time.monotonic() - began:.1f} s: {str(error)[:200]}"
        return f"{time.monotonic() - began:.1f} s: yes"

    sent = asyncio.create_task(send())
    await asyncio.sleep(1)
    small: Any = deployment("web", other, 1, namespace="default")
    assert small["metadata"]["labels"][LABEL] == other
    began, error = time.monotonic(), None
    try:
        await client.create(DEPLOYMENTS, small, dry_run=True, timeout=60)
    except (ApiError, Unreachable) as refused:
        error = str(refused)[:300]
    took = time.monotonic() - began
    told = await sent
    assert error is None, f"refused after {took:.1f} s: {error}; the tenant's: {told}"
    assert took < PATIENCE, f"answered after {took:.1f} s; the tenant's: {told}"


async def test_what_fails_open_is_not_admitted_meanwhile(tenant: Tenant) -> None:
    """A pod without a label below the tenant's own ReplicaSet: its review fails open, and ends after ten seconds."""
    made = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 1))
    child = pod(tenant, "large", label=None, app="x")
    child["spec"]["containers"][0]["resources"] = {part: {"cpu": "10"} for part in ("requests", "limits")}
    child = owned(child, "ReplicaSet", "rs", made["metadata"]["uid"])
    refused = await attempt(tenant.create(PODS, child))
    assert refused is not None
    assert "exceeded quota" in refused.message
    heavy = asyncio.create_task(_sent(tenant))
    await asyncio.sleep(1)
    refused = await attempt(tenant.create(PODS, child))
    told = await heavy
    assert refused is not None, f"a pod of 10 cores is there, in a group of 4; the review beside it: {told}"


async def _sent(tenant: Tenant) -> str:
    try:
        await tenant.client.create(DAEMONSETS, many_terms(tenant), dry_run=True, timeout=60)
    except (ApiError, Unreachable) as error:
        return str(error)[:200]
    return "yes"


async def test_many_at_once_leave_small_ones_their_time(tenant: Tenant, client: KubeClient, unique: str) -> None:
    """Sixty dry runs of a change that is slow to count. They may be told to try again.

    The last test of the module: the API server keeps spare connections, which the port cuts after a while.
    """
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await counted(client, other)
    owner = await tenant.create(REPLICASETS, replica_set(tenant, "rs", 1))
    made = web(tenant, 0, name="big", app="big")
    [container] = made["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"] |= {f"a.b/c{number}": "1" for number in range(12_000)}
    await tenant.create(DEPLOYMENTS, made)

    async def send(number: int) -> None:
        change = {"spec": {"template": {"metadata": {"annotations": {"x": str(number)}}}}}
        with contextlib.suppress(ApiError, Unreachable):
            await tenant.client.patch(DEPLOYMENTS, "big", change, namespace=tenant.name, dry_run=True)

    async def add(number: int) -> ApiError | None:
        child = pod(tenant, f"large{number}", label=None, app="x")
        child["spec"]["containers"][0]["resources"] = {part: {"cpu": "10"} for part in ("requests", "limits")}
        try:
            await tenant.create(PODS, owned(child, "ReplicaSet", "rs", owner["metadata"]["uid"]))
        except ApiError as error:
            # An API server that is too busy to wait for the answer says that the call failed.
            return error
        return None

    flood = [asyncio.create_task(send(number)) for number in range(60)]
    await asyncio.sleep(3)
    small: Any = deployment("web", other, 1, namespace="default")
    refused, *children = await asyncio.gather(
        attempt(client.create(DEPLOYMENTS, small, dry_run=True)), *(add(number) for number in range(3))
    )
    await asyncio.gather(*flood)
    assert refused is None
    assert None not in children
