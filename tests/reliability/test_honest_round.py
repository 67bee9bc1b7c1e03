"""What people and controllers do in a full group that is not refused, and not charged for longer than it runs."""

from __future__ import annotations

import pytest

from bizrq.api import group as wire
from bizrq.store.groups import GROUPS
from tests.reliability.full_group import briefly
from tests.reliability.routes import of_kind, web
from tests.reliability.test_full_group import empty, full
from tests.support.cluster import Cluster, eventually
from tests.support.objects import PODS, Object
from tests.support.tenant import JOBS, Tenant

__all__ = ["empty", "full"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def uses(tenant: Tenant, cpu: str, within: float = 20) -> None:
    """Wait until so much is used, and nothing is promised."""
    last: list[object] = []

    async def does() -> bool:
        status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        last[:] = [status.used, status.reservations]
        return not status.reservations and (status.used or {}).get("limits.cpu") == cpu

    await eventually(does, within, lambda: last)


async def end(tenant: Tenant, pods: list[Object], phase: str) -> None:
    """Have pods end in this phase."""
    for each in pods:
        status = {"metadata": {"uid": each["metadata"]["uid"]}, "status": {"phase": phase}}
        await tenant.admin.patch(PODS, each["metadata"]["name"], status, namespace=tenant.name, subresource="status")


async def test_an_index_that_failed_for_good_costs_nothing(cluster: Cluster, empty: Tenant) -> None:
    if not cluster.is_real:
        pytest.skip("the sandbox's Jobs have no indexes")
    made = briefly(of_kind(JOBS, web(empty, 4)))
    made["spec"] |= {"completions": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0}
    await empty.create(JOBS, made)
    pods = await empty.running(4)
    await uses(empty, "4")
    await end(empty, pods[:2], "Failed")
    await end(empty, pods[2:3], "Succeeded")
    await uses(empty, "1")
