"""A port that strangers cannot fill: bounds for connections, for bytes in flight, and for the time to send a request.

This file alone decides when a connection is cut. It does not know what a request asks for.

An API server sends a request in milliseconds. So a connection that is slow to finish its handshake, its headers or its
body owes us something, and one that has owed it for long makes room where a budget is used up. A request that arrived
in full is never cut.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import structlog
from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError, StreamWriter
from prometheus_client import Counter

if TYPE_CHECKING:
    from multidict import CIMultiDict

log = structlog.get_logger(__name__)

CUT = Counter("bizrq_connections_cut_total", "Connections closed before their request was complete", ["reason"])

#: Seconds between looks at the deadlines.
_LOOK = 0.5
#: Bytes that the kernel keeps of each connection until they are read. By default these are up to 6 MB, and what comes
#: at once from 200 connections takes hundreds of milliseconds and MiB to read.
_RECEIVED = 65_536
#: Descriptors that a process needs besides those of its port.
_DESCRIPTORS = 256
#: The host that is every address of the machine: IPv4, and IPv6 where there is any.
EVERYWHERE = "::"
#: Seconds that requests under way get for their answers when a port closes.
ANSWERING = 15.0
#: The end of the headers of a request.
_HEAD_ENDS = b"\r\n\r\n"
#: How a socket of both families shows the address of a peer that came by IPv4.
_MAPPED = "::ffff:"


@dataclass(frozen=True, slots=True)
class PortBounds:
    """What a port gives away. Times are in seconds."""

    #: Connections, those in their handshake included.
    connections: int = 1024
    #: Bytes of requests that are not answered yet. Large bodies get half of them, and wait for one another.
    bytes: int = 48 * 1024 * 1024
    #: The largest body.
    body_bytes: int = 8 * 1024 * 1024
    #: A body from this size on is large.
    large_bytes: int = 65_536
    #: The largest header, its name included.
    header_bytes: int = 8190
    handshake: float = 5.0
    #: From the first byte of a request until its headers end.
    headers: float = 10.0
    body: float = 10.0
    #: From the handshake to the first byte. An API server opens connections that it then has no request for, and keeps
    #: them for later ones. One that shows a certificate of the client CA is idle from the start.
    silent: float = 25.0
    #: Longer than the 90 seconds after which an API server closes an idle connection itself.
    idle: float = 120.0
    #: A connection gets so long before another may take its place.
    grace: float = 0.25
    #: For the rest of a body that was refused unread.
    rest: float = 2.0
    #: A large body gets so long while others wait for its room, and so long without a further byte.
    arrival: float = 3.0
    stall: float = 0.5


class BodyUnread(web.HTTPException):
    """A body that is not read. `head` is its beginning."""

    status_code = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, head: bytes, text: str) -> None:
        super().__init__(text=text)
        self.head = head


class BodyTooLarge(BodyUnread):
    """A body of more than `PortBounds.body_bytes`."""

    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class NoRoomForBody(BodyUnread):
    """A large body for which others left no room in time."""


class _Stage(StrEnum):
    """What a connection does. It owes us something in the first five."""

    HANDSHAKE = "handshake"
    SILENT = "silent"
    HEADERS = "headers"
    BODY = "body"
    REST = "rest"
    ANSWER = "answer"
    IDLE = "idle"
    ENDED = "ended"


_OWING = (_Stage.HANDSHAKE, _Stage.SILENT, _Stage.HEADERS, _Stage.BODY, _Stage.REST)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return False for a request that is no HTTP: aiohttp quotes its bytes, and they may hold a token."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    log.debug("a request is broken", error=type(error).__name__)
    return False


def broken_request(status: int) -> web.Response:
    """Return the answer to a request that is no HTTP, without any of its bytes."""
    return web.Response(status=status, text=f"{status} {HTTPStatus(status).phrase}\n")


class _Http(web.RequestHandler):
    """aiohttp's protocol with answers of our own: its own quote the request."""

    __slots__ = ("_broken",)

    def __init__(self, server: web.Server, broken: Callable[[int], web.Response], **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._broken = broken

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)
        response = self._broken(status)
        response.force_close()
        return response


