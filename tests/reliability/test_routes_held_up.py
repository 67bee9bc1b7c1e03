"""Routes through a controller of Kubernetes that is late: its pods come long after what asked for them has changed.

Its client sends some twenty requests a second, and a tenant may keep it busy with workloads of small pods. In each a
tenant with the role `edit` and a group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from bizrq.api import overlap
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.overlaps import OVERLAPS
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import (
    another_group,
    attempt,
    fit,
    for_a_while,
    gone,
    of_deployment,
    of_kind,
    one_by_one,
    operated,
    owned,
    pod,
    replica_set,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.gate import as_maker
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, PYTORCHJOBS, REPLICASETS, Object
from tests.support.serving import Parts
from tests.support.tenant import JOBS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Seconds: more than a payer's own label decides for (`bizrq.workloads.ownership.payers.LATE`).
LONG = 12.0
#: The end of the name of a pod that a person has made.
BY_HAND = "-by-hand"


class Counting:
    """The one controller, which may be replaced by another."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._task: asyncio.Task[None] | None = None

    async def restart(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = await self.parts.controller(recount_interval=self.parts.often)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counting(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Counting]:
    async with Parts(cluster, tmp_path_factory.mktemp("held")) as parts:
        await parts.run_pods()
        counting = Counting(parts)
        await parts.webhooks()
        await counting.restart()
        await parts.register()
        yield counting


@pytest.fixture(scope="module")
def parts(counting: Counting) -> Parts:
    return counting.parts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def maker(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client with the name of the controller that makes the pods of ReplicaSets."""
    async with as_maker(cluster.kubeconfig) as maker:
        yield maker


@pytest.fixture
def late_controllers(cluster: Cluster) -> None:
    """Kubernetes' own controllers, which may be late."""
    if not cluster.is_real:
        pytest.skip("the sandbox makes all pods at once")


async def asks_for_four(tenant: Tenant, kind: Resource) -> str:
    """Make what asks for four pods, and has one or none for now. Return its uid."""
    if kind is STATEFULSETS:
        uid = (await tenant.create(kind, one_by_one(tenant)))["metadata"]["uid"]
        await tenant.running(1)
        return uid
    worker = {"replicas": 4, "restartPolicy": "Never", "template": web(tenant, 1)["spec"]["template"]}
    return await operated(tenant, kind, {"pytorchReplicaSpecs": {"Worker": worker}})


async def keep_busy(tenant: Tenant, kind: Resource) -> None:
    """Have the controller of a kind make the last 245 of 500 small pods, in one lot: that takes it 12 seconds."""
    made = of_kind(kind, web(tenant, 500, name="decoy", app="decoy", cpu="1m"))
    if kind is JOBS:
        made["spec"]["completions"] = 500
    made["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
    await tenant.create(kind, made)

    async def is_in_last_lot() -> bool:
        return len(await tenant.pods()) >= 258

    await eventually(is_in_last_lot, 60, "the decoy is in its last lot")


@pytest.mark.usefixtures("late_controllers")
async def test_jobs_are_suspended_before_their_pods_come(tenant: Tenant, live: LivePods) -> None:
    """Jobs of three and two cores, in four: the controller makes the pods of each spec that it has seen."""
    await keep_busy(tenant, JOBS)
    for number in (3, 2):
        job = of_kind(JOBS, web(tenant, number, name=f"own{number}", app=f"own{number}", slow=True))
        job["spec"]["completions"] = number

        async def is_admitted(job: Object = job) -> bool:
            return await attempt(tenant.create(JOBS, job)) is None

        if await for_a_while(is_admitted, 8):
            await asyncio.sleep(1)
            await attempt(tenant.patch(JOBS, f"own{number}", {"spec": {"suspend": True}}))
    await asyncio.sleep(20)
    await live.settled()


async def lower(tenant: Tenant, kind: Resource, name: str) -> None:
    if kind is JOBS:
        await tenant.patch(JOBS, name, {"spec": {"suspend": True}})
    else:
        await tenant.scale(kind, name, 0)


async def own(tenant: Tenant, kind: Resource, name: str) -> str | None:
    """Make a workload of one pod of three cores, and return its uid before the pod comes; None if it is refused."""
    made = of_kind(kind, web(tenant, 1, name=name, app=name, cpu="3", slow=True))
    made["metadata"]["labels"]["app"] = name
    made["spec"]["template"]["spec"]["nodeName"] = "stand-in"

    async def is_admitted() -> bool:
        return await attempt(tenant.create(kind, made)) is None

    if not await for_a_while(is_admitted, 5):
        return None
    await asyncio.sleep(1.2)
    return (await tenant.admin.get(kind, name, tenant.name))["metadata"]["uid"]


async def goes_early(tenant: Tenant, kind: Resource, name: str, uid: str) -> None:
    """Delete a workload, and wait until the API server rejects its pod if that has not come in time."""
    await tenant.delete(kind, name)
    await gone(tenant, kind, name)
    await eventually(lambda: is_listed_or_made(tenant, uid), 5, "the API server is told")


async def all_fit(live: LivePods) -> None:
    """Wait until the controllers have made what they are late with."""
    await asyncio.sleep(20)
    await live.settled()


@pytest.mark.usefixtures("late_controllers")
@pytest.mark.parametrize("kind", [REPLICASETS, STATEFULSETS, JOBS], ids=lambda kind: kind.kind)
async def test_what_is_lowered_before_its_pods_come_is_gone_before_them(
    tenant: Tenant, live: LivePods, kind: Resource
) -> None:
    """Three cores in four, again and again: its controller acts on the spec that it saw first."""
    await keep_busy(tenant, kind)
    for name in ("a", "b", "c"):
        if (uid := await own(tenant, kind, name)) is None:
            # A pod has come before what asked for it was gone.
            break
        await lower(tenant, kind, name)
        await goes_early(tenant, kind, name, uid)
    await all_fit(live)


@pytest.mark.usefixtures("late_controllers")
async def test_tiny_pods_by_hand_are_no_sign_that_all_are_made(tenant: Tenant, live: LivePods) -> None:
    await keep_busy(tenant, REPLICASETS)
    for name in ("a", "b", "c"):
        if (uid := await own(tenant, REPLICASETS, name)) is None:
            break
        tiny = owned(pod(tenant, f"{name}{BY_HAND}", app=name), "ReplicaSet", name, uid)
        tiny["spec"]["nodeName"] = "stand-in"
        tiny["spec"]["containers"][0]["resources"] = {each: {"cpu": "1m"} for each in ("limits", "requests")}
        await attempt(tenant.create(PODS, tiny))
        await goes_early(tenant, REPLICASETS, name, uid)
    await all_fit(live)


@pytest.mark.usefixtures("late_controllers")
async def test_what_finds_no_place_in_the_list_is_charged_on(
    tenant: Tenant, live: LivePods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant fills the list by the deletion of small workloads. What has the place of one may go before its pods."""
    monkeypatch.setattr("controller.overlap._MOST", {overlap.LOWERED: 0, overlap.GONE: 0})
    await keep_busy(tenant, REPLICASETS)
    admitted = []
    for name in ("a", "b", "c"):
        if await own(tenant, REPLICASETS, name) is None:
            break
        admitted.append(name)
        await tenant.delete(REPLICASETS, name)
        await gone(tenant, REPLICASETS, name)
    # Three cores and the decoy: four are full as long as the pod of the first one may come.
    assert admitted == ["a"]
    await all_fit(live)


async def let_go(tenant: Tenant, name: str) -> None:
    """Lower a Deployment, and take its ReplicaSets from it."""
    await lower(tenant, DEPLOYMENTS, name)
    await asyncio.sleep(0.5)
    for each in await of_deployment(tenant, name):
        change = {"metadata": {"ownerReferences": None, "labels": {"app": "gone"}}}
        await attempt(tenant.patch(REPLICASETS, each["metadata"]["name"], change))


async def adopt(tenant: Tenant, name: str) -> None:
    """Lower a ReplicaSet, and have a Deployment adopt it that asks for nothing."""
    await lower(tenant, REPLICASETS, name)
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 0, name=f"of-{name}", app=name, slow=True)))
    await asyncio.sleep(0.5)


@pytest.mark.usefixtures("late_controllers")
@pytest.mark.parametrize(("kind", "loses"), [(DEPLOYMENTS, let_go), (REPLICASETS, adopt)], ids=["let go", "adopted"])
async def test_what_is_lowered_before_its_pods_come_changes_its_owner(
    tenant: Tenant,
    live: LivePods,
    kind: Resource,
    loses: Callable[[Tenant, str], Awaitable[None]],
) -> None:
    await keep_busy(tenant, REPLICASETS)
    for name in ("a", "b", "c"):
        if await own(tenant, kind, name) is None:
            break
        await loses(tenant, name)
    await all_fit(live)


@pytest.mark.usefixtures("late_controllers")
@pytest.mark.parametrize("kind", [REPLICASETS, JOBS], ids=lambda kind: kind.kind)
async def test_what_is_lowered_before_its_pods_come_is_known_to_the_next_controller(
    tenant: Tenant, live: LivePods, counting: Counting, kind: Resource
) -> None:
    await keep_busy(tenant, kind)
    assert await own(tenant, kind, "a") is not None
    await lower(tenant, kind, "a")
    await asyncio.sleep(0.5)
    await counting.restart()
    await own(tenant, kind, "b")
    await all_fit(live)


@pytest_asyncio.fixture(loop_scope="module")
async def other(tenant: Tenant, unique: str) -> str:
    return await another_group(tenant, unique)


@pytest.mark.usefixtures("late_controllers")
@pytest.mark.parametrize("kind", [REPLICASETS, JOBS], ids=lambda kind: kind.kind)
async def test_what_is_lowered_before_its_pods_come_moves_at_once(
    tenant: Tenant, both: LivePods, other: str, kind: Resource
) -> None:
    """One write, and then somebody else fills the other group: no pod may come there, and none beyond four here."""
    await keep_busy(tenant, kind)
    assert await own(tenant, kind, "a") is not None
    lowered = {"suspend": True} if kind is JOBS else {"replicas": 0}
    await tenant.patch(kind, "a", {"metadata": {"labels": {LABEL: other}}, "spec": lowered})

    async def is_filled() -> bool:
        return await attempt(tenant.create(DEPLOYMENTS, web(tenant, 4, name="b", app="b", label=other))) is None

    await for_a_while(is_filled, 10)
    await asyncio.sleep(LONG)
    await own(tenant, kind, "c")
    await all_fit(both)
    await fit(tenant, other, both)


@pytest.mark.usefixtures("late_controllers")
async def test_what_its_controller_has_seen_lowered_gets_its_pods_again(tenant: Tenant, live: LivePods) -> None:
    """It is raised within the time for which the list would keep it."""
    for kind in (REPLICASETS, STATEFULSETS, JOBS):
        name = kind.plural
        # Beside pods of each that are ending there is room.
        made = of_kind(kind, web(tenant, 1, name=name, app=name, cpu="250m"))
        await tenant.create(kind, made)
        await lower(tenant, kind, name)
        await eventually(lambda kind=kind: is_raised(tenant, kind), 10, "its own change is over")
    await tenant.running(3)
    await live.settled()


async def is_raised(tenant: Tenant, kind: Resource) -> bool:
    """Raise what was lowered. Until the change before it has landed, bizrq says to try again."""
    name = kind.plural
    raised = tenant.patch(JOBS, name, {"spec": {"suspend": False}}) if kind is JOBS else tenant.scale(kind, name, 1)
    return await attempt(raised) is None


async def comes(maker: KubeClient, tenant: Tenant, kind: Resource, name: str, uid: str) -> str:
    """Make a pod of one core for an object, as its controller does. Return the rejection, "" where there is none."""
    made = owned(pod(tenant, f"{name}-1", label=None), kind.kind, name, uid, kind.api_version)
    refused = await attempt(maker.create(PODS, made))
    return refused.message if refused is not None else ""


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
@pytest.mark.parametrize(("kind", "name"), [(STATEFULSETS, "web"), (PYTORCHJOBS, "own")], ids=["StatefulSet", "own"])
async def test_what_makes_pods_is_gone_before_they_come(
    tenant: Tenant, live: LivePods, cluster: Cluster, maker: KubeClient, kind: Resource, name: str, policy: str
) -> None:
    if kind is STATEFULSETS and not cluster.is_real:
        pytest.skip("the sandbox makes all pods at once")
    uid = await asks_for_four(tenant, kind)
    await tenant.delete(kind, name, policy)
    await gone(tenant, kind, name)
    # The group is free at once, for whoever comes next.
    await eventually(lambda: is_admitted(tenant), 5, "another gets its place")
    await eventually(lambda: is_listed(tenant, uid), 5, "the API server is told")
    assert overlap.GONE in await comes(maker, tenant, kind, name, uid)
    await asyncio.sleep(LONG)
    assert overlap.GONE in await comes(maker, tenant, kind, name, uid)
    await tenant.running(4)
    await live.settled()


async def is_listed_or_made(tenant: Tenant, uid: str) -> bool:
    """Whether the API server rejects the one pod of an object, or its controller was fast enough to make it."""
    made = [pod["metadata"] for pod in await tenant.pods() if not pod["metadata"]["name"].endswith(BY_HAND)]
    owners = [each["uid"] for metadata in made for each in metadata.get("ownerReferences", ())]
    return uid in owners or await is_listed(tenant, uid)


async def is_listed(tenant: Tenant, uid: str) -> bool:
    return uid in ((await tenant.admin.get(OVERLAPS, overlap.NAME)).get("listed") or {})


async def is_admitted(tenant: Tenant) -> bool:
    return await attempt(tenant.create(REPLICASETS, replica_set(tenant, "next", 4, app="next"))) is None


async def test_what_has_its_pods_leaves_no_entry(tenant: Tenant, maker: KubeClient) -> None:
    uid = (await tenant.create(REPLICASETS, replica_set(tenant, "late", 2)))["metadata"]["uid"]
    await tenant.running(2)
    await tenant.uses("2")
    await tenant.delete(REPLICASETS, "late")
    await tenant.uses("0")
    await asyncio.sleep(2)
    assert not await is_listed(tenant, uid)
    assert await comes(maker, tenant, REPLICASETS, "late", uid) == ""
