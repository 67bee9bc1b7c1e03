"""kubectl's flags on every verb that uses a cluster, and bad credentials."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.cli.conftest import Bizrq

pytestmark = pytest.mark.asyncio(loop_scope="module")

VERBS = ("tree", "get", "report", "forecast", "audit", "describe nlp", "explain nlp")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forbidding() -> AsyncIterator[tuple[str, list[Any]]]:
    """Yield the URL of a server that forbids everything, and the headers of the requests."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers)
        if request.path == "/slow/apis/quota.biz.group/v1alpha1/bizgroupresourcequotas":
            await asyncio.Event().wait()
        message = f'bizgroupresourcequotas is forbidden: User "alice" cannot {request.method} {request.path}'
        status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message, "details": {}}
        return web.json_response(status, status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


@pytest.mark.parametrize("verb", [*VERBS, "correct nlp requests.nvidia.com/gpu=1 --reason x", "uninstall"])
async def test_a_forbidden_request_is_one_line_with_the_api_servers_message(
    bizrq: Bizrq, forbidding: Any, verb: str
) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}})
    result = await bizrq(*verb.split(), "--server", forbidding[0], stdin=manifest)
    assert (result.code, result.out, result.err.count("\n")) == (3, "", 1), result
    assert 'User "alice" cannot' in result.err


async def test_fit_is_unknown_where_nothing_may_be_read(bizrq: Bizrq, forbidding: Any) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}})
    result = await bizrq("fit", "-f", "-", "--server", forbidding[0], stdin=manifest)
    assert (result.code, result.err) == (4, "")
    assert result.plain.splitlines() == [
        "unknown Pod default/p",
        "        it depends on namespaces, pods in default, which you may not read; without that it is admitted",
    ]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_impersonates_and_uses_a_token(bizrq: Bizrq, forbidding: Any, verb: str) -> None:
    flags = ("--as", "alice", "--as-group", "ml", "--as-group", "dev", "--token", "t0", "-n", "x")
    await bizrq(*verb.split(), "-s", forbidding[0], *flags)
    headers = forbidding[1][-1]
    assert (headers["Impersonate-User"], headers.getall("Impersonate-Group")) == ("alice", ["ml", "dev"])
    assert headers["Authorization"] == "Bearer t0"


async def test_a_request_ends_at_its_timeout(bizrq: Bizrq, forbidding: Any) -> None:
    result = await bizrq("tree", "-s", f"{forbidding[0]}/slow", "--request-timeout", "1s")
    assert (result.code, "within 1 s" in result.err) == (3, True)


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        ("--cluster nope", 2, "names the cluster 'nope', which is not there"),
        ("--user nope", 2, "names the user 'nope', which is not there"),
        ("--as-group ml", 2, "--as-group needs --as"),
        ("--server nonsense", 2, "--server needs a server like https://host:6443"),
        ("--request-timeout soon", 2, "--request-timeout: 'soon' is not a duration"),
        ("--server http://127.0.0.1:1", 3, "http://127.0.0.1:1 cannot be reached: Connection refused"),
    ],
)
async def test_a_wrong_flag_is_one_line(bizrq: Bizrq, flags: str, code: int, expected: str) -> None:
    result = await bizrq("tree", *flags.split())
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), result
    assert expected in result.err


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({}, {"exec": {**PLUGIN, "command": "/no/such"}}, "the credentials plugin failed: "),
        (
            {},
            {"exec": {**PLUGIN, "command": sys.executable, "args": ["-c", "exit(3)"]}},
            "the credentials plugin failed",
        ),
        ({}, {"client-certificate": "/no/crt", "client-key": "/no/key"}, "/no/crt cannot be read: No such file"),
        ({}, {"tokenFile": "/no/token"}, "/no/token cannot be read: No such file"),
        ({"certificate-authority": "/no/ca"}, {}, "/no/ca cannot be read: No such file"),
        ({"certificate-authority-data": "Zm9v"}, {}, "is not a PEM certificate"),
        (
            {},
            {"client-certificate-data": "Zm9v", "client-key-data": "Zm9v"},
            "certificate and key do not load",
        ),
    ],
)
async def test_bad_credentials_are_one_line(
    bizrq: Bizrq, tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], expected: str
) -> None:
    """Some are read only for the first request; that must print no traceback either."""
    path = tmp_path / "kubeconfig"
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(document))
    for verb in ("tree", "fit -f -"):
        result = await bizrq(*verb.split(), "--kubeconfig", path, stdin='{"apiVersion": "v1", "kind": "Pod"}')
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
        assert expected in result.err


@pytest.mark.parametrize("flag", ["--as", "--kubeconfig", "--context", "--token", "--as-group"])
async def test_usage_says_why_it_takes_no_flag_of_a_cluster(bizrq: Bizrq, flag: str) -> None:
    result = await bizrq("usage", "-f", "-", flag, "ann", stdin="")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"bizrq: {flag}: usage asks no cluster, so it depends on nobody's rights: leave the flag out, or run bizrq fit "
        f"-f FILE {flag} …\n"
    )
