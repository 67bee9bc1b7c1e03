"""A proxy before an API server, for what networks do to requests: losing answers, delays, refusals, silence.

It fakes the way to the server, never our own functions.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

#: Called with "VERB /path" before the request goes on; a response that it returns is the answer.
Before = Callable[[str], Awaitable[web.Response | None]]
#: Called with "VERB /path" and the answer's code; True loses the answer.
After = Callable[[str, int], Awaitable[bool]]

_PASSED_ON = ("Content-Type", "Retry-After", "Warning")


class Proxy:
    """`async with Proxy(kubeconfig)`: what is sent to `url` goes to the kubeconfig's server, as its user."""

    def __init__(self, kubeconfig: Path, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """`headers` go with every request: `Impersonate-User`, for one."""
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._upstream: str = cluster["server"]
        self._authority: str | None = cluster.get("certificate-authority")
        self._authority_text = b64decode(cluster.get("certificate-authority-data", "")).decode()
        self._headers = {**headers, **({"Authorization": f"Bearer {user['token']}"} if "token" in user else {})}
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.before: list[Before] = []
        self.after: list[After] = []
        #: "VERB /path" of every request, in the order of arrival.
        self.requests: list[str] = []
        self._thawed: list[tuple[str, asyncio.Event]] = []
        self._handled: set[asyncio.Task[Any]] = set()
        self._streams: list[tuple[str, web.StreamResponse, asyncio.Transport]] = []
        #: Paths whose watches are frozen as soon as they are opened.
        self.frozen: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def write_kubeconfig(self, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
            "current-context": "proxy",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def sent(self, verb: str, ending: str = "") -> int:
        """How many requests of this verb, with paths that end so, came through so far."""
        return sum(line.startswith(verb + " ") and line.endswith(ending) for line in self.requests)

    async def __aenter__(self) -> Self:
        names_one = self._authority or self._authority_text
        trust = (
            ssl.create_default_context(cafile=self._authority, cadata=self._authority_text or None)
            if names_one
            else True
        )
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Who waits for an API server does not see that the other side has gone.
        for task in (handled := list(self._handled)):
            task.cancel()
        await asyncio.gather(*handled, return_exceptions=True)
        await self.hang_up()
        assert self._session is not None
        await self._session.close()

    async def listen(self) -> None:
        """Take connections; again at the same port after `hang_up`."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    def freeze(self, path: str) -> None:
        """The watches of this path that are open now stay open and bring nothing more; new ones are well."""
        for watched, thawed in self._thawed:
            if watched == path:
                thawed.clear()

    def thaw(self, path: str) -> None:
        """The watches of this path bring what they kept back, and new ones are well."""
        self.frozen.discard(path)
        for watched, thawed in self._thawed:
            if watched == path:
                thawed.set()

    async def spoil(self, path: str, last: bytes) -> int:
        """Every open watch of this path says `last` and breaks; returns how many there were."""
        streams = [(response, transport) for watched, response, transport in self._streams if watched == path]
        for response, transport in streams:
            await response.write(last)
            # What was written has to be on its way before the connection is cut.
            await asyncio.sleep(0.01)
            transport.abort()
        return len(streams)

    async def hang_up(self) -> None:
        """Break every connection and take no more."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._handled.add(task)
        task.add_done_callback(self._handled.discard)
        line = f"{'WATCH' if request.query.get('watch') else request.method} {request.path}"
        self.requests.append(line)
        for before in self.before:
            if (answer := await before(line)) is not None:
                return answer
        assert self._session is not None
        headers = {**self._headers, "Accept-Encoding": "identity"}
        headers |= {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
        body = await request.read()
        try:
            async with self._session.request(
                request.method, self._upstream + request.path_qs, data=body or None, headers=headers
            ) as answered:
                passed = {name: answered.headers[name] for name in _PASSED_ON if name in answered.headers}
                if line.startswith("WATCH"):
                    return await self._stream(request, answered, passed)
                content = await answered.read()
        except aiohttp.ClientError:
            return web.Response(status=502, text="the API server is gone")
        for after in self.after:
            if await after(line, answered.status) and request.transport is not None:
                request.transport.abort()
        return web.Response(status=answered.status, body=content, headers=passed)

    async def _stream(
        self, request: web.Request, answered: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answered.status, headers=headers)
        response.enable_chunked_encoding()
        thawed = asyncio.Event()
        if request.path not in self.frozen:
            thawed.set()
        self._thawed.append((request.path, thawed))
        try:
            await response.prepare(request)
            assert request.transport is not None
            stream = request.path, response, request.transport
            self._streams.append(stream)
            async for chunk in answered.content.iter_any():
                await thawed.wait()
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, aiohttp.ClientError, asyncio.CancelledError):
            pass
        finally:
            self._thawed.remove((request.path, thawed))
            self._streams = [stream for stream in self._streams if stream[1] is not response]
        return response
