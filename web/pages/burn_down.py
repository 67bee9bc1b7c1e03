"""What is left of budgets of hours: now, by the forecast, and in the periods before.

This file alone decides which moments a chart has. A record has no figures by day: between the start of a period and
now nothing is known, and the page says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from bizrq.figures.hours.bill_page import urgency
from bizrq.figures.hours.outlook import BudgetOutlook, format_exhaustion, format_top_consumers, outlooks_below
from bizrq.figures.hours.records import (
    HoursRecords,
    format_hours,
    format_left,
    format_local_time,
    one_hour,
    select_lines,
    unit,
)
from bizrq.hours.bill import GroupBy, bill_rows
from bizrq.hours.metering import HOUR
from bizrq.html.lines import Moment, burn_down
from web import parts
from web.html import Element, element, shown
from web.pages.bill import figure, unread_notice
from web.parts import UNSEEN, Cell, TableColumn

#: The most charts of a page, the most rows of a table, and the moments of a projection.
CHARTS, ROWS, _STEPS = 6, 500, 24
_MINUTE = 60_000
_ABOUT = (
    "Marks are what is left at the start of the period by today's budgets, now, and at its end if running workloads "
    "go on. Records have no figures by day: the dotted line only joins two marks."
)


def burnt_down(books: HoursRecords, top: str | None, of_group: Callable[[str], str], *, has_past: bool) -> list[Cell]:
    """Return the budgets of a group and below, of all groups without one. Raise NoAnswer."""
    ahead = outlooks_below(books, top)
    content: list[Cell] = [*unread_notice(books)]
    if not ahead:
        example = element("code", "cash/requests.nvidia.com/gpu")
        return [*content, parts.empty("No budget of hours is set. Add for example ", example, " to a spec.hard.")]
    shown_first = [each for each in ahead if each.group == top or (top is None and not books.groups[each.group].parent)]
    charts = [made for each in shown_first[:CHARTS] if (made := _chart(books, each)) is not None]
    if charts:
        content.append(element("section", element("div", *charts, class_="columns"), class_="block"))
        content.append(element("p", _ABOUT, class_="hint"))
    content.append(parts.card("Budgets, what ends first", *_budgets(ahead, of_group)))
    if not has_past:
        content.append(parts.card("Periods before", element("p", f"Statements are {UNSEEN}.", class_="unseen")))
    elif past := _past(books):
        title = element("h2", "Over periods")
        content.append(element("section", title, element("div", *past, class_="columns"), class_="block"))
    return content


def _chart(books: HoursRecords, each: BudgetOutlook) -> Element | None:
    """Return the chart of one budget, None where nothing is counted yet."""
    if not each.counted:
        return None
    zone, name = each.zone, each.resource

    hard = each.budget.hard

    def at(time: int, used: int, label: str = "") -> Moment:
        minute = time // _MINUTE * _MINUTE
        named = f"{label} {format_local_time(minute, zone)}" if label not in ("", "now") else label
        return Moment(time, hard - used, named, format_left(name, hard, used) if label else "")

    starts = [period.start for period in books.open_periods(each.group) if period.start is not None]
    held = sum(child.hard for child in each.budget.children)
    known = [*([at(min(starts), held, "start")] if starts else []), at(each.counted, each.used, "now")]
    end = each.until if each.until is not None else each.counted + 30 * 86_400_000
    length = max(0, end - each.counted)
    later = [at(each.counted + length * n // _STEPS, each.budget.used(length * n // _STEPS)) for n in range(1, _STEPS)]
    if length:
        later.append(at(end, each.projected, "end" if each.until is not None else "in 30 days,"))
    title = f"{each.group}, {name}: what is left of {format_hours(name, hard)} {unit(name)}"
    counted = format_local_time(each.counted // _MINUTE * _MINUTE, zone)
    left_now = format_left(name, hard, each.used)
    ends = format_exhaustion(each)
    said = f"{left_now} left now, counted up to {counted}; {ends if each.left <= 0 else f'exhausted: {ends}'}"
    caption = element("figcaption", element("strong", shown(title)), element("br"), shown(said))
    drawn = burn_down(shown(f"{title}. {said}"), known, later, one_hour(name))
    return element("figure", caption, drawn, class_="card chart")


def _budgets(ahead: Sequence[BudgetOutlook], of_group: Callable[[str], str]) -> list[Element]:
    columns = (
        TableColumn("group"),
        TableColumn("resource"),
        TableColumn("exhausted"),
        *(TableColumn(head, is_number=True) for head in ("budget", "spent", "granted", "left", "burn per hour")),
        TableColumn("left at the end", is_number=True),
        TableColumn("workloads that burn most"),
    )
    rows: list[list[Cell]] = []
    for each in sorted(ahead, key=urgency)[:ROWS]:
        name, hard = each.resource, each.budget.hard
        when: Cell = shown(format_exhaustion(each))
        if each.left <= 0:
            when = element("span", when, class_="is-over")
        unseen = element("span", UNSEEN, class_="unseen")
        rows.append(
            [
                element("a", shown(each.group), href=of_group(each.group)),
                shown(name),
                when,
                format_hours(name, hard),
                format_hours(name, each.spent),
                format_hours(name, each.granted),
                format_left(name, hard, each.used),
                format_hours(name, each.budget.total_burn * HOUR) if each.is_complete else unseen,
                format_left(name, hard, each.projected) if each.is_complete else unseen,
                shown(format_top_consumers(each)),
            ]
        )
    more = f"The first {ROWS} of {len(ahead)} budgets." if len(ahead) > ROWS else ""
    hint = "If running workloads go on. Nothing is stopped. Budgets without a period are shown in 30 days."
    return [parts.table(columns, rows, caption=more, label="Budgets"), element("p", hint, class_="hint")]


def _past(books: HoursRecords) -> list[Element]:
    """Return the hours of each resource over all periods."""
    lines = select_lines(books, "all")
    zones = {books.zone(line.group) for line in lines}
    zone = zones.pop() if len(zones) == 1 else "UTC"
    rows = bill_rows(lines, [GroupBy.PERIOD], catalog=books.catalog)
    made = [
        figure(books, zone, resource, list(each), GroupBy.PERIOD)
        for resource, each in groupby(rows, key=lambda row: row.resource)
    ]
    return [each for each in made if each is not None][:CHARTS]
