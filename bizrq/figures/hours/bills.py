"""Bills of hours: their columns, rows and totals, for people and for programs.

This file alone decides the columns of a bill. `bizrq.hours.bill` makes the rows, and `records.py` selects the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from bizrq.api.group import GroupObject
from bizrq.figures.errors import NotThere
from bizrq.figures.groups.source import check_known
from bizrq.figures.groups.view import canonical_name, tree_view
from bizrq.figures.hours.prices import Costs, Prices, costs_of, format_money, key_of, micros, price_warnings
from bizrq.figures.hours.records import (
    HoursRecords,
    format_hours,
    format_local_time,
    named_hours,
    no_budget,
    period_name,
    read_records,
)
from bizrq.figures.tables import csv_text
from bizrq.figures.words import alternatives, few
from bizrq.hours.bill import BillLine, BillRow, GroupBy, bill_rows, covering_period, rolled_up, totals
from bizrq.hours.metering import HOUR
from bizrq.hours.periods import Period
from bizrq.kube.client import KubeClient
from bizrq.units import quantity
from bizrq.units.base import seconds, seconds_unit
from bizrq.units.names import Catalog, is_cash, metered_resource
from bizrq.units.times import format_timestamp, parse_timestamp

#: Rows by these also have the hours of subgroups.
_OF_TREES = {GroupBy.GROUP, GroupBy.PERIOD}


class Tone(StrEnum):
    """How a cell is shown: as text, faint, as an alarm, or as a total."""

    PLAIN = ""
    FAINT = "faint"
    ALARM = "alarm"
    TOTAL = "total"


class Cell(NamedTuple):
    """The text of a cell."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class BillTable:
    """A bill as text. The columns of `numbers` are right-aligned; others may have no such column."""

    heads: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    numbers: Sequence[str]


@dataclass(frozen=True)
class Bill:
    """The selected rows; `subtree` has the hours of each row with those of its subgroups."""

    books: HoursRecords
    top: str | None
    by: Sequence[GroupBy]
    lines: Sequence[BillLine]
    rows: Sequence[BillRow]
    subtree: dict[tuple[object, ...], int]
    prices: Prices | None = None

    @cached_property
    def costs(self) -> Costs | None:
        """Return what the rows cost, None without prices."""
        return None if self.prices is None else costs_of(self.lines, self.by, self.prices)

    @cached_property
    def totals(self) -> dict[str, int]:
        return totals(self.rows)

    @cached_property
    def budgets(self) -> dict[tuple[str, str], int]:
        """Return the budgets by group and resource, in nano-units x milliseconds."""
        views = tree_view(self.books.groups.values(), self.books.catalog).groups.values()
        return {
            (view.name, metered_resource(f.resource)): f.hard * HOUR
            for view in views
            for f in view.resources
            if is_cash(f.resource)
        }

    def with_subgroups(self, row: BillRow) -> int | None:
        """Return the hours of a row with those of its subgroups, or its own where the bill is not by group.

        They are unknown, None, where there may be subgroups that the person may not read.
        """
        return None if self.books.unread else self.subtree.get(key_of(row), row.amount)

    def is_open(self, row: BillRow) -> bool:
        """Return True if the row is of its group's open period: today's budgets are not those of past periods."""
        return row.group is not None and row.span in self.books.open_periods(row.group)

    @cached_property
    def zone(self) -> str:
        """Return the time zone in which the bill's periods are printed."""
        zones = {self.books.zone(name) for name in ([self.top] if self.top else {line.group for line in self.lines})}
        return zones.pop() if len(zones) == 1 else "UTC"


#: What follows where some groups or records may not be read.
UNKNOWN_BELOW = "what their groups have used is unknown"


def _has_subtrees(by: Sequence[GroupBy]) -> bool:
    return GroupBy.GROUP in by and _OF_TREES.issuperset(by)


async def read_books(
    client: KubeClient,
    groups: Iterable[GroupObject],
    catalog: Catalog,
    top: str | None,
    *,
    statements: bool,
    is_complete: bool = True,
) -> HoursRecords:
    """Return the records of a group and its subgroups, of all groups without one, as `read_records` does.

    Bills of past periods need the `statements`. Raise NoAnswer, ApiError or Unreachable.
    """
    records = await read_records(client, groups, catalog, top, statements=statements, is_complete=is_complete)
    if top is not None:
        check_known([top], sorted({*records.groups, *(each.spec.group for each in records.statements)}))
    return records.subtree(top)


def of_resource(records: HoursRecords, lines: list[BillLine], resource: str | None) -> list[BillLine]:
    """Return the lines, limited to the resource that is named and its models. Raise NotThere."""
    if resource is None:
        return lines
    there = {name for line in lines for name in line.amounts}
    wanted = named_hours(resource, there, records.catalog)
    if there and not wanted:
        said = metered_resource(canonical_name(resource, records.catalog))
        raise NotThere(f"no hours of {said} are recorded; {alternatives(said, sorted(there))}")
    return [line._replace(amounts={name: n for name, n in line.amounts.items() if name in wanted}) for line in lines]


