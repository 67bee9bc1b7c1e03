"""Find who pays for a reviewed object: an owner that keeps it, or the group that paid for one which released it.

This file alone asks that in admission, by the rules of `bizrq.workloads.ownership.payers`. It does not know costs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from bizrq.quota.reservation import LIFETIME, entries_with
from bizrq.store.groups import GROUPS
from bizrq.store.payers import KnownPayers
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.owners import controller_of, named_owner, namespace_name, owner_chain
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import (
    RESELECTING,
    SELECTING,
    Paid,
    PayingOwner,
    Remembered,
    anywhere,
    keeps,
    makes,
    matches_reference,
    owner_of_write,
    owner_that_pays,
    paid_by,
    place_in,
    selector_of,
)
from bizrq.workloads.selectors import keys_of
from bizrq.workloads.validation import Malformed, expect_list, expect_map, expect_text
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import stored_label

Object = dict[str, Any]

#: The selectors of these never change (kubernetes pkg/apis/apps/validation, pkg/apis/batch/validation).
_FIXED: Final = SELECTING - RESELECTING
#: Selectors that are kept: some hundred bytes each.
_KEPT: Final = 10_000
#: Stands for the time at which an owner went that is found gone: later than any creation.
_SINCE_NOW: Final = 2**62


class Payers:
    """Answers who pays, for all handlers of one process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: The label keys that an owner's selector looks at, by the owner's uid.
        self._keys: OrderedDict[str, frozenset[str]] = OrderedDict()

    def owner(self, obj: Object, lookup: Lookup) -> PayingOwner | None:
        """Return the topmost owner that pays for an object and keeps it; None where none does."""
        return owner_that_pays(obj, self._context.registry, lookup)

    def owner_after(self, new: Object, old: Object | None, lookup: Lookup) -> PayingOwner | None:
        """Return what `owner` does of what a write stores, but no owner of a pod that stays with another group."""
        return owner_of_write(new, old, self._context.registry, lookup, self._context.payers)

    def of_stored(self, obj: Object | None, lookup: Lookup) -> Paid | None:
        """Return who else pays for a stored object: an owner, or who paid for it before. None if it pays for itself."""
        if obj is None:
            return None
        return self._by_another(obj, lookup, self._context.payers) or self._of_gone_owner(obj, lookup)

    def _by_another(self, obj: Object, lookup: Lookup, remembered: Remembered) -> Paid | None:
        """Return who else pays for an object by what is remembered."""
        paid = paid_by(obj, self._context.registry, lookup, remembered, anywhere)
        return paid if paid is not None and paid.is_by_another else None

    def _of_gone_owner(self, obj: Object, lookup: Lookup) -> Paid | None:
        """Return who paid for the owner of an object that is not stored any more, which nobody has recorded yet.

        Anybody may name its uid. So what names another group itself is that one's.
        """
        top = obj
        for owner, _, _ in owner_chain(obj, self._context.registry, lookup):
            if not keeps(owner, top):
                return None
            top = owner
        reference = controller_of(top.get("metadata"))
        if reference is None or not makes(reference, top, self._context.registry):
            return None
        uid = str(reference.get("uid"))
        memory = self._context.payers.get(uid) or self._promised(uid)
        if memory is None or memory.gone is not None or not matches_reference(memory, reference, namespace_name(top)):
            return None
        if any(stored_label(each) not in (None, memory.group) for each in (obj, top)):
            return None
        return self._by_another(obj, lookup, {uid: replace(memory, gone=_SINCE_NOW)})

    def _promised(self, uid: str) -> Memory | None:
        """Return the payer of an object whose creation a group was promised for, and that no count has seen."""
        for group in self._context.groups.values():
            for entry in entries_with(group.status.reservations, f" uid={uid} "):
                kind = self._context.registry.of_slot(entry.slot) if entry.is_create else None
                if kind is not None:
                    return Memory(group.name, place_in(entry.slot, kind), entry.expires - LIFETIME)
        return None

    def takes_away(self, new: Object, paid: Paid, lookup: Lookup) -> bool:
        """Return True where a write takes an object away from `paid`, who paid for it until now."""
        after = self.of_stored(new, lookup)
        return after is None or after.payer != paid.payer

    async def of_released(self, old: Object, lookup: Lookup, deadline: Deadline) -> Paid | None:
        """Return who paid for a stored object that nobody pays for by what the watches show.

        Its owner may have released it a moment ago, and the reservation of that write says who paid. The groups are
        read only where the watch of them may not have that yet. Raises ApiError, Unreachable.
        """
        if self._context.registry.of(old) not in self._context.registry.made:
            # No owner has made it: a Deployment that an autoscaler scales, for example.
            return None
        version = str(old["metadata"].get("resourceVersion", ""))
        if not version.isdecimal() or self._context.groups.revision >= int(version):
            return None
        known = KnownPayers()
        for group in (await self._context.lists.of(GROUPS, deadline))[0]:
            known.on_group(None, group)
        return self._by_another(old, lookup, known)

    async def may_leave(self, old: Object, new: Object, deadline: Deadline) -> bool:
        """Return True where an update may take an object out of its owner: by its reference, or by its labels.

        Raises ApiError, Unreachable.
        """
        reference = controller_of(old.get("metadata"))
        if reference is None:
            return False
        kept = controller_of(new.get("metadata"))
        if kept is None or named_owner(kept) != named_owner(reference):
            # A controller goes by the uid; who pays is found by the kind and the name as well.
            return True
        before, after = _labels(old), _labels(new)
        # A selector may ask that a label is absent.
        changed = {key for key in (*before, *after) if before.get(key) != after.get(key)}
        return bool(changed) and bool(changed & await self._keys_of(reference, old, deadline))

    async def _keys_of(self, reference: Object, child: Object, deadline: Deadline) -> frozenset[str]:
        """Return the label keys that the owner's selector looks at. Raises ApiError, Unreachable."""
        group, _ = group_and_version(reference.get("apiVersion"))
        kind, name, uid = str(reference.get("kind")), str(reference.get("name")), str(reference.get("uid"))
        if (group, kind) not in SELECTING:
            return frozenset()
        if uid in self._keys:
            self._keys.move_to_end(uid)
            return self._keys[uid]
        namespace = child["metadata"].get("namespace", "")
        lookup = await self._context.resolver.resolve(
            lambda known: known.get(group, kind, namespace, name), deadline.seconds_left()
        )
        owner = lookup.get(group, kind, namespace, name)
        if owner is None or owner["metadata"].get("uid") != uid:
            return frozenset()
        keys = keys_of(selector_of(owner))
        if (group, kind) in _FIXED:
            self._keys[uid] = keys
            while len(self._keys) > _KEPT:
                self._keys.popitem(last=False)
        return keys


def slot_of_owner(owner: Object, adapter: Adapter) -> Slot:
    """Return the slot of a stored owner."""
    return Slot(adapter.resource, owner["metadata"].get("namespace", ""), owner["metadata"]["name"])


def check_owner_references(obj: Mapping[str, Any]) -> None:
    """Raise Malformed for ownerReferences that no API server stores."""
    path = "metadata.ownerReferences"
    references = expect_list(expect_map(obj.get("metadata"), "metadata").get("ownerReferences"), path)
    for index, each in enumerate(references):
        reference = expect_map(each, f"{path}[{index}]")
        for key in ("apiVersion", "kind", "name", "uid"):
            if not expect_text(reference.get(key), f"{path}[{index}].{key}"):
                raise Malformed(f"{path}[{index}].{key}: is missing")


def _labels(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = (obj.get("metadata") or {}).get("labels")
    return labels if isinstance(labels, dict) else {}
