"""On which terms a group's hours are granted: when anew, what comes over, how sure an admission is, when to tell.

This file alone decides what `spec.cash` means. It does not know the group's other fields, nor what is spent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from bizrq.hours.periods import Schedule
from bizrq.units.names import cash, is_cash
from bizrq.units.resources import Limits, Resources

HOUR = 3_600_000
MODES = ("open", "safe")
THRESHOLDS = (80, 100)
#: Pods of a workload may be scheduled so long before it says that it has begun, and it began with them. Milliseconds.
EARLY = 30_000

_FRACTION = re.compile(r"(100|[1-9][0-9]?)%", re.ASCII)
_SPAN = re.compile(r"(?=.)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)
_SECONDS = (86_400, 3_600, 60, 1)


class TermsError(ValueError):
    """What `spec.cash` cannot say. The message is one line that begins with the field."""


@dataclass(frozen=True, slots=True)
class Terms:
    """`rollover` is the percentage that comes over, 0 for none, and `cap` the most of it by `cash/` name.

    `max_run_time` is in milliseconds, None for no bound; `thresholds` are percents, sorted.
    """

    schedule: Schedule = field(default_factory=Schedule)
    rollover: int = 0
    cap: Resources = field(default_factory=dict)
    safe: bool = False
    max_run_time: int | None = None
    thresholds: tuple[int, ...] = THRESHOLDS


DEFAULT = Terms()


def read(
    *,
    schedule: Schedule,
    fraction: str | None,
    cap: Resources,
    mode: str,
    max_run_time: str,
    thresholds: Iterable[int] | None,
) -> Terms:
    """The terms as `spec.cash` says them, each field as it stands there but `cap`; raises TermsError."""
    if fraction and not _FRACTION.fullmatch(fraction):
        raise TermsError(f"rollover.fraction: {fraction[:80]!r} is none: write 1% to 100%")
    if mode and mode not in MODES:
        raise TermsError(f"mode: {mode[:80]!r} is none of {', '.join(MODES)}")
    if max_run_time and mode != "safe":
        raise TermsError("maxRunTime: bounds workloads in safe mode: write mode: safe with it")
    percents = tuple(sorted(set(THRESHOLDS if thresholds is None else thresholds)))
    if any(not 1 <= percent <= 1000 for percent in percents):
        raise TermsError("thresholds: write percents from 1 to 1000")
    return Terms(
        schedule,
        rollover=0 if fraction is None else int((fraction or "100%").rstrip("%")),
        cap=cap,
        safe=mode == "safe",
        max_run_time=span(max_run_time) if max_run_time else None,
        thresholds=percents,
    )


def span(text: str) -> int:
    """`1d12h` in milliseconds, more than none; raises TermsError."""
    found = _SPAN.fullmatch(text)
    seconds = sum(int(n or 0) * unit for n, unit in zip(found.groups(), _SECONDS, strict=True)) if found else 0
    if not seconds:
        raise TermsError(f"maxRunTime: {text[:80]!r} is no time to run: write one like 12h, 90m or 1d12h")
    return seconds * 1000


def span_text(length: int) -> str:
    """Milliseconds as `span` reads them, to the second above."""
    rest, words = -(-length // 1000), []
    for unit, letter in zip(_SECONDS, "dhms", strict=True):
        number, rest = divmod(rest, unit)
        words += [f"{number}{letter}"] if number else []
    return "".join(words) or "0s"


def possible(demand: Resources, run: int) -> dict[str, int]:
    """What a demand costs at most that runs for so many milliseconds: hours by `cash/` name, rounded up."""
    return {cash(name): -(-amount * run // HOUR) for name, amount in demand.items() if amount}


def began(told: int, scheduled: int | None) -> int:
    """Since when a run counts that began at `told` by its own word, and whose first pod was scheduled then.

    Hours are of pods: those that were there a moment earlier cost that much, and what just fits, fits beside it.
    """
    return told if scheduled is None else max(min(told, scheduled), told - EARLY)


def lien(demand: Resources, run: int, ran: int) -> dict[str, int]:
    """What it may still cost of that which has run so long already."""
    return possible(demand, min(run, max(0, run - ran)))


def carried(terms: Terms, hard: Limits, used: Resources) -> dict[str, int]:
    """What comes over of a period that closes: of what neither the group nor its children's budgets have taken.

    `used` is the closed period's by `cash/` name, in the unit of `hard`; what came over to that period is not in it.
    """
    over: dict[str, int] = {}
    for name, ceiling in hard.items():
        if is_cash(name):
            left = max(0, ceiling - used.get(name, 0)) * terms.rollover // 100
            over[name] = min(left, terms.cap.get(name, left))
    return {name: amount for name, amount in sorted(over.items()) if amount}
