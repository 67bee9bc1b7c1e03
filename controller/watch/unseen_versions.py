"""Find the ReplicaSets of workloads that came and went while nobody watched.

A ReplicaSet has the name of its workload and the hash of the version. It has the hash as a label, and so have its pods,
which name it. So it tells its workload if it stands without an owner, and its pods do if it is gone. This file alone
reads a workload out of these. It does not know who paid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bizrq.workloads.kinds.declaration import POD, REPLICA_SET, Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.own_labels import workload_of_version
from controller.watch.informers import Informers
from controller.watch.pods import Pod

Object = dict[str, Any]


class UnseenVersion(NamedTuple):
    """A ReplicaSet that nobody has seen: its uid, the namespace and name of its workload, and one of its pods."""

    uid: str
    namespace: str
    workload: str
    pod: Object


class UnseenVersions:
    """Looks through the stored pods."""

    def __init__(self, informers: Informers, registry: Registry) -> None:
        self._informers = informers
        #: The kinds of workload that make a ReplicaSet for each version.
        self.kinds: tuple[Adapter, ...] = tuple(each for each in registry.charged if REPLICA_SET in each.creates)

    def by_workload(self) -> dict[tuple[str, str], list[str]]:
        """Return the uids of the ReplicaSets by namespace and name of their workload, those without an owner too."""
        found: dict[tuple[str, str], list[str]] = {}
        for each in self:
            found.setdefault((each.namespace, each.workload), []).append(each.uid)
        informer = self._informers.kinds.get(REPLICA_SET)
        for obj in informer.store.values() if informer is not None else ():
            metadata = obj["metadata"]
            if controller_of(metadata) is None and (
                workload := workload_of_version(metadata["name"], metadata.get("labels"))
            ):
                found.setdefault((metadata["namespace"], workload), []).append(metadata["uid"])
        return found

    def __iter__(self) -> Iterator[UnseenVersion]:
        """Yield the ReplicaSets that pods name and that are not stored."""
        pods = self._informers.pods.store
        named = set(pods.keys("owner"))
        for kind, informer in self._informers.kinds.items():
            if kind != POD:
                informer.store.take_stored_from(named)
        for uid in named:
            pod = next(iter(pods.kept_index("owner", uid)), None)
            if isinstance(pod, Pod) and (workload := _workload_of(pod)):
                yield UnseenVersion(uid, pod.namespace, workload, pod.plain())


def _workload_of(pod: Pod) -> str:
    """Return the name of the workload whose ReplicaSet a pod names; "" where it does not tell."""
    if pod.owner is None or pod.owner.kind != REPLICA_SET[1]:
        return ""
    return workload_of_version(pod.owner.name, pod.selected)
