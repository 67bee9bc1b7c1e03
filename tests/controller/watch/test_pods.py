"""The compact form of a pod has all fields that counting and metering read, and no part twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bizrq.kube.store import Store
from bizrq.settings import settings
from bizrq.units.times import parse_timestamp
from bizrq.workloads.demand.counting import demand
from bizrq.workloads.devices.hami import counted_annotations
from bizrq.workloads.lookup import EmptyLookup
from controller.watch.pods import SharedParts, trimmed_pod

Object = dict[str, Any]

COUNTED = counted_annotations(settings({"hami": {"enabled": True}}).counting)


def _pod(uid: str = "u1") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{uid}",
            "namespace": "team",
            "uid": uid,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-01T09:00:00Z",
            "deletionGracePeriodSeconds": 30,
            "labels": {"biz.group.resource.quota": "nlp", "biz.group.resource.quota/cpu-type": "A4", "app": "x"},
            "annotations": {
                "nvidia.com/use-gputype": "A100",
                "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,10:;",
                "note": "none of ours",
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"},
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True},
            ],
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "overhead": {"cpu": "250m"},
            "nodeSelector": {"pool": "a"},
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "image": "i", "resources": {"requests": {"cpu": "1"}}}
            ],
            "containers": [
                {"name": "c", "image": "i", "env": [], "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-gpu-1"}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
            ],
        },
    }


def test_what_is_kept_of_a_pod_reads_as_the_pod_itself() -> None:
    whole = _pod()
    kept = trimmed_pod(copy.deepcopy(whole), SharedParts(COUNTED)).plain()
    for key in ("apiVersion", "kind"):
        assert kept[key] == whole[key]
    metadata = kept["metadata"]
    for key in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"):
        assert metadata[key] == whole["metadata"][key]
    assert parse_timestamp(metadata["creationTimestamp"]) == parse_timestamp(whole["metadata"]["creationTimestamp"])
    assert metadata["labels"] == whole["metadata"]["labels"]
    assert set(metadata["annotations"]) == {"nvidia.com/use-gputype", "hami.io/vgpu-devices-allocated"}
    assert metadata["ownerReferences"] == whole["metadata"]["ownerReferences"][1:]
    assert kept["spec"]["nodeName"] == "node-1"
    assert kept["status"] == {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-gpu-1"}],
    }
    assert "image" not in kept["spec"]["containers"][0]


def test_it_costs_what_the_pod_costs() -> None:
    found = settings({})
    whole = _pod()
    kept = trimmed_pod(copy.deepcopy(whole), SharedParts(COUNTED)).plain()
    cost = demand(whole, found.registry, EmptyLookup(), found.counting)
    assert demand(kept, found.registry, EmptyLookup(), found.counting) == cost
    assert cost.resources["requests.cpu"] == 3_250_000_000


def test_one_that_was_resized_as_a_whole_costs_what_it_holds() -> None:
    found, whole = settings({}), _pod()
    whole["spec"]["resources"] = {"requests": {"cpu": "4"}}
    whole["status"]["resources"] = {"requests": {"cpu": "9"}}
    kept = trimmed_pod(whole, SharedParts(COUNTED))
    assert kept.is_resized
    cost = demand(kept.plain(), found.registry, EmptyLookup(), found.counting)
    whole["spec"]["resources"] = {"requests": {"cpu": "9"}}
    assert cost == demand(whole, found.registry, EmptyLookup(), found.counting)
    assert not trimmed_pod(whole, SharedParts(COUNTED)).is_resized


def test_pods_of_a_workload_share_what_is_the_same_and_one_changed_pod_changes_no_other() -> None:
    shapes = SharedParts(COUNTED)
    one, other = (trimmed_pod(_pod(uid), shapes) for uid in ("a", "b"))
    assert one.spec is other.spec
    assert one.labels is other.labels
    assert one.owner is other.owner
    changed = _pod("c")
    changed["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "3"
    resized = trimmed_pod(changed, shapes)
    assert resized.spec != one.spec
    assert one.plain()["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"


def test_an_owner_reference_that_lies_about_its_name_is_no_other_pods() -> None:
    shapes = SharedParts(COUNTED)
    honest, forged = _pod("a"), _pod("b")
    forged["metadata"]["ownerReferences"][1]["name"] = "somebody"
    kept = [trimmed_pod(pod, shapes).plain()["metadata"]["ownerReferences"][0]["name"] for pod in (honest, forged)]
    assert kept == ["train", "somebody"]


@pytest.mark.parametrize("absent", ["labels", "annotations", "ownerReferences", "deletionTimestamp"])
def test_what_a_pod_does_not_have_is_not_there_afterwards(absent: str) -> None:
    whole = _pod()
    del whole["metadata"][absent]
    assert not trimmed_pod(whole, SharedParts(COUNTED)).plain()["metadata"].get(absent)


def test_a_store_of_kept_pods_reads_as_one_of_objects() -> None:
    store, shapes = Store({"namespace": lambda pod: [pod["metadata"]["namespace"]]}), SharedParts(COUNTED)
    for uid in ("a", "b"):
        store.put(trimmed_pod(_pod(uid), shapes))
    found = store.by_uid("a")
    assert found is not None
    assert found["metadata"]["name"] == "train-a"
    assert store.get("train-b", "team") == store.by_uid("b")
    assert {pod["metadata"]["uid"] for pod in store.index("namespace", "team")} == {"a", "b"}
    kept = store.kept("a")
    assert kept is not None
    store.remove(kept)
    assert [pod["metadata"]["uid"] for pod in store.index("namespace", "team")] == ["b"]
    assert store.get("train-a", "team") is None


def _at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}Z"


def _told(
    phase: str, *ends: int | None, deleted: int | None = None, first: tuple[int | None, ...] = (), **conditions: int
) -> Object:
    """A pod that was bound at second 10, with its containers' ends and the times of further conditions.

    `first` are the ends of init containers, sidecars among them.
    """
    pod = _pod()
    pod["metadata"].pop("deletionTimestamp", None)
    if deleted is not None:
        pod["metadata"]["deletionTimestamp"] = _at(deleted)
    states, before = (
        [{"running": {}} if end is None else {"terminated": {"finishedAt": _at(end)}} for end in of]
        for of in (ends, first)
    )
    times = {"PodScheduled": 10, **conditions}
    pod["status"] = {
        "phase": phase,
        "containerStatuses": [{"name": "c", "state": state} for state in states],
        "initContainerStatuses": [{"name": "i", "state": state} for state in before],
        "conditions": [{"type": t, "status": "True", "lastTransitionTime": _at(s)} for t, s in times.items()],
    }
    return pod


ENDS: list[tuple[str, Object, int | None]] = [
    ("it runs", _told("Running", None), None),
    ("one container of two is over", _told("Running", 20, None), None),
    ("its last container is over", _told("Succeeded", 20, 30), 30),
    ("a container restarts that nobody deletes", _told("Running", 20), None),
    ("it is being deleted and its containers are over", _told("Running", 20, 25, deleted=40), 25),
    ("it is being deleted and one runs on", _told("Running", 20, None, deleted=40), None),
    ("its sidecar ended after it", _told("Succeeded", 20, first=(15, 27)), 27),
    ("an init container failed", _told("Failed", first=(22,), Ready=40), 22),
    ("its init container is over", _told("Pending", None, first=(22,)), None),
    ("it is being deleted and its sidecar runs on", _told("Running", 20, first=(15, None), deleted=40), None),
    ("it is being deleted and its sidecar is over", _told("Running", 20, first=(15, 31), deleted=40), 31),
    ("it was evicted before anything ran", _told("Failed", DisruptionTarget=33, Ready=40), 33),
    ("it failed and only its conditions tell when", _told("Failed", Ready=35, Initialized=10), 35),
    ("it failed and nothing tells but its deletion", _told("Failed", deleted=40), 40),
    ("it failed and nothing tells at all", _told("Failed"), 10),
]


@pytest.mark.parametrize(("why", "pod", "second"), ENDS, ids=[row[0] for row in ENDS])
def test_when_a_pod_ended(why: str, pod: Object, second: int | None) -> None:
    ended = trimmed_pod(pod, SharedParts(COUNTED)).ended
    assert ended == (None if second is None else parse_timestamp(_at(second)))


@pytest.mark.parametrize(
    ("why", "status", "second"),
    [
        ("it was bound", {"conditions": [{"type": "PodScheduled", "status": "True", "at": 10}], "startTime": 12}, 10),
        ("it cannot be", {"conditions": [{"type": "PodScheduled", "status": "False", "at": 10}]}, None),
        ("it waits", {"phase": "Pending"}, None),
        ("a node took it, and nobody says that it was bound", {"conditions": [], "startTime": 12}, 12),
    ],
)
def test_when_a_pod_began(why: str, status: Object, second: int | None) -> None:
    pod = _pod()
    conditions = [
        {**{key: value for key, value in each.items() if key != "at"}, "lastTransitionTime": _at(each["at"])}
        for each in status.get("conditions", ())
    ]
    began = {"startTime": _at(status["startTime"])} if "startTime" in status else {}
    pod["status"] = {"phase": "Running", **status, "conditions": conditions, **began}
    assert trimmed_pod(pod, SharedParts(COUNTED)).started == (None if second is None else parse_timestamp(_at(second)))
