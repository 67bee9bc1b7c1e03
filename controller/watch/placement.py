"""The groups that stored objects are charged to: by object, by group, and all candidates.

This file alone combines labels, namespace defaults, owners and remembered payers into one answer. It counts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from bizrq.kube.informer import Informer
from bizrq.kube.store import Kept, plain, uid_of
from bizrq.workloads.kinds.declaration import POD, Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import RESELECTING
from controller.watch.descendants import Descendants
from controller.watch.informers import Informers
from controller.watch.ownership import Ownership, as_left
from controller.watch.remembered import RememberedPayers

Object = dict[str, Any]


class Placement(NamedTuple):
    """A stored object and the groups that it is charged to.

    `awaits` is set where that cannot be known yet: the informer of its owner, and the revision to reach. `left` is the
    payer that has let it go.
    """

    adapter: Adapter | None = None
    obj: Object | None = None
    groups: Collection[str] = ()
    awaits: tuple[Informer, int] | None = None
    left: Memory | None = None


NOT_STORED = Placement()


class Placements:
    """Answers which groups stored objects are charged to."""

    def __init__(
        self,
        informers: Informers,
        ownership: Ownership,
        descendants: Descendants,
        payers: RememberedPayers,
        registry: Registry,
    ) -> None:
        self._informers = informers
        self._ownership = ownership
        self._descendants = descendants
        self._payers = payers
        self._registry = registry
        #: The objects that have an owner but pay for themselves, which no index has, with their namespace.
        self._strays: dict[str, str] = {}

    def charged_to(self, group: str) -> Iterator[tuple[Adapter, Object]]:
        """Yield all stored objects that the group is charged for, each once.

        These name the group, or are in its namespaces and name none, or are left of a workload that it paid for. An
        object that an owner pays for is left out. Each is as it is counted.
        """
        seen: set[str] = set()
        for kept in self._named(group):
            uid = uid_of(kept)
            if uid in seen:
                continue
            seen.add(uid)
            obj = plain(kept)
            adapter, left = self._registry.of(obj), self._ownership.let_go(obj)
            if adapter is None or not self._ownership.has_own_slot(obj, left):
                continue
            if self._ownership.group_of_left(obj, left) == group:
                yield adapter, as_left(obj, left)

    def of(self, uid: str) -> Placement:
        """Return the group that one object is charged to."""
        kept = self._informers.kept(uid)
        obj = plain(kept) if kept is not None else None
        adapter = self._registry.of(obj) if obj is not None else None
        if kept is None or obj is None or adapter is None:
            self._note_stray(uid, None)
            return NOT_STORED
        left = self._ownership.let_go(obj)
        is_charged = left is not None or self._registry.is_charged(adapter)
        has_own_slot = is_charged and self._ownership.has_own_slot(obj, left)
        group = self._ownership.group_of_left(obj, left) if has_own_slot else None
        # What was made for another selector of its owner may be what that keeps now.
        is_sure = left is not None and left.gone is not None
        awaits = self._ownership.awaited_owner(kept) if group is not None and not is_sure else None
        is_stray = group is not None and left is None and self._ownership.owner_of(obj) is not None
        self._note_stray(uid, obj["metadata"]["namespace"] if is_stray else None)
        return Placement(adapter, obj, (group,) if group is not None else (), awaits, left)

    def stored(self, uid: str) -> Object | None:
        """Return the object that has this uid, of a kind that is counted."""
        kept = self._informers.kept(uid)
        obj = plain(kept) if kept is not None else None
        return obj if obj is not None and self._registry.of(obj) is not None else None

    def candidates(self) -> Iterator[str]:
        """Yield the uids of all objects that some group may be charged for. A uid may come several times."""
        for informer in self._informers.workloads.values():
            yield from informer.store.indexed("group")
            yield from informer.store.indexed("unlabelled")
        yield from self._ownership.strays()
        for uid in self._payers:
            yield uid
            # What a payer that stands lets go is remembered by itself, once its controller has done so.
            memory = self._payers.get(uid)
            if memory is not None and memory.gone is not None:
                yield from self._descendants.owned_by(uid)
        for informer in self._reselecting():
            for owner in informer.store.values():
                yield from map(uid_of, self._descendants.dropped_by(owner))

    def is_stored(self, uid: str) -> bool:
        """Return True if an object has this uid."""
        return self._informers.kept(uid) is not None

    def is_early(self, uid: str, let_go: Memory) -> bool:
        """Return True while what has let an object go is being deleted: its demand is charged for the same pods."""
        kept = self._informers.kept(uid)
        return kept is not None and self._ownership.is_going(plain(kept), let_go)

    def is_kept(self, uid: str) -> bool:
        """Return True if an owner has the object with this uid. A pod has to be paid for by it."""
        kept = self._informers.kept(uid)
        obj = plain(kept) if kept is not None else None
        if obj is None or self._ownership.owner_of(obj) is None:
            return False
        is_pod = (adapter := self._registry.of(obj)) is not None and adapter.group_kind == POD
        return (self._ownership.payer_of(obj) if is_pod else self._ownership.standing_owner(obj)) is not None

    def _named(self, group: str) -> Iterator[Kept]:
        """Yield the stored objects that may be charged to the group."""
        namespaces = self._ownership.namespaces_of(group)
        named = [("group", group), *(("unlabelled", namespace) for namespace in namespaces)]
        for informer in self._informers.workloads.values():
            for index, value in named:
                yield from informer.store.kept_index(index, value)
        for informer in self._reselecting():
            for index, value in named:
                for owner in informer.store.index(index, value):
                    yield from self._descendants.dropped_by(owner)
        for uid, namespace in tuple(self._strays.items()):
            if namespace in namespaces and (kept := self._informers.kept(uid)) is not None:
                yield kept
        for uid in self._payers.left_in(group):
            for left in (uid, *self._descendants.owned_by(uid)):
                if (kept := self._informers.kept(left)) is not None:
                    yield kept

    def _reselecting(self) -> list[Informer]:
        """Return the informers of the kinds that may get another selector, and drop what they made for the last one."""
        return [informer for kind in sorted(RESELECTING) if (informer := self._informers.kinds.get(kind)) is not None]

    def _note_stray(self, uid: str, namespace: str | None) -> None:
        if namespace is not None:
            self._strays[uid] = namespace
        else:
            self._strays.pop(uid, None)
