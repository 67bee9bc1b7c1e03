"""A tenant stores an object that is nested deeper than a parser goes: nobody else may notice."""

from __future__ import annotations

import orjson
import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from tests.reliability.routes import attempt, pod, web
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, PODS
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEVELS = 1_500


async def test_a_pod_whose_fields_are_nested_deep_hides_no_other(cluster: Cluster, tenant: Tenant) -> None:
    """It has no label, so nobody reviews it."""
    if not cluster.is_real:
        pytest.skip("the sandbox stores nothing that is nested so deep")
    made = pod(tenant, "deep", label=None)
    entry = {"manager": "deep", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}
    made["metadata"]["managedFields"] = [{**entry, "time": "2026-01-01T00:00:00Z"}]
    fields = b'{"f:a":' * LEVELS + b"{}" + b"}" * LEVELS
    body = orjson.dumps(made).replace(b'"DEEP"', fields)
    await tenant.client.request("POST", PODS.path(tenant.name), body=body)
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        answer = await client.request("GET", PODS.path(tenant.name, "deep"))
        assert fields in answer.replace(b" ", b"").replace(b"\n", b"")
    names = [each["metadata"]["name"] for each in (await tenant.admin.list(PODS))[0]]
    assert "deep" in names
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(3)

    async def is_counted() -> bool:
        stored = await tenant.admin.get(GROUPS, tenant.name)
        return stored["status"]["used"]["limits.cpu"] == "2" and not stored["status"].get("reservations")

    await eventually(is_counted)
    await attempt(tenant.delete(PODS, "deep", grace=0))
