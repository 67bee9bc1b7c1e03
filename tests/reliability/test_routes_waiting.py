"""Routes through pods that end slowly, and by what the tenant writes about waiting for them.

A controller that waits for a pod which is being deleted makes no other, so that pod counts as one of the declared. In
each a tenant with the role `edit` has the controller wait and not wait, by turns, or has the pods end never.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bizrq.api import group as wire
from bizrq.store.groups import GROUPS
from tests.reliability.routes import (
    attempt,
    attempts,
    changed,
    for_a_while,
    has_running,
    image_of,
    of_kind,
    web,
)
from tests.support import nodes
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
RECREATE = {"type": "Recreate", "rollingUpdate": None}
#: In nanoseconds just more than 2**63: the API server's deletionTimestamp is 292 years ago.
WRAPS = 9_223_372_037


async def strategy(tenant: Tenant, value: Any) -> None:
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"strategy": value}}))


async def set_image(tenant: Tenant, value: str) -> None:
    await changed(tenant, DEPLOYMENTS, "web", image_of(value))


async def test_a_deployment_recreates_and_rolls_by_turns(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy={"type": "Recreate"}))
    await tenant.running(4)
    for number in range(4):
        await strategy(tenant, RECREATE)
        await asyncio.sleep(2)
        await set_image(tenant, f"v{number}")
        await asyncio.sleep(2)
        await strategy(tenant, ROLLING)
        await for_a_while(lambda: has_running(tenant, 4), 4)
    await live.settled(over=4, ever=8)


async def test_a_stateful_set_moves_its_range_to_and_fro(tenant: Tenant, live: LivePods) -> None:
    """Its controller waits for a pod in its range, and deletes no other meanwhile."""
    made = of_kind(STATEFULSETS, web(tenant, 4, slow=True))
    made["spec"]["podManagementPolicy"] = "OrderedReady"
    await tenant.create(STATEFULSETS, made)
    await tenant.running(4)
    for number in range(1, 5):
        await attempt(tenant.patch(STATEFULSETS, "web", {"spec": {"ordinals": {"start": 4 * number}}}))
        await for_a_while(lambda number=number: has_running(tenant, 4 * number + 4), 5)
        await attempt(tenant.patch(STATEFULSETS, "web", {"spec": {"ordinals": {"start": 0}}}))
        await asyncio.sleep(3)
    await live.settled(over=4, ever=8)


async def test_pods_that_end_under_recreate_are_not_free(tenant: Tenant, live: LivePods) -> None:
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {"limits.cpu": "8"}}})
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy=ROLLING))
    await tenant.running(4)
    await set_image(tenant, "v2")
    await for_a_while(lambda: has_running(tenant, 4), 5)
    await tenant.uses("8")
    await strategy(tenant, RECREATE)
    await asyncio.sleep(2)
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="more", app="more")))
    await for_a_while(lambda: has_running(tenant, 8), 3)
    await live.settled()


async def test_a_grace_that_wraps_around(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet never stops such a pod (kubernetes#84298): the stand-in does not either."""

    async def never(self: object, pod: object) -> None:
        return None

    monkeypatch.setattr(nodes.Agent, "_stop", never)
    refused = web(tenant, 4)
    refused["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = WRAPS
    why = await attempt(tenant.create(DEPLOYMENTS, refused))
    assert why is not None
    assert "terminationGracePeriodSeconds: must be at most 9223372036 seconds" in why.message
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    pods = await tenant.running(4)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True, "replicas": 0}}))
    await attempts(tenant.delete(PODS, each["metadata"]["name"], grace=WRAPS) for each in pods)
    await asyncio.sleep(3)
    there = await tenant.pods()
    status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    assert len(there) <= int((status.used or {})["limits.cpu"])
