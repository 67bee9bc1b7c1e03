"""The excess below workloads, on a cluster in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.informer import Informer
from bizrq.settings import Settings, settings
from bizrq.units.quantity import NANO
from bizrq.units.resources import add
from bizrq.units.times import parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import ExcessUsage
from controller.usage.workload_cost import WorkloadCost, WorkloadCosts
from controller.watch.cluster import Cluster
from controller.watch.pods import SharedParts, trimmed_pod
from tests.support.objects import Object, deployment, raycluster, rayjob, rayservice, template, tfjob


class Memory:
    """A cluster in memory with the objects that a test stores, and clocks that only the test moves."""

    def __init__(self, knobs: Object | None = None) -> None:
        self.settings: Settings = settings(knobs)
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.now = parse_timestamp("2026-01-01T12:00:00Z")
        self.seconds = 0.0
        self.cluster = Cluster(client, self.settings.registry, lambda _group, _after: None, now=lambda: self.now)
        self.surplus = ExcessUsage(self.cluster, self.settings.counting)
        config = self.settings.counting
        self.costs = WorkloadCosts(
            self.cluster,
            self.surplus,
            ClaimPayers(self.cluster.informers, lambda _group, _after: None),
            config,
            lambda: self.now,
            lambda: self.seconds,
        )
        self.revision = 0

    def put(self, obj: Object, owner: Object | None = None, **metadata: Any) -> Object:
        """Store an object that `owner` controls, with labels that its selector matches. Its uid is its name."""
        self.revision += 1
        matched = ((owner or {}).get("spec", {}).get("selector") or {}).get("matchLabels") or {}
        labels = {**matched, **(obj["metadata"].get("labels") or {})}
        name = obj["metadata"]["name"]
        known = {"namespace": "default", "uid": name, "resourceVersion": str(self.revision)}
        references = {"ownerReferences": [reference(owner)]} if owner is not None else {}
        stored = {**obj, "metadata": {**known, **obj["metadata"], "labels": labels, **references, **metadata}}
        kept = trimmed_pod(stored, SharedParts()) if stored["kind"] == "Pod" else stored
        self.cluster.informers.workloads[self.adapter(stored).resource].store.put(kept)
        return stored

    def drop(self, pod: Object) -> None:
        """Take a pod out of the API."""
        store = self.cluster.informers.pods.store
        kept = self.cluster.informers.pod(pod["metadata"]["uid"])
        assert kept is not None
        store.remove(kept)
        self.cluster.pod_changed(kept, None)

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
        self.seconds += seconds

    def adapter(self, obj: Object) -> Adapter:
        adapter = self.settings.registry.of(obj)
        assert adapter is not None
        return adapter

    def cost(self, workload: Object) -> WorkloadCost:
        """Count the workload."""
        asyncio.run(self.costs.count("nlp", self.adapter(workload), workload))
        return self.costs.of(workload["metadata"]["uid"])

    def charge(self, workload: Object) -> float:
        """Return the cores that the workload is charged."""
        found = self.cost(workload)
        return add(found.resources, found.excess).get("limits.cpu", 0) / NANO

    def more(self, workload: Object) -> dict[str, int]:
        """Return the cores and pods that the workload is charged beyond what it asks for."""
        found = self.cost(workload).excess
        return {name.rpartition(".")[2]: found[name] // NANO for name in ("limits.cpu", "pods") if name in found}

    def finding(self, workload: Object) -> str:
        """Return what is reported of the workload once its excess has lasted."""
        self.cost(workload)
        self.wait(5)
        return self.cost(workload).finding


def reference(owner: Object) -> Object:
    about = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    return {**about, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}


def pod(name: str, cpu: Any = "1", *, phase: str = "Running", **status: Any) -> Object:
    metadata = {"name": name, "labels": {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(cpu)["spec"],
            "status": {"phase": phase, **status}}  # fmt: skip


def replica_set(name: str, replicas: int, cpu: Any = "1") -> Object:
    made = deployment(name, None, replicas)
    made["spec"]["template"] = template(cpu)
    return {**made, "kind": "ReplicaSet"}


@pytest.fixture
def memory() -> Memory:
    return Memory()


def job_with(memory: Memory, *pods: Object, workers: int = 2) -> Object:
    job = memory.put(tfjob("train", "nlp", workers, gpu=0))
    for each in pods:
        memory.put(each, job)
    return job


HELD = {"containerStatuses": [{"name": "c", "resources": {"limits": {"cpu": "4"}}}]}


@pytest.mark.parametrize(
    ("case", "pods", "more"),
    [
        ("as many as it asks for", [pod("a"), pod("b")], {}),
        ("fewer", [pod("a")], {}),
        ("one more", [pod("a"), pod("b"), pod("c")], {"cpu": 1, "pods": 1}),
        ("a larger one, and one that is missing", [pod("a", "3")], {"cpu": 2}),
        ("one that has ended", [pod("a"), pod("b"), pod("c", phase="Succeeded")], {}),
        ("one that was resized in place and holds what it had", [pod("a", "1", **HELD), pod("b")], {"cpu": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pods_together_may_ask_for_what_their_owner_does(
    memory: Memory, case: str, pods: list[Object], more: Object
) -> None:
    job = job_with(memory, *pods)
    assert memory.more(job) == more
    assert bool(memory.finding(job)) is bool(more)


def test_an_excess_counts_at_once_and_is_reported_once_it_has_lasted(memory: Memory) -> None:
    """The watches of a workload and of its pods may differ for a moment."""
    job = job_with(memory, *map(pod, "abc"))
    found = memory.cost(job)
    assert (found.excess["pods"], found.finding) == (NANO, "")
    assert found.again == memory.now + 3000
    memory.wait(3)
    assert "tfjobs.kubeflow.org/default/train owns (latest: Pod" in memory.cost(job).finding


def test_the_watches_above_a_larger_excess_are_waited_for_at_the_same_time(memory: Memory) -> None:
    """Each has a moment to show who asks for it. Until the pods are counted nobody rejects what comes beside them."""
    web = memory.put(deployment("web", "nlp", 4))
    below = memory.put(replica_set("web-1", 4), web)
    watches = [memory.cluster.informers.workloads[memory.adapter(each).resource] for each in (web, below)]
    waiting, most = set[str](), 0

    async def catch_up(informer: Informer, *_: object, **__: object) -> bool:
        nonlocal most
        waiting.add(informer.resource.key)
        most = max(most, len(waiting))
        await asyncio.sleep(0)
        waiting.remove(informer.resource.key)
        return False

    for each in watches:
        each.installed = True
        each.catch_up = partial(catch_up, each)  # type: ignore[method-assign]
    for name in "abcde":
        memory.put(pod(name), below)
    assert memory.more(web) == {"cpu": 1, "pods": 1}
    assert most == len(watches)


def test_each_level_is_compared_with_its_own_owner(memory: Memory) -> None:
    """A ReplicaSet larger than its Deployment counts before it has pods, and with them once."""
    web = memory.put(deployment("web", "nlp", 2))
    below = memory.put(replica_set("web-1", 3), web)
    assert memory.more(web) == {"cpu": 1, "pods": 1}
    assert "deployments.apps/default/web owns (latest: ReplicaSet web-1)" in memory.finding(web)
    for name in "abcd":
        memory.put(pod(name), below)
    assert memory.more(web) == {"cpu": 2, "pods": 2}
    assert "deployments.apps/default/web owns (latest: Pod " in memory.finding(web)


def test_a_smaller_child_leaves_room_for_its_pods(memory: Memory) -> None:
    """A Deployment is back at seven, its ReplicaSet still at five, and no pod is gone yet: seven are held."""
    web = memory.put(deployment("web", "nlp", 7))
    below = memory.put(replica_set("web-1", 5), web)
    for name in "abcdefg":
        memory.put(pod(name), below)
    assert memory.more(web) == {}
    memory.put(pod("forged"), below)
    assert memory.more(web) == {"cpu": 1, "pods": 1}


def test_the_surge_of_several_versions_is_no_excess_and_more_is(memory: Memory) -> None:
    """A Deployment of four may have a fifth pod during a rolling update."""
    web = memory.put(deployment("web", "nlp", 4))
    memory.put(replica_set("web-1", 2), web)
    memory.put(replica_set("web-2", 3), web)
    assert memory.more(web) == {}
    memory.put(replica_set("web-2", 4), web)
    assert memory.more(web) == {"cpu": 1, "pods": 1}


def test_what_a_child_may_grow_to_is_the_charge_already_and_a_second_one_is_more(memory: Memory) -> None:
    job = memory.put(rayjob("train", "nlp", 2))
    memory.put(raycluster("train-abc", 5, job))
    assert memory.cost(job).resources["pods"] == 7 * NANO
    assert memory.more(job) == {}
    memory.put(raycluster("forged", 1, job))
    assert memory.more(job)["cpu"] == 1


def test_while_a_service_is_upgraded_it_has_two_clusters(memory: Memory) -> None:
    service = memory.put(rayservice("serve", "nlp", 2))
    for name in ("a", "b"):
        memory.put(raycluster(name, 2, service))
    assert memory.more(service) == {}


def test_what_does_not_pay_has_no_excess(memory: Memory) -> None:
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c", "labels": {}}, "spec": {
        "jobTemplate": {"spec": {"template": template()}}}}  # fmt: skip
    assert memory.more(memory.put(cron)) == {}


def test_what_has_ended_is_charged_for_its_live_pods(memory: Memory) -> None:
    job = job_with(memory, pod("a", "9"), pod("b", phase="Failed"))
    ended = memory.put({**job, "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    assert memory.charge(ended) == 9
    memory.put(pod("a", "9", phase="Succeeded"), job)
    assert memory.charge(ended) == 0


def test_a_child_that_cannot_be_counted_adds_nothing(memory: Memory) -> None:
    web = memory.put(deployment("web", "nlp", 1))
    broken = replica_set("web-1", 1)
    broken["spec"]["replicas"] = -5
    memory.put(broken, web)
    assert memory.more(web) == {}


def test_a_pod_passes_on_what_it_owns_for_whoever_is_above_it(memory: Memory) -> None:
    """The leader of a LeaderWorkerSet owns its workers' StatefulSet: both count against the set of groups."""
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
    metadata = {"name": "lws", "labels": {LABEL: "nlp"}}
    lws = memory.put({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata,
                      "spec": spec})  # fmt: skip
    leaders = memory.put({**replica_set("lws", 1), "kind": "StatefulSet"}, lws, uid="leaders")
    leader = memory.put(pod("lws-0"), leaders)
    workers = memory.put({**replica_set("lws-0", 2), "kind": "StatefulSet"}, leader, uid="workers")
    for name in ("lws-0-1", "lws-0-2"):
        memory.put(pod(name), workers)
    assert memory.more(lws) == {}
    memory.put(pod("lws-0-3"), workers)
    assert memory.more(lws) == {"cpu": 1, "pods": 1}


def test_a_hundred_thousand_pods_are_a_handful_of_sorts(memory: Memory) -> None:
    """Equal pods are counted once. Here with a thousand (`make bench`, B12, has all)."""
    job = job_with(memory, workers=1000)
    shapes, store = SharedParts(), memory.cluster.informers.pods.store
    for number in range(1001):
        each = pod(f"p{number}")
        each["metadata"] |= {"namespace": "default", "uid": f"u{number}", "resourceVersion": "1"}
        each["metadata"]["ownerReferences"] = [reference(job)]
        store.put(trimmed_pod(each, shapes))
    asked: list[object] = []
    counted = memory.surplus.cost
    memory.surplus.cost = lambda *which: asked.append(which) or counted(*which)  # type: ignore[method-assign]
    assert memory.more(job) == {"cpu": 1, "pods": 1}
    assert len(asked) == 1
