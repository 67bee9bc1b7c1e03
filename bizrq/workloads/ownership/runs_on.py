"""A pod that is gone from the API while its node may still run it, and its line in the record of a group.

This file alone decides how such a line reads, and how many a record may have. Times are integer milliseconds since
1970, amounts integer nano-units by resource name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bizrq.units import quantity
from bizrq.units.resources import Resources, nonzero
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp

#: As many lines as a record may have. Of more, those that end first are known to the running controller alone.
MAX_LINES = 1_000
#: The last second that RFC 3339 can write; a grace may be longer.
LAST = 253_402_300_799_000
_VERSION, _UNTIL = "v1", "until="
_WORDS = 4


@dataclass(frozen=True, slots=True)
class RunsOn:
    """A pod that its group pays for `until` its grace is over. `pod` is NAMESPACE/NAME, `place` that of its payer."""

    pod: str
    place: str
    until: int
    cost: Resources = field(default_factory=dict)


class RunsOnUnreadable(ValueError):
    """A stored line that cannot be counted with; says which and why."""


def runs_on_line(uid: str, found: RunsOn) -> str:
    """Return `v1 UID until=TIME NAMESPACE/NAME KIND/NAMESPACE/NAME [RESOURCE=AMOUNT]…`."""
    costs = (f"{name}={quantity.text(name, amount)}" for name, amount in sorted(nonzero(found.cost).items()))
    return " ".join((_VERSION, uid, f"{_UNTIL}{format_timestamp(found.until)}", found.pod, found.place, *costs))


def parse_runs_on(line: str) -> tuple[str, RunsOn]:
    """Return the uid of a line and its pod; raises RunsOnUnreadable."""
    words = line.split(" ")
    if len(words) <= _WORDS or words[0] != _VERSION or not words[1] or not words[2].startswith(_UNTIL):
        raise RunsOnUnreadable(f"{line[:120]!r} is no line: write v1 UID until=TIME POD PLACE RESOURCE=AMOUNT")
    cost: dict[str, int] = {}
    try:
        until = parse_timestamp(words[2].removeprefix(_UNTIL))
        for word in words[_WORDS + 1 :]:
            name, equals, amount = word.partition("=")
            if not (name and equals) or name in cost:
                raise RunsOnUnreadable(f"{line[:120]!r}: {word[:80]!r} is no RESOURCE=AMOUNT")
            cost[name] = quantity.parse_sum(amount)
    except (TimestampError, quantity.QuantityError) as error:
        raise RunsOnUnreadable(f"{line[:120]!r}: {error}") from None
    return words[1], RunsOn(words[3], words[4], until, cost)


def runs_on_lines(found: Mapping[str, RunsOn]) -> list[str]:
    """Return the lines of pods, sorted."""
    return sorted(runs_on_line(uid, pod) for uid, pod in found.items())


def latest(found: Mapping[str, RunsOn]) -> Mapping[str, RunsOn]:
    """Return the pods that a record has lines of: of too many, those that end last."""
    if len(found) <= MAX_LINES:
        return found
    return dict(sorted(found.items(), key=lambda each: (-each[1].until, each[0]))[:MAX_LINES])


def readable(lines: Iterable[str]) -> dict[str, RunsOn]:
    """Return the lines that can be read, by uid."""
    found: dict[str, RunsOn] = {}
    for line in lines:
        try:
            uid, pod = parse_runs_on(line)
        except RunsOnUnreadable:
            continue  # `problem_of` names it.
        found.setdefault(uid, pod)
    return found


def problem_of(lines: Iterable[str]) -> str:
    """Return why lines cannot be trusted as a whole; "" if they can."""
    for line in lines:
        try:
            parse_runs_on(line)
        except RunsOnUnreadable as error:
            return str(error)
    return ""
