"""Write the pictures of docs/web.md anew: `python deploy/pictures.py` plays a story on a sandbox in a real Chromium.

It needs Playwright and a Chromium on PATH: `make test-browser` installs the former.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml
from cryptography.fernet import Fernet
from playwright.async_api import (  # pyright: ignore[reportMissingImports] make test-browser installs it
    Browser,
    Page,
    async_playwright,
)

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from bizrq.kube.config import Endpoint, StaticCredentials, from_kubeconfig  # noqa: E402
from bizrq.settings import load  # noqa: E402
from bizrq.workloads.labels import LABEL  # noqa: E402
from deploy.screens import played  # noqa: E402
from examples import story  # noqa: E402
from sandbox.server import Sandbox  # noqa: E402
from web.app import Site, Web  # noqa: E402
from web.credentials.gates import ClusterGate  # noqa: E402
from web.credentials.keys import Keyring  # noqa: E402
from web.credentials.session import CookieNames  # noqa: E402
from web.reading.visitors import Visitors  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
_DESKTOP = {"width": 1280, "height": 800}
_PHONE = {"width": 390, "height": 844}
#: No picture is higher: what a person sees first matters.
_HIGHEST = 1000


def manifests() -> str:
    """Return what is asked about: nlp has no core left, and speech has some."""
    asked = [story.deployment(name, 2) for name in ("reply", "listen")]
    for each, group in zip(asked, ("nlp", "speech"), strict=True):
        each["metadata"]["labels"] = {LABEL: group}
    return yaml.safe_dump_all(asked, sort_keys=False)


@contextlib.asynccontextmanager
async def served(box: Sandbox, folder: Path) -> AsyncIterator[str]:
    """Serve pages where people sign in by a token, and yield their address."""
    (folder / "current").write_bytes(Fernet.generate_key())
    known = from_kubeconfig(box.write_kubeconfig(folder / "kubeconfig"))
    visitors = Visitors(Endpoint(known.server, StaticCredentials({}), known.ca))
    names, ring = CookieNames(is_secure=False), Keyring(folder)
    pages = Web(visitors, ClusterGate(visitors, names, ring), load(None), names, ring, Site(()))
    address = f"http://127.0.0.1:{await pages.start('127.0.0.1', 0)}"
    pages.site = Site([address])
    try:
        yield address
    finally:
        await pages.stop()


class Camera:
    """Takes pictures of what one person sees."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._address = address

    async def open(self, path: str) -> None:
        await self.page.goto(self._address + path)

    async def sign_in(self, token: str) -> None:
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.get_by_role("heading", name="Overview").wait_for()

    async def press(self, button: str) -> None:
        await self.page.get_by_role("button", name=button, exact=True).click()
        await self.page.wait_for_load_state("load")

    async def take(self, name: str) -> None:
        """Write what the page has, from its top."""
        size = self.page.viewport_size
        assert size is not None  # noqa: S101 each context has one
        height = await self.page.evaluate("() => document.querySelector('.foot').getBoundingClientRect().bottom")
        clip: Any = {"x": 0, "y": 0, "width": size["width"], "height": min(height + 1, _HIGHEST)}
        await self.page.screenshot(path=FOLDER / f"{name}.png", clip=clip, full_page=True, animations="disabled")


async def desktop(camera: Camera, token: str) -> None:
    """Take every page as on a desktop."""
    await camera.open("/sign-in")
    await camera.take("sign-in")
    await camera.sign_in(token)
    for name, path in (
        ("overview", "/"),
        ("icicle", "/tree?view=icicle&resource=limits.cpu"),
        ("group", "/groups/ai"),
        ("bill", "/hours/ai?by=group&by=workload"),
        ("burn-down", "/hours/vision?view=burn-down"),
    ):
        await camera.open(path)
        await camera.take(name)
    await camera.open("/groups/ai/edit")
    await camera.page.get_by_label("limits.cpu", exact=True).fill("-20")
    await camera.press("Preview")
    await camera.take("preview")
    await camera.open("/groups/nlp/edit")
    await camera.page.get_by_label("limits.cpu", exact=True).fill("+40")
    await camera.press("Preview")
    await camera.take("refusal")
    await camera.open("/hours/vision/correct")
    await camera.page.get_by_label("requests.nvidia.com/gpu", exact=True).fill("-4")
    await camera.page.get_by_label("Reason").fill("node gpu-7 was down")
    await camera.press("Preview")
    await camera.take("correction")
    await camera.open("/fit")
    await camera.page.get_by_label("Manifests").fill(manifests())
    await camera.press("Check")
    await camera.take("fit")


async def _shown(browser: Browser, address: str, **kind: Any) -> Camera:
    context = await browser.new_context(**kind)
    camera = Camera(await context.new_page(), address)
    await camera.open("/sign-in")
    return camera


async def main() -> None:
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("no chromium on PATH")
    FOLDER.mkdir(exist_ok=True)
    keys = Path(tempfile.mkdtemp(prefix="bizrq-pictures-"))
    async with played() as (box, _), served(box, keys) as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        await desktop(await _shown(browser, address, viewport=_DESKTOP), box.token)
        dark = await _shown(browser, address, viewport=_DESKTOP, color_scheme="dark")
        await dark.sign_in(box.token)
        await dark.open("/tree")
        await dark.take("tree-dark")
        phone = await _shown(browser, address, viewport=_PHONE)
        await phone.sign_in(box.token)
        await phone.open("/groups/nlp")
        await phone.take("group-phone")
        await browser.close()
    shutil.rmtree(keys)


if __name__ == "__main__":
    asyncio.run(main())
