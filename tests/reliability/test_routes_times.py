"""Routes through time: surge that stays, pods that take a day to stop, templates that shrink, reservations of nothing.

In each a tenant with the role `edit` and a group of four cores tries to run more, or keeps others from running. The
oracle counts the pods.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from bizrq.api import group as wire
from bizrq.api import overlap
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.store.overlaps import OVERLAPS
from bizrq.workloads.labels import MODEL_LABELS
from sandbox.kubelet import LOST
from tests.reliability.routes import (
    attempt,
    attempts,
    changed,
    for_a_while,
    gone,
    has_running,
    image_of,
    of_deployment,
    of_kind,
    pod,
    replica_set,
    web,
)
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object
from tests.support.serving import Parts
from tests.support.tenant import JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant, tenant_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3
#: How long an honest user waits at most.
PATIENCE = 5.0


def surging(surge: Any, unavailable: Any = 0) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


async def set_image(tenant: Tenant, name: str, value: str) -> None:
    body = image_of(value)
    await changed(tenant, DEPLOYMENTS, name, body)


# Surge.


async def stall(tenant: Tenant, name: str = "web", image: str = "v2") -> None:
    """Begin a rollout whose new pods never get a node, and pause it."""
    body = image_of(image)
    body["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.org/never"}]
    await changed(tenant, DEPLOYMENTS, name, body)
    await for_a_while(lambda: two_versions(tenant))
    await attempt(tenant.patch(DEPLOYMENTS, name, {"spec": {"paused": True}}))


async def two_versions(tenant: Tenant) -> bool:
    made = await of_deployment(tenant)
    return sum((each.get("status") or {}).get("replicas", 0) > 0 for each in made) > 1


@pytest.mark.parametrize("surge", [200, "20000%"])
async def test_a_paused_rollout_with_a_large_surge_is_scaled(tenant: Tenant, live: LivePods, surge: Any) -> None:
    """The controller spreads replicas and surge over both versions."""
    if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 1, strategy=surging(surge)))):
        await tenant.create(DEPLOYMENTS, web(tenant, 1, strategy=surging(1)))
    await tenant.running(1)
    await stall(tenant)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 2))
    await for_a_while(lambda: has_running(tenant, 10), 5)
    await live.settled(ever=2)


async def test_a_surge_is_raised_while_the_rollout_is_paused(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 2, strategy=surging(1)))
    await tenant.running(2)
    await stall(tenant)
    await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"strategy": surging(100), "replicas": 3}}))
    await for_a_while(lambda: has_running(tenant, 10), 5)
    await live.settled(ever=2)


async def test_two_deployments_rest_in_the_middle_of_a_rollout(tenant: Tenant, live: LivePods) -> None:
    """Each has twice its pods for as long as it is paused: they are free for ten minutes, and no more than declared."""
    for name in ("web0", "web1"):
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 2, name=name, app=name, strategy=surging("500%")))):
            break
        await for_a_while(lambda: has_running(tenant, 2))
        await stall(tenant, name)
    await attempt(tenant.scale(DEPLOYMENTS, "web0", 1))
    await live.settled(ever=4)


async def test_many_rollouts_leave_pods_that_are_slow_to_stop(tenant: Tenant, live: LivePods) -> None:
    """Each replaces four pods. What a rollout replaces may run beside it once, until the controller has seen it."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy=surging("100%")))
    await tenant.running(4)
    for number in range(4):
        await set_image(tenant, "web", f"v{number}")
        await asyncio.sleep(1.5)
    await live.settled(over=8, ever=12)


# Pods that take a day to stop.


@pytest.mark.parametrize(
    "resource", [DEPLOYMENTS, REPLICATION_CONTROLLERS, STATEFULSETS, JOBS, REPLICASETS], ids=lambda each: each.kind
)
async def test_a_workload_is_deleted_and_created_again(tenant: Tenant, live: LivePods, resource: Resource) -> None:
    for number in range(ROUNDS):
        name = f"web{number}"
        made = web(tenant, 4, name=name, app=name, slow=True)
        if await attempt(tenant.create(resource, made if resource is DEPLOYMENTS else of_kind(resource, made))):
            continue
        await for_a_while(lambda number=number: has_running(tenant, 4), 10)
        await attempt(tenant.delete(resource, name))
        await gone(tenant, resource, name)
    await live.settled()


