"""Detached objects: released by their controller, with no label of their own, and charged to the group that paid.

This file alone decides which group a detached object stays charged to. The group's status lists them, so that the next
process knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bizrq.kube.informer import Informer
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.registry import Registry

Object = dict[str, Any]

#: Deleted owners whose group is remembered: far more than are deleted while a release is on its way.
_REMEMBERED = 10_000


class DetachedObjects:
    """Remembers detached objects and the groups of deleted owners."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: By uid: the group that paid until the release, and the informer that has the object.
        self._detached: dict[str, tuple[str, Informer]] = {}
        #: By uid, the group that a deleted owner charged. Its deletion may arrive before its children's release.
        self._groups_of_deleted: dict[str, str] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._detached

    def __iter__(self) -> Iterator[str]:
        return iter(self._detached)

    def group_of(self, uid: str) -> str | None:
        """Return the group that a detached object stays charged to."""
        found = self._detached.get(uid)
        return found[0] if found is not None else None

    def objects_of(self, group: str) -> list[Object]:
        """Return the stored objects that are detached from the group."""
        found = (informer.store.by_uid(uid) for uid, (named, informer) in self._detached.items() if named == group)
        return [obj for obj in found if obj is not None]

    def slots_of(self, group: str) -> list[tuple[Slot, str]]:
        """Return the slots and uids of the objects that are detached from the group."""
        found = [(self._registry.of(obj), obj["metadata"]) for obj in self.objects_of(group)]
        return [(Slot(a.resource, m["namespace"], m["name"]), m["uid"]) for a, m in found if a is not None]

    def add(self, uid: str, group: str, informer: Informer) -> None:
        """Charge an object to the group as long as it is stored."""
        self._detached[uid] = group, informer

    def drop(self, uid: str) -> None:
        """Remove an object that was deleted, labelled, or taken over by another owner."""
        self._detached.pop(uid, None)

    def note_deleted_owner(self, uid: str, group: str) -> None:
        """Remember the group that a deleted object charged."""
        self._groups_of_deleted[uid] = group
        while len(self._groups_of_deleted) > _REMEMBERED:
            del self._groups_of_deleted[next(iter(self._groups_of_deleted))]

    def group_of_deleted_owner(self, uid: str) -> str | None:
        """Return the group that a deleted object charged."""
        return self._groups_of_deleted.get(uid)
