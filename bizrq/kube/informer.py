"""One kind's objects, kept like the API server's: list, watch, and what to do when either lies or breaks.

This file alone decides when a snapshot may be trusted and how new it is. It knows nothing of what the objects
mean, and it never writes. The semantics are client-go's (tools/cache/reflector.go), stricter in two places:
a watch is not trusted after an outage, and history that went backwards is noticed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, overload

import structlog

from bizrq.kube.client import (
    ApiError,
    ConfigError,
    Gone,
    KubeClient,
    NotFound,
    Resource,
    ServerError,
    Unreachable,
    revision_of,
)

Object = dict[str, Any]


class Compact(Protocol):
    """What a transform may make of an object where a cluster has very many: attributes in place of dicts."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> int: ...
    def plain(self) -> Object:
        """The object again, without what the transform dropped."""
        ...


#: What a store holds of an object, and a handler is told.
Kept: TypeAlias = Object | Compact
OnChange = Callable[[Any, Any], None]

DELETIONS_KEPT_SECONDS = 300.0
#: So many objects with one value of an index are sorted whenever somebody asks.
_FEW = 500
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class InformerTimings:
    """Every waiting time of an informer, in seconds; tests make them short."""

    watch: tuple[float, float] = (120.0, 240.0)  # timeoutSeconds that we ask for, drawn from this range
    # Bookmarks come about once a minute where the kind or the cluster moves; two missing ones are suspicious.
    silence: float = 130.0
    initial: float = 60.0  # the longest silence before the end of a streamed list, and the timeout of one page
    first_pause: float = 0.25  # after a failure; doubles up to longest_pause, with jitter
    longest_pause: float = 30.0
    calm: float = 10.0  # so long without a failure forgets the pauses
    confirm: float = 1.0  # between a list that goes backwards and the one that must confirm it
    poll: float = 5.0  # while the kind is not installed
    lag: float = 1.0  # how long catch_up leaves the watch before it forces a list


class _Bucket(dict[str, Kept]):
    """Objects with one value of an index, by uid. Very many of them are sorted: one of each sort, and how many."""

    __slots__ = ("sorts",)

    def __init__(self, objects: Mapping[str, Kept]) -> None:
        super().__init__(objects)
        self.sorts: dict[Hashable, tuple[Kept, int]] | None = None

    def sort(self, by: Callable[[Kept], Hashable]) -> dict[Hashable, tuple[Kept, int]]:
        found: dict[Hashable, tuple[Kept, int]] = {}
        for obj in self.values():
            key = by(obj)
            found[key] = obj, found[key][1] + 1 if key in found else 1
        return found


