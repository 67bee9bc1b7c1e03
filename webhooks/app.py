"""The process that answers the API server: routes, bounds, deadlines, readiness, drain.

This file alone decides how a review gets from HTTP to a verdict and back. Every path fails closed: an error is answered
with `allowed: false`.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog
from aiohttp import web

from bizrq.api import review
from bizrq.api.review import MalformedReview, Request
from bizrq.kube.client import KubeClient
from bizrq.kube.informer import Informer, log_absent, not_synced
from bizrq.listener import BodyTooLarge, BodyUnread, Listener, NoRoomForBody, PortBounds, peer_of
from bizrq.probe import is_refused_probe
from bizrq.quota.verdict import Denied, Reason, Verdict
from bizrq.settings import Settings
from bizrq.store.access import SubjectAccessReviewer
from bizrq.store.groups import GroupStore
from bizrq.store.journals import JournalStore
from bizrq.store.payers import PayerStore
from bizrq.store.reference_resolver import ReferenceResolver
from certs.clients import Clients, common_names
from webhooks import decision_log
from webhooks.charging.authorization import Authorizer
from webhooks.charging.deadline import Deadline
from webhooks.charging.group_commit import Reserver
from webhooks.charging.notes import Notebook
from webhooks.charging.recall import Recaller
from webhooks.disclosure import Disclosure
from webhooks.handlers.answer import Answer
from webhooks.keepalive import ConnectionPacer
from webhooks.metrics import REVIEWS, SECONDS, Measured
from webhooks.next_step import with_next_step
from webhooks.registered_paths import RegisteredPaths
from webhooks.routes import Handler, handlers

log = structlog.get_logger(__name__)

#: Seconds that the API server waits where it does not say (admissionregistration/v1 timeoutSeconds).
_DEFAULT_TIMEOUT = 10.0
#: The most of these that the network gets, in seconds.
_TRAVEL = 2.0
#: Seconds that remain to decide a review that waited for large ones, and how many of those are decided at once.
_TO_DECIDE = 1.5
_LARGE_AT_ONCE = 2
#: The bytes of a review in which its uid stands.
_HEAD_BYTES = 512
#: The least time that a process that ends has to hand its allowances back, in seconds.
_HAND_BACK = 5.0
#: Seconds between two log lines about reviews of strangers.
_STRANGERS = 60.0
_DURATION = re.compile(r"(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,9})?)s)?(?:(\d{1,7})ms)?", re.ASCII)


class Webhooks:
    """The admission webhooks of one process, on one port."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        *,
        namespace: str = "bizrq-system",
        clients: Clients | None = None,
        bounds: PortBounds | None = None,
        identity: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clients` may send reviews; without it, everybody may. With an `identity`, that of its Lease, the process
        admits by allowances.
        """
        self._clock = clock
        self._clients = clients
        self._registry = settings.registry
        self._tls: Callable[[], ssl.SSLContext] | None = None
        #: When a review of a stranger was logged last, in seconds of the clock.
        self._stranger_logged = -math.inf
        self.payers = PayerStore(client, settings.registry)
        self.store = GroupStore(client, on_change=self.payers.on_group)
        journals = JournalStore(client, namespace)
        self.notebook = (
            Notebook(
                journals, self.store, identity=identity, catalog=settings.catalog, clock=clock, measures=Measured()
            )
            if identity
            else None
        )
        self.recaller = Recaller(self.store, journals, catalog=settings.catalog, measures=Measured())
        self.reserver = Reserver(
            self.store,
            catalog=settings.catalog,
            clock=clock,
            measures=Measured(),
            recaller=self.recaller,
            notebook=self.notebook,
        )
        self.resolver = ReferenceResolver(client, settings.registry)
        reviewer = SubjectAccessReviewer(client)
        authorizer = Authorizer(client, self.store, reviewer, settings.rights)
        self._handlers = handlers(
            client,
            self.store,
            self.reserver,
            self.recaller,
            self.resolver,
            authorizer,
            self.payers,
            settings,
            namespace,
        )
        self._disclosure = Disclosure(reviewer, clock, settings.controllers)
        self._pacer = ConnectionPacer(clock)
        #: Large reviews are counted a few at a time: each takes the time of many small ones.
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._draining = False
        self._registered = RegisteredPaths(client, self._handlers, self.store.values, clock=clock)
        self._listener = Listener(self.app(), bounds or PortBounds(body_bytes=review.MAX_BODY))
        self._watching: list[asyncio.Task[None]] = []

    @property
    def unready(self) -> str:
        """The reason why the process is not ready, such as a cache that is not synced; "" where it is."""
        return "draining" if self._draining else not_synced(self.informers) or self._registered.problem

    async def synced(self) -> None:
        """Return once all caches are synced with the API server."""
        for informer in self.informers:
            await informer.synced.wait()
        log_absent(self.informers)

    @property
    def informers(self) -> list[Informer]:
        """All watches."""
        return [self.store.informer, self.payers.informer, *self.resolver.informers]

    def app(self) -> web.Application:
        app = web.Application(client_max_size=review.MAX_BODY)
        for path, handler in self._handlers.items():
            app.router.add_post(path, self._route(path.removeprefix("/validate/"), handler))
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None) -> int:
        """Serve and watch. Return the port, a free one for port 0. `tls` returns the context of the next handshake."""
        self._tls = tls
        self._watching = [asyncio.create_task(informer.run()) for informer in self.informers]
        self._watching.append(asyncio.create_task(self._registered.settle()))
        if self.notebook is not None:
            self._watching.append(asyncio.create_task(self.notebook.run(), name="journal"))
        return await self._listener.start(host, port, tls)

    async def drain(self, seconds: float) -> None:
        """Report "draining" on /readyz, and serve on for so long: those who send reviews learn of it late.

        Each answer closes its connection meanwhile. What this process holds ahead of groups goes back first.
        """
        self._draining = True
        if self._listener.is_open:
            self._listener.drain()
            within = Deadline(self._clock() + max(seconds, _HAND_BACK), self._clock)
            back = [] if self.notebook is None else [self.recaller.hand_back(self.notebook, within)]
            await asyncio.gather(asyncio.sleep(seconds), *back)

    async def stop(self) -> None:
        """Report "draining" on /readyz, answer the reviews under way, then close."""
        self._draining = True
        await self._listener.cleanup()
        await self._disclosure.close()
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self.unready
        return web.Response(status=503, text=why) if why else web.Response(text="ok")

    def _route(self, name: str, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(http: web.Request) -> web.Response:
            deadline = Deadline(self._clock() + _seconds_to_answer(http.query.get("timeout", "")), self._clock)
            peer = peer_of(http)
            connection = http.transport
            if not self._is_known(name, http):
                return web.Response(status=401, text="a review needs the client certificate of the API server")
            response = await self._respond(name, handler, http, deadline)
            if connection is not None:
                await self._pacer.wait(peer, connection, deadline.at)
            if self._is_outdated(http):
                response.force_close()
            return response

        return handle

    async def _respond(self, name: str, handler: Handler, http: web.Request, deadline: Deadline) -> web.Response:
        """Return the answer to a review: a refusal where it is too large, or where other large ones leave no time.

        An entry that fails open would let pass what gets no answer.
        """
        try:
            body = await self._listener.body(http, self._patience(deadline))
            if (connection := http.transport) is not None:
                self._pacer.received(peer_of(http), connection)
            if len(body) < self._listener.bounds.large_bytes:
                return await self._answer(name, handler, body, deadline)
            async with self._turn(body, deadline):
                return await self._answer(name, handler, body, deadline)
        except BodyUnread as unread:
            if not (uid := review.uid_of(unread.head)):
                raise
            return self._unread(name, uid, unread)

    @asynccontextmanager
    async def _turn(self, body: bytes, deadline: Deadline) -> AsyncIterator[None]:
        """Wait until a large review may be decided: it has few at its side. Raises NoRoomForBody."""
        try:
            async with asyncio.timeout(self._patience(deadline)):
                await self._large.acquire()
        except TimeoutError:
            raise NoRoomForBody(body[:_HEAD_BYTES], "too many large reviews are under way") from None
        try:
            yield
        finally:
            self._large.release()

    def _patience(self, deadline: Deadline) -> float:
        return max(0.0, deadline.seconds_left() - _TO_DECIDE)

    def _unread(self, name: str, uid: str, unread: BodyUnread) -> web.Response:
        reason = Reason.MALFORMED if isinstance(unread, BodyTooLarge) else Reason.TIMEOUT
        REVIEWS.labels(name, str(reason)).inc()
        hint = "make the object smaller" if reason is Reason.MALFORMED else "try again"
        log.info("review refused unread", webhook=name, uid=uid, reason=str(reason))
        return _json(review.denied(uid, Denied(reason, f"bizrq cannot review this: {unread.text}; {hint}")))

    def _is_known(self, name: str, http: web.Request) -> bool:
        """Return whether the peer may send reviews."""
        peer = http.get_extra_info("peercert")
        if self._clients is None or self._clients.accept(peer):
            return True
        REVIEWS.labels(name, "Unauthenticated").inc()
        if (now := self._clock()) >= self._stranger_logged + _STRANGERS:
            self._stranger_logged = now
            log.warning(
                "a review without the API server's client certificate was refused",
                peer=peer_of(http),
                presented=", ".join(common_names(peer))[:200] or "no certificate",
                expected=self._clients.name,
            )
        return False

    def _is_outdated(self, http: web.Request) -> bool:
        """Return whether the CAs of clients have changed since the handshake, so that another one is due."""
        tls = http.get_extra_info("ssl_object")
        return tls is not None and self._tls is not None and tls.context is not self._tls()

    async def _answer(self, name: str, handler: Handler, body: bytes, deadline: Deadline) -> web.Response:
        arrived = self._clock()
        try:
            request = review.decode(body)
        except MalformedReview as error:
            REVIEWS.labels(name, "Malformed").inc()
            log.info("malformed review", webhook=name, uid=error.uid[: decision_log.NAME], error=str(error))
            if not error.uid:
                return web.Response(status=400, text=str(error))
            return _json(review.malformed(error.uid, str(error)))
        try:
            decided = await handler(request, deadline)
            answer = await self._disclosure.shown(request, decided, deadline)
            answer = self._with_next_step(request, decided.verdict, answer)
        except Exception as error:
            log.exception("review failed", webhook=name, **decision_log.fields(request), ms=self._millis(arrived))
            REVIEWS.labels(name, "Error").inc()
            return _json(review.failed(request.uid, f"bizrq could not decide: {type(error).__name__}; see its log"))
        finally:
            SECONDS.labels(name).observe(self._clock() - arrived)
        annotations = decision_log.audited(request, decided.verdict)
        if isinstance(decided.verdict, Denied):
            refusal = decision_log.refusal(request, decided.verdict)
            # Each command of bizrq sends a probe, which is refused where all is well.
            say = log.debug if is_refused_probe(request, decided.verdict) else log.info
            say("refused", webhook=name, **refusal, ms=self._millis(arrived))
        if isinstance(answer.verdict, Denied):
            REVIEWS.labels(name, str(answer.verdict.reason)).inc()
            return _json(review.denied(request.uid, answer.verdict, annotations))
        REVIEWS.labels(name, "Granted").inc()
        return _json(review.allowed(request.uid, answer.told, annotations))

    def _with_next_step(self, request: Request, decided: Verdict, answer: Answer) -> Answer:
        """Return what the user is told, with what to do next where a group lacks quota."""
        told = answer.verdict
        if not isinstance(told, Denied) or not isinstance(decided, Denied) or decided.figures is None:
            return answer
        name = decided.figures.group
        stored = self.store.cached(name)
        contact = stored.contact if stored is not None else ""
        return replace(answer, verdict=with_next_step(request, told, name, contact, self._registry))

    def _millis(self, since: float) -> float:
        return round((self._clock() - since) * 1000, 1)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _seconds_to_answer(text: str) -> float:
    """Return the seconds to answer in, from `?timeout=`.

    The API server's timeout begins before it connects. A fifth of it is for the network, which takes a second where
    both sides are busy.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        seconds = _DEFAULT_TIMEOUT
    else:
        minutes, whole, millis = match.groups()
        seconds = 60 * int(minutes or 0) + float(whole or 0) + int(millis or 0) / 1000
    return max(0.05, seconds - min(_TRAVEL, seconds / 5))
