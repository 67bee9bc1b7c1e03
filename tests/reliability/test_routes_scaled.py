"""Routes by what a Deployment's controller raises itself: versions that are larger than what is declared.

It raises what it adopts, and divides pods among versions by notes that anybody can write. In each a tenant with the
role `edit` has a group of four cores, and nothing is declared that does not fit. The sandbox ends each rollout at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.reliability.routes import (
    SLOWLY,
    attempt,
    changed,
    for_a_while,
    has_running,
    image_of,
    of_deployment,
    owned,
    replica_set,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, REPLICASETS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

DESIRED, MOST = "deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas"


def surge(most: int | str) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": most, "maxUnavailable": 0}}


def large(tenant: Tenant, replicas: int, cpu: str, **notes: str) -> Object:
    """A ReplicaSet that the Deployment web adopts."""
    made = replica_set(tenant, "large", replicas, cpu=cpu)
    made["metadata"]["labels"]["app"] = "x"
    made["metadata"]["annotations"] = {DESIRED: notes["desired"]} | ({MOST: notes["most"]} if "most" in notes else {})
    return made


async def judge(tenant: Tenant, live: LivePods, pods: int) -> None:
    """It settles within hard, and so it was all the time; `pods` are more than fit."""
    await for_a_while(partial(has_running, tenant, pods), 6)
    await asyncio.sleep(2)
    await live.settled()


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "not paused"])
async def test_what_it_adopts_has_a_part_of_the_surge(tenant: Tenant, live: LivePods, is_paused: bool) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4, cpu="1m", strategy=surge("100%"), **SLOWLY))
    await tenant.running(4)
    if is_paused:
        await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await asyncio.sleep(1)
    await attempt(tenant.create(REPLICASETS, large(tenant, 1, "1", desired="1", most="1")))
    await judge(tenant, live, 10)


async def test_a_new_one_raises_what_it_adopts(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(REPLICASETS, large(tenant, 1, "3", desired="1"))
    await tenant.running(1)
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 20, cpu="1m", **SLOWLY)))
    await judge(tenant, live, 10)


@pytest.mark.parametrize("how", ["created below it", "comes to it"])
async def test_it_is_paused_without_a_version_and_gets_one(tenant: Tenant, live: LivePods, how: str) -> None:
    owner = await tenant.create(DEPLOYMENTS, web(tenant, 4, cpu="1m", paused=True))
    made = owned(replica_set(tenant, "large", 0, cpu="10", app="x"), "Deployment", "web", owner["metadata"]["uid"])
    if how == "created below it":
        await attempt(tenant.create(REPLICASETS, made))
    else:
        references = made["metadata"].pop("ownerReferences")
        await tenant.create(REPLICASETS, {**made, "metadata": {**made["metadata"], "labels": {"app": "y"}}})
        change = {"metadata": {"labels": {"app": "x"}, "ownerReferences": references}}
        await attempt(tenant.patch(REPLICASETS, "large", change))
    await judge(tenant, live, 1)


async def test_it_adopts_what_another_left(tenant: Tenant, live: LivePods) -> None:
    """No notes are forged, and nothing is paused."""
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="large", cpu="3", slow=True))
    await tenant.running(1)
    await tenant.create(DEPLOYMENTS, web(tenant, 20, cpu="1m", strategy=surge("100%"), **SLOWLY))
    await tenant.running(21)
    await attempt(tenant.delete(DEPLOYMENTS, "large", "Orphan"))
    await judge(tenant, live, 23)


async def test_it_is_scaled_beside_what_it_adopts(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 20, cpu="1m", strategy=surge("100%"), **SLOWLY))
    await tenant.running(20)
    await attempt(tenant.create(REPLICASETS, large(tenant, 1, "1", desired="20", most="1")))
    # Pods of one second do not tell which of them is free.
    await for_a_while(partial(has_running, tenant, 21))
    await asyncio.sleep(1.1)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 21))
    await judge(tenant, live, 30)


async def test_it_is_paused_and_adopts_what_another_left_without_pods(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 0, name="large", cpu="10"))
    await for_a_while(partial(has_versions, tenant, "large", 1), 20)
    await tenant.create(DEPLOYMENTS, web(tenant, 4, cpu="1m", paused=True))
    await asyncio.sleep(1)
    await attempt(tenant.delete(DEPLOYMENTS, "large", "Orphan"))
    await judge(tenant, live, 1)


async def test_notes_make_a_version_grow_while_it_is_scaled_down(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 10, cpu="200m", slow=True, strategy=surge("100%"), **SLOWLY))
    await tenant.running(10)
    await changed(tenant, DEPLOYMENTS, "web", image_of("small", "1m"))
    await for_a_while(partial(has_running, tenant, 20), 10)
    await asyncio.sleep(1)
    old, new = sorted([each["metadata"]["name"] for each in await of_deployment(tenant)], key=await costs(tenant))
    await attempt(tenant.scale(REPLICASETS, old, 9))
    await for_a_while(partial(has_running, tenant, 19), 10)
    await asyncio.sleep(1)
    for name, most in ((old, "1"), (new, "18")):
        await attempt(tenant.patch(REPLICASETS, name, {"metadata": {"annotations": {MOST: most}}}))
    await attempt(tenant.scale(DEPLOYMENTS, "web", 9))
    await judge(tenant, live, 60)


async def costs(tenant: Tenant) -> Callable[[str], int]:
    """A key by which the ReplicaSet of the largest pods comes first."""
    cpu = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
        for each in await of_deployment(tenant)
    }
    return lambda name: -int(cpu[name].removesuffix("m"))


async def has_versions(tenant: Tenant, name: str, count: int) -> bool:
    return len(await of_deployment(tenant, name)) == count


async def test_an_older_version_is_scaled_to_one_pod(tenant: Tenant, live: LivePods) -> None:
    """It has the notes of long ago, as Kubernetes left them."""
    await tenant.create(DEPLOYMENTS, web(tenant, 1, cpu="3", strategy=surge("100%")))
    await tenant.running(1)
    await changed(tenant, DEPLOYMENTS, "web", image_of("small", "1m"))

    async def has_rolled() -> bool:
        return sorted(each["spec"]["replicas"] for each in await of_deployment(tenant)) == [0, 1]

    await for_a_while(has_rolled, 30)
    [old] = [each["metadata"]["name"] for each in await of_deployment(tenant) if not each["spec"]["replicas"]]
    await tenant.patch(DEPLOYMENTS, "web", {"spec": SLOWLY})
    await tenant.running(1)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 20))
    await for_a_while(partial(has_running, tenant, 20), 10)
    await asyncio.sleep(1)
    await attempt(tenant.scale(REPLICASETS, old, 1))
    await judge(tenant, live, 30)


async def test_more_surge_is_declared_and_fewer_pods(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 3, cpu="1", strategy=surge(1), **SLOWLY))
    await tenant.running(3)
    await changed(tenant, DEPLOYMENTS, "web", image_of("small", "1m"))
    await for_a_while(partial(has_running, tenant, 4), 10)
    await asyncio.sleep(1)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"strategy": surge(100)}}))
    await asyncio.sleep(1)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 2))
    await judge(tenant, live, 60)
