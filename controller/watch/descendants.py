"""The stored objects that an owner keeps: its children by kind, and the pods at the end of each chain.

This file alone decides how far below a workload its pods are searched, and leaves out what an owner no longer keeps:
that has a slot of its own before its controller takes the reference away. So has a pod that stayed with another group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import Any, cast

from bizrq.kube.store import Kept, Store, plain, uid_of
from bizrq.workloads.kinds.declaration import POD, Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.owners import MAX_HOPS, controller_of, is_named_by
from bizrq.workloads.ownership.payers import keeps, place_of
from controller.watch.informers import Informers
from controller.watch.ownership import Ownership
from controller.watch.pods import Pod
from controller.watch.remembered import RememberedPayers

Object = dict[str, Any]

_NONE: frozenset[str] = frozenset()


class Descendants:
    """Finds what stored objects own."""

    def __init__(
        self, informers: Informers, registry: Registry, payers: RememberedPayers, ownership: Ownership
    ) -> None:
        self._informers = informers
        self._registry = registry
        self._payers = payers
        self._ownership = ownership
        #: The watched kinds that each kind creates or passes on, with their stores.
        self._child_stores: dict[GroupKind, list[tuple[Adapter, Store]]] = {}

    def owned_by(self, uid: str) -> Iterator[str]:
        """Return the uids of all objects that name this one as their controller, kept or not."""
        for informer in self._informers.kinds.values():
            yield from map(uid_of, informer.store.kept_index("owner", uid))

    def made_by(self, owner: Object, kind: GroupKind) -> Sequence[Object]:
        """Return the stored objects of a kind that name this one as their controller and that it keeps."""
        informer = self._informers.kinds.get(kind)
        found = informer.store.index("owner", owner["metadata"]["uid"]) if informer is not None else ()
        return [obj for obj in found if _keeps(owner, obj)]

    def dropped_by(self, owner: Object) -> Iterator[Kept]:
        """Yield what names an object as its controller, and that it does not keep."""
        adapter, known = self._registry.of(owner), dict[object, bool]()
        for _, store in self._stores_below(adapter) if adapter is not None else ():
            for kept in tuple(store.kept_index("owner", owner["metadata"]["uid"])):
                # Pods of one template share their labels.
                sort = _sort(kept) if isinstance(kept, Pod) else uid_of(kept)
                if (is_kept := known.get(sort)) is None:
                    is_kept = known[sort] = _keeps(owner, plain(kept))
                if not is_kept:
                    yield kept

    def to_adopt(self, workload: Object) -> list[Kept]:
        """Return what a workload of the same place has left and this one will adopt: it is charged with it already."""
        found: list[Kept] = []
        for uid in self._payers.left_of(place_of(workload)):
            kept = self._informers.kept(uid)
            if kept is None or controller_of(plain(kept)["metadata"]) is not None:
                continue
            adopter = self._ownership.adopter_of(plain(kept))
            if adopter is not None and adopter["metadata"]["uid"] == workload["metadata"]["uid"]:
                found.append(kept)
        return found

    def children_of(self, workload: Object, kinds: Iterable[GroupKind]) -> list[Object]:
        """Return the direct children of a workload that are of these kinds."""
        return [obj for kind in sorted(kinds) for obj in self.made_by(workload, kind)]

    def pods_of(self, workload: Object) -> list[Pod]:
        """Return the pods below a workload at any depth. A pod is its own only pod."""
        return list(self.each_pod_of(workload))

    def each_pod_of(self, workload: Object) -> Iterator[Pod]:
        """Yield the pods below a workload at any depth. Who waits between two of them may get one that changed since.

        A workload may have 100,000 pods, and to find which of them it keeps takes 100 ms then.
        """
        top = self._registry.of(workload)
        if top is not None and top.group_kind == POD:
            if (pod := self._informers.pod(workload["metadata"]["uid"])) is not None:
                yield pod
            return
        for owner in self._owners_of_pods(workload):
            yield from self._each_pod_made_by(owner)

    def makers_of(self, workload: Object) -> list[str]:
        """Return the uids of a workload that makes others, and of each object below it that has pods or asks for some.

        A Deployment keeps ten old ReplicaSets that do neither. What does not pay for what it makes has none: each Job
        below a CronJob has its own.
        """
        top = self._registry.of(workload)
        if top is None or not (top.creates and top.pays):
            return []
        uid, is_pod = workload["metadata"]["uid"], top.group_kind == POD
        makers = [
            maker["metadata"]["uid"]
            for maker in self._owners_of_pods(workload)
            if not (is_pod or _is_idle(maker)) or any(self.grouped_pods_made_by(maker))
        ]
        return list(dict.fromkeys((*(() if is_pod else (uid,)), *makers)))

    def grouped_pods_of(self, workload: Object) -> list[tuple[Pod, int]]:
        """Return one pod of each equivalence class below a workload, and the size of the class.

        A pod that owns claims is in a class of its own.
        """
        top, owners = self._registry.of(workload), self._informers.claims.store.keys("pod")
        if top is not None and top.group_kind == POD:
            return [(pod, 1) for pod in self.pods_of(workload)]
        return [pods for owner in self._owners_of_pods(workload) for pods in self.grouped_pods_made_by(owner, owners)]

    def all_below(self, uid: str, kind: GroupKind) -> Iterator[Kept]:
        """Yield what an object of a kind owns at any depth, as far as its kind makes or passes on such objects."""
        top = self._registry.by_kind(*kind)
        level = [(top, uid)] if top is not None else []
        for _ in range(MAX_HOPS):
            below: list[tuple[Adapter, str]] = []
            for above, owner in level:
                for adapter, store in self._stores_below(above):
                    found = store.kept_index("owner", owner)
                    yield from found
                    if adapter.creates or adapter.passes:
                        below.extend((adapter, uid_of(kept)) for kept in found)
            level = below

    def pods_made_by(self, owner: Object) -> Sequence[Pod]:
        """Return the pods that name an object as their controller and that it keeps, without those that stayed."""
        return list(self._each_pod_made_by(owner))

    def _each_pod_made_by(self, owner: Object) -> Iterator[Pod]:
        named = ((pod, 1) for pod in [*self.pods_naming(owner)])
        return (pod for pod, _ in self._kept(owner, named))

    def grouped_pods_made_by(self, owner: Object, apart: Set[str] = _NONE) -> list[tuple[Pod, int]]:
        """Return one pod of each equivalence class that an object keeps, and the size of the class."""
        grouped = self._informers.pods.store.grouped("owner", owner["metadata"]["uid"], apart, self._payers.gone)
        return list(self._kept(owner, cast("list[tuple[Pod, int]]", grouped)))

    def stayed_made_by(self, owner: Object) -> list[Pod]:
        """Return the pods that name an object as their controller and that stayed with another group."""
        uids = self._informers.pods.store.uids("owner", owner["metadata"]["uid"]) & self._payers.gone
        found = [self._informers.pod(uid) for uid in uids]
        return [pod for pod in found if pod is not None and self._ownership.has_stayed(pod.plain())]

    def pods_naming(self, owner: Object) -> Collection[Pod]:
        """Return the pods that name an object as their controller, kept or not."""
        return cast("Collection[Pod]", self._informers.pods.store.kept_index("owner", owner["metadata"]["uid"]))

    def _kept(self, owner: Object, pods: Iterable[tuple[Pod, int]]) -> Iterator[tuple[Pod, int]]:
        """Yield those that the owner keeps and that its group pays for. Pods of one template share their labels."""
        known: dict[object, bool] = {}
        gone = self._payers.gone
        for pod, many in pods:
            sort = _sort(pod)
            if (is_kept := known.get(sort)) is None:
                is_kept = known[sort] = _keeps(owner, pod.plain())
            if is_kept and not (pod.uid in gone and self._has_stayed(pod)):
                yield pod, many

    def _has_stayed(self, pod: Pod) -> bool:
        # One that is deleted may stand for others of its class.
        return self._informers.pod(pod.uid) is not None and self._ownership.has_stayed(pod.plain())

    def _owners_of_pods(self, workload: Object) -> Iterator[Object]:
        """Yield a workload and all objects below it that create its pods."""
        top = self._registry.of(workload)
        if top is None:
            return
        level, through_pods = [(top, workload)], top.has_pods_below_pods
        for _ in range(MAX_HOPS):
            below: list[tuple[Adapter, Object]] = []
            for above, owner in level:
                for adapter, store in self._stores_below(above):
                    is_pod = adapter.group_kind == POD
                    if is_pod:
                        yield owner
                    if through_pods or not is_pod:
                        named = map(plain, store.kept_index("owner", owner["metadata"]["uid"]))
                        below.extend((adapter, child) for child in named if _keeps(owner, child))
            if not below:
                return
            level = below

    def _stores_below(self, adapter: Adapter) -> list[tuple[Adapter, Store]]:
        """Return the watched kinds that a kind creates or passes on."""
        kind = adapter.group_kind
        if kind not in self._child_stores:
            below = sorted({*adapter.creates, *adapter.passes})
            known = [(self._registry.by_kind(*made), self._informers.kinds.get(made)) for made in below]
            self._child_stores[kind] = [(found, informer.store) for found, informer in known if found and informer]
        return self._child_stores[kind]


def _sort(pod: Pod) -> object:
    """Return what is equal for pods that the same owners keep."""
    return id(pod.owner), pod.namespace, pod.kept_by


def _keeps(owner: Object, child: Object) -> bool:
    """Return True for what names this object as its controller, and not its uid alone, and what it keeps."""
    metadata = child["metadata"]
    return is_named_by(owner, controller_of(metadata) or {}, metadata.get("namespace", "")) and keeps(owner, child)


def _is_idle(owner: Object) -> bool:
    """Return True for an owner that asks for no pods, as an old ReplicaSet."""
    spec = owner.get("spec")
    return isinstance(spec, dict) and spec.get("replicas") == 0
