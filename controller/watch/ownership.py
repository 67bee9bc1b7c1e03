"""Who pays for a stored object: an owner above it, the group that paid before, or the group that it names.

This file alone applies `bizrq.workloads.ownership.payers` to what the informers have. It counts nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from bizrq.kube.informer import Informer
from bizrq.kube.store import Kept, kept_revision, place_of, plain, uid_of
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import with_models
from bizrq.workloads.lookup import Reference, group_and_version, reference_of
from bizrq.workloads.owners import charged_group, controller_of, named_owner, owner_chain
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import (
    LATE,
    RESELECTING,
    Paid,
    PayerReason,
    adopts,
    anywhere,
    created_at,
    dropped_by,
    has_stayed,
    keeps,
    left_by,
    paid_as_kept,
    paid_by,
)
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from controller.watch.indexes import controller_uid, labelled_group
from controller.watch.informers import Informers
from controller.watch.remembered import RememberedPayers

Object = dict[str, Any]


class _Above(NamedTuple):
    """What is above an object: its owner, and the object whose slot is charged for what that owner keeps, if any."""

    owner: Reference
    top: Reference | None


class Ownership:
    """Answers who pays for an object as the informers have it. Remembers payers until an owner changes."""

    def __init__(
        self, informers: Informers, payers: RememberedPayers, registry: Registry, unpaid: Container[str]
    ) -> None:
        """`unpaid` has the uids of what no group has paid for: it is left by none."""
        self._informers = informers
        self._payers_gone = payers
        self._registry = registry
        self._unpaid = unpaid
        self._lookup = informers.resolver.cached_lookup
        #: What is above, by kind and namespace of the child, and all that it says of its controller.
        self._payers: dict[tuple[object, ...], _Above | None] = {}
        #: The uids of those controllers, including deleted ones and ones not seen yet.
        self._owners_asked: set[object] = set()

    def paid(self, obj: Object) -> Paid | None:
        """Return who pays for an object, stored or not, and why.

        A label counts even if its group does not exist or does not take the namespace: the group pays once it exists.
        """
        found = paid_by(obj, self._registry, self._lookup, self._payers_gone, anywhere)
        if found is None or found.reason is not PayerReason.LEFTOVER:
            return found
        return None if self.is_unpaid(obj) or found.payer in self._unpaid else found

    def is_unpaid(self, obj: Object) -> bool:
        """Return True for what no group has paid for, though one pays for its owner or did."""
        return obj["metadata"]["uid"] in self._unpaid

    def let_go(self, obj: Object) -> Memory | None:
        """Return the payer that is gone or released this object, which is the topmost one that is left."""
        found = left_by(obj, self._registry, self._payers_gone) or dropped_by(
            obj, self._registry, self._lookup, self._payers_gone
        )
        # A standing payer is remembered for what it keeps as well.
        paid = self.paid(obj) if found is not None else None
        if paid is None or paid.reason is not PayerReason.LEFTOVER or paid.payer != obj["metadata"]["uid"]:
            return None
        return found

    def counted(self, obj: Object) -> Object:
        """Return an object as it is counted: what is left has the models of the payer that left it."""
        return as_left(obj, self.let_go(obj))

    def group_of(self, obj: Object) -> str | None:
        """Return the group that an object charges if no owner pays for it. An invalid label charges no group."""
        return self.group_of_left(obj, self.let_go(obj))

    def group_of_left(self, obj: Object, left: Memory | None) -> str | None:
        """Return what `group_of` does for an object of which `left` is known: the payer that has let it go, if any."""
        if left is not None:
            return left.group
        try:
            return charged_group(obj, self._registry, self._lookup)
        except Malformed:
            return None

    def payer_of(self, obj: Object) -> Object | None:
        """Return the object above whose slot is charged: an owner that pays, or the topmost that is left of one.

        For a leftover it is the workload that will adopt it. None where the object has its own slot.
        """
        return None if self.has_stayed(obj) else self.keeper_of(obj)

    def has_own_slot(self, obj: Object, left: Memory | None) -> bool:
        """Return True where no object above is charged; `left` is the payer that has let this one go, if any."""
        is_alone = left is None and controller_of(obj["metadata"]) is None
        return is_alone or self.payer_of(obj) is None

    def has_stayed(self, obj: Object) -> bool:
        """Return True for a pod that an owner keeps and another group pays for than the owner's."""
        return has_stayed(obj, self._registry, self._lookup, self._payers_gone)

    def keeper_of(self, obj: Object) -> Object | None:
        """Return what `payer_of` does, or would for a pod that has not stayed with another group."""
        reference = controller_of(obj["metadata"])
        if reference is None:
            return self.adopter_of(obj)
        # Of two objects that name one uid, one may name a kind that is not the owner's.
        key = obj.get("apiVersion"), obj.get("kind"), obj["metadata"].get("namespace", ""), *named_owner(reference)
        if key not in self._payers:
            direct = next(owner_chain(obj, self._registry, self._lookup), None)
            if direct is not None and not keeps(direct[0], obj):
                return None
            self._payers[key] = _Above(reference_of(direct[0]), self._top(obj)) if direct is not None else None
            self._owners_asked.add(reference.get("uid"))
        above = self._payers[key]
        if above is None or above.top is None:
            return None
        owner = self._lookup.get(*above.owner)
        return self._lookup.get(*above.top) if owner is not None and keeps(owner, obj) else None

    def standing_owner(self, obj: Object) -> Object | None:
        """Return the stored owner that keeps an object, whether or not a group pays for it."""
        owner = next(owner_chain(obj, self._registry, self._lookup), None)
        return owner[0] if owner is not None and keeps(owner[0], obj) else None

    def is_going(self, obj: Object, let_go: Memory) -> bool:
        """Return True while the payer that has let an object go is being deleted: its demand is charged until then."""
        return any(
            payer is not None and payer["metadata"].get("deletionTimestamp") is not None and keeps(payer, obj)
            for _, payer in self._at(let_go.place, obj)
        )

    def informers_of_payer(self, obj: Object, let_go: Memory) -> list[Informer]:
        """Return the informers of the kinds that the payer may be of which has let an object go."""
        found = (self._informers.kinds.get(adapter.group_kind) for adapter, _ in self._at(let_go.place, obj))
        return [informer for informer in found if informer is not None and informer.installed]

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

    def awaited_owner(self, kept: Kept) -> tuple[Informer, int] | None:
        """Return the informer that has to catch up, and with which revision, before an object can be placed.

        The watches of different kinds are not in step, so an object may be seen before its owner, or before the
        selector of its owner that it was made for.
        """
        obj = plain(kept)
        reference = controller_of(obj["metadata"])
        informer = self._informer_of(reference) if reference is not None else None
        if informer is None or reference is None or not informer.installed:
            return None
        uid, revision = str(reference.get("uid")), kept_revision(kept)
        store = informer.store
        if store.resource_version >= revision or store.deleted_at(uid) is not None:
            return None
        owner = store.kept(uid)
        if owner is not None and (reference_of(plain(owner))[:2] not in RESELECTING or keeps(plain(owner), obj)):
            return None
        return informer, revision

    def namespaces_of(self, group: str) -> list[str]:
        """Return the managed namespaces whose default group this is."""
        return [
            namespace["metadata"]["name"]
            for namespace in self._lookup.all_of("", "Namespace", "")
            if group in labelled_group(namespace) and self._registry.scope.manages(namespace)
        ]

    def default_namespaces(self) -> set[str]:
        """Return the managed namespaces that have a default group."""
        namespaces = self._lookup.all_of("", "Namespace", "")
        return {
            namespace["metadata"]["name"]
            for namespace in namespaces
            if labelled_group(namespace) and self._registry.scope.manages(namespace)
        }

    def strays(self) -> Iterator[str]:
        """Yield the objects in namespaces with a default whose owner does not pay for them, or is not stored."""
        namespaces = self.default_namespaces()
        if not namespaces:
            return
        for informer in self._informers.kinds.values():
            for owner in tuple(informer.store.keys("owner")):
                for kept in informer.store.kept_index("owner", owner):
                    if place_of(kept)[0] in namespaces and self.payer_of(plain(kept)) is None:
                        yield uid_of(kept)

    def workload_of(self, pod: Object) -> tuple[Adapter, Object] | None:
        """Return the workload that pays for a pod, which may be the pod itself.

        None for a pod whose controller is gone and that charges no group.
        """
        found = self.payer_of(pod)
        if found is None and self.group_of(pod) is None and self._lost_controller(pod):
            return None
        found = self.counted(found or pod)
        adapter = self._registry.of(found)
        return (adapter, found) if adapter is not None else None

    def owner_of(self, obj: Object) -> str | None:
        """Return the uid of the controller that an object names."""
        return next(iter(controller_uid(obj)), None)

    def unowned_above(self, obj: Object) -> tuple[Slot, str] | None:
        """Return the slot and uid of the top-most owner of an object, or of itself.

        None where that owner still names a controller above it.
        """
        top = obj
        for owner, _, _ in owner_chain(obj, self._registry, self._lookup):
            top = owner
        adapter, metadata = self._registry.of(top), top["metadata"]
        if adapter is None or controller_of(metadata) is not None:
            return None
        return Slot(adapter.resource, metadata["namespace"], metadata["name"]), metadata["uid"]

    def adopter_of(self, obj: Object) -> Object | None:
        """Return the workload that will adopt a leftover: it came in place of the one that is gone, and would keep it.

        Its demand includes the leftover, which would count twice until its controller has acted. So the leftover counts
        as one of its own.
        """
        left = self.let_go(obj)
        if left is None or left.gone is None or obj["metadata"].get("deletionTimestamp") is not None:
            return None
        for _, found in self._at(left.place, obj):
            # The release may be seen some seconds after the workload that comes in place of the one before.
            came_later = found is not None and (created_at(found) or 0) + LATE > left.gone
            if found is not None and came_later and self._adopts(found, obj) and self.group_of(found) == left.group:
                return found
        return None

    def at(self, place: str) -> Iterator[tuple[Adapter, Object | None]]:
        """Yield the kinds that a place may be of, with what is stored there of each."""
        name_of_kind, namespace, name = place.split("/", 2)
        for adapter in self._registry.charged:
            if adapter.kind == name_of_kind:
                yield adapter, self._lookup.get(adapter.group, adapter.kind, namespace, name)

    def _at(self, place: str, made: Object) -> Iterator[tuple[Adapter, Object | None]]:
        """Yield what `at` does, of the kinds that make such an object."""
        made_as = group_and_version(made.get("apiVersion"))[0], str(made.get("kind"))
        return ((adapter, found) for adapter, found in self.at(place) if made_as in adapter.creates)

    def _adopts(self, owner: Object, obj: Object) -> bool:
        """Return True for an owner whose controller adopts what its selector matches, and pays for it itself."""
        adapter = self._registry.of(owner)
        if adapter is None or owner["metadata"].get("deletionTimestamp") is not None or has_ended(owner, adapter):
            return False
        return adopts(owner) and keeps(owner, obj) and self.payer_of(owner) is None

    def _top(self, obj: Object) -> Reference | None:
        lookup = self._lookup
        paid = paid_as_kept(obj, self._registry, lookup, self._payers_gone, anywhere)
        return reference_of(paid.slot_of) if paid is not None and paid.slot_of is not obj else None

    def _lost_controller(self, obj: Object) -> bool:
        """Return True if the controller that an object names is not stored."""
        reference = controller_of(obj["metadata"])
        informer = self._informer_of(reference) if reference is not None else None
        return informer is not None and reference is not None and informer.store.kept(str(reference.get("uid"))) is None

    def _informer_of(self, reference: Object) -> Informer | None:
        """Return the informer of the kind that an owner reference names."""
        group, _ = group_and_version(reference.get("apiVersion"))
        return self._informers.kinds.get((group, str(reference.get("kind"))))


def as_left(obj: Object, left: Memory | None) -> Object:
    """Return an object as it is counted: with the models of the payer that has let it go, if any."""
    if left is None or not left.models:
        return obj
    try:
        return with_models(obj, left.models)
    except Malformed:
        return obj
