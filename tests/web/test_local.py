"""The web UI on this machine: one browser, by a key that works once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bizrq.kube.config import from_kubeconfig
from bizrq.settings import settings
from tests.web.conftest import Browser, World
from web.local import serving


@pytest.fixture
async def address(world: World, tmp_path: Path) -> AsyncIterator[str]:
    await world.group("corp", cpu=10)
    async with serving(from_kubeconfig(tmp_path / "admin"), settings({})) as address:
        yield address


@pytest.fixture
async def browsers(address: str) -> AsyncIterator[tuple[Browser, Browser]]:
    made = Browser(origin(address)), Browser(origin(address))
    yield made
    for browser in made:
        await browser.session.close()


def origin(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


async def test_the_key_lets_one_browser_in_and_is_spent(address: str, browsers: tuple[Browser, Browser]):
    one, two = browsers
    key = address.removeprefix(origin(address))
    for path in ("/", "/tree", "/groups/corp", "/live"):
        assert (await one.get(path)).status == 401
    assert (await one.get("/?key=wrong")).status == 401
    entered = await one.get(key)
    assert (entered.status, str(entered.url)) == (200, f"{one.address}/")
    assert "corp" in entered.words
    assert "kubernetes-admin" in entered.words
    again = await two.get(key)
    assert (again.status, "was used already" in again.words) == (401, True)
    assert (await two.get("/")).status == 401
    assert (await one.get("/tree")).status == 200


async def test_a_page_whose_name_resolves_to_this_machine_is_refused(address: str, browsers: tuple[Browser, Browser]):
    one, _ = browsers
    await one.get(address.removeprefix(origin(address)))
    port = urlsplit(address).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", f"[::1]:{port}"):
        answer = await one.get("/", Host=host)
        assert (answer.status, "another host" in answer.words) == (403, True), host
    assert (await one.get("/", Host=f"localhost:{port}")).status == 200


async def test_it_listens_on_this_machine_only_and_no_token_is_taken(address: str, browsers: tuple[Browser, Browser]):
    one, _ = browsers
    assert urlsplit(address).hostname == "127.0.0.1"
    page = await one.get("/sign-in")
    assert 'name="token"' not in page.text
