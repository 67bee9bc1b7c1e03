"""Whom the sandbox serves: clients with the token of its kubeconfig, and no web page."""

from __future__ import annotations

import stat
from pathlib import Path

import aiohttp
import pytest
import yaml

from sandbox.server import Sandbox
from tests.support.sandbox_client import CONFIG_MAPS, bearer

A_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


@pytest.mark.parametrize("path", ["/version", "/api", CONFIG_MAPS, "/readyz", "/nothing"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer é"}, 401),
        ({"Authorization": "Basic YTpi"}, 401),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "example.org"}, 403),
        ({"Host": "example.org:8443"}, 403),
        ({"Host": "127.0.0.1.example.org"}, 403),
        ({"Host": ""}, 403),
    ],
)
async def test_others_are_refused_whatever_they_ask(
    box: Sandbox, path: str, headers: dict[str, str], code: int
) -> None:
    async with aiohttp.ClientSession(box.url, headers={**bearer(box), **headers}) as session:
        async with session.get(path) as answer:
            assert answer.status == code
            status = await answer.json()
            assert (status["kind"], status["code"], box.token in status["message"]) == ("Status", code, False)
        async with session.post(path, json=A_MAP) as answer:
            assert answer.status == code
    async with aiohttp.ClientSession(box.url, headers=bearer(box)) as session, session.get(CONFIG_MAPS) as answer:
        assert (await answer.json())["items"] == [], "nothing was written"


async def test_a_token_of_another_sandbox_does_not_fit(box: Sandbox) -> None:
    async with (
        Sandbox(controllers=False) as other,
        aiohttp.ClientSession(box.url, headers=bearer(other)) as session,
        session.get("/version") as answer,
    ):
        assert answer.status == 401


async def test_only_its_owner_reads_the_token(box: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.touch(mode=0o644)
    config = yaml.safe_load(box.write_kubeconfig(path).read_text())
    assert config["users"][0]["user"] == {"token": box.token}
    assert len(box.token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_localhost_is_its_name_too(box: Sandbox) -> None:
    async with (
        aiohttp.ClientSession(box.url, headers={**bearer(box), "Host": "localhost:1"}) as session,
        session.get("/version") as answer,
    ):
        assert answer.status == 200
