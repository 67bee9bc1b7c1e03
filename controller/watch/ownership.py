"""Who pays for a stored object: an owner above it, the group that it names, or its namespace's default.

This file alone decides that for stored objects, by the rules of `bizrq.workloads.owners`. It counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bizrq.kube.store import Kept, Store, plain
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import Reference, group_and_version, reference_of
from bizrq.workloads.owners import MAX_HOPS, charged_group, controller_of, owner_chain, payer
from bizrq.workloads.validation import Malformed
from controller.watch.detached import DetachedObjects
from controller.watch.indexes import controller_uid, defaulted_namespace, labelled_group
from controller.watch.informers import POD, Informers
from controller.watch.pods import Pod

Object = dict[str, Any]


class Ownership:
    """Answers who pays for an object as the informers have it. Remembers payers until an owner changes."""

    def __init__(self, informers: Informers, detached: DetachedObjects, registry: Registry) -> None:
        self._informers = informers
        self._detached = detached
        self._registry = registry
        self._resolver = informers.resolver
        #: The payer by kind of the child, namespace, and uid and name of its controller.
        self._payers: dict[tuple[object, ...], Reference | None] = {}
        #: The uids of those controllers, including deleted ones and ones not seen yet.
        self._owners_asked: set[object] = set()

    def group_of(self, obj: Object) -> str | None:
        """Return the group that an object charges if no owner pays for it. An invalid label charges no group."""
        try:
            group = charged_group(obj, self._resolver.cached_lookup)
        except Malformed:
            return None
        return group if group is not None else self._detached.group_of(obj["metadata"]["uid"])

    def payer_of(self, obj: Object) -> Object | None:
        """Return the top-most owner that pays for an object. None where the object pays for itself."""
        reference = controller_of(obj["metadata"])
        if reference is None:
            return None
        key = obj.get("kind"), obj["metadata"].get("namespace", ""), reference.get("uid"), reference.get("name")
        if key not in self._payers:
            self._payers[key] = self._top(obj)
            self._owners_asked.add(key[2])
        found = self._payers[key]
        return self._resolver.cached_lookup.get(*found) if found is not None else None

    def paying_group(self, obj: Object) -> str | None:
        """Return the group that an object or the owner that pays for it charges."""
        return self.group_of(self.payer_of(obj) or obj)

    def forget_payers(self) -> None:
        """Drop all remembered payers: an owner came, went, or changed."""
        self._payers.clear()
        self._owners_asked.clear()

    def was_asked(self, uids: set[str]) -> bool:
        """Return True if a remembered payer depends on one of these owners."""
        return bool(uids & self._owners_asked)

    def unpaid(self, kept: Kept) -> Object | None:
        """Return an object that no owner pays for. None where an owner pays."""
        if isinstance(kept, Pod) and self._is_known_paid(kept):
            return None
        obj = plain(kept)
        return obj if self.payer_of(obj) is None else None

    def named_groups(self, obj: Object) -> Iterator[str]:
        """Yield the group that an object names. Without a label, yield its namespace's default."""
        yield from labelled_group(obj)
        for name in defaulted_namespace(obj, self._registry):
            namespace = self._resolver.cached_lookup.get("", "Namespace", "", name)
            yield from labelled_group(namespace) if namespace is not None else ()

    def namespaces_of(self, group: str) -> list[str]:
        """Return the namespaces whose default group this is."""
        return [
            namespace["metadata"]["name"]
            for namespace in self._resolver.cached_lookup.all_of("", "Namespace", "")
            if group in labelled_group(namespace)
        ]

    def workload_of(self, pod: Object) -> tuple[Adapter, Object] | None:
        """Return the workload that pays for a pod, which may be the pod itself.

        None for a pod whose controller is gone and that charges no group.
        """
        found = self.payer_of(pod)
        if found is None and self.group_of(pod) is None and self._lost_controller(pod):
            return None
        found = found or pod
        adapter = self._registry.of(found)
        return (adapter, found) if adapter is not None else None

    def owner_of(self, obj: Object) -> str | None:
        """Return the uid of the controller that an object names."""
        return next(iter(controller_uid(obj)), None)

    def owner_deleted_at(self, obj: Object) -> float | None:
        """Return when an object's controller was deleted, in seconds on the informers' clock.

        Until the garbage collector removes the object or the reference, the object is not charged, as its owner is not.
        A controller that was never seen proves nothing.
        """
        reference = controller_of(obj["metadata"])
        store = self._store_of(reference) if reference is not None else None
        return store.deleted_at(str(reference.get("uid"))) if store is not None and reference is not None else None

    def unowned_above(self, obj: Object) -> tuple[Slot, str] | None:
        """Return the slot and uid of the top-most owner of an object, or of itself.

        None where that owner still names a controller above it.
        """
        top = obj
        for owner, _, _ in owner_chain(obj, self._registry, self._resolver.cached_lookup):
            top = owner
        adapter, metadata = self._registry.of(top), top["metadata"]
        if adapter is None or controller_of(metadata) is not None:
            return None
        return Slot(adapter.resource, metadata["namespace"], metadata["name"]), metadata["uid"]

    def _top(self, obj: Object) -> Reference | None:
        found, lookup = obj, self._resolver.cached_lookup
        for _ in range(MAX_HOPS):
            above = payer(found, self._registry, lookup)
            if above is None:
                break
            found = above
        return reference_of(found) if found is not obj else None

    def _is_known_paid(self, pod: Pod) -> bool:
        """Return True if a remembered payer pays for the pod: a cheap answer for most pods with a label."""
        owner = pod.owner
        return owner is not None and self._payers.get((POD[1], pod.namespace, owner.uid, owner.name)) is not None

    def _lost_controller(self, obj: Object) -> bool:
        """Return True if the controller that an object names is not stored."""
        reference = controller_of(obj["metadata"])
        store = self._store_of(reference) if reference is not None else None
        return store is not None and reference is not None and store.by_uid(str(reference.get("uid"))) is None

    def _store_of(self, reference: Object) -> Store | None:
        """Return the store of the kind that an owner reference names."""
        group, _ = group_and_version(reference.get("apiVersion"))
        informer = self._informers.kinds.get((group, str(reference.get("kind"))))
        return informer.store if informer is not None else None
