"""The form of requests and the meaning of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bizrq.kube.client import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeClient,
    NotFound,
    Resource,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_from,
)
from bizrq.kube.config import Credentials, Endpoint, Identity, StaticCredentials
from tests.support.fake_server import FakeServer

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
PODS = Resource("", "v1", "pods", "Pod")
GROUPS = Resource("quota.biz.group", "v1alpha1", "bizgroupresourcequotas", "BizGroupResourceQuota", namespaced=False)


def test_paths_are_those_of_the_rest_api() -> None:
    assert DEPLOYMENTS.key == "deployments.apps"
    assert PODS.key == "pods"
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("team-a") == "/api/v1/namespaces/team-a/pods"
    assert DEPLOYMENTS.path("a", "web", "scale") == "/apis/apps/v1/namespaces/a/deployments/web/scale"
    assert GROUPS.path("ignored", "nlp", "status").endswith("/v1alpha1/bizgroupresourcequotas/nlp/status")
    assert GROUPS.path(name="a b").endswith("/a%20b")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
def test_a_name_that_would_leave_its_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no object's name"):
        PODS.path("team-a", name)
    with pytest.raises(ValueError, match="which namespace"):
        PODS.path(name="web")


@pytest.mark.parametrize("name", ["", "..", "../secrets/x", "a%2fb", 7, None, ["a"]])
async def test_what_is_no_name_is_not_found_and_nothing_is_sent(
    server: FakeServer, client: KubeClient, name: Any
) -> None:
    with pytest.raises(NotFound, match="is no object's name"):
        await client.get(PODS, name, "team-a")
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (504, "Timeout", ServerError),
        (400, "BadRequest", ApiError),
    ],
)
def test_error_responses_become_typed_errors(status: int, reason: str, kind: type[ApiError]) -> None:
    body = {"kind": "Status", "code": status, "reason": reason, "message": "no\nway", "details": {"a": 1}}
    error = error_from(status, json.dumps(body).encode())
    assert type(error) is kind
    assert (error.status, error.reason, error.details) == (status, reason, {"a": 1})
    assert str(error) == f"no way ({status} {reason})"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b'{"kind":"Status","details":7}', b"\xff"])
def test_any_response_body_becomes_an_error(body: bytes) -> None:
    assert error_from(503, body).status == 503
    assert isinstance(error_from(503, body), ServerError)


async def test_objects_are_created_read_replaced_patched_and_deleted(server: FakeServer, client: KubeClient) -> None:
    made = await client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "a"}, "spec": {"n": 1}})
    assert await client.get(DEPLOYMENTS, "web", "a") == made
    with pytest.raises(AlreadyExists):
        await client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "a"}})
    changed = await client.replace(DEPLOYMENTS, {**made, "spec": {"n": 2}})
    with pytest.raises(Conflict):
        await client.replace(DEPLOYMENTS, {**made, "spec": {"n": 3}})
    patched = await client.patch(DEPLOYMENTS, "web", {"spec": {"m": 1}}, namespace="a")
    assert patched["spec"] == {"n": 2, "m": 1}
    with pytest.raises(Conflict):
        await client.delete(DEPLOYMENTS, "web", "a", uid="another")
    await client.delete(DEPLOYMENTS, "web", "a", uid=changed["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(DEPLOYMENTS, "web", "a")


async def test_a_read_waits_out_throttling_and_a_write_does_not(server: FakeServer, client: KubeClient) -> None:
    server.put("deployments", "web")
    server.refuse("GET", 429, Retry_After="0.01")
    server.refuse("GET", 503)
    assert await client.get(DEPLOYMENTS, "web", "default")
    server.refuse("PUT", 429, Retry_After="3")
    before = len(server.requests)
    with pytest.raises(TooManyRequests) as caught:
        await client.replace(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "default"}})
    assert caught.value.retry_after == 3
    assert len(server.requests) == before + 1


async def test_a_read_is_retried_a_few_times_and_within_its_timeout(server: FakeServer, client: KubeClient) -> None:
    server.refuse("GET", 500, times=50)
    with pytest.raises(ServerError):
        await client.get(DEPLOYMENTS, "web", "default")
    assert len(server.requests) == 4
    server.refusals.clear()
    server.refuse("GET", 429, times=50, Retry_After="30")
    async with asyncio.timeout(1):
        with pytest.raises(TooManyRequests):
            await client.get(DEPLOYMENTS, "web", "default", timeout=5)


async def test_a_slow_response_is_unreachable_in_time_and_names_the_server(
    server: FakeServer, client: KubeClient
) -> None:
    server.delay = 1
    with pytest.raises(Unreachable, match=f"{server.url} did not answer GET .* within 0.05 s"):
        await client.get(DEPLOYMENTS, "web", "default", timeout=0.05)


async def test_nothing_listening_is_unreachable_and_nothing_was_sent() -> None:
    async with KubeClient(Endpoint("http://127.0.0.1:9", StaticCredentials({}))) as client:
        with pytest.raises(Unreachable, match=r"http://127.0.0.1:9 cannot be reached") as caught:
            await client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "a"}})
        assert not caught.value.sent


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
async def test_a_write_on_a_connection_that_closed_under_it_is_sent_once(method: str) -> None:
    seen: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append(request.method)
        if request.method != "GET":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with KubeClient(Endpoint(url, StaticCredentials({}))) as client:
        await client.request("GET", "/")
        with pytest.raises(Unreachable) as caught:
            await client.request(method, "/", body=b"{}")
        assert caught.value.sent
    await runner.cleanup()
    assert seen == ["GET", method]


async def test_an_expired_credential_is_renewed_once_even_for_a_write(server: FakeServer) -> None:
    class Rotating:
        token = 0

        async def identity(self, *, rejected: bool = False) -> Identity:
            self.token += rejected
            return Identity(f"Bearer {self.token}")

    credentials: Credentials = Rotating()
    async with KubeClient(Endpoint(server.url, credentials)) as client:
        server.refuse("POST", 401)
        await client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "a"}})
        assert [h["Authorization"] for h in server.headers] == ["Bearer 0", "Bearer 1"]
        server.refuse("POST", 401, times=2)
        with pytest.raises(Unauthorized):
            await client.create(DEPLOYMENTS, {"metadata": {"name": "x", "namespace": "a"}})


async def test_requests_have_a_user_agent_and_ignore_the_environments_proxy(
    server: FakeServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await client.list(DEPLOYMENTS)
    assert server.headers[0]["User-Agent"].startswith("bizrq/0")


async def test_a_response_that_is_no_json_is_a_one_line_error(server: FakeServer) -> None:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(text="<html>login</html>")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with KubeClient(Endpoint(url, StaticCredentials({}))) as client:
        with pytest.raises(Unreachable, match="answered without JSON: '<html>"):
            await client.get(PODS, "web", "a")
    await runner.cleanup()


@pytest.mark.parametrize("size", [None, 32 * 1024])
async def test_the_kernel_keeps_as_much_of_a_connection_as_the_endpoint_says(
    server: FakeServer, size: int | None
) -> None:
    """uvloop's buffer of each connection grows to the largest read, which is what the kernel has kept."""
    async with KubeClient(Endpoint(server.url, StaticCredentials({}), receive_buffer=size)) as client:
        await client.list(PODS)
        [kept] = _kept_of_connections_to(int(server.url.rpartition(":")[2]))
        # Linux doubles the number, for its own records.
        assert (kept == 2 * 32 * 1024) == (size is not None)


def _kept_of_connections_to(port: int) -> list[int]:
    """Return the bounds of the open sockets of this process that are connected to a local port, in bytes."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as copy:
            if copy.family == socket.AF_INET and copy.getpeername()[1] == port:
                found.append(copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    return found


def test_importing_the_client_loads_no_kubernetes_models(tmp_path: Path) -> None:
    """The import costs a second, and a command that sends one request must not pay it (B10)."""
    program = "import sys, bizrq.kube.client; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
