"""The files that pages load: whose they are, how large, and how they are served."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.web.conftest import Pages
from web import assets

DECISIONS = Path(__file__).resolve().parents[2] / "docs" / "decisions"
#: Files of other projects: version, licence and SHA-256, as their packages on npm have them.
VENDORED = {
    "htmx.js": ("2.0.11", "Zero-Clause BSD", "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"),
    "sse.js": ("2.2.4", "BSD Zero Clause", "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136"),
}


@pytest.mark.parametrize("name", VENDORED)
def test_a_file_of_another_project_is_as_it_was_published_and_has_its_licence(name):
    _, licence, digest = VENDORED[name]
    assert assets.by_name()[name].digest == digest
    assert licence in files("web").joinpath("static", name.replace(".js", ".LICENSE")).read_text()


def test_the_decision_names_the_versions_that_are_here():
    assert f'version:"{VENDORED["htmx.js"][0]}"'.encode() in assets.by_name()["htmx.js"].body
    decision = (DECISIONS / "0028-a-web-ui-without-a-build.md").read_text("utf-8")
    for version, _, _ in VENDORED.values():
        assert version in decision


def test_every_other_script_is_ours_and_all_of_it_is_below_ten_kilobytes():
    own = {name: asset for name, asset in assets.by_name().items() if name.endswith(".js") and name not in VENDORED}
    assert set(own) == {"app.js"}
    assert sum(len(asset.body) for asset in own.values()) < 10_000


def test_the_style_has_no_address_of_anything_else():
    text = assets.by_name()["app.css"].body.decode()
    assert "url(" not in text
    assert "@import" not in text


def test_dark_colours_are_given_for_every_light_one():
    text = assets.by_name()["app.css"].body.decode()
    light, dark = text.split("@media (prefers-color-scheme: dark)", 1)
    colours = set(re.findall(r"(--[a-z-]+): #", light))
    assert colours <= set(re.findall(r"(--[a-z-]+): #", dark.split("}\n}", 1)[0]))
    assert colours


async def test_a_file_is_kept_for_ever_at_the_address_of_its_content(pages: Pages):
    browser = pages.browser()
    for asset in assets.by_name().values():
        answer = await browser.get(asset.address)
        assert answer.status == 200
        assert answer.text.encode() == asset.body == gzip.decompress(asset.gzipped)
        assert answer.headers["Content-Encoding"] == "gzip"
        assert "immutable" in answer.headers["Cache-Control"]
        again = await browser.get(asset.address, **{"If-None-Match": answer.headers["ETag"]})
        assert (again.status, again.text) == (304, "")
        plain = await browser.get(asset.address, **{"Accept-Encoding": "identity"})
        assert plain.text.encode() == asset.body
        assert "Content-Encoding" not in plain.headers
    assert (await browser.get(assets.PREFIX + "app.000000000000.css")).status == 404
