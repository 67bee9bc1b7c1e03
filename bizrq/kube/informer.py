"""Informer: keep one kind's objects equal to those of the API server, by list and watch.

This file alone decides when a snapshot is current and when to list again. It does not know what the objects mean, and
it never writes. The semantics are those of client-go (tools/cache/reflector.go), but stricter in two places: a watch is
not trusted after an outage, and a history that goes backwards is detected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bizrq.kube.backoff import Backoff
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
from bizrq.kube.store import Kept, Object, OnChange, Store, kept_revision, place_of, uid_of
from bizrq.kube.watch_stream import WatchEnd, WatchStream, WatchTimings

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class InformerTimings(WatchTimings):
    """The waiting times of an informer, in seconds; tests make them short."""

    #: The pause after a failure doubles up to `longest_pause`, with jitter. After `calm` it starts over.
    first_pause: float = 0.25
    longest_pause: float = 30.0
    calm: float = 10.0
    #: The pause between a list that goes backwards and the one that must confirm it.
    confirm: float = 1.0
    #: The pause between two looks for a kind that is not installed.
    poll: float = 5.0
    #: How long `catch_up` leaves the watch before it forces a list.
    lag: float = 1.0


class _Distrust(Exception):
    """An answer contradicts an earlier one. Only a fresh list shows the state."""


class _Backwards(_Distrust):
    """The server's revision is lower than one that it showed before: a stale answer, or a restored etcd."""


# Status codes of a server that cannot stream lists at all.
_NO_STREAMED_LISTS = frozenset({400, 405, 406, 415, 422, 501})
_STREAM_ATTEMPTS = 2
_SILENCES_BEFORE_LIST = 3
_ABSENCES_BEFORE_EMPTY = 2


