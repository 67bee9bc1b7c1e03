"""A real browser before the web UI on a sandbox. Its time is that of the wall: nothing here passes a clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support import binaries
from tests.support.objects import DEPLOYMENTS, deployment
from tests.web.conftest import Pages, World, pages, world
from tests.web.test_hours import some_hours

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

__all__ = ["pages", "world"]

#: Every page, as people may ask for it.
ADDRESSES = (
    "/",
    "/tree",
    "/tree?view=table",
    "/tree?view=icicle",
    "/tree?view=icicle&top=ai&resource=limits.cpu",
    "/tree?q=nlp&scarce=1",
    "/groups/team",
    "/groups/team/edit",
    "/groups/team/delete",
    "/new?parent=ai",
    "/fit",
    "/fit?what=deployment/chat&namespace=default",
    "/hours",
    "/hours/ai?period=all&by=period",
    "/hours/nlp?period=last&by=workload",
    "/hours/nlp?view=burn-down",
    "/hours/ai?view=statements",
    "/hours/ai?view=audit",
    "/hours/nlp/correct",
)
MANIFESTS = yaml.safe_dump_all(
    [deployment("small", "team", 2), deployment("large", "team", 9), deployment("lost", "nobody")]
)
_VIOLATIONS = """window.violations = [];
document.addEventListener("securitypolicyviolation", each => violations.push(each.violatedDirective));"""


@dataclass
class Person:
    """Somebody who is signed in. `left` are requests to other places, `complaints` what the browser complains of."""

    page: Page
    address: str
    left: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        response = await self.page.goto(self.address + path)
        assert response is not None
        assert response.status == 200, path

    async def run(self, script: str, *arguments: Any) -> Any:
        return await self.page.evaluate(script, *arguments)

    async def check_manifests(self, text: str = MANIFESTS) -> None:
        await self.open("/fit")
        await self.page.get_by_label("Manifests").fill(text)
        await self.page.get_by_role("button", name="Check").click()
        await self.page.locator(".outcome, .wrong").first.wait_for()


class People:
    """Opens browsers of people: each has cookies of their own."""

    def __init__(self, browser: Browser, pages: Pages) -> None:
        self._browser = browser
        self._address = pages.address

    async def sign_in(self, token: str, **kind: Any) -> Person:
        """`kind` is what playwright calls a context: color_scheme, viewport, java_script_enabled."""
        context = await self._browser.new_context(**kind)
        if kind.get("java_script_enabled", True):
            await context.add_init_script(_VIOLATIONS)
        page = await context.new_page()
        person = Person(page, self._address)
        page.on("request", lambda each: None if each.url.startswith(self._address) else person.left.append(each.url))
        page.on("console", lambda each: person.complaints.append(each.text) if each.type == "error" else None)
        page.on("pageerror", lambda each: person.complaints.append(str(each)))
        await person.open("/sign-in")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("heading", name="Overview").wait_for()
        return person


@asynccontextmanager
async def browsing(pages: Pages) -> AsyncIterator[People]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(binaries.browser()), args=["--no-sandbox"])
        yield People(browser, pages)
        await browser.close()


@pytest.fixture
async def people(world: World, pages: Pages) -> AsyncIterator[People]:
    """Groups with usage and hours of two periods, a workload, and who looks at them."""
    await some_hours(world)
    await world.group("team", "ai", used={"cpu": 4}, cpu=10)
    await world.group("over", "ai", used={"cpu": 9}, cpu=6)
    await world.admin.create(DEPLOYMENTS, deployment("chat", "team", 4))
    async with browsing(pages) as people:
        yield people
