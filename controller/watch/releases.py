"""Recognizes objects that a controller releases: by a change that the watch brings, or from a status or record.

This file alone decides when an object becomes detached, and when it stops being so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

from bizrq.units.slot import Slot
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.owners import controller_of
from controller.watch.detached import DetachedObjects
from controller.watch.indexes import labelled_group
from controller.watch.informers import Informers
from controller.watch.invalidation import DirtySet
from controller.watch.ownership import Ownership

log = structlog.get_logger(__name__)

Object = dict[str, Any]


class ReleaseTracker:
    """Keeps `DetachedObjects` in step with the cluster."""

    def __init__(self, informers: Informers, ownership: Ownership, detached: DetachedObjects, dirty: DirtySet) -> None:
        self._informers = informers
        self._ownership = ownership
        self._detached = detached
        self._dirty = dirty

    def record(self, old: Object | None, new: Object | None) -> None:
        """Record what a change means for a detached object. Call it before payers are forgotten."""
        if old is None:
            return
        uid, pays = old["metadata"]["uid"], self._ownership.payer_of(old)
        group = self._ownership.group_of(pays or old)
        if new is None:
            self._detached.drop(uid)
            if group is not None:
                self._detached.note_deleted_owner(uid, group)
            return
        before, after = controller_of(old["metadata"]), controller_of(new["metadata"])
        if before is not None and after is None and not any(labelled_group(new)):
            paid = group if pays is not None else self._detached.group_of_deleted_owner(str(before.get("uid")))
            self._record_release(paid, new)
        elif self._ownership.payer_of(new) is not None or any(labelled_group(new)):
            self._detached.drop(uid)

    def _record_release(self, group: str | None, obj: Object) -> None:
        """Charge a released object to the group that paid, unless a namespace's default applies."""
        informer = self._informers.kinds.get((group_and_version(obj.get("apiVersion"))[0], str(obj.get("kind"))))
        if group is not None and informer is not None and self._ownership.group_of(obj) is None:
            uid = obj["metadata"]["uid"]
            log.warning("object released by its owner, still charged", group=group, kind=obj.get("kind"), uid=uid)
            self._detached.add(uid, group, informer)

    def adopt(self, group: str, detached: Iterable[tuple[Slot, str]]) -> None:
        """Take over objects that a status or record lists as detached, where they are stored and no group pays."""
        for slot, uid in detached:
            informer = self._informers.get(slot.kind) if uid not in self._detached else None
            obj = informer.store.by_uid(uid) if informer is not None else None
            if informer is not None and obj is not None and self._ownership.paying_group(obj) is None:
                self._detached.add(uid, group, informer)
                self._dirty.mark(uid)
