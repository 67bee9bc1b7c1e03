"""Make the HTML page of `bizrq report`: which budgets run out, then the forecast and the bills of each resource.

This file alone decides what is on the page, and in what order. `page.py` lays it out, `charts.py` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bizrq.figures.hours.bills import (
    NO_VALUE,
    UNKNOWN_BELOW,
    Bill,
    bill_facts,
    make_bill,
    money_facts,
    notices,
    of_resource,
    percent,
)
from bizrq.figures.hours.outlook import BudgetOutlook, format_exhaustion, format_top_consumers, outlooks_below
from bizrq.figures.hours.prices import Costs, Prices, costs_of, format_money
from bizrq.figures.hours.records import (
    HoursRecords,
    format_hours,
    format_left,
    format_local_time,
    named_hours,
    one_hour,
    period_name,
    select_lines,
    unit,
)
from bizrq.figures.words import few
from bizrq.hours.bill import BillLine, BillRow, GroupBy, bill_rows
from bizrq.hours.metering import HOUR
from bizrq.hours.periods import Period
from bizrq.html.charts import Bar
from bizrq.html.page import PageSection, PageTable, render_page
from bizrq.units.names import Catalog, base_and_model
from bizrq.units.text import by_number, counted

#: One percent, in the amounts of the forecast's chart.
_PERCENT: Final = 1000
_SO_FAR, _NOT_FINAL = "so far", "not final"


def page_of(
    records: HoursRecords,
    group: str | None,
    resource: str | None,
    which: str,
    *,
    cluster: str,
    now: int,
    prices: Prices | None = None,
    troubles: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """Return the forecast and the bills as one HTML page, and what its reader should know of them. Raise NoAnswer.

    `now` is the time of creation in milliseconds, and `troubles` what is wrong with enforcement and counts.
    """
    lines = of_resource(records, select_lines(records, which), resource)
    found = make_bill(records, group, lines, [GroupBy.GROUP], prices)
    ever = of_resource(records, select_lines(records, "all"), resource)
    ahead = outlooks_below(records, group)
    if resource is not None:
        wanted = named_hours(resource, {each.resource for each in ahead}, records.catalog)
        ahead = [each for each in ahead if each.resource in wanted]
    noticed = notices(found)
    said = [*troubles, *noticed]
    if records.unread:
        said.append(f"{few(sorted(records.unread))} could not be read: {UNKNOWN_BELOW}")
    return bill_page(found, ever, ahead, cluster=cluster, now=now, said=said), noticed


def bill_page(
    found: Bill,
    ever: Sequence[BillLine],
    outlooks: Sequence[BudgetOutlook],
    *,
    cluster: str,
    now: int,
    said: Sequence[str] = (),
) -> str:
    """Return the page as HTML text.

    `ever` are the lines of all periods, `outlooks` the forecasts to show. `now` is the time of creation in
    milliseconds, and `said` what is wrong.
    """
    title = f"Card-hours of {found.top}" if found.top else "Card-hours"
    facts = [
        ("Cluster", cluster),
        *bill_facts(found),
        *money_facts(found),
        ("Created", f"{format_local_time(now // 60_000 * 60_000, found.zone)}, {found.zone}"),
    ]
    if any(found.books.is_open_anywhere(line.period) for line in found.lines):
        facts = [
            (name, f"{text}; not over, so hours are those {_SO_FAR}" if name == "Period" else text)
            for name, text in facts
        ]
    return render_page(title, facts, said, _sections(found, ever, sorted(outlooks, key=urgency)))


def urgency(each: BudgetOutlook) -> tuple[bool, int, int, str]:
    """Order budgets: what is exhausted, what will be the soonest, then by the share that will be used."""
    when = 0 if each.left <= 0 else each.exhausted_at
    return when is None, when or 0, -max(_share(each, each.projected), _share(each, each.used)), each.group


def _sections(found: Bill, ever: Sequence[BillLine], ahead: Sequence[BudgetOutlook]) -> list[PageSection]:
    catalog = found.books.catalog
    bases = {*found.totals, *(_base(each.resource, catalog) for each in ahead)}
    of_base = {name: [each for each in ahead if _base(each.resource, catalog) == name] for name in bases}
    # What has budgets comes first.
    ordered = sorted(bases, key=lambda name: (not of_base[name], name))
    return [
        *([PageSection("Forecast", [_running_out(ahead)])] if ahead else []),
        *(
            PageSection(
                f"{name}, in {unit(name)}",
                [*([_forecast(of_base[name], catalog)] if of_base[name] else []), *_tables(found, ever, name)],
            )
            for name in ordered
        ),
    ]


def _base(resource: str, catalog: Catalog) -> str:
    split = base_and_model(resource, catalog)
    return split[0] if split is not None else resource


# Forecasts


def _running_out(ahead: Sequence[BudgetOutlook]) -> PageTable:
    """Return the budgets that are exhausted, or will be before their periods end."""
    soon = [each for each in ahead if each.left <= 0 or each.exhausted_at is not None]
    texts = [
        [
            each.group,
            format_exhaustion(each),
            each.resource,
            format_hours(each.resource, each.budget.hard),
            format_hours(each.resource, each.used),
            format_top_consumers(each),
        ]
        for each in soon
    ]
    return PageTable(
        _how_many(len(soon), len(ahead)),
        "",
        ["Group", "Exhausted", "Resource", "Budget", "Used", "Workloads"],
        range(3, 5),
        texts,
        [],
        note="Before its period ends, if running workloads continue. Nothing is stopped.",
    )


def _how_many(soon: int, ahead: int) -> str:
    if not soon:
        return "No budget will be exhausted"
    return f"{soon} of {counted(ahead, 'budget')} {by_number(soon, 'is', 'are')} exhausted, or will be"


def _share(each: BudgetOutlook, amount: int) -> int:
    """Return the share of a budget that an amount is; all of it if there is no budget."""
    whole = 100 * _PERCENT
    return amount * whole // each.budget.hard if each.budget.hard else whole * (amount > 0)


def _bar(each: BudgetOutlook, label: str) -> Bar:
    used, later = _share(each, each.used), _share(each, each.projected)
    text = f"{used // _PERCENT} % used" if each.budget.hard else "used without a budget" if each.used else "no budget"
    return Bar(label, used, text, later, 100 * _PERCENT)


def _forecast(ahead: Sequence[BudgetOutlook], catalog: Catalog) -> PageTable:
    """Return each budget of a resource and its models, with a bar of its used share."""

    def label(each: BudgetOutlook) -> str:
        split = base_and_model(each.resource, catalog)
        return f"{each.group}, {split[1]}" if split is not None else each.group

    texts = [
        [
            label(each),
            format_exhaustion(each),
            format_hours(each.resource, each.budget.hard),
            format_hours(each.resource, each.spent),
            format_hours(each.resource, each.granted),
            format_left(each.resource, each.budget.hard, each.used),
            format_hours(each.resource, each.budget.total_burn * HOUR) if each.is_complete else "?",
            format_top_consumers(each),
        ]
        for each in ahead
    ]
    return PageTable(
        "Forecast",
        "share of each budget; pale: at the period's end, or in 30 days if it has none",
        ["Group", "Exhausted", "Budget", "Spent", "Granted", "Left", "Burn per hour", "Workloads"],
        range(2, 7),
        texts,
        [_bar(each, text[0]) for each, text in zip(ahead, texts, strict=True)],
        one=_PERCENT,
        suffix=" %",
    )


# Bills


def _tables(found: Bill, ever: Sequence[BillLine], resource: str) -> list[PageTable]:
    def by(column: GroupBy, lines: Sequence[BillLine] = found.lines, title: str = "") -> PageTable | None:
        made = found.rows if column is GroupBy.GROUP else bill_rows(lines, [column], catalog=found.books.catalog)
        rows = [row for row in made if row.resource == resource]
        costs = None if found.prices is None else costs_of(lines, [column], found.prices)
        return _table(found, column, rows, costs, title) if rows else None

    by_model = by(GroupBy.MODEL)
    tables = [
        by(GroupBy.GROUP),
        by(GroupBy.PERIOD, ever, "Over periods"),
        by(GroupBy.WORKLOAD),
        by(GroupBy.NAMESPACE),
        by_model if by_model is not None and any(row[0] != NO_VALUE[GroupBy.MODEL] for row in by_model.rows) else None,
    ]
    return [table for table in tables if table is not None]


def _table(found: Bill, by: GroupBy, made: Sequence[BillRow], costs: Costs | None, title: str) -> PageTable:
    """Return the rows as text: periods in order, everything else the largest first."""
    if by is not GroupBy.PERIOD:
        made = sorted(made, key=lambda row: -row.amount)
    resource, whole = made[0].resource, sum(row.amount for row in made)
    of = unit(resource)
    columns = [f"{of[:1].upper()}{of[1:]}"]
    values = [[format_hours(resource, amount) for amount in (*(row.amount for row in made), whole)]]
    if by is GroupBy.GROUP:
        columns.append("With subgroups")
        wholes = map(found.with_subgroups, made)
        values.append([*("?" if whole is None else format_hours(resource, whole) for whole in wholes), ""])
    if costs is not None and costs.prices.has(resource):
        columns.append(f"Cost {costs.prices.currency}".strip())
        values.append([format_money(cost) for cost in (*map(costs.of, made), costs.total(made))])
    columns.append("Share")
    shares = (percent(row.amount, whole) for row in made)
    values.append([*("" if share is None else f"{share} %" for share in shares), ""])
    names = [period_name(row.period, found.zone) if row.period else getattr(row, by.value) for row in made]
    names = [name or NO_VALUE.get(by, "") for name in names]
    marks = [_mark(found.books, row.period) if row.period is not None else "" for row in made]
    marked = [f"{name} ({mark})" if mark else name for name, mark in zip(names, marks, strict=True)]
    *rows, total = ([*row] for row in zip((*marked, "Total"), *values, strict=True))
    return PageTable(
        title or f"By {by.value}",
        of,
        [by.value.capitalize(), *columns],
        range(1, len(columns) + 1),
        rows,
        [
            Bar(name, row.amount, text, mark=mark)
            for name, row, text, mark in zip(names, made, values[0][:-1], marks, strict=True)
        ],
        total,
        kind="columns" if by is GroupBy.PERIOD else "bars",
        one=one_hour(resource),
    )


def _mark(records: HoursRecords, period: Period) -> str:
    """Say why the hours of a period may still change, "" if they are final."""
    if records.is_open_anywhere(period):
        return _SO_FAR
    return _NOT_FINAL if period in records.closing_periods else ""
