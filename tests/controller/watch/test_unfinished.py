"""What goes before its pods were made is known, and for long enough; what had all of them is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bizrq.builtin import builtin_registry
from bizrq.workloads.lookup import DocumentLookup
from controller.watch.informers import Informers
from controller.watch.pods import SharedParts, trimmed_pod
from controller.watch.unfinished import WAITS, Unfinished
from tests.support.objects import Object

NOW = 1_000_000
VERSIONS = {"ReplicationController": "v1", "Job": "batch/v1", "TFJob": "kubeflow.org/v1", "Deployment": "apps/v1"}
#: The revision at which the watch shows that the object is gone.
GONE = 50
RUNS: Object = {}
DELETED_BEFORE: Object = {"deletionTimestamp": "2026-11-28T00:00:00Z"}
DELETED_SINCE: Object = {**DELETED_BEFORE, "resourceVersion": "51"}


class Watches:
    """The pods of one object as their watch shows them, and what is reported of the object."""

    def __init__(self, kind: str, pods: list[Object] | None = None, namespace: Object | None = RUNS) -> None:
        stored = [] if namespace is None else [of("Namespace", "v1", metadata={"name": "t", **namespace})]
        kinds = {a.group_kind: store(lambda *_: []) for a in builtin_registry().adapters}
        pods_store = store(lambda *_: [(pod(each), 1) for each in pods or []])
        resolver = SimpleNamespace(cached_lookup=DocumentLookup(stored))
        informers = SimpleNamespace(kinds=kinds, pods=pods_store, resolver=resolver)
        self.now, self.kind = NOW, kind
        self.found = Unfinished(cast(Informers, informers), builtin_registry(), lambda: self.now)
        self.reported: list[tuple[str, int]] = []
        self.found.subscribe(lambda *each: self.reported.append(each))

    def goes(self, spec: Object, status: Object | None = None, *, is_paid: bool = True) -> None:
        self.found.note(made(self.kind, spec, status), None, is_paid=is_paid)

    def starts_to_go(self, spec: Object) -> None:
        old = made(self.kind, spec, None)
        metadata = {**old["metadata"], "deletionTimestamp": "2026-11-28T00:00:00Z", "resourceVersion": str(GONE)}
        self.found.note(old, {**old, "metadata": metadata})


def store(grouped: Any) -> SimpleNamespace:
    return SimpleNamespace(store=SimpleNamespace(resource_version=GONE, grouped=grouped))


def of(kind: str, version: str, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, **fields}


def made(kind: str, spec: Object, status: Object | None) -> Object:
    metadata = {"name": "x", "namespace": "t", "uid": "u", "generation": 1}
    return of(kind, VERSIONS.get(kind, "apps/v1"), metadata=metadata, spec=spec, status=status or {})


def pod(each: Object) -> Any:
    phase = each.get("phase", "Running")
    metadata = {"name": "p", "namespace": "t", "uid": "p", "resourceVersion": "9", **each}
    plain = of("Pod", "v1", metadata=metadata, spec={"containers": []}, status={"phase": phase})
    return trimmed_pod(plain, SharedParts())


@pytest.mark.parametrize(
    ("kind", "spec", "status", "pods"),
    [
        ("ReplicaSet", {"replicas": 2}, None, [RUNS]),
        ("ReplicaSet", {}, None, []),
        ("ReplicaSet", {"replicas": 2}, {"observedGeneration": 1, "replicas": 2}, [RUNS, DELETED_BEFORE]),
        ("ReplicaSet", {"replicas": 1}, None, [{"phase": "Failed"}]),
        ("ReplicationController", {"replicas": 2}, None, [RUNS]),
        ("StatefulSet", {"replicas": 2}, None, [RUNS]),
        ("DaemonSet", {}, None, [RUNS]),
        ("DaemonSet", {}, {"observedGeneration": 1, "desiredNumberScheduled": 2}, [RUNS]),
        ("Job", {"parallelism": 2}, None, [RUNS]),
        ("Job", {"parallelism": 4, "completions": 6}, {"succeeded": 4}, [RUNS]),
        ("TFJob", {}, None, []),
    ],
)
def test_what_goes_before_its_pods_are_there_waits_for_them(
    kind: str, spec: Object, status: Object | None, pods: list[Object]
) -> None:
    watches = Watches(kind, pods)
    watches.goes(spec, status)
    assert watches.reported == [("u", NOW + WAITS)]


@pytest.mark.parametrize(
    ("kind", "spec", "status", "pods"),
    [
        ("ReplicaSet", {"replicas": 0}, None, []),
        ("ReplicaSet", {"replicas": 2}, None, [RUNS, RUNS]),
        ("ReplicaSet", {"replicas": 2}, None, [DELETED_SINCE, DELETED_SINCE]),
        ("DaemonSet", {}, {"observedGeneration": 1, "desiredNumberScheduled": 1}, [RUNS]),
        ("Job", {"parallelism": 4, "suspend": True}, None, []),
        ("Job", {"parallelism": 4, "completions": 6}, {"succeeded": 5}, [RUNS]),
        ("Job", {"parallelism": 4}, {"conditions": [{"type": "Complete", "status": "True"}]}, []),
        ("TFJob", {}, None, [RUNS]),
        ("Deployment", {"replicas": 2}, None, []),
    ],
)
def test_what_had_all_of_its_pods_waits_for_none(
    kind: str, spec: Object, status: Object | None, pods: list[Object]
) -> None:
    watches = Watches(kind, pods)
    watches.goes(spec, status)
    assert watches.reported == []


@pytest.mark.parametrize("namespace", [None, {"deletionTimestamp": "2026-11-28T00:00:00Z"}])
def test_none_come_in_a_namespace_that_goes(namespace: Object | None) -> None:
    watches = Watches("ReplicaSet", [], namespace)
    watches.goes({"replicas": 2})
    assert watches.reported == []


def test_what_no_group_pays_for_is_nobodys_matter() -> None:
    watches = Watches("ReplicaSet")
    watches.goes({"replicas": 2}, is_paid=False)
    assert watches.reported == []


def test_what_counts_is_when_it_started_to_go_and_the_time_when_it_is_gone() -> None:
    pods: list[Object] = []
    watches = Watches("ReplicaSet", pods)
    watches.starts_to_go({"replicas": 1})
    watches.now += 1
    watches.goes({"replicas": 1})
    assert watches.reported == [("u", NOW + WAITS), ("u", NOW + 1 + WAITS)]
    pods.append(RUNS)
    watches.reported.clear()
    watches.starts_to_go({"replicas": 1})
    pods.clear()
    watches.goes({"replicas": 1})
    assert watches.reported == []
