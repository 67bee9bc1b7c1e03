"""Devices by claim on a real API server, with the claims that its own controllers make, and no device anywhere.

Scheduling is a binding, an allocation is a claim's status, and a node is an object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

import crds
from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.cli.standalone import Standalone, TargetCluster
from bizrq.kube.client import KubeClient
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import pages
from bizrq.units.quantity import NANO, parse
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from sandbox.clock import rfc3339
from tests.support.cluster import Real, eventually, has_kinds, refusal, sweep
from tests.support.objects import CLAIM_TEMPLATES as TEMPLATES
from tests.support.objects import (
    CLAIMS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    SLICES,
    Object,
    allocation,
    claim,
    claim_template,
    claiming,
    deployment,
    device_class,
    group,
    named,
    node,
    slice_of,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

KNOBS = {"gpuModels": {"A100": {"aliases": ["NVIDIA A100"]}, "T4": {"aliases": ["Tesla T4"]}}}
A100, T4, HOURS = "requests.nvidia.com/gpu.A100", "requests.nvidia.com/gpu.T4", "cash/requests.nvidia.com/gpu"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(real_cluster: Real) -> AsyncIterator[KubeClient]:
    """An administrator's client of a cluster with bizrq, a class of devices, a node and its slice."""
    async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as client:
        await has_kinds(client, [*crds.load(), *crds.stand_ins()])
        await sweep(client)
        around = [(DEVICE_CLASSES, device_class("gpu")), (NODES, node("n1")), (SLICES, slice_of("n1", a="Tesla T4"))]
        for resource, obj in around:
            await client.create(resource, obj)
        where = TargetCluster(real_cluster.kubeconfig, None, Path(real_cluster.kubeconfig))
        try:
            async with Standalone(settings(KNOBS), where, recount_interval=1.0, cash_interval=1.0):
                yield client
        finally:
            for resource, obj in around:
                await client.delete(resource, obj["metadata"]["name"])
            await sweep(client)


async def uses(client: KubeClient, name: str, **amounts: str) -> GroupObject:
    """The group once it uses this."""
    wanted, last = named(amounts), list[GroupObject]()

    async def as_wanted() -> bool:
        last[:] = [wire.from_dict(await client.get(GROUPS, name))]
        return all((last[0].status.used or {}).get(key) == amount for key, amount in wanted.items())

    await eventually(as_wanted, 60, lambda: last[0].status.used)
    return last[0]


async def pods_of(client: KubeClient, name: str, count: int) -> list[Object]:
    """The pods of a deployment, once there are so many, each with a claim that was made for it."""

    async def made() -> list[Object]:
        pods, _ = await client.list(PODS, "default")
        mine = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
        ready = [pod for pod in mine if (pod.get("status") or {}).get("resourceClaimStatuses")]
        return mine if len(mine) == len(ready) == count else []

    return await eventually(made, 60, f"{count} pods of {name} with their claims")


