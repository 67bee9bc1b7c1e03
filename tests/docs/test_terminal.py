"""The pictures of the terminal: what the commands print today, drawn for light and dark pages."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
import pytest_asyncio

from tests.docs.test_docs import DOCS, ROOT, page, script

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCREENS = script(ROOT / "deploy/screens.py")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_PICTURE = re.compile(r"!\[([^\]]+)\]\((?:docs/)?pictures/(terminal-[\w-]+)\.svg\)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def screens() -> dict[str, str]:
    return await SCREENS.screens()


@pytest.mark.parametrize("name", SCREENS.COMMANDS)
async def test_a_picture_of_the_terminal_is_what_the_commands_print(screens: dict[str, str], name: str) -> None:
    """`python deploy/screens.py` would write the same but for the times."""
    stored = (DOCS / f"pictures/{name}.svg").read_text("utf-8")
    assert _TIME.sub("TIME", SCREENS.svg(screens[name])) == _TIME.sub("TIME", stored)


@pytest.mark.parametrize("name", SCREENS.COMMANDS)
async def test_a_picture_of_the_terminal_asks_for_nothing_and_runs_nothing(name: str) -> None:
    text = (DOCS / f"pictures/{name}.svg").read_text("utf-8")
    tags = {element.tag.partition("}")[2] for element in ET.fromstring(text).iter()}
    assert tags == {"svg", "style", "rect", "text"}
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text) == []


async def test_each_picture_of_the_terminal_is_on_a_page_with_words_for_those_who_cannot_see_it() -> None:
    pages = [page("README.md"), *(path.read_text("utf-8") for path in DOCS.glob("*.md"))]
    shown = {name: words for text in pages for words, name in _PICTURE.findall(text)}
    assert shown.keys() == SCREENS.COMMANDS.keys()
    assert all(len(words) > 20 for words in shown.values())


async def test_a_line_of_colours_is_drawn_in_its_columns() -> None:
    """Blanks keep the columns, markup stays text, and a colour becomes a class of the page's own."""
    drawn = SCREENS.svg("\x1b[1;31m<b>\x1b[0m  4 of 5\n  x")
    pieces = re.findall(r'<text x="([\d.]+)" y="(\d+)" textLength="([\d.]+)"(?: class="([a-z ]+)")?>(.*)</text>', drawn)
    column, margin = 8.4, 14
    assert pieces == [
        ("14.0", "28", "25.2", "red bold", "&lt;b&gt;"),
        (f"{margin + 5 * column:.1f}", "28", "50.4", "", "4 of 5"),
        (f"{margin + 2 * column:.1f}", "48", "8.4", "", "x"),
    ]