class Informer:
    """Keep a Store equal to the server's state of one kind, and report each change once.

    `on_change(old, new)` is called in the event loop after the store holds the change: (None, new) for an addition,
    (last state, None) for a deletion, observed or inferred. It must not block; its exceptions are logged. An object
    that was replaced under its name is a deletion, then an addition.
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
        groups_by: Mapping[str, Callable[[Kept], Hashable]] | None = None,
        on_write: OnChange = lambda _old, _new: None,
        clock: Callable[[], float] = time.monotonic,
        pace: InformerTimings | None = None,
    ) -> None:
        """`others` are the same kind in other versions; the informer follows the first that is served.

        `transform` may drop fields, but must keep metadata's uid, name, namespace and resourceVersion: in a dict, or as
        attributes (Compact). `on_rollback(before, now)` gets the revisions when the server's history went backwards and
        the store followed it (store.epoch grew). `on_write` and `groups_by` are those of the Store.
        """
        self.store = Store(indexes, clock, groups_by, on_write)
        self.synced = asyncio.Event()
        self.installed: bool | None = None
        self.problem: str | None = None  # why the snapshot is not current, for /readyz
        self.lists = 0
        self.watches = 0
        self.failures = 0
        self.handler_errors = 0
        self.stale_lists = 0  # lists that went backwards and were not confirmed
        self._client = client
        self._clock = clock
        self._versions = (resource, *others)
        self._turn = 0
        self._on_change = on_change
        self._on_rollback = on_rollback
        self._transform = transform
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._pace = pace or InformerTimings()
        self._log = log.bind(resource=resource.key)
        # Requests for a list are numbered. A list answers all requests that were made before its start.
        self._asked = 1
        self._answered = 0
        self._stream_failures = 0
        self._check_revision = False  # read the server's revision before the next watch
        self._was_away = False  # the server was unreachable: compare its next list by content
        self._backwards = False  # the last answer was older than the store; the next list decides
        self._absences = 0
        self._silences = 0
        self._heard_at = clock()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._stream: WatchStream | None = None

    @property
    def resource(self) -> Resource:
        """Return the kind in the version that is followed."""
        return self._versions[self._turn]

    @property
    def age(self) -> float:
        """Return the seconds since the server last sent a list, an event or a bookmark."""
        return self._clock() - self._heard_at

    def relist(self) -> None:
        """Request a fresh consistent list and return at once. Concurrent requests share a list."""
        self._ask()

    async def catch_up(self, resource_version: int, timeout: float, *, lag: float | None = None) -> bool:
        """Wait until the snapshot contains `resource_version`, by a fresh list if the watch lags.

        The watch gets `lag` seconds before that, by default those of the pace. Return False after `timeout` seconds:
        the server is unreachable, or its own revision is lower. Return True as soon as a list after the call shows that
        the kind is not installed.
        """

        def reached() -> bool:
            return self.store.resource_version >= resource_version

        try:
            async with asyncio.timeout(timeout):
                pause = self._pace.lag if lag is None else lag
                if self.installed and await self._until(reached, pause):
                    return True
                while not reached():
                    asked = self._ask()
                    await self._until(lambda asked=asked: self._answered >= asked or reached())
                    if self.installed is False:
                        return True
                    # The list is still older: the server's own revision is lower for now.
                    pause = pause or self._pace.lag
                    await self._until(reached, pause)
                    pause = min(pause * 2, self._pace.longest_pause)
                return True
        except TimeoutError:
            return reached()

    async def run(self) -> None:
        """Follow the server until cancelled. No fault of the server, the network or a handler ends it."""
        pace = self._pace
        backoff = Backoff(pace.first_pause, pace.longest_pause, pace.calm, asyncio.get_running_loop().time)
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
            await asyncio.sleep(backoff.after_failure())

    @property
    def _list_due(self) -> bool:
        return self._asked > self._answered

    def _ask(self) -> int:
        """Make a list due, end the watch for it, and return the number of the request."""
        self._asked += 1
        self._wake.set()
        if self._stream is not None:
            self._stream.cut()
        return self._asked

    def _handle_failure(self, error: Exception) -> None:
        """Decide whether a watch may go on from the snapshot after a failure, or only a list."""
        self.problem = str(error) or type(error).__name__
        self._check_revision = True
        if isinstance(error, Unreachable) and not error.sent:
            self._away()
        too_large = isinstance(error, ServerError) and "too large resource version" in error.message.lower()
        if too_large or isinstance(error, Gone | _Distrust | ValueError):
            self._ask()
        self._log.warning("following failed", error=self.problem, lists=self._list_due)

    def _away(self) -> None:
        """Require a list by content: an unreachable server may return with another history of the same revisions."""
        self._was_away = True
        self._ask()

    async def _follow(self) -> None:
        """Make one list if one is due, else follow one watch until it ends."""
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
            if not self._list_due:
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
        """Follow one watch until it ends. With `serving` it begins with a streamed list."""
        self.watches += 1
        stream = self._stream = WatchStream(
            self._client,
            self.resource,
            self._pace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            transform=self._transformed,
            on_list=lambda items, revision: self._accept_stream(items, revision, serving or 0),
            on_event=self._follow_event,
        )
        try:
            end = await stream.run(None if serving is not None else self.store.resource_version)
        finally:
            self._stream = None
        if end is WatchEnd.SILENT:
            self._fell_silent()
        elif end is WatchEnd.ENDED:
            if stream.heard:
                self._silences = 0
            else:
                self._check_revision = True
            if stream.seconds < min(1.0, self._pace.silence):
                # A healthy server keeps a watch open. Without a pause this would be a very busy loop.
                raise Unreachable(f"{self._client.server} ended a watch at once", sent=True)

    def _accept_stream(self, items: Iterable[Kept], revision: int, serving: int) -> None:
        self._accept(items, revision, serving)
        self._stream_failures = 0

    def _follow_event(self, kind: str, obj: Object) -> None:
        self.problem = None
        self._apply(kind, obj)
        self._heard_at = self._clock()

    def _fell_silent(self) -> None:
        """Watch again after a silence: the kind is quiet, or the watch hangs and the next one delivers the rest.

        After several silent watches, list: that bounds the age of the snapshot.
        """
        self._check_revision = True
        self._silences += 1
        if self._silences >= _SILENCES_BEFORE_LIST:
            self._silences = 0
            self._ask()
        self._log.debug("the watch was silent; watching again", lists=self._list_due)

    def _has_another_version(self) -> bool:
        """Follow the kind's next version. Return False after the last one."""
        self._turn = (self._turn + 1) % len(self._versions)
        if self._turn == 0:
            return False
        self._ask()
        return True

    def _absent(self, error: NotFound) -> bool:
        """Handle a kind that is not served. Return True if that is certain.

        A single 404 of a kind that was served may come from a server that is starting.
        """
        serving = self._asked
        self._absences += 1
        self._backwards = False
        if self.installed and self._absences < _ABSENCES_BEFORE_EMPTY:
            self.problem = str(error)
            self._ask()
            return False
        if self.installed is not False:
            # At its start a process names all of them in one line (`log_absent`).
            say = self._log.info if self.installed else self._log.debug
            say("the kind is not installed; looking for it from time to time")
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
        """Make the store equal to a consistent list, transformed, then report the differences.

        Raise _Backwards once for a list that is older than the store. The list after it is accepted.
        """
        store = self.store
        incoming = {uid_of(item): item for item in items}
        held_newer = any(
            held is not None and kept_revision(held) > kept_revision(item)
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
            # A restored history may have given a revision to another state.
            by_content = travelled or self._was_away
            unchanged = held == new if by_content else held is not None and kept_revision(held) == kept_revision(new)
            if not unchanged:
                store.put(new)
                changes.append((held, new))
        store.resource_version = revision
        self._heard_at = self._clock()
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
        """Apply one event of a watch that continues from the store."""
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
        namespace, name = place_of(obj)
        other = store.kept_as(name, namespace)
        if other is not None and uid_of(other) != uid:
            store.remove(other)
            self._changed(other, None)
        new = self._transformed(obj)
        store.put(new)
        self._advance(revision)
        self._changed(held, new)

    def _is_known(self, kind: str, uid: str, held: Kept | None, revision: int) -> bool:
        """Return True if an event that is not newer than the store repeats a state that the store has."""
        if kind == "DELETED":
            return held is None
        return self.store.deleted_at(uid) is not None if held is None else kept_revision(held) >= revision

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
            self._log.exception("transform failed; the object is kept whole", object=place_of(obj))
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
        """Wait until `reached`, checked after each step of the store. Return False after `timeout` seconds."""
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


def log_absent(informers: Iterable[Informer]) -> None:
    """Log the kinds that are not installed, in one line; nothing where all are."""
    absent = sorted({informer.resource.key for informer in informers if informer.installed is False})
    if absent:
        log.info("kinds are not installed; looking for them from time to time", kinds=", ".join(absent))


def not_synced(informers: Iterable[Informer]) -> str:
    """Return which kinds have not been listed yet, and why if that is known; "" if all have."""
    return "; ".join(
        f"{informer.resource.key} is not synced yet" + (f": {informer.problem}" if informer.problem else "")
        for informer in informers
        if not informer.synced.is_set()
    )
