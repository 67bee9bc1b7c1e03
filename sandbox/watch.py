"""Serve watches: select the changes, keep their order, add bookmarks.

It decides the events of one stream. It reads the history of the store; a watcher that is slower than the history gets
410 and lists again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from sandbox import lifecycle, tables
from sandbox.api import Api, Selection
from sandbox.kinds import Resource
from sandbox.status import ApiError, FieldError, bad_request, expired, forbidden_field, invalid, method_not_allowed
from sandbox.storage import ADDED, DELETED, MODIFIED, Compacted, Event, Item, Kind

Json = dict[str, Any]

_SHORTEST = 1800  # apiserver's --min-request-timeout: a watch without a timeout ends at once to twice of this
#: Seconds after which a bookmark comes in any case.
_LATEST = 60.0


class Watches:
    """Serve watches; `close` ends them all, `abort` breaks their connections."""

    def __init__(self, api: Api, bookmark_seconds: float) -> None:
        self._api = api
        self._bookmark_seconds = bookmark_seconds
        self._closing = False
        self._wakers: set[asyncio.Event] = set()
        self._transports: set[asyncio.Transport] = set()
        #: How often bookmarks have come due, and whether the timer for the next time is running.
        self._due = 0
        self._is_running = False
        api.store.listeners.append(self._changed)

    @property
    def count(self) -> int:
        return len(self._wakers)

    def close(self) -> None:
        self._closing = True
        self._wake()

    def _changed(self, kind: Kind, event: Event) -> None:
        if self._wakers:
            self._start_timer()

    def _start_timer(self) -> None:
        """Have bookmarks come due some time after a change: all watches have one timer."""
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(self._bookmark_seconds, self._come_due)

    def _come_due(self) -> None:
        self._is_running = False
        self._due += 1
        self._wake()

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    def abort(self) -> None:
        """Break the connection of every open watch, as a failing network would."""
        for transport in list(self._transports):
            transport.abort()

    async def serve(self, request: web.Request, selection: Selection, form: str, include: str) -> web.StreamResponse:
        query = request.query
        if "watch" not in selection.resource.verbs:
            raise method_not_allowed()
        initial = _send_initial(query.get("sendInitialEvents"), query.get("resourceVersionMatch", ""))
        text = query.get("resourceVersion", "")
        if text and not (text.isascii() and text.isdigit()):
            why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
            raise ApiError(500, "", why)
        version = int(text or 0)
        stream = _Stream(self._api, selection, form, include)
        bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        if initial and version:
            self._api.check_reached(version)
        limit = query.get("timeoutSeconds") or "0"
        if not (limit.isascii() and limit.isdigit()):
            raise bad_request(f'unable to parse timeoutSeconds: parsing "{limit}": invalid syntax')
        seconds = float(limit) or random.uniform(_SHORTEST, 2 * _SHORTEST)  # noqa: S311
        response = web.StreamResponse(headers={"Cache-Control": "no-cache, private"})
        response.content_type = "application/json"
        response.enable_chunked_encoding()
        kind = selection.resource.store
        waker = self._api.store.watch(kind)
        self._wakers.add(waker)
        transport = request.transport
        if transport is not None:
            self._transports.add(transport)
        try:
            first = b""
            if initial or (initial is None and not version):
                first, version = stream.start()
                if initial and bookmarks:
                    first += stream.bookmark(version, ends_initial=True)
            elif not version:
                version = self._api.store.revision
            await response.prepare(request)
            if first:
                await response.write(first)
            with contextlib.suppress(ConnectionError):
                await self._follow(response, stream, waker, version, seconds, bookmarks)
                await response.write_eof()
        finally:
            self._api.store.unwatch(kind, waker)
            self._wakers.discard(waker)
            if transport is not None:
                self._transports.discard(transport)
        return response

    async def _follow(
        self,
        response: web.StreamResponse,
        stream: _Stream,
        waker: asyncio.Event,
        version: int,
        seconds: float,
        bookmarks: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        seen, bookmarked, sure = self._due, version, loop.time() + _LATEST
        if version < self._api.store.revision:
            self._start_timer()
        while not self._closing:
            waker.clear()
            # As of before anything is sent: what comes due meanwhile is for the next round.
            due = self._due
            try:
                events = self._api.store.events(stream.resource.store, version)
            except Compacted as compacted:
                error = expired(f"too old resource version: {version} ({compacted.oldest})")
                await response.write(_line("ERROR", orjson.dumps(error.body)))
                return
            version = max(version, self._api.store.revision)
            if events and (chunk := b"".join(map(stream.event, events))):
                await response.write(chunk)
            now = loop.time()
            if now >= end or not self._api.kinds.serves(stream.resource):
                return
            if bookmarks and ((due > seen and version > bookmarked) or now >= sure):
                await response.write(stream.bookmark(version))
                bookmarked, sure = version, now + _LATEST
            seen = due
            try:
                async with asyncio.timeout_at(min(end, sure) if bookmarks else end):
                    await waker.wait()
            except TimeoutError:
                continue


def _send_initial(value: str | None, match: str) -> bool | None:
    """Return sendInitialEvents, None if absent; check it as apimachinery's validateWatchOptions does."""
    errors: list[FieldError] = []
    if value is None:
        if match:
            errors.append(
                forbidden_field(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )
            )
    elif match != "NotOlderThan":
        errors.append(
            forbidden_field(
                "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            )
        )
    if errors:
        raise invalid("meta.k8s.io", "ListOptions", "", errors)
    return None if value is None else value in ("1", "true")


def rendered(resource: Resource, item: Item) -> bytes:
    """Return a stored object as JSON in the served version."""
    return b'{"kind":"%b","apiVersion":"%b",%b' % (
        resource.kind.encode(),
        resource.api_version.encode(),
        item.raw[1:],
    )


def _line(kind: str, obj: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), obj)


