"""Draw charts as SVG inside a page, without scripts.

This file alone turns amounts into lengths, and decides which labels have room. Amounts are integers, of one unit within
a chart. An axis covers every amount, and no label is drawn over another one or over a bar.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from bizrq.html.elements import element

#: The width of a chart in its own units; it scales with the page.
WIDTH: Final = 480
#: The height of a text, the most intervals of an axis, the least distance of two texts, and the widest column.
LETTER, _INTERVALS, _GAP, _COLUMN = 12, 4, 8, 80
#: Of a bar chart: the height of a row, where its bar begins, and where its label does, beside the axis.
_ROW, _BAR, _BESIDE = 36, 18, 4
#: Of columns: their top, and their height.
_TOP, _TALL = 20, 180
#: Colours for viewers that ignore the style sheet: visible on white and on black.
_COLORS = {
    "bar": "#3b7dc4",
    "later": "#8fb4dc",
    "over": "#d04437",
    "credit": "#3f9a68",
    "rest": "#8884",
    "limit": "#888",
}
#: The letters of powers of ten, as Kubernetes has them.
_LETTERS = {6: "M", 9: "G", 12: "T", 15: "P"}
#: Characters by the most that they are wide in fonts of screens, in hundredths of the height.
_NARROW, _BROAD, _HALF_BROAD = frozenset("ijlftrI.,:;|'!/-()[] "), frozenset("mwMW@%"), frozenset("&+=<>~#^$")


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: an amount and its text. `later` is the projected amount, `limit` the ceiling.

    A `mark` says that the amount is not final, and how.
    """

    label: str
    amount: int
    text: str
    later: int = 0
    limit: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` to `high`, which are multiples of `step`. It has 0 and every amount of its chart."""

    low: int
    high: int
    step: int

    def place(self, amount: int, length: int) -> int:
        """Return the distance of an amount from `low` if the axis is so long."""
        return (amount - self.low) * length // (self.high - self.low)

    @property
    def ticks(self) -> range:
        return range(self.low, self.high + 1, self.step)


def axis_of(amounts: Iterable[int], one: int) -> Axis:
    """Return the axis of these amounts with round steps; `one` is the amount of one shown unit."""
    known = [0, *amounts]
    low, high, size = min(known), max(known), max(1, one // 1000)
    while True:
        for step in (size, 2 * size, 5 * size):
            first, last = low // step, max(1, -(-high // step)) if high or not low else 0
            if last - first <= _INTERVALS:
                return Axis(first * step, last * step, step)
        size *= 10


def tick_text(amount: int, one: int, suffix: str = "") -> str:
    """Return a tick of an axis as short text: 0.5, 200, 2M, 5e30."""
    sign, thousandths = "-" if amount < 0 else "", abs(amount) * 1000 // one
    power = (len(str(thousandths)) - 4) // 3 * 3
    # Thousands are written out.
    letter = _LETTERS.get(power, f"e{power}" if power > 3 else "")
    size = 10**power if power > 3 else 1
    whole, rest = divmod(thousandths // size, 1000)
    return f"{sign}{whole}{f'.{rest:03d}'.rstrip('0') if rest else ''}{letter}{suffix}"


def bar_chart(title: str, rows: Sequence[Bar], one: int, suffix: str = "") -> Element:
    """Draw a bar below each label and its text, above one axis."""
    axis = axis_of((amount for row in rows for amount in (row.amount, row.later, row.limit)), one)
    zero, bottom = axis.place(0, WIDTH), _ROW * len(rows)
    drawn: list[Element] = [
        element("line", class_="grid", stroke="#8886", x1=x, x2=x, y1=0, y2=bottom)
        for x in (axis.place(tick, WIDTH) for tick in axis.ticks)
    ]
    drawn.append(element("line", class_="axis", stroke="#888", x1=zero, x2=zero, y1=0, y2=bottom))
    for number, row in enumerate(rows):
        top = number * _ROW
        at = {kind: axis.place(n, WIDTH) for kind, n in (("later", row.later), ("limit", row.limit))}
        text = _cut(row.text, WIDTH * 2 // 3)
        parts = [
            element("title", f"{row.label}: {row.text}"),
            element("text", _cut(row.label, WIDTH - text_width(text) - _GAP - _BESIDE), x=_BESIDE, y=top + LETTER),
            element("text", text, x=WIDTH, y=top + LETTER, text_anchor="end"),
            _box("rest", zero, top + _BAR, at["limit"] - zero, 10),
            _box("later", zero, top + _BAR, _visible(row.later, at["later"] - zero), 10),
            _across(_kind(row), zero, axis.place(row.amount, WIDTH), row.amount, top + _BAR),
        ]
        if row.limit:
            parts.append(_box("limit", min(at["limit"], WIDTH - 2), top + _BAR - 3, 2, 16))
        drawn.append(element("g", *parts))
    for tick in axis.ticks:
        anchor = "start" if tick == axis.low else "end" if tick == axis.high else "middle"
        x = axis.place(tick, WIDTH)
        drawn.append(_tick(tick_text(tick, one, suffix), x=x, y=bottom + LETTER + 2, text_anchor=anchor))
    return _chart(title, bottom + LETTER + 8, drawn)


def column_chart(title: str, rows: Sequence[Bar], one: int, suffix: str = "") -> Element:
    """Draw a column for each row beside an axis.

    It has as many labels as fit, always with the last one. Columns have their texts only if all of them fit.
    """
    axis = axis_of((row.amount for row in rows), one)
    ticks = {tick: tick_text(tick, one, suffix) for tick in axis.ticks}
    left = max(map(text_width, ticks.values())) + _GAP
    bottom = _TOP + _TALL
    drawn: list[Element] = []
    for tick, text in ticks.items():
        y = bottom - axis.place(tick, _TALL)
        kind = "axis" if not tick else "grid"
        drawn.append(element("line", class_=kind, stroke="#8886", x1=left, x2=WIDTH, y1=y, y2=y))
        drawn.append(_tick(text, x=left - _GAP // 2, y=y + 4, text_anchor="end"))
    zero = bottom - axis.place(0, _TALL)
    slot = (WIDTH - left) // max(1, len(rows))
    has_texts = all(text_width(row.text) + _GAP <= slot for row in rows)
    middles = [left + (2 * number + 1) * (WIDTH - left) // (2 * len(rows)) for number in range(len(rows))]
    wide = max(1, min(_COLUMN, slot * 9 // 10))
    for row, middle in zip(rows, middles, strict=True):
        end = bottom - axis.place(row.amount, _TALL)
        tall = _visible(row.amount, abs(end - zero))
        top = zero if row.amount < 0 else zero - tall
        parts = [
            element("title", f"{row.label}: {row.text}{f', {row.mark}' if row.mark else ''}"),
            _box(_kind(row), middle - wide // 2, top, wide, tall, is_open=bool(row.mark)),
        ]
        if has_texts:
            y = top + tall + LETTER if row.amount < 0 else top - 5
            parts.append(element("text", row.text, x=middle, y=y, text_anchor="middle"))
        drawn.append(element("g", *parts))
    # A text below the lowest column needs room above the labels.
    labels = bottom + (LETTER + 4 if axis.low < 0 and has_texts else 0) + LETTER + 4
    drawn += _labels(rows, middles, left, labels)
    return _chart(title, labels + LETTER + 10, drawn)


def _labels(rows: Sequence[Bar], middles: Sequence[int], left: int, y: int) -> Iterator[Element]:
    """Yield labels below columns from the last to the first, each where it does not touch the one to its right."""
    free = WIDTH
    for row, middle in reversed(list(zip(rows, middles, strict=True))):
        label = _cut(row.label, WIDTH - left)
        width = max(text_width(label), text_width(row.mark))
        # The last label may reach over its column, but not over the edge.
        end = min(middle + width // 2 + 1, WIDTH)
        if end > free or end - width < 0:
            continue
        for number, text in enumerate(filter(None, (label, row.mark))):
            yield element("text", text, x=end - width // 2, y=y + number * (LETTER + 2), text_anchor="middle")
        free = end - width - _GAP


def _chart(title: str, height: int, drawn: Sequence[Element]) -> Element:
    """Wrap the drawing; screen readers read its title, since the table holds the same numbers."""
    return element(
        "svg", element("title", title), *drawn, role="img", aria_label=title, viewBox=f"0 0 {WIDTH} {height}"
    )


def _kind(row: Bar) -> str:
    """Return the style of a bar."""
    return "credit" if row.amount < 0 else "over" if row.limit and row.amount >= row.limit else "bar"


def _visible(amount: int, length: int) -> int:
    """Return a length that is at least 1 for an amount that is not 0."""
    return max(1, length) if amount else 0


def _across(kind: str, zero: int, end: int, amount: int, top: int) -> Element:
    length = _visible(amount, abs(end - zero))
    return _box(kind, max(0, zero - length) if amount < 0 else min(zero, WIDTH - length), top, length, 10)


def _box(kind: str, x: int, y: int, width: int, height: int, *, is_open: bool = False) -> Element:
    marked = {"fill_opacity": "0.4", "stroke": _COLORS[kind], "stroke_dasharray": "4 3"} if is_open else {}
    style = f"{kind} open" if is_open else kind
    return element("rect", class_=style, fill=_COLORS[kind], x=x, y=y, width=width, height=height, **marked)


def _tick(text: str, **place: object) -> Element:
    return element("text", text, class_="tick", **place)


def text_width(text: str) -> int:
    """Return the most that a text is wide in a chart, whatever the font of the screen is."""
    return -(-LETTER * sum(map(_hundredths, text)) // 100)


def _hundredths(char: str) -> int:
    if not char.isascii():
        return 140 if unicodedata.east_asian_width(char) in "WF" else 105
    if char in _BROAD:
        return 110
    return 46 if char in _NARROW else 84 if char.isupper() or char in _HALF_BROAD else 66


def _cut(label: str, room: int) -> str:
    """Shorten a long label in its middle, since its end distinguishes it."""
    if text_width(label) <= room:
        return label
    left, right = "", ""
    for number in range(len(label)):
        half = number // 2
        longer = (left + label[half], right) if number % 2 == 0 else (left, label[-1 - half] + right)
        if text_width(f"{longer[0]}…{longer[1]}") > room:
            break
        left, right = longer
    return f"{left}…{right}"
