"""The oracle of live pods sees what runs without being charged, and nothing else."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from sandbox.clock import rfc3339
from sandbox.server import Sandbox
from tests.support.cluster import has_kinds
from tests.support.live_pods import LivePods, cost, is_live, own_grace
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object, group, template

POD = {"apiVersion": "v1", "kind": "Pod"}
NOW = 1_700_000_000
_uids = itertools.count()


def pod(cpu: str = "1", *, phase: str = "Running", node: str = "n1", age: int = 60, **metadata: Any) -> Object:
    uid = f"u{next(_uids)}"
    made = {"name": uid, "uid": uid, "namespace": "ns", "creationTimestamp": at(NOW - age), **metadata}
    spec = {**template(cpu)["spec"], "nodeName": node, "terminationGracePeriodSeconds": 100}
    return {"metadata": made, "spec": spec, "status": {"phase": phase}}


def at(seconds: int) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def ending(grace: int, at_most: int) -> Object:
    """A pod whose deletion, with this grace, is over so many seconds from now."""
    return {"deletionTimestamp": at(NOW + at_most), "deletionGracePeriodSeconds": grace}


@pytest.mark.parametrize(
    ("found", "lives"),
    [
        (pod(), True),
        (pod(phase="Pending", node=""), True),
        (pod(phase="Succeeded"), False),
        (pod(phase="Failed"), False),
        (pod(**ending(30, 10)), True),
        (pod(**ending(30, -29)), True),
        (pod(**ending(30, -31)), False),
        (pod(node="", **ending(30, 10)), False),
        (pod(**ending(0, -99)), True),
        (pod(**ending(0, -101)), False),
    ],
    ids=["runs", "waits", "succeeded", "failed", "ends", "late", "lost", "no node", "forced", "forced and over"],
)
def test_a_pod_is_live_by_its_phase_its_node_and_its_times(found: Object, lives: bool) -> None:
    assert is_live(found, NOW) is lives


def test_a_pod_costs_its_containers_or_its_largest_first_one() -> None:
    found = pod("500m")
    assert cost(found) == 500
    container = found["spec"]["containers"][0]
    found["spec"]["containers"] = [container, {**container, "name": "d"}]
    assert cost(found) == 1000
    found["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"cpu": "3"}}}]
    assert cost(found) == 3000
    found["status"]["containerStatuses"] = [{"name": "c", "resources": {"limits": {"cpu": "4"}}}]
    assert cost(found) == 4500
    assert own_grace({"spec": {}}) == 30
    assert own_grace({"spec": {"terminationGracePeriodSeconds": -1}}) == 1


@pytest.fixture
def live() -> LivePods:
    """The oracle of a group of four cores that has used two, without a cluster."""
    found = LivePods(client=None, group="g", namespaces={"ns"}, now=lambda: NOW)  # type: ignore[arg-type]
    published = {**group("g", cpu="4"), "status": {"used": {"limits.cpu": "2"}}}
    found._take(GROUPS, "ADDED", {**published, "metadata": {"name": "g", "uid": "g"}})
    return found


def owned(obj: Object, uid: str) -> Object:
    obj["metadata"]["ownerReferences"] = [{"kind": "X", "name": uid, "uid": uid, "controller": True}]
    return obj


def test_what_runs_beyond_used_is_hidden_and_beyond_hard_is_over(live: LivePods) -> None:
    for count in range(1, 6):
        live._take(PODS, "ADDED", pod())
        found = live.sample()
        assert found is not None
        assert (found.hidden, found.over) == (1000 * (count - 2), 1000 * (count - 4))
    live._take(PODS, "ADDED", pod(namespace="another"))
    assert live.worst is not None
    assert live.worst.over == 1000


def test_a_bound_pod_that_is_gone_without_a_phase_stays_for_its_grace(live: LivePods) -> None:
    for found in (pod(), pod(phase="Succeeded"), pod(node="")):
        live._take(PODS, "ADDED", found)
        live._take(PODS, "DELETED", found)
    assert sum(map(cost, live.live())) == 1000
    live.now = lambda: NOW + 99
    assert len(live.live()) == 1
    live.now = lambda: NOW + 101
    assert not live.live()


def test_a_pod_that_is_over_is_not_live_again_by_another_deletion(live: LivePods) -> None:
    found = pod(**ending(1, -5))
    live._take(PODS, "ADDED", found)
    forced = {**found, "metadata": {**found["metadata"], **ending(0, 0)}}
    for what in ("MODIFIED", "DELETED"):
        live._take(PODS, what, forced)
        assert not live.live()


def rollout(live: LivePods, declared: int, old: int, new: int, *, age: int = 60) -> int:
    live._take(DEPLOYMENTS, "ADDED", owner("d", "", replicas=declared, template=template("1")))
    for uid, count in (("r1", old), ("r2", new)):
        live._take(REPLICASETS, "ADDED", owner(uid, "d"))
        for _ in range(count):
            live._take(PODS, "ADDED", owned(pod(age=age), uid))
    return live.free(live.live())


def owner(uid: str, of: str, **spec: Any) -> Object:
    made: Object = {"metadata": {"name": uid, "uid": uid, "namespace": "ns"}, "spec": spec}
    return owned(made, of) if of else made


@pytest.mark.parametrize(
    ("declared", "old", "new", "age", "free"),
    [(3, 3, 1, 60, 1), (3, 3, 0, 60, 0), (3, 5, 0, 60, 0), (2, 30, 30, 60, 2), (3, 3, 1, 601, 0), (0, 1, 1, 60, 0)],
    ids=["one more", "one version", "a surplus", "as many as declared", "too old", "none declared"],
)
def test_the_overlap_of_a_rollout_is_free_within_bounds(
    live: LivePods, declared: int, old: int, new: int, age: int, free: int
) -> None:
    assert rollout(live, declared, old, new, age=age) == free * 1000


def test_pods_of_an_owner_that_is_not_there_are_not_free(live: LivePods) -> None:
    rollout(live, 3, 3, 1)
    live._take(DEPLOYMENTS, "DELETED", owner("d", "", replicas=3, template=template("1")))
    assert live.free(live.live()) == 0


async def test_what_nobody_charges_is_found_on_a_cluster(tmp_path: Path) -> None:
    """Without bizrq nothing is counted: the oracle says how much, and which pods."""
    async with Sandbox() as box, KubeClient.from_kubeconfig(box.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        await has_kinds(client, crds.load())
        await client.create(GROUPS, group("g", cpu="2"))
        body = {"status": {"used": {"limits.cpu": "1"}}}
        await client.patch(GROUPS, "g", body, subresource="status")
        async with LivePods(client, "g", {"default"}, lambda: box.clock.now().timestamp()) as live:
            metadata = {"name": "p", "namespace": "default"}
            await client.create(PODS, {**POD, "metadata": metadata, "spec": template("1")["spec"]})
            await live.settled(within=1)
            await client.create(PODS, {**POD, "metadata": {**metadata, "name": "q"}, "spec": template("2")["spec"]})
            with pytest.raises(AssertionError, match="2 cores run uncounted, settled: live 3000m") as caught:
                await live.settled(within=1)
            assert "default/q 2000m fresh" in str(caught.value)