async def test_a_workload_of_a_model_is_deleted_and_created_again(tenant: Tenant) -> None:
    """The group has cores left, but none of the model: that is on the workload, and not on its pods."""
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {"limits.cpu": "12", "limits.cpu.A4": "4"}}})

    def of_the_model(name: str) -> Object:
        made = web(tenant, 4, name=name, app=name, slow=True)
        made["metadata"]["labels"][MODEL_LABELS["cpu"]] = "A4"
        return made

    async def is_counted() -> bool:
        return "limits.cpu.A4" in (wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status.used or {})

    await eventually(is_counted, 30, "the model is counted")
    await tenant.create(DEPLOYMENTS, of_the_model("web"))
    await tenant.running(4)
    await tenant.delete(DEPLOYMENTS, "web")
    await gone(tenant, DEPLOYMENTS, "web")
    for number in range(ROUNDS):
        await asyncio.sleep(1)
        refused = await attempt(tenant.create(DEPLOYMENTS, of_the_model(f"again{number}")))
        assert refused is not None
        assert "requested: limits.cpu.A4=4" in refused.message
    assert len(await tenant.pods()) == 4


async def test_pods_are_deleted_and_created_again(tenant: Tenant, live: LivePods) -> None:
    for number in range(ROUNDS):
        made = [pod(tenant, f"p{number}-{each}", slow=True) for each in range(4)]
        await attempts(tenant.create(PODS, each) for each in made)
        await for_a_while(lambda: has_running(tenant, 4))
        await attempts(tenant.delete(PODS, each["metadata"]["name"]) for each in made)
    await live.settled()


@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICATION_CONTROLLERS, REPLICASETS], ids=lambda each: each.kind)
async def test_a_workload_is_scaled_to_nothing_and_back(tenant: Tenant, live: LivePods, resource: Resource) -> None:
    made = web(tenant, 4, slow=True)
    await tenant.create(resource, made if resource is DEPLOYMENTS else of_kind(resource, made))
    await tenant.running(4)
    for _ in range(ROUNDS):
        await attempt(tenant.scale(resource, "web", 0))
        await for_a_while(lambda: all_ending(tenant), 5)
        await attempt(tenant.scale(resource, "web", 4))
        await for_a_while(lambda: has_running(tenant, 4))
    await live.settled()


async def all_ending(tenant: Tenant) -> bool:
    return not await has_running(tenant, 1)


async def test_a_job_is_suspended_and_resumed(tenant: Tenant, live: LivePods) -> None:
    await tenant.create(JOBS, of_kind(JOBS, web(tenant, 4, slow=True)))
    await tenant.running(4)
    for _ in range(ROUNDS):
        await attempt(tenant.patch(JOBS, "web", {"spec": {"suspend": True}}))
        await for_a_while(lambda: all_ending(tenant), 5)
        await attempt(tenant.patch(JOBS, "web", {"spec": {"suspend": False}}))
        await for_a_while(lambda: has_running(tenant, 4))
    await live.settled()


async def test_a_stateful_set_is_scaled_down_for_another(tenant: Tenant, live: LivePods) -> None:
    for number in range(ROUNDS):
        name = f"web{number}"
        await attempt(
            tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 4, name=name, app=name, slow=True)))
        )
        await for_a_while(lambda: has_running(tenant, 4), 5)
        await attempt(tenant.scale(STATEFULSETS, name, 0))
        await for_a_while(lambda: all_ending(tenant), 5)
    await live.settled()


async def replacements_end(tenant: Tenant, name: str = "web") -> None:
    """Wait until the controller has seen that more pods run, and has no more made in place of the Deployment's."""
    uid = (await tenant.admin.get(DEPLOYMENTS, name, tenant.name))["metadata"]["uid"]

    async def is_listed() -> bool:
        return uid in ((await tenant.admin.get(OVERLAPS, overlap.NAME)).get("listed") or {})

    await eventually(is_listed, what="pods of the Deployment are rejected")
    # The API server watches the list.
    await asyncio.sleep(1)


async def test_bound_pods_are_deleted_by_force_in_a_loop(tenant: Tenant, live: LivePods) -> None:
    """Their node runs them for their own grace. The first replacements come before the controller has seen it."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    for _ in range(ROUNDS):
        names = [each["metadata"]["name"] for each in await tenant.pods()]
        await attempts(tenant.delete(PODS, name, grace=0) for name in names)
        await for_a_while(lambda: has_running(tenant, 4))
        await replacements_end(tenant)
    await live.settled(over=4, ever=8)


async def test_pods_of_one_deployment_are_deleted_in_a_loop(tenant: Tenant, live: LivePods) -> None:
    """Nothing keeps a person from deleting; what is refused are replacements, once the first are counted."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    for _ in range(4):
        fresh = [
            each["metadata"]["name"] for each in await tenant.pods() if "deletionTimestamp" not in each["metadata"]
        ]
        await attempts(tenant.delete(PODS, name) for name in fresh)
        await for_a_while(lambda: has_running(tenant, 4))
        await replacements_end(tenant)
    await live.settled(over=4, ever=8)


