"""Routes while no controller runs: a Deployment that is created, and deleted without what it made.

The next controller has never seen it. Its group was promised its creation. The namespace has no default.
"""

from __future__ import annotations

import pytest

from bizrq.store.groups import GROUPS
from tests.reliability import test_routes_moves
from tests.reliability.routes import gone, web
from tests.reliability.test_routes_moves import Moving
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

moving, parts, other = test_routes_moves.moving, test_routes_moves.parts, test_routes_moves.other
#: Seconds after which the controller has dropped what was promised and nobody sees.
EXPIRES = 90


async def test_a_deployment_comes_and_leaves_its_replica_set(
    tenant: Tenant, both: LivePods, other: str, moving: Moving
) -> None:
    await moving.stop()
    await tenant.create(DEPLOYMENTS, web(tenant, 4, label=other, slow=True))
    await tenant.running(4)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await moving.start()

    async def is_dropped() -> bool:
        return not (await tenant.admin.get(GROUPS, other))["status"].get("reservations")

    await eventually(is_dropped, EXPIRES, "nothing is promised any more")
    await both.settled(over=4, ever=4)
