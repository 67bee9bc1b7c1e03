"""The outlook of each budget of hours, from records and groups as they are now.

This file alone decides what a forecast is made of; `bizrq.hours.forecast` predicts when a budget is exhausted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from bizrq.api import hours as wire
from bizrq.api.hours import CardHours
from bizrq.figures.errors import NotThere
from bizrq.figures.groups.view import ResourceView, TreeView, canonical_name, tree_view
from bizrq.figures.hours.records import (
    HoursRecords,
    format_hours,
    format_left,
    format_local_time,
    named_hours,
    no_budget,
    period_of,
    unit,
)
from bizrq.figures.words import alternatives
from bizrq.hours.bill import BillLine
from bizrq.hours.forecast import HORIZON, Budget, time_to_exhaustion, top_consumers
from bizrq.hours.metering import HOUR
from bizrq.hours.periods import Period
from bizrq.units import quantity
from bizrq.units.base import seconds, seconds_unit
from bizrq.units.names import Catalog, cash_name, is_cash, metered_resource
from bizrq.units.times import format_timestamp, parse_timestamp


@dataclass(frozen=True, slots=True)
class BudgetOutlook:
    """One budget. `exhausted_at` is None if that is not before its period ends. Times are in milliseconds."""

    group: str
    resource: str
    budget: Budget
    counted: int
    until: int | None
    exhausted_at: int | None
    workloads: tuple[tuple[str, int], ...]
    zone: str
    #: False where there may be subgroups, and so burn, that the person may not read.
    is_complete: bool = True

    @property
    def used(self) -> int:
        return self.budget.used(0)

    @property
    def spent(self) -> int:
        """Return what the group's own workloads have used."""
        return max(0, self.budget.spent)

    @property
    def granted(self) -> int:
        """Return what its children hold: their budgets, or what they have used if that is more."""
        return self.used - self.spent

    @property
    def left(self) -> int:
        return self.budget.hard - self.used

    @property
    def projected(self) -> int:
        """Return the projected usage at the end of the period, or in thirty days if it has no end."""
        end = self.counted + 30 * 86_400_000 if self.until is None else self.until
        return self.budget.used(max(0, end - self.counted))


class _OpenPeriod:
    """The open period of a group's record: amounts by resource, burns by resource and workload."""

    def __init__(self) -> None:
        self.counted: int | None = None
        self.period = Period()
        self.spent: dict[str, int] = {}
        self.burns: dict[str, dict[str, int]] = {}

    def add(self, page: CardHours) -> None:
        status = page.status
        if status.watermark:
            watermark = parse_timestamp(status.watermark)
            self.counted = watermark if self.counted is None else min(self.counted, watermark)
        self.period = period_of(status.open.start, status.open.end)
        for name, text in status.open.carried.items():
            self._spend(metered_resource(name), -quantity.parse_sum(text) * HOUR)
        for text in status.running:
            running = wire.parse_running(text)
            for name, amount in running.cost.items():
                burns = self.burns.setdefault(name, {})
                burns[running.workload] = burns.get(running.workload, 0) + amount * len(running.since)

    def spend(self, line: BillLine) -> None:
        for name, amount in line.amounts.items():
            self._spend(name, amount)

    def _spend(self, name: str, amount: int) -> None:
        self.spent[name] = self.spent.get(name, 0) + amount


def budget_outlooks(records: HoursRecords, resource: str | None = None) -> list[BudgetOutlook]:
    """Return every budget, in the order of groups and resources. Raise NoAnswer."""
    accounts = {name: _OpenPeriod() for name in records.groups}
    for page in records.pages:
        if page.spec.group in accounts:
            accounts[page.spec.group].add(page)
    for line in records.open_lines():
        if line.group in accounts:
            accounts[line.group].spend(line)
    tree = tree_view(records.groups.values(), records.catalog)
    shown = _shown({metered_resource(f.resource) for f in _budgets(tree)}, resource, records.catalog)

    @cache
    def budget(group: str, name: str) -> Budget:
        view, account = tree.groups[group], accounts[group]
        figures = next((f for f in view.resources if f.resource == cash_name(name)), None)
        burn = sum(account.burns.get(name, {}).values())
        children = [budget(child, name) for child in view.children]
        if not records.is_complete and figures is not None:
            # What the status says of children that may not be read.
            unseen = (figures.granted or 0) * HOUR - sum(max(child.hard, child.used(0)) for child in children)
            children.append(Budget(max(0, unseen), 0, 0))
        hard = figures.hard * HOUR if figures is not None else 0
        return Budget(hard, account.spent.get(name, 0), burn, children)

    # A group without a record is in the period of its tree.
    of_tree: dict[str, _OpenPeriod] = {}
    for name, account in accounts.items():
        known = of_tree.setdefault(records.root(name), account)
        if (account.counted or 0) > (known.counted or 0):
            of_tree[records.root(name)] = account
    found: list[BudgetOutlook] = []
    for view in (row.view for row in tree.in_order()):
        account = accounts[view.name]
        known = account if account.counted is not None else of_tree[records.root(view.name)]
        counted = known.counted or 0
        until = records.until(view.name, known.period)
        mine_of = (metered_resource(f.resource) for f in view.resources if is_cash(f.resource))
        for name in (each for each in mine_of if each in shown):
            mine = budget(view.name, name)
            out = time_to_exhaustion(mine, HORIZON if until is None else max(1, until - counted))
            workloads = tuple(top_consumers(account.burns.get(name, {})))
            at = None if out is None or not counted else counted + out
            zone, is_complete = records.zone(view.name), not records.unread
            found.append(BudgetOutlook(view.name, name, mine, counted, until, at, workloads, zone, is_complete))
    return found