class Store:
    """One kind's snapshot. Readers must not change what they get: it is stored, or shared.

    Compact objects are read as plain ones, but for those who ask for what is `kept`.
    """

    def __init__(
        self,
        indexes: Mapping[str, Callable[[Object], Iterable[str]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        groups_by: Mapping[str, Callable[[Kept], Hashable]] | None = None,
    ) -> None:
        """`groups_by` says for an index which objects are alike in all that is read of them together."""
        self.resource_version = 0
        self.epoch = 0
        self._clock = clock
        self._by_uid: dict[str, Kept] = {}
        #: By namespace and name: a tuple of both would take more than all the rest here.
        self._by_name: dict[str, dict[str, Kept]] = {}
        self._functions = dict(indexes or {})
        self._groups_by = dict(groups_by or {})
        #: By index and value. One object stands for itself: most pods are the only one that their owner made.
        self._indexes: dict[str, dict[str, Kept | _Bucket]] = {name: {} for name in self._functions}
        self._deletions: dict[str, float] = {}
        #: Told (last state, new one) of each write, once it is done; whatever is told, the store goes on.
        self.on_write: OnChange = lambda _old, _new: None

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

    def values(self) -> Collection[Object]:
        """A copy, so that it may be walked across awaits."""
        return tuple(map(plain, self._by_uid.values()))

    def __len__(self) -> int:
        return len(self._by_uid)

    def index(self, index: str, key: str) -> Collection[Object]:
        """The objects for which the index function gave `key`, as a copy. KeyError for an unknown index."""
        return tuple(map(plain, self.kept_index(index, key)))

    def kept_index(self, index: str, key: str) -> Collection[Kept]:
        found = self._indexes[index].get(key)
        if found is None:
            return ()
        return tuple(found.values()) if isinstance(found, _Bucket) else (found,)

    def grouped(self, index: str, key: str, apart: Container[str] = ()) -> list[tuple[Kept, int]]:
        """One of each sort of the objects under `key`, and how many there are; those that are `apart`, by uid, alone.

        One that has gone may stand for others of its sort. KeyError for an index without sorts.
        """
        by, found = self._groups_by[index], self._indexes[index].get(key)
        if not isinstance(found, _Bucket):
            return [] if found is None else [(found, 1)]
        alone = [uid for uid in found if uid in apart] if apart else []
        if not alone:
            return list((found.sort(by) if found.sorts is None else found.sorts).values())
        rest = _Bucket({uid: obj for uid, obj in found.items() if uid not in apart})
        return [*rest.sort(by).values(), *((found[uid], 1) for uid in alone)]

    def keys(self, index: str) -> Collection[str]:
        """All values of an index."""
        return self._indexes[index].keys()

    def indexed(self, index: str) -> Iterator[str]:
        """The uids of all objects for which an index function gave any key; some may come twice."""
        for found in self._indexes[index].values():
            yield from found if isinstance(found, _Bucket) else (uid_of(found),)

    def deleted_at(self, uid: str) -> float | None:
        """When, on the informer's clock, the deletion of `uid` was delivered; forgotten after 300 s.

        With a selector, an object that no longer matches counts as deleted: the API server says no more.
        """
        self._forget_old_deletions()
        return self._deletions.get(uid)

    def put(self, obj: Kept) -> None:
        """Only the informer writes."""
        uid, (namespace, name) = uid_of(obj), _key(obj)
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
                self._sorted(index, found, obj, 1)
            else:
                under[value] = _Bucket({uid_of(found): found, uid: obj})
        self._notify_write(held, obj)

    def remove(self, obj: Kept) -> None:
        """The object is deleted, held or not."""
        uid, (namespace, name) = uid_of(obj), _key(obj)
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
            self.on_write(old, new)
        except Exception:
            log.exception("who is told of writes failed", object=_key(new or old or {}))

    def _values(self, obj: Kept) -> Iterable[tuple[str, str]]:
        """Each index with each value of it that an object has, once."""
        read = plain(obj)
        for index, function in self._functions.items():
            try:
                values = set(function(read))
            except Exception:
                log.exception("index failed; the object is not found by it", index=index, object=_key(obj))
                continue
            for value in values:
                yield index, value

    def _unindex(self, held: Kept) -> None:
        for index, value in self._values(held):
            under = self._indexes[index]
            found = under[value]
            if isinstance(found, _Bucket):
                del found[uid_of(held)]
                self._sorted(index, found, held, -1)
            if not isinstance(found, _Bucket) or not found:
                del under[value]

    def _sorted(self, index: str, under: _Bucket, obj: Kept, more: int) -> None:
        """Keep the sorts of very many objects as one comes or goes; those of a few are found when asked for."""
        by = self._groups_by.get(index)
        if by is None:
            return
        if under.sorts is None:
            under.sorts = under.sort(by) if len(under) > _FEW else None
            return
        key = by(obj)
        one, many = under.sorts.get(key, (obj, 0))
        if many + more:
            under.sorts[key] = one, many + more
        else:
            del under.sorts[key]

    def _forget_old_deletions(self) -> None:
        horizon = self._clock() - DELETIONS_KEPT_SECONDS
        while self._deletions:
            oldest = next(iter(self._deletions))  # insertion order is time order
            if self._deletions[oldest] >= horizon:
                return
            del self._deletions[oldest]


class _Distrust(Exception):
    """What the server sent does not fit what it sent before; only a fresh list tells."""


class _Backwards(_Distrust):
    """The server's history is behind what it has already shown: a stale answer, or a restored etcd."""


# Answers that mean "I cannot stream a list" rather than "not now".
_NO_STREAMED_LISTS = frozenset({400, 405, 406, 415, 422, 501})
_STREAM_ATTEMPTS = 2
_SILENCES_BEFORE_LIST = 3
_ABSENCES_BEFORE_EMPTY = 2


class Informer:
    """Keeps a Store equal to the server's state of one kind, and tells each change once.

    `on_change(old, new)` is called in the event loop after the store holds the change: (None, new) for an
    addition, (last state, None) for a deletion, seen or inferred. It must not block; what it raises is
    logged. An object that was replaced under its name is a deletion, then an addition.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        on_change: OnChange,
        others: Sequence[Resource] = (),
        indexes: Mapping[str, Callable[[Object], Iterable[str]]] | None = None,
        transform: Callable[[Object], Kept] | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_rollback: Callable[[int, int], None] | None = None,
        sorts: Mapping[str, Callable[[Kept], Hashable]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pace: InformerTimings | None = None,
    ) -> None:
        """`transform` may drop what nobody reads, but must keep metadata's uid, name, namespace,
        resourceVersion: in a dict, or as attributes (Compact). `others` are the same kind in other versions: the
        first that is served is followed.

        `on_time_travel(before, now)` is told the revisions when the server's history went backwards and the
        store followed it (store.epoch grew).
        """
        self.store = Store(indexes, clock, sorts)
        self.synced = asyncio.Event()
        self.installed: bool | None = None
        self.problem: str | None = None  # why the snapshot is not being followed right now, for /readyz
        self.lists = 0
        self.watches = 0
        self.failures = 0
        self.handler_errors = 0
        self.stale_lists = 0  # lists that went backwards and were not confirmed
        self._client = client
        self._versions = (resource, *others)
        self._turn = 0
        self._on_change = on_change
        self._on_rollback = on_rollback
        self._transform = transform
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._pace = pace or InformerTimings()
        self._log = log.bind(resource=resource.key)
        # Requests for a list are numbered; a list that begins answers all that were made before it.
        self._asked = 1
        self._answered = 0
        self._stream_failures = 0
        self._check_revision = False  # ask for the server's revision before the next watch
        self._was_away = False  # the server was not there: its next list is compared by content
        self._backwards = False  # the last answer was behind what we hold; the next list decides
        self._absences = 0
        self._silences = 0
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._scope: asyncio.Timeout | None = None

    @property
    def resource(self) -> Resource:
        """The kind, in the version that is followed."""
        return self._versions[self._turn]

    def relist(self) -> None:
        """Asks for a fresh consistent list now; returns at once. Requests that come together share a list."""
        self._ask()

    async def catch_up(self, resource_version: int, timeout: float) -> bool:
        """Waits until the snapshot contains `resource_version`, by a fresh list if the watch lags.

        False when that was not reached within `timeout` seconds: the server is away, or its own revision is
        lower. True at once, too, when a list made after the call says that the kind is not installed.
        """

        def reached() -> bool:
            return self.store.resource_version >= resource_version

        try:
            async with asyncio.timeout(timeout):
                pause = self._pace.lag
                if self.installed and await self._until(reached, pause):
                    return True
                while not reached():
                    asked = self._ask()
                    await self._until(lambda asked=asked: self._answered >= asked or reached())
                    if self.installed is False:
                        return True
                    # A list that is still behind: the server's revision is lower, for now.
                    await self._until(reached, pause)
                    pause = min(pause * 2, self._pace.longest_pause)
                return True
        except TimeoutError:
            return reached()

    async def run(self) -> None:
        """Follows the server until cancelled. Nothing that the server, the network or a handler does ends
        it.
        """
        loop = asyncio.get_running_loop()
        pause, failed_at = 0.0, float("-inf")
        while True:
            try:
                await self._follow()
                continue
            except NotFound as error:
                if self._has_another_version():
                    continue
                if self._absent(error):
                    await self._sleep_or_asked(self._pace.poll)
                    continue
            except _Backwards as error:
                self._backwards = True
                self._ask()
                self._log.warning("the API server's history went backwards; asking again", error=str(error))
                await asyncio.sleep(self._pace.confirm)
                continue
            except (ApiError, Unreachable, ConfigError, _Distrust, ValueError) as error:
                self._handle_failure(error)
            except Exception:
                self.problem = "internal error"
                self._ask()
                self._log.exception("informer failed; listing again")
            self.failures += 1
            calm = loop.time() - failed_at > max(self._pace.calm, 2 * pause)
            pause = self._pace.first_pause if calm else min(pause * 2, self._pace.longest_pause)
            failed_at = loop.time()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 (jitter)

    @property
    def _list_due(self) -> bool:
        return self._asked > self._answered

    def _ask(self) -> int:
        """Makes a list due, ending the watch for it; returns the request's number."""
        self._asked += 1
        self._wake.set()
        if self._scope is not None:
            scope, self._scope = self._scope, None
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
        return self._asked

    def _handle_failure(self, error: Exception) -> None:
        """What a failure says about the snapshot: whether a watch may go on from it, or only a list."""
        self.problem = str(error) or type(error).__name__
        self._check_revision = True
        if isinstance(error, Unreachable) and not error.sent:
            self._away()
        too_large = isinstance(error, ServerError) and "too large resource version" in error.message.lower()
        if too_large or isinstance(error, Gone | _Distrust | ValueError):
            self._ask()
        self._log.warning("following failed", error=self.problem, lists=self._list_due)

    def _away(self) -> None:
        """A server that was away may come back with another history, which its revision need not show."""
        self._was_away = True
        self._ask()

    async def _follow(self) -> None:
        """One list if one is due, else one watch until it ends. Returns to be called again."""
        if not self._list_due:
            if self._check_revision:
                try:
                    current = await self._client.revision(self.resource)
                except (Unreachable, ServerError):
                    self._away()
                    raise
                if current < self.store.resource_version:
                    raise _Backwards(f"revision {current} after {self.store.resource_version}")
                self._check_revision = False
            await self._watch()
        elif self._stream_failures < _STREAM_ATTEMPTS and not self._backwards:
            await self._stream_list_then_watch()
        else:
            await self._list()

    async def _list(self) -> None:
        serving = self._asked
        self.lists += 1
        items, revision = await self._client.list(
            self.resource,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout=self._pace.initial,
            transform=self._transformed,
        )
        self._accept(items, revision_of({"metadata": {"resourceVersion": revision}}), serving)

    async def _stream_list_then_watch(self) -> None:
        serving = self._asked
        self.lists += 1
        try:
            await self._watch(serving)
        except ApiError as error:
            if self._answered >= serving or isinstance(error, NotFound):
                raise
            if error.status not in _NO_STREAMED_LISTS:
                self._stream_failures += 1
                raise
            self._stream_failures = _STREAM_ATTEMPTS
            self._log.debug("the API server streams no lists; listing by pages", error=str(error))
        except Unreachable:
            if self._answered < serving:
                self._stream_failures += 1
            raise

    async def _watch(self, serving: int | None = None) -> None:
        """One watch until it ends, is cut for a list, or fails. With `serving` it begins with a streamed
        list.
        """
        loop = asyncio.get_running_loop()
        initial: dict[str, Kept] | None = None if serving is None else {}
        since = "" if initial is not None else str(self.store.resource_version)
        began, heard = loop.time(), False
        self.watches += 1
        events = self._client.watch(
            self.resource,
            resource_version=since,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=max(1, round(random.uniform(*self._pace.watch))),  # noqa: S311 (jitter)
            send_initial_events=initial is not None,
        )
        silence = self._pace.silence if initial is None else self._pace.initial
        try:
            async with asyncio.timeout(silence) as scope, aclosing(events):
                if initial is None:
                    self._scope = scope
                async for kind, obj in events:
                    heard = True
                    if initial is None:
                        self.problem = None
                        self._apply(kind, obj)
                    elif kind == "BOOKMARK":
                        if _ends_initial_events(obj):
                            self._accept(initial.values(), revision_of(obj), serving or 0)
                            self._stream_failures = 0
                            initial, silence, self._scope = None, self._pace.silence, scope
                    elif kind == "DELETED":
                        initial.pop(uid_of(obj), None)
                    else:
                        initial[uid_of(obj)] = self._transformed(obj)
                    if initial is None and self._list_due:
                        return
                    scope.reschedule(loop.time() + silence)
        except TimeoutError:
            if initial is None and self._list_due:
                return
            if initial is not None:
                raise Unreachable(f"{self._client.server} fell silent within a streamed list", sent=True) from None
            self._fell_silent()
            return
        finally:
            self._scope = None
        if initial is not None:
            raise Unreachable(f"{self._client.server} ended a streamed list early", sent=True)
        if heard:
            self._silences = 0
        else:
            self._check_revision = True
        if loop.time() - began < min(1.0, self._pace.silence):
            # No server of health does that; without a pause it would be a very busy loop.
            raise Unreachable(f"{self._client.server} ended a watch at once", sent=True)

    def _fell_silent(self) -> None:
        """A quiet kind on a quiet cluster, or a watch that hangs: the next one must deliver what was missed.

        Where watches stay silent, only a list can tell; it bounds how old a snapshot gets.
        """
        self._check_revision = True
        self._silences += 1
        if self._silences >= _SILENCES_BEFORE_LIST:
            self._silences = 0
            self._ask()
        self._log.debug("the watch was silent; watching anew", lists=self._list_due)

    def _has_another_version(self) -> bool:
        """Turn to the kind's next version; False after the last of them."""
        self._turn = (self._turn + 1) % len(self._versions)
        if self._turn == 0:
            return False
        self._ask()
        return True

    def _absent(self, error: NotFound) -> bool:
        """The kind is not served. True if that is settled; one 404 after we had it may be a server that
        starts.
        """
        serving = self._asked
        self._absences += 1
        self._backwards = False
        if self.installed and self._absences < _ABSENCES_BEFORE_EMPTY:
            self.problem = str(error)
            self._ask()
            return False
        if self.installed is not False:
            self._log.info("the kind is not installed; looking for it from time to time")
        self.installed = False
        self.problem = None
        gone = self.store.all_kept()
        for obj in gone:
            self.store.remove(obj)
        for obj in gone:
            self._changed(obj, None)
        self.synced.set()
        self._answered = serving
        self._notify()
        return True

    def _accept(self, items: Iterable[Kept], revision: int, serving: int) -> None:
        """Makes the store what a consistent list (transformed) says, whole, then tells the differences.

        Raises _Backwards, once, for a list that is older than the store; the list after it is believed.
        """
        store = self.store
        incoming = {uid_of(item): item for item in items}
        held_newer = any(
            held is not None and _revision(held) > _revision(item)
            for uid, item in incoming.items()
            if (held := store.kept(uid)) is not None
        )
        travelled = revision < store.resource_version or held_newer
        if travelled and not self._backwards:
            older = "an older object" if held_newer else f"revision {store.resource_version}"
            raise _Backwards(f"a list at revision {revision} after {older}")
        if self._backwards and not travelled:
            self.stale_lists += 1
        before = store.resource_version
        changes: list[tuple[Kept | None, Kept | None]] = []
        for held in store.all_kept():
            if uid_of(held) not in incoming:
                store.remove(held)
                changes.append((held, None))
        for uid, new in incoming.items():
            held = store.kept(uid)
            # A history that was restored may have used a revision for something else.
            by_content = travelled or self._was_away
            unchanged = held == new if by_content else held is not None and _revision(held) == _revision(new)
            if not unchanged:
                store.put(new)
                changes.append((held, new))
        store.resource_version = revision
        self._backwards = self._was_away = self._check_revision = False
        self._absences = self._silences = 0
        self._answered = serving
        self.installed, self.problem = True, None
        if travelled:
            store.epoch += 1
            self._log.error("the API server's history went backwards", before=before, now=revision)
            if self._on_rollback is not None:
                self._guarded(self._on_rollback, before, revision)
        for old, new in changes:
            self._changed(old, new)
        self.synced.set()
        self._notify()

    def _apply(self, kind: str, obj: Object) -> None:
        """One event of a watch that goes on from the store."""
        store, revision = self.store, revision_of(obj)
        if kind == "BOOKMARK":
            if revision < store.resource_version:
                raise _Backwards(f"a bookmark at revision {revision} after {store.resource_version}")
            self._advance(revision)
            return
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise _Distrust(f"an event of unknown type {kind[:40]!r}")
        uid = uid_of(obj)
        held = store.kept(uid)
        if revision <= store.resource_version:
            if self._is_known(kind, uid, held, revision):
                return
            raise _Distrust(f"an event at revision {revision} after {store.resource_version}")
        if kind == "DELETED":
            final = self._transformed(obj)
            store.remove(final)
            self._advance(revision)
            if held is not None:
                self._changed(final, None)
            return
        namespace, name = _key(obj)
        other = store.kept_as(name, namespace)
        if other is not None and uid_of(other) != uid:
            store.remove(other)
            self._changed(other, None)
        new = self._transformed(obj)
        store.put(new)
        self._advance(revision)
        self._changed(held, new)

    def _is_known(self, kind: str, uid: str, held: Kept | None, revision: int) -> bool:
        """Whether an event that is not newer than the store repeats what the store has."""
        if kind == "DELETED":
            return held is None
        return self.store.deleted_at(uid) is not None if held is None else _revision(held) >= revision

    def _advance(self, revision: int) -> None:
        self.store.resource_version = revision
        self._notify()

    def _transformed(self, obj: Object) -> Kept:
        if self._transform is None:
            return obj
        try:
            return self._transform(obj)
        except Exception:
            self.handler_errors += 1
            self._log.exception("transform failed; the object is kept whole", object=_key(obj))
            return obj

    def _changed(self, old: Kept | None, new: Kept | None) -> None:
        self._guarded(self._on_change, old, new)

    def _guarded(self, handler: Callable[..., None], *arguments: object) -> None:
        try:
            handler(*arguments)
        except Exception:
            self.handler_errors += 1
            self._log.exception("a handler failed")

    async def _until(self, reached: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until `reached`, looked at after each step of the store; False after `timeout` seconds."""
        if reached():
            return True
        waiter: tuple[Callable[[], bool], asyncio.Future[None]] = (
            reached,
            asyncio.get_running_loop().create_future(),
        )
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter[1], timeout)
        except TimeoutError:
            return reached()
        finally:
            self._waiters.remove(waiter)
        return True

    def _notify(self) -> None:
        for reached, future in self._waiters:
            if not future.done() and reached():
                future.set_result(None)

    async def _sleep_or_asked(self, seconds: float) -> None:
        if self._list_due:
            return
        self._wake.clear()
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            self._ask()


@overload
def plain(obj: Kept) -> Object: ...
@overload
def plain(obj: None) -> None: ...
def plain(obj: Kept | None) -> Object | None:
    return obj if obj is None or isinstance(obj, dict) else obj.plain()


def not_synced(informers: Iterable[Informer]) -> str:
    """Which kinds have not been listed yet, and why where the API server said so; "" where all have."""
    return "; ".join(
        f"{informer.resource.key} is not synced yet" + (f": {informer.problem}" if informer.problem else "")
        for informer in informers
        if not informer.synced.is_set()
    )


def uid_of(obj: Kept) -> str:
    """Raises ValueError: an object without a uid did not come from an API server."""
    if not isinstance(obj, dict):
        return obj.uid
    uid = (obj.get("metadata") or {}).get("uid")
    if not isinstance(uid, str) or not uid:
        raise ValueError("an object without a uid")
    return uid


def _revision(obj: Kept) -> int:
    return revision_of(obj) if isinstance(obj, dict) else obj.revision


def _key(obj: Kept) -> tuple[str, str]:
    """Namespace and name."""
    if not isinstance(obj, dict):
        return obj.namespace, obj.name
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata.get("name") or ""


def _ends_initial_events(obj: Object) -> bool:
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    return annotations.get(INITIAL_EVENTS_END) == "true"
