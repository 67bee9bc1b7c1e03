"""Charts as SVG inside a page: every row with its text, and nothing that a script would have to draw.

This file alone decides how amounts look as lengths. Amounts are integers, and of one unit within a chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

#: A chart's own units; it grows and shrinks with the page, and its letters with it.
_WIDTH = 480
#: Characters that a label above a bar has room for, what one needs below a column, and how wide a column may be.
_LABEL, _LETTER, _COLUMN = 48, 8, 80
#: For whatever shows a page without its style: seen on white and on black.
_COLORS = {
    "bar": "#3b7dc4",
    "later": "#8fb4dc",
    "over": "#d04437",
    "credit": "#3f9a68",
    "rest": "#8884",
    "limit": "#888",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: an amount and how people read it. `later` is what it will come to, `limit` where it has to end."""

    label: str
    amount: int
    text: str
    later: int = 0
    limit: int = 0


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """An element with its text and children, all of it escaped when it is written; `class_` is `class`, `_` is `-`."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def bars(title: str, rows: Sequence[Bar]) -> Element:
    """A bar below each label, with the amount at its end."""
    most = max((max(abs(row.amount), row.later, row.limit) for row in rows), default=0)
    step = 34
    drawn: list[Element] = []
    for number, row in enumerate(rows):
        top, length = number * step, _length(row.amount, most, _WIDTH)
        parts = [
            element("title", f"{row.label}: {row.text}"),
            element("text", _cut(row.label), y=top + 12),
            element("text", row.text, x=_WIDTH, y=top + 12, text_anchor="end"),
            _box("rest", 0, top + 18, _WIDTH, 10),
            _box("later", 0, top + 18, _length(row.later, most, _WIDTH), 10),
            _box(_kind(row), 0, top + 18, length, 10),
        ]
        if row.limit:
            parts.append(_box("limit", min(_length(row.limit, most, _WIDTH), _WIDTH - 2), top + 15, 2, 16))
        drawn.append(element("g", *parts))
    return _chart(title, step * len(rows), drawn)


def columns(title: str, rows: Sequence[Bar]) -> Element:
    """A column for each row, from left to right, and as many labels as there is room for, the last one among them."""
    most = max((abs(row.amount) for row in rows), default=0)
    bottom, tallest = 210, 185
    needs = _LETTER * (1 + max((len(text) for row in rows for text in (row.label, row.text)), default=0))
    every = -(-len(rows) * needs // _WIDTH) or 1
    drawn: list[Element] = []
    for number, row in enumerate(rows):
        left, right = number * _WIDTH // len(rows), (number + 1) * _WIDTH // len(rows)
        tall = _length(row.amount, most, tallest)
        parts = [
            element("title", f"{row.label}: {row.text}"),
            _box(_kind(row), left, bottom - tall, max(1, min(_COLUMN, (right - left) * 9 // 10)), tall),
        ]
        # Where columns are narrow, a label ends with its own, as far from the next as all others.
        if (len(rows) - 1 - number) % every == 0 and (every == 1 or right >= needs):
            x, anchor = (left, "start") if every == 1 else (right, "end")
            parts.append(element("text", row.text, x=x, y=bottom - tall - 6, text_anchor=anchor))
            parts.append(element("text", row.label, x=x, y=bottom + 18, text_anchor=anchor))
        drawn.append(element("g", *parts))
    axis = element("line", class_="axis", stroke="#888", x1=0, x2=_WIDTH, y1=bottom, y2=bottom)
    return _chart(title, bottom + 26, [axis, *drawn])


def _chart(title: str, height: int, drawn: Sequence[Element]) -> Element:
    """Read aloud it is its title: the same numbers stand in a table beside it."""
    return element(
        "svg", element("title", title), *drawn, role="img", aria_label=title, viewBox=f"0 0 {_WIDTH} {height}"
    )


def _kind(row: Bar) -> str:
    """A credit has the length of a debt, and another look."""
    return "credit" if row.amount < 0 else "over" if row.limit and row.amount >= row.limit else "bar"


def _length(amount: int, most: int, longest: int) -> int:
    """Of the longest; whatever is there at all is seen."""
    return max(1, abs(amount) * longest // most) if amount and most else 0


def _box(kind: str, x: int, y: int, width: int, height: int) -> Element:
    return element("rect", class_=kind, fill=_COLORS[kind], x=x, y=y, width=width, height=height)


def _cut(label: str) -> str:
    """The end of a name tells more than its middle."""
    return label if len(label) <= _LABEL else f"{label[: _LABEL // 2 - 1]}…{label[-_LABEL // 2 :]}"
