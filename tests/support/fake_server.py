"""A fake API server for tests of its clients: objects, one revision, list, watch, and the faults that a test asks for.

It keeps its whole history, so that it can answer from the past, forget it (410) or go back to it (a restored etcd).
A conftest imports the fixtures `server` and `client`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from aiohttp import web

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials

Object = dict[str, Any]
RESOURCES = {
    "deployments": ("apps", "v1", "Deployment"),
    "pods": ("", "v1", "Pod"),
    "events": ("", "v1", "Event"),
    "secrets": ("", "v1", "Secret"),
    "bizgroupresourcequotas": ("quota.biz.group", "v1alpha1", "BizGroupResourceQuota"),
    "leases": ("coordination.k8s.io", "v1", "Lease"),
    "validatingwebhookconfigurations": (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
    ),
}


@dataclass
class Watching:
    """A fault of a watch after `after` events: "gone", "break", "half line", "silence", "error" or "end"."""

    fault: str
    after: int = 0


@dataclass
class FakeServer:
    streams: bool = True  # WatchList
    bookmark_every: float | None = 0.05
    revision: int = 100
    compacted: int = 0
    missing: set[str] = field(default_factory=set)  # plurals that are not installed
    requests: list[str] = field(default_factory=list)
    #: The size that each list asks its page to have.
    limits: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refusals: list[tuple[Callable[[str], bool], int, dict[str, str]]] = field(default_factory=list)
    watch_faults: list[Watching] = field(default_factory=list)
    stale_lists: list[int] = field(default_factory=list)  # revisions that the next lists answer from
    delay: float = 0.0
    slow_answers: float = 0.0  # after a write was done
    losing: str = ""  # events of this type are not sent
    repeating: bool = False  # each watch begins with all of history
    short_lived: bool = False  # a streamed list mentions an object that ends within it

    def __post_init__(self) -> None:
        self.history: list[tuple[int, str, str, Object]] = []  # revision, type, plural, object
        self.changed = asyncio.Condition()
        self.uids = itertools.count(1)
        self._watching: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    # What a test does to the cluster

    def objects(self, plural: str, at: int | None = None) -> dict[tuple[str, str], Object]:
        """Return the objects of a kind now or at a revision, by (namespace, name)."""
        state: dict[tuple[str, str], Object] = {}
        for revision, kind, of, obj in self.history:
            if of != plural or (at is not None and revision > at):
                continue
            key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            if kind == "DELETED":
                state.pop(key, None)
            else:
                state[key] = obj
        return state

    def put(self, plural: str, name: str, namespace: str = "default", **content: Any) -> Object:
        held = self.objects(plural).get((namespace, name))
        self.revision += 1
        group, version, kind = RESOURCES[plural]
        metadata = {"name": name, "uid": held["metadata"]["uid"] if held else f"uid-{next(self.uids)}"}
        if namespace:
            metadata["namespace"] = namespace
        body = copy.deepcopy(content)
        metadata = {**body.pop("metadata", {}), **metadata, "resourceVersion": str(self.revision)}
        obj = {
            "apiVersion": f"{group}/{version}" if group else version,
            "kind": kind,
            **body,
            "metadata": metadata,
        }
        self.history.append((self.revision, "MODIFIED" if held else "ADDED", plural, obj))
        self._tell()
        return obj

    def remove(self, plural: str, name: str, namespace: str = "default") -> None:
        held = self.objects(plural)[namespace, name]
        self.revision += 1
        final = copy.deepcopy(held)
        final["metadata"]["resourceVersion"] = str(self.revision)
        self.history.append((self.revision, "DELETED", plural, final))
        self._tell()

    def tick(self, revisions: int = 1) -> None:
        """Move the revision on, as if another object changed."""
        self.revision += revisions
        self._tell()

    def compact(self) -> None:
        """Forget the history up to now: a request for older events gets 410."""
        self.compacted = self.revision

    def restore(self, revision: int) -> None:
        """Restore etcd from an old backup, as if nothing had happened after `revision`."""
        self.history = [entry for entry in self.history if entry[0] <= revision]
        self.revision = revision
        self.compacted = 0
        self._tell()

    def cut(self) -> None:
        """Break every watch, as a load balancer does after a change of its configuration."""
        for transport in self._watching:
            transport.abort()

    def refuse(self, verb: str, status: int, times: int = 1, **headers: str) -> None:
        """Refuse the next requests whose "VERB path" contains `verb`, with headers such as Retry_After."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.refusals.extend([(lambda request, verb=verb: verb in request, status, named)] * times)

    def _tell(self) -> None:
        async def tell() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.ensure_future(tell())
        task.add_done_callback(lambda _: None)

    # Serving

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop as by kill -9. start() listens on the same port again."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") == "true"
        line = f"{'WATCH' if watching else request.method} {request.path}"
        self.requests.append(line)
        self.headers.append(dict(request.headers))
        if self.delay:
            await asyncio.sleep(self.delay)
        for refusal in self.refusals:
            if refusal[0](line):
                self.refusals.remove(refusal)
                return _status(refusal[1], "Refused", "refused on purpose", refusal[2])
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = None
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], parts[1] if len(parts) > 1 else None
        if plural in self.missing or plural not in RESOURCES:
            return _status(404, "NotFound", "the server could not find the requested resource")
        if watching:
            return await self._watch(request, plural)
        if request.method == "GET" and name is None:
            return self._list(request, plural, namespace)
        answer = await self._object(request, plural, namespace or "", name)
        if request.method != "GET":
            await asyncio.sleep(self.slow_answers)
        return answer

    async def _object(self, request: web.Request, plural: str, namespace: str, name: str | None) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        if request.method == "POST":
            name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{self.revision}"
            if (namespace, name) in self.objects(plural):
                return _status(409, "AlreadyExists", f'{plural} "{name}" already exists')
            return web.json_response(self.put(plural, name, namespace, **body), status=201)
        held = self.objects(plural).get((namespace, name or ""))
        if held is None:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        assert name is not None
        if request.method == "GET":
            return web.json_response(held)
        if request.method == "DELETE":
            wanted = (body.get("preconditions") or {}).get("uid")
            if wanted and wanted != held["metadata"]["uid"]:
                return _status(409, "Conflict", "the UID in the precondition does not match")
            self.remove(plural, name, namespace)
            return web.json_response({"kind": "Status", "status": "Success"})
        if request.method == "PATCH":
            if isinstance(body, list):
                import jsonpatch

                try:
                    body = jsonpatch.apply_patch(held, body)
                except jsonpatch.JsonPatchException as error:
                    return _status(422, "Invalid", str(error))
            else:
                body = _merged(held, body)
        expected = body["metadata"].get("resourceVersion")
        if expected and expected != held["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        return web.json_response(self.put(plural, name, namespace, **body))

    def _list(self, request: web.Request, plural: str, namespace: str | None) -> web.StreamResponse:
        token = request.query.get("continue")
        self.limits.append(request.query.get("limit", ""))
        if token:
            at, start = map(int, token.split("/"))
            if at < self.compacted:
                return _status(410, "Expired", "The provided continue parameter is too old")
        else:
            at, start = self.stale_lists.pop(0) if self.stale_lists else self.revision, 0
        items = [obj for key, obj in sorted(self.objects(plural, at).items()) if namespace in (None, key[0])]
        limit = int(request.query.get("limit", "0")) or len(items) or 1
        metadata: Object = {"resourceVersion": str(at)}
        if start + limit < len(items):
            metadata["continue"] = f"{at}/{start + limit}"
        page = [{k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} for obj in items]
        return web.json_response(
            {"kind": f"{RESOURCES[plural][2]}List", "metadata": metadata, "items": page[start : start + limit]}
        )

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        query = request.query
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.streams:
            return _status(422, "Invalid", "sendInitialEvents is forbidden for watch")
        since = self.revision if initial else int(query["resourceVersion"])
        if since < self.compacted:
            return _status(410, "Expired", "too old resource version")
        plan = self.watch_faults.pop(0) if self.watch_faults else None
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        self._watching.add(transport)
        loop = asyncio.get_running_loop()
        ends = loop.time() + float(query["timeoutSeconds"])
        sent = 0
        try:
            if initial:
                for obj in self.objects(plural, since).values():
                    await self._event(response, "ADDED", obj)
                    sent += 1
                    if plan is not None and sent >= plan.after and plan.fault == "silence":
                        await asyncio.sleep(60)
                    if plan is not None and sent >= plan.after and await self._misbehave(request, response, plan):
                        return response
                if self.short_lived:
                    group, version, kind = RESOURCES[plural]
                    metadata = {"name": "short", "uid": "short", "resourceVersion": str(since)}
                    obj = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata}
                    await self._event(response, "ADDED", obj)
                    await self._event(response, "DELETED", obj)
                await self._event(response, "BOOKMARK", _bookmark(since, True))
            elif self.repeating:
                for _, kind, of, obj in self.history:
                    if of == plural:
                        await self._event(response, kind, obj)
            silent = False
            if plan is not None and plan.after == 0:
                silent = plan.fault == "silence"
                if await self._misbehave(request, response, plan):
                    return response
            while silent or loop.time() < ends:
                for revision, kind, of, obj in list(self.history):
                    if of == plural and revision > since and not silent:
                        if kind != self.losing:
                            await self._event(response, kind, obj)
                        since, sent = revision, sent + 1
                        if plan is not None and sent >= plan.after:
                            silent = plan.fault == "silence"
                            if await self._misbehave(request, response, plan):
                                return response
                wait = 60.0 if silent else min(ends - loop.time(), self.bookmark_every or 60.0)
                try:
                    async with asyncio.timeout(max(0.0, wait)), self.changed:
                        await self.changed.wait()
                except TimeoutError:
                    # Who waits is woken a little after a change: a bookmark must not pass over it.
                    is_behind = any(of == plural and revision > since for revision, _, of, _ in self.history)
                    if self.bookmark_every and not silent and not is_behind and self.revision > since:
                        since = self.revision
                        await self._event(response, "BOOKMARK", _bookmark(since, False))
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._watching.discard(transport)
        return response

    async def _misbehave(self, request: web.Request, response: web.StreamResponse, plan: Watching) -> bool:
        if plan.fault == "gone":
            expired = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            await self._event(response, "ERROR", expired)
        elif plan.fault == "error":
            failed = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd is unhappy"}
            await self._event(response, "ERROR", failed)
        elif plan.fault == "half line":
            await response.write(b'{"type":"ADDED","object":{"meta')
            await response.write_eof()
        elif plan.fault == "break":
            await response.write(b'{"type":"ADDED","obj')
            assert request.transport is not None
            request.transport.abort()
        elif plan.fault == "end":
            await response.write_eof()
        return plan.fault != "silence"

    async def _event(self, response: web.StreamResponse, kind: str, obj: Object) -> None:
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        middle = len(line) // 2
        await response.write(line[:middle])
        await response.write(line[middle:])


def _bookmark(revision: int, last_initial: bool) -> Object:
    metadata: Object = {"resourceVersion": str(revision)}
    if last_initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"metadata": metadata}


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


def _merged(base: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """Yield a fake API server."""
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[KubeClient]:
    """Yield a client of the fake API server."""
    async with KubeClient(Endpoint(server.url, StaticCredentials({}))) as client:
        yield client