async def bind(client: KubeClient, pod: Object) -> None:
    name = pod["metadata"]["name"]
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    await client.request("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body=orjson.dumps(body))


async def allocate(
    client: KubeClient, name: str, users: list[Object], *devices: str, ago: timedelta, **kind: str
) -> None:
    """What a scheduler does: a finalizer, without which nothing is ever deallocated, then the devices.

    `kind` is of its users, pods unless it says otherwise.
    """
    finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    await client.patch(CLAIMS, name, finalizers, namespace="default")
    at = rfc3339((datetime.now(UTC) - ago).replace(microsecond=0))
    of = kind or {"resource": "pods"}
    reserved = [{**of, "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]} for user in users]
    status = {"status": {"allocation": allocation(*devices, at=at), "reservedFor": reserved}}
    await client.patch(CLAIMS, name, status, namespace="default", subresource="status")


async def remove(client: KubeClient, pods: list[Object]) -> None:
    """What a kubelet does with pods that are being deleted: they end, and go."""
    for name in [pod["metadata"]["name"] for pod in pods]:
        await eventually(lambda pod=name: _is_ending(client, pod), 60, f"{name} is being deleted")
        ended = {"status": {"phase": "Succeeded"}}
        await client.patch(PODS, name, ended, namespace="default", subresource="status")
        path = f"/api/v1/namespaces/default/pods/{name}"
        await client.request("DELETE", path, body=orjson.dumps({"gracePeriodSeconds": 0}))


async def _is_ending(client: KubeClient, name: str) -> bool:
    return "deletionTimestamp" in (await client.get(PODS, name, "default"))["metadata"]


async def is_gone(client: KubeClient, names: list[str]) -> None:
    async def gone() -> bool:
        return not {obj["metadata"]["name"] for obj in (await client.list(CLAIMS, "default"))[0]} & set(names)

    await eventually(gone, 60, f"{names} deallocated and deleted")


def hours(group: GroupObject) -> float:
    return parse((group.status.used or {})[HOURS]) / NANO


async def test_claims_of_a_template_are_admitted_counted_and_charged_until_they_are_freed(
    client: KubeClient, unique: str
) -> None:
    """Two devices for each of three pods: admitted as six, shown to be of another model, charged while allocated."""
    await client.create(GROUPS, group(unique, gpu="8", hours="100", **{A100: "8", T4: "8"}))
    await client.create(TEMPLATES, claim_template(unique, 2))
    web = claiming(deployment(unique, unique, 3), unique)
    web["metadata"]["labels"][MODEL_LABELS["gpu"]] = "A100"
    await uses(client, unique, gpu="0")
    await client.create(DEPLOYMENTS, web)
    await uses(client, unique, gpu="6", **{A100: "6", T4: "0"})
    error = await refusal(client.patch(DEPLOYMENTS, unique, {"spec": {"replicas": 5}}, namespace="default"))
    assert "requested: requests.nvidia.com/gpu=4" in error.message

    pods = await pods_of(client, unique, 3)
    names = [pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"] for pod in pods]
    for pod, name in zip(pods, names, strict=True):
        await bind(client, pod)
        await allocate(client, name, [pod], "a", "b", ago=timedelta(hours=1))
    # Of each claim one device is a T4, and of the other nobody tells.
    found = await uses(client, unique, gpu="6", **{A100: "6", T4: "3"})
    await eventually(lambda: _spent(client, unique, 6), 60, "two card-hours of each claim")
    [told] = [c for c in found.status.conditions if c.type == "ModelMismatch"]
    assert f"deployments.apps/default/{unique} declares A100, but 3 pods" in told.message

    await client.patch(DEPLOYMENTS, unique, {"spec": {"replicas": 0}}, namespace="default")
    # Pods are charged until they have ended.
    for pod in pods:
        await eventually(lambda p=pod: _is_ending(client, p["metadata"]["name"]), 60, "the pods are ending")
    before = (await uses(client, unique)).status.last_reconcile_time
    await eventually(lambda: _is_newer(client, unique, before), 60, "another recount")
    await uses(client, unique, gpu="6")
    await remove(client, pods)
    await is_gone(client, names)
    await uses(client, unique, gpu="0", **{A100: "0", T4: "0"})
    await eventually(lambda: _nothing_runs(client, unique), 60, "no running allocation")
    spent = hours(await uses(client, unique))
    assert 6 <= spent < 6.2
    before = (await uses(client, unique)).status.last_reconcile_time
    await eventually(lambda: _is_newer(client, unique, before), 60, "another recount")
    assert hours(await uses(client, unique)) == spent


async def _spent(client: KubeClient, name: str, whole: int) -> bool:
    """Whether so many hours are spent, and the moment that this took."""
    return whole <= hours(wire.from_dict(await client.get(GROUPS, name))) < whole + 0.2


async def _nothing_runs(client: KubeClient, name: str) -> bool:
    return not any(page.status.running for page in await pages(client, name))


async def _is_newer(client: KubeClient, name: str, than: str | None) -> bool:
    return wire.from_dict(await client.get(GROUPS, name)).status.last_reconcile_time != than


async def test_a_claim_that_pods_share_is_counted_and_charged_once(client: KubeClient, unique: str) -> None:
    """Four devices for three pods, for an hour."""
    await client.create(GROUPS, group(unique, gpu="8", hours="100"))
    await client.create(CLAIMS, claim(unique, 4))
    await uses(client, unique, gpu="0")
    web = deployment(unique, unique, 3)
    web["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": unique}]
    await client.create(DEPLOYMENTS, web)
    await uses(client, unique, gpu="4")
    pods = await _several(client, unique, 3)
    for pod in pods:
        await bind(client, pod)
    await allocate(client, unique, pods, *"abcd", ago=timedelta(hours=1))

    await eventually(lambda: _spent(client, unique, 4), 60, "four card-hours")

    # Another workload of the group has it for nothing, another group's may not have it, and it goes with the last.
    fits = deployment(f"{unique}-b", unique, 1)
    fits["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": unique}]
    await client.create(DEPLOYMENTS, fits)
    other = f"{unique}-other"
    await client.create(GROUPS, group(other, gpu="8"))
    await uses(client, other, gpu="0")
    foreign = deployment(other, other, 1)
    foreign["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": unique}]
    error = await refusal(client.create(DEPLOYMENTS, foreign))
    assert f"ResourceClaim '{unique}' is charged to group {unique}, not to {other}" in error.message
    label = {"metadata": {"labels": {LABEL: other}}}
    error = await refusal(client.patch(CLAIMS, unique, label, namespace="default"))
    assert f"is charged to group {other}, not to {unique}, but is named by Deployment default/{unique}" in error.message
    await client.delete(DEPLOYMENTS, unique, "default")
    await uses(client, unique, gpu="4")
    await client.delete(DEPLOYMENTS, f"{unique}-b", "default")
    await remove(client, pods)
    await uses(client, unique, gpu="0")


async def test_a_claim_that_names_a_group_is_charged_from_its_creation_to_its_deletion(
    client: KubeClient, unique: str
) -> None:
    await client.create(GROUPS, group(unique, gpu="4"))
    await uses(client, unique, gpu="0")
    mine = claim(unique, 4)
    mine["metadata"]["labels"] = {LABEL: unique}
    await client.create(CLAIMS, mine)
    await uses(client, unique, gpu="4")
    more = claim(f"{unique}-more", 1)
    more["metadata"]["labels"] = {LABEL: unique}
    assert "exceeded quota" in (await refusal(client.create(CLAIMS, more))).message
    assert f"resourceclaims.resource.k8s.io/default/{unique}" in (await refusal(client.delete(GROUPS, unique))).message
    await client.delete(CLAIMS, unique, "default")
    await uses(client, unique, gpu="0")
    await client.delete(GROUPS, unique)


async def _several(client: KubeClient, name: str, count: int) -> list[Any]:
    async def made() -> list[Object]:
        pods = [p for p in (await client.list(PODS, "default"))[0] if p["metadata"]["name"].startswith(f"{name}-")]
        return pods if len(pods) == count else []

    return await eventually(made, 60, f"{count} pods of {name}")
