"""Requests to the API server: raw JSON over one keep-alive session, typed errors, no hidden second write.

This file alone decides the form of a request and the meaning of an answer. It caches nothing and knows no kind by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import os
import random
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, urlencode

import aiohttp
import orjson

from bizrq.kube import config
from bizrq.kube.answers import parse
from bizrq.kube.config import ConfigError, Endpoint, Identity
from bizrq.units.text import is_segment

__all__ = [
    "AlreadyExists",
    "AnswerTooLarge",
    "ApiError",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "InvalidName",
    "KubeClient",
    "NotFound",
    "Resource",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
]

DEFAULT_TIMEOUT = 30.0  # seconds, for one call with all its retries; an API write ends within 34 s
CONNECT_TIMEOUT = 5.0
_UNSUPPORTED_MEDIA_TYPE = 415
READ_ATTEMPTS = 4
# Below the idle timeout of any server (90 s in kube-apiserver), so that a write seldom meets a closed connection.
KEEPALIVE_SECONDS = 30.0
CONNECTIONS = 200
#: The objects of the first page of a list, and the bytes of a page: objects take up to eight times as much memory, and
#: the event loop stands still while a page is read. A server writes a page before it is found too large: so the first
#: one is small.
_FIRST_PAGE, _PAGE_BYTES = 50, 8 * 2**20
#: A list up to this size is read whatever the size of its objects.
_LIST_BYTES = 4 * _PAGE_BYTES


class ApiError(Exception):
    """An unsuccessful answer of the API server. `details` are those of the Status, {} if it has none."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = " ".join(message.split())[:2000]
        self.details = details or {}
        self.retry_after = retry_after
        super().__init__(f"{self.message} ({status} {reason})" if self.message else f"{status} {reason}")


class Unauthorized(ApiError): ...


class Forbidden(ApiError): ...


class NotFound(ApiError): ...


class Conflict(ApiError):
    """409: the stored object has another resourceVersion than the one sent."""


class AlreadyExists(ApiError): ...


class Gone(ApiError):
    """410: a watch or a page cannot continue; list again."""


class Invalid(ApiError): ...


class AnswerTooLarge(ApiError):
    """413: a request, or here the answer to one, has too many bytes."""


class TooManyRequests(ApiError): ...


class ServerError(ApiError): ...


