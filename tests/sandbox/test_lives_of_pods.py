"""What decides how many pods run at once: rolling updates, graceful deletion, adoption, eviction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox.kubelet import STOP_SECONDS
from sandbox.rollouts import Bounds, Size, bounds, first_size, rolled, scaled
from sandbox.server import Sandbox
from tests.support.sandbox_client import DEPLOYMENTS, PODS, Client, deployment, eventually

REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"
STATEFULSETS = "/apis/apps/v1/namespaces/default/statefulsets"


async def pods(kube: Client) -> list[dict[str, Any]]:
    return (await kube.get(PODS))["items"]


async def has(kube: Client, count: int) -> bool:
    found = await pods(kube)
    return len(found) == count and all(pod["status"].get("phase") == "Running" for pod in found)


async def named_new(kube: Client, old: str) -> bool:
    found = [pod["metadata"]["name"] for pod in await pods(kube)]
    return len(found) == 1 and found != [old]


def slow(name: str, replicas: int, **strategy: Any) -> dict[str, Any]:
    """Pods that take an hour to stop."""
    made = deployment(name, replicas=replicas)
    template = made["spec"]["template"]
    template["metadata"] = {**template["metadata"], "annotations": {STOP_SECONDS: "3600"}}
    template["spec"]["terminationGracePeriodSeconds"] = 7200
    if strategy:
        made["spec"]["strategy"] = strategy
    return made


@pytest.mark.parametrize(
    ("limits", "new", "old", "after"),
    [
        (Bounds(4, 1, 1), Size(0), [Size(4, 4)], (1, [4])),
        (Bounds(4, 1, 1), Size(1, 0), [Size(4, 4)], (1, [3])),
        (Bounds(4, 1, 1), Size(1, 1), [Size(3, 3)], (2, [3])),
        (Bounds(4, 1, 0), Size(1, 0), [Size(4, 4)], (1, [4])),
        (Bounds(4, 1, 0), Size(4, 4), [Size(1, 1)], (4, [0])),
        (Bounds(4, 1, 1), Size(6, 6), [], (4, [])),
    ],
)
def test_a_rolling_update_keeps_its_bounds(
    limits: Bounds, new: Size, old: list[Size], after: tuple[int, list[int]]
) -> None:
    assert rolled(limits, new, old) == after


def test_the_first_pods_of_a_version_fit_beside_the_old_ones() -> None:
    assert first_size(Bounds(4, 1, 1), []) == 4
    assert first_size(Bounds(4, 1, 1), [Size(4, 4)]) == 1
    assert bounds({"replicas": 4}) == Bounds(4, 1, 1)
    assert bounds({"replicas": 0}).most == 0


def test_a_paused_rollout_that_is_scaled_takes_the_whole_surge() -> None:
    both = [Size(1, 1, 1, 201), Size(1, 1, 1, 201)]
    assert sum(scaled(Bounds(2, 200, 0), both, 1, 2)) == 202
    assert scaled(Bounds(3, 1, 0), [Size(2, 2, 2, 3)], 0, 2) == [3]


async def test_a_pod_that_is_slow_to_stop_is_there_until_its_time_has_come(cluster: Sandbox, kube: Client) -> None:
    await kube.create(DEPLOYMENTS, slow("web", 1))
    await eventually(lambda: has(kube, 1))
    [pod] = await pods(kube)
    await kube.ok("DELETE", f"{PODS}/{pod['metadata']['name']}")
    await eventually(lambda: has(kube, 2))
    marked = (await kube.get(f"{PODS}/{pod['metadata']['name']}"))["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 7200
    cluster.clock.advance(3601)
    await eventually(lambda: has(kube, 1))


async def test_an_evicted_pod_is_deleted_with_its_grace(kube: Client) -> None:
    await kube.create(DEPLOYMENTS, slow("web", 1))
    await eventually(lambda: has(kube, 1))
    name = (await pods(kube))[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await kube.ok("POST", f"{PODS}/{name}/eviction", {**eviction, "deleteOptions": {"gracePeriodSeconds": 0}})
    await eventually(lambda: named_new(kube, name))


async def test_a_relabelled_pod_is_released_and_taken_back(kube: Client) -> None:
    await kube.create(DEPLOYMENTS, deployment("web", replicas=1))
    await eventually(lambda: has(kube, 1))
    [pod] = await pods(kube)
    path = f"{PODS}/{pod['metadata']['name']}"
    labels = pod["metadata"]["labels"]
    await kube.merge(path, {"metadata": {"labels": dict.fromkeys(labels)}})
    await eventually(lambda: has(kube, 2))
    assert "ownerReferences" not in (await kube.get(path))["metadata"]
    await kube.merge(path, {"metadata": {"labels": labels}})
    await eventually(lambda: has(kube, 1))


async def test_a_new_deployment_adopts_what_an_old_one_left(kube: Client) -> None:
    made = deployment("web", replicas=2)
    await kube.create(DEPLOYMENTS, made)
    await eventually(lambda: has(kube, 2))
    before = {pod["metadata"]["uid"] for pod in await pods(kube)}
    await kube.ok("DELETE", f"{DEPLOYMENTS}/web", {"propagationPolicy": "Orphan"})

    async def gone() -> bool:
        return not (await kube.get(DEPLOYMENTS))["items"]

    await eventually(gone)
    stored = await kube.create(DEPLOYMENTS, made)

    async def adopted() -> bool:
        owners = (await kube.get(REPLICASETS))["items"][0]["metadata"].get("ownerReferences") or [{}]
        return owners[0].get("uid") == stored["metadata"]["uid"]

    await eventually(adopted)
    assert {pod["metadata"]["uid"] for pod in await pods(kube)} == before


async def test_recreate_waits_until_the_old_pods_are_gone(cluster: Sandbox, kube: Client) -> None:
    await kube.create(DEPLOYMENTS, slow("web", 2, type="Recreate"))
    await eventually(lambda: has(kube, 2))
    images = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "y"}]}}}}
    await kube.merge(f"{DEPLOYMENTS}/web", images)

    async def ending() -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in await pods(kube))

    await eventually(ending)
    await asyncio.sleep(0.2)
    assert len(await pods(kube)) == 2
    cluster.clock.advance(3601)

    async def replaced() -> bool:
        return [pod["spec"]["containers"][0]["image"] for pod in await pods(kube)] == ["y", "y"]

    await eventually(replaced)
