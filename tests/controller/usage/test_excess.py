"""The excess below workloads, on a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import KubeClient, Unreachable
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.settings import Settings, settings
from bizrq.units.quantity import NANO
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import NO_EXCESS, Excess, ExcessUsage
from controller.usage.workload_cost import WorkloadCosts
from controller.watch.cluster import Cluster
from controller.watch.informers import POD
from controller.watch.pods import SharedParts, trimmed_pod
from tests.support.objects import Object, deployment, raycluster, rayjob, rayservice, template, tfjob


class Memory:
    """A cluster in memory with the objects that a test stores."""

    def __init__(self, knobs: Object | None = None) -> None:
        self.settings: Settings = settings(knobs)
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, self.settings.registry, lambda _group, _after: None)
        self.surplus = ExcessUsage(self.cluster, self.settings.counting)
        self.revision = 0

    def put(self, obj: Object, owner: Object | None = None, **metadata: Any) -> Object:
        """Store an object that `owner` controls. Its uid is its name."""
        self.revision += 1
        name = obj["metadata"]["name"]
        known = {"namespace": "default", "uid": name, "resourceVersion": str(self.revision)}
        references = {"ownerReferences": [reference(owner)]} if owner is not None else {}
        stored = {**obj, "metadata": {**known, **obj["metadata"], **references, **metadata}}
        kept = trimmed_pod(stored, SharedParts()) if stored["kind"] == "Pod" else stored
        self.cluster.informers.workloads[self.adapter(stored).resource].store.put(kept)
        return stored

    def adapter(self, obj: Object) -> Adapter:
        adapter = self.settings.registry.of(obj)
        assert adapter is not None
        return adapter

    def found(self, workload: Object) -> Excess:
        """Return the excess below the workload."""
        adapter, lookup = self.adapter(workload), self.cluster.resolver.cached_lookup
        charged = counting.own_demand(workload, adapter, lookup, self.settings.counting).resources
        return self.surplus.of(adapter, workload, charged, lookup)

    def costs(self) -> WorkloadCosts:
        claims = ClaimPayers(self.cluster.informers)
        return WorkloadCosts(self.cluster, self.surplus, claims, self.settings.counting, lambda: 0.0)

    def more(self, workload: Object) -> dict[str, int]:
        """Return the cores and pods of the excess."""
        found = self.found(workload).resources
        return {name.rpartition(".")[2]: found[name] // NANO for name in ("limits.cpu", "pods") if name in found}


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


GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
HELD = {"containerStatuses": [{"name": "c", "resources": {"limits": {"cpu": "4"}}}]}


@pytest.mark.parametrize(
    ("case", "pods", "more"),
    [
        ("as many as it asks for", [pod("a"), pod("b")], {}),
        ("fewer", [pod("a")], {}),
        ("one more", [pod("a"), pod("b"), pod("c")], {"cpu": 1, "pods": 1}),
        ("a larger one in the place of two", [pod("a", "3")], {"cpu": 1}),
        ("one that has ended", [pod("a"), pod("b"), pod("c", phase="Succeeded")], {}),
        ("one that was resized in place and holds what it had", [pod("a", "1", **HELD)], {"cpu": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pods_together_may_ask_for_what_their_owner_does(
    memory: Memory, case: str, pods: list[Object], more: Object
) -> None:
    job = job_with(memory, *pods)
    assert memory.more(job) == more
    assert memory.found(job).at_once is bool(more)


def test_one_that_goes_is_another_ones_room(memory: Memory) -> None:
    job = job_with(memory, pod("a"), pod("b"))
    memory.put(pod("old"), job, **GOING)
    assert memory.found(job) == NO_EXCESS


def test_each_level_is_compared_with_its_own_owner(memory: Memory) -> None:
    """A ReplicaSet larger than its Deployment, and pods larger than the ReplicaSet, both count once."""
    web = memory.put(deployment("web", "nlp", 2))
    below = memory.put(replica_set("web-1", 3), web)
    assert memory.more(web) == {"cpu": 1, "pods": 1}
    for name in "abcd":
        memory.put(pod(name), below)
    assert memory.more(web) == {"cpu": 2, "pods": 2}
    assert "replicasets.apps/default/web-1" in memory.found(web).finding
    assert memory.found(web).kinds >= {("apps", "Deployment"), ("apps", "ReplicaSet")}


def test_what_its_children_do_not_ask_for_is_room_for_what_is_below_them(memory: Memory) -> None:
    """A Deployment is back at seven, its ReplicaSet still at five, and no pod is gone yet: seven are held."""
    web = memory.put(deployment("web", "nlp", 7))
    below = memory.put(replica_set("web-1", 5), web)
    for name in "abcdefg":
        memory.put(pod(name), below)
    assert memory.found(web).resources == {}
    memory.put(pod("forged"), below)
    assert memory.more(web) == {"cpu": 1, "pods": 1}
    assert memory.found(web).at_once
    memory.put(replica_set("web-2", 1), web)
    assert memory.more(web) == {"cpu": 2, "pods": 2}


def test_pods_of_whom_nobody_has_taken_note_of_a_smaller_number_are_not_believed_at_once(memory: Memory) -> None:
    """The ReplicaSet was scaled down; by its status, its controller has not deleted any pod yet."""
    web = memory.put(deployment("web", "nlp", 2))
    below = memory.put({**replica_set("web-1", 2), "status": {"observedGeneration": 1}}, web, generation=2)
    for name in "abcd":
        memory.put(pod(name), below)
    assert memory.more(web) == {"cpu": 2, "pods": 2}
    assert not memory.found(web).at_once
    memory.put({**below, "status": {"observedGeneration": 2, "replicas": 4}})
    assert not memory.found(web).at_once
    memory.put({**below, "status": {"observedGeneration": 2, "replicas": 2}})
    assert memory.found(web).at_once
    assert POD in memory.found(web).kinds


def test_of_several_versions_the_surge_is_nobodys_surplus_and_more_is_not_believed_at_once(memory: Memory) -> None:
    """A Deployment of four may have a fifth pod during a rolling update: a lag of its own controller."""
    web = memory.put(deployment("web", "nlp", 4))
    memory.put(replica_set("web-1", 2), web)
    memory.put(replica_set("web-2", 3), web)
    assert memory.found(web) == NO_EXCESS
    memory.put(replica_set("web-2", 4), web)
    assert memory.more(web) == {"cpu": 1, "pods": 1}
    assert not memory.found(web).at_once


def test_what_a_child_may_grow_to_is_the_charge_already_and_a_second_one_is_more(memory: Memory) -> None:
    job = memory.put(rayjob("train", "nlp", 2))
    child = raycluster("train-abc", 5, job)
    memory.put(child)
    adapter = memory.settings.registry.of(job)
    assert adapter is not None
    lookup = memory.cluster.resolver.cached_lookup
    kind = memory.settings.registry.of(child)
    assert kind is not None
    own, grown = (
        counting.own_demand(o, a, lookup, memory.settings.counting) for o, a in ((job, adapter), (child, kind))
    )
    charged = counting.with_children(own, [grown], adapter, memory.settings.counting).resources
    assert memory.surplus.of(adapter, job, charged, lookup) == NO_EXCESS
    memory.put(raycluster("forged", 1, job))
    more = memory.surplus.of(adapter, job, charged, lookup)
    assert more.resources["limits.cpu"] // NANO == 1
    assert more.at_once


def test_while_a_service_is_upgraded_it_has_two_clusters(memory: Memory) -> None:
    service = memory.put(rayservice("serve", "nlp", 2))
    for name in ("a", "b"):
        memory.put(raycluster(name, 2, service))
    assert memory.found(service) == NO_EXCESS


def test_what_has_ended_and_what_does_not_pay_has_no_surplus(memory: Memory) -> None:
    job = job_with(memory, pod("a", "9"))
    ended = {**job, "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
    assert memory.found(ended) == NO_EXCESS
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c", "labels": {}}, "spec": {}}
    assert memory.found(memory.put(cron)) == NO_EXCESS


def test_a_child_that_cannot_be_counted_adds_nothing(memory: Memory) -> None:
    web = memory.put(deployment("web", "nlp", 1))
    broken = replica_set("web-1", 1)
    broken["spec"]["replicas"] = -5
    memory.put(broken, web)
    assert memory.found(web) == NO_EXCESS


def test_a_pod_passes_on_what_it_owns_for_whoever_is_above_it(memory: Memory) -> None:
    """The leader of a LeaderWorkerSet owns its workers' StatefulSet: both count against the set of groups."""
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}}
    metadata = {"name": "lws", "labels": {LABEL: "nlp"}}
    lws = memory.put({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata,
                      "spec": spec})  # fmt: skip
    leaders = memory.put({**replica_set("lws", 1), "kind": "StatefulSet"}, lws, uid="leaders")
    leader = memory.put(pod("lws-0"), leaders)
    workers = memory.put({**replica_set("lws-0", 2), "kind": "StatefulSet"}, leader, uid="workers")
    for name in ("w1", "w2"):
        memory.put(pod(name), workers)
    assert memory.found(lws) == NO_EXCESS
    memory.put(pod("w3"), workers)
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
    counted = memory.surplus._cost
    memory.surplus._cost = lambda *which: asked.append(which) or counted(*which)  # type: ignore[method-assign]
    assert memory.more(job) == {"cpu": 1, "pods": 1}
    assert len(asked) == 1


async def test_what_was_promised_a_moment_ago_may_hang_below_what_asks_for_less_by_now(memory: Memory) -> None:
    """Between two counts a Deployment went from four to seven and back, and its pods are not deleted yet."""
    web = memory.put(deployment("web", "nlp", 4))
    below = memory.put(replica_set("web-1", 4), web)
    for name in "abcdefg":
        memory.put(pod(name), below)
    memory.cluster.workload_changed(None, web)
    slot = Slot("deployments.apps", "default", "web")
    seven = counting.own_demand(
        deployment("web", "nlp", 7),
        memory.adapter(web),
        memory.cluster.resolver.cached_lookup,
        memory.settings.counting,
    ).resources

    costs = memory.costs()
    await costs.count("nlp", memory.adapter(web), web, {slot: seven})
    assert costs.of("web").excess == {}
    # Without a reservation the excess is believed at once, after asking the API server: there is none here.
    async with memory.cluster.client:
        with pytest.raises(Unreachable):
            await memory.costs().count("nlp", memory.adapter(web), web, {})
