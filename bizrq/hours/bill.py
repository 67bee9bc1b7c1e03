"""Who spent which hours when, added up by whatever a bill is made out by.

This file alone decides what stands in a row of a bill. Amounts are nano-units x milliseconds and are only ever added:
whoever shows them rounds. It knows no objects and no clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from bizrq.hours.periods import Period
from bizrq.units.names import Catalog, base_and_model
from bizrq.units.resources import Resources


class GroupBy(StrEnum):
    """What a row is of."""

    PERIOD = "period"
    GROUP = "group"
    NAMESPACE = "namespace"
    WORKLOAD = "workload"
    MODEL = "model"


class BillLine(NamedTuple):
    """What a workload cost a group in one period; `workload` says what it is where it is none: a correction, say."""

    group: str
    period: Period
    namespace: str
    workload: str
    amounts: Resources


class BillRow(NamedTuple):
    """One resource of what the bill is made out by; None what it is not made out by.

    `model` is "" for what no model has. `span` is from the first start to the last end of what is in it.
    """

    resource: str
    period: Period | None
    group: str | None
    namespace: str | None
    workload: str | None
    model: str | None
    amount: int
    span: Period


def bill_rows(lines: Iterable[BillLine], by: Collection[GroupBy], *, catalog: Catalog) -> list[BillRow]:
    """The lines added up: a resource's rows together, then by period, by group, the largest first.

    A model's hours are in its base's row, or in one of their own where the bill is by model: nothing stands in two
    rows, so that the rows of a resource add up to what was spent of it.
    """
    sums: dict[tuple[object, ...], int] = {}
    spans: dict[tuple[object, ...], list[Period]] = {}
    for line in lines:
        for (resource, model), amount in split_by_model(line.amounts, catalog).items():
            whole = (line.period, line.group, line.namespace, line.workload, model)
            key = (resource, *(value if each in by else None for each, value in zip(GroupBy, whole, strict=True)))
            sums[key] = sums.get(key, 0) + amount
            spans.setdefault(key, []).append(line.period)
    found = [BillRow(*key, amount, covering_period(spans[key])) for key, amount in sums.items()]  # type: ignore[arg-type]
    return sorted(found, key=_order)


def split_by_model(amounts: Resources, catalog: Catalog) -> dict[tuple[str, str], int]:
    """Amounts by base and model, "" what no model has: those of a base add up to the base's amount.

    Of a model without an amount of its base, the base is what the model has.
    """
    found: dict[tuple[str, str], int] = {}
    for name, amount in amounts.items():
        base, model = base_and_model(name, catalog) or (name, "")
        found[base, model] = found.get((base, model), 0) + amount
        if model and base in amounts:
            found[base, ""] = found.get((base, ""), 0) - amount
    return {key: amount for key, amount in found.items() if amount}


def rolled_up(lines: Iterable[BillLine], above: Callable[[str], Iterable[str]]) -> list[BillLine]:
    """The lines of each group and, again, of each group above it: rows by group then have what is below in them."""
    return [line._replace(group=group) for line in lines for group in (line.group, *above(line.group))]


def totals(found: Iterable[BillRow]) -> dict[str, int]:
    """What rows add up to, by resource."""
    sums: dict[str, int] = {}
    for row in found:
        sums[row.resource] = sums.get(row.resource, 0) + row.amount
    return sums


def covering_period(periods: Collection[Period]) -> Period:
    """From the first start to the last end; of nothing, all time."""
    starts, ends = [p.start for p in periods], [p.end for p in periods]
    if not periods:
        return Period()
    return Period(
        None if None in starts else min(s for s in starts if s is not None),
        None if None in ends else max(e for e in ends if e is not None),
    )


def _order(row: BillRow) -> tuple[object, ...]:
    start, end = row.period or (None, None)
    return (
        row.resource,
        start is not None,
        start or 0,
        end is None,
        end or 0,
        row.group or "",
        -row.amount,
        row.namespace or "",
        row.workload or "",
        row.model or "",
    )
