"""Draw what is left of a budget over time as SVG: what is known of it, and where it goes.

This file alone decides how times become places. Amounts are integers of one unit, times integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element

from bizrq.html.charts import LETTER, WIDTH, Axis, axis_of, text_width, tick_text
from bizrq.html.elements import element

_GAP, _TOP, _TALL, _MARK = 8, 22, 160, 4
_LEFT_COLOR, _LATER_COLOR, _GRID_COLOR, _AXIS_COLOR = "#3b7dc4", "#8fb4dc", "#8886", "#888"


@dataclass(frozen=True, slots=True)
class Moment:
    """What is left at a time, with the text of both. A moment without a `label` has no mark."""

    at: int
    amount: int
    label: str = ""
    text: str = ""


def burn_down(title: str, known: Sequence[Moment], later: Sequence[Moment], one: int, suffix: str = "") -> Element:
    """Draw what was left as marks that a dotted line joins, and what will be left as a line from the last of them.

    `known` has at least one moment. `one` is the amount of a shown unit.
    """
    moments = [*known, *later]
    axis = axis_of((each.amount for each in moments), one)
    ticks = {tick: tick_text(tick, one, suffix) for tick in axis.ticks}
    frame = _Frame(axis, moments, max(map(text_width, ticks.values())) + _GAP)
    drawn: list[Element] = []
    for tick, text in ticks.items():
        y = frame.y(tick)
        kind, color = ("grid", _GRID_COLOR) if tick else ("axis", _AXIS_COLOR)
        drawn.append(element("line", class_=kind, stroke=color, x1=frame.left, x2=WIDTH, y1=y, y2=y))
        drawn.append(element("text", text, class_="tick", x=frame.left - _GAP // 2, y=y + 4, text_anchor="end"))
    if len(known) > 1:
        drawn.append(frame.line("past", _LEFT_COLOR, known, dashes="2 4"))
    if later:
        drawn.append(frame.line("ahead", _LATER_COLOR, [known[-1], *later]))
    drawn += [frame.mark("past", _LEFT_COLOR, each) for each in known]
    drawn += [frame.mark("ahead", _LATER_COLOR, each) for each in later if each.label]
    # An amount below the lowest mark moves the labels down.
    bottom = max([_TOP + _TALL, *(frame.below(each) for each in later if each.label)])
    drawn += _labels(frame, [each for each in moments if each.label], bottom + LETTER + 8)
    drawn += _amounts(frame, known, later)
    height = bottom + 2 * LETTER + 4
    parts = (element("title", title), *drawn)
    return element("svg", *parts, role="img", aria_label=title, viewBox=f"0 0 {WIDTH} {height}")


class _Frame:
    """The places of times and amounts."""

    def __init__(self, axis: Axis, moments: Sequence[Moment], left: int) -> None:
        self._axis = axis
        self.left: Final = left
        self._first = min(each.at for each in moments)
        self._length = max(1, max(each.at for each in moments) - self._first)

    def x(self, at: int) -> int:
        return self._x(at, 1)

    def y(self, amount: int) -> int:
        return self._y(amount, 1)

    def _x(self, at: int, parts: int) -> int:
        # A mark at the edge is drawn whole.
        length = (WIDTH - self.left - 2 * _MARK) * parts
        return (self.left + _MARK) * parts + (at - self._first) * length // self._length

    def _y(self, amount: int, parts: int) -> int:
        return (_TOP + _TALL) * parts - self._axis.place(amount, _TALL * parts)

    def span(self, moment: Moment, text: str) -> tuple[int, int]:
        """Return where a text begins and ends that is centred on a moment as far as the edges allow."""
        width = text_width(text)
        start = max(self.left, min(self.x(moment.at) - width // 2, WIDTH - width))
        return start, start + width

    def below(self, moment: Moment) -> int:
        """Return where a text below the mark of a moment stands."""
        return self.y(moment.amount) + LETTER + 6

    def line(self, kind: str, color: str, moments: Sequence[Moment], dashes: str = "") -> Element:
        # Tenths keep a straight line straight.
        tenths = ((self._x(each.at, 10), self._y(each.amount, 10)) for each in moments)
        points = " ".join(f"{x // 10}.{x % 10},{y // 10}.{y % 10}" for x, y in tenths)
        dashed = {"stroke_dasharray": dashes} if dashes else {}
        return element("polyline", class_=f"line {kind}", points=points, fill="none", stroke=color, **dashed)

    def mark(self, kind: str, color: str, moment: Moment) -> Element:
        title = element("title", f"{moment.label}: {moment.text}")
        x, y = self.x(moment.at), self.y(moment.amount)
        return element("circle", title, class_=f"mark {kind}", fill=color, cx=x, cy=y, r=_MARK)


def _labels(frame: _Frame, moments: Sequence[Moment], y: int) -> Iterator[Element]:
    """Yield the labels below the axis, from the last to the first, each where it does not touch another one."""
    taken: list[tuple[int, int]] = []
    for moment in reversed(moments):
        start, end = frame.span(moment, moment.label)
        if all(end + _GAP <= left or right + _GAP <= start for left, right in taken):
            taken.append((start, end))
            yield element("text", moment.label, class_="tick", x=(start + end) // 2, y=y, text_anchor="middle")


def _amounts(frame: _Frame, known: Sequence[Moment], later: Sequence[Moment]) -> Iterator[Element]:
    """Yield the amounts beside the marks: above what is known, and below what will be, where a line falls to it."""
    taken: list[tuple[int, int, int]] = []
    for moment in (*known[::-1], *later[::-1]):
        start, end = frame.span(moment, moment.text)
        y = frame.below(moment) if moment in later else max(LETTER, frame.y(moment.amount) - 8)
        beside = (
            abs(y - other) >= LETTER + 2 or end + _GAP <= left or right + _GAP <= start for left, right, other in taken
        )
        if moment.label and all(beside):
            taken.append((start, end, y))
            yield element("text", moment.text, x=(start + end) // 2, y=y, text_anchor="middle")
