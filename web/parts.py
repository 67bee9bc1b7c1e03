"""The parts that pages are made of: bars, tables, tags, and the words for what cannot be seen.

This file alone decides how an amount, a share and a state look. A bar never stands alone: its numbers are beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bizrq.figures.groups.view import GroupView, ResourceView
from bizrq.figures.words import ago
from web.html import Element, element, shown
from web.visit import group_address

#: Shown for what the user may not read. It is never 0, and never left out.
UNSEEN = "not visible to you"
#: Shown for an amount before the first recount.
UNKNOWN = "?"
#: The percentage from which a resource counts as scarce.
SCARCE = 80
_LEGEND = (
    ("own", "own workloads"),
    ("granted", "granted to children"),
    ("reserved", "reserved"),
    ("free", "left"),
    ("over", "over quota"),
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table; `is_number` aligns it to the right."""

    head: str
    is_number: bool = False
    class_: str = ""


#: The column of what workloads may still cost in safe mode, and the sentence about it: shown where they may.
LIENS = TableColumn("liens", is_number=True)
WHAT_ARE_LIENS = "Liens are the hours that running workloads may still cost until they end."
#: The column of what processes hold of what is left, and the sentence about it: shown where they do.
AHEAD = TableColumn("held ahead", is_number=True)
WHAT_IS_AHEAD = "Held ahead is the part of what is left that webhook processes admit by, until somebody needs it."

Cell = Element | str


def table(
    columns: Sequence[TableColumn], rows: Iterable[Sequence[Cell]], *, caption: str = "", label: str = ""
) -> Element:
    """Return a table; the first cell of each row is its head. A column in which no row has anything is left out.

    On a narrow screen each row becomes a block.
    """
    lines = list(rows)
    if lines:
        kept = [number for number in range(len(columns)) if not number or any(line[number] != "" for line in lines)]
        columns, lines = [columns[n] for n in kept], [[line[n] for n in kept] for line in lines]
    heads = [element("th", shown(c.head), scope="col", **({"class_": "n"} if c.is_number else {})) for c in columns]
    body = [_row(columns, line) for line in lines]
    parts = [element("caption", caption)] if caption else []
    named = {"aria_label": label} if label else {}
    made = element(
        "table", *parts, element("thead", element("tr", *heads)), element("tbody", *body), class_="wide", **named
    )
    return element("div", made, class_="scroll")


def _row(columns: Sequence[TableColumn], row: Sequence[Cell]) -> Element:
    cells: list[Element] = []
    for column, cell in zip(columns, row, strict=True):
        classes = " ".join(filter(None, ("n" if column.is_number else "", column.class_)))
        styled = {"class_": classes} if classes else {}
        if not cells:
            cells.append(element("th", cell, scope="row", **styled))
        else:
            cells.append(element("td", cell, data_head=shown(column.head), **styled))
    return element("tr", *cells)


def bar(figures: ResourceView) -> Element:
    """Draw the own usage, what children hold and what is reserved, as parts of the ceiling."""
    width = 1000
    drawn: list[Element] = [_box("free", 0, width)]
    if figures.used is None or figures.self_used is None:
        drawn = [_box("unknown", 0, width)]
    elif figures.is_over:
        drawn = [_box("over", 0, width), _box("edge", _end(figures.hard, figures.taken or 1, width), 6)]
    else:
        at = 0
        ends = (
            ("own", figures.self_used),
            ("granted", figures.used),
            ("reserved", figures.taken or figures.used),
        )
        for kind, amount in ends:
            end = _end(amount, figures.hard, width)
            if end > at:
                drawn.append(_box(kind, at, end - at))
                at = end
    return element(
        "svg", *drawn, class_="bar", viewBox=f"0 0 {width} 10", preserveAspectRatio="none", aria_hidden="true"
    )


def _box(kind: str, x: int, width: int) -> Element:
    return element("rect", class_=kind, x=x, y=0, width=width, height=10)


def _end(amount: int, hard: int, width: int) -> int:
    """Return where an amount ends: at the edge only if nothing is left, and seen if there is any."""
    if amount <= 0 or hard <= 0:
        return 0
    return width if amount >= hard else min(width - 6, max(6, amount * width // hard))


def legend() -> Element:
    items = [element("li", _swatch(kind), text) for kind, text in _LEGEND]
    return element("ul", *items, class_="legend", aria_label="Legend of the bars")


def _swatch(kind: str) -> Element:
    return element(
        "svg", element("rect", class_=kind, width=10, height=10, rx=2), viewBox="0 0 10 10", aria_hidden="true"
    )


def amount(figures: ResourceView, value: int | None) -> str:
    return figures.text(value) or UNKNOWN


def percent(figures: ResourceView) -> str:
    return UNKNOWN if figures.percent is None else f"{figures.percent}%"


def taken_of(figures: ResourceView) -> str:
    """Return how much of the ceiling is taken, in numbers."""
    return f"{amount(figures, figures.taken)} of {amount(figures, figures.hard)}"


def tag(text: str, kind: str = "") -> Element:
    return element("span", text, class_=f"tag {kind}".strip())


def tags(view: GroupView) -> list[Element]:
    """Return the states of a group that a person should know, in words."""
    found: list[Element] = []
    if view.group.metadata.deletion_timestamp:
        found.append(tag("being deleted", "low"))
    if view.status_of("OverQuota") == "True" or any(f.is_over for f in view.resources):
        found.append(tag("over quota", "over"))
    if view.status_of("CashExhausted") == "True":
        found.append(tag("hours spent", "over"))
    elif view.status_of("CashLow") == "True":
        found.append(tag("hours low", "low"))
    if view.status_of("Ready") == "False":
        found.append(tag("not ready", "low"))
    if any(f.used is None for f in view.resources):
        found.append(tag("not counted yet"))
    return found


def group_link(name: str, known: Collection[str], *, id_: str = "") -> Element:
    """Return a link to a group, or its name with the words for one that the user may not read."""
    text = shown(name)
    if name in known:
        return element("a", text, href=group_address(name), **({"id": id_} if id_ else {}))
    return element("span", text, " ", element("span", f"({UNSEEN})", class_="unseen"))


def card(title: str, *content: Cell, **attributes: object) -> Element:
    return element("section", element("h2", title), *content, class_="card", **attributes)


def empty(*content: Cell) -> Element:
    return element("div", element("p", *content), class_="card empty")


def notice(kind: str, *content: Cell) -> Element:
    """Return a line that stands out; `kind` is good, warn or bad."""
    role = "status" if kind == "good" else "alert"
    return element("p", *content, class_=f"notice {kind}", role=role)


def unread(what: Sequence[str]) -> list[Element]:
    """Return what the user may not read, so that nothing is left out in silence."""
    return [element("p", f"{UNSEEN}: ", ", ".join(map(shown, what)), class_="unseen")] if what else []


def when(timestamp: str | None) -> Element:
    """Return how long ago something was, with the exact time in the tooltip."""
    return element(
        "time", f"{ago(timestamp)} ago" if timestamp else UNKNOWN, datetime=timestamp or "", title=timestamp or ""
    )
