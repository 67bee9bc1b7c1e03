"""One kind's objects in memory: by uid, by name and by index.

This file alone decides how objects are found and what counts as deleted. It does not know where they come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from typing import Any, Protocol, TypeAlias, overload

import structlog

from bizrq.kube.client import revision_of

Object = dict[str, Any]


class Compact(Protocol):
    """The compact form of an object of a numerous kind: attributes in place of dicts. A transform makes it."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> int: ...
    def plain(self) -> Object:
        """Return the object as a dict, without the fields that the transform dropped."""
        ...


#: An object as a store holds it and as handlers get it.
Kept: TypeAlias = Object | Compact
#: Called with (last state, new state); None stands for an object that does not exist.
OnChange = Callable[[Any, Any], None]

DELETIONS_KEPT_SECONDS = 300.0
#: Up to this number the objects of a bucket are counted on demand.
_FEW = 500

log = structlog.get_logger(__name__)


class _Bucket(dict[str, Kept]):
    """Objects with one value of an index, by uid. A large bucket also counts its objects by equivalence key."""

    __slots__ = ("counts",)

    def __init__(self, objects: Mapping[str, Kept]) -> None:
        super().__init__(objects)
        self.counts: dict[Hashable, tuple[Kept, int]] | None = None

    def count(self, by: Callable[[Kept], Hashable]) -> dict[Hashable, tuple[Kept, int]]:
        found: dict[Hashable, tuple[Kept, int]] = {}
        for obj in self.values():
            key = by(obj)
            found[key] = obj, found[key][1] + 1 if key in found else 1
        return found


