"""Which groups are enqueued when an owner changes: also those of what it makes."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.settings import settings
from bizrq.workloads.labels import LABEL
from controller.watch.cluster import UNHURRIED, Cluster
from controller.watch.pods import SharedParts, trimmed_pod
from tests.controller.conftest import Books
from tests.controller.usage.test_excess import pod, reference, replica_set
from tests.support.objects import DEPLOYMENTS, Object, deployment

GROUPS_BELOW = {"nlp", "vision"}


class Watched:
    """A cluster in memory, and the groups that changes enqueue."""

    def __init__(self) -> None:
        self.registry = settings(None).registry
        self.enqueued: dict[str, float] = {}
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, self.registry, self.enqueue)
        self.cluster.dirty.start(())
        self.revision = 0

    def enqueue(self, group: str, after: float) -> None:
        self.enqueued[group] = min(after, self.enqueued.get(group, after))

    def put(self, obj: Object, owner: Object | None = None, group: str | None = None) -> Object:
        self.revision += 1
        name = obj["metadata"]["name"]
        metadata: Object = {"namespace": "default", "uid": name, "resourceVersion": str(self.revision), "name": name}
        metadata["labels"] = {LABEL: group} if group else {}
        if owner is not None:
            metadata["ownerReferences"] = [reference(owner)]
        stored = {**obj, "metadata": metadata}
        adapter = self.registry.of(stored)
        assert adapter is not None
        kept = trimmed_pod(stored, SharedParts()) if stored["kind"] == "Pod" else stored
        self.cluster.informers.workloads[adapter.resource].store.put(kept)
        return stored

    def changed(self, old: Object | None, new: Object | None) -> dict[str, float]:
        """Store the Deployment as it is now, and return the groups that this enqueues."""
        store = self.cluster.informers.workloads["deployments.apps"].store
        if new is not None:
            store.put(new)
        elif old is not None:
            store.remove(old)
        self.enqueued.clear()
        self.cluster.workload_changed(old, new)
        return dict(self.enqueued)


@pytest.fixture
def watched() -> Watched:
    """A Deployment of corp, whose ReplicaSets and pods name other groups."""
    watched = Watched()
    owner = watched.put(deployment("web", None), group="corp")
    below = watched.put(replica_set("web-1", 2), owner, "nlp")
    watched.put(replica_set("web-2", 2), owner)
    for number in range(3):
        watched.put(pod(f"web-1-{number}"), below, "vision")
    return watched


def owner(group: str | None, **more: Any) -> Object:
    made = deployment("web", group)
    return {**made, "metadata": {**made["metadata"], "uid": "web", "resourceVersion": "9", **more}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (owner(None), None),
        (None, owner("corp")),
        (owner("corp"), owner(None)),
        (owner(None), owner("corp")),
        (owner("nosuch"), owner(None)),
        (owner("corp"), owner("corp", uid="web", ownerReferences=[{"uid": "x"}])),
    ],
)
async def test_an_owner_that_comes_goes_or_is_relabelled_enqueues_the_groups_below_it(
    watched: Watched, old: Object | None, new: Object | None
) -> None:
    enqueued = watched.changed(old, new)
    assert enqueued.keys() >= GROUPS_BELOW
    assert max(enqueued.values()) <= UNHURRIED


async def test_the_group_that_paid_for_a_deleted_owner_is_enqueued_and_pays_for_what_is_left(watched: Watched) -> None:
    assert "corp" in watched.changed(owner("corp"), None)
    left = watched.cluster.informers.kinds["apps", "ReplicaSet"].store.by_uid("web-1")
    assert left is not None
    watched.cluster.informers.kinds["apps", "Deployment"].store.remove(owner("corp"))
    assert watched.cluster.ownership.paying_group(left) == "corp"


async def test_groups_in_which_children_are_still_counted_are_enqueued(watched: Watched) -> None:
    watched.cluster.counted_groups.add("web-2", "old")
    assert "old" in watched.changed(owner("corp"), owner(None))


async def test_any_other_change_of_an_owner_enqueues_its_own_group_alone(watched: Watched) -> None:
    scaled = owner("corp")
    scaled = {**scaled, "spec": {**scaled["spec"], "replicas": 9}}
    assert watched.changed(owner("corp"), scaled).keys() == {"corp"}


async def test_a_group_is_enqueued_by_any_change_of_what_its_reservations_await(watched: Watched) -> None:
    """Its own group counts nothing from its status."""
    noted = {**owner("corp"), "status": {"replicas": 1}}
    assert watched.changed(owner("corp"), noted) == {}
    watched.cluster.awaited.replace("vision", ["web"])
    assert watched.changed(noted, owner("corp")) == {"vision": UNHURRIED}


async def test_a_child_is_counted_anew_at_once_when_its_owner_pays_no_longer(books: Books) -> None:
    """The next check of everything is far away."""
    async with books.controller(recount_interval=600.0):
        await books.group("corp", cpu="10")
        await books.group("nlp", cpu="10")
        made = await books.create(deployment("web", "corp", 3))
        child = replica_set("other", 2)
        labels = {LABEL: "nlp", "app": "x"}
        child["metadata"] |= {"namespace": "default", "labels": labels, "ownerReferences": [reference(made)]}
        await books.create(child)
        await books.uses("corp", cpu="3")
        await books.client.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: None}}}, namespace="default")
        # Its owner's group paid and goes on, whatever label the child has.
        found = await books.uses("corp", cpu="2")
        assert [line.split()[:2] for line in found.status.leftovers] == [
            ["replicasets.apps/default/other", "Deployment/default/web"]
        ]
        await books.client.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: "corp"}}}, namespace="default")
        found = await books.uses("corp", cpu="3")
        assert found.status.leftovers == []
        await books.uses("nlp", cpu="0")


@pytest.mark.parametrize("first", ["genuine", "forged"])
def test_a_pod_that_names_its_owner_by_another_kind_decides_nothing_for_the_others(
    watched: Watched, first: str
) -> None:
    """The uid and the name are the owner's: what is remembered of one pod is not said of the other."""
    owner = watched.put(replica_set("a", 2), group="corp")
    genuine = watched.put(pod("genuine"), owner)
    forged = watched.put(pod("forged"), {**owner, "apiVersion": "example.com/v1"})
    for made in (genuine, forged):
        made["metadata"]["labels"] = {"app": "x"}
    payer_of = watched.cluster.ownership.payer_of
    payer_of({"genuine": genuine, "forged": forged}[first])
    assert payer_of(genuine) == owner
    assert payer_of(forged) is None


