"""Routes through moves: a workload goes to another group while its pods still run, or end slowly.

In each a tenant with the role `edit` may charge two groups of four cores. The oracle counts the pods and holds them
against both groups together. In the end neither group uses more than it has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web as http

from bizrq.api import group as wire
from bizrq.cli.rbac import CONTROLLER
from bizrq.kube.client import ApiError, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, REQUIRED
from tests.reliability.routes import (
    STRATEGIC,
    another_group,
    attempt,
    changed,
    fit,
    for_a_while,
    gone,
    image_of,
    of_deployment,
    of_kind,
    owned,
    replica_set,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import CRONJOBS, DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object, cronjob
from tests.support.proxy import Proxy
from tests.support.serving import Parts
from tests.support.tenant import JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 3
_WATCHED = "/api/v1/pods"


class Moving:
    """The processes, with a controller that can be stopped, and kept from writing the status of some groups."""

    def __init__(self, parts: Parts, proxy: Proxy, kubeconfig: Path) -> None:
        self.parts = parts
        #: The groups of which no status is stored.
        self.withheld: set[str] = set()
        #: How often one was withheld.
        self.refused = 0
        self._kubeconfig = kubeconfig
        self._task: asyncio.Task[None] | None = None
        self._proxy = proxy
        proxy.before.append(self._withhold)

    async def _withhold(self, line: str) -> http.Response | None:
        if not any(line.startswith("PUT ") and line.endswith(f"/{name}/status") for name in self.withheld):
            return None
        self.refused += 1
        body = {"kind": "Status", "status": "Failure", "code": 503, "message": "on purpose"}
        return http.json_response(body, status=503)

    @asynccontextmanager
    async def late(self, seed: int) -> AsyncIterator[None]:
        """The controller's watch of pods stands still for a second at most, again and again."""
        task = asyncio.create_task(self._hold_back(random.Random(seed)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._proxy.thaw(_WATCHED)

    async def _hold_back(self, chance: random.Random) -> None:
        while True:
            self._proxy.freeze(_WATCHED)
            await asyncio.sleep(chance.random())
            self._proxy.thaw(_WATCHED)
            await asyncio.sleep(chance.random() / 2)

    async def start(self) -> None:
        if self._task is None:
            self._task = await self.parts.controller(recount_interval=self.parts.often, kubeconfig=self._kubeconfig)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def moving(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Moving]:
    async with Parts(cluster, tmp_path_factory.mktemp("moves")) as parts:
        await parts.run_pods()
        proxy = await parts.enter(Proxy(parts.kubeconfigs[CONTROLLER]))
        moving = Moving(parts, proxy, proxy.write_kubeconfig(parts.folder / "proxy"))
        await parts.webhooks()
        await moving.start()
        await parts.register()
        yield moving


@pytest.fixture(scope="module")
def parts(moving: Moving) -> Parts:
    return moving.parts


@pytest_asyncio.fixture(loop_scope="module")
async def other(tenant: Tenant, moving: Moving, unique: str) -> AsyncIterator[str]:
    yield await another_group(tenant, unique)
    moving.withheld.clear()
    await moving.start()


async def used(tenant: Tenant, name: str) -> str | None:
    """The cores that a group uses; None while something is reserved."""
    status = wire.from_dict(await tenant.admin.get(GROUPS, name)).status
    return None if status.reservations or not status.used else str(status.used["limits.cpu"])


async def is_used(tenant: Tenant, name: str, cpu: str) -> bool:
    return await used(tenant, name) == cpu


async def use(tenant: Tenant, **amounts: str) -> None:
    """Wait until groups use so much, and nothing is reserved."""
    found: dict[str, str | None] = {}

    async def do() -> bool:
        for name in amounts:
            found[name] = await used(tenant, name)
        return found == amounts

    await eventually(do, 30, lambda: f"{amounts}, not {found}")


async def move(tenant: Tenant, resource: Resource, to: str | None, name: str = "web") -> ApiError | None:
    return await attempt(tenant.patch(resource, name, {"metadata": {"labels": {LABEL: to}}}))


async def all_end(tenant: Tenant) -> bool:
    pods = await tenant.pods()
    return bool(pods) and all("deletionTimestamp" in pod["metadata"] for pod in pods)


async def fresh(tenant: Tenant) -> int:
    return sum("deletionTimestamp" not in pod["metadata"] for pod in await tenant.pods())


async def has_fresh(tenant: Tenant, count: int) -> bool:
    return await fresh(tenant) >= count


async def emptied(tenant: Tenant, resource: Resource, name: str = "web") -> None:
    """Have all pods end, which takes them a day."""
    if resource is JOBS:
        await tenant.patch(resource, name, {"spec": {"suspend": True}})
    else:
        await tenant.scale(resource, name, 0)
    await eventually(lambda: all_end(tenant), 60, "all pods are being deleted")


async def is_still(tenant: Tenant, name: str = "web") -> None:
    """Wait until nobody writes a Deployment: upon a conflict, the API server asks for the same move once more."""
    version, since = "", 0.0

    async def for_a_second() -> bool:
        nonlocal version, since
        found = await tenant.admin.get(DEPLOYMENTS, name, tenant.name)
        if found["metadata"]["resourceVersion"] != version:
            version, since = found["metadata"]["resourceVersion"], time.monotonic()
        return time.monotonic() - since > 1

    await eventually(for_a_second, 60, "nobody writes the Deployment")


async def full(tenant: Tenant, name: str, label: str) -> None:
    """Try to fill a group with pods of its own."""
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name=name, app=name, label=label)))


