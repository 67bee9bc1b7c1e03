"""A listed maker of pods gets no new pod from Kubernetes' controllers; anybody else does, and an unlisted one again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bizrq.api import overlap
from bizrq.kube.client import AlreadyExists, KubeClient, NotFound
from controller.overlap import OverlapList
from tests.support.cluster import eventually
from tests.support.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    POLICIES,
    POLICY_BINDINGS,
    REPLICASETS,
    Object,
    deployment,
    template,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def listed(client: KubeClient, namespace: str) -> AsyncIterator[OverlapList]:
    """The list, kept in the namespace of the test and read by the policy."""
    found = OverlapList(client, namespace, pace=0.05)
    for resource, obj in ((POLICIES, overlap.policy()), (POLICY_BINDINGS, overlap.binding(namespace))):
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, obj)
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for resource in (POLICY_BINDINGS, POLICIES):
        with contextlib.suppress(NotFound):
            await client.delete(resource, overlap.NAME)


def replicaset(name: str, namespace: str, replicas: int) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {**template(0), "metadata": {"labels": labels}},
        },
    }


async def pods_of(client: KubeClient, namespace: str, uid: str) -> list[Object]:
    found = (await client.list(PODS, namespace))[0]
    return [pod for pod in found if uid in {o["uid"] for o in pod["metadata"].get("ownerReferences") or ()}]


async def stored(client: KubeClient, namespace: str) -> dict[str, str]:
    try:
        return (await client.get(CONFIG_MAPS, overlap.NAME, namespace)).get("data") or {}
    except NotFound:
        return {}


async def test_a_listed_replicaset_gets_no_pod_until_it_is_listed_no_longer(
    listed: OverlapList, client: KubeClient, namespace: str
) -> None:
    made = await client.create(REPLICASETS, replicaset("web", namespace, 0))
    uid = made["metadata"]["uid"]
    listed.set("nlp", {uid: "exceeded quota: nlp"})

    async def is_stored() -> bool:
        return await stored(client, namespace) == {uid: "exceeded quota: nlp"}

    await eventually(is_stored, 30, "the list is stored")
    probe = pod_of(made, namespace)

    async def is_rejected() -> bool:
        """Kubernetes' own account asks for a pod of the ReplicaSet until the policy is seen to apply."""
        await client.patch(REPLICASETS, "web", {"spec": {"replicas": 1}}, namespace=namespace)
        conditions = (await client.get(REPLICASETS, "web", namespace)).get("status", {}).get("conditions") or ()
        return any("exceeded quota: nlp" in str(c.get("message")) for c in conditions)

    await eventually(is_rejected, 60, "the controller's pod is rejected")
    # A person's pod is decided by the webhooks.
    await client.create(PODS, probe, dry_run=True)
    assert not await pods_of(client, namespace, uid)

    other = await client.create(REPLICASETS, replicaset("other", namespace, 1))

    async def other_runs() -> bool:
        return bool(await pods_of(client, namespace, other["metadata"]["uid"]))

    await eventually(other_runs, 60, "a ReplicaSet that is not listed gets its pod")
    listed.set("nlp", {})

    async def runs() -> bool:
        # A controller that was rejected often waits long, unless it sees a change.
        poke = {"metadata": {"annotations": {"poked": str(time.monotonic())}}}
        await client.patch(REPLICASETS, "web", poke, namespace=namespace)
        return bool(await pods_of(client, namespace, uid))

    await eventually(runs, 60, "the pod comes once the ReplicaSet is listed no longer")


async def test_a_new_version_of_a_listed_deployment_gets_no_pod(
    listed: OverlapList, client: KubeClient, namespace: str
) -> None:
    """Its ReplicaSet is not listed itself. One that is only called alike is another's."""
    key = overlap.version_key(namespace, "web")
    assert key is not None
    listed.set("nlp", {key: "exceeded quota: nlp"})

    async def is_stored() -> bool:
        return await stored(client, namespace) == {key: "exceeded quota: nlp"}

    await eventually(is_stored, 30, "the list is stored")
    await client.create(DEPLOYMENTS, deployment("web", None, 1, namespace=namespace))

    async def is_rejected() -> bool:
        """As soon as the policy is seen to apply: until then pods pass, and are deleted."""
        found = (await client.list(REPLICASETS, namespace))[0]
        for each in (await client.list(PODS, namespace))[0]:
            with contextlib.suppress(NotFound):
                await client.delete(PODS, each["metadata"]["name"], namespace)
        conditions = [c for each in found for c in (each.get("status") or {}).get("conditions") or ()]
        return any("exceeded quota: nlp" in str(each.get("message")) for each in conditions)

    await eventually(is_rejected, 60, "the pod of the new ReplicaSet is rejected")
    alike = await client.create(REPLICASETS, replicaset("web-alike", namespace, 1))

    async def runs() -> bool:
        return bool(await pods_of(client, namespace, alike["metadata"]["uid"]))

    await eventually(runs, 60, "a ReplicaSet that is called alike gets its pod")


def pod_of(owner: Object, namespace: str) -> Object:
    metadata = owner["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "by-hand",
            "namespace": namespace,
            "labels": {"app": metadata["name"]},
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": template(0)["spec"],
    }


async def test_what_an_earlier_leader_listed_is_replaced(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIG_MAPS, overlap.config_map(namespace, {"old": "exceeded quota: gone"}))
    found = OverlapList(client, namespace, pace=0.05)
    found.set("nlp", {"new": "exceeded quota: nlp"})
    task = asyncio.create_task(found.run())

    async def is_replaced() -> bool:
        return await stored(client, namespace) == {"new": "exceeded quota: nlp"}

    await eventually(is_replaced, 30, "the list is replaced")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
