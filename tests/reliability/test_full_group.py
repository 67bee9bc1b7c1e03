"""What keeps working in a group that is exactly full: a change that declares no growth is admitted.

Where pods are still ending it is admitted on a retry, within seconds after they have gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from sandbox.kubelet import FAIL, STOP_SECONDS
from tests.reliability.conftest import end_pods
from tests.reliability.full_group import admitted, briefly, rests
from tests.reliability.routes import (
    DAY,
    STRATEGIC,
    image_of,
    of_deployment,
    of_kind,
    pod,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object
from tests.support.proxy import Proxy
from tests.support.serving import Parts
from tests.support.tenant import JOBS, STATEFULSETS, Tenant, tenant_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def at_once(request: Awaitable[object]) -> None:
    """Raise the refusal of what needs no retry."""
    await request


@pytest_asyncio.fixture(loop_scope="module")
async def full(tenant: Tenant, live: LivePods) -> AsyncIterator[Tenant]:
    """A Deployment of four cores in a group of four; at the end the group is settled."""
    await tenant.create(DEPLOYMENTS, briefly(web(tenant, 4)))
    await tenant.uses("4")
    await tenant.running(4)
    yield tenant
    await rests(live)


async def images(tenant: Tenant, image: str, count: int = 4) -> None:
    """Wait until so many pods run, all of this image."""

    async def all_have() -> bool:
        pods = await tenant.pods()
        return len(pods) == count and all(
            each["spec"]["containers"][0]["image"] == image and each["spec"].get("nodeName") for each in pods
        )

    await eventually(all_have, 60, f"{count} pods of {image}")


async def set_image(tenant: Tenant, image: str, resource: Resource = DEPLOYMENTS) -> None:
    body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await tenant.client.patch(resource, "web", body, namespace=tenant.name, content_type=STRATEGIC)


async def test_a_rolling_update(full: Tenant) -> None:
    await at_once(set_image(full, "v2"))
    await images(full, "v2")


async def test_a_restart(full: Tenant) -> None:
    """As `kubectl rollout restart` does it."""
    before = {each["metadata"]["uid"] for each in await full.pods()}
    note = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    await full.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"annotations": note}}}})

    async def restarted() -> bool:
        pods = await full.pods()
        return len(pods) == 4 and not before & {each["metadata"]["uid"] for each in pods}

    await eventually(restarted, 60, "all pods are new")


async def test_an_undo_in_the_middle(full: Tenant) -> None:
    await at_once(set_image(full, "v2"))
    await asyncio.sleep(0.5)
    await at_once(set_image(full, "x"))
    await images(full, "x")


async def test_a_pause_and_a_resume(full: Tenant) -> None:
    await at_once(set_image(full, "v2"))
    await full.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
    await at_once(set_image(full, "v3"))
    await full.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
    await images(full, "v3")


async def test_recreate(full: Tenant) -> None:
    await full.patch(DEPLOYMENTS, "web", {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}})
    await at_once(set_image(full, "v2"))
    await images(full, "v2")


@pytest.mark.parametrize("how", ["delete", "evict", "force", "preempt"])
async def test_a_pod_is_deleted_and_comes_again(full: Tenant, how: str) -> None:
    """As kubectl delete, kubectl drain, a person in a hurry and the scheduler do it."""
    name = (await full.pods())[0]["metadata"]["name"]
    if how == "evict":
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": full.name}}
        await full.admin.request("POST", PODS.path(full.name, name, "eviction"), body=orjson.dumps(body))
    elif how == "preempt":
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        body = {"status": {"conditions": [condition]}}
        await full.admin.patch(PODS, name, body, namespace=full.name, subresource="status", content_type=STRATEGIC)
        await full.admin.delete(PODS, name, full.name)
    else:
        await full.delete(PODS, name, grace=0 if how == "force" else None)

    seen: dict[str, str | None] = {}

    async def again() -> bool:
        seen.clear()
        seen.update({each["metadata"]["name"]: each["status"].get("phase") for each in await full.pods()})
        return len(seen) == 4 and name not in seen

    await eventually(again, 60, lambda: f"another pod runs in the place of {name}: {seen}")


async def test_the_pods_of_a_lost_node_come_again(tenant: Tenant, live: LivePods) -> None:
    """Nobody stops them any more: past their grace, the group pays for what comes in their place."""
    made = briefly(web(tenant, 4))
    made["spec"]["template"]["metadata"]["annotations"][STOP_SECONDS] = str(DAY)
    await tenant.create(DEPLOYMENTS, made)
    await tenant.uses("4")
    lost = [each["metadata"]["name"] for each in (await tenant.running(4))[:2]]
    for name in lost:
        await tenant.admin.delete(PODS, name, tenant.name)
    running = {each["metadata"]["name"] for each in await tenant.running(4)}
    assert not running & set(lost)
    await tenant.uses("4")


async def test_it_is_scaled_down_and_up_as_an_autoscaler_does(full: Tenant) -> None:
    for replicas in (2, 4, 1, 4):
        await admitted(lambda replicas=replicas: full.scale(DEPLOYMENTS, "web", replicas), full)
        await full.running(replicas)


async def test_a_pod_is_resized_down_and_up(full: Tenant) -> None:
    name = (await full.pods())[0]["metadata"]["name"]
    for cpu in ("500m", "1"):
        limits = {"name": "c", "resources": {part: {"cpu": cpu} for part in ("limits", "requests")}}
        body = {"spec": {"containers": [limits]}}

        def resize(body: Object = body) -> Awaitable[object]:
            # The role `edit` does not have it; an autoscaler's account does.
            return full.admin.patch(PODS, name, body, namespace=full.name, subresource="resize", content_type=STRATEGIC)

        await admitted(resize, full)


async def test_it_is_pruned_and_created_again_under_one_name(full: Tenant) -> None:
    """As a delivery tool replaces an object that it cannot change."""
    for policy in ("Background", "Foreground"):
        await full.delete(DEPLOYMENTS, "web", policy)
        await admitted(lambda: full.create(DEPLOYMENTS, briefly(web(full, 4))), full)
        await full.running(4)


async def test_a_label_that_no_selector_uses_changes(full: Tenant) -> None:
    for each in await full.pods():
        await at_once(full.patch(PODS, each["metadata"]["name"], {"metadata": {"labels": {"note": "mine"}}}))
    for each in await of_deployment(full):
        await at_once(full.patch(REPLICASETS, each["metadata"]["name"], {"metadata": {"labels": {"note": "mine"}}}))


async def test_its_namespace_is_deleted(full: Tenant, parts: Parts, tmp_path: Path) -> None:
    """What runs there is refunded when its pods have gone, and somebody else of the group gets it."""
    await full.admin.delete(NAMESPACES, full.name)
    beside = f"{full.name}-beside"
    await full.admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": beside}})
    async with tenant_of(parts.cluster, full.admin, beside, tmp_path) as other:
        made = web(other, 4, label=full.name)
        await admitted(lambda: other.create(DEPLOYMENTS, made), full)
        await other.delete(DEPLOYMENTS, "web")


async def test_a_namespace_of_its_goes_whose_pods_take_long(full: Tenant, parts: Parts, tmp_path: Path) -> None:
    """Nothing is made beside pods that are ending there, so another namespace keeps its room."""
    beside = f"{full.name}-beside"
    await full.delete(DEPLOYMENTS, "web")
    await full.uses("0")
    await full.admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": beside}})
    async with tenant_of(parts.cluster, full.admin, beside, tmp_path) as other:
        await admitted(lambda: other.create(DEPLOYMENTS, web(other, 2, label=full.name, slow=True)), full)
        await other.running(2)
        await full.admin.delete(NAMESPACES, beside)
        await eventually(lambda: all_end(other), 30, "its pods are ending")
        await admitted(lambda: full.create(DEPLOYMENTS, web(full, 2)), full)
        await full.running(2)
        await end_pods(full.admin, beside)


async def all_end(tenant: Tenant) -> bool:
    return all("deletionTimestamp" in pod["metadata"] for pod in await tenant.pods())


# Other kinds fill the group.


@pytest_asyncio.fixture(loop_scope="module")
async def empty(tenant: Tenant, live: LivePods) -> AsyncIterator[Tenant]:
    yield tenant
    await rests(live)


async def test_a_stateful_set_rolls(empty: Tenant) -> None:
    await empty.create(STATEFULSETS, briefly(of_kind(STATEFULSETS, web(empty, 4))))
    await empty.uses("4")
    await at_once(set_image(empty, "v2", STATEFULSETS))
    await images(empty, "v2")


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled pods", "pods without label"])
async def test_a_stateful_set_is_orphaned_and_created_again(empty: Tenant, labelled: bool) -> None:
    """As people resize the volumes of one."""
    made = briefly(of_kind(STATEFULSETS, web(empty, 4, pods={LABEL: empty.name} if labelled else {})))
    await empty.create(STATEFULSETS, made)
    await empty.uses("4")
    await is_created_again(empty, STATEFULSETS, made)


@pytest.mark.parametrize("kind", [REPLICASETS, STATEFULSETS], ids=lambda each: each.kind)
async def test_what_is_orphaned_is_created_again_below_a_lowered_hard(tenant: Tenant, kind: Resource) -> None:
    """All that it asks for was admitted and runs. No more may come, not even by smaller pods in a larger number."""
    made = of_kind(kind, web(tenant, 4))
    await tenant.create(kind, made)
    await tenant.uses("4")
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {"limits.cpu": "2"}}})
    more = of_kind(kind, web(tenant, 5))
    smaller = of_kind(kind, web(tenant, 8, cpu="500m"))
    await is_created_again(tenant, kind, made, more, smaller)
    await tenant.uses("4")


async def test_what_a_rollout_has_run_for_free_is_no_room_for_what_is_created_again(
    cluster: Cluster, tenant: Tenant
) -> None:
    """Pods of a rollout are free. Admitted as demand, they would bring as many free ones again, turn by turn."""
    if not cluster.is_real:
        pytest.skip("the sandbox's rollouts do not wait for minReadySeconds")
    await tenant.create(DEPLOYMENTS, web(tenant, 4, strategy=DOUBLE, minReadySeconds=500))
    await tenant.running(4)
    await set_image(tenant, "v2")
    await tenant.running(8)
    await tenant.delete(DEPLOYMENTS, "web", "Orphan")
    await tenant.uses("8")
    for replicas in (8, 4):
        again = web(tenant, replicas, strategy=DOUBLE, minReadySeconds=500)
        with pytest.raises(ApiError, match="exceeded quota"):
            await admitted(lambda again=again: tenant.create(DEPLOYMENTS, again), tenant)


DOUBLE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}


async def is_created_again(tenant: Tenant, kind: Resource, made: Object, *refused: Object) -> None:
    """Delete a workload without its pods, and create it again for the same ones; and some that are refused."""
    before = {each["metadata"]["uid"] for each in await tenant.pods()}
    await tenant.delete(kind, "web", "Orphan")
    await eventually(lambda: is_gone(tenant, kind, "web"), 30, "the workload is gone")

    async def adopted() -> bool:
        return all(each["metadata"].get("ownerReferences") for each in await tenant.pods())

    async def left() -> bool:
        return not await adopted()

    await eventually(left, 30, "the pods are left")
    for each in refused:
        with pytest.raises(ApiError, match="exceeded quota"):
            await admitted(lambda each=each: tenant.create(kind, each), tenant)
    await admitted(lambda: tenant.create(kind, made), tenant)
    await eventually(adopted, 60, "the pods are adopted")
    assert before == {each["metadata"]["uid"] for each in await tenant.pods()}


async def is_gone(tenant: Tenant, resource: Resource, name: str) -> bool:
    try:
        await tenant.admin.get(resource, name, tenant.name)
    except NotFound:
        return True
    return False


async def suspend_and_resume(tenant: Tenant) -> None:
    """A Job of four pods."""
    await tenant.create(JOBS, briefly(of_kind(JOBS, web(tenant, 4))))
    await tenant.running(4)
    await tenant.patch(JOBS, "web", {"spec": {"suspend": True}})
    await tenant.running(0)
    await admitted(lambda: tenant.patch(JOBS, "web", {"spec": {"suspend": False}}), tenant)
    await tenant.running(4)


async def test_a_job_is_suspended_and_resumed(empty: Tenant) -> None:
    await suspend_and_resume(empty)


async def test_a_job_that_is_resumed_and_made_smaller_makes_room(empty: Tenant) -> None:
    await suspend_and_resume(empty)
    await empty.uses("4")
    await empty.patch(JOBS, "web", {"spec": {"parallelism": 2}})
    await admitted(lambda: empty.create(DEPLOYMENTS, web(empty, 2, name="other")), empty)
    await empty.running(4)


async def test_a_job_retries_its_pods(empty: Tenant) -> None:
    made = briefly(of_kind(JOBS, web(empty, 4)))
    made["spec"]["template"]["metadata"]["annotations"] |= {FAIL: "false"}
    await empty.create(JOBS, made)
    pods = await empty.running(4)
    for each in pods[:2]:
        status = {"metadata": {"uid": each["metadata"]["uid"]}, "status": {"phase": "Failed"}}
        name = each["metadata"]["name"]
        await empty.admin.patch(PODS, name, status, namespace=empty.name, subresource="status")
    failed = {each["metadata"]["uid"] for each in pods[:2]}

    async def retried() -> bool:
        fresh = [each for each in await empty.pods() if each["metadata"]["uid"] not in failed]
        return len(fresh) == 4

    await eventually(retried, 60, "the pods that failed are replaced")


async def test_a_cron_job_replaces_its_job(empty: Tenant, parts: Parts, tmp_path: Path) -> None:
    """concurrencyPolicy Replace: its controller deletes the Job that runs and makes the next, and tries again."""
    groups = {"Impersonate-User": "system:serviceaccount:kube-system:cronjob-controller"}
    async with (
        Proxy(parts.cluster.kubeconfig, groups) as proxy,
        KubeClient.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "cronjob")) as controller,
    ):
        for number in range(3):
            made = briefly(of_kind(JOBS, web(empty, 4, name=f"run-{number}")))
            await admitted(lambda made=made: controller.create(JOBS, made), empty)
            await empty.running(4)
            if number < 2:
                options = orjson.dumps({"propagationPolicy": "Background"})
                await controller.request("DELETE", JOBS.path(empty.name, f"run-{number}"), body=options)


async def test_pods_by_hand_are_replaced_one_by_one(empty: Tenant) -> None:
    for number in range(4):
        await empty.create(PODS, pod(empty, f"p{number}"))
    await empty.running(4)
    for number in range(4):
        await empty.delete(PODS, f"p{number}")
        await admitted(lambda number=number: empty.create(PODS, pod(empty, f"p{number}")), empty)


async def test_hard_is_lowered_and_raised_again(full: Tenant) -> None:
    """Nothing that runs is touched, and what declares no growth goes on."""
    await full.admin.patch(GROUPS, full.name, {"spec": {"hard": {"limits.cpu": "2"}}})
    await at_once(set_image(full, "v2"))
    await images(full, "v2")
    with pytest.raises(ApiError, match="exceeded quota"):
        await full.scale(DEPLOYMENTS, "web", 5)
    await full.scale(DEPLOYMENTS, "web", 3)
    await full.admin.patch(GROUPS, full.name, {"spec": {"hard": {"limits.cpu": "4"}}})
    await admitted(lambda: full.scale(DEPLOYMENTS, "web", 4), full)


@pytest.mark.parametrize("kind", [DEPLOYMENTS, STATEFULSETS], ids=lambda each: each.kind)
async def test_smaller_pods_are_the_way_back_below_a_lowered_hard(tenant: Tenant, kind: Resource) -> None:
    """The group is over its quota until the last large pod has gone."""
    await tenant.create(kind, briefly(of_kind(kind, web(tenant, 4))))
    await tenant.uses("4")
    await tenant.running(4)
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {"limits.cpu": "2"}}})
    small = image_of("x", "500m")
    await at_once(tenant.client.patch(kind, "web", small, namespace=tenant.name, content_type=STRATEGIC))

    async def are_small() -> bool:
        limits = [each["spec"]["containers"][0]["resources"]["limits"]["cpu"] for each in await tenant.pods()]
        return limits == ["500m"] * 4

    await eventually(are_small, 60, "all pods are small")
    await uses(tenant, "2")


async def uses(tenant: Tenant, cpu: str, within: float = 20) -> None:
    """Wait until so much is used, and nothing is promised."""
    last: list[object] = []

    async def does() -> bool:
        status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        last[:] = [status.used, status.reservations]
        return not status.reservations and (status.used or {}).get("limits.cpu") == cpu

    await eventually(does, within, lambda: last)


async def end(tenant: Tenant, pods: list[Object], phase: str) -> None:
    """Have pods end in this phase."""
    for each in pods:
        status = {"metadata": {"uid": each["metadata"]["uid"]}, "status": {"phase": phase}}
        await tenant.admin.patch(PODS, each["metadata"]["name"], status, namespace=tenant.name, subresource="status")


async def test_an_index_that_failed_for_good_costs_nothing(cluster: Cluster, empty: Tenant) -> None:
    if not cluster.is_real:
        pytest.skip("the sandbox's Jobs have no indexes")
    made = briefly(of_kind(JOBS, web(empty, 4)))
    made["spec"] |= {"completions": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0}
    await empty.create(JOBS, made)
    pods = await empty.running(4)
    await uses(empty, "4")
    await end(empty, pods[:2], "Failed")
    await end(empty, pods[2:3], "Succeeded")
    await uses(empty, "1")


@pytest.mark.parametrize("how", ["deadline", "success policy"])
async def test_a_job_that_makes_no_more_pods_is_charged_for_those_that_end(
    tenant: Tenant, cluster: Cluster, how: str
) -> None:
    """Its status says what it will be once all of its pods have ended."""
    if not cluster.is_real:
        pytest.skip("the sandbox's Jobs end at once")
    made = of_kind(JOBS, web(tenant, 4, slow=True))
    if how == "deadline":
        made["spec"]["activeDeadlineSeconds"] = 5
    else:
        rules = [{"succeededCount": 1}]
        made["spec"] |= {"completionMode": "Indexed", "completions": 4, "successPolicy": {"rules": rules}}
    await tenant.create(JOBS, made)
    pods = await tenant.running(4)
    if how == "success policy":
        done = {"status": {"phase": "Succeeded"}}
        name = pods[0]["metadata"]["name"]
        await tenant.admin.patch(PODS, name, done, namespace=tenant.name, subresource="status")

    async def ends() -> bool:
        found = await tenant.pods()
        return bool(found) and all("deletionTimestamp" in each["metadata"] for each in found)

    await eventually(ends, 30, "the other pods end")
    await uses(tenant, "4" if how == "deadline" else "3")


@pytest.mark.parametrize("ends", ["before", "after"])
async def test_pods_that_have_ended_are_not_left(empty: Tenant, ends: str) -> None:
    """They stay for as long as nobody deletes them, and nobody is charged for them."""
    made = briefly(of_kind(JOBS, web(empty, 4)))
    made["spec"]["completions"] = 4
    await empty.create(JOBS, made)
    pods = await empty.running(4)
    if ends == "before":
        await end(empty, pods, "Succeeded")
        await uses(empty, "0")
    await empty.delete(JOBS, "web", "Orphan")
    await eventually(lambda: is_gone(empty, JOBS, "web"), 30, "the Job is gone")
    if ends == "after":
        await eventually(lambda: says_left(empty), 30, "the pods are left")
        await end(empty, pods, "Succeeded")
        await uses(empty, "0")
    await asyncio.sleep(1)

    async def is_free() -> bool:
        return not await says_left(empty)

    await eventually(is_free, 10, "nothing is left")
    assert len((await empty.admin.list(PODS, empty.name))[0]) == 4
    await empty.admin.request("DELETE", GROUPS.path(name=empty.name), params={"dryRun": "All"})


async def says_left(tenant: Tenant) -> bool:
    status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
    return bool(status.leftovers) or "Leftovers" in await tenant.conditions()
