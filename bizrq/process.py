"""The common part of every long-running process: log to stderr, stop on a signal, serve metrics to Prometheus.

This file alone decides how a process starts and ends. It does not know the work of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bizrq.api.config import ConfigurationError
from bizrq.exposition import GroupFamily, render
from bizrq.flags import LogFormat, LogLevel
from bizrq.kube.client import ConfigError, KubeClient
from bizrq.kube.config import from_environment, from_kubeconfig
from bizrq.listener import Listener, PortBounds, peer_of
from bizrq.metrics import observed
from bizrq.metrics_access import MetricsAccess
from bizrq.quota import reservation
from bizrq.settings import Settings, load
from bizrq.store import processes
from bizrq.store.processes import ProcessInfo
from bizrq.units.text import one_line, printable

#: The kubelet's probes and a few scrapers ask here, and send no bodies.
METRICS_BOUNDS = PortBounds(connections=100, bytes=1024 * 1024, body_bytes=0)
#: Seconds in which a scraper has to read its answer.
SCRAPE = 30.0
#: Seconds that a scrape gets for its answer when the process ends.
SCRAPED = 2.0

#: What the kernel may keep of one connection to the API server, in bytes. uvloop reads whatever is there into a buffer
#: of 256 KiB for each TLS connection, and what was once written to stays resident. In a cluster this slows no list
#: down; far from the API server, where `bizrq` runs, it would.
RECEIVE_BUFFER = 64 * 1024

#: The number of this setting in malloc.h; mallopt(3).
_M_MMAP_THRESHOLD = -3

#: Set when the process must end.
Stop = asyncio.Event


def configure_logging(form: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO) -> None:
    """Log one line per event to stderr. Text has colours only on a terminal without NO_COLOR."""
    rendered: list[structlog.typing.Processor]
    if form is LogFormat.JSON:
        # Made once. What a terminal would obey is written as an escape.
        encoder = json.JSONEncoder(default=repr)
        as_json = structlog.processors.JSONRenderer(serializer=lambda event, **_: encoder.encode(event))
        rendered = [structlog.processors.format_exc_info, as_json]
    else:
        colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        rendered = [
            structlog.processors.format_exc_info,
            _printable,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
        ]
    root = logging.getLogger()
    if not any(isinstance(each, _Forwarding) for each in root.handlers):
        root.addHandler(_Forwarding())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


class _Forwarding(logging.Handler):
    """Writes what libraries log as lines of the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _printable(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show what a cluster said without the characters that a terminal would obey; a traceback alone has lines."""
    return {one_line(key): _shown(value, printable if key == "exception" else one_line) for key, value in event.items()}


def _shown(value: object, shown: Callable[[str], str]) -> str:
    return shown(value if isinstance(value, str) else repr(value))


def quiet_collector() -> None:
    """Exempt all live objects from garbage collection, and make full collections rare.

    Caches hold hundreds of thousands of objects without a cycle, and a full collection stops the process to walk them.
    Young ones are collected in small lots: 50,000 that a recount has made take 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 2, 80_000)


def prepare(name: str, config: Path | None, kubeconfig: Path | None) -> tuple[Settings, KubeClient]:
    """Return the settings and a client. Exit with one line and status 2 if one is not usable."""
    try:
        settings = load(config)
        endpoint = from_kubeconfig(kubeconfig) if kubeconfig else from_environment()
        return settings, observed(KubeClient(replace(endpoint, receive_buffer=RECEIVE_BUFFER)))
    except (ConfigurationError, ConfigError) as error:
        end(name, str(error))


def identity() -> str:
    """Return what this process is called in Leases: unique by host, process and a random part."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"


def about(name: str, config: str, rules: str) -> ProcessInfo:
    """Return what the process of this name says of itself in its Lease.

    `config` is the text of its configuration, `rules` the digest of the registration.
    """
    return ProcessInfo(name, identity(), version("bizrq"), reservation.FORMATS, processes.digest(config), rules)


def serve(name: str, main: Callable[[Stop], Awaitable[None]]) -> None:
    """Run as `run` does. Exit with one line and status 2 after an OSError; that of a port in use names the address."""
    try:
        run(main)
    except OSError as error:
        end(name, error.strerror or str(error))


def end(name: str, why: str) -> NoReturn:
    """Exit with one line and status 2."""
    sys.stderr.write(f"{name}: {one_line(why)}\n")
    raise SystemExit(2)


def run(main: Callable[[Stop], Awaitable[None]]) -> None:
    """Run until `main` returns. SIGINT and SIGTERM set its event; a second one ends the process at once."""
    import uvloop

    _return_large_blocks()

    async def guarded() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def request_stop() -> None:
            if stop.is_set():
                os._exit(130)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, request_stop)
        await main(stop)

    uvloop.run(guarded())


def _return_large_blocks() -> None:
    """Have glibc give a block of 128 KiB or more back to the system once it is freed.

    By default it does so until one is freed, and takes later ones from its heap. There the 256 KiB that uvloop reads
    each TLS connection into stay resident behind the small objects that come after them.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


async def until_stopped(stop: Stop, *work: Awaitable[object]) -> None:
    """Run all of `work` until `stop` is set, then cancel it. Raise the first error of any of it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in (waiting, *tasks):
            task.cancel()
        await asyncio.gather(waiting, *tasks, return_exceptions=True)


async def serve_metrics(
    host: str,
    port: int,
    unready: Callable[[], str],
    access: MetricsAccess | None,
    families: Sequence[GroupFamily] = (),
    collectors: Sequence[Collector] = (),
) -> Listener:
    """Serve /metrics, /healthz and /readyz over plain HTTP. The caller cleans up the returned listener.

    `unready` returns why the process is not ready, "" if it is. `access` decides who may read /metrics; None is
    everybody. `families` and `collectors` are served besides the registry of prometheus_client.
    """

    async def metrics(request: web.Request) -> web.StreamResponse:
        if access is not None:
            status = await access.status(request.headers.get("Authorization", ""), peer_of(request))
            if status != 200:
                return web.Response(status=status, headers={"WWW-Authenticate": "Bearer"} if status == 401 else None)
        # The request is complete: from here the connection owes nothing more.
        await listener.body(request)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_LATEST})
        try:
            async with asyncio.timeout(SCRAPE):
                await response.prepare(request)
                if request.method != "HEAD":
                    async for piece in render(families, collectors):
                        await response.write(piece)
                await response.write_eof()
        except TimeoutError:
            raise ConnectionResetError("the scraper reads too slowly") from None
        return response

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        why = unready()
        return web.Response(status=503, text=why) if why else web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    listener = Listener(app, METRICS_BOUNDS, shutdown_timeout=SCRAPED)
    await listener.start(host, port)
    return listener


@contextlib.asynccontextmanager
async def metrics_served(
    host: str,
    port: int,
    unready: Callable[[], str],
    access: MetricsAccess | None,
    families: Sequence[GroupFamily] = (),
    collectors: Sequence[Collector] = (),
) -> AsyncIterator[None]:
    """Serve what `serve_metrics` does inside the context, and nothing at port 0."""
    if not port:
        yield
        return
    listener = await serve_metrics(host, port, unready, access, families, collectors)
    try:
        yield
    finally:
        await listener.cleanup()
