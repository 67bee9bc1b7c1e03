"""A bill of hours as elements: its table as `bizrq report --hours` prints it, and a chart of each resource.

This file alone decides how a bill looks; `bizrq.figures.hours.bills` says what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from bizrq.figures.hours.bills import (
    NO_VALUE,
    UNKNOWN_BELOW,
    Bill,
    Cell,
    Tone,
    bill_facts,
    bill_table,
    notices,
    remarks,
    why_empty,
)
from bizrq.figures.hours.records import HoursRecords, format_hours, one_hour, period_name, unit
from bizrq.hours.bill import BillRow, GroupBy
from bizrq.html.charts import Bar, bar_chart, column_chart
from web import parts
from web.html import Element, element, shown
from web.parts import UNSEEN, TableColumn

#: The most rows of the table, bars of a chart, columns of a chart, and charts.
ROWS, BARS, COLUMNS, CHARTS = 500, 12, 24, 6
_SO_FAR, _NOT_FINAL = "so far", "not final"


def billed(found: Bill, of_group: Callable[[str], str], file: Element) -> list[parts.Cell]:
    """Return the bill. `of_group` returns the address of the same bill of another group; `file` links to its CSV."""
    content: list[parts.Cell] = [*unread_notice(found.books), *(parts.notice("warn", each) for each in notices(found))]
    if not found.rows:
        return [*content, parts.empty(shown(why_empty(found)))]
    charts = _charts(found)
    if charts:
        content.append(element("div", *charts, class_="columns"))
    note = [element("p", shown(each), class_="hint") for each in remarks(found)]
    if len(found.rows) > ROWS:
        note.append(element("p", f"The first {ROWS} of {len(found.rows)} rows; the file has all.", class_="hint"))
    facts = element("p", _facts(found), class_="hint")
    head = element("div", element("h2", "Bill"), file, class_="head")
    content.append(element("section", head, facts, _table(found, of_group), *note, class_="card"))
    return content


def unread_notice(books: HoursRecords) -> list[Element]:
    """Return what is missing from all sums, so that nothing is left out in silence."""
    if not books.unread:
        return []
    named = ", ".join(sorted(shown(each) for each in books.unread))
    return [parts.notice("warn", element("strong", f"{UNSEEN}: "), f"{named}. {UNKNOWN_BELOW[:1].upper()}", _REST)]


_REST = f"{UNKNOWN_BELOW[1:]}, and is in no sum on this page."


def _facts(found: Bill) -> str:
    return shown(" · ".join(f"{name}: {text}" for name, text in bill_facts(found)))


def _table(found: Bill, of_group: Callable[[str], str]) -> Element:
    made = bill_table(found)
    used = [number for number, _ in enumerate(made.heads) if any(line[number].text for line in made.lines)]
    columns = [TableColumn(made.heads[number], is_number=made.heads[number] in made.numbers) for number in used]
    rows = [[_cell(found, made.heads[n], line[n], of_group) for n in used] for line in made.lines[:ROWS]]
    return parts.table(columns, rows, label="Bill")


def _cell(found: Bill, head: str, cell: Cell, of_group: Callable[[str], str]) -> parts.Cell:
    text = shown(cell.text)
    if not text:
        return text
    if cell.tone is Tone.TOTAL:
        if text == "TOTAL":
            text = "Total of what is visible" if found.books.unread else "Total"
        return element("strong", text)
    if cell.tone is Tone.ALARM:
        return element("span", text, class_="is-over")
    if cell.text == "?" and head != "budget" and found.books.unread:
        return element("span", UNSEEN, class_="unseen")
    if head == GroupBy.GROUP.value and cell.text in found.books.groups:
        return element("a", text, href=of_group(cell.text))
    return element("span", text, class_="soft") if cell.tone is Tone.FAINT else text


def _charts(found: Bill) -> list[Element]:
    """Return a chart of each resource, where rows are by one column."""
    if len(found.by) != 1:
        return []
    made = [
        figure(found.books, found.zone, resource, list(rows), found.by[0])
        for resource, rows in groupby(found.rows, key=lambda row: row.resource)
    ]
    return [each for each in made if each is not None][:CHARTS]


def figure(books: HoursRecords, zone: str, resource: str, rows: Sequence[BillRow], by: GroupBy) -> Element | None:
    """Return a chart of the hours of one resource, None where there is nothing to compare."""
    if by is GroupBy.PERIOD:
        shown_rows, part = rows[-COLUMNS:], f"the last {COLUMNS}"
    else:
        shown_rows, part = sorted(rows, key=lambda row: -row.amount)[:BARS], f"the largest {BARS}"
    bars = [_bar(books, zone, row, by) for row in shown_rows]
    if len(bars) < 2 or not any(bar.amount for bar in bars):
        return None
    title = f"{resource}, {unit(resource)} by {by.value}"
    left_out = f": {part} of {len(rows)}" if len(bars) < len(rows) else ""
    drawn = (column_chart if by is GroupBy.PERIOD else bar_chart)(shown(title), bars, one_hour(resource))
    return element("figure", element("figcaption", shown(title), left_out), drawn, class_="card chart")


def _bar(books: HoursRecords, zone: str, row: BillRow, by: GroupBy) -> Bar:
    text = format_hours(row.resource, row.amount)
    if row.period is not None:
        mark = _SO_FAR if books.is_open_anywhere(row.period) else ""
        mark = mark or (_NOT_FINAL if row.period in books.closing_periods else "")
        return Bar(period_name(row.period, zone), row.amount, text, mark=mark)
    value = getattr(row, by.value) or NO_VALUE.get(by, "")
    return Bar(shown(value), row.amount, text)
