"""The terms of a group's budget of hours: periods, rollover, safe mode and alert thresholds.

This file alone decides what `spec.cash` means. It does not know the group's other fields, nor what is spent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from bizrq.hours.periods import Schedule
from bizrq.units.names import cash_name, is_cash
from bizrq.units.resources import Limits, Resources

HOUR = 3_600_000
MODES = ("open", "safe")
THRESHOLDS = (80, 100)
#: Pods of a workload may be scheduled so long before it says that it has begun, and it began with them. Milliseconds.
EARLY = 30_000

_FRACTION = re.compile(r"(100|[1-9][0-9]?)%", re.ASCII)
_SPAN = re.compile(r"(?=.)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)
_SECONDS = (86_400, 3_600, 60, 1)


class BudgetTermsError(ValueError):
    """A `spec.cash` that cannot be read. The message is one line that begins with the field."""


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """The terms of a budget. `rollover` is the percentage carried over, 0 for none, `cap` its most by `cash/` name.

    `max_run_time` is in milliseconds, None for no bound; `thresholds` are percents, sorted.
    """

    schedule: Schedule = field(default_factory=Schedule)
    rollover: int = 0
    cap: Resources = field(default_factory=dict)
    safe: bool = False
    max_run_time: int | None = None
    thresholds: tuple[int, ...] = THRESHOLDS


DEFAULT_TERMS = BudgetTerms()


def parse_terms(
    *,
    schedule: Schedule,
    fraction: str | None,
    cap: Resources,
    mode: str,
    max_run_time: str,
    thresholds: Iterable[int] | None,
) -> BudgetTerms:
    """Return the terms of the fields of `spec.cash`, all as stored but `cap`; raises BudgetTermsError."""
    if fraction and not _FRACTION.fullmatch(fraction):
        raise BudgetTermsError(f"rollover.fraction: {fraction[:80]!r} is none: write 1% to 100%")
    if mode and mode not in MODES:
        raise BudgetTermsError(f"mode: {mode[:80]!r} is none of {', '.join(MODES)}")
    if max_run_time and mode != "safe":
        raise BudgetTermsError("maxRunTime: bounds workloads in safe mode: write mode: safe with it")
    percents = tuple(sorted(set(THRESHOLDS if thresholds is None else thresholds)))
    if any(not 1 <= percent <= 1000 for percent in percents):
        raise BudgetTermsError("thresholds: write percents from 1 to 1000")
    return BudgetTerms(
        schedule,
        rollover=0 if fraction is None else int((fraction or "100%").rstrip("%")),
        cap=cap,
        safe=mode == "safe",
        max_run_time=parse_duration(max_run_time) if max_run_time else None,
        thresholds=percents,
    )


def parse_duration(text: str) -> int:
    """Return a duration such as `1d12h` in milliseconds, above 0; raises BudgetTermsError."""
    found = _SPAN.fullmatch(text)
    seconds = sum(int(n or 0) * unit for n, unit in zip(found.groups(), _SECONDS, strict=True)) if found else 0
    if not seconds:
        raise BudgetTermsError(f"maxRunTime: {text[:80]!r} is no time to run: write one like 12h, 90m or 1d12h")
    return seconds * 1000


def format_duration(length: int) -> str:
    """Return milliseconds as `parse_duration` reads them, rounded up to the second."""
    rest, words = -(-length // 1000), []
    for unit, letter in zip(_SECONDS, "dhms", strict=True):
        number, rest = divmod(rest, unit)
        words += [f"{number}{letter}"] if number else []
    return "".join(words) or "0s"


def exact_cost(demand: Resources, run: int) -> dict[str, int]:
    """Return what a demand costs in `run` milliseconds: nano-units x milliseconds by `cash/` name."""
    return {cash_name(name): amount * run for name, amount in demand.items() if amount}


def in_hours(exact: Resources) -> dict[str, int]:
    """Return exact costs in nano-units x hours, rounded up."""
    return {name: -(-amount // HOUR) for name, amount in exact.items()}


def max_cost(demand: Resources, run: int) -> dict[str, int]:
    """Return the most that a demand costs in `run` milliseconds: nano-units x hours by `cash/` name, rounded up."""
    return in_hours(exact_cost(demand, run))


def run_start(reported: int, scheduled: int | None) -> int:
    """Return the start of a run in milliseconds: its reported start, or a moment earlier if a pod was scheduled then.

    Hours are charged by pod, so pods that were scheduled a moment before the run count from then.
    """
    return reported if scheduled is None else max(min(reported, scheduled), reported - EARLY)


def remaining_commitment(demand: Resources, run: int, ran: int) -> dict[str, int]:
    """Return what a run may still cost after `ran` milliseconds: nano-units x milliseconds by `cash/` name."""
    return exact_cost(demand, min(run, max(0, run - ran)))


def carried_over(terms: BudgetTerms, hard: Limits, used: Resources) -> dict[str, int]:
    """Return what a closed period carries over, of what neither the group nor its children have taken.

    `used` is that of the closed period by `cash/` name, in the unit of `hard`, without what was carried into it.
    """
    over: dict[str, int] = {}
    for name, ceiling in hard.items():
        if is_cash(name):
            left = max(0, ceiling - used.get(name, 0)) * terms.rollover // 100
            over[name] = min(left, terms.cap.get(name, left))
    return {name: amount for name, amount in sorted(over.items()) if amount}
