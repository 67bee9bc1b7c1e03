"""The statements of closed periods, the newest first."""

from __future__ import annotations

from collections.abc import Callable

from bizrq.api import hours as wire
from bizrq.api.hours import StatementSpec
from bizrq.figures.errors import UnreadableLine
from bizrq.figures.hours.records import HoursRecords, format_hours, format_local_time, period_name, period_of
from web import parts
from web.html import Element, element, shown
from web.pages.bill import unread_notice
from web.parts import Cell, TableColumn

#: The most statements of a page.
ROWS = 500
_COLUMNS = (
    TableColumn("statement"),
    TableColumn("group"),
    TableColumn("from"),
    TableColumn("to"),
    TableColumn("hours"),
    TableColumn("lines", is_number=True),
    TableColumn("corrections", is_number=True),
)


def stated(books: HoursRecords, bill_of: Callable[[str, str], str]) -> list[Cell]:
    """Return the statements. `bill_of` returns the address of a group's bill of a period. Raise NoAnswer."""
    content: list[Cell] = [*unread_notice(books)]
    if not books.statements:
        said = "No period is closed yet. A statement is written when a period ends, so that its hours never change."
        return [*content, parts.empty(said)]
    ordered = sorted(books.statements, key=lambda each: (each.spec.end, each.metadata.name), reverse=True)
    rows: list[list[Cell]] = []
    for each in ordered[:ROWS]:
        spec, zone = each.spec, books.zone(each.spec.group)
        period = period_of(spec.start, spec.end)
        start = period_name(period, zone)
        end = format_local_time(period.end, zone) if period.end is not None else ""
        # Only a period that has a start can be named by it.
        named: Cell = element("a", start, href=bill_of(spec.group, start)) if period.start is not None else start
        lines = len(spec.settled) + len(spec.late) + len(spec.corrections)
        group = f"{spec.group}, deleted: its hours are with {spec.heir}" if spec.heir else spec.group
        name = element("span", shown(each.metadata.name), class_="mono")
        rows.append([name, shown(group), named, end, _total(spec), str(lines), str(len(spec.corrections))])
    more = f"The newest {ROWS} of {len(ordered)}." if len(ordered) > ROWS else ""
    return [*content, parts.card("Statements", parts.table(_COLUMNS, rows, caption=more, label="Statements"))]


def _total(spec: StatementSpec) -> Element:
    try:
        amounts = wire.parse_amounts(spec.total)
    except ValueError as error:
        raise UnreadableLine(str(error)) from None
    texts = [f"{name} {format_hours(name, amount)}" for name, amount in sorted(amounts.items())]
    return element("ul", *(element("li", shown(text)) for text in texts or ["none"]), class_="plain tight")