class Store:
    """The snapshot of one kind. Readers must not change an object that they get: it is stored, or shared.

    Methods named `kept` return compact objects as they are; all others return dicts.
    """

    def __init__(
        self,
        indexes: Mapping[str, Callable[[Object], Iterable[str]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        groups_by: Mapping[str, Callable[[Kept], Hashable]] | None = None,
        on_write: OnChange = lambda _old, _new: None,
    ) -> None:
        """`groups_by` gives an equivalence key by index: objects of one key are alike in all that readers compare.

        `on_write` is called with (last state, new state) after each write. If it raises, the store goes on.
        """
        self.resource_version = 0
        self.epoch = 0
        self._clock = clock
        self._by_uid: dict[str, Kept] = {}
        #: By namespace, then by name. Keys that are tuples of both would take more memory than all the rest.
        self._by_name: dict[str, dict[str, Kept]] = {}
        self._functions = dict(indexes or {})
        self._groups_by = dict(groups_by or {})
        #: By index and value. A single object has no bucket: most pods are the only one of their owner.
        self._indexes: dict[str, dict[str, Kept | _Bucket]] = {name: {} for name in self._functions}
        self._deletions: dict[str, float] = {}
        self._on_write = on_write

    def get(self, name: str, namespace: str | None = None) -> Object | None:
        return plain(self.kept_as(name, namespace or ""))

    def by_uid(self, uid: str) -> Object | None:
        return plain(self.kept(uid))

    def kept(self, uid: str) -> Kept | None:
        return self._by_uid.get(uid)

    def kept_as(self, name: str, namespace: str) -> Kept | None:
        return self._by_name.get(namespace, {}).get(name)

    def all_kept(self) -> Collection[Kept]:
        return tuple(self._by_uid.values())

    def values(self) -> Iterator[Object]:
        """Yield all objects that there are now, also across awaits. Each is read as it is asked for."""
        return map(plain, self.all_kept())

    def __len__(self) -> int:
        return len(self._by_uid)

    def index(self, index: str, key: str) -> Iterator[Object]:
        """Yield the objects for which the index function gave `key`, as `values` does.

        Raise KeyError for an unknown index.
        """
        return map(plain, self.kept_index(index, key))

    def kept_index(self, index: str, key: str) -> Collection[Kept]:
        found = self._indexes[index].get(key)
        if found is None:
            return ()
        return tuple(found.values()) if isinstance(found, _Bucket) else (found,)

    def grouped(self, index: str, key: str, *apart: Set[str]) -> list[tuple[Kept, int]]:
        """Return one object of each equivalence key under `key`, and their number. The uids `apart` come singly.

        The object may be a deleted one of the same key. Raise KeyError for an index without `groups_by`.
        """
        by, found = self._groups_by[index], self._indexes[index].get(key)
        if not isinstance(found, _Bucket):
            return [] if found is None else [(found, 1)]
        alone = {uid for uids in apart for uid in found.keys() & uids}
        if not alone:
            return list((found.count(by) if found.counts is None else found.counts).values())
        rest = _Bucket({uid: obj for uid, obj in found.items() if uid not in alone})
        return [*rest.count(by).values(), *((obj, 1) for uid, obj in found.items() if uid in alone)]

    def uids(self, index: str, key: str) -> Set[str]:
        """Return the uids under `key`. Do not change it."""
        found = self._indexes[index].get(key)
        return found.keys() if isinstance(found, _Bucket) else {uid_of(found)} if found is not None else set()

    def keys(self, index: str) -> Set[str]:
        """Return all values of an index."""
        return self._indexes[index].keys()

    def take_stored_from(self, uids: set[str]) -> None:
        """Remove the uids of all objects from a set."""
        uids.difference_update(self._by_uid)

    def indexed(self, index: str) -> Iterator[str]:
        """Yield the uids of all objects for which an index function gave any key; some come twice."""
        for found in self._indexes[index].values():
            yield from found if isinstance(found, _Bucket) else (uid_of(found),)

    def deleted_at(self, uid: str) -> float | None:
        """Return the time in seconds, on the clock, at which the deletion of `uid` came; None after 300 s.

        With a selector, an object that no longer matches counts as deleted: the API server reports no more.
        """
        self._forget_old_deletions()
        return self._deletions.get(uid)

    def put(self, obj: Kept) -> None:
        """Store an object in place of the one of its uid. Only the informer writes."""
        uid, (namespace, name) = uid_of(obj), place_of(obj)
        held = self._by_uid.get(uid)
        if held is not None:
            self._unindex(held)
        self._by_uid[uid] = obj
        self._by_name.setdefault(namespace, {})[name] = obj
        self._deletions.pop(uid, None)
        for index, value in self._values(obj):
            under = self._indexes[index]
            found = under.get(value)
            if found is None:
                under[value] = obj
            elif isinstance(found, _Bucket):
                found[uid] = obj
                self._recount(index, found, obj, 1)
            else:
                under[value] = _Bucket({uid_of(found): found, uid: obj})
        self._notify_write(held, obj)

    def remove(self, obj: Kept) -> None:
        """Record the deletion of an object, stored or not."""
        uid, (namespace, name) = uid_of(obj), place_of(obj)
        held = self._by_uid.pop(uid, None)
        if held is not None:
            self._unindex(held)
        named = self._by_name.get(namespace, {})
        if name in named and uid_of(named[name]) == uid:
            del named[name]
            if not named:
                del self._by_name[namespace]
        self.note_deletion(uid)
        self._notify_write(held if held is not None else obj, None)

    def note_deletion(self, uid: str) -> None:
        self._forget_old_deletions()
        self._deletions.setdefault(uid, self._clock())

    def _notify_write(self, old: Kept | None, new: Kept | None) -> None:
        try:
            self._on_write(old, new)
        except Exception:
            log.exception("the receiver of writes failed", object=place_of(new or old or {}))

    def _values(self, obj: Kept) -> Iterable[tuple[str, str]]:
        """Yield each index with each distinct value that an object has in it."""
        read = plain(obj)
        for index, function in self._functions.items():
            try:
                values = set(function(read))
            except Exception:
                log.exception("index failed; the object is not found by it", index=index, object=place_of(obj))
                continue
            for value in values:
                yield index, value

    def _unindex(self, held: Kept) -> None:
        for index, value in self._values(held):
            under = self._indexes[index]
            found = under[value]
            if isinstance(found, _Bucket):
                del found[uid_of(held)]
                self._recount(index, found, held, -1)
            if not isinstance(found, _Bucket) or not found:
                del under[value]

    def _recount(self, index: str, under: _Bucket, obj: Kept, more: int) -> None:
        """Update the counts of a large bucket as an object comes or goes. Those of a small one are made on demand."""
        by = self._groups_by.get(index)
        if by is None:
            return
        if under.counts is None:
            under.counts = under.count(by) if len(under) > _FEW else None
            return
        key = by(obj)
        one, many = under.counts.get(key, (obj, 0))
        if many + more:
            under.counts[key] = one, many + more
        else:
            del under.counts[key]

    def _forget_old_deletions(self) -> None:
        horizon = self._clock() - DELETIONS_KEPT_SECONDS
        while self._deletions:
            oldest = next(iter(self._deletions))  # insertion order is time order
            if self._deletions[oldest] >= horizon:
                return
            del self._deletions[oldest]


@overload
def plain(obj: Kept) -> Object: ...
@overload
def plain(obj: None) -> None: ...
def plain(obj: Kept | None) -> Object | None:
    return obj if obj is None or isinstance(obj, dict) else obj.plain()


def uid_of(obj: Kept) -> str:
    """Return the uid. Raise ValueError without one: such an object did not come from an API server."""
    if not isinstance(obj, dict):
        return obj.uid
    uid = (obj.get("metadata") or {}).get("uid")
    if not isinstance(uid, str) or not uid:
        raise ValueError("an object without a uid")
    return uid


def kept_revision(obj: Kept) -> int:
    return revision_of(obj) if isinstance(obj, dict) else obj.revision


def place_of(obj: Kept) -> tuple[str, str]:
    """Return the namespace ("" for none) and the name."""
    if not isinstance(obj, dict):
        return obj.namespace, obj.name
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata.get("name") or ""
