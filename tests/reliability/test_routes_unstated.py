"""Routes by what is no longer stated: an update after which the pods have no limit, so that nothing counts them."""

from __future__ import annotations

import pytest

from tests.reliability.routes import attempt, for_a_while, has_running, web
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SPEC = "/spec/template/spec"
_SMALL: Object = {"name": "c", "image": "x", "resources": {"limits": {"cpu": "1m"}}}
_LARGE: Object = {"name": "large", "image": "x"}


@pytest.mark.parametrize(
    "change",
    [
        {"op": "remove", "path": f"{_SPEC}/containers/0/resources"},
        {"op": "replace", "path": f"{_SPEC}/containers", "value": [_SMALL, _LARGE]},
        {"op": "add", "path": f"{_SPEC}/initContainers", "value": [{**_LARGE, "restartPolicy": "Always"}]},
    ],
    ids=["limits go", "a container without limits", "a sidecar without limits"],
)
async def test_an_update_takes_the_limits_away(tenant: Tenant, live: LivePods, change: Object) -> None:
    """The group counts limits, and without them each of these would cost nothing."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    kind = "application/json-patch+json"
    refused = await attempt(tenant.client.patch(DEPLOYMENTS, "web", [change], namespace=tenant.name, content_type=kind))
    assert refused is not None
    assert "must specify limits.cpu" in refused.message
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="more", app="more")))
    assert not await for_a_while(lambda: has_running(tenant, 5))
    await live.settled()
