"""The tree as an icicle: each group is as wide as what it holds of its parent, and its children are below it.

This file alone decides where a group is drawn. All numbers are in the table beside it; the drawing alone says nothing.
Places are parts of the width, so that text keeps its size on any screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bizrq.figures.groups.view import GroupView, ResourceView
from web import parts
from web.html import Element, element, shown
from web.parts import Cell, TableColumn
from web.visit import group_address

#: The most levels, and the most rows of the table.
LEVELS, ROWS = 12, 3000
#: The whole width. Narrower groups are not drawn, and only wider ones are a target for a mouse or have a name in them.
_WIDTH, _NARROW, _TARGET = 1_000_000, 2_500, 40_000
#: Pixels of one level, of what a group takes of them, and of the line of its name.
_LEVEL, _CELL, _NAME = 40, 36, 17


@dataclass(frozen=True)
class Icicle:
    """What is drawn: the figures of groups of one resource, by name, and which groups are below which."""

    resource: str
    figures: Mapping[str, ResourceView]
    tops: Sequence[str]
    below: Callable[[str], Sequence[str]]

    def drawn(self) -> list[tuple[str, int, int, int]]:
        """Return the name, the level, the place and the width of each group that is wide enough."""
        found: list[tuple[str, int, int, int]] = []
        held = [(name, _held(self.figures[name])) for name in self.tops]
        level, row = 0, _placed(held, 0, _WIDTH, sum(amount for _, amount in held))
        while row and level < LEVELS:
            found += [(name, level, x, width) for name, x, width in row]
            level, row = level + 1, [each for name, x, width in row for each in self._under(name, x, width)]
        return found

    def _under(self, name: str, x: int, width: int) -> list[tuple[str, int, int]]:
        """Place the children below what their parent has granted: right of what it uses itself."""
        figures = self.figures[name]
        own = figures.self_used or 0
        held = [(child, _held(self.figures[child])) for child in self.below(name)]
        granted = max(figures.granted or 0, sum(amount for _, amount in held))
        whole = max(figures.hard, own + granted + figures.reserved)
        return _placed(held, x + _part(own, whole, width), width, whole)


def _placed(held: Sequence[tuple[str, int]], x: int, width: int, whole: int) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    before = 0
    for name, amount in held:
        start, before = _part(before, whole, width), before + amount
        if (own := _part(before, whole, width) - start) >= _NARROW:
            found.append((name, x + start, own))
    return found


def _part(amount: int, whole: int, width: int) -> int:
    return amount * width // whole if whole else 0


def _held(figures: ResourceView) -> int:
    """Return what a group holds of its parent: its ceiling, or what it takes beyond that."""
    return max(figures.hard, figures.taken or 0)


def icicle(of: Icicle, views: Mapping[str, GroupView], zoom: Callable[[str], str]) -> list[Element]:
    """Return the drawing with its table. `zoom` returns the address of the same view of a group and below."""
    drawn = of.drawn()
    cells = [_cell(of, name, level, x, width, zoom) for name, level, x, width in drawn]
    height = _LEVEL * (1 + max((level for _, level, _, _ in drawn), default=0))
    label = f"{shown(of.resource)}: each group is as wide as what it holds of its parent. The table has all numbers."
    drawing = element("svg", *cells, class_="icicle", height=height, role="group", aria_label=label)
    return [element("div", drawing, class_="scroll"), _table(of, views, zoom, left_out=len(of.figures) - len(drawn))]


def _cell(of: Icicle, name: str, level: int, x: int, width: int, zoom: Callable[[str], str]) -> Element:
    figures = of.figures[name]
    text = f"{shown(name)}: {parts.taken_of(figures)} taken, {parts.percent(figures)}"
    content: list[Element] = [
        element("title", text),
        element("rect", class_="cell full" if figures.is_over else "cell", width="100%", height=_CELL, rx=3),
    ]
    is_wide = width >= _TARGET
    if is_wide:
        content.append(element("text", shown(name), " ", _percent(figures), x=6, y=_NAME))
    bar = parts.bar(figures)
    bar.set("y", str(_CELL - 14))
    content.append(bar)
    place = {"x": _percentage(x), "y": level * _LEVEL, "width": _percentage(width), "height": _CELL}
    cell = element("svg", *content, **place)
    if not is_wide:
        return cell
    to = zoom(name) if of.below(name) else group_address(name)
    return element("a", cell, href=to, id=f"cell-{name}", aria_label=text)


def _percent(figures: ResourceView) -> Element:
    return element("tspan", parts.percent(figures), class_="soft")


def _percentage(part: int) -> str:
    """Return a part of the width as CSS and SVG write it."""
    return f"{part * 100 // _WIDTH}.{part * 100 % _WIDTH // 100:04}%"


_COLUMNS = (
    TableColumn("group"),
    TableColumn("below"),
    TableColumn("ceiling", is_number=True),
    TableColumn("own", is_number=True),
    TableColumn("granted", is_number=True),
    TableColumn("reserved", is_number=True),
    TableColumn("left", is_number=True),
    TableColumn("taken", is_number=True),
)


def _table(of: Icicle, views: Mapping[str, GroupView], zoom: Callable[[str], str], *, left_out: int) -> Element:
    rows: list[list[Cell]] = []
    for name, figures in list(of.figures.items())[:ROWS]:
        link = element("a", shown(name), href=group_address(name))
        more = (
            [" ", element("a", "zoom", href=zoom(name), aria_label=f"Zoom to {shown(name)}")] if of.below(name) else []
        )
        left = parts.amount(figures, figures.left)
        rows.append(
            [
                element("span", link, *more, " ", *parts.tags(views[name])),
                shown(views[name].parent),
                *(parts.amount(figures, n) for n in (figures.hard, figures.self_used, figures.granted)),
                parts.amount(figures, figures.reserved),
                element("span", left, class_="is-over") if figures.is_over else left,
                parts.percent(figures),
            ]
        )
    said = [f"The first {ROWS} of {len(of.figures)} groups: search for one, or zoom."] if len(of.figures) > ROWS else []
    if left_out:
        said.append(f"{left_out} of the groups are too narrow or too deep to be drawn: zoom to one above them.")
    return parts.table(_COLUMNS, rows, caption=" ".join(said), label=f"Groups and their {shown(of.resource)}")
