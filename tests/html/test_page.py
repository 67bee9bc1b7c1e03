"""The page: notices come first, and print keeps a total with its rows."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bizrq.html.charts import Bar
from bizrq.html.page import PageSection, PageTable, render_page
from tests.support import binaries


def page(rows: int, total: bool = True) -> str:
    texts = [[f"row-{number}", f"{number}.000"] for number in range(rows)]
    bars = [Bar(text[0], number * 1000, text[1]) for number, text in enumerate(texts)]
    whole = ["Total", "9.000"] if total else []
    table = PageTable("By group", "hours", ["Group", "Hours"], range(1, 2), texts, bars, whole, one=1000)
    return render_page("x", [("Cluster", "c")], ["something is wrong"], [PageSection("gpu", [table])])


class _Rows(HTMLParser):
    """The class of each row, by the part of its table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.part = ""
        self.rows: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("thead", "tbody", "tfoot"):
            self.part = tag
        if tag == "tr":
            self.rows.append((self.part, dict(attrs).get("class") or ""))


@pytest.mark.parametrize("rows", [1, 2, 3, 60])
def test_the_total_is_a_row_of_the_body_that_print_keeps_with_the_rows_before_it(rows: int) -> None:
    """A table's footer would be printed alone where the page ends with the body."""
    text = page(rows)
    assert _Rows(text).rows == [("thead", ""), *[("tbody", "")] * rows, ("tbody", "total")]
    [printed] = re.findall(r"@media print \{(.*)\}", text, re.DOTALL)
    assert re.search(r"\.total \{ break-before: avoid; \}", printed)
    assert re.search(r"tbody tr:nth-last-child\(-n\+4\):not\(:last-child\) \{ break-after: avoid; \}", printed)
    assert re.search(r"thead \{ display: table-header-group; \}", printed)
    assert re.search(r"h1, h2, h3, figcaption \{ break-after: avoid; \}", printed)


def test_notices_come_before_everything_but_the_facts() -> None:
    text = page(3)
    assert text.index("<dl>") < text.index('<p class="notice">something is wrong</p>') < text.index("<h2")


def test_a_page_without_hours_says_so() -> None:
    assert "No hours were used." in render_page("x", [], [], [])


#: Writes how wide the window, the page, and the text of the caption are.
_MEASURE = """<script>document.title = JSON.stringify([innerWidth, document.documentElement.scrollWidth,
  document.querySelector("caption span").getBoundingClientRect().right])</script>"""


@pytest.mark.browser
def test_on_a_phone_a_wide_table_scrolls_and_what_is_said_above_it_does_not(tmp_path: Path) -> None:
    heads = ["Group", "Exhausted", "Resource", "Budget", "Used", "Workloads"]
    note = "Before its period ends, if running workloads continue. Nothing is stopped."
    table = PageTable("Forecast", "hours", heads, (), [["x" * 30] * 6], [], note=note)
    text = re.sub("<meta http-equiv=[^>]*>", "", render_page("x", [], [], [PageSection("gpu", [table])]))
    file = tmp_path / "page.html"
    file.write_text(text.replace("</body>", f"{_MEASURE}</body>"), "utf-8")
    program = binaries.browser()
    assert program is not None
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", file.as_uri()]
    shown = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout
    window, whole, caption = map(float, re.findall(r"<title>\[(.*?)\]", shown)[0].split(","))
    assert whole <= window
    assert caption <= window