async def test_a_workload_moves_with_the_pods_that_it_asks_for(tenant: Tenant, both: LivePods, other: str) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await use(tenant, **{tenant.name: "0", other: "4"})
    await full(tenant, "more", tenant.name)
    await tenant.running(8)
    await fit(tenant, other, both)


def by_hand(cron: Object, name: str) -> Object:
    """A Job as `kubectl create job --from` makes it: below its CronJob, with the labels of the template."""
    template, metadata = cron["spec"]["jobTemplate"], cron["metadata"]
    about = {"name": name, "namespace": metadata["namespace"], "labels": template["metadata"]["labels"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": template["spec"]}
    return owned(job, "CronJob", metadata["name"], metadata["uid"], "batch/v1")


async def test_a_cronjob_moves_away_from_the_jobs_that_were_made_below_it(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    """A CronJob does not pay for its Jobs, so they stay with the group that has admitted them."""
    for number in range(ROUNDS):
        made = cronjob(f"cron{number}", tenant.name, namespace=tenant.name)
        made["spec"]["suspend"] = True
        cron = await tenant.create(CRONJOBS, made)
        for index in range(4):
            await attempt(tenant.create(JOBS, by_hand(cron, f"job{number}-{index}")))
        if not number:
            await tenant.running(4)
            await use(tenant, **{tenant.name: "4", other: "0"})
        labels = {"metadata": {"labels": {LABEL: other}}}
        assert (
            await attempt(tenant.patch(CRONJOBS, f"cron{number}", {**labels, "spec": {"jobTemplate": labels}})) is None
        )
        await asyncio.sleep(1)
    await use(tenant, **{tenant.name: "4", other: "0"})
    status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    assert not status.leftovers, "what pays for itself is no leftover"
    assert await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="honest", app="honest", label=other))) is None
    await tenant.running(8)
    await fit(tenant, other, both)


async def test_a_workload_moves_into_a_group_that_is_full(tenant: Tenant, both: LivePods, other: str) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="own", app="own", label=other))
    await tenant.running(5)
    refused = await move(tenant, DEPLOYMENTS, other)
    assert refused is not None
    assert f"exceeded quota: {other}" in refused.message
    await use(tenant, **{tenant.name: "4", other: "1"})
    await fit(tenant, other, both)


@pytest.mark.parametrize(
    "resource", [DEPLOYMENTS, REPLICATION_CONTROLLERS, STATEFULSETS, JOBS, REPLICASETS], ids=lambda each: each.kind
)
async def test_pods_that_end_slowly_are_moved_into_a_full_group(
    tenant: Tenant, both: LivePods, other: str, resource: Resource
) -> None:
    """The group that they came from pays for them, and nothing more fits there."""
    made = web(tenant, 4, slow=True)
    await tenant.create(resource, made if resource is DEPLOYMENTS else of_kind(resource, made))
    await tenant.running(4)
    await emptied(tenant, resource)
    await full(tenant, "own", other)
    await tenant.running(4)
    await use(tenant, **{tenant.name: "4", other: "4"})
    assert await move(tenant, resource, other) is None
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await tenant.running(4)
    await fit(tenant, other, both)
    await use(tenant, **{tenant.name: "4", other: "4"})
    assert await attempt(tenant.admin.delete(GROUPS, tenant.name)) is not None