async def test_pods_of_many_deployments_are_deleted_one_after_the_other(tenant: Tenant, live: LivePods) -> None:
    """Replacements of the first one's come before they are counted. After that no other gets any."""
    names = [f"web{number}" for number in range(4)]
    for name in names:
        await tenant.create(DEPLOYMENTS, web(tenant, 1, name=name, app=name, slow=True))
    await tenant.running(4)
    for name in names:
        await delete_pods(tenant, name)
        await for_a_while(lambda: has_running(tenant, 5), 2)
        await replacements_end(tenant, name)
    await live.settled(over=1, ever=1)


async def test_a_drain_beside_a_pod_that_is_long_in_ending(tenant: Tenant, live: LivePods) -> None:
    """What has lost its pods gets them back while less runs than `hard`, whoever has pods that are ending.

    A controller makes several at once, so more may come before the first of them are counted.
    """
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="slow", app="slow", slow=True))
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="quick", app="quick"))
    await tenant.running(4)
    [slow] = await delete_pods(tenant, "slow")
    await for_a_while(lambda: has_running(tenant, 5), 5)
    await replacements_end(tenant, "slow")
    gone = {each["metadata"]["uid"] for each in await delete_pods(tenant, "quick")}

    async def are_back(fewest: int) -> bool:
        pods = [each for each in await tenant.pods() if each["metadata"]["name"].startswith("quick-")]
        return fewest <= len(pods) <= 3 and not gone & {each["metadata"]["uid"] for each in pods}

    await eventually(lambda: are_back(2), 20, "as many of the drained pods are back as `hard` has room for")
    await tenant.delete(PODS, slow["metadata"]["name"], grace=0)
    await eventually(lambda: are_back(3), 20, "the drained pods are back")
    await live.settled(over=1, ever=4)


async def delete_pods(tenant: Tenant, name: str) -> list[Object]:
    """Delete the pods of a Deployment, and return them."""
    pods = [each for each in await tenant.pods() if each["metadata"]["name"].startswith(f"{name}-")]
    for each in pods:
        await tenant.delete(PODS, each["metadata"]["name"])
    return pods


async def test_a_pod_that_asks_for_very_many_names_ends_slowly(tenant: Tenant, live: LivePods) -> None:
    """The API server rejects a status with too long a line, and then nothing of the group would be counted."""
    wide = web(tenant, 1, name="wide", app="wide", slow=True)
    domain = ".".join(["x" * 60] * 3)
    limits = wide["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits |= {f"{domain}.example.com/{number}": "1" for number in range(90)}
    await tenant.create(DEPLOYMENTS, wide)
    await tenant.create(DEPLOYMENTS, web(tenant, 2, slow=True))
    await tenant.running(3)
    await tenant.scale(DEPLOYMENTS, "wide", 0)
    for _ in range(4):
        names = [
            each["metadata"]["name"] for each in await tenant.pods() if each["metadata"]["name"].startswith("web-")
        ]
        await attempts(tenant.delete(PODS, name) for name in names)
        await for_a_while(lambda: has_running(tenant, 2))
        await replacements_end(tenant)
    await live.settled(over=4, ever=8)


async def test_a_workload_that_is_being_deleted_by_force_makes_way_for_none(tenant: Tenant, live: LivePods) -> None:
    """The workload goes first, then its pods without grace, then the next workload comes."""
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name, slow=True))):
            continue
        await for_a_while(lambda: has_running(tenant, 4), 10)
        await attempt(tenant.delete(DEPLOYMENTS, name))
        await for_a_while(lambda: all_ending(tenant), 5)
        await attempts(tenant.delete(PODS, each["metadata"]["name"], grace=0) for each in await tenant.pods())
    await live.settled()


async def test_a_pod_of_a_lost_node_is_deleted_by_force(tenant: Tenant, live: LivePods) -> None:
    """Its time is over by the clock, and another has its place. It is not charged once more when its object goes."""
    lost = pod(tenant, "lost")
    lost["spec"]["nodeName"] = LOST
    await tenant.create(PODS, lost)
    await tenant.delete(PODS, "lost", grace=1)

    async def is_admitted() -> bool:
        return await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4))) is None

    await eventually(is_admitted, 10, "another gets the place of the pod")
    await tenant.delete(PODS, "lost", grace=0)
    await tenant.running(4)
    assert (await live.settled()).taken == 4000