_LOGGER = logging.getLogger("bizrq.listener")
_LOGGER.addFilter(_is_ours)


class Listener:
    """Serves an application at one port within `PortBounds`."""

    def __init__(
        self,
        app: web.Application,
        bounds: PortBounds | None = None,
        *,
        shutdown_timeout: float = ANSWERING,
        broken: Callable[[int], web.Response] = broken_request,
    ) -> None:
        """`broken` makes the answer to a request that is no HTTP, by the status."""
        self.bounds = bounds or PortBounds()
        app.middlewares.append(self._watched)
        self._runner = web.AppRunner(app, shutdown_timeout=shutdown_timeout)
        self._broken = broken
        self._options: Mapping[str, Any] = {
            "access_log": None,
            "logger": _LOGGER,
            "keepalive_timeout": self.bounds.idle,
            "lingering_time": self.bounds.rest,
            "max_field_size": self.bounds.header_bytes,
            # An API server compresses nothing, and a few bytes may expand to many.
            "auto_decompress": False,
        }
        #: Those that owe us something, and all others; each with the one that is there for longest first.
        self._owing: OrderedDict[_Connection, None] = OrderedDict()
        self._others: OrderedDict[_Connection, None] = OrderedDict()
        self.by_transport: dict[asyncio.BaseTransport, _Connection] = {}
        self.seconds: Mapping[_Stage, float] = {
            _Stage.HANDSHAKE: self.bounds.handshake,
            _Stage.SILENT: self.bounds.silent,
            _Stage.HEADERS: self.bounds.headers,
            _Stage.BODY: self.bounds.body,
            _Stage.REST: self.bounds.rest,
            # The handler has a deadline of its own.
            _Stage.ANSWER: math.inf,
            _Stage.IDLE: self.bounds.idle,
        }
        self._room = self.bounds.connections
        self.held = 0
        self._large = _LargeBodies(self.bounds.bytes // 2)
        #: Of connections that wait for their handshake.
        self._turns: list[asyncio.Future[None]] = []
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        #: The clock of the loop that serves. Asking for the running loop is a system call, and a request asks often.
        self.time: Callable[[], float] = time.monotonic

    @property
    def connections(self) -> int:
        return len(self._owing) + len(self._others)

    @property
    def is_open(self) -> bool:
        return bool(self._sockets)

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> int:
        """Serve. Return the port, a free one for port 0. `tls` returns the context of the next handshake.

        `host` is an address of the machine, or `EVERYWHERE`. Raises OSError.
        """
        loop = asyncio.get_running_loop()
        self.time = loop.time
        self._room = min(self.bounds.connections, _descriptors(self.bounds.connections))
        await self._runner.setup()
        server = cast("web.Server", self._runner.server)
        server.request_factory = _without_server(server.request_factory, loop)
        try:
            listening = _listening(host, port)
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else str(error)
            raise OSError(error.errno, f"cannot serve on address {(host, port)}: {why}") from None
        listening.setblocking(False)
        self._sockets.append(listening)
        self._accepting.append(asyncio.create_task(self._accept(listening, server, tls)))
        return listening.getsockname()[1]

    def drain(self) -> None:
        """Close each connection with its next answer from now on, so that clients leave. New ones are still served."""
        self._draining = True

    async def cleanup(self) -> None:
        """Accept nothing more, answer what is under way, then close every connection."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        for connection in [c for c in self._owing if c.stage is not _Stage.BODY]:
            connection.abort()
        await self._runner.cleanup()
        for connection in [*self._owing, *self._others]:
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    async def body(self, request: web.Request, patience: float | None = None) -> bytes:
        """Return the body. One that is large waits for room, for `patience` seconds at most; None is for ever.

        Raises BodyTooLarge, NoRoomForBody, ConnectionError if the connection ends before.
        """
        most, length = self.bounds.body_bytes, request.content_length or 0
        connection = self._connection(request)
        body = bytearray()
        try:
            if length > most:
                raise BodyTooLarge(await request.content.readany(), f"a body has at most {most} bytes, not {length}")
            if length >= self.bounds.large_bytes and connection is not None:
                # aiohttp reads no more than its buffer takes of what nobody has asked for yet.
                if not await self._large.enter(connection, length, patience):
                    raise NoRoomForBody(await request.content.readany(), "too many large requests are under way")
                connection.enter(_Stage.BODY)
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > most:
                    raise BodyTooLarge(bytes(body[: self.bounds.large_bytes]), f"a body has at most {most} bytes")
            whole = bytes(body)
        except web.RequestPayloadError as error:
            raise ConnectionResetError("the body is not complete") from error
        finally:
            # The traceback of a connection that was cut is in a cycle, and the collector comes rarely.
            body.clear()
        if connection := self._connection(request):
            connection.enter(_Stage.ANSWER)
        return whole

    @web.middleware
    async def _watched(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        connection = self._connection(request)
        if connection is None:
            raise ConnectionResetError("the connection is gone")
        connection.begin(request)
        if connection.stage is _Stage.ENDED:
            raise ConnectionResetError("the connection is cut")
        try:
            response = await handler(request)
        except ConnectionError:
            # Nobody is there to read it.
            response = web.Response(status=400)
        except web.HTTPException as refusal:
            if self._closes_after(request):
                refusal.force_close()
            raise
        finally:
            connection.enter(_Stage.IDLE if request.content.is_eof() else _Stage.REST)
        if self._closes_after(request):
            response.force_close()
        return response

    def _closes_after(self, request: web.Request) -> bool:
        """Return whether the answer ends its connection: so does one to a request whose end is not known here."""
        return self._draining or _is_chunked(request) or not request.content.is_eof()

    def _connection(self, request: web.Request) -> _Connection | None:
        return self.by_transport.get(request.transport) if request.transport is not None else None

    async def _accept(
        self, listening: socket.socket, server: web.Server, tls: Callable[[], ssl.SSLContext] | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self.connections >= self._room and not self._make_room():  # noqa: ASYNC110 (time passes, too)
                # The next one waits with the kernel.
                await asyncio.sleep(0.02)
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("cannot accept a connection", error=str(error))
                await asyncio.sleep(0.1)
                continue
            connection = _Connection(self, _Http(server, self._broken, **self._options))
            connection.enter(_Stage.HANDSHAKE)
            connection.opening = loop.create_task(self._open(accepted, connection, tls() if tls else None))
            # A task that is cancelled before it began runs no `finally`.
            connection.opening.add_done_callback(partial(connection.opened, accepted))
            if self._timer is None:
                self._timer = loop.call_later(_LOOK, self._look)

    async def _open(self, accepted: socket.socket, connection: _Connection, tls: ssl.SSLContext | None) -> None:
        options: dict[str, Any] = {"ssl_shutdown_timeout": self.bounds.rest} if tls else {}
        await self._turn()
        with suppress(OSError):  # A handshake that failed, and every scan of the port is one.
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=tls, **options)

    async def _turn(self) -> None:
        """Wait until a handshake may begin: one in each round of the loop, the newest first.

        So neither a request on an open connection nor the next connection waits for a burst of handshakes.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._turns:
            loop.call_soon(self._next_turn)
        self._turns.append(turn)
        await turn

    def _next_turn(self) -> None:
        while self._turns:
            turn = self._turns.pop()
            if not turn.done():
                turn.set_result(None)
                break
        if self._turns:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _make_room(self) -> bool:
        """Cut the connection that owes us something for longest, else the one that is idle for longest."""
        now = self.time()
        for connection in self._owing or self._others:
            if connection.stage is not _Stage.ANSWER and connection.since + self.bounds.grace <= now:
                connection.cut("connections")
                return True
        return False

    def hold(self, connection: _Connection, count: int) -> None:
        """Count bytes of a request. Beyond the bound, cut the sender that is there for longest with an average amount.

        So a review of usual size stays, however many others began long ago, and so do the large ones that have room.
        """
        connection.held += count
        self.held += count
        while self.held > self.bounds.bytes:
            sending = [each for each in self._owing if each.held and each not in self._large] or [connection]
            share = sum(each.held for each in sending) / len(sending)
            next(each for each in sending if each.held >= share).cut("bytes")

    def release(self, connection: _Connection) -> None:
        self.held -= connection.held
        connection.held = 0
        self._large.leave(connection)

    def place(self, connection: _Connection) -> None:
        """Put a connection at the end of those that do the same."""
        self._owing.pop(connection, None)
        self._others.pop(connection, None)
        (self._owing if connection.stage in _OWING else self._others)[connection] = None

    def forget(self, connection: _Connection) -> None:
        self.release(connection)
        self._owing.pop(connection, None)
        self._others.pop(connection, None)

    def _look(self) -> None:
        """Cut those whose time is over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [c for those in (self._owing, self._others) for c in those if c.until <= now]:
            connection.cut(connection.stage)
        if self._large.is_awaited:
            for connection in [c for c in self._owing if c in self._large and c.stalls(now)]:
                connection.cut("large")
        self._timer = loop.call_later(_LOOK, self._look) if self.connections else None


class _LargeBodies:
    """The large bodies that are read or answered: together within a bound. Of the others the newest is the next.

    So nobody waits behind many that stall.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[_Connection, int] = {}
        self._waiting: dict[_Connection, tuple[int, asyncio.Future[bool]]] = {}

    def __contains__(self, connection: _Connection) -> bool:
        return connection in self._sizes

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    async def enter(self, connection: _Connection, size: int, patience: float | None) -> bool:
        """Wait until there is room for a body, and take it. Return False where there was none in time.

        Raises ConnectionError where the connection ends before.
        """
        answer = asyncio.get_running_loop().create_future()
        self._waiting[connection] = size, answer
        self._let_in()
        try:
            async with asyncio.timeout(patience):
                has_room = await answer
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(connection, None)
        if not has_room:
            raise ConnectionResetError("the connection is gone")
        return True

    def leave(self, connection: _Connection) -> None:
        """Give the room of a body back, or its place among those that wait."""
        _, waits = self._waiting.pop(connection, (0, None))
        if waits is not None and not waits.done():
            waits.set_result(False)
        if self._sizes.pop(connection, None) is not None or waits is not None:
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            connection, (size, answer) = next(reversed(self._waiting.items()))
            if self._sizes and sum(self._sizes.values()) + size > self._most:
                break
            del self._waiting[connection]
            if not answer.done():
                self._sizes[connection] = size
                answer.set_result(True)


class _Connection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol, and knows what the peer owes."""

    __slots__ = (
        "__weakref__",
        "_head",
        "_http",
        "_last",
        "_listener",
        "_most",
        "_moved",
        "_transport",
        "held",
        "opening",
        "since",
        "stage",
        "until",
    )

    def __init__(self, listener: Listener, http: web.RequestHandler) -> None:
        self._listener = listener
        self._http = http
        self._transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.stage = _Stage.HANDSHAKE
        #: The time at which it entered its stage, and at which it is cut.
        self.since = self.until = 0.0
        #: Bytes of the request that is not answered yet.
        self.held = 0
        #: Of these, the bytes of its headers, 0 until they end; and the last bytes before that.
        self._head, self._last = 0, b""
        #: Bytes of the whole request, once its headers are known.
        self._most = math.inf
        #: The time of its last bytes.
        self._moved = 0.0

    def stalls(self, now: float) -> bool:
        """Return True for a body that takes too long, or of which nothing comes any more."""
        bounds = self._listener.bounds
        return self.since + bounds.arrival <= now or max(self.since, self._moved) + bounds.stall <= now

    def enter(self, stage: _Stage) -> None:
        if self.stage is _Stage.ENDED:
            return
        self.stage = stage
        self.since = self._listener.time()
        self.until = self.since + self._listener.seconds[stage]
        if stage in (_Stage.IDLE, _Stage.REST):
            self._listener.release(self)
            self._head, self._last = 0, b""
        self._listener.place(self)

    def begin(self, request: web.Request) -> None:
        """Take a request whose headers arrived, and cut a peer that has sent more than the request."""
        self.enter(_Stage.BODY)
        self._most = math.inf if _is_chunked(request) else self._head + (request.content_length or 0)
        if self.held > self._most:
            self.cut("ahead")

    def _look_for_head(self, data: bytes) -> None:
        seen = self._last + data
        if (end := seen.find(_HEAD_ENDS)) >= 0:
            self._head = self.held - len(seen) + end + len(_HEAD_ENDS)
        self._last = seen[1 - len(_HEAD_ENDS) :]

    def cut(self, reason: str) -> None:
        CUT.labels(reason).inc()
        self.abort()

    def abort(self) -> None:
        """Close at once: a peer that owes us something is not waited for."""
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()
        self.end()

    def end(self) -> None:
        self.stage = _Stage.ENDED
        self._listener.forget(self)

    def opened(self, accepted: socket.socket, _: asyncio.Task[None]) -> None:
        """Close the socket where no transport has taken it."""
        if self._transport is None:
            accepted.close()
            self.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._listener.by_transport[transport] = self
        self.enter(_Stage.IDLE if transport.get_extra_info("peercert") else _Stage.SILENT)
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.stage in (_Stage.SILENT, _Stage.IDLE):
            self.enter(_Stage.HEADERS)
        if self.stage is _Stage.ANSWER or (self.stage is _Stage.BODY and self.held + len(data) > self._most):
            # An API server sends nothing before its answer. aiohttp would keep it, and it would count as idle.
            self.cut("ahead")
            return
        if self.stage is not _Stage.REST:
            self._moved = self._listener.time()
            self._listener.hold(self, len(data))
        if self.stage is _Stage.HEADERS and not self._head:
            self._look_for_head(data)
        if self.stage is not _Stage.ENDED:
            self._http.data_received(data)

    def eof_received(self) -> None:
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._listener.by_transport.pop(self._transport, None)
        self.end()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


def _is_chunked(request: web.BaseRequest) -> bool:
    return hdrs.TRANSFER_ENCODING in request.headers


def peer_of(request: web.BaseRequest) -> str:
    """Return the address from which a request came, "" if it is not known any more."""
    return (request.remote or "").removeprefix(_MAPPED)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises OSError."""
    both = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not both:
        host = "0.0.0.0"  # noqa: S104 asked for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Reviews come in bursts: a queued connection costs time, a refused one costs the call.
    listening = socket.create_server((host, port), family=family, backlog=4096, dualstack_ipv6=both)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
    return listening


class _Writer(StreamWriter):
    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        headers.popall(hdrs.SERVER, None)
        await super().write_headers(status_line, headers)


def _without_server(
    make: Callable[..., web.BaseRequest], loop: asyncio.AbstractEventLoop
) -> Callable[..., web.BaseRequest]:
    """Return a factory of requests whose answers name no server, those to broken requests included."""

    def factory(message: Any, payload: Any, protocol: Any, _: Any, task: Any) -> web.BaseRequest:
        return make(message, payload, protocol, _Writer(protocol, loop), task)

    return factory


def _descriptors(wanted: int) -> int:
    """Return how many connections the process may have, after raising its soft limit as far as it needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(16, soft - _DESCRIPTORS)
