"""Routes while no controller runs: workloads that are created, and deleted without what they made.

The next controller has never seen them. Their group was promised their creation. The namespace has no default.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability import test_routes_moves
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
    relabel_pods,
    web,
)
from tests.reliability.test_routes_moves import Moving, fit
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, REPLICASETS
from tests.support.tenant import REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

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
    await has_no_promise(tenant, other)
    await both.settled(over=4, ever=4)


async def has_no_promise(tenant: Tenant, group: str) -> None:
    """Wait until the group has no reservation any more."""

    async def is_dropped() -> bool:
        return not (await tenant.admin.get(GROUPS, group))["status"].get("reservations")

    await eventually(is_dropped, EXPIRES, "nothing is promised any more")


async def test_what_a_deployment_left_is_edited(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    await moving.stop()
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    edits = [{"spec": {"replicas": count}} for count in (40, 30)]
    made = [each["metadata"]["name"] for each in await of_deployment(tenant)]
    assert made
    await attempts(tenant.patch(REPLICASETS, name, edit) for name in made for edit in edits)
    await attempt(tenant.scale(REPLICASETS, made[0], 20))
    await for_a_while(lambda: has_running(tenant, 5), 4)
    await moving.start()
    await both.settled()


async def test_what_a_new_version_left_is_edited(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """The controller has seen the Deployment, but not this ReplicaSet of it."""
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    await tenant.create(DEPLOYMENTS, web(tenant, 4, strategy=strategy))
    await tenant.running(4)
    await tenant.uses("4")
    await moving.stop()
    await changed(tenant, DEPLOYMENTS, "web", image_of("other"))

    async def is_new_there() -> bool:
        return len(await of_deployment(tenant)) == 2

    await eventually(is_new_there, 30, "the new version is there")
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    for made in await of_deployment(tenant):
        await attempt(tenant.patch(REPLICASETS, made["metadata"]["name"], {"spec": {"replicas": 40}}))
    await for_a_while(lambda: has_running(tenant, 20), 4)
    await moving.start()
    await both.settled(ever=1)


async def test_what_another_owner_keeps_is_edited(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """Its Deployment is gone. The garbage collector takes the reference to that alone."""
    other = (await tenant.create(CONFIG_MAPS, {"metadata": {"name": "other", "namespace": tenant.name}}))["metadata"]
    await moving.stop()
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    keeps = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["uid"]}
    [made] = await of_deployment(tenant)
    name, references = made["metadata"]["name"], made["metadata"]["ownerReferences"]
    await tenant.patch(REPLICASETS, name, {"metadata": {"ownerReferences": [*references, keeps]}})
    await tenant.delete(DEPLOYMENTS, "web")
    await gone(tenant, DEPLOYMENTS, "web")
    for _ in range(20):
        await attempt(tenant.patch(REPLICASETS, name, {"spec": {"replicas": 40}}))
        await asyncio.sleep(0.1)
    await for_a_while(lambda: has_running(tenant, 5), 4)
    await moving.start()
    await both.settled()


async def test_pods_are_left_by_a_stateful_set(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """The next controller counts them before it takes another workload."""
    await moving.stop()
    await tenant.create(STATEFULSETS, of_kind(STATEFULSETS, web(tenant, 4, slow=True)))
    await tenant.running(4)
    await tenant.delete(STATEFULSETS, "web", "Orphan")
    await gone(tenant, STATEFULSETS, "web")
    await moving.start()

    async def are_counted() -> bool:
        """Apart from what was promised to the StatefulSet, which expires after a minute."""
        return (await tenant.admin.get(GROUPS, tenant.name))["status"]["used"].get("limits.cpu") == "4"

    await eventually(are_counted, 30, "the pods are counted")
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="next", app="y")))
    await both.settled()
    assert len(await tenant.pods()) == 4


async def test_versions_are_left_in_a_full_group(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """What Kubernetes releases is never refused, and the group has no room for it."""
    await moving.stop()
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(2)
    for turn in range(2):
        [made] = [each for each in await of_deployment(tenant) if each["spec"]["replicas"]]
        # While it is paused none of the next version adopts the pods.
        await changed(tenant, DEPLOYMENTS, "web", {"spec": {"paused": True, **image_of(f"next-{turn}")["spec"]}})
        refused = await attempt(tenant.delete(REPLICASETS, made["metadata"]["name"], "Orphan"))
        # The first deletion takes the room that is left.
        assert (refused is None) == (turn == 0)
        if refused is None:
            await gone(tenant, REPLICASETS, made["metadata"]["name"])
        await changed(tenant, DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await for_a_while(partial(has_running, tenant, 2 * (turn + 2)), 5)
    await moving.start()
    await both.settled(over=99, ever=99)


async def left_for_long(tenant: Tenant, moving: Moving, replicas: int) -> str:
    """Leave a ReplicaSet that is counted, and stop the controller. Return its name after more than ten seconds."""
    await tenant.create(DEPLOYMENTS, web(tenant, replicas, slow=True))
    await tenant.running(replicas)
    await tenant.uses(str(replicas))
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await tenant.uses(str(replicas))
    await moving.stop()
    await asyncio.sleep(12)
    [made] = await of_deployment(tenant)
    return made["metadata"]["name"]


async def test_what_was_left_grows_later_and_is_deleted(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """Its new pods are made more than ten seconds after it was left, and end slowly."""
    name = await left_for_long(tenant, moving, 1)
    await tenant.scale(REPLICASETS, name, 4)
    await tenant.running(4)
    await tenant.delete(REPLICASETS, name)
    await gone(tenant, REPLICASETS, name)
    await moving.start()
    await both.settled(quiet=3)


async def test_a_workload_is_created_emptied_moved_and_left(
    tenant: Tenant, both: LivePods, other: str, moving: Moving
) -> None:
    """Its pods end slowly, in the group that admitted them."""
    await moving.stop()
    await tenant.create(DEPLOYMENTS, web(tenant, 4, name="own", app="own", label=other))
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(8)
    await tenant.scale(DEPLOYMENTS, "web", 0)
    await tenant.running(4)
    await tenant.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: other}}})
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await moving.start()
    await has_no_promise(tenant, tenant.name)
    await fit(tenant, other, both)


async def test_what_another_group_left_has_the_default_label(
    tenant: Tenant, both: LivePods, other: str, moving: Moving
) -> None:
    """No group is charged for it meanwhile that has not admitted it: that would be drift."""
    await tenant.has_default(**{LABEL: tenant.name})
    made = web(tenant, 4, label=other, slow=True)
    await tenant.create(REPLICATION_CONTROLLERS, of_kind(REPLICATION_CONTROLLERS, made))
    await tenant.running(4)
    await moving.stop()
    await tenant.delete(REPLICATION_CONTROLLERS, "web", "Orphan")
    await gone(tenant, REPLICATION_CONTROLLERS, "web")
    await moving.start()
    await has_no_promise(tenant, other)
    await fit(tenant, other, both)


async def test_what_was_left_makes_pods_again_and_is_deleted(tenant: Tenant, both: LivePods, moving: Moving) -> None:
    """It makes them more than ten seconds after it was left, without growing itself. They end slowly."""
    name = await left_for_long(tenant, moving, 2)
    await relabel_pods(tenant, {"app": "taken"}, 2)
    await tenant.running(4)
    await tenant.delete(REPLICASETS, name)
    await gone(tenant, REPLICASETS, name)
    await moving.start()
    await both.settled(quiet=3)
