"""The web UI as an application: the way from a request to an answer and back.

This file alone decides which handler answers which path, and the order of checks: host, size, origin and form token,
then who it is. Every answer has the same headers, and every failure is a page.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl

import msgspec
import structlog
from aiohttp import HttpVersion11, hdrs, web

from bizrq.api.group import GroupUnreadable
from bizrq.figures.errors import NoAnswer
from bizrq.kube.client import ApiError, ConfigError, Unauthorized, Unreachable
from bizrq.listener import BodyTooLarge, Listener, PortBounds
from bizrq.settings import Settings
from web import assets, guard, metrics
from web.credentials import session
from web.credentials.gates import Gate, LocalGate
from web.credentials.keys import Keyring
from web.credentials.oidc import Attempt
from web.credentials.session import CookieNames, Session, SessionTooLarge
from web.html import element, shown
from web.live import Streams
from web.pages.sign_in import local_path, sign_in
from web.pages.table import PAGES, Handler
from web.problems import Problem, RenewalRefused, SignedOut, unavailable, unreadable
from web.reading.views import ViewCache
from web.reading.visitors import REJECTED, Visitors
from web.visit import Browser, Visit, plain_page

log = structlog.get_logger(__name__)

#: A form is at most 1 MiB. One with manifests of 1 MiB is larger: a form has three or six bytes for some characters.
BOUNDS = PortBounds(body_bytes=3 * 1024 * 1024, header_bytes=48 * 1024)
_FORM_BYTES, _WITH_MANIFESTS = 1024 * 1024, ("/fit",)
#: Fields of one form: a group has at most 256 ceilings, and somebody else may have added as many meanwhile.
_FIELDS = 600
#: Seconds of a sign-in at a provider.
_ATTEMPT = 600
_FORM = "application/x-www-form-urlencoded"
_BUSY = HTTPStatus.SERVICE_UNAVAILABLE
_FOREVER = "public, max-age=31536000, immutable"
_Answered = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Site:
    """Where people reach the process. `origins` are ours; `hosts` are the only ones that are served, unless empty."""

    origins: Sequence[str]
    hosts: Collection[str] = ()


class Web:
    """The pages, at one port. `start` returns the port, `stop` ends everything."""

    def __init__(
        self, visitors: Visitors, gate: Gate, settings: Settings, names: CookieNames, keys: Keyring, site: Site
    ) -> None:
        self.visitors = visitors
        self.gate = gate
        self.site = site
        self._settings = settings
        self._names = names
        self._keys = keys
        self._streams = Streams()
        self._cache = ViewCache(settings.catalog)
        self._stopping = False
        app = web.Application(middlewares=[self._without_path])
        self._listener = Listener(app, BOUNDS, broken=self._broken)
        self._routes(app)

    @property
    def unready(self) -> str:
        """Return why no page should be asked for, "" where they can."""
        return "stopping" if self._stopping else "" if self._listener.is_open else "not started"

    async def start(self, host: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> int:
        """Serve at an address. Raise OSError."""
        self.visitors.start()
        return await self._listener.start(host, port, tls)

    async def drain(self, seconds: float) -> None:
        """Serve on for so long, so that balancers send new requests elsewhere."""
        self._stopping = True
        await asyncio.sleep(seconds)

    async def stop(self) -> None:
        self._stopping = True
        self._streams.end()
        await self._listener.cleanup()
        await self.visitors.stop()
        if self.gate.oidc is not None:
            await self.gate.oidc.close()

    def _routes(self, app: web.Application) -> None:
        def add(method: str, path: str, handler: _Answered) -> None:
            app.router.add_route(method, path, self._serve(path, handler), expect_handler=self._expect)

        add("GET", "/healthz", self._healthz)
        add("GET", "/readyz", self._readyz)
        add("GET", assets.PREFIX + "{name}", self._asset)
        add("GET", "/sign-in", self._sign_in)
        add("POST", "/sign-in", self._sign_in_by_token)
        add("GET", "/sign-in/oidc", self._sign_in_by_oidc)
        add("GET", "/sign-in/done", self._signed_in_by_oidc)
        add("POST", "/sign-out", self._sign_out)
        add("GET", "/live", self._user(self._live))
        for method, path, handler in PAGES:
            add(method, path, self._user(handler))
        add("*", "/{rest:.*}", self._unknown)

    # The way in and out

    def _serve(self, page: str, handler: _Answered) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            began = time.perf_counter()
            response = await self._checked(request, handler)
            if not response.prepared:
                self._guarded(response)
            metrics.REQUESTS.labels(page, str(response.status)).inc()
            if page != "/live":
                metrics.SECONDS.labels(page).observe(time.perf_counter() - began)
            return response

        return serve

    def _guarded(self, response: web.StreamResponse) -> None:
        """Add what every answer carries."""
        for name, value in guard.HEADERS.items():
            response.headers.setdefault(name, value)
        if self._names.is_secure:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Let a client send its body that asks first; aiohttp's own answer to any other wish quotes it."""
        if request.version != HttpVersion11:
            return None
        if request.headers[hdrs.EXPECT].lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # The answer itself is not begun.
            request.writer.output_size = 0
            return None
        response = self._failed(Problem(HTTPStatus.EXPECTATION_FAILED, "Nothing but 100-continue can be expected."))
        self._guarded(response)
        response.force_close()
        return response

    @web.middleware
    async def _without_path(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer what asks for no path, such as CONNECT and OPTIONS *: no route has it."""
        if request.match_info.http_exception is None:
            return await handler(request)
        response = self._failed(_no_page())
        self._guarded(response)
        return response

    def _broken(self, status: int) -> web.Response:
        """Return the answer to what aiohttp cannot read as a request, and to a failure of its own."""
        text = "Something is wrong in bizrq itself." if status >= 500 else "The request is broken."
        response = self._failed(Problem(HTTPStatus(status), text, "Load the page again."))
        self._guarded(response)
        return response

    async def _checked(self, request: web.Request, handler: _Answered) -> web.StreamResponse:
        """Return the answer of the handler, or that to what is wrong with the request."""
        try:
            if self.site.hosts and not request.path.startswith(("/healthz", "/readyz")):
                guard.check_host(request.headers.get("Host"), self.site.hosts)
            return await handler(request, await self._listener.body(request))
        except RenewalRefused as error:
            return self._come_again(request, error)
        except SignedOut as error:
            return self._ask_in(request, error)
        except Problem as error:
            return self._failed(error)
        except Unauthorized:
            return self._ask_in(request, SignedOut(REJECTED))
        except (ApiError, Unreachable, ConfigError) as error:
            return self._failed(_of_api(error))
        except NoAnswer as error:
            return self._failed(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)))
        except GroupUnreadable as error:
            return self._failed(unreadable(error))
        except BodyTooLarge:
            return self._failed(_too_large())
        except (web.HTTPException, ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            number = secrets.token_hex(4)
            log.exception("a request failed", method=request.method, path=request.path, number=number)
            text = "Something is wrong in bizrq itself."
            to_do = f"Tell your administrator the number {number}: the log of bizrq-web has more under it."
            return self._failed(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text, to_do))

    def _failed(self, problem: Problem) -> web.Response:
        status = problem.status
        said = [element("h1", f"{status.value} {status.phrase}"), element("p", shown(problem.text), class_="lead")]
        to_do = [element("p", problem.to_do)] if problem.to_do else []
        back = element("p", element("a", "Go to the overview", href="/"))
        return plain_page(status.phrase, [element("div", *said, *to_do, back, class_="narrow")], status)

    def _ask_in(self, request: web.Request, why: SignedOut) -> web.StreamResponse:
        browser, is_new = self._browser(request)
        gate = self.gate
        to = request.path_qs if request.method == "GET" and request.path != "/live" else "/"
        response = sign_in(why, browser, local_path(to), takes_tokens=gate.takes_tokens, has_oidc=gate.oidc is not None)
        if is_new:
            self._names.set(response, self._names.browser, browser.value)
        return response

    def _come_again(self, request: web.Request, why: RenewalRefused) -> web.StreamResponse:
        """Let the browser ask once more: another replica may have renewed its session with the same token.

        Then the browser has the new session by now, and its next request is answered.
        """
        if request.cookies.get(self._names.spent) == why.mark:
            response = self._ask_in(request, why)
            self._names.delete(response, self._names.spent)
            return response
        if request.method == "GET":
            response = self._failed(Problem(_BUSY, "Your sign-in is being renewed.", "The page loads again by itself."))
            response.headers["Refresh"] = response.headers["Retry-After"] = "1"
        else:
            to_do = "Nothing was changed. Go back, and send the form again."
            response = self._failed(Problem(_BUSY, "Your sign-in was renewed meanwhile.", to_do))
        self._names.set(response, self._names.spent, why.mark)
        return response

    def _user(self, handler: Handler) -> _Answered:
        """Answer only users who are in."""

        async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
            if entered := self._entered(request):
                return entered
            fields = self._form(request, body) if request.method == "POST" else {}
            admitted = await self.gate.admit(request)
            browser, is_new = self._browser(request)
            visit = Visit(
                request,
                admitted.visitor,
                browser,
                self._settings,
                self.gate.can_leave,
                fields,
                self._cache,
                admitted.lasts,
                admitted.renewed is not None,
            )
            await admitted.visitor.prove()
            response = await handler(visit)
            if not response.prepared:
                if admitted.renewed is not None:
                    self._store(response, admitted.renewed)
                if is_new:
                    self._names.set(response, self._names.browser, browser.value)
            return response

        return answer

    def _entered(self, request: web.Request) -> web.Response | None:
        """Return what takes the key of `bizrq web` out of the address and into a cookie."""
        key = request.query.get("key")
        if key is None or not isinstance(self.gate, LocalGate):
            return None
        response = _see_other("/")
        self._names.set(response, self._names.session, self.gate.spend(key))
        return response

    def _browser(self, request: web.Request) -> tuple[Browser, bool]:
        """Return what this browser's forms are bound to, and whether that is new."""
        value = request.cookies.get(self._names.browser, "")
        is_known = guard.is_browser(value)
        return Browser(value if is_known else guard.new_browser(), self._keys), not is_known

    def _form(self, request: web.Request, body: bytes) -> Mapping[str, str]:
        """Return the fields of a form from a page of ours. Raise Problem."""
        guard.check_origin(request.headers.get("Origin"), self.site.origins)
        if request.content_type != _FORM:
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send the form as {_FORM}.")
        if len(body) > _FORM_BYTES and request.path not in _WITH_MANIFESTS:
            raise _too_large()
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS))
        except ValueError:
            raise Problem(HTTPStatus.BAD_REQUEST, "The form is not readable.", "Load the page again.") from None
        guard.check_form(fields.get(guard.FIELD, ""), request.cookies.get(self._names.browser, ""), self._keys.of_forms)
        return fields

    def _store(self, response: web.StreamResponse, known: Session) -> None:
        try:
            session.store(response, known, self._names, self._keys)
        except SessionTooLarge as error:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"Your sign-in is too large for a browser: {error}.",
                "Ask an administrator for a token with fewer groups.",
            ) from None

    # Handlers

    async def _healthz(self, request: web.Request, body: bytes) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request, body: bytes) -> web.Response:
        why = self.unready
        return web.Response(status=503, text=why) if why else web.Response(text="ok")

    async def _unknown(self, request: web.Request, body: bytes) -> web.Response:
        raise _no_page()

    async def _asset(self, request: web.Request, body: bytes) -> web.Response:
        asset = assets.by_address().get(request.path)
        if asset is None:
            raise Problem(HTTPStatus.NOT_FOUND, "There is no such file.", "Load the page again.")
        headers = {"Cache-Control": _FOREVER, "ETag": asset.etag, "Vary": "Accept-Encoding"}
        if asset.etag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=asset.gzipped, content_type=asset.content_type, headers=headers)
        return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=headers)

    async def _live(self, visit: Visit) -> web.StreamResponse:
        # Without the new cookies the browser would ask for a renewal again, by a token that is spent.
        if "ask" in visit.request.query or visit.is_renewed:
            return web.Response(status=204, headers=guard.PRIVATE)
        return await self._streams.serve(visit)

    async def _sign_in(self, request: web.Request, body: bytes) -> web.Response:
        browser, _ = self._browser(request)
        gate, to = self.gate, local_path(request.query.get("to", "/"))
        response = sign_in(None, browser, to, takes_tokens=gate.takes_tokens, has_oidc=gate.oidc is not None)
        self._names.set(response, self._names.browser, browser.value)
        return response

    async def _sign_in_by_token(self, request: web.Request, body: bytes) -> web.Response:
        fields = self._form(request, body)
        if not self.gate.takes_tokens:
            raise Problem(HTTPStatus.NOT_FOUND, "Tokens are not taken here.", "Sign in with your organization.")
        token = fields.get("token", "").strip().removeprefix("Bearer ").strip()
        if not session.is_token(token):
            raise SignedOut("That is not a token.", "Paste it as one line without spaces.")
        await self._prove(token, SignedOut("The API server does not accept this token.", "Paste another one."))
        response = _see_other(local_path(fields.get("to", "/")))
        self._store(response, Session(token))
        return response

    async def _sign_in_by_oidc(self, request: web.Request, body: bytes) -> web.Response:
        if self.gate.oidc is None:
            raise Problem(HTTPStatus.NOT_FOUND, "There is no provider to sign in with.", "Sign in with a token.")
        address, attempt = await self.gate.oidc.begin(local_path(request.query.get("to", "/")))
        response = _see_other(address)
        self._names.set(response, self._names.attempt, self._keys.seal(msgspec.json.encode(attempt)).rstrip("="))
        return response

    async def _signed_in_by_oidc(self, request: web.Request, body: bytes) -> web.Response:
        attempt = self._attempt(request)
        if self.gate.oidc is None or attempt is None:
            raise SignedOut("The sign-in took too long, or began in another browser.", "Sign in again.")
        known = await self.gate.oidc.finish(request.query_string, attempt)
        refused = SignedOut(
            "The API server does not accept the token of the provider.",
            "An administrator may check that both are configured with the same provider and client.",
        )
        await self._prove(known.token, refused)
        response = _see_other(attempt.to)
        self._store(response, known)
        self._names.delete(response, self._names.attempt)
        return response

    async def _prove(self, token: str, refused: SignedOut) -> None:
        """Ask the API server about a token, and keep nothing of one that it does not accept. Raise Problem."""
        visitor = self.visitors.bearer(token)
        try:
            await visitor.prove()
        except Problem as error:
            await self.visitors.forget(visitor)
            raise refused if isinstance(error, SignedOut) else error from None

    def _attempt(self, request: web.Request) -> Attempt | None:
        """Return the sign-in that this browser has begun, None where there is none that is valid."""
        given = request.cookies.get(self._names.attempt, "")
        sealed = self._keys.open(given + "=" * (-len(given) % 4), _ATTEMPT) if given else None
        try:
            return msgspec.json.decode(sealed, type=Attempt) if sealed is not None else None
        except msgspec.MsgspecError:
            # The same keys seal sessions.
            return None

    async def _sign_out(self, request: web.Request, body: bytes) -> web.Response:
        self._form(request, body)
        response = _see_other("/sign-in")
        if self.gate.can_leave:
            try:
                admitted = await self.gate.admit(request)
            except Problem:
                log.debug("somebody who was not in signed out")
            else:
                await self.visitors.forget(admitted.visitor)
            session.forget(response, self._names)
        return response


def _no_page() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "There is no such page.", "Check the address.")


def _too_large() -> Problem:
    most = _FORM_BYTES // 1024 // 1024
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form is larger than {most} MiB.", "Send less.")


def _see_other(to: str) -> web.Response:
    return web.Response(status=303, headers={"Location": to, **guard.PRIVATE})


def _of_api(error: ApiError | Unreachable | ConfigError) -> Problem:
    """Return what the API server refused while a page was made."""
    if isinstance(error, ApiError) and error.status == HTTPStatus.FORBIDDEN:
        return Problem(HTTPStatus.FORBIDDEN, error.message, "Ask an administrator for this right.")
    return unavailable(error)