@pytest.mark.parametrize(
    "forged", [{"apiVersion": "batch/v1"}, {"kind": "Rollout"}, {"name": "b"}, {"namespace": "other"}]
)
def test_an_owner_is_charged_for_no_pod_that_has_its_uid_alone(watched: Watched, forged: Object) -> None:
    """Anybody who may read the uid may write it, under another kind or name or in another namespace."""
    owner = watched.put(replica_set("a", 2), group="corp")
    store = watched.cluster.informers.pods.store
    for name, change in (("genuine", {}), ("forged", forged)):
        namespace, named = change.get("namespace", "default"), {**reference(owner), **change}
        named.pop("namespace", None)
        metadata = {"namespace": namespace, "uid": name, "resourceVersion": "99", "name": name, "labels": {"app": "x"}}
        made = {**pod(name), "metadata": {**metadata, "ownerReferences": [named]}}
        store.put(trimmed_pod(made, SharedParts()))
    descendants = watched.cluster.descendants
    assert [pod.name for pod in descendants.pods_made_by(owner)] == ["genuine"]
    assert [(pod.name, many) for pod, many in descendants.grouped_pods_made_by(owner)] == [("genuine", 1)]


def test_pods_are_read_one_by_one_as_they_were_at_the_start(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who works through 100,000 of them lets other work run between two."""
    owner = watched.put(replica_set("web", 3))
    for name in ("a", "b", "c"):
        watched.put(pod(name), owner)
    looked_at: list[str] = []

    def keeps(_owner: Object, child: Object) -> bool:
        looked_at.append(child["metadata"]["name"])
        return True

    monkeypatch.setattr("controller.watch.descendants._keeps", keeps)
    pods = watched.cluster.descendants.each_pod_of(owner)
    first = next(pods)
    assert looked_at == [first.name]
    watched.cluster.informers.pods.store.remove({"metadata": {"uid": "c", "namespace": "default", "name": "c"}})
    assert sorted([first.name, *(each.name for each in pods)]) == ["a", "b", "c"]
