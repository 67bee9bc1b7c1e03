"""Alerts of hours that run low.

This file alone decides when an alert is due, and its words. It knows no records, and leaves the forecast to
`bizrq.hours.forecast`. Times are integer milliseconds, amounts nano-units x hours by `cash/` name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bizrq.hours import periods
from bizrq.units import quantity

_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class BudgetLevel:
    """One budget of hours. `self_used` is what the group has spent itself; its children hold the rest of `used`.

    `exhausted_at` is when it is used up at the present burn, None where that is not before the next grant;
    `top_consumers` are the workloads that burn most, with their share in percent.
    """

    name: str
    hard: int
    used: int
    self_used: int
    exhausted_at: int | None = None
    top_consumers: Sequence[tuple[str, int]] = ()


def threshold_reached(level: BudgetLevel, thresholds: Iterable[int]) -> int:
    """Return the highest threshold that is reached, in percent; 0 for none.

    A budget that is handed down and not spent is not low: the alerts are those of its children.
    """
    if level.self_used <= 0:
        return 0
    return max((each for each in thresholds if level.used * 100 >= level.hard * each), default=0)


def crossed(
    before: Mapping[str, BudgetLevel], now: Iterable[BudgetLevel], thresholds: Sequence[int]
) -> list[tuple[BudgetLevel, int]]:
    """Return the budgets that newly reached a threshold, with the highest: one alert per threshold and period."""
    found: list[tuple[BudgetLevel, int]] = []
    for level in now:
        was = before.get(level.name)
        reached = threshold_reached(level, thresholds)
        if reached > (threshold_reached(was, thresholds) if was is not None else 0):
            found.append((level, reached))
    return found


def budget_message(level: BudgetLevel, zone: str = "UTC") -> str:
    """Return a text: how much of a budget is used, when it is exhausted, and the top consumers."""
    name = level.name
    spent = f"{quantity.text(name, level.used)} of {quantity.text(name, level.hard)}"
    share = f" ({level.used * 100 // level.hard}%)" if level.hard else ""
    text = f"{name}: {spent} used{share}"
    if level.used >= level.hard:
        return text
    if level.exhausted_at is not None:
        text += f", out at {periods.format_time(level.exhausted_at // _MINUTE * _MINUTE, zone)} at the present burn"
        if level.top_consumers:
            text += f", by {', '.join(f'{workload} {percent}%' for workload, percent in level.top_consumers)}"
    return text


def low_condition(
    levels: Sequence[BudgetLevel], thresholds: Sequence[int], zone: str = "UTC", next_grant: str = ""
) -> tuple[bool, str, str]:
    """Return the condition of low budgets: status, reason and message with all that are low or will be exhausted."""
    low = [each for each in levels if threshold_reached(each, thresholds)]
    listed = low or [each for each in levels if each.exhausted_at is not None and each.used < each.hard]
    parts = [budget_message(each, zone) for each in sorted(listed, key=lambda each: each.name)]
    if not parts:
        return False, "Left", "no budget of hours is low"
    if next_grant:
        parts.append(f"next grant {next_grant}")
    return bool(low), "ThresholdReached" if low else "Left", "; ".join(parts)