def make_bill(
    records: HoursRecords, top: str | None, lines: list[BillLine], by: Sequence[GroupBy], prices: Prices | None = None
) -> Bill:
    """Return the bill of these lines; rows by group also have their subtrees."""
    found = bill_rows(lines, by, catalog=records.catalog)
    if not _has_subtrees(by):
        return Bill(records, top, by, lines, found, {}, prices)
    # Leave out the groups above the selected one: only a part of their hours is here.
    over = set(records.ancestors(top)) if top is not None else set()
    below = rolled_up(lines, lambda group: [name for name in records.ancestors(group) if name not in over])
    whole = bill_rows(below, by, catalog=records.catalog)
    own = {key_of(row): row.amount for row in found}
    return Bill(
        records,
        top,
        by,
        lines,
        [row._replace(amount=own.get(key_of(row), 0)) for row in whole],
        {key_of(row): row.amount for row in whole},
        prices,
    )


def notices(found: Bill) -> list[str]:
    """Return a sentence for each past period in the bill that may still change, and for what has no price."""
    records = found.books
    shown = {
        (line.period.start or 0, records.zone(line.group))
        for line in found.lines
        if line.period in records.closing_periods
    }
    closing = [
        f"the period that began {period_name(Period(start or None), zone)} is not closed yet; "
        "pods that ended late may still be added"
        for start, zone in sorted(shown)
    ]
    return closing + ([] if found.prices is None else price_warnings(found.lines, found.prices))


# Columns


#: The text of a row without such a value.
NO_VALUE = {GroupBy.NAMESPACE: "(no namespace)", GroupBy.MODEL: "(no model)"}
SHARE, OF_BUDGET = "% of total", "% of budget"


def _heads(found: Bill) -> list[str]:
    """Return the columns of a table."""
    of_group = [*(["subtree"] if _has_subtrees(found.by) else []), "budget", OF_BUDGET]
    by = [each.value for each in GroupBy if each in found.by]
    cost = [found.prices.money] if found.prices is not None else []
    return [*by, "resource", "hours", *cost, *(of_group if GroupBy.GROUP in found.by else []), SHARE]


def plain_heads(found: Bill) -> list[str]:
    """Return the columns of CSV. Their names are keys of JSON."""
    of_group = [*(["subtreeSeconds"] if _has_subtrees(found.by) else []), "budgetSeconds", "percentOfBudget"]
    by = [each.value for each in GroupBy if each in found.by]
    of_row = ["percentOfTotal", "from", "to", "exactNanoMs", *(["costMicros", "currency"] if found.prices else [])]
    return [*by, "resource", "unit", "seconds", *(of_group if GroupBy.GROUP in found.by else []), *of_row]


def plain_row(found: Bill, row: BillRow) -> dict[str, Any]:
    """Return a row for programs: whole numbers of `unit`, a budget that is not known or not set as None."""
    values = {
        **_columns(found, row),
        "resource": row.resource,
        "unit": seconds_unit(row.resource),
        "seconds": seconds(row.resource, row.amount),
        "percentOfTotal": percent(row.amount, found.totals[row.resource]),
        "from": None if row.span.start is None else format_timestamp(row.span.start),
        "to": None if row.span.end is None else format_timestamp(row.span.end),
        "exactNanoMs": str(row.amount),
    }
    if found.costs is not None:
        values |= {"costMicros": micros(found.costs.of(row)), "currency": found.costs.prices.currency or None}
    if _has_subtrees(found.by):
        whole = found.with_subgroups(row)
        values["subtreeSeconds"] = None if whole is None else seconds(row.resource, whole)
    if row.group is not None:
        budget = _budget(found, row)
        values["budgetSeconds"] = None if budget is None else seconds(row.resource, budget)
        values["percentOfBudget"] = _percent_of_budget(found, row)
    return values


def _columns(found: Bill, row: BillRow) -> dict[str, Any]:
    """Return the values that the bill is grouped by."""
    values = {each.value: value for each, value in zip(GroupBy, row[1:6], strict=True) if each in found.by}
    return values if row.period is None else {**values, "period": period_name(row.period, found.zone)}


def _budget(found: Bill, row: BillRow) -> int | None:
    """Return the budget of a row's group, None if it has none or if it is not known what it was."""
    return found.budgets.get((row.group or "", row.resource)) if found.is_open(row) else None


def _percent_of_budget(found: Bill, row: BillRow) -> int | None:
    """Return the share of its budget that a group and its subgroups have used; None without a budget."""
    budget = _budget(found, row)
    used = found.with_subgroups(row)
    return None if budget is None or used is None else percent(used, budget)


def percent(amount: int, whole: int) -> int | None:
    """Return the rounded share of the whole; None if credits make the whole 0 or less."""
    return (amount * 200 + whole) // (2 * whole) if whole > 0 else None


