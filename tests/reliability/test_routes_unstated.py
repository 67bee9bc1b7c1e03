"""Routes by what is no longer stated: an update after which the pods have no limit, so that nothing counts them."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import ApiError
from tests.reliability.routes import attempt, for_a_while, has_running, of_deployment, of_kind, owned, pod, web
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import JOBS, Tenant

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


async def test_a_pod_that_somebody_makes_below_a_job_states_its_limits(tenant: Tenant, live: LivePods) -> None:
    """The Job pays for four pods, and its own controller makes none."""
    job = of_kind(JOBS, web(tenant, 4, name="own"))
    job["spec"]["managedBy"] = "example.com/nobody"
    stored = await tenant.create(JOBS, job)
    labels = stored["spec"]["template"]["metadata"]["labels"]

    async def made(name: str, **spec: Any) -> ApiError | None:
        one = owned(pod(tenant, name, label=None), "Job", "own", stored["metadata"]["uid"], "batch/v1")
        one["metadata"]["labels"] = labels
        return await attempt(tenant.create(PODS, {**one, "spec": {**one["spec"], "restartPolicy": "Never", **spec}}))

    for name, spec in (("a", {"containers": [_LARGE]}), ("b", {"initContainers": [_LARGE]})):
        refused = await made(name, **spec)
        assert refused is not None
        assert "must specify limits.cpu for: large" in refused.message
    await live.settled()


async def test_a_replica_set_below_a_deployment_keeps_its_limits(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
    [made] = await of_deployment(tenant)
    patch = [{"op": "remove", "path": f"{_SPEC}/containers/0/resources"}]
    kind = "application/json-patch+json"
    name = made["metadata"]["name"]
    refused = await attempt(tenant.client.patch(REPLICASETS, name, patch, namespace=tenant.name, content_type=kind))
    assert refused is not None
    assert "must specify limits.cpu" in refused.message
    await live.settled()
