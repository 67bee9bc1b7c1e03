"""Prices of hours, for bills in money.

This file alone decides which price an hour has, and how money is rounded and printed. It stores nothing: prices are
given with each command. Amounts of money are exact fractions until they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from bizrq.figures.errors import BadValue
from bizrq.figures.hours.records import one_hour
from bizrq.hours.bill import BillLine, BillRow, GroupBy, bill_rows
from bizrq.units.names import Catalog, UnknownResource, base_and_model, metered_resource, normalize

_AMOUNT: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of an hour by resource: of one device, one core, or one GiB. `currency` may be ""."""

    hourly: Mapping[str, Fraction]
    texts: Sequence[str]
    currency: str
    catalog: Catalog

    def price_of(self, resource: str, model: str) -> Fraction | None:
        """Return the price of a model, else that of its base; None without one."""
        of_model = next((self.hourly[name] for name in self.hourly if self._split(name) == (resource, model)), None)
        return of_model if of_model is not None else self.hourly.get(resource)

    def _split(self, name: str) -> tuple[str, str]:
        return base_and_model(name, self.catalog) or (name, "")

    def has(self, resource: str) -> bool:
        """Return True if the resource or one of its models has a price."""
        return any(resource in (name, self._split(name)[0]) for name in self.hourly)

    @property
    def money(self) -> str:
        """Return the heading of a column of money."""
        return f"cost {self.currency}".strip()

    def text(self) -> str:
        """Return the prices as text."""
        return ", ".join(f"{text} {self.currency}".strip() for text in self.texts)


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of rows by `key_of`, None where a part of a row has no price."""

    by_row: Mapping[tuple[object, ...], Fraction | None]
    prices: Prices

    def of(self, row: BillRow) -> Fraction | None:
        """Return the cost of a row's own hours; 0 for a row without any."""
        nothing = Fraction(0) if self.prices.has(row.resource) else None
        return self.by_row.get(key_of(row), nothing)

    def total(self, rows: Iterable[BillRow]) -> Fraction | None:
        """Return the exact sum, None if a part of it has no price."""
        costs = [self.of(row) for row in rows]
        known = [cost for cost in costs if cost is not None]
        return sum(known, Fraction(0)) if len(known) == len(costs) else None


def parse_prices(given: Sequence[str], currency: str, catalog: Catalog) -> Prices | None:
    """Return the prices that are given as RESOURCE=AMOUNT, None without any. Raise BadValue."""
    if currency and not _CURRENCY.fullmatch(currency):
        raise BadValue(f"{currency[:80]}: write three capital letters, such as EUR", "currency")
    hourly: dict[str, Fraction] = {}
    texts: list[str] = []
    for text in given:
        name, equals, amount = text.partition("=")
        if not equals or not _AMOUNT.fullmatch(amount):
            raise BadValue(
                f"{text[:120]}: write RESOURCE=AMOUNT, such as requests.nvidia.com/gpu=2.5: at most 12 digits before a "
                "decimal point and 9 after it",
                "price",
            )
        try:
            resource = normalize(metered_resource(name), catalog)
        except UnknownResource as error:
            raise BadValue(f"{text[:120]}: {error}", "price") from None
        if resource in hourly:
            raise BadValue(f"{text[:120]}: {resource} has a price already", "price")
        hourly[resource] = Fraction(amount)
        texts.append(f"{resource} {amount}")
    return Prices(hourly, texts, currency, catalog) if hourly else None


def costs_of(lines: Iterable[BillLine], by: Collection[GroupBy], prices: Prices) -> Costs:
    """Return the cost of each row of a bill by these columns: each model's hours at its own price."""
    costs: dict[tuple[object, ...], Fraction | None] = {}
    for row in bill_rows(lines, {*by, GroupBy.MODEL}, catalog=prices.catalog):
        price = prices.price_of(row.resource, row.model or "")
        key = key_of(row if GroupBy.MODEL in by else row._replace(model=None))
        before = costs.get(key, Fraction(0))
        costs[key] = None if price is None or before is None else before + price * row.amount / one_hour(row.resource)
    return Costs(costs, prices)


def price_warnings(lines: Sequence[BillLine], prices: Prices) -> list[str]:
    """Return what is wrong with the prices for these lines: hours without one, and prices without hours."""
    there = {(row.resource, row.model or "") for row in bill_rows(lines, {GroupBy.MODEL}, catalog=prices.catalog)}
    missing = sorted(
        f"{resource}.{model}" if model else resource
        for resource, model in there
        if prices.has(resource) and prices.price_of(resource, model) is None
    )
    bases = {resource for resource, _ in there}
    unused = [
        name
        for name in prices.hourly
        if not (name in bases or ((split := base_and_model(name, prices.catalog)) is not None and split in there))
    ]
    said = [f"no price for hours of {name}: what they cost is unknown" for name in missing]
    return said + [f"there are no hours of {name}: its price is not used" for name in unused]


def key_of(row: BillRow) -> tuple[object, ...]:
    """Return what identifies a row of a bill."""
    return row[:-2]


def format_money(cost: Fraction | None) -> str:
    """Return money with two decimals, rounded to the nearest, half away from 0; `?` for an unknown cost."""
    if cost is None:
        return "?"
    hundredths = _nearest(cost * 100)
    whole, rest = divmod(abs(hundredths), 100)
    return f"{'-' if hundredths < 0 else ''}{whole}.{rest:02d}"


def micros(cost: Fraction | None) -> int | None:
    """Return money in millionths, rounded to the nearest."""
    return None if cost is None else _nearest(cost * 1_000_000)


def _nearest(amount: Fraction) -> int:
    """Return the nearest whole number, half away from 0."""
    rounded = (2 * abs(amount.numerator) + amount.denominator) // (2 * amount.denominator)
    return -rounded if amount < 0 else rounded