def bill_table(found: Bill) -> BillTable:
    """Return the rows as text: those of each resource after each other, and then their total."""
    heads = _heads(found)
    lines: list[list[Cell]] = []
    for resource, rows in groupby(found.rows, key=lambda row: row.resource):
        mine = list(rows)
        lines += [[_cell(found, row, head) for head in heads] for row in mine]
        if len(mine) > 1:
            total = {"resource": resource, "hours": format_hours(resource, found.totals[resource]), heads[0]: "TOTAL"}
            if found.costs is not None:
                total[found.costs.prices.money] = format_money(found.costs.total(mine))
            lines.append([Cell(total.get(head, ""), Tone.TOTAL) for head in heads])
    money = found.prices.money if found.prices is not None else "cost"
    return BillTable(heads, lines, ("hours", money, "subtree", "budget", SHARE, OF_BUDGET))


def bill_csv(found: Bill) -> str:
    """Return what `bizrq report -o csv` prints of the bill."""
    return csv_text(plain_heads(found), [plain_row(found, row) for row in found.rows])


def caption(found: Bill) -> str:
    """Return the groups, the period, and the time up to which hours are counted, as one sentence."""
    of, when, *until = (text for _, text in bill_facts(found))
    return ", ".join([of, when, *(f"counted up to {text}" for text in until)])


def remarks(found: Bill) -> list[str]:
    """Return what to say below a table: costs and prices, and in what hours of memory are."""
    said = [f"{name}: {text}" for name, text in money_facts(found)]
    if any(quantity.in_bytes(row.resource) for row in found.rows):
        said.append("Hours of memory are GiB-hours.")
    return said


def why_empty(found: Bill) -> str:
    """Return why a bill has no rows, and what to do."""
    if found.books.unread:
        return "No hours that you may read are recorded for this period."
    names = {found.top, *(name for name in found.books.groups if found.top in found.books.ancestors(name))}
    if any(found.top is None or group in names for group, _ in found.budgets):
        return "No hours are recorded for this period: nothing that costs hours has run."
    return f"No hours are recorded: {no_budget(found.top)}"


def _cell(found: Bill, row: BillRow, head: str) -> Cell:
    if head in ("resource", "hours"):
        return Cell(row.resource if head == "resource" else format_hours(row.resource, row.amount))
    if found.costs is not None and head == found.costs.prices.money:
        return Cell(format_money(found.costs.of(row)))
    if head == "subtree":
        whole = found.with_subgroups(row)
        return Cell("?", Tone.FAINT) if whole is None else Cell(format_hours(row.resource, whole))
    if head == "budget" and found.is_open(row):
        budget = _budget(found, row)
        return Cell("unlimited", Tone.FAINT) if budget is None else Cell(format_hours(row.resource, budget))
    if head in ("budget", SHARE, OF_BUDGET):
        value = {SHARE: percent(row.amount, found.totals[row.resource]), OF_BUDGET: _percent_of_budget(found, row)}
        share = value.get(head)
        if share is None:
            # Of no budget there is no share; the budget of a past period is not recorded.
            is_unknown = head == "budget" or (head == OF_BUDGET and _budget(found, row) and found.books.unread)
            return Cell("?" if is_unknown else "", Tone.FAINT)
        return Cell(f"{share}%", Tone.ALARM if head == OF_BUDGET and share >= 100 else Tone.PLAIN)
    value = _columns(found, row)[head]
    return Cell(value or NO_VALUE.get(GroupBy(head), ""), Tone.PLAIN if value else Tone.FAINT)


def counted_up_to(found: Bill) -> list[str]:
    """Return the time up to which all hours are counted, and of which groups that is if others are counted further."""
    at: dict[str, int] = {}
    for page in found.books.pages:
        if page.status.watermark:
            counted = parse_timestamp(page.status.watermark)
            at[page.spec.group] = min(at.get(page.spec.group, counted), counted)
    if not at:
        return []
    oldest = min(at.values())
    of = sorted(group for group, time in at.items() if time == oldest)
    behind = f" ({few(of)}; others later)" if len(of) < len(at) else ""
    return [f"{format_local_time(oldest, found.zone)}{behind}"]


def bill_facts(found: Bill) -> list[tuple[str, str]]:
    """Return the groups, the period, and the time up to which hours are counted."""
    whole, zone = covering_period([line.period for line in found.lines]), found.zone
    when = (
        period_name(whole, zone)
        if whole.end is None
        else f"{period_name(whole, zone)} to {format_local_time(whole.end, zone)}"
    )
    facts = [("Groups", f"{found.top} and its subgroups" if found.top else "all groups")]
    facts.append(("Period", f"{'' if whole.end else 'since '}{when}, {zone}"))
    facts += [("Counted up to", text) for text in counted_up_to(found)]
    return facts


def money_facts(found: Bill) -> list[tuple[str, str]]:
    """Return what all priced hours cost, and the prices; nothing without prices."""
    if found.costs is None:
        return []
    prices, rows = found.costs.prices, [row for row in found.rows if found.costs.prices.has(row.resource)]
    whole = found.costs.total(rows)
    said = "unknown: some hours have no price" if whole is None else f"{format_money(whole)} {prices.currency}".strip()
    left_out = sorted({row.resource for row in found.rows if not prices.has(row.resource)})
    without = f", without {', '.join(left_out)}" if left_out else ""
    return [("Total cost", f"{said}{without}"), ("Prices of an hour", prices.text())]
