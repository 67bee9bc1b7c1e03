"""A flood of creates by ordinary accounts, at an API server with few seats: our own requests get theirs.

Each create holds a seat while our webhooks decide on it, and for that they write. Administrators would see nothing of
it: `system:masters` is exempt from API priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.api import priority
from bizrq.cli.manifests_of_bizrq import priority_objects, resource_of
from bizrq.cli.rbac import CERTS, CONTROLLER, WEBHOOKS
from bizrq.kube import config
from bizrq.kube.client import ApiError, KubeClient, Unreachable
from bizrq.store.groups import GROUPS
from tests.support.accounts import SYSTEM, store, token_of
from tests.support.cluster import Cluster, Real, eventually, has_kinds
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    bound,
    cluster_role,
    deployment,
    group,
)
from tests.support.serving import Parts

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

#: The seats of the API server. It gives each priority level its share of the sum of both.
SEATS = {"--max-mutating-requests-inflight": 40, "--max-requests-inflight": 0}
#: The flood: so many accounts, and creates at once.
TENANTS, CREATES = 10, 150
FLOOD = "flood"
#: The groups that pay, one for each flood: what is reserved for refused creates takes a minute to expire.
FLOODS = WITHOUT, WITH = "without", "with"
#: Seconds in which 99 of 100 creates of the flood have to be stored.
P99 = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """Two webhooks and a controller under their own accounts, with groups that have room for the floods."""
    folder = tmp_path_factory.mktemp("seats")
    real = Real(
        folder,
        controllers="namespace-controller",
        flags={"kube-apiserver": [f"{flag}={value}" for flag, value in SEATS.items()]},
    )
    await asyncio.to_thread(real.start)
    try:
        cluster = Cluster(real.version, real.kubeconfig)
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
            await has_kinds(client, crds.stand_ins())
        async with Parts(cluster, folder) as parts:
            for _ in range(2):
                await parts.webhook_process()
            await parts.controller_process()
            for name in FLOODS:
                await parts.client.create(GROUPS, group(name, cpu="100000"))
            await parts.client.create(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": FLOOD}}
            )
            role = {**cluster_role(FLOOD, "get"), "rules": [_creates()]}
            await parts.client.create(CLUSTER_ROLES, role)
            binding = bound(FLOOD, f"system:serviceaccounts:{FLOOD}", "Group")
            await parts.client.create(CLUSTER_ROLE_BINDINGS, binding)
            await eventually(lambda: _are_counted(parts.client), 60, "the groups are counted")
            await parts.register()
            yield parts
    finally:
        await asyncio.to_thread(real.stop)


def _creates() -> Object:
    return {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create"]}


async def _are_counted(client: KubeClient) -> bool:
    return all(["used" in (await client.get(GROUPS, name)).get("status", {}) for name in FLOODS])


async def test_requests_of_our_accounts_are_of_our_priority_level(parts: Parts) -> None:
    """The API server names the schema and the level of each answer. Leases have a schema of their own."""
    [level] = [obj["metadata"]["name"] for obj in priority_objects(SYSTEM) if obj["kind"] == priority.KINDS[0]]
    groups = GROUPS.path()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{CONTROLLER}"
    for account, path, schema in (
        (WEBHOOKS, groups, WEBHOOKS),
        (WEBHOOKS, "/version", WEBHOOKS),
        (WEBHOOKS, "/api/v1/namespaces/default/pods", WEBHOOKS),
        (CONTROLLER, groups, CONTROLLER),
        (CONTROLLER, lease, priority.LEASE),
        (CERTS, groups, CERTS),
    ):
        await eventually(
            lambda a=account, p=path, s=schema: _is_of(parts, a, p, s, level), 30, f"{account} {path} is of {schema}"
        )


async def _is_of(parts: Parts, account: str, path: str, schema: str, level: str) -> bool:
    return await _classified(parts, account, path) == (
        await _uid(parts, "FlowSchema", schema),
        await _uid(parts, "PriorityLevelConfiguration", level),
    )


async def _uid(parts: Parts, kind: str, name: str) -> str:
    return (await parts.client.get(resource_of({"kind": kind}), name))["metadata"]["uid"]


async def _classified(parts: Parts, account: str, path: str) -> tuple[str | None, str | None]:
    """The uids of the schema and of the level of a request, which may be forbidden."""
    there = yaml.safe_load(parts.cluster.kubeconfig.read_text("utf-8"))["clusters"][0]["cluster"]
    proof = {"Authorization": f"Bearer {await token_of(parts.client, account)}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.get(there["server"] + path, headers=proof) as answer,
    ):
        uids = [answer.headers.get(f"X-Kubernetes-PF-{of}-UID") for of in ("FlowSchema", "PriorityLevel")]
        return uids[0], uids[1]


async def test_a_flood_starves_our_writes_unless_they_have_a_level_of_their_own(parts: Parts) -> None:
    objects = priority_objects(SYSTEM)
    for obj in reversed(objects):
        await parts.client.delete(resource_of(obj), obj["metadata"]["name"])
    await eventually(lambda: _is_with(parts, with_ours=False), 30, "our accounts are like all others")
    stored, slow = await flood(parts, WITHOUT)
    sys.stdout.write(f"without: {stored} of {CREATES} stored, p99 {slow:.1f} s\n")
    assert stored < CREATES or slow > P99, "otherwise the flood is too small to show anything"

    await store(parts.client, objects)
    await eventually(lambda: _is_with(parts, with_ours=True), 30, "our accounts have a level")
    stored, slow = await flood(parts, WITH)
    sys.stdout.write(f"with: {stored} of {CREATES} stored, p99 {slow:.1f} s\n")
    assert (stored, slow < P99) == (CREATES, True), (stored, slow)


async def _is_with(parts: Parts, *, with_ours: bool) -> bool:
    found, _ = await _classified(parts, WEBHOOKS, GROUPS.path())
    with contextlib.suppress(ApiError):
        return (found == await _uid(parts, "FlowSchema", WEBHOOKS)) is with_ours
    # There is none any more; the API server learns of it a moment later.
    return found == await _uid(parts, "FlowSchema", "service-accounts")


async def flood(parts: Parts, name: str) -> tuple[int, float]:
    """Create all at once, charged to the group of this name.

    Return how many were stored, and the seconds after which 99 of 100 had their answer.
    """
    loop = asyncio.get_running_loop()
    taken: list[float] = []

    async def create(client: KubeClient, number: int) -> bool:
        began = loop.time()
        try:
            await client.create(DEPLOYMENTS, deployment(f"{name}-{number}", name, 1, namespace=FLOOD), timeout=60)
        except (ApiError, Unreachable):
            return False
        finally:
            taken.append(loop.time() - began)
        return True

    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(TENANTS):
            account = config.Overrides(impersonated=f"system:serviceaccount:{FLOOD}:tenant-{number}")
            endpoint = config.from_kubeconfig(parts.cluster.kubeconfig, None, account)
            clients.append(await stack.enter_async_context(KubeClient(endpoint)))
        created = await asyncio.gather(*(create(clients[n % TENANTS], n) for n in range(CREATES)))
    return sum(created), sorted(taken)[math.ceil(0.99 * CREATES) - 1]