class Unreachable(Exception):
    """No answer: refused, reset, timed out, or an untrusted certificate. The message is one line with the server's URL.

    `sent` is False if the request cannot have reached the server, so that even a write may be tried again.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(message)


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: AnswerTooLarge,
    422: Invalid,
    429: TooManyRequests,
}
_REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def error_from(status: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """Return the typed error of an answer: from its Status object, or from the plain text of a proxy or filter."""
    document: Any = None
    with contextlib.suppress(orjson.JSONDecodeError):
        document = orjson.loads(body)
    if isinstance(document, dict) and document.get("kind") == "Status":
        return error_from_status(document, status, retry_after)
    text = body[:500].decode("utf-8", "replace")
    return _typed(status, _REASONS.get(status, "Unknown"), text, {}, retry_after)


def error_from_status(
    document: dict[str, Any], status: int | None = None, retry_after: float | None = None
) -> ApiError:
    """Return the typed error of a Status object, in an answer or in an ERROR event of a watch."""
    code = status or _integer(document.get("code")) or 500
    details = document.get("details")
    details = details if isinstance(details, dict) else {}
    if retry_after is None and (seconds := _integer(details.get("retryAfterSeconds"))):
        retry_after = float(seconds)
    reason = str(document.get("reason") or _REASONS.get(code, "Unknown"))
    return _typed(code, reason, str(document.get("message") or ""), details, retry_after)


def _typed(code: int, reason: str, message: str, details: dict[str, Any], retry_after: float | None) -> ApiError:
    kind = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, reason, message, details, retry_after)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Resource:
    """A kind in the terms of its REST path. `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def key(self) -> str:
        """Return plural.group, or the bare plural for the core group: "deployments.apps", "pods"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the REST path. Without a namespace, a namespaced kind's collection is that of all namespaces.

        Raise InvalidName for a name that is no path segment, and for one namespaced object without a namespace.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        elif self.namespaced and name is not None:
            raise InvalidName(f"{self.kind} {name!r} is namespaced: which namespace?")
        parts.append(self.plural)
        if name is not None:
            parts.append(_segment(name))
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)


class InvalidName(ValueError):
    """No object can have this name."""


def _segment(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidName(f"a {type(name).__name__} is no object's name")
    if not name or not is_segment(name):
        raise InvalidName(f"{name[:64]!r} is no object's name")
    return quote(name, safe="")


class Observer(Protocol):
    """Is told of each request of a client."""

    def answered(self, method: str, status: int | None) -> None:
        """One attempt had an answer with this status, or None where none came."""
        ...

    def ended(self, method: str, seconds: float) -> None:
        """A request other than a watch ended after so long, with all its attempts."""
        ...


class _NoObserver:
    def answered(self, method: str, status: int | None) -> None: ...

    def ended(self, method: str, seconds: float) -> None: ...


@functools.cache
def _version() -> str:
    # It is read from a file. The web UI makes a client for each page.
    return importlib.metadata.version("bizrq")


class KubeClient:
    """The client of one API server, as one user, in one event loop. The first request connects."""

    def __init__(self, endpoint: Endpoint, *, timeout: float | None = None, connections: int | None = None) -> None:
        """`timeout` in seconds is the default of all calls, `connections` how many are open at most."""
        self._endpoint = endpoint
        self._timeout = DEFAULT_TIMEOUT if timeout is None else timeout
        self._connections = CONNECTIONS if connections is None else connections
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_for: Identity | None = None
        self.observer: Observer = _NoObserver()

    @classmethod
    def from_kubeconfig(cls, path: str | Path, context: str | None = None) -> Self:
        """Return a client for a context of a kubeconfig, by default its current one. Raise ConfigError."""
        return cls(config.from_kubeconfig(path, context))

    @classmethod
    def in_cluster(cls) -> Self:
        """Return a client with the pod's service account. Raise ConfigError outside a cluster."""
        return cls(config.in_cluster())

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def server(self) -> str:
        return self._endpoint.server

    @property
    def timeout(self) -> float:
        """Return the seconds that a call may take, unless it says otherwise."""
        return self._timeout

    @property
    def namespace(self) -> str:
        """Return the default namespace: that of the context, else `default`."""
        return self._endpoint.namespace

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
        on_warning: Callable[[str], None] = lambda _: None,
        most: int | None = None,
    ) -> bytes:
        """Return the body of a 2xx answer. Raise an ApiError, Unreachable or, for credentials, ConfigError.

        `on_warning` gets the text of each warning of that answer (KEP-1693). Raises AnswerTooLarge for an answer of
        more than `most` bytes.

        A read is tried again on 429, 5xx and a dropped connection, after Retry-After or a jittered pause, while
        `timeout` (seconds, for all attempts together) leaves time. A write is sent once.
        """
        allowed = self._timeout if timeout is None else timeout
        began = time.perf_counter()
        try:
            async with asyncio.timeout(allowed) as scope:
                attempts = READ_ATTEMPTS if method in ("GET", "HEAD") else 1
                for attempt in range(1, attempts + 1):
                    try:
                        async with self._answer(method, path, body, params, content_type) as response:
                            for text in map(_warning, response.headers.getall("Warning", ())):
                                on_warning(text)
                            return await (response.read() if most is None else _read(response, most))
                    except (TooManyRequests, ServerError, Unreachable) as error:
                        if isinstance(error, Unreachable) and not error.sent:
                            raise  # The caller decides whether to wait for an unreachable server.
                        pause = _pause(error, attempt)
                        ends = scope.when() or 0.0
                        if attempt == attempts or asyncio.get_running_loop().time() + pause >= ends:
                            raise
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise Unreachable(f"{self.server} did not answer {method} {path} within {allowed:g} s", sent=True) from None
        finally:
            self.observer.ended(method, time.perf_counter() - began)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return one object. What other objects name may be no name at all: such an object is NotFound."""
        try:
            _segment(name)  # the path without one is that of all objects
            path = resource.path(namespace, name)
        except InvalidName as error:
            raise NotFound(404, "NotFound", str(error)) from None
        return self._object(await self.request("GET", path, timeout=timeout))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        timeout: float | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        mean: int | None = None,
        current: bool = True,
    ) -> tuple[list[dict[str, Any]], str]:
        """Return all objects and the one resourceVersion of the read, which is consistent.

        Unless `current`, the API server answers with what its cache has, which may be behind, and does not wait for it.
        That has no pages: AnswerTooLarge is raised for what fills more than one.

        `limit` is the largest number of objects of a page, 0 for one page; pages of large objects are smaller.
        `timeout` is per page, in seconds. `transform` replaces each object as its page arrives, so that the fields that
        it drops take no memory for the whole list. Raises AnswerTooLarge for a large list whose objects have more than
        `mean` bytes on average.

        All pages share one revision. If that is compacted meanwhile (410), the read starts over without pages: to
        continue at another revision would mix two states.
        """
        path, params = resource.path(namespace), _selectors(label_selector, field_selector)
        typed = {"apiVersion": resource.api_version, "kind": resource.kind}

        def complete(item: dict[str, Any]) -> dict[str, Any]:
            # The items of a list lack their type; readers of one object expect it.
            item = {**typed, **item}
            return item if transform is None else transform(item)

        if not current:
            params["resourceVersion"] = "0"
            page = self._object(await self.request("GET", path, params=params, timeout=timeout, most=_PAGE_BYTES))
            return list(map(complete, page.get("items") or ())), str(revision_of(page))
        try:
            return await self._pages(path, params, limit, timeout, complete, mean)
        except Gone:
            if not limit or mean is not None:
                raise
            return await self._pages(path, params, 0, timeout, complete, None)

    async def revision(self, resource: Resource, namespace: str | None = None) -> int:
        """Return the current revision of the API server, that of a consistent list, at the cost of one object."""
        page = self._object(await self.request("GET", resource.path(namespace), params={"limit": "1"}))
        return revision_of(page)

    async def create(
        self, resource: Resource, obj: dict[str, Any], *, dry_run: bool = False, timeout: float | None = None
    ) -> dict[str, Any]:
        path = resource.path(_namespace(resource, obj))
        return await self._write("POST", path, obj, "application/json", dry_run, timeout)

    async def replace(
        self, resource: Resource, obj: dict[str, Any], *, subresource: str | None = None
    ) -> dict[str, Any]:
        path = resource.path(_namespace(resource, obj), obj["metadata"]["name"], subresource)
        return await self._write("PUT", path, obj, "application/json", False)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: dict[str, Any] | list[Any],
        *,
        namespace: str | None = None,
        content_type: str = "application/merge-patch+json",
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, patch, content_type, dry_run)

    async def apply(self, resource: Resource, obj: dict[str, Any], manager: str) -> dict[str, Any]:
        """Apply an object by server-side apply: create it, or own its fields as `manager` and keep those of others.

        Fields that are not known are refused. An update with another uid than the stored one is a Conflict.
        """
        path = resource.path(_namespace(resource, obj), obj["metadata"]["name"])
        params = {"fieldValidation": "Strict", "fieldManager": manager, "force": "true"}
        kind = "application/apply-patch+yaml"
        return self._object(await self.request("PATCH", path, body=orjson.dumps(obj), params=params, content_type=kind))

    async def apply_or_create(
        self, resource: Resource, obj: dict[str, Any], manager: str, *, stored: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Apply an object, or create it where the API server has no server-side apply, as the sandbox has none.

        `stored` is the stored object, None without one. Return the answer, None where that has to be patched instead.
        """
        try:
            return await self.apply(resource, obj, manager)
        except ApiError as error:
            if error.status != _UNSUPPORTED_MEDIA_TYPE:
                raise
        if stored is not None:
            return None
        path, params = resource.path(_namespace(resource, obj)), {"fieldValidation": "Strict"}
        return self._object(await self.request("POST", path, body=orjson.dumps(obj), params=params))

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Request the object's deletion in the background, on condition of `uid` and `resource_version` if given."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {key: value for key, value in preconditions.items() if value is not None},
        }
        await self.request("DELETE", resource.path(namespace, name), body=orjson.dumps(options))

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: int = 240,
        send_initial_events: bool = False,
    ) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """Yield events as (type, object), with BOOKMARKs, until the server ends the watch after `timeout_seconds`.

        Raise an ERROR event as its typed error (Gone for 410), and a broken stream as Unreachable. The caller bounds
        the silence. With `send_initial_events` the server first streams the state that is not older than
        `resource_version` ("": now), up to a bookmark with the annotation k8s.io/initial-events-end (KEP-3157). Servers
        without that answer Invalid.
        """
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        params |= _selectors(label_selector, field_selector)
        if resource_version:
            params["resourceVersion"] = resource_version
        if send_initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        async with (
            self._answer("GET", resource.path(namespace), None, params, "") as response,
            contextlib.aclosing(self._lines(response)) as lines,
        ):
            async for line in lines:
                event = self._object(line)
                kind, obj = event.get("type"), event.get("object")
                if not isinstance(kind, str) or not isinstance(obj, dict):
                    raise Unreachable(f"{self.server} sent no event: {_glimpse(line)}", sent=True)
                if kind == "ERROR":
                    raise error_from_status(obj)
                yield kind, obj

    async def _pages(
        self,
        path: str,
        selectors: Mapping[str, str],
        limit: int,
        timeout: float | None,
        complete: Callable[[dict[str, Any]], dict[str, Any]],
        mean: int | None,
    ) -> tuple[list[dict[str, Any]], str]:
        params = dict(selectors)
        items: list[dict[str, Any]] = []
        revision: str | None = None
        size, read = min(limit, _FIRST_PAGE), 0
        while True:
            if size:
                params["limit"] = str(size)
            try:
                most = _PAGE_BYTES if size > 1 else None
                answer = await self.request("GET", path, params=params, timeout=timeout, most=most)
            except AnswerTooLarge:
                if size <= 1:
                    raise
                size = max(1, size // 4)
                continue
            page = self._object(answer)
            items.extend(map(complete, page.get("items") or ()))
            metadata = page.get("metadata") or {}
            revision = revision or str(metadata.get("resourceVersion") or "")
            if not metadata.get("continue"):
                return items, revision
            params["continue"] = metadata["continue"]
            read += len(answer)
            if mean is not None and read > max(_LIST_BYTES, mean * len(items)):
                # Or the traceback would keep them.
                items.clear()
                page.clear()
                raise AnswerTooLarge(
                    413, "RequestEntityTooLarge", f"{path}: its objects have over {mean} bytes on average"
                )
            if len(answer) < _PAGE_BYTES // 4:
                size = min(limit, 2 * size)

    async def _write(
        self,
        method: str,
        path: str,
        document: Any,
        content_type: str,
        dry_run: bool,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        params = {"dryRun": "All"} if dry_run else None
        body = orjson.dumps(document)
        answer = await self.request(method, path, body=body, params=params, content_type=content_type, timeout=timeout)
        return self._object(answer)

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        params: Mapping[str, str] | None,
        content_type: str,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the 2xx answer to one request, its body unread. After a 401 try once more with renewed credentials."""
        url = self.server + path + ("?" + urlencode(params) if params else "")
        headers = [*self._endpoint.headers]
        if body is not None:
            headers.append(("Content-Type", content_type))
        identity = await self._endpoint.credentials.identity()
        for renewed in (False, True):
            proof = [("Authorization", identity.authorization)] if identity.authorization else []
            sent = False
            try:
                async with self._connected().request(
                    method,
                    url,
                    data=body,
                    headers=[*headers, *proof],
                    ssl=self._trust(identity),
                    server_hostname=self._endpoint.server_name,
                    proxy=self._endpoint.proxy,
                    allow_redirects=False,
                ) as response:
                    sent = True
                    self.observer.answered(method, response.status)
                    if 200 <= response.status < 300:
                        yield response
                        return
                    text = await response.read()
                    if response.status != 401 or renewed:
                        raise error_from(response.status, text, _retry_after(response))
            except (aiohttp.ClientError, OSError, asyncio.CancelledError) as error:
                if not sent:
                    self.observer.answered(method, None)
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise self._unreachable(error, sent) from error
            identity, before = await self._endpoint.credentials.identity(rejected=True), identity
            if identity == before:
                raise error_from(401, text)

    def _unreachable(self, error: Exception, sent: bool) -> Unreachable:
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
            return Unreachable(f"{self.server}: TLS: {_reason(error)}", sent=False)
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return Unreachable(f"{self.server} cannot be reached: {_not_connected(error)}", sent=False)
        what = "broke off its answer" if sent else "closed the connection"
        return Unreachable(f"{self.server} {what}: {_reason(error)}", sent=True)

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        """Yield lines of JSON of any length. Raise Unreachable for an unfinished last line."""
        parts: list[bytes] = []
        async for chunk in response.content.iter_any():
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                line = b"".join((*parts, chunk[start:end])) if parts else chunk[start:end]
                parts.clear()
                start = end + 1
                if line.strip():
                    yield line
            if start < len(chunk):
                parts.append(chunk[start:] if start else chunk)
        if b"".join(parts).strip():
            raise Unreachable(f"{self.server} broke off its answer in the middle of an event", sent=True)

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            document = parse(body)
        except orjson.JSONDecodeError:
            raise Unreachable(f"{self.server} answered without JSON: {_glimpse(body)}", sent=True) from None
        if not isinstance(document, dict):
            raise Unreachable(f"{self.server} answered with no object: {_glimpse(body)}", sent=True)
        return document

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections, keepalive_timeout=KEEPALIVE_SECONDS, socket_factory=self._socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                headers={
                    "User-Agent": f"bizrq/{_version()}",
                    "Accept": "application/json",
                    # Near the API server, compression of a list costs more than its transfer.
                    "Accept-Encoding": "identity",
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
            # Otherwise aiohttp sends PUT and DELETE a second time if the connection closes.
            self._session._retry_connection = False
        return self._session

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if self._endpoint.receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._endpoint.receive_buffer)
        return made

    def _trust(self, identity: Identity) -> ssl.SSLContext | bool:
        if self._tls_for is None or self._tls_for.certificate != identity.certificate:
            self._tls, self._tls_for = self._endpoint.tls(identity), identity
        return self._tls or True


def revision_of(obj: Mapping[str, Any]) -> int:
    """Return metadata.resourceVersion as a number, which is comparable within a cluster (KEP-5504).

    Raise ValueError if it is missing or no number.
    """
    text = str((obj.get("metadata") or {}).get("resourceVersion"))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"resourceVersion {text[:64]!r} is not a number") from None


def _namespace(resource: Resource, obj: Mapping[str, Any]) -> str | None:
    return obj["metadata"].get("namespace") if resource.namespaced else None


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def _pause(error: ApiError | Unreachable, attempt: int) -> float:
    if isinstance(error, ApiError) and error.retry_after is not None:
        return error.retry_after
    # A kept connection that closes says nothing about the server: try a new one at once.
    first = 0.0 if isinstance(error, Unreachable) and attempt == 1 else 0.1
    return first * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)


def _warning(header: str) -> str:
    """Return the text of a Warning header: 299 - "text", in which quotes and backslashes are escaped."""
    quoted = header.partition('"')[2].rpartition('"')[0] or header
    return " ".join(re.sub(r"\\(.)", r"\1", quoted).split())[:2000]


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _not_connected(error: Exception) -> str:
    """Return the reason in the system's words. Those of aiohttp repeat the address and the TLS context."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and (cause.errno or 0) > 0:
        return os.strerror(cause.errno or 0)
    return _reason(cause)


def _glimpse(body: bytes) -> str:
    return repr(body[:80].decode("utf-8", "replace"))


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body. Raises AnswerTooLarge as soon as it has more bytes than `most`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most:
            raise AnswerTooLarge(413, "RequestEntityTooLarge", f"the answer has more than {most} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