async def test_pods_that_end_slowly_shut_nobody_out(tenant: Tenant, both: LivePods, other: str) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await use(tenant, **{tenant.name: "4", other: "0"})
    await tenant.create(DEPLOYMENTS, web(tenant, 4, name="own", app="own", label=other))
    await tenant.running(4)
    await fit(tenant, other, both)


async def test_a_workload_moves_to_and_fro_with_new_pods_each_time(tenant: Tenant, both: LivePods, other: str) -> None:
    """Each group pays for the pods that it admitted, as long as they run."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    for number in range(ROUNDS):
        await attempt(tenant.scale(DEPLOYMENTS, "web", 0))
        await for_a_while(lambda: all_end(tenant))
        await move(tenant, DEPLOYMENTS, (other, tenant.name)[number % 2])
        await asyncio.sleep(1)
        await attempt(tenant.scale(DEPLOYMENTS, "web", 4))
        await for_a_while(lambda: has_fresh(tenant, 4))
    await fit(tenant, other, both)


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_workload_moves_to_and_fro_with_some_more_pods_each_time(
    tenant: Tenant, both: LivePods, other: str, moving: Moving, seed: int | None
) -> None:
    """With a seed, recounts wait for the watch of pods: those of other groups go on meanwhile."""
    async with moving.late(seed) if seed else nullcontext():
        await tenant.create(DEPLOYMENTS, web(tenant, 1, slow=True))
        await tenant.running(1)
        for number in range(12):
            await attempt(tenant.scale(DEPLOYMENTS, "web", 0))
            await for_a_while(lambda: all_end(tenant), 0.5)
            await move(tenant, DEPLOYMENTS, (other, tenant.name)[number % 2])
            await attempt(tenant.scale(DEPLOYMENTS, "web", 1))
            await for_a_while(lambda: has_fresh(tenant, 1), 0.5)
    await fit(tenant, other, both)


@pytest.mark.parametrize("left", [0, 1])
async def test_a_workload_moves_while_it_is_scaled_down(tenant: Tenant, both: LivePods, other: str, left: int) -> None:
    """One write does both: the pods run until their controller has seen it, and end slowly."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.create(DEPLOYMENTS, web(tenant, 4 - left, name="own", app="own", label=other))
    await tenant.running(8 - left)
    change: Object = {"metadata": {"labels": {LABEL: other}}, "spec": {"replicas": left}}
    assert await attempt(tenant.patch(DEPLOYMENTS, "web", change)) is None
    await tenant.running(4)
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await asyncio.sleep(1)
    await both.settled()
    status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    assert int((status.used or {})["limits.cpu"]) in range(4 - 2 * left, 5)


async def test_the_old_group_admits_another_workload_at_once(tenant: Tenant, both: LivePods, other: str) -> None:
    """The move and the other workload come together, again and again."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    await asyncio.gather(
        move(tenant, DEPLOYMENTS, other),
        *(full(tenant, name, label) for name, label in (("a", tenant.name), ("b", other), ("c", tenant.name))),
    )
    for _ in range(10):
        await full(tenant, "a", tenant.name)
        await full(tenant, "b", other)
        await asyncio.sleep(0.1)
    await fit(tenant, other, both)


async def test_what_moved_is_deleted(tenant: Tenant, both: LivePods, other: str) -> None:
    """Each group goes on paying for the pods that it admitted."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await use(tenant, **{tenant.name: "4", other: "0"})
    await tenant.scale(DEPLOYMENTS, "web", 2)
    await tenant.running(2)
    await tenant.delete(DEPLOYMENTS, "web")
    await gone(tenant, DEPLOYMENTS, "web")
    await use(tenant, **{tenant.name: "4", other: "2"})
    await fit(tenant, other, both)
    for pod in await tenant.pods():
        await tenant.delete(PODS, pod["metadata"]["name"], grace=0)


