"""Render a report as one HTML page of tables and charts, to open from a file, to send, or to print.

This file alone decides how the page looks. It is built as a tree of elements, so that no name becomes markup; its
content policy allows no script, no other file and no network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element, tostring

from bizrq.html.charts import Bar, bar_chart, column_chart
from bizrq.html.elements import element

#: The most rows of a table (`-o csv` has all), bars of a chart, and columns of a chart.
TABLE, CHART, COLUMNS = 200, 15, 52
#: The most columns of a table that is placed next to its chart.
_PAIRED = 4

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --rest: #eef1f4;
  --bar: #2f6fb3; --later: #a9c9ec; --over: #b3261e; --credit: #2e7d4f; --grid: #d0d7de; --notice: #fff3d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b3; --paper: #14181d; --line: #3a424c;
  --rest: #232a32; --bar: #6ea8e6; --later: #35557a; --over: #ff8a80; --credit: #7fd1a0; --grid: #3a424c;
  --notice: #3d3214; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { border-top: 2px solid var(--line); margin-top: 3rem; padding-top: 1rem; }
p, dd, caption { color: var(--soft); }
dl { display: grid; gap: 0 1rem; grid-template-columns: max-content 1fr; }
dd { margin: 0; overflow-wrap: anywhere; }
a { color: inherit; }
.notice { background: var(--notice); border-left: 4px solid var(--over); color: var(--ink); padding: .5rem 1rem; }
.pair { align-items: flex-start; display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin-bottom: 2rem; }
.pair > * { flex: 1 1 26rem; min-width: 0; }
@media (min-width: 60rem) { .pair > figure { position: sticky; top: 1rem; } }
.wide { margin-bottom: 2rem; overflow-x: auto; }
figure { margin: 0 0 1rem; }
figcaption { color: var(--soft); margin-bottom: .5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; }
.wide caption span { display: inline-block; left: 0; max-width: calc(100vw - 3rem); position: sticky; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
td { min-width: 8rem; } td.n { min-width: 0; } .wide td:last-child { min-width: 14rem; }
.wide td:nth-child(2) { min-width: 9rem; } .wide td:nth-child(3):not(.n) { min-width: 14.5rem; }
.wide tbody th { min-width: 10rem; }
th.n, td.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
thead th { border-bottom: 2px solid var(--line); overflow-wrap: normal; vertical-align: bottom; }
thead th.n { white-space: normal; }
tbody th { font-weight: normal; min-width: 7rem; }
.total th, .total td { border-bottom: 0; border-top: 2px solid var(--line); font-weight: bold; }
svg { display: block; height: auto; max-width: 32rem; width: 100%; }
svg text { fill: var(--ink); font-size: 12px; font-variant-numeric: tabular-nums; paint-order: stroke;
  stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
svg text.tick { fill: var(--soft); }
.rest { fill: var(--rest); } .bar { fill: var(--bar); } .later { fill: var(--later); } .over { fill: var(--over); }
.credit { fill: var(--credit); } .limit { fill: var(--ink); } .axis { stroke: var(--soft); }
.grid { stroke: var(--grid); }
.bar.open { stroke: var(--bar); } .credit.open { stroke: var(--credit); }
@page { margin: 12mm; }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --line: #999; --rest: #eee;
    --bar: #2f6fb3; --later: #a9c9ec; --over: #b3261e; --credit: #2e7d4f; --grid: #ddd;
    --notice: #fff; }
  body { max-width: none; padding: 0; font-size: 9pt; } nav { display: none; } .pair { display: block; }
  .wide { overflow: visible; } svg { max-width: 24rem; }
  .pair > figure { position: static; } thead { display: table-header-group; }
  tr, figure { break-inside: avoid; } .total { break-before: avoid; }
  tbody tr:nth-child(-n+2), tbody tr:nth-last-child(-n+4):not(:last-child) { break-after: avoid; }
  h1, h2, h3, figcaption { break-after: avoid; } .wide table { font-size: 7.5pt; }
  .wide tbody th, .wide td, .wide td:nth-child(2), .wide td:nth-child(3):not(.n) { min-width: 5.5rem; }
  .wide td.n { min-width: 0; }
  * { print-color-adjust: exact; } }
"""
#: Load nothing and run nothing, whatever a name contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of text with its chart, in `unit`.

    `numbers` are the right-aligned columns. `one` is the amount of a shown unit in the chart, and `suffix` its name.
    """

    title: str
    unit: str
    heads: Sequence[str]
    numbers: Collection[int]
    rows: Sequence[Sequence[str]]
    chart: Sequence[Bar]
    total: Sequence[str] = ()
    note: str = ""
    kind: Literal["bars", "columns"] = "bars"
    one: int = 1
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class PageSection:
    """Tables under one heading."""

    title: str
    tables: Sequence[PageTable]


def render_page(
    title: str, facts: Sequence[tuple[str, str]], notices: Sequence[str], sections: Sequence[PageSection]
) -> str:
    """Return the page as HTML text: a list of facts, notices of what is wrong, and the sections."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _STYLE),
    )
    facts_list = [part for name, text in facts for part in (element("dt", name), element("dd", text))]
    said = [element("p", text, class_="notice") for text in notices]
    top = element("h1", title), element("dl", *facts_list), *said
    body = element("body", element("main", *top, *_body(sections)))
    return f"<!DOCTYPE html>\n{tostring(element('html', head, body, lang='en'), 'unicode', method='html')}\n"