class _Stream:
    """The stream of one watcher: its selector and its form."""

    def __init__(self, api: Api, selection: Selection, form: str, include: str) -> None:
        self.resource: Resource = selection.resource
        self._api = api
        self._namespace = selection.namespace
        self._matches: Callable[[Json], bool] | None = selection.matcher()
        self._form = form
        self._include = include
        self._headed = False

    def start(self) -> tuple[bytes, int]:
        """Return all selected objects as ADDED events, and their revision."""
        items = self._api.store.items(self.resource.store, self._namespace)
        chosen = (item for item in items if self._matches is None or self._matches(item.obj))
        return b"".join(_line(ADDED, self._body(item)) for item in chosen), self._api.store.revision

    def event(self, event: Event) -> bytes:
        if self._namespace is not None and event.key[0] != self._namespace:
            return b""
        kind = event.type
        if self._matches is not None:
            before = event.before is not None and self._matches(event.before.obj)
            after = event.type != DELETED and self._matches(event.item.obj)
            if not before and not after:
                return b""
            kind = MODIFIED if before and after else ADDED if after else DELETED
            if kind == DELETED and event.type == MODIFIED and event.before is not None:
                # It left the selection: show its last state inside, at the revision of this change (cacher: transform).
                obj = event.before.obj
                meta = {**obj["metadata"], "resourceVersion": str(event.version)}
                return _line(kind, self._body(Item({**obj, "metadata": meta}, event.version)))
        return _line(kind, self._body(event.item))

    def bookmark(self, version: int, *, ends_initial: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
        if ends_initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: Json = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        if self._form == "partial":
            obj |= {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        elif self._form == "table":
            row = {"cells": [], "object": tables.partial(obj)}
            obj = tables.table(self.resource, [row], {"resourceVersion": str(version)}, headed=not self._headed)
        return _line("BOOKMARK", orjson.dumps(obj))

    def _body(self, item: Item) -> bytes:
        if self._form == "object":
            return rendered(self.resource, item)
        obj = lifecycle.from_storage(self.resource, item.obj)
        if self._form == "partial":
            return orjson.dumps(tables.partial(obj))
        row = tables.row(self.resource, obj, self._api.clock.now(), self._include)
        headed, self._headed = not self._headed, True
        meta = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        return orjson.dumps(tables.table(self.resource, [row], meta, headed=headed))
