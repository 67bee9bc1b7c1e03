"""The web UI before a sandbox with users, as a browser meets it."""

from __future__ import annotations

import asyncio
import html
import io
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from cryptography.fernet import Fernet

import crds
from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.support import objects
from tests.support.cluster import eventually
from tests.support.patience import PatientLoop
from web.app import Site, Web
from web.credentials.gates import ClusterGate
from web.credentials.keys import Keyring
from web.credentials.session import CookieNames
from web.reading.visitors import Visitors

#: Tests of other processes, which take real time.
PROGRAMS = {"test_main.py", "test_programs.py", "test_four_users.py", "test_replicas.py"}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """What is tested in this process has a time of its own."""
    return {"plain": asyncio.SelectorEventLoop} if item.path.name in PROGRAMS else {"patient": PatientLoop}


@dataclass
class World:
    """A sandbox with groups, its administrator, and the folder of the keys."""

    box: Sandbox
    admin: KubeClient
    keys: Path

    async def group(self, name: str, parent: str = "", /, used: Mapping[str, Any] | None = None, **hard: Any) -> None:
        """Store a group that is counted: what `used` does not name is 0."""
        await self.admin.create(GROUPS, objects.group(name, parent, **hard))
        await self.count(name, **(used or {}))

    async def count(self, name: str, **used: Any) -> None:
        stored = await self.admin.get(GROUPS, name)
        hard = stored["spec"]["hard"]
        amounts = {**dict.fromkeys(hard, "0"), **objects.named(used)}
        stored["status"] = {"hard": hard, "used": amounts, "selfUsed": amounts, "observedGeneration": 1}
        await self.admin.replace(GROUPS, stored, subresource="status")

    async def user(self, name: str, *verbs: str, names: list[str] | None = None) -> str:
        """Return the token of a user with these verbs on groups, or on those of these names."""
        if verbs:
            await self.admin.create(objects.CLUSTER_ROLES, objects.cluster_role(f"role-{name}", *verbs, names=names))
            await self.admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound(f"role-{name}", name))
        return self.box.add_user(name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "current").write_bytes(Fernet.generate_key())
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.5) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(tmp_path / "admin")) as admin,
    ):
        await box.install(crds.load())
        yield World(box, admin, keys)


class Answer:
    """What a browser got."""

    def __init__(self, response: aiohttp.ClientResponse, text: str) -> None:
        self.status = response.status
        self.headers = response.headers
        self.url = response.url
        self.text = text

    @property
    def words(self) -> str:
        """The text that a person reads."""
        body = re.sub(r"<head>.*?</head>", "", self.text, flags=re.DOTALL)
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())

    def field(self, name: str) -> str:
        """The value of a field of a form."""
        found = re.search(rf'<input[^>]*name="{re.escape(name)}"[^>]*?value="([^"]*)"', self.text)
        assert found, (name, self.text)
        return html.unescape(found[1])

    @property
    def hidden(self) -> dict[str, str]:
        """The hidden fields of the last form."""
        last = self.text[self.text.rindex("<form") :]
        found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', last)
        return {html.unescape(name): html.unescape(value) for name, value in found}


class Browser:
    """One browser with its cookies. It sends the Origin with forms, as browsers do."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        self.page: Answer | None = None

    async def get(self, path: str, *, follow: bool = True, **headers: str) -> Answer:
        return await self._ask("GET", path, None, follow, headers)

    async def post(self, path: str, fields: Mapping[str, str], *, follow: bool = True, **headers: str) -> Answer:
        """Send a form with the token of the last page, unless the fields have one."""
        token = {"form-token": self.page.field("form-token")} if self.page and "form-token" not in fields else {}
        return await self._ask("POST", path, {**token, **fields}, follow, {"Origin": self.address, **headers})

    async def reads(self, path: str, words: str) -> Answer:
        """Load a page again and again until it has these words, and return it."""

        async def there() -> Answer | None:
            answer = await self.get(path)
            assert answer.status == 200, answer.text
            return answer if words in answer.words else None

        found = await eventually(there, what=f"{path} says {words!r}")
        assert found is not None
        return found

    async def sign_in(self, token: str) -> Answer:
        await self.get("/sign-in")
        return await self.post("/sign-in", {"token": token, "to": "/"})

    async def _ask(
        self, method: str, path: str, fields: Mapping[str, str] | None, follow: bool, headers: Mapping[str, str]
    ) -> Answer:
        body = None if fields is None else io.BytesIO(urlencode(fields).encode())
        kind = {} if fields is None else {"Content-Type": "application/x-www-form-urlencoded"}
        headers = {**kind, **headers}
        async with self.session.request(
            method, self.address + path, data=body, headers=headers, allow_redirects=follow
        ) as response:
            answer = Answer(response, await response.text())
        if "form-token" in answer.text:
            self.page = answer
        return answer


class Pages:
    """A running web UI, and browsers before it."""

    def __init__(self, web: Web, port: int) -> None:
        self.web = web
        self.address = f"http://127.0.0.1:{port}"
        self._browsers: list[Browser] = []

    def browser(self) -> Browser:
        made = Browser(self.address)
        self._browsers.append(made)
        return made

    async def signed_in(self, token: str) -> Browser:
        browser = self.browser()
        answer = await browser.sign_in(token)
        assert answer.status == 200, answer.text
        return browser

    async def close(self) -> None:
        for browser in self._browsers:
            await browser.session.close()


@asynccontextmanager
async def serving_at(
    endpoint: Endpoint, keys: Path, *, proxies: tuple[str, ...] = (), oidc: Any = None
) -> AsyncIterator[Pages]:
    """Serve the pages of one API server."""
    visitors = Visitors(endpoint, monotonic=asyncio.get_running_loop().time)
    names, ring = CookieNames(is_secure=False), Keyring(keys)
    gate = ClusterGate(visitors, names, ring, oidc=oidc, proxies=[ip_network(each) for each in proxies])
    web = Web(visitors, gate, settings({}), names, ring, Site(()))
    pages = Pages(web, await web.start("127.0.0.1", 0))
    web.site = Site([pages.address])
    try:
        yield pages
    finally:
        await pages.close()
        await web.stop()


@asynccontextmanager
async def serving(
    world: World, *, proxies: tuple[str, ...] = (), oidc: Any = None, server: str = ""
) -> AsyncIterator[Pages]:
    """Serve the pages of the sandbox, or of the API server at another address."""
    endpoint = Endpoint(server or world.box.url, StaticCredentials({}))
    async with serving_at(endpoint, world.keys, proxies=proxies, oidc=oidc) as pages:
        yield pages


@pytest.fixture
async def pages(world: World) -> AsyncIterator[Pages]:
    async with serving(world) as pages:
        yield pages
