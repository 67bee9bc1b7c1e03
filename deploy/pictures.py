"""Write the pictures of docs/web.md anew: `python deploy/pictures.py` plays a story on a sandbox in a real Chromium.

It needs Playwright and a Chromium on PATH: `make test-browser` installs the former.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from base64 import b64encode
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
#: Each page on a desktop, there in the dark, and on a phone, side by side.
EACH = FOLDER / "each"
_DESKTOP = {"width": 1280, "height": 800}
_PHONE = {"width": 390, "height": 844}
#: How each page is taken, and how wide it is in the picture of all three.
_KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "desktop": ({"viewport": _DESKTOP}, 640),
    "dark": ({"viewport": _DESKTOP, "color_scheme": "dark"}, 640),
    "phone": ({"viewport": _PHONE}, 244),
}
#: Pictures of their own, by their files: how, and which page.
_ALONE = {
    **{name: ("desktop", name) for name in ("sign-in", "overview", "icicle", "group", "bill", "burn-down", "preview")},
    **{name: ("desktop", name) for name in ("refusal", "correction", "fit")},
    "tree-dark": ("dark", "tree"),
    "group-phone": ("phone", "group-of-workloads"),
}
#: No picture is higher: what a person sees first matters. On a phone that is more.
_HIGHEST, _HIGHEST_ON_PHONE = 1000, 2000


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

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self._address = address

    async def open(self, path: str) -> None:
        await self.page.goto(self._address + path)

    async def fill(self, label: str, text: str) -> None:
        await self.page.get_by_label(label, exact=True).fill(text)

    async def press(self, button: str) -> None:
        await self.page.get_by_role("button", name=button, exact=True).click()
        await self.page.wait_for_load_state("load")

    async def take(self, name: str) -> None:
        """Write what the page has, from its top."""
        size = self.page.viewport_size
        assert size is not None  # noqa: S101 each context has one
        height = await self.page.evaluate("() => document.querySelector('.foot').getBoundingClientRect().bottom")
        most = _HIGHEST if size == _DESKTOP else _HIGHEST_ON_PHONE
        clip: Any = {"x": 0, "y": 0, "width": size["width"], "height": min(height + 1, most)}
        path = self.folder / f"{name}.png"
        await self.page.screenshot(path=path, clip=clip, full_page=True, animations="disabled")


async def take_all(camera: Camera, token: str) -> None:
    """Take every page as one person sees it."""
    await camera.open("/sign-in")
    await camera.take("sign-in")
    await camera.fill("Token", token)
    await camera.press("Sign in")
    await camera.page.get_by_role("heading", name="Overview").wait_for()
    for name, path in (
        ("overview", "/"),
        ("tree", "/tree"),
        ("table", "/tree?view=table"),
        ("icicle", "/tree?view=icicle&resource=limits.cpu"),
        ("group", "/groups/ai"),
        ("group-of-workloads", "/groups/nlp"),
        ("new", "/new?parent=ai"),
        ("delete", "/groups/speech/delete"),
        ("explain", "/fit?what=deployment/chat&namespace=default"),
        ("bill", "/hours/ai?by=group&by=workload"),
        ("burn-down", "/hours/vision?view=burn-down"),
        ("statements", "/hours?view=statements"),
        ("audit", "/hours/ai?view=audit"),
        ("not-found", "/groups/nothing"),
    ):
        await camera.open(path)
        await camera.take(name)
    await camera.open("/groups/ai/edit")
    await camera.fill("limits.cpu", "-20")
    await camera.press("Preview")
    await camera.take("preview")
    await camera.open("/groups/nlp/edit")
    await camera.fill("limits.cpu", "+40")
    await camera.press("Preview")
    await camera.take("refusal")
    await camera.open("/hours/vision/correct")
    await camera.fill("requests.nvidia.com/gpu", "-4")
    await camera.fill("Reason", "node gpu-7 was down")
    await camera.press("Preview")
    await camera.take("correction")
    await camera.open("/fit")
    await camera.page.get_by_label("Manifests").fill(manifests())
    await camera.press("Check")
    await camera.take("fit")


async def beside(browser: Browser, name: str, folder: Path) -> None:
    """Write the pictures of a page in one."""
    shown = [
        f'<img src="data:image/png;base64,{b64encode((folder / kind / f"{name}.png").read_bytes()).decode()}" '
        f'width="{width}">'
        for kind, (_, width) in _KINDS.items()
    ]
    style = "margin: 0; padding: 8px; display: inline-flex; gap: 8px; align-items: start; background: #8a939f"
    page = await browser.new_page(viewport={"width": 1564, "height": 100})
    await page.set_content(f'<body style="{style}">{"".join(shown)}')
    await page.locator("body").screenshot(path=EACH / f"{name}.png")
    await page.close()


async def main() -> None:
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("no chromium on PATH")
    EACH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bizrq-pictures-"))
    async with played() as (box, _), served(box, folder) as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for kind, (how, _) in _KINDS.items():
            (folder / kind).mkdir()
            context = await browser.new_context(**how)
            await take_all(Camera(await context.new_page(), address, folder / kind), box.token)
        for name, (kind, page) in _ALONE.items():
            shutil.copy(folder / kind / f"{page}.png", FOLDER / f"{name}.png")
        for taken in sorted((folder / "desktop").glob("*.png")):
            await beside(browser, taken.stem, folder)
        await browser.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    asyncio.run(main())
