"""What goes before its pods were made is known, and for long enough; what had all of them is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bizrq.api.overlap import GONE as GONE_TEXT
from bizrq.api.overlap import LOWERED
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
WAITED_FOR = ("u", NOW + WAITS, GONE_TEXT, "g")
DELETED_BEFORE: Object = {"deletionTimestamp": "2026-11-28T00:00:00Z"}
DELETED_SINCE: Object = {**DELETED_BEFORE, "resourceVersion": "51"}


class Watches:
    """The pods of one object as their watch shows them, and what is reported of the object."""

    def __init__(self, kind: str, pods: list[Object] | None = None, namespace: Object | None = RUNS) -> None:
        stored = [] if namespace is None else [of("Namespace", "v1", metadata={"name": "t", **namespace})]
        self.stored: list[Object] = []
        kinds = {a.group_kind: store(lambda *_: [], lambda: self.stored) for a in builtin_registry().adapters}
        pods_store = store(lambda *_: [(pod(each), 1) for each in pods or []])
        resolver = SimpleNamespace(cached_lookup=DocumentLookup(stored))
        informers = SimpleNamespace(kinds=kinds, pods=pods_store, resolver=resolver)
        self.now, self.kind = NOW, kind
        self.group: str | None = "g"
        self.found = Unfinished(cast(Informers, informers), builtin_registry(), lambda _: self.group, lambda: self.now)
        self.reported: list[tuple[str, int, str, str]] = []
        self.found.subscribe(lambda *each: self.reported.append(each))

    def goes(self, spec: Object, status: Object | None = None, generation: int = 1) -> None:
        self.found.note_end(made(self.kind, spec, status, generation), None)

    def changes(self, before: Object, after: Object, status: Object | None = None) -> None:
        """Change the spec from its second generation to its third."""
        self.found.note_change(made(self.kind, before, status, 2), made(self.kind, after, status, 3))

    def says(self, spec: Object, before: Object, after: Object) -> None:
        """Change the status of the third generation."""
        self.found.note_change(made(self.kind, spec, before, 3), made(self.kind, spec, after, 3))

    def starts_to_go(self, spec: Object, status: Object) -> None:
        old = made(self.kind, spec, status)
        metadata = {**old["metadata"], "deletionTimestamp": "2026-11-28T00:00:00Z", "resourceVersion": str(GONE)}
        self.found.note_end(old, {**old, "metadata": metadata})


def store(grouped: Any, values: Any = None) -> SimpleNamespace:
    return SimpleNamespace(store=SimpleNamespace(resource_version=GONE, grouped=grouped, values=values))


def of(kind: str, version: str, **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, **fields}


def made(kind: str, spec: Object, status: Object | None, generation: int = 1) -> Object:
    metadata = {"name": "x", "namespace": "t", "uid": "u", "generation": generation, "resourceVersion": "10"}
    return of(kind, VERSIONS.get(kind, "apps/v1"), metadata=metadata, spec=spec, status=status or {})


def pod(each: Object) -> Any:
    phase = each.get("phase", "Running")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u", "controller": True}
    metadata = {"name": "p", "namespace": "t", "uid": "p", "resourceVersion": "9", "ownerReferences": [owner], **each}
    plain = of("Pod", "v1", metadata=metadata, spec={"containers": []}, status={"phase": phase})
    return trimmed_pod(plain, SharedParts())


@pytest.mark.parametrize(
    ("kind", "spec", "status", "pods"),
    [
        ("ReplicaSet", {"replicas": 2}, None, [RUNS]),
        ("ReplicaSet", {}, None, []),
        ("ReplicaSet", {"replicas": 2}, {"observedGeneration": 1, "replicas": 2}, [RUNS, DELETED_BEFORE]),
        ("ReplicaSet", {"replicas": 1}, {"replicas": 1}, [{"phase": "Failed"}]),
        ("ReplicaSet", {"replicas": 2}, {"replicas": 1}, [RUNS, RUNS]),
        ("ReplicaSet", {"replicas": 2}, None, [RUNS, RUNS]),
        ("ReplicationController", {"replicas": 2}, None, [RUNS]),
        ("StatefulSet", {"replicas": 2}, None, [RUNS]),
        ("DaemonSet", {}, None, [RUNS]),
        ("DaemonSet", {}, {"observedGeneration": 1, "desiredNumberScheduled": 2}, [RUNS]),
        ("Job", {"parallelism": 2}, None, [RUNS]),
        ("Job", {"parallelism": 2}, {"active": 1}, [RUNS, RUNS]),
        ("Job", {"parallelism": 4, "completions": 6}, {"succeeded": 4}, [RUNS]),
        ("TFJob", {}, None, []),
    ],
)
def test_what_goes_before_its_pods_are_there_waits_for_them(
    kind: str, spec: Object, status: Object | None, pods: list[Object]
) -> None:
    watches = Watches(kind, pods)
    watches.goes(spec, status)
    assert watches.reported == [WAITED_FOR]


@pytest.mark.parametrize(
    ("kind", "spec", "status", "pods"),
    [
        ("ReplicaSet", {"replicas": 0}, None, []),
        ("ReplicaSet", {"replicas": 2}, {"replicas": 2}, [RUNS, RUNS]),
        ("ReplicaSet", {"replicas": 2}, {"replicas": 2}, [DELETED_SINCE, DELETED_SINCE]),
        ("DaemonSet", {}, {"observedGeneration": 1, "desiredNumberScheduled": 1}, [RUNS]),
        ("Job", {"parallelism": 4, "suspend": True}, None, []),
        ("Job", {"parallelism": 4, "completions": 6}, {"active": 1, "succeeded": 5}, [RUNS]),
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


SUSPENDED: Object = {"conditions": [{"type": "Suspended", "status": "True"}]}


@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        ("ReplicaSet", {"replicas": 0}, {}),
        ("ReplicaSet", {"replicas": 0}, {"observedGeneration": 1, "replicas": 0}),
        ("StatefulSet", {"replicas": 1}, {"observedGeneration": 1, "replicas": 1}),
        ("ReplicationController", {"replicas": 0}, {"observedGeneration": "?"}),
        ("Job", {"suspend": True}, {}),
        ("Job", {"suspend": True}, {"startTime": "2026-11-28T00:00:00Z"}),
        ("Job", {"parallelism": 0}, {}),
    ],
)
def test_what_asked_for_more_until_its_controller_has_seen_otherwise_waits(
    kind: str, spec: Object, status: Object
) -> None:
    watches = Watches(kind, [RUNS])
    watches.goes(spec, status, 2)
    assert watches.reported == [WAITED_FOR]


@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        ("ReplicaSet", {"replicas": 0}, {"observedGeneration": 2}),
        ("StatefulSet", {"replicas": 1}, {"observedGeneration": 2, "replicas": 1}),
        ("Job", {"suspend": True}, SUSPENDED),
        ("Job", {"parallelism": 1}, {"active": 1}),
    ],
)
def test_what_its_controller_has_seen_lowered_waits_for_no_more(kind: str, spec: Object, status: Object) -> None:
    watches = Watches(kind, [RUNS])
    watches.goes(spec, status, 2)
    assert watches.reported == []


@pytest.mark.parametrize(
    ("kind", "before", "after", "status"),
    [
        ("ReplicaSet", {"replicas": 2}, {"replicas": 0}, {"observedGeneration": 2, "replicas": 1}),
        ("StatefulSet", {"replicas": 2}, {"replicas": 1}, {"observedGeneration": 2, "replicas": 1}),
        ("Job", {"parallelism": 2}, {"parallelism": 2, "suspend": True}, {}),
        ("Job", {"parallelism": 2}, {"parallelism": 2, "suspend": True}, SUSPENDED),
        ("Job", {"parallelism": 3}, {"parallelism": 1}, {"active": 1}),
    ],
)
def test_what_asks_for_fewer_than_it_was_to_have_waits_until_its_controller_has_seen_that(
    kind: str, before: Object, after: Object, status: Object
) -> None:
    watches = Watches(kind, [RUNS])
    watches.changes(before, after, status)
    assert watches.reported == [("u", NOW + WAITS, LOWERED, "g")]
    watches.says(after, status, status)
    assert len(watches.reported) == 1, "a write that changes nothing is nobody's word"
    watches.says(after, status, {**status, "observedGeneration": 3} if kind != "Job" else {"active": 0, **SUSPENDED})
    assert watches.reported[1:] == [("u", 0, LOWERED, "")]


@pytest.mark.parametrize(
    ("kind", "before", "after", "status"),
    [
        ("ReplicaSet", {"replicas": 1}, {"replicas": 0}, {"observedGeneration": 2, "replicas": 1}),
        ("ReplicaSet", {"replicas": 1}, {"replicas": 3}, {"observedGeneration": 2, "replicas": 1}),
        ("Job", {"parallelism": 1}, {"suspend": True}, {"active": 1}),
        ("Deployment", {"replicas": 3}, {"replicas": 1}, {}),
        # Its controller would write no status while the second pod is rejected.
        ("Job", {"parallelism": 3}, {"parallelism": 2}, {"active": 1}),
    ],
)
def test_what_had_all_that_it_asked_for_or_wants_more_waits_for_none(
    kind: str, before: Object, after: Object, status: Object
) -> None:
    watches = Watches(kind, [RUNS])
    watches.changes(before, after, status)
    assert watches.reported == []


def test_what_is_lowered_again_waits_for_the_most_that_it_asked_for() -> None:
    watches = Watches("ReplicaSet", [RUNS])
    status = {"observedGeneration": 1, "replicas": 1}
    watches.changes({"replicas": 3}, {"replicas": 1}, status)
    watches.changes({"replicas": 1}, {"replicas": 0}, status)
    watches.goes({"replicas": 0}, status, 3)
    assert watches.reported == [("u", NOW + WAITS, LOWERED, "g")] * 2 + [WAITED_FOR]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ({"parallelism": 2}, {"parallelism": 2, "suspend": True}, SUSPENDED),
        ({"parallelism": 3}, {"parallelism": 1}, {"active": 1}),
    ],
)
def test_a_job_that_its_status_shows_as_before_waits_for_what_it_asked_for_in_between(
    before: Object, after: Object, status: Object
) -> None:
    """It asked for more for a moment, and its controller may have begun to make that."""
    watches = Watches("Job", [RUNS])
    watches.changes(after, before, status)
    watches.changes(before, after, status)
    watches.goes(after, status, 4)
    assert watches.reported == [("u", NOW + WAITS, LOWERED, "g"), WAITED_FOR]


def test_a_job_that_asks_for_more_again_gets_its_pods() -> None:
    watches = Watches("Job", [RUNS])
    watches.changes({"parallelism": 3}, {"parallelism": 1}, {"active": 1})
    watches.changes({"parallelism": 1}, {"parallelism": 2}, {"active": 1})
    assert watches.reported == [("u", NOW + WAITS, LOWERED, "g"), ("u", 0, LOWERED, "")]


def test_a_job_that_changes_otherwise_is_waited_for_still() -> None:
    watches = Watches("Job", [RUNS])
    watches.changes({"parallelism": 2}, {"parallelism": 2, "suspend": True}, {"active": 1})
    watches.changes({"suspend": True}, {"suspend": True, "ttlSecondsAfterFinished": 60}, {"active": 1})
    assert watches.reported == [("u", NOW + WAITS, LOWERED, "g")]


async def test_what_was_lowered_while_nobody_watched_is_found() -> None:
    watches = Watches("ReplicaSet", [RUNS])
    watches.stored = [made("ReplicaSet", {"replicas": 1}, {"observedGeneration": 2, "replicas": 1}, 2)]
    await watches.found.find_unseen()
    assert watches.reported == []
    watches.stored = [made("ReplicaSet", {"replicas": 1}, {"observedGeneration": 1, "replicas": 1}, 2)]
    await watches.found.find_unseen()
    assert {*watches.reported} == {("u", NOW + WAITS, LOWERED, "g")}


def test_pods_that_its_controller_does_not_take_for_its_own_are_none() -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}}
    own, other = ({"labels": {"app": name}} for name in ("x", "another"))
    for pods, reported in (([own, own], []), ([own, other], [WAITED_FOR])):
        watches = Watches("ReplicaSet", pods)
        watches.goes(spec, {"replicas": 2})
        assert watches.reported == reported


@pytest.mark.parametrize("namespace", [None, {"deletionTimestamp": "2026-11-28T00:00:00Z"}])
def test_none_come_in_a_namespace_that_goes(namespace: Object | None) -> None:
    watches = Watches("ReplicaSet", [], namespace)
    watches.goes({"replicas": 2})
    assert watches.reported == []


def test_what_no_group_pays_for_is_nobodys_matter() -> None:
    watches = Watches("ReplicaSet")
    watches.group = None
    watches.goes({"replicas": 2})
    assert watches.reported == []


def test_what_counts_is_when_it_started_to_go_and_the_time_when_it_is_gone() -> None:
    pods: list[Object] = []
    watches = Watches("ReplicaSet", pods)
    watches.starts_to_go({"replicas": 1}, {})
    watches.now += 1
    watches.goes({"replicas": 1})
    assert watches.reported == [WAITED_FOR, ("u", NOW + 1 + WAITS, GONE_TEXT, "g")]
    pods.append(RUNS)
    watches.reported.clear()
    watches.starts_to_go({"replicas": 1}, {"replicas": 1})
    pods.clear()
    watches.goes({"replicas": 1})
    assert watches.reported == []
