"""Webhooks without a controller: what is not known is not zero."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from tests.support.cluster import Cluster, refusal
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.oracle import settled
from tests.support.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_without_a_controller_a_group_stays_unknown_and_everything_of_it_is_refused(
    cluster: Cluster, client: KubeClient, unique: str, tmp_path: Path
) -> None:
    """Webhooks only: unknown is not zero, for a workload and for a child, and the answer says what to do."""
    async with Parts(cluster, tmp_path) as parts:
        await parts.webhooks()
        await parts.register()
        await client.create(GROUPS, group(unique, cpu="4"))
        errors = await asyncio.gather(
            refusal(client.create(DEPLOYMENTS, deployment(unique, unique))),
            refusal(client.create(GROUPS, group(f"{unique}-child", unique, cpu="1"))),
        )
        for error in errors:
            assert f"quota {unique} is not reconciled yet" in error.message
        await parts.controller()
        await settled(client, [unique])
        await client.create(DEPLOYMENTS, deployment(unique, unique))
