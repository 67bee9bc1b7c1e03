"""What the API server says of a request's API priority: the schema and the level that it was given."""

from __future__ import annotations

import aiohttp
import yaml

from bizrq.cli.manifests_of_bizrq import resource_of
from bizrq.kube.client import KubeClient
from tests.support.accounts import token_of
from tests.support.cluster import Cluster


async def uid_of(admin: KubeClient, kind: str, name: str) -> str:
    return (await admin.get(resource_of({"kind": kind}), name))["metadata"]["uid"]


async def classified(admin: KubeClient, cluster: Cluster, account: str, path: str) -> tuple[str | None, str | None]:
    """The uids of the schema and of the level of a request, which may be forbidden."""
    there = yaml.safe_load(cluster.kubeconfig.read_text("utf-8"))["clusters"][0]["cluster"]
    proof = {"Authorization": f"Bearer {await token_of(admin, account)}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        session.get(there["server"] + path, headers=proof) as answer,
    ):
        uids = [answer.headers.get(f"X-Kubernetes-PF-{of}-UID") for of in ("FlowSchema", "PriorityLevel")]
        return uids[0], uids[1]