async def test_what_moved_is_deleted_at_once(tenant: Tenant, both: LivePods, other: str) -> None:
    await full(tenant, "own", other)
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(8)
    await tenant.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: other}}, "spec": {"replicas": 0}})
    await tenant.delete(DEPLOYMENTS, "web")
    await gone(tenant, DEPLOYMENTS, "web")
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await asyncio.sleep(1)
    await both.settled()


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_what_moved_is_orphaned_at_once(
    tenant: Tenant, both: LivePods, other: str, times: int, seconds: float
) -> None:
    """The group that it is in then pays, whether anybody counted it there or not."""
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(2)
    await use(tenant, **{tenant.name: "2", other: "0"})
    groups = tenant.name, other
    for number in range(1, times + 1):
        assert await move(tenant, DEPLOYMENTS, groups[number % 2]) is None
    await asyncio.sleep(seconds)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    to, left = groups[times % 2], groups[1 - times % 2]
    await use(tenant, **{to: "2", left: "0"})
    await for_a_while(lambda: is_used(tenant, left, "2"))
    await fit(tenant, other, both)
    await use(tenant, **{to: "2", left: "0"})


@pytest.mark.parametrize("resource", [REPLICATION_CONTROLLERS, STATEFULSETS, REPLICASETS], ids=lambda each: each.kind)
async def test_orphans_of_what_moved_are_deleted_by_force(
    tenant: Tenant, both: LivePods, other: str, resource: Resource
) -> None:
    """Their nodes may run them for a day, and the group that they were left in pays for that."""
    await tenant.create(resource, of_kind(resource, web(tenant, 3, slow=True)))
    await tenant.running(3)
    assert await move(tenant, resource, other) is None
    await use(tenant, **{tenant.name: "0", other: "3"})
    await tenant.delete(resource, "web", "Orphan")
    await gone(tenant, resource, "web")
    await asyncio.sleep(2)
    for each in await tenant.pods():
        await tenant.delete(PODS, each["metadata"]["name"], grace=0)
    await use(tenant, **{tenant.name: "0", other: "3"})
    await fit(tenant, other, both)


@pytest.mark.parametrize("resource", [REPLICATION_CONTROLLERS, REPLICASETS, STATEFULSETS], ids=lambda each: each.kind)
async def test_a_template_shrinks_and_the_workload_moves(
    tenant: Tenant, both: LivePods, other: str, resource: Resource
) -> None:
    """Its pods stay as they are: nothing replaces them."""
    await full(tenant, "own", other)
    made = of_kind(resource, web(tenant, 4))
    if resource is STATEFULSETS:
        made["spec"]["updateStrategy"] = {"type": "OnDelete"}
    await tenant.create(resource, made)
    await tenant.running(8)
    await tenant.scale(DEPLOYMENTS, "own", 3)
    await tenant.client.patch(resource, "web", image_of("i", "1m"), namespace=tenant.name, content_type=STRATEGIC)
    await use(tenant, **{other: "3"})
    assert await move(tenant, resource, other) is None
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)


