"""The rows of a bill: spent hours, summed by period, group, namespace, workload or model.

This file alone decides what a row contains. Amounts are nano-units x milliseconds and are only added: rounding is left
to the output. It knows no objects and no clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from bizrq.hours.periods import Period
from bizrq.units.names import Catalog, base_and_model
from bizrq.units.resources import Resources


class GroupBy(StrEnum):
    """A column that rows are grouped by."""

    PERIOD = "period"
    GROUP = "group"
    NAMESPACE = "namespace"
    WORKLOAD = "workload"
    MODEL = "model"


class BillLine(NamedTuple):
    """The cost of a workload in one period of a group; `workload` also names what is none, such as a correction."""

    group: str
    period: Period
    namespace: str
    workload: str
    amounts: Resources


class BillRow(NamedTuple):
    """One resource's sum; columns that the bill is not grouped by are None.

    `model` is "" for hours without a model. `span` is from the first start to the last end of the periods in it.
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
    """Return the rows: by resource, then by period, by group, the largest first.

    A model's hours are in its base's row, or in a row of their own where the bill is by model. Nothing is in two rows,
    so the rows of a resource add up to what was spent of it.
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
    """Return amounts by base and model ("" for none): those of a base add up to the base's amount.

    Where a model's base has no amount, the models' amounts are the base's.
    """
    found: dict[tuple[str, str], int] = {}
    for name, amount in amounts.items():
        base, model = base_and_model(name, catalog) or (name, "")
        found[base, model] = found.get((base, model), 0) + amount
        if model and base in amounts:
            found[base, ""] = found.get((base, ""), 0) - amount
    return {key: amount for key, amount in found.items() if amount}


def rolled_up(lines: Iterable[BillLine], above: Callable[[str], Iterable[str]]) -> list[BillLine]:
    """Return the lines of each group, repeated for each group above it: rows by group then include their subtree."""
    return [line._replace(group=group) for line in lines for group in (line.group, *above(line.group))]


def totals(found: Iterable[BillRow]) -> dict[str, int]:
    """Return the sum of the rows, by resource."""
    sums: dict[str, int] = {}
    for row in found:
        sums[row.resource] = sums.get(row.resource, 0) + row.amount
    return sums


def covering_period(periods: Collection[Period]) -> Period:
    """Return the period from the first start to the last end; all time for no periods."""
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
