"""What the controller watches, and which groups want a recount when something changes.

This file alone decides what is kept of the cluster in memory. It counts nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import structlog

from bizrq.kube.client import KubeClient, Resource
from bizrq.kube.groups import GroupStore, without_managed_fields
from bizrq.kube.informer import Informer, Store
from bizrq.kube.related import Related, resource_of
from bizrq.quota.ledger import GROUPS
from bizrq.workloads.adapters import Adapter, Registry
from bizrq.workloads.labels import LABEL
from controller.pods import Shapes, trimmed

log = structlog.get_logger(__name__)

Object = dict[str, Any]

PODS = Resource("", "v1", "pods", "Pod")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")


class Cluster:
    """Informers of groups, charged kinds and pods. `enqueue(group, after)` is called for whatever moves."""

    def __init__(self, client: KubeClient, registry: Registry, enqueue: Callable[[str, float], None]) -> None:
        self.client = client
        self.registry = registry
        self._enqueue = enqueue
        self.groups = GroupStore(client, on_change=self._group_changed)
        self.adapters = {adapter.resource: adapter for adapter in registry.charged}
        self.workloads = {
            key: Informer(
                client,
                resource_of(adapter),
                on_change=self._workload_changed,
                on_time_travel=self._restored,
                indexes={"group": _label, "refers": _refers},
                transform=without_managed_fields,
            )
            for key, adapter in self.adapters.items()
        }
        shapes = Shapes()
        self.pods = Informer(
            client,
            PODS,
            on_change=self._pod_changed,
            indexes={"owner": _controller_uid},
            transform=lambda pod: trimmed(pod, shapes),
        )
        self.replicasets = Informer(
            client,
            REPLICASETS,
            on_change=lambda _old, _new: None,
            indexes={"owner": _controller_uid},
            transform=trimmed_replicaset,
        )
        self.related = Related(client, registry, on_change=self._everything_changed)
        #: Counts the changes of what bears on every workload (LimitRanges and the like).
        self.context = 0
        #: Called with (pod before, pod after) besides the queue: the meter notes ends.
        self.on_pod: Callable[[Object | None, Object | None], None] = lambda _old, _new: None
        #: Called with (workload before, after) where the group that it charges changed.
        self.on_move: Callable[[Object, Object], None] = lambda _old, _new: None

    @property
    def informers(self) -> Sequence[Informer]:
        return [self.groups.informer, *self.workloads.values(), self.pods, self.replicasets, *self.related.informers]

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run())

    def snapshot(self, kind: str) -> Store | None:
        """The store of a kind by `plural.group`, groups among them; None for a kind that is not watched."""
        informer = self.informer(kind)
        return informer.store if informer else None

    def informer(self, kind: str) -> Informer | None:
        return self.groups.informer if kind == GROUPS else self.workloads.get(kind)

    def charged_to(self, group: str) -> Iterable[tuple[Adapter, Object]]:
        """All stored objects of charged kinds with the group's label."""
        for key, informer in self.workloads.items():
            for obj in informer.store.index("group", group):
                yield self.adapters[key], obj

    def pods_of(self, workload: Object) -> Collection[Object]:
        """The pods that a workload made, directly or through ReplicaSets."""
        uid = workload["metadata"]["uid"]
        pods = list(self.pods.store.index("owner", uid))
        for replicaset in self.replicasets.store.index("owner", uid):
            pods.extend(self.pods.store.index("owner", replicaset["metadata"]["uid"]))
        return pods

    def workload_of(self, pod: Object) -> tuple[Adapter, Object] | None:
        """The charged object that made a pod, by controller references and uids; None where there is none."""
        for uid in _controller_uid(pod):
            replicaset = self.replicasets.store.by_uid(uid)
            for above in _controller_uid(replicaset) if replicaset else [uid]:
                for key, informer in self.workloads.items():
                    found = informer.store.by_uid(above)
                    if found is not None:
                        return self.adapters[key], found
        return None

    def _group_changed(self, old: Object | None, new: Object | None) -> None:
        for obj in (old, new):
            if obj is None:
                continue
            name, spec = obj["metadata"]["name"], obj.get("spec") or {}
            edited = old is None or new is None or old.get("spec") != new.get("spec") or _uncounted(new)
            edited = edited or _meta(old, "deletionTimestamp") != _meta(new, "deletionTimestamp")
            # A status write is most often an admission's: its object is about to come, or the entry to expire.
            self._enqueue(name, 0.0 if edited else 0.2)
            if parent := spec.get("parentBizGroup"):
                self._enqueue(parent, 0.0 if edited else 0.1)

    def _workload_changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and list(_label(old)) != list(_label(new)):
            self.on_move(old, new)
        for group in {g for obj in (old, new) if obj is not None for g in _label(obj)}:
            self._enqueue(group, 0.0)
        changed = new or old
        if changed is not None:
            metadata = changed["metadata"]
            key = f"{changed.get('kind')}/{metadata.get('namespace', '')}/{metadata['name']}"
            for informer in self.workloads.values():
                for referrer in informer.store.index("refers", key):
                    for group in _label(referrer):
                        self._enqueue(group, 0.0)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        self.on_pod(old, new)

    def _restored(self, before: int, now: int) -> None:
        log.error("the API server's store went back in time", before=before, now=now)
        self._everything_changed(None, None)

    def _everything_changed(self, _old: Object | None, _new: Object | None) -> None:
        self.context += 1
        for group in self.groups.values():
            self._enqueue(group.name, 1.0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _meta(obj: Object | None, key: str) -> object:
    return obj["metadata"].get(key) if obj else None


def _uncounted(obj: Object) -> bool:
    return "used" not in (obj.get("status") or {})


def _label(obj: Object) -> Iterable[str]:
    labels = obj["metadata"].get("labels")
    group = labels.get(LABEL) if isinstance(labels, dict) else None
    return [group] if isinstance(group, str) and group else []


def _refers(obj: Object) -> Iterable[str]:
    """What an object takes its pod template from (Rollout's workloadRef)."""
    spec = obj.get("spec")
    reference = spec.get("workloadRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict):
        return []
    return [f"{reference.get('kind')}/{obj['metadata'].get('namespace', '')}/{reference.get('name')}"]


def _controller_uid(obj: Object) -> list[str]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return [owner["uid"] for owner in owners if owner.get("controller")]


def trimmed_replicaset(replicaset: Object) -> Object:
    """A ReplicaSet as a step between a pod and its owner, and as the template that a Rollout may name."""
    keys = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences")
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {key: replicaset["metadata"][key] for key in keys if key in replicaset["metadata"]},
        "spec": {"template": (replicaset.get("spec") or {}).get("template")},
    }