# Templates that shrink while the pods stay.


def shrunk(cpu: str = "1m") -> Object:
    limits = {"name": "c", "resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}}
    return {"spec": {"template": {"spec": {"containers": [limits]}}}}


async def shrink(tenant: Tenant, resource: Resource, name: str) -> None:
    await changed(tenant, resource, name, shrunk())


@pytest.mark.parametrize("resource", [REPLICATION_CONTROLLERS, REPLICASETS, STATEFULSETS], ids=lambda each: each.kind)
async def test_a_template_shrinks_and_the_pods_stay(tenant: Tenant, live: LivePods, resource: Resource) -> None:
    """Nothing replaces them; then comes the next."""
    for number in range(ROUNDS):
        name = f"web{number}"
        made = of_kind(resource, web(tenant, 4, name=name, app=name))
        if resource is STATEFULSETS:
            made["spec"]["updateStrategy"] = {"type": "OnDelete"}
        if await attempt(tenant.create(resource, made)):
            continue
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        await shrink(tenant, resource, name)
    await live.settled()


async def test_the_template_of_a_paused_deployment_shrinks(tenant: Tenant, live: LivePods) -> None:
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name))):
            continue
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        await attempt(tenant.patch(DEPLOYMENTS, name, {"spec": {"paused": True}}))
        await shrink(tenant, DEPLOYMENTS, name)
    await live.settled()


async def test_a_template_shrinks_while_the_rollout_is_slow(tenant: Tenant, live: LivePods) -> None:
    """The old pods take a day to stop."""
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name, slow=True))):
            continue
        await for_a_while(lambda: has_running(tenant, 4), 10)
        await shrink(tenant, DEPLOYMENTS, name)
    await live.settled(over=1, ever=1)


async def test_a_template_shrinks_under_a_stalled_rollout(tenant: Tenant, live: LivePods) -> None:
    """The new version never gets a node, so the old one stays."""
    for number in range(ROUNDS):
        name = f"web{number}"
        if await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name, strategy=surging(1)))):
            continue
        await for_a_while(lambda number=number: has_running(tenant, 4 * (number + 1)), 10)
        gated = shrunk()
        gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.org/never"}]
        await changed(tenant, DEPLOYMENTS, name, gated)
    await live.settled(over=1, ever=1)


# Reservations of nothing.


@pytest.mark.parametrize("how", ["one large demand", "odd names", "many", "many at once, of two kinds"])
async def test_creates_of_a_name_that_exists_keep_nobody_waiting(
    tenant: Tenant, parts: Parts, client: KubeClient, tmp_path: Path, how: str
) -> None:
    """An honest user in a namespace of the same group gets what is left, within seconds."""
    await tenant.create(DEPLOYMENTS, web(tenant, 1))
    await tenant.running(1)
    large = web(tenant, 3)
    match how:
        case "one large demand":
            await attempts([tenant.create(DEPLOYMENTS, large)])
        case "odd names":
            odd = {f"example.org/odd-{number}": str(number + 1) for number in range(70)}
            for part in ("limits", "requests"):
                resources = large["spec"]["template"]["spec"]["containers"][0]["resources"]
                resources[part] = {**resources.get("limits", {}), **odd}
            for _ in range(25):
                await attempts([tenant.create(DEPLOYMENTS, large)])
        case "many":
            for _ in range(30):
                await attempts(tenant.create(DEPLOYMENTS, web(tenant, 1)) for _ in range(5))
        case _:
            await tenant.create(REPLICASETS, replica_set(tenant, "web", 0, app="y"))
            both = [(DEPLOYMENTS, large), (REPLICASETS, replica_set(tenant, "web", 3, app="y"))]
            await attempts(tenant.create(*both[number % 2]) for number in range(40))
    beside = f"{tenant.name}-beside"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": beside}})
    async with tenant_of(parts.cluster, client, beside, tmp_path) as honest:
        began = time.monotonic()
        refused = await attempt(honest.create(DEPLOYMENTS, web(honest, 3, label=tenant.name)))
        while refused is not None and time.monotonic() - began < PATIENCE:
            await asyncio.sleep(0.2)
            refused = await attempt(honest.create(DEPLOYMENTS, web(honest, 3, label=tenant.name)))
        assert refused is None, f"refused for {PATIENCE:g} s: {refused.message}"
        await honest.delete(DEPLOYMENTS, "web")
