"""Recognizes payers that go or let something go: from changes that the watch brings, a status, or a record.

This file alone decides from when on a group pays for a leftover. `remembered` keeps and stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import structlog

from bizrq.kube.store import plain, uid_of
from bizrq.quota.reservation import LIFETIME, Reservation, entries_with
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import POD
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import OverlayLookup, reference_of
from bizrq.workloads.owners import MAX_HOPS, controller_of
from bizrq.workloads.ownership.memory import Memory, PayersUnreadable, leaving_line, parse_payer
from bizrq.workloads.ownership.payers import (
    RESELECTING,
    Paid,
    PayerReason,
    anywhere,
    keeps,
    paid_by,
    place_in,
    place_of,
)
from controller.watch.descendants import Descendants
from controller.watch.indexes import labelled_group
from controller.watch.informers import Informers
from controller.watch.invalidation import DirtySet, Mark
from controller.watch.ownership import Ownership
from controller.watch.remembered import RememberedPayers
from controller.watch.unseen_versions import UnseenVersion, UnseenVersions

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: Stands for the kind of a payer that an older status does not name.
_UNKNOWN = "Unknown"


class ReleaseTracker:
    """Keeps `RememberedPayers` in step with the cluster."""

    def __init__(
        self,
        informers: Informers,
        ownership: Ownership,
        descendants: Descendants,
        payers: RememberedPayers,
        dirty: DirtySet,
        registry: Registry,
        now: Callable[[], int],
    ) -> None:
        self._informers = informers
        self._ownership = ownership
        self._descendants = descendants
        self._payers = payers
        self._dirty = dirty
        self._registry = registry
        self._now = now
        self._unseen = UnseenVersions(informers, registry)

    def record(self, old: Object | None, new: Object | None) -> None:
        """Record what a change means for leftovers. Call it before payers are forgotten."""
        for place in {place_of(obj) for obj in (old, new) if obj is not None}:
            for uid in self._payers.left_of(place):
                # A workload of this name adopts them, or no longer does.
                self._dirty.mark(uid, Mark(MAX_HOPS, MAX_HOPS))
        if old is None:
            return
        if new is None:
            self._record_deletion(old)
        else:
            self._record_release(old, new)
            self._record_dropped(old, new)

    def record_unmanaged(self, old: Object, new: Object) -> None:
        """Record that a namespace is managed no more: what the workloads there have made stays charged.

        By the new labels, which the watch has stored, no group pays there. Call it once all kinds are synced.
        """
        name, now = new["metadata"]["name"], self._now()
        place = f"Namespace/{name}/{name}"
        was = OverlayLookup(self._informers.resolver.cached_lookup, reference_of(new), old)
        for kept in self._informers.all_pods():
            # A pod that pays for itself has no line yet, unlike a workload that makes pods.
            if kept.namespace == name and not kept.is_terminated and self._payers.get(kept.uid) is None:
                paid = paid_by(kept.plain(), self._registry, was, self._payers, anywhere)
                if paid is not None and paid.payer == kept.uid:
                    self._payers.remember(kept.uid, Memory(paid.group, place, paid.since or now, now, paid.models))
        self._ownership.forget_payers()
        self.settle()

    def settle(self, uids: Iterable[str] | None = None) -> None:
        """Find the remembered payers that went while nobody watched: these, or all."""
        for uid in self._payers if uids is None else uids:
            memory = self._payers.get(uid)
            if memory is None or memory.gone is not None:
                continue
            obj = self._stored(uid)
            if obj is None or self._ownership.let_go(obj) is not None:
                self._payers.remember(uid, replace(memory, gone=self._now()))
                self.changed([uid])

    def find_unseen_ends(self) -> None:
        """Find what was left and went while nobody watched: until then it may have made pods.

        Call it once nobody has watched for a while. Anybody may name in a pod's owner what is known to be gone.
        """
        for uid in self._payers:
            memory = self._payers.get(uid)
            if memory is None or memory.gone is None or self._stored(uid) is not None:
                continue
            if any(self._is_made_later(child, memory) for child in map(self._stored, self._descendants.owned_by(uid))):
                self._payers.remember(uid, replace(memory, gone=self._now()))
                self.changed([uid])

    def _is_made_later(self, child: Object | None, left: Memory) -> bool:
        """Return True for what an owner made that had been left long before.

        A payer makes nothing once it is gone. What names another group was admitted there.
        """
        reference = controller_of(child["metadata"]) if child is not None else None
        if child is None or reference is None or self._ownership.let_go(child) is not None:
            return False
        owner = f"{reference.get('kind')}/{child['metadata'].get('namespace', '')}/{reference.get('name')}"
        return owner != left.place and all(group == left.group for group in labelled_group(child))

    def find_unseen_versions(self) -> None:
        """Remember the payers of ReplicaSets that came and went while nobody watched: whoever pays for their workload.

        Call it once nobody has watched for a while, after `settle`. Anybody may name what never was in a pod's owner.
        """
        for version in self._unseen:
            if self._payers.get(version.uid) is None and (was := self._payer_of_version(version)) is not None:
                self._payers.remember(version.uid, replace(was, gone=self._now()))
                self.changed([version.uid])

    def _payer_of_version(self, version: UnseenVersion) -> Memory | None:
        """Return who pays for the workload of a ReplicaSet, or paid until it went."""
        for adapter in self._unseen.kinds:
            lookup = self._informers.resolver.cached_lookup
            workload = lookup.get(adapter.group, adapter.kind, version.namespace, version.workload)
            if workload is not None and keeps(workload, version.pod) and (paid := self._ownership.paid(workload)):
                return Memory(paid.group, paid.place, paid.since or self._now(), None, paid.models)
            place = f"{adapter.kind}/{version.namespace}/{version.workload}"
            for uid in self._payers.left_of(place):
                if (memory := self._payers.get(uid)) is not None:
                    return memory
        return None

    def changed(self, uids: Collection[str]) -> None:
        """Place again what remembered payers left."""
        self._ownership.forget_payers()
        for uid in uids:
            self._dirty.mark(uid, Mark(MAX_HOPS, MAX_HOPS))

    def adopt(self, group: str, released: Iterable[tuple[Slot, str]]) -> None:
        """Take over objects that an older status, or the record of hours, has as the group's where no group pays."""
        for slot, uid in released:
            informer = self._informers.get(slot.kind) if self._payers.get(uid) is None else None
            obj = informer.store.by_uid(uid) if informer is not None else None
            if obj is not None and self._ownership.paying_group(obj) is None:
                now = self._now()
                self._payers.remember(uid, Memory(group, f"{_UNKNOWN}/{slot.namespace}/{slot.name}", now, now))
                self.changed([uid])

    def has_left(self, uid: str) -> bool:
        """Return True if a stored object names this one as its controller."""
        return any(self._descendants.owned_by(uid))

    def find_unseen(self, group: str, entries: Collection[Reservation]) -> bool:
        """Remember the group as the payer of what left its owner, or was created and deleted, while nobody watched.

        `entries` are those whose write is over. Whose creation a group was promised for, it pays for what that left.
        Return True if there is any.
        """
        versions: dict[tuple[str, str], list[str]] | None = None
        is_any = self._find_released(group, entries)
        self._note_growth(group, entries)
        for entry in entries:
            uid, slot = entry.uid, entry.slot
            if not entry.is_create or self._payers.in_group(group, uid) is not None or self._stored(uid) is not None:
                continue
            if (adapter := self._registry.of_slot(slot)) is None:
                continue
            # What has moved on before it went is remembered by the other group: that pays for what is seen of it.
            known = self._payers.get(uid)
            left = [uid] if known is None and self.has_left(uid) else []
            if not left and adapter in self._unseen.kinds:
                versions = self._unseen.by_workload() if versions is None else versions
                found = versions.get((slot.namespace, slot.name), ())
                left = [each for each in found if self._payers.get(each) is None and not self._is_paid(each)]
            now, place = self._now(), place_in(slot, adapter)
            for each in left:
                self._payers.remember(each, Memory(group, place, now, now, known.models if known is not None else ()))
            self.changed(left)
            is_any = is_any or bool(left)
        return is_any

    def _find_released(self, group: str, entries: Iterable[Reservation]) -> bool:
        """Remember the payers that reservations state of objects which have left their owners. Return True if any."""
        found: list[str] = []
        #: By place: many objects may leave one owner.
        elsewhere: dict[str, bool] = {}
        for entry in entries:
            line = leaving_line(entry)
            if line is None:
                continue
            try:
                uid, memory = parse_payer(group, line)
            except PayersUnreadable as error:
                log.error("unreadable payer of what left its owner", group=group, entry=str(entry), error=str(error))
                continue
            obj, known = self._stored(uid), self._payers.get(uid)
            is_left = self.has_left(uid) if obj is None else not self._ownership.is_unpaid(obj)
            if known is not None or not is_left:
                continue
            if memory.place not in elsewhere:
                elsewhere[memory.place] = self._is_promised_elsewhere(group, memory.place)
            if not elsewhere[memory.place]:
                self._payers.remember(uid, memory)
                found.append(uid)
        if found:
            self.changed(found)
        return bool(found)

    def _is_promised_elsewhere(self, group: str, payer: str) -> bool:
        """Return True where another group was promised the creation of a payer: it moved on before anybody saw it.

        What was promised holds the pods that it has made by then.
        """
        kind, namespace, name = payer.split("/", 2)
        slots = {Slot(each.resource, namespace, name) for each in self._registry.adapters if each.kind == kind}
        others = (other for other in self._informers.groups.values() if other.name != group)
        promised = (
            entry for each in others for entry in entries_with(each.status.reservations, f"/{namespace}/{name} ")
        )
        return any(entry.is_create and entry.slot in slots for entry in promised)

    def _note_growth(self, group: str, entries: Iterable[Reservation]) -> None:
        """Have what is left be left since it was last admitted to grow: what it made for that is left with it."""
        for entry in entries:
            known = None if entry.is_create else self._payers.in_group(group, entry.uid)
            if known is None or known.gone is None or known.gone >= entry.expires - LIFETIME:
                continue
            if self.has_left(entry.uid):
                self._payers.remember(entry.uid, replace(known, gone=self._now()))
                self.changed([entry.uid])

    def _is_paid(self, uid: str) -> bool:
        """Return True for a stored object that some group pays for."""
        obj = self._stored(uid)
        return obj is not None and self._ownership.paying_group(obj) is not None

    def _record_deletion(self, old: Object) -> None:
        uid, now = old["metadata"]["uid"], self._now()
        known, was = self._payers.get(uid), self._ownership.paid(old)
        if known is not None and was is None:
            # No group paid for it any more: pods that some group paid for have stayed with that, or will.
            self._give_up(uid, known.group)
            return
        is_here = known is None or was is None or was.reason is PayerReason.LEFTOVER or was.group == known.group
        if known is not None and is_here:
            self._payers.remember(uid, replace(known, gone=now))
        elif self._makes(old) and was is not None:
            # It came and went between two recounts, and may have made pods. Another group may remember it still.
            self._leave(uid, was, now)

    def _record_release(self, old: Object, new: Object) -> None:
        """Charge an object to the group that paid until now if no owner keeps it from now on."""
        uid, was = new["metadata"]["uid"], self._ownership.paid(old)
        if self._ownership.is_unpaid(new):
            return
        is_pod = reference_of(new)[:2] == POD
        known = self._payers.get(uid)
        if was is None and known is not None and not is_pod:
            # The owner that lets it go named no group any more.
            self._give_up(uid, known.group)
        if not is_pod and self._ownership.standing_owner(new) is not None:
            # Another owner has it, which pays or not.
            return
        if was is None or not was.is_by_another:
            return
        left = self._ownership.let_go(new)
        if self._ownership.payer_of(new) is None and (left is None or left.gone is None):
            log.warning("object released by its owner, still charged", group=was.group, object=place_of(new), uid=uid)
            self._leave(uid, was, self._now())

    def _leave(self, uid: str, was: Paid, now: int) -> None:
        """Remember who paid for an object until `now`: it is the last one, whatever other groups remember."""
        since, known = was.since or now, self._payers.get(uid)
        if known is not None:
            since = max(since, known.since if known.group == was.group else known.since + 1)
        self._payers.remember(uid, Memory(was.group, was.place, since, now, was.models))

    def _give_up(self, uid: str, group: str) -> None:
        """Forget what a group remembers of an object and of those below it, but for pods."""
        left, known = [uid], {uid}
        while left:
            owner = left.pop()
            self._payers.give_up(group, owner)
            for each in tuple(self._descendants.owned_by(owner)):
                child = self._stored(each)
                # Owners may name each other.
                if child is not None and reference_of(child)[:2] != POD and each not in known:
                    known.add(each)
                    left.append(each)

    def _record_dropped(self, old: Object, new: Object) -> None:
        """Charge what an owner does not keep to the group that paid until now: it has another selector, or payer."""
        if reference_of(new)[:2] not in RESELECTING:
            return
        adapter, was = self._registry.of(new), self._ownership.paid(old)
        if adapter is None or not adapter.pays or was is None:
            return
        before = OverlayLookup(self._informers.resolver.cached_lookup, reference_of(new), old)
        for kept in tuple(self._descendants.dropped_by(new)):
            child, uid = plain(kept), uid_of(kept)
            paid = paid_by(child, self._registry, before, self._payers, anywhere)
            if paid is None or not paid.is_by_another or (paid.left is not None and paid.left.gone is not None):
                continue
            self._leave(uid, was, self._now())
            self._dirty.mark(uid, Mark(MAX_HOPS, MAX_HOPS))

    def _makes(self, obj: Object) -> bool:
        """Return True for an object that makes others: any workload but a pod, and a pod that did."""
        adapter = self._registry.of(obj)
        if adapter is None:
            return False
        if adapter.group_kind == POD:
            return any(self._descendants.owned_by(obj["metadata"]["uid"]))
        return bool(adapter.creates)

    def _stored(self, uid: str) -> Object | None:
        kept = self._informers.kept(uid)
        return plain(kept) if kept is not None else None
