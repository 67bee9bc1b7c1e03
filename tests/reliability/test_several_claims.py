"""A workload that names more claims than one count asks for at once is admitted where they fit."""

from __future__ import annotations

import pytest

from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from tests.reliability.routes import attempt, web
from tests.support.cluster import eventually
from tests.support.objects import CLAIMS, DEPLOYMENTS, DEVICE_CLASSES, claim, device_class
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")


@pytest.mark.parametrize("many", [5, 40])
@pytest.mark.parametrize("field", ["resourceClaimName", "resourceClaimTemplateName"])
async def test_a_workload_names_several_claims(tenant: Tenant, field: str, many: int) -> None:
    """Each has one device."""
    await attempt(tenant.admin.create(DEVICE_CLASSES, device_class("gpu")))
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {"requests.nvidia.com/gpu": "40"}}})

    async def is_counted() -> bool:
        stored = await tenant.admin.get(GROUPS, tenant.name)
        return "requests.nvidia.com/gpu" in (stored["status"].get("used") or {})

    await eventually(is_counted)
    for number in range(many):
        made = claim(f"c{number}", 1, namespace=tenant.name)
        if field == "resourceClaimName":
            await tenant.create(CLAIMS, made)
        else:
            api_version, kind = TEMPLATES.api_version, TEMPLATES.kind
            spec = {"spec": made["spec"]}
            template = {"apiVersion": api_version, "kind": kind, "metadata": made["metadata"], "spec": spec}
            await tenant.create(TEMPLATES, template)
    wanted = web(tenant, 1)
    wanted["spec"]["template"]["spec"]["resourceClaims"] = [{"name": f"n{n}", field: f"c{n}"} for n in range(many)]
    refused = await attempt(tenant.client.create(DEPLOYMENTS, wanted, dry_run=True))
    assert refused is None, refused.message
    wanted["spec"]["template"]["spec"]["resourceClaims"].append({"name": "missing", field: "missing"})
    refused = await attempt(tenant.client.create(DEPLOYMENTS, wanted, dry_run=True))
    assert refused is not None
    assert "missing" in refused.message
    assert "was not found" in refused.message
