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

_GAP, _TOP, _TALL = 8, 22, 160
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
    drawn += _texts(frame, [each for each in moments if each.label])
    height = _TOP + _TALL + 2 * LETTER + 4
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
        # A mark at the edge is drawn whole.
        return self.left + 4 + (at - self._first) * (WIDTH - self.left - 8) // self._length

    def y(self, amount: int) -> int:
        return _TOP + _TALL - self._axis.place(amount, _TALL)

    def line(self, kind: str, color: str, moments: Sequence[Moment], dashes: str = "") -> Element:
        points = " ".join(f"{self.x(each.at)},{self.y(each.amount)}" for each in moments)
        dashed = {"stroke_dasharray": dashes} if dashes else {}
        return element("polyline", class_=f"line {kind}", points=points, fill="none", stroke=color, **dashed)

    def mark(self, kind: str, color: str, moment: Moment) -> Element:
        title = element("title", f"{moment.label}: {moment.text}")
        x, y = self.x(moment.at), self.y(moment.amount)
        return element("circle", title, class_=f"mark {kind}", fill=color, cx=x, cy=y, r=4)


def _texts(frame: _Frame, moments: Sequence[Moment]) -> Iterator[Element]:
    """Yield the labels below the axis and the amounts above the marks, each where it touches no other one."""
    for is_label in (True, False):
        free = frame.left
        # The last one has its place first, then the others from the left as far as they fit.
        taken: list[tuple[int, int]] = []
        for moment in (*moments[-1:], *moments[:-1]):
            text = moment.label if is_label else moment.text
            width = text_width(text)
            start = min(max(frame.x(moment.at) - width // 2, free), WIDTH - width)
            if start < 0 or any(start < end + _GAP and begin < start + width + _GAP for begin, end in taken):
                continue
            taken.append((start, start + width))
            y = _TOP + _TALL + LETTER + 8 if is_label else max(LETTER, frame.y(moment.amount) - 8)
            style = {"class_": "tick"} if is_label else {}
            yield element("text", text, x=start + width // 2, y=y, text_anchor="middle", **style)
