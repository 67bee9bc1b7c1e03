"""Routes by adoption: pods that pay for themselves in one group get an owner that another group pays for.

In each a tenant with the role `edit` and two groups of four cores tries to run more than both have together.
"""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from tests.reliability.routes import attempt, attempts, counted, for_a_while, has_running, of_kind, pod, web
from tests.support.live_pods import LivePods
from tests.support.objects import PODS, REPLICASETS, group
from tests.support.tenant import REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3


@pytest_asyncio.fixture(loop_scope="module")
async def other(tenant: Tenant) -> str:
    name = f"{tenant.name}-other"
    await tenant.admin.create(GROUPS, group(name, cpu="4"))
    await counted(tenant.admin, name)
    return name


@pytest.mark.parametrize(
    "kind", [REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS], ids=["ReplicaSet", "RC", "StatefulSet"]
)
async def test_pods_without_an_owner_are_adopted_by_what_wants_none(
    tenant: Tenant, other: str, both: LivePods, kind: Resource
) -> None:
    """It ends them, which takes a day, and another group pays for it."""
    for number in range(ROUNDS):
        app, name = f"x{number}", f"taker{number}"
        pods = [pod(tenant, f"{name}-{each}", app=app, slow=True) for each in range(4)]
        await attempts(tenant.create(PODS, each) for each in pods)
        await for_a_while(lambda: has_running(tenant, 4), 5)
        await asyncio.sleep(1)
        await attempt(tenant.create(kind, of_kind(kind, web(tenant, 0, name=name, label=other, app=app))))

        async def is_taken() -> bool:
            return all("deletionTimestamp" in each["metadata"] for each in await tenant.pods())

        await for_a_while(is_taken, 8)
        await asyncio.sleep(2)
    await both.settled()