async def test_a_paused_deployment_shrinks_and_moves(tenant: Tenant, both: LivePods, other: str) -> None:
    """Once it goes on, its old pods end slowly; once they have ended the old group is free."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="own", app="own", label=other))
    await tenant.running(7)
    await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
    await tenant.client.patch(DEPLOYMENTS, "web", image_of("i", "1m"), namespace=tenant.name, content_type=STRATEGIC)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)
    await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
    await use(tenant, **{tenant.name: "0", other: "3004m"})


async def test_what_shrank_and_moved_grows_again(tenant: Tenant, both: LivePods, other: str) -> None:
    """The new group has admitted its pods then, and the old one is free."""
    made = of_kind(REPLICATION_CONTROLLERS, web(tenant, 4))
    await tenant.create(REPLICATION_CONTROLLERS, made)
    await tenant.running(4)
    for cpu in ("1m", "1"):
        await tenant.client.patch(
            REPLICATION_CONTROLLERS, "web", image_of("i", cpu), namespace=tenant.name, content_type=STRATEGIC
        )
        if cpu == "1m":
            assert await move(tenant, REPLICATION_CONTROLLERS, other) is None
            await use(tenant, **{tenant.name: "4", other: "4m"})
            await fit(tenant, other, both)
    await use(tenant, **{tenant.name: "0", other: "4"})
    await fit(tenant, other, both)


# Adoption.


async def test_what_is_left_is_adopted_by_a_small_workload_of_another_group(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    """Its controller deletes what is too much, which ends slowly."""
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="own", app="own", label=other))
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(7)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await tenant.create(DEPLOYMENTS, web(tenant, 1, label=other, slow=True))

    async def is_adopted() -> bool:
        owned = [each for each in await of_deployment(tenant) if each["metadata"].get("ownerReferences")]
        return bool(owned) and await fresh(tenant) == 4

    await eventually(is_adopted, 60, "the ReplicaSet is adopted and scaled down")
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await asyncio.sleep(1)
    await both.settled()


async def test_what_is_left_is_adopted_by_an_empty_workload_that_was_there(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    """No admission comes between: the other Deployment has the same selector."""
    await full(tenant, "own", other)
    await tenant.create(DEPLOYMENTS, web(tenant, 0, name="thief", label=other, slow=True))
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(8)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await eventually(lambda: has_ending(tenant, 4), 60, "the ReplicaSet is adopted and scaled down")
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)


async def has_ending(tenant: Tenant, count: int) -> bool:
    return sum("deletionTimestamp" in pod["metadata"] for pod in await tenant.pods()) == count


async def test_pods_that_are_left_are_adopted_by_a_replica_set_of_another_group(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    await full(tenant, "own", other)
    await tenant.create(REPLICASETS, replica_set(tenant, "old", 4, slow=True))
    await tenant.running(8)
    await tenant.delete(REPLICASETS, "old", "Orphan")
    await gone(tenant, REPLICASETS, "old")
    await tenant.create(REPLICASETS, replica_set(tenant, "new", 0, label=other, slow=True))
    await eventually(lambda: has_ending(tenant, 4), 60, "the pods are adopted and deleted")
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)


async def test_what_is_left_is_adopted_by_a_workload_of_another_group_that_asks_for_it(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    """It is the other group's alone then."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await gone(tenant, DEPLOYMENTS, "web")
    await tenant.create(DEPLOYMENTS, web(tenant, 4, label=other))
    await use(tenant, **{tenant.name: "0", other: "4"})
    await fit(tenant, other, both)


async def test_a_replica_set_with_smaller_pods_is_adopted_by_a_small_workload_of_another_group(
    tenant: Tenant, both: LivePods, other: str
) -> None:
    """A paused Deployment leaves it as it is. Its pods come again larger once they are deleted."""
    await tenant.create(DEPLOYMENTS, web(tenant, 3, name="own", app="own", label=other))
    still = {"paused": True, "strategy": {"type": "Recreate"}}
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="thief", label=other, cpu="1m", **still))
    made = replica_set(tenant, "made", 1, cpu="1m")
    made["metadata"]["labels"]["app"] = "of-nobody"
    await tenant.create(REPLICASETS, made)
    await tenant.running(4)
    await changed(tenant, REPLICASETS, "made", image_of("i", "4"))
    await asyncio.sleep(2)
    await attempt(tenant.patch(REPLICASETS, "made", {"metadata": {"labels": {"app": "x"}}}))

    async def is_adopted() -> bool:
        return bool((await tenant.admin.get(REPLICASETS, "made", tenant.name))["metadata"].get("ownerReferences"))

    await for_a_while(is_adopted, 10)
    await asyncio.sleep(3)
    for each in await tenant.pods():
        if each["metadata"]["name"].startswith("made"):
            await tenant.delete(PODS, each["metadata"]["name"])
    await asyncio.sleep(4)
    await both.settled()
    made_again = [each for each in await tenant.pods() if each["metadata"]["name"].startswith("made")]
    assert not made_again, "the other group has no room for it"


# Nobody pays any more.