def _body(sections: Sequence[PageSection]) -> Iterator[Element]:
    if len(sections) > 1:
        links = [
            element("li", element("a", section.title, href=f"#{number}")) for number, section in enumerate(sections)
        ]
        yield element("nav", element("ul", *links), aria_label="Sections")
    for number, section in enumerate(sections):
        yield element("h2", section.title, id=number)
        for table in section.tables:
            yield _pair(table, f"{section.title}, {table.title[:1].lower()}{table.title[1:]}")
    if not sections:
        yield element("p", "No hours were used.")


def _pair(table: PageTable, title: str) -> Element:
    """Return a table, after its chart if that shows anything."""
    drawn = column_chart if table.kind == "columns" else bar_chart
    # Show the last periods, and the largest of everything else.
    shown = table.chart[-COLUMNS:] if table.kind == "columns" else table.chart[:CHART]
    which = "last" if table.kind == "columns" else "first"
    part = "" if len(shown) == len(table.chart) else f", the {which} {len(shown)} of {len(table.chart)}"
    caption = element("figcaption", f"{table.unit[:1].upper()}{table.unit[1:]}{part}")
    seen = any(bar.amount or bar.later for bar in shown)
    chart = [element("figure", caption, drawn(title, shown, table.one, table.suffix))] if seen else []
    layout = "wide" if len(table.heads) > _PAIRED else "pair"
    return element("section", element("h3", table.title), element("div", *chart, _table(table), class_=layout))


def _table(table: PageTable) -> Element:
    def cells(row: Sequence[str]) -> Element:
        kinds = ["n" if column in table.numbers else "" for column in range(len(row))]
        return element(
            "tr",
            *(
                element("th", text, scope="row") if not column else element("td", text, **_class(kind))
                for column, (text, kind) in enumerate(zip(row, kinds, strict=True))
            ),
        )

    rows = table.rows[-TABLE:] if table.kind == "columns" else table.rows[:TABLE]
    heads = [
        element("th", head, scope="col", **_class("n" if column in table.numbers else ""))
        for column, head in enumerate(table.heads)
    ]
    note = [table.note] if table.note else []
    if len(table.rows) > len(rows):
        note.append(f"Shows {len(rows)} of {len(table.rows)} rows; the total covers all rows.")
    parts = [element("caption", element("span", " ".join(note)))] if note else []
    if not rows:
        return element("table", *parts)
    lines = list(map(cells, rows))
    if table.total:
        # A footer may be printed alone on a page; browsers keep rows of one body together.
        total = cells(table.total)
        total.set("class", "total")
        lines.append(total)
    parts += [element("thead", element("tr", *heads)), element("tbody", *lines)]
    return element("table", *parts)


def _class(kind: str) -> dict[str, str]:
    return {"class_": kind} if kind else {}