def _budgets(tree: TreeView) -> Iterator[ResourceView]:
    return (f for view in tree.groups.values() for f in view.resources if is_cash(f.resource))


def _shown(there: Collection[str], resource: str | None, catalog: Catalog) -> Collection[str]:
    """Return the metered resources to show, of those that have a budget. Raise NotThere where a name is for none."""
    wanted = there if resource is None else named_hours(resource, there, catalog)
    if resource is not None and there and not wanted:
        said = cash_name(metered_resource(canonical_name(resource, catalog)))
        others = alternatives(said, sorted(map(cash_name, there)))
        raise NotThere(f"no group has a ceiling for {said}; {others}")
    return wanted


def format_exhaustion(each: BudgetOutlook) -> str:
    """Return when a budget is exhausted, as text."""
    if each.left <= 0:
        own = each.budget.spent > 0 or each.budget.burn > 0
        if not own and not each.granted:
            return "no hours"
        return "exhausted" if own else "fully granted"
    if each.exhausted_at is not None:
        minute = each.exhausted_at // 60_000 * 60_000
        sooner = "" if each.is_complete else ", or before"
        return f"{format_local_time(minute, each.zone)}, in {_long(each.exhausted_at - each.counted)}{sooner}"
    if not each.is_complete:
        return "unknown"
    if each.until is not None:
        return f"not before {format_local_time(each.until, each.zone)}"
    return "not for years" if each.budget.total_burn else "never: nothing runs"


def _long(length: int) -> str:
    hours = length // 3_600_000
    return f"{length // 60_000} min" if hours < 2 else f"{hours} h" if hours < 72 else f"{hours // 24} days"


def format_top_consumers(each: BudgetOutlook) -> str:
    """Return the workloads that burn most, as text."""
    return ", ".join(f"{name} {percent}%" for name, percent in each.workloads)


def outlooks_below(records: HoursRecords, top: str | None, resource: str | None = None) -> list[BudgetOutlook]:
    """Return the budgets of a group and the groups below it, of all without one. Raise NoAnswer."""
    every = budget_outlooks(records, resource)
    return [each for each in every if top in (None, each.group, *records.ancestors(each.group))]


def why_empty(records: HoursRecords, top: str | None, resource: str | None = None) -> str:
    """Return why there is no budget to forecast, and what to do."""
    if records.unread:
        return "No group that you may read has a budget of hours."
    said = no_budget(top, resource or "hours")
    return said[0].upper() + said[1:]


#: The columns of a forecast for programs.
FORECAST = (
    *("group", "resource", "unit", "budget", "used", "spent", "granted", "left", "burnPerHour", "subtreeBurnPerHour"),
    *("counted", "until", "exhausted", "workloads"),
)


def plain_outlook(each: BudgetOutlook) -> dict[str, Any]:
    """Return a budget for programs, by the columns of FORECAST; amounts are whole numbers of `unit`."""
    name, budget = each.resource, each.budget
    hard, used = seconds(name, budget.hard), seconds(name, each.used)
    return {
        "group": each.group,
        "resource": each.resource,
        "unit": seconds_unit(name),
        "budget": hard,
        "used": used,
        "spent": (spent := seconds(name, each.spent)),
        "granted": used - spent,
        "left": hard - used,
        "burnPerHour": seconds(name, budget.burn * HOUR),
        "subtreeBurnPerHour": seconds(name, budget.total_burn * HOUR) if each.is_complete else None,
        "counted": format_timestamp(each.counted) if each.counted else None,
        "until": None if each.until is None else format_timestamp(each.until),
        "exhausted": None if each.exhausted_at is None else format_timestamp(each.exhausted_at),
        "workloads": [{"workload": name, "percent": percent} for name, percent in each.workloads],
    }


def outlook_texts(each: BudgetOutlook) -> dict[str, str]:
    """Return a budget as text, by heading; `workloads` are "" where nothing runs."""
    name, budget = each.resource, each.budget
    return {
        "group": each.group,
        "resource": name,
        "budget": format_hours(name, budget.hard),
        "spent": format_hours(name, each.spent),
        "granted": format_hours(name, each.granted),
        "left": format_left(name, budget.hard, each.used),
        "burn/h": format_hours(name, budget.total_burn * HOUR) if each.is_complete else "?",
        "own burn/h": format_hours(name, budget.burn * HOUR),
        "exhausted": format_exhaustion(each),
        "unit": unit(name),
        "until": "no end" if each.until is None else format_local_time(each.until, each.zone),
        "workloads": format_top_consumers(each),
    }
