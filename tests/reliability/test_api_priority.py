"""Requests of our accounts are of our own level of API priority; R14 shows what that is good for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bizrq.api import priority
from bizrq.cli.manifests_of_bizrq import priority_objects
from bizrq.cli.rbac import CERTS, CONTROLLER, WEBHOOKS
from bizrq.store.groups import GROUPS
from tests.support.accounts import SYSTEM
from tests.support.classified import classified, uid_of
from tests.support.cluster import Cluster, Real, eventually
from tests.support.serving import Parts

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def test_requests_of_our_accounts_are_of_our_priority_level(real_cluster: Real, tmp_path: Path) -> None:
    """The API server names the schema and the level of each answer. Leases have a schema of their own."""
    async with Parts(Cluster(real_cluster.version, real_cluster.kubeconfig), tmp_path) as parts:
        await _are_classified(parts)


async def _are_classified(parts: Parts) -> None:
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
    return await classified(parts.client, parts.cluster, account, path) == (
        await uid_of(parts.client, "FlowSchema", schema),
        await uid_of(parts.client, "PriorityLevelConfiguration", level),
    )
