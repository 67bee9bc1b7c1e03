"""Store objects by kind, namespace and name, under one integer revision, with the history that watches read.

It decides revisions, optimistic locks and the length of the history. It does not know what an object means.
A stored object is never changed in place; a write replaces it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

Kind = tuple[str, str]  # (group, plural)
Key = tuple[str, str]  # (namespace or "", name)
Json = dict[str, Any]

LARGEST = 1_572_864  # etcd's --max-request-bytes
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class Exists(Exception):
    """An object of this name exists."""


class Moved(Exception):
    """The object is gone or has another revision than expected."""


class TooLarge(Exception):
    """The object has more bytes than etcd takes in one request."""


class Compacted(Exception):
    """The revision is older than the history; carries the oldest revision in it."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest


class Item:
    """A stored object at one revision, and its JSON (without apiVersion and kind, which depend on the request)."""

    __slots__ = ("_raw", "obj", "version")

    def __init__(self, obj: Json, version: int) -> None:
        self.obj = obj
        self.version = version
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = orjson.dumps({k: v for k, v in self.obj.items() if k not in ("apiVersion", "kind")})
        return self._raw


class Event(NamedTuple):
    """One change. `item` is the object after it (for DELETED: its last state, at the deletion's revision)."""

    version: int
    type: str
    key: Key
    item: Item
    before: Item | None


@dataclass
class _Shelf:
    """All objects of one kind, the keys in order, the changes in order, and the watchers' events."""

    items: dict[Key, Item] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    oldest: int = 0
    waiters: set[asyncio.Event] = field(default_factory=set)


Listener = Callable[[Kind, Event], None]


class Store:
    """A store in memory, for one event loop. `history` is the number of changes of each kind kept for watches."""

    def __init__(self, history: int = 20_000) -> None:
        self.revision = 1
        self._history = history
        self._shelves: dict[Kind, _Shelf] = {}
        self.listeners: list[Listener] = []

    def _shelf(self, kind: Kind) -> _Shelf:
        shelf = self._shelves.get(kind)
        if shelf is None:
            shelf = self._shelves[kind] = _Shelf()
        return shelf

    def get(self, kind: Kind, namespace: str, name: str) -> Item | None:
        return self._shelf(kind).items.get((namespace, name))

    def items(self, kind: Kind, namespace: str | None = None) -> list[Item]:
        """Return objects in the order of their keys; `namespace` None is all namespaces."""
        shelf = self._shelf(kind)
        if namespace is None:
            return [shelf.items[key] for key in shelf.keys]
        start = bisect_right(shelf.keys, (namespace, ""))
        found: list[Item] = []
        for key in shelf.keys[start:]:
            if key[0] != namespace:
                break
            found.append(shelf.items[key])
        return found

    def at(self, kind: Kind, version: int) -> list[tuple[Key, Item]]:
        """Return a kind's objects at a revision, in the order of keys; Compacted if it is older than the history."""
        shelf = self._shelf(kind)
        if version < shelf.oldest:
            raise Compacted(shelf.oldest)
        if not shelf.events or shelf.events[-1].version <= version:
            return [(key, shelf.items[key]) for key in shelf.keys]
        items = dict(shelf.items)
        for event in reversed(self.events(kind, version)):
            if event.before is None:
                items.pop(event.key, None)
            else:
                items[event.key] = event.before
        return sorted(items.items())

    def insert(self, kind: Kind, key: Key, obj: Json) -> Item:
        shelf = self._shelf(kind)
        if key in shelf.items:
            raise Exists
        item = self._stamped(obj)
        shelf.items[key] = item
        insort(shelf.keys, key)
        self._happened(kind, shelf, Event(item.version, ADDED, key, item, None))
        return item

    def replace(self, kind: Kind, key: Key, obj: Json, expected: int) -> Item:
        shelf = self._shelf(kind)
        before = shelf.items.get(key)
        if before is None or before.version != expected:
            raise Moved
        item = self._stamped(obj)
        shelf.items[key] = item
        self._happened(kind, shelf, Event(item.version, MODIFIED, key, item, before))
        return item

    def remove(self, kind: Kind, key: Key, expected: int) -> Item:
        shelf = self._shelf(kind)
        before = shelf.items.get(key)
        if before is None or before.version != expected:
            raise Moved
        item = self._stamped(before.obj)
        del shelf.items[key]
        del shelf.keys[bisect_right(shelf.keys, key) - 1]
        self._happened(kind, shelf, Event(item.version, DELETED, key, item, before))
        return item

    def events(self, kind: Kind, after: int) -> list[Event]:
        """Return the kind's changes after a revision, oldest first."""
        shelf = self._shelf(kind)
        if after < shelf.oldest:
            raise Compacted(shelf.oldest)
        return shelf.events[bisect_right(shelf.events, after, key=lambda event: event.version) :]

    def watch(self, kind: Kind) -> asyncio.Event:
        """Return an event that every change of the kind sets, until `unwatch`."""
        waiter = asyncio.Event()
        self._shelf(kind).waiters.add(waiter)
        return waiter

    def unwatch(self, kind: Kind, waiter: asyncio.Event) -> None:
        self._shelf(kind).waiters.discard(waiter)

    def wake(self, kind: Kind) -> None:
        """Wake the watchers of the kind without a change."""
        for waiter in self._shelf(kind).waiters:
            waiter.set()

    def compact(self, kinds: Iterable[Kind] | None = None) -> None:
        """Forget all history: watches and lists from an earlier revision raise Compacted."""
        for kind in list(self._shelves) if kinds is None else kinds:
            shelf = self._shelf(kind)
            shelf.events.clear()
            shelf.oldest = self.revision
            self.wake(kind)

    def _stamped(self, obj: Json) -> Item:
        version = self.revision + 1
        item = Item({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}, version)
        if len(item.raw) > LARGEST:
            raise TooLarge
        self.revision = version
        return item

    def _happened(self, kind: Kind, shelf: _Shelf, event: Event) -> None:
        shelf.events.append(event)
        if len(shelf.events) > 2 * self._history:
            del shelf.events[: self._history]
            shelf.oldest = shelf.events[0].version - 1
        for waiter in shelf.waiters:
            waiter.set()
        for listener in self.listeners:
            listener(kind, event)
