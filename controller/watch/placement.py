"""The groups that stored objects are charged to: by object, by group, and all candidates.

This file alone combines labels, namespace defaults, owners and detached objects into one answer. It counts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from bizrq.kube.store import plain
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from controller.watch.detached import DetachedObjects
from controller.watch.informers import Informers
from controller.watch.ownership import Ownership

Object = dict[str, Any]


class Placement(NamedTuple):
    """A stored object and the groups that it is charged to.

    `owner_deleted_at` is set where the object is not charged only because its owner was deleted: the time of that
    deletion in seconds on the informers' clock.
    """

    adapter: Adapter | None = None
    obj: Object | None = None
    groups: Collection[str] = ()
    owner_deleted_at: float | None = None


NOT_STORED = Placement()


class Placements:
    """Answers which groups stored objects are charged to."""

    def __init__(
        self, informers: Informers, ownership: Ownership, detached: DetachedObjects, registry: Registry
    ) -> None:
        self._informers = informers
        self._ownership = ownership
        self._detached = detached
        self._registry = registry
        self._adapters = {adapter.resource: adapter for adapter in registry.charged}

    def charged_to(self, group: str) -> Iterator[tuple[Adapter, Object]]:
        """Yield all stored objects that the group is charged for.

        These name the group, or are in its namespaces and name none, or are detached from it. An object that an owner
        pays for is left out, and so is one whose owner was deleted.
        """
        for obj in self._detached.objects_of(group):
            adapter = self._registry.of(obj)
            if adapter is not None:
                yield adapter, obj
        named = [
            ("group", group),
            *(("unlabelled", namespace) for namespace in self._ownership.namespaces_of(group)),
        ]
        for key, informer in self._informers.workloads.items():
            for index, value in named:
                for kept in informer.store.kept_index(index, value):
                    obj = self._ownership.unpaid(kept)
                    if obj is not None and self._ownership.owner_deleted_at(obj) is None:
                        yield self._adapters[key], obj

    def of(self, uid: str) -> Placement:
        """Return the groups that one object is charged to."""
        kept, kind = next(
            (
                (found, kind)
                for kind, informer in self._informers.kinds.items()
                if (found := informer.store.kept(uid)) is not None
            ),
            (None, None),
        )
        adapter = self._registry.by_kind(*kind) if kind is not None else None
        if kept is None or adapter is None:
            return NOT_STORED
        detached_from = self._detached.group_of(uid)
        groups = {detached_from} if detached_from is not None else set[str]()
        obj = self._ownership.unpaid(kept) if self._registry.is_charged(adapter) else None
        named = set(self._ownership.named_groups(obj)) if obj is not None else set[str]()
        deleted_at = self._ownership.owner_deleted_at(obj) if obj is not None and named else None
        return Placement(adapter, plain(kept), groups | named if deleted_at is None else groups, deleted_at)

    def candidates(self) -> Iterator[str]:
        """Yield the uids of all objects that some group may be charged for. A uid may come several times."""
        yield from self._detached
        for informer in self._informers.workloads.values():
            yield from informer.store.indexed("group")
            yield from informer.store.indexed("unlabelled")

    def owner_deleted_at(self, uid: str) -> float | None:
        """Return when the owner was deleted of an object that is not charged only because of that."""
        return self.of(uid).owner_deleted_at
