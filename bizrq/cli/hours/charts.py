"""Draw charts as SVG inside a page, without scripts.

This file alone turns amounts into lengths. Amounts are integers, of one unit within a chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

#: The width of a chart in its own units; it scales with the page.
_WIDTH = 480
#: The characters of a label above a bar, the width of a character below a column, and the widest column.
_LABEL, _LETTER, _COLUMN = 48, 8, 80
#: Colours for viewers that ignore the style sheet: visible on white and on black.
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
    """One row: an amount and its text. `later` is the projected amount, `limit` the ceiling."""

    label: str
    amount: int
    text: str
    later: int = 0
    limit: int = 0


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """Make an element with text and children, escaped on output; `class_` becomes `class`, and `_` becomes `-`."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def bar_chart(title: str, rows: Sequence[Bar]) -> Element:
    """Draw a bar below each label, with the amount at its end."""
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


def column_chart(title: str, rows: Sequence[Bar]) -> Element:
    """Draw a column for each row, with as many labels as fit, always including the last one."""
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
        # A label of a narrow column ends with the column, so that labels keep equal distances.
        if (len(rows) - 1 - number) % every == 0 and (every == 1 or right >= needs):
            x, anchor = (left, "start") if every == 1 else (right, "end")
            parts.append(element("text", row.text, x=x, y=bottom - tall - 6, text_anchor=anchor))
            parts.append(element("text", row.label, x=x, y=bottom + 18, text_anchor=anchor))
        drawn.append(element("g", *parts))
    axis = element("line", class_="axis", stroke="#888", x1=0, x2=_WIDTH, y1=bottom, y2=bottom)
    return _chart(title, bottom + 26, [axis, *drawn])


def _chart(title: str, height: int, drawn: Sequence[Element]) -> Element:
    """Wrap the drawing; screen readers read its title, since the table holds the same numbers."""
    return element(
        "svg", element("title", title), *drawn, role="img", aria_label=title, viewBox=f"0 0 {_WIDTH} {height}"
    )


def _kind(row: Bar) -> str:
    """Return the style of a bar; a credit has the length of a debt in another colour."""
    return "credit" if row.amount < 0 else "over" if row.limit and row.amount >= row.limit else "bar"


def _length(amount: int, most: int, longest: int) -> int:
    """Scale an amount to a length, at least 1 if it is not 0."""
    return max(1, abs(amount) * longest // most) if amount and most else 0


def _box(kind: str, x: int, y: int, width: int, height: int) -> Element:
    return element("rect", class_=kind, fill=_COLORS[kind], x=x, y=y, width=width, height=height)


def _cut(label: str) -> str:
    """Shorten a long label in its middle, since its end distinguishes it."""
    return label if len(label) <= _LABEL else f"{label[: _LABEL // 2 - 1]}…{label[-_LABEL // 2 :]}"
