"""The API server's audit log says which group a request is charged to, and why a request was refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from tests.support import audit
from tests.support.cluster import Cluster, eventually, has_kinds, refusal
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.serving import Parts

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

_RULES = """\
  - level: Metadata
    resources: [{group: apps, resources: [deployments]}]
  - level: None
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def audited(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[KubeClient, Path]]:
    """A client of an API server that asks a webhook, and the file of its audit log."""
    folder = tmp_path_factory.mktemp("audited")
    real, log = audit.audited(folder, _RULES)
    await asyncio.to_thread(real.start)
    try:
        cluster = Cluster(real.version, real.kubeconfig)
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
            await has_kinds(client, crds.stand_ins())
            async with Parts(cluster, folder) as parts:
                await parts.webhooks()
                await parts.controller()
                await client.create(GROUPS, group("nlp", cpu="2"))
                await parts.register()
                yield client, log
    finally:
        await asyncio.to_thread(real.stop)


async def test_group_and_reason_are_in_the_audit_log(audited: tuple[KubeClient, Path]) -> None:
    client, log = audited

    async def counted() -> bool:
        return "used" in (await client.get(GROUPS, "nlp")).get("status", {})

    await eventually(counted, 60, "the group is counted")
    await client.create(DEPLOYMENTS, deployment("fits", "nlp", 1))
    assert "exceeded quota" in str(await refusal(client.create(DEPLOYMENTS, deployment("web", "nlp", 3))))
    told = {
        event["responseStatus"]["code"]: {
            key.removeprefix("workloads.quota.biz.group/"): value
            for key, value in event["annotations"].items()
            if key.startswith("workloads.quota.biz.group/")
        }
        for event in audit.events(log)
        if event["verb"] == "create"
    }
    assert told == {201: {"group": "nlp"}, 403: {"group": "nlp", "reason": "QuotaExceeded"}}
