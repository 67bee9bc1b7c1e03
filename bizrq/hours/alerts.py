"""When people are told that hours run low, and in which words.

This file alone decides that. It does not know what is spent nor foresees when it is out (`bizrq.hours.forecast`); times
are integer milliseconds, amounts nano-units x hours by `cash/` name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bizrq.hours import periods
from bizrq.units import quantity

_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One budget of hours. `own` is what of `used` the group has spent itself, the rest its children hold.

    `out` is when it is used up at the present burn, None where that is not before the next grant; `burners` are the
    workloads that burn most, with their share in percent.
    """

    name: str
    hard: int
    used: int
    own: int
    out: int | None = None
    burners: Sequence[tuple[str, int]] = ()


def level(standing: Standing, thresholds: Iterable[int]) -> int:
    """The highest threshold that is reached, in percent; 0 for none.

    A budget that is handed down and not spent is not low: its children's are, and tell it.
    """
    if standing.own <= 0:
        return 0
    return max((each for each in thresholds if standing.used * 100 >= standing.hard * each), default=0)


def crossed(
    before: Mapping[str, Standing], now: Iterable[Standing], thresholds: Sequence[int]
) -> list[tuple[Standing, int]]:
    """The budgets that have reached a threshold since, each with the highest: so each is told once in a period."""
    found: list[tuple[Standing, int]] = []
    for standing in now:
        was = before.get(standing.name)
        reached = level(standing, thresholds)
        if reached > (level(was, thresholds) if was is not None else 0):
            found.append((standing, reached))
    return found


def words(standing: Standing, zone: str = "UTC") -> str:
    """How much of a budget is used, when it is out, and by whom."""
    name = standing.name
    spent = f"{quantity.text(name, standing.used)} of {quantity.text(name, standing.hard)}"
    share = f" ({standing.used * 100 // standing.hard}%)" if standing.hard else ""
    text = f"{name}: {spent} used{share}"
    if standing.used >= standing.hard:
        return text
    if standing.out is not None:
        text += f", out at {periods.text(standing.out // _MINUTE * _MINUTE, zone)} at the present burn"
        if standing.burners:
            text += f", by {', '.join(f'{workload} {percent}%' for workload, percent in standing.burners)}"
    return text


def condition(
    standings: Sequence[Standing], thresholds: Sequence[int], zone: str = "UTC", next_grant: str = ""
) -> tuple[bool, str, str]:
    """Whether any budget is low, with the reason and in words: all that are, or those that will be out."""
    low = [each for each in standings if level(each, thresholds)]
    told = low or [each for each in standings if each.out is not None and each.used < each.hard]
    parts = [words(each, zone) for each in sorted(told, key=lambda each: each.name)]
    if not parts:
        return False, "Left", "no budget of hours is low"
    if next_grant:
        parts.append(f"next grant {next_grant}")
    return bool(low), "ThresholdReached" if low else "Left", "; ".join(parts)
