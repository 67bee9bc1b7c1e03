"""Routes from and to no group: a workload that names none raises what a group paid for, or brings it pods that end.

In each a tenant with the role `edit` tries to have the group charged beyond its four cores, so that nobody in it may
grow any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import attempt, for_a_while, of_kind, pod, web
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 12
WITHOUT = {"metadata": {"labels": {LABEL: None}}}


async def in_two_steps(tenant: Tenant) -> None:
    await tenant.patch(DEPLOYMENTS, "web", WITHOUT)
    await tenant.scale(DEPLOYMENTS, "web", MANY)


async def in_one_step(tenant: Tenant) -> None:
    await tenant.patch(DEPLOYMENTS, "web", {**WITHOUT, "spec": {"replicas": MANY}})


async def and_is_deleted_without_its_pods(tenant: Tenant) -> None:
    await in_one_step(tenant)
    await for_a_while(lambda: _has(tenant, MANY), 10)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    version = (await _replica_set(tenant))["metadata"]
    # As long as the group is the remembered payer, what is asked for here is asked of the group, and fits.
    await eventually(lambda: _has_given_up(tenant, version["uid"]), 60, "the group pays for the ReplicaSet no longer")
    await attempt(tenant.scale(REPLICASETS, version["name"], MANY + 1))


async def by_adoption(tenant: Tenant) -> None:
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await asyncio.sleep(1)
    await tenant.create(DEPLOYMENTS, web(tenant, MANY, name="free", label=None))


@pytest.mark.parametrize("raises", [in_two_steps, in_one_step, and_is_deleted_without_its_pods, by_adoption])
async def test_a_deployment_of_no_group_raises_what_a_group_paid_for(
    tenant: Tenant, raises: Callable[[Tenant], Awaitable[None]]
) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(2)
    await tenant.uses("2")
    await raises(tenant)
    await eventually(lambda: _has(tenant, MANY), 60, "all pods are there")
    await _is_charged_two(tenant)


async def test_a_stateful_set_of_no_group_raises_what_a_group_paid_for(tenant: Tenant) -> None:
    await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 2)))
    await tenant.running(2)
    await tenant.uses("2")
    await tenant.patch(STATEFULSETS, "web", {**WITHOUT, "spec": {"replicas": MANY}})
    await eventually(lambda: _has(tenant, MANY), 60, "all pods are there")
    await tenant.delete(STATEFULSETS, "web", "Orphan")
    await _is_charged_two(tenant)


async def test_a_workload_of_no_group_gets_its_first_label_while_its_pods_end(tenant: Tenant) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, MANY, label=None, slow=True))
    await tenant.running(MANY)
    await tenant.scale(DEPLOYMENTS, "web", 0)
    await tenant.running(0)
    refused = await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: tenant.name}}}))
    assert refused is not None
    assert f"requested: limits.cpu={MANY}" in refused.message
    await _is_charged(tenant, "0")


@pytest.mark.parametrize("kind", [REPLICASETS, STATEFULSETS], ids=["ReplicaSet", "StatefulSet"])
async def test_a_workload_ends_pods_of_no_group_that_it_has_adopted(tenant: Tenant, kind: Resource) -> None:
    """It wants none of them, and they take a day to stop."""
    for number in range(MANY):
        await tenant.create(PODS, pod(tenant, f"taker-{number}", label=None, app="taker", slow=True))
    await tenant.running(MANY)
    await tenant.create(kind, of_kind(kind, web(tenant, 0, name="taker", app="taker")))
    await tenant.running(0)
    await asyncio.sleep(1)
    await _is_charged(tenant, "0")
    await tenant.delete(kind, "taker", "Orphan")
    await _is_charged(tenant, "0", larger=False)


async def test_pods_are_deleted_by_force_as_the_label_of_their_workload_goes(tenant: Tenant) -> None:
    """Their nodes may run them for a day, and nobody has decided yet that they stay."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    pods = await tenant.running(4)
    await tenant.uses("4")
    await tenant.patch(DEPLOYMENTS, "web", {**WITHOUT, "spec": {"replicas": 0}})
    for each in pods:
        await attempt(tenant.delete(PODS, each["metadata"]["name"], grace=0))
    await _is_charged(tenant, "4")


async def test_what_a_replica_set_asks_for_counts_when_its_deployment_gets_its_first_label(tenant: Tenant) -> None:
    """Its pods name a group that there is not, so none of them comes before."""
    made = web(tenant, 2, label=None, cpu="10m", paused=True, strategy={"type": "Recreate"})
    owner = (await tenant.create(DEPLOYMENTS, made))["metadata"]
    below = of_kind(REPLICASETS, web(tenant, 2, name="web-old", label=None, cpu="6", pods={LABEL: "nosuch"}))
    for field in ("paused", "strategy"):
        below["spec"].pop(field, None)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner["uid"], "controller": True}
    below["metadata"] |= {"labels": {"app": "x"}, "ownerReferences": [reference]}
    await tenant.create(REPLICASETS, below)
    refused = await attempt(tenant.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: tenant.name}}}))
    assert refused is not None
    assert "exceeded quota" in refused.message
    await _is_charged(tenant, "0", larger=False)


async def _is_charged_two(tenant: Tenant) -> None:
    """The group is charged for what it had: two more cores are left, and no more."""
    await _is_charged(tenant, "2")


async def _is_charged(tenant: Tenant, cpu: str, *, larger: bool = True) -> None:
    """The group is charged so much for ten seconds, and `larger` that what does not fit beside it is rejected."""
    seen: list[wire.GroupStatus] = []

    async def is_other() -> bool:
        seen[:] = [wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status]
        return (seen[0].used or {}).get("limits.cpu") != cpu

    assert not await for_a_while(is_other, 10), seen
    if larger:
        left = 4 - int(cpu)
        assert await attempt(tenant.create(DEPLOYMENTS, web(tenant, left + 1, name="large", app="large"))) is not None
        refused = await attempt(tenant.client.create(DEPLOYMENTS, web(tenant, left, name="fits"), dry_run=True))
        assert refused is None, refused.message


async def _has(tenant: Tenant, pods: int) -> bool:
    return await tenant.live() >= pods


async def _has_given_up(tenant: Tenant, uid: str) -> bool:
    status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    return not any(f" {uid} " in line for line in status.payers)


async def _replica_set(tenant: Tenant) -> Object:
    found, _ = await tenant.client.list(REPLICASETS, tenant.name)
    return found[0]
