"""Put the sandbox together, start it and stop it.

It runs in the caller's event loop.
"""

from __future__ import annotations

import base64
import secrets
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

from certs import pki
from sandbox.access import bearer
from sandbox.admission import Call, User
from sandbox.api import SYSTEM, Api
from sandbox.clock import Clock
from sandbox.manager import Manager
from sandbox.routes import USER, Fault, Routes
from sandbox.status import ApiError
from sandbox.watch import Watches

_LARGEST_BODY = 3 * 1024 * 1024  # apiserver's MaxRequestBodyBytes


class Sandbox:
    """`async with Sandbox() as box:` serves at `box.url` until the end of the block.

    Only requests with `box.token` are served, which the kubeconfig has: other users of the machine reach the port, too.
    That user may do everything. `box.add_user` adds users who may do what the stored RBAC allows them.
    Web pages reach it by a browser, with an Origin or a name of their own as the Host: they are refused.

    tls: serve https, with a certificate of a CA that the kubeconfig names (`box.ca`). kubectl sends its token over
    https only.
    controllers: run the stand-ins for workload controllers, scheduler, kubelet and garbage collector.
    bookmark_seconds: bookmarks come so long after a change, and each minute in any case.
    `box.faults` see every request first: one that returns a response answers it, one that sleeps delays it, one that
    returns None lets it pass.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = False,
        clock: Clock | None = None,
        controllers: bool = True,
        *,
        bookmark_seconds: float = 60.0,
        history: int = 20_000,
    ) -> None:
        self.clock = clock or Clock()
        self.api = Api(self.clock, history)
        self.faults: list[Fault] = []
        self.token = secrets.token_urlsafe(32)
        self._host = host
        self._port = port
        self._tls, self.ca = _serving_context(host) if tls else (None, b"")
        self._manager = Manager(self.api) if controllers else None
        self._watches = Watches(self.api, bookmark_seconds)
        self._users: dict[str, User] = {self.token: User()}
        self._routes = Routes(self.api, self._watches, self.faults, self._users)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        await self.api.start()
        if self._manager is not None:
            await self._manager.start()
        server = web.Application(client_max_size=_LARGEST_BODY, middlewares=[self._guard])
        server.router.add_route("*", "/{path:.*}", self._routes.handle)
        self._runner = web.AppRunner(
            server, access_log=None, shutdown_timeout=1.0, keepalive_timeout=300.0, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watches.close()
        if self._manager is not None:
            await self._manager.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.api.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse a request that does not come from a client with the kubeconfig."""
        name = (request.host or "").rpartition(":")[0] or request.host
        if "Origin" in request.headers:
            return _refusal(403, "Forbidden", "the sandbox serves no web pages: the request has an Origin")
        if name not in (self._host, "localhost", "127.0.0.1"):
            return _refusal(403, "Forbidden", "the sandbox has another name than the Host of the request")
        user = bearer(request.headers.get("Authorization", ""), self._users)
        if user is None:
            return _refusal(401, "Unauthorized", "the sandbox asks for the token of its kubeconfig")
        request[USER] = user
        return await handler(request)

    async def install(self, definitions: Iterable[dict[str, Any]]) -> None:
        """Store CustomResourceDefinitions, as an administrator would. Their kinds are served from then on."""
        resource = self.api.resource("apiextensions.k8s.io", "customresourcedefinitions")
        for definition in definitions:
            await self.api.create(Call(SYSTEM), resource, "", definition)

    def add_user(self, name: str, *groups: str, token: str = "") -> str:
        """Return a token for a user, who may do what the stored RBAC allows."""
        token = token or secrets.token_urlsafe(32)
        self._users[token] = User(name, (*groups, "system:authenticated"))
        return token

    def remove_token(self, token: str) -> None:
        """Reject a token from now on, as after its expiry. Watches that are open stay open."""
        del self._users[token]

    @property
    def open_watches(self) -> int:
        return self._watches.count

    def break_watches(self) -> None:
        """Break the connection of every open watch, as a failing network would."""
        self._watches.abort()

    def compact(self) -> None:
        """Forget the history: answer watches and lists from an earlier revision with 410."""
        self.api.store.compact()

    def write_kubeconfig(self, path: str | Path) -> Path:
        """Write a kubeconfig for this sandbox, readable by its owner only; make its parent directories."""
        target = Path(path)
        cluster: dict[str, str] = {"server": self.url}
        if self.ca:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [
                {"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin", "namespace": "default"}}
            ],
            "current-context": "sandbox",
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600, exist_ok=True)
        target.chmod(0o600)
        target.write_text(yaml.safe_dump(config, sort_keys=False))
        return target


def _refusal(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(ApiError(code, reason, message).body, status=code)


def _serving_context(host: str) -> tuple[ssl.SSLContext, bytes]:
    """Return a context with a new certificate for the host, and the PEM of the CA that signed it."""
    now = datetime.now(UTC)
    ca = pki.make_ca(now, name="bizrq sandbox")
    serving = pki.make_serving(ca, [host, "localhost"], now)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as directory:  # ssl reads keys from files only
        path = Path(directory) / "serving.pem"
        path.touch(mode=0o600)
        path.write_bytes(serving.key_pem + serving.certificate_pem)
        context.load_cert_chain(path)
    return context, ca.certificate_pem
