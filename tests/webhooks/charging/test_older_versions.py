"""Scale-ups while older versions stand: each added pod costs what the largest version does that may be scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.units.quantity import NANO
from tests.support.objects import (
    DEPLOYMENTS,
    POD_TEMPLATES,
    REPLICASETS,
    ROLLOUTS,
    Object,
    deployment,
    pod_template,
    referring,
    rollout,
    template,
)
from tests.webhooks.charging.test_owner_trust import owned_by
from tests.webhooks.conftest import Api, Hooks, changed, message
from tests.webhooks.handlers.test_children import remembers, scaled
from tests.webhooks.handlers.test_workloads import replicas

BOTH = pytest.mark.parametrize("make", [deployment, rollout], ids=["Deployment", "Rollout"])
RESOURCES = {"Deployment": DEPLOYMENTS, "Rollout": ROLLOUTS}


async def stands(api: Api, workload: Object, **status: Any) -> Object:
    """Store a workload with a status."""
    resource = RESOURCES[workload["kind"]]
    name = (await api.client.create(resource, workload))["metadata"]["name"]
    generation = 1 if workload["kind"] == "Deployment" else "1"
    patch = {"status": {"observedGeneration": generation, **status}}
    return await api.client.patch(resource, name, patch, namespace="default", subresource="status")


async def version(
    api: Api, owner: Object | None, name: str, replicas: int, cpu: str, labels: Object | None = None
) -> Object:
    """Store a ReplicaSet of an owner."""
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template(cpu)}
    hashed = {"app": "x", "pod-template-hash": name, "rollouts-pod-template-hash": name}
    metadata: Object = {"name": name, "namespace": "default", "labels": {**hashed, **(labels or {})}}
    if owner is not None:
        metadata["ownerReferences"] = [owned_by(owner)]
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    return await api.client.create(REPLICASETS, made)


@BOTH
async def test_added_pods_cost_what_the_largest_version_does_that_runs(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="12", used={"cpu": "7"})
    web = await stands(api, make("web", "nlp", 2), replicas=3, updatedReplicas=1)
    await version(api, web, "old", 1, "5")
    await version(api, web, "older", 1, "3")
    for review in (hooks.update(web, changed(web, replicas(4))), scaled(hooks, web, 4)):
        assert "exceeded quota: nlp, requested: limits.cpu=10, used: limits.cpu=7" in message(await review)
    assert (await hooks.update(web, changed(web, replicas(3))))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] - entry.base["limits.cpu"] == 5 * NANO


@BOTH
async def test_versions_without_pods_and_those_of_others_add_nothing(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    web = await stands(api, make("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="now")
    other = await stands(api, make("other", "nlp", 2))
    await version(api, web, "now", 2, "1")
    await version(api, web, "history", 0, "50")
    await version(api, other, "theirs", 2, "50")
    await version(api, None, "unlike", 2, "50", {"app": "y"})
    assert (await hooks.update(web, changed(web, replicas(4))))["allowed"]


@BOTH
async def test_a_scale_down_and_a_new_template_are_priced_at_the_template(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web = await stands(api, make("web", "nlp", 2), replicas=3, updatedReplicas=1)
    await version(api, web, "old", 2, "5")
    assert (await hooks.update(web, changed(web, replicas(1))))["allowed"]
    smaller = changed(web, lambda o: o["spec"].update(template=template("500m")))
    assert (await hooks.update(web, smaller))["allowed"]
    assert await api.entries("nlp") == []


async def test_the_stable_version_of_a_rollout_counts_without_pods(api: Api, hooks: Hooks) -> None:
    """A rollout that is aborted scales it up again, with `dynamicStableScale` from none."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    web = await stands(api, rollout("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="stable")
    await version(api, web, "canary", 2, "1")
    await version(api, web, "stable", 0, "5")
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


async def test_a_rollouts_status_hides_no_version_that_runs(api: Api, hooks: Hooks) -> None:
    """Whoever may edit a Rollout may write its status, too; that of a Deployment only its controller writes."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    web = await stands(api, rollout("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="canary")
    await version(api, web, "canary", 1, "1")
    await version(api, web, "stable", 1, "5")
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


@pytest.mark.parametrize("selector", [{"selector": {"matchLabels": {"app": "x"}}}, {}])
async def test_a_rollout_that_refers_to_its_template_has_older_versions(
    api: Api, hooks: Hooks, selector: Object
) -> None:
    """It may take the selector of what it refers to as well."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    await api.client.create(POD_TEMPLATES, pod_template("pods"))
    web = await stands(api, referring("web", "nlp", pod_template("pods"), 2, **selector))
    await version(api, web, "old", 1, "5")
    await version(api, None, "nobodys", 1, "50", {"app": "y"})
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


@BOTH
async def test_a_new_workload_may_scale_what_it_adopts(api: Api, hooks: Hooks, make: Callable[..., Object]) -> None:
    """What it adopts is charged already."""
    await api.group("nlp", cpu="10", used={"cpu": "5"})
    left = await version(api, None, "left", 1, "5")
    remembers(hooks, left["metadata"]["uid"])
    assert "exceeded quota: nlp, requested: limits.cpu=15," in message(await hooks.create(make("web", "nlp", 3)))
    assert (await hooks.create(make("web", "nlp", 2)))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.extra["limits.cpu"] == 5 * NANO
