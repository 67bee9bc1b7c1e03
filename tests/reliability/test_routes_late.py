"""Routes through what bizrq has not seen yet: a watch that is late, a payer that changes far from a recount.

In each a tenant with the role `edit` and a group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.client import KubeClient, NotFound
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import WATCHED
from bizrq.workloads.labels import LABEL
from tests.reliability.conftest import end_pods
from tests.reliability.routes import (
    STRATEGIC,
    attempt,
    attempts,
    for_a_while,
    gone,
    has_running,
    image_of,
    may_operate,
    of_deployment,
    owned,
    pod,
    ray_cluster,
    relabel_pods,
    web,
)
from tests.support.at_rest import at_rest
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.logged_errors import LoggedErrors
from tests.support.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    RAYCLUSTERS,
    REPLICASETS,
    ROLLOUTS,
    Object,
    group,
    referring,
)
from tests.support.proxy import Proxy
from tests.support.serving import Parts
from tests.support.tenant import Tenant, tenant_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_RANGES, RUNTIME_CLASSES, _ = WATCHED
#: Freezes the webhook's watches, once they show the objects of these names.
Freeze = Callable[..., Awaitable[None]]
#: A recount of everything comes long after the test.
FAR = 300.0
#: How often two writes at once are tried: they have to be reviewed before either is stored.
ROUNDS = 4
#: The watches that the webhook has late, and the controller in time.
LATE = tuple(resource.path() for resource in WATCHED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def idle(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """Nothing runs yet."""
    async with Parts(cluster, tmp_path_factory.mktemp("late")) as idle:
        yield idle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(idle: Parts) -> Proxy:
    """The webhook's way to the API server."""
    return await idle.enter(Proxy(idle.kubeconfigs[WEBHOOKS]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(idle: Parts, proxy: Proxy) -> Parts:
    await idle.run_pods()
    await idle.webhooks(kubeconfig=proxy.write_kubeconfig(idle.folder / "proxy"))
    await idle.controller(recount_interval=FAR)
    await idle.register()
    return idle


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(
    logged: LoggedErrors,
    parts: Parts,
    cluster: Cluster,
    client: KubeClient,
    namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Tenant]:
    await client.create(GROUPS, group(namespace, cpu="4"))
    async with tenant_of(cluster, client, namespace, tmp_path_factory.mktemp(namespace)) as tenant:
        await tenant.uses("0")
        yield tenant
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, namespace)
        await end_pods(client, namespace)


@pytest_asyncio.fixture(loop_scope="module")
async def late(proxy: Proxy, parts: Parts, tenant: Tenant) -> AsyncIterator[Freeze]:
    """Have the webhook's watches bring nothing from a moment on, until the test ends."""

    async def freeze(*names: str) -> None:
        await eventually(lambda: shown({tenant.name, *names}), 30, f"the webhook has seen {names}")
        for path in LATE:
            proxy.frozen.add(path)
            proxy.freeze(path)

    async def shown(names: set[str]) -> bool:
        stores = [informer.store for each, _ in parts.running for informer in each.resolver.informers]
        return names <= {obj["metadata"]["name"] for store in stores for obj in store.values()}

    yield freeze
    for path in LATE:
        proxy.thaw(path)


async def is_within_hard(tenant: Tenant, live: LivePods) -> None:
    """Judge the pods, and what the recount makes of the workloads: the sandbox fills in nothing that they leave out."""
    await live.settled()
    await at_rest()
    assert "OverQuota" not in await tenant.conditions()


# What an administrator changed a moment ago.


async def test_a_deployment_without_label_is_scaled_when_its_namespace_got_a_default(
    tenant: Tenant, live: LivePods, late: Freeze
) -> None:
    """An administrator cannot give the namespace a default while it has workloads without label, unless at nothing."""
    made = web(tenant, 0, label=None)
    await tenant.create(DEPLOYMENTS, made)
    await late()
    with_default = {"metadata": {"labels": {LABEL: tenant.name}}}
    if await attempt(tenant.admin.patch(NAMESPACES, tenant.name, with_default)):
        await tenant.delete(DEPLOYMENTS, "web")
        await gone(tenant, DEPLOYMENTS, "web")
        await eventually(lambda: is_empty(tenant), 60, "what it made is gone")
        await tenant.admin.patch(NAMESPACES, tenant.name, with_default)
        await attempt(tenant.create(DEPLOYMENTS, made))
    await attempt(tenant.scale(DEPLOYMENTS, "web", 12))
    await for_a_while(lambda: has_running(tenant, 12), 3)
    await is_within_hard(tenant, live)


async def test_workloads_without_label_come_when_their_namespace_got_a_default(
    tenant: Tenant, live: LivePods, late: Freeze
) -> None:
    await late()
    await tenant.admin.patch(NAMESPACES, tenant.name, {"metadata": {"labels": {LABEL: tenant.name}}})
    await attempts(
        tenant.create(DEPLOYMENTS, web(tenant, 4, name=f"web{n}", app=f"web{n}", label=None)) for n in range(3)
    )
    await for_a_while(lambda: has_running(tenant, 12), 3)
    await is_within_hard(tenant, live)


async def test_a_workload_without_label_comes_when_its_namespace_got_another_default(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str, late: Freeze
) -> None:
    """The default of before has room for it."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="40"))
    await tenant.has_default(**{LABEL: other})
    await tenant.create(DEPLOYMENTS, web(tenant, 1, name="first", label=None))
    await tenant.delete(DEPLOYMENTS, "first")
    await gone(tenant, DEPLOYMENTS, "first")
    await eventually(lambda: is_empty(tenant), 60, "what it made is gone")
    await late()
    # Refused as long as the first one is promised to the group of before.
    await eventually(lambda: has_default(tenant), 90, "the namespace has the other default")
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 12, label=None)))
    await for_a_while(lambda: has_running(tenant, 12), 3)
    await is_within_hard(tenant, live)


async def has_default(tenant: Tenant) -> bool:
    labels = {"metadata": {"labels": {LABEL: tenant.name}}}
    return await attempt(tenant.admin.patch(NAMESPACES, tenant.name, labels)) is None


async def is_empty(tenant: Tenant) -> bool:
    sets, _ = await tenant.admin.list(REPLICASETS, tenant.name)
    return not sets and not await tenant.pods()


def limit_range(tenant: Tenant, cpu: str) -> Object:
    limits = {"type": "Container", "default": {"cpu": cpu}, "defaultRequest": {"cpu": "1m"}}
    metadata = {"name": f"{tenant.name}-limits", "namespace": tenant.name}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}}


async def raised(tenant: Tenant) -> None:
    limits = limit_range(tenant, "3")
    await tenant.admin.patch(LIMIT_RANGES, limits["metadata"]["name"], {"spec": limits["spec"]}, namespace=tenant.name)


def silent(tenant: Tenant, replicas: int) -> Object:
    """Its pods say nothing themselves; the API server fills in what a LimitRange says."""
    made = web(tenant, replicas)
    del made["spec"]["template"]["spec"]["containers"][0]["resources"]
    return made


async def test_a_workload_comes_when_a_limit_range_was_raised(tenant: Tenant, live: LivePods, late: Freeze) -> None:
    limits = limit_range(tenant, "1m")
    await tenant.admin.create(LIMIT_RANGES, limits)
    await late(limits["metadata"]["name"])
    await raised(tenant)
    await attempt(tenant.create(DEPLOYMENTS, silent(tenant, 4)))
    await for_a_while(lambda: has_running(tenant, 4), 3)
    await is_within_hard(tenant, live)


async def test_a_workload_is_scaled_when_a_limit_range_was_raised(
    tenant: Tenant, live: LivePods, late: Freeze, logged: LoggedErrors
) -> None:
    """What it asks for already rises with the LimitRange, which no admission sees."""
    logged.expect("drift")
    limits = limit_range(tenant, "1m")
    await tenant.admin.create(LIMIT_RANGES, limits)
    await late(limits["metadata"]["name"])
    await tenant.create(DEPLOYMENTS, silent(tenant, 1))
    await tenant.running(1)
    await raised(tenant)
    await attempt(tenant.scale(DEPLOYMENTS, "web", 4))
    await for_a_while(lambda: has_running(tenant, 4), 3)
    await is_within_hard(tenant, live)


async def test_a_workload_comes_when_the_overhead_of_its_runtime_class_was_raised(
    tenant: Tenant, live: LivePods, late: Freeze
) -> None:
    name = f"{tenant.name}-kata"
    kata = {"apiVersion": RUNTIME_CLASSES.api_version, "kind": RUNTIME_CLASSES.kind, "metadata": {"name": name}}
    await tenant.admin.create(RUNTIME_CLASSES, {**kata, "handler": "kata", "overhead": {"podFixed": {"cpu": "1m"}}})
    await late(name)
    await tenant.admin.patch(RUNTIME_CLASSES, name, {"overhead": {"podFixed": {"cpu": "3"}}})
    made = web(tenant, 4, cpu="1m")
    made["spec"]["template"]["spec"]["runtimeClassName"] = name
    await attempt(tenant.create(DEPLOYMENTS, made))
    await for_a_while(lambda: has_running(tenant, 4), 3)
    await is_within_hard(tenant, live)
    await tenant.admin.delete(RUNTIME_CLASSES, name)


async def test_a_template_is_enlarged_while_what_refers_to_it_is_scaled(tenant: Tenant, live: LivePods) -> None:
    """Either fits alone. Nobody here makes the pods of what refers to a template: the recount judges."""
    await may_operate(tenant, ROLLOUTS)
    shape = web(tenant, 0, name="shape", label=None, cpu="1m")
    await tenant.create(DEPLOYMENTS, shape)
    await tenant.create(ROLLOUTS, referring("web", tenant.name, shape, 1, namespace=tenant.name))
    for _ in range(ROUNDS):
        await attempts([resized(tenant, "3"), scaled(tenant, 4)])
        await is_within_hard(tenant, live)
        await resized(tenant, "1m")
        await scaled(tenant, 1)


def resized(tenant: Tenant, cpu: str) -> Awaitable[Object]:
    return tenant.client.patch(DEPLOYMENTS, "shape", image_of("i", cpu), namespace=tenant.name, content_type=STRATEGIC)


def scaled(tenant: Tenant, replicas: int) -> Awaitable[Object]:
    return tenant.patch(ROLLOUTS, "web", {"spec": {"replicas": replicas}})


# A payer that changes, without a recount of everything.


async def test_children_are_relabelled_and_left_by_their_owner(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str
) -> None:
    """Whoever pays then is counted at once: the tenant's group, whatever the labels say."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.running(4)
    for each in [*await of_deployment(tenant), *await tenant.pods()]:
        resource = PODS if each.get("kind") == "Pod" or "containers" in each["spec"] else REPLICASETS
        await attempt(tenant.patch(resource, each["metadata"]["name"], {"metadata": {"labels": {LABEL: other}}}))
    await at_rest()
    await attempt(tenant.delete(DEPLOYMENTS, "web", "Orphan"))
    await gone(tenant, DEPLOYMENTS, "web")
    await at_once(live, client, other)


async def at_once(live: LivePods, client: KubeClient, other: str) -> None:
    """Within seconds both groups together are charged for what runs, no more and no less, and stay so."""
    last: list[object] = []
    since = 0.0

    async def counted() -> bool:
        status = wire.from_dict(await client.get(GROUPS, other)).status
        sample = live.sample()
        assert sample is not None
        theirs = int((status.used or {}).get("limits.cpu", "0")) * 1000
        last[:] = [sample, theirs]
        nonlocal since
        is_exact = sample.hidden == theirs and sample.over <= 0
        since = (since or time.monotonic()) if is_exact else 0.0
        return is_exact and time.monotonic() - since > 1.5

    await eventually(counted, 10, lambda: f"counted within seconds: {[str(each) for each in last]}")


async def test_pods_are_relabelled_and_released(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str
) -> None:
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await tenant.create(DEPLOYMENTS, web(tenant, 2))
    await tenant.running(2)
    await relabel_pods(tenant, {LABEL: other}, 2)
    await at_rest()
    await relabel_pods(tenant, {"app": "mine"}, 2)
    await at_once(live, client, other)


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked"])
async def test_an_owner_stops_to_pay_while_its_children_do_not_change(
    parts: Parts,
    tenant: Tenant,
    live: LivePods,
    client: KubeClient,
    unique: str,
    logged: LoggedErrors,
    is_asked: bool,
) -> None:
    """What they cost changes through their owner; somebody is charged within seconds, even if nobody asked us."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await may_operate(tenant, RAYCLUSTERS)
    uid = (await tenant.create(RAYCLUSTERS, ray_cluster(tenant, "own", 3)))["metadata"]["uid"]
    for number in range(2):
        child = owned(pod(tenant, f"p{number}", label=other), "RayCluster", "own", uid, RAYCLUSTERS.api_version)
        await tenant.create(PODS, child)
    await tenant.running(2)
    await at_rest()
    async with contextlib.AsyncExitStack() as away:
        if not is_asked:
            # Nobody admitted the pods to their own group.
            logged.expect("drift")
            await away.enter_async_context(parts.away())
        await attempt(tenant.patch(RAYCLUSTERS, "own", {"metadata": {"labels": {LABEL: None}}}))
        await at_once(live, client, other)


async def test_an_owner_begins_to_pay_while_its_children_do_not_change(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str
) -> None:
    """The group that paid for them is refunded within seconds."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await may_operate(tenant, RAYCLUSTERS)
    made = ray_cluster(tenant, "own", 3)
    made["metadata"]["labels"] = {}
    uid = (await tenant.create(RAYCLUSTERS, made))["metadata"]["uid"]
    for number in range(4):
        child = owned(pod(tenant, f"p{number}", label=other), "RayCluster", "own", uid, RAYCLUSTERS.api_version)
        await tenant.create(PODS, child)
    await tenant.running(4)
    await at_once(live, client, other)
    await at_rest()
    await attempt(tenant.patch(RAYCLUSTERS, "own", {"metadata": {"labels": {LABEL: tenant.name}}}))
    await at_once(live, client, other)


async def test_a_workload_moves_while_its_pods_stay(
    tenant: Tenant, live: LivePods, client: KubeClient, unique: str
) -> None:
    """All of them go with it, and the group that it left is refunded."""
    other = f"{tenant.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="4"))
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.uses("4")
    await at_rest()
    await tenant.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: other}}})
    seen: list[Object] = []

    async def moved() -> bool:
        seen[:] = [wire.from_dict(await client.get(GROUPS, name)).status.used or {} for name in (tenant.name, other)]
        return [used.get("limits.cpu") for used in seen] == ["0", "4"]

    await eventually(moved, 10, lambda: f"the move is counted: {seen}")
    await at_once(live, client, other)


async def test_the_last_workload_goes_and_its_pods_are_slow(tenant: Tenant, live: LivePods) -> None:
    """They are counted as long as they run, by a group that has nothing else to recount."""
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    await tenant.running(4)
    await at_rest()
    versions = await of_deployment(tenant)
    await tenant.delete(DEPLOYMENTS, "web")
    began = time.monotonic()
    # Until its ReplicaSet goes, that makes other pods in place of those that are deleted.
    for each in versions:
        await gone(tenant, REPLICASETS, each["metadata"]["name"])
    await attempts(tenant.delete(PODS, each["metadata"]["name"]) for each in await tenant.pods())
    await live.settled()
    assert time.monotonic() - began < FAR
