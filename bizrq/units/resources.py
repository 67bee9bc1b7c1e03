"""This file alone adds and compares amounts of named resources, exactly, in integer nano-units.

It does not know what a name means, where an amount comes from, or which amount is a ceiling.
Nothing here changes its arguments; results have no particular order, and texts are sorted by name.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from bizrq.units import quantity

Resources: TypeAlias = Mapping[str, int]
"""Name to nano-units; an absent name is 0."""

Limits: TypeAlias = Mapping[str, int]
"""Name to nano-units; an absent name has no ceiling."""


def add(a: Resources, b: Resources) -> dict[str, int]:
    """Return a + b, over the names of both."""
    return total((a, b))


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """Return the sum of all parts, over the names of all."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def scale(a: Resources, n: int) -> dict[str, int]:
    """Return a times n."""
    return {name: amount * n for name, amount in a.items()}


def subtract_floor(a: Resources, b: Resources) -> dict[str, int]:
    """Return a - b, never below 0, over the names of a."""
    return {name: max(0, amount - b.get(name, 0)) for name, amount in a.items()}


def larger(a: Resources, b: Resources) -> dict[str, int]:
    """Return per name the larger amount, over the names of both."""
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}


def smaller(a: Resources, b: Resources) -> dict[str, int]:
    """Return per name the smaller amount, over the names of both; absent is 0, so a name that only one has is 0."""
    return {name: min(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}


def percent_of(used: int, hard: int) -> int:
    """Return the used share of a ceiling, rounded up; 100 where that is 0 and anything is used."""
    if hard == 0:
        return 100 if used else 0
    return -(-used * 100 // hard)


def growth(new: Resources, old: Resources) -> dict[str, int]:
    """Return what new needs more than old: increases only, so no name has 0."""
    return {name: more for name in {**new, **old} if (more := new.get(name, 0) - old.get(name, 0)) > 0}


def restrict(a: Resources, names: Collection[str]) -> dict[str, int]:
    """Return a without the names that are not in names."""
    return {name: amount for name, amount in a.items() if name in names}


def nonzero(a: Resources) -> dict[str, int]:
    """Return a without the names that are 0, so that equal amounts compare equal."""
    return {name: amount for name, amount in a.items() if amount}


def parse_resources(texts: Mapping[str, object]) -> dict[str, int]:
    """Return nano-units by name of quantities on the wire. Raises QuantityError with the first bad name."""
    result: dict[str, int] = {}
    for name in sorted(texts):
        try:
            result[name] = quantity.parse(texts[name])
        except quantity.QuantityError as error:
            raise quantity.QuantityError(f"{name}: {error}") from None
    return result


def text_of(a: Resources) -> dict[str, str]:
    """Return canonical text by name, sorted by name."""
    return {name: quantity.text(name, a[name]) for name in sorted(a)}