@pytest.mark.parametrize("ends", [False, True], ids=["pods stay", "pods end"])
async def test_the_label_is_taken_away(tenant: Tenant, both: LivePods, other: str, ends: bool) -> None:
    """The group that paid for the pods pays for them."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    if ends:
        await emptied(tenant, DEPLOYMENTS)
    await use(tenant, **{tenant.name: "4", other: "0"})
    assert await move(tenant, DEPLOYMENTS, None) is None
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)
    await use(tenant, **{tenant.name: "4", other: "0"})


async def test_the_label_is_taken_away_where_a_group_is_required(tenant: Tenant, both: LivePods, other: str) -> None:
    await tenant.admin.patch(NAMESPACES, tenant.name, {"metadata": {"labels": {REQUIRED: "true"}}})
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    await eventually(lambda: is_refused(move(tenant, DEPLOYMENTS, None)), 30, "the label is required")
    await use(tenant, **{tenant.name: "4", other: "0"})
    await fit(tenant, other, both)


async def is_refused(request: Awaitable[ApiError | None]) -> bool:
    return await request is not None


# A controller that is late, or killed.


async def counts_late(tenant: Tenant, moving: Moving, both: LivePods, other: str) -> None:
    """Start the controller: the old group's charge ends, and both groups fit."""
    await moving.start()
    await for_a_while(lambda: is_used(tenant, tenant.name, "0"))
    await full(tenant, "more", tenant.name)
    await fit(tenant, other, both)


async def test_the_controller_is_late(tenant: Tenant, moving: Moving, both: LivePods, other: str) -> None:
    """What happens meanwhile is reserved, in both groups."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await use(tenant, **{tenant.name: "4", other: "0"})
    await moving.stop()
    await emptied(tenant, DEPLOYMENTS)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await full(tenant, "more", tenant.name)
    await full(tenant, "own", other)
    await counts_late(tenant, moving, both, other)


async def test_the_controller_has_never_seen_it_in_the_old_group(
    tenant: Tenant, moving: Moving, both: LivePods, other: str
) -> None:
    await moving.stop()
    await full(tenant, "own", other)
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(8)
    await tenant.scale(DEPLOYMENTS, "web", 0)
    await tenant.running(4)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await counts_late(tenant, moving, both, other)


async def test_the_controller_is_late_and_the_new_group_grows_meanwhile(
    tenant: Tenant, moving: Moving, both: LivePods, other: str
) -> None:
    """What the new group has admitted is no charge of the old one."""
    await tenant.create(DEPLOYMENTS, web(tenant, 2, slow=True))
    await tenant.running(2)
    await use(tenant, **{tenant.name: "2", other: "0"})
    await moving.stop()
    await emptied(tenant, DEPLOYMENTS)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await tenant.scale(DEPLOYMENTS, "web", 4)
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    await moving.start()
    await use(tenant, **{tenant.name: "2", other: "4"})
    await fit(tenant, other, both)


@pytest.mark.parametrize("which", ["the old group", "the new group"])
@pytest.mark.parametrize("count", [0, 4])
async def test_the_controller_is_killed_between_the_writes_of_both_groups(
    tenant: Tenant, moving: Moving, both: LivePods, other: str, which: str, count: int
) -> None:
    """Whichever is stored alone: the pods are charged, and the next controller finds who pays for them."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    if count == 0:
        await emptied(tenant, DEPLOYMENTS)
    await use(tenant, **{tenant.name: "4", other: "0"})
    await is_still(tenant)
    withheld = tenant.name if which == "the old group" else other
    before, moving.withheld = moving.refused, {withheld}
    assert await move(tenant, DEPLOYMENTS, other) is None
    await for_a_while(lambda: was_withheld(moving, before), 3)
    await asyncio.sleep(1)
    await full(tenant, "more", tenant.name)
    await moving.stop()
    moving.withheld = set()
    await full(tenant, "more", tenant.name)
    await full(tenant, "own", other)
    await counts_late(tenant, moving, both, other)


async def was_withheld(moving: Moving, before: int) -> bool:
    return moving.refused > before


async def test_a_new_controller_knows_what_stayed(tenant: Tenant, moving: Moving, both: LivePods, other: str) -> None:
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await emptied(tenant, DEPLOYMENTS)
    assert await move(tenant, DEPLOYMENTS, other) is None
    await use(tenant, **{tenant.name: "4", other: "0"})
    await tenant.scale(DEPLOYMENTS, "web", 1)
    await tenant.running(1)
    await use(tenant, **{tenant.name: "4", other: "1"})
    await moving.stop()
    await moving.start()
    await asyncio.sleep(2)
    await full(tenant, "more", tenant.name)
    await use(tenant, **{tenant.name: "4", other: "1"})
    await fit(tenant, other, both)
