"""The bounds of a record of hours: its lines, and the amounts in them.

This file alone decides what is folded beyond the bounds: the smallest lines first, and no amount is lost. It does not
know what a line is for; amounts are integers by resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bizrq.units.resources import Resources
from bizrq.units.resources import total as sum_of

MAX_LINES = 300
MAX_INFERRED = 100
MAX_AMOUNTS = 3_000
#: The name of lines that others are folded into; a namespace may follow.
OTHERS = "others"

_Start = TypeVar("_Start")


def compact_settled(lines: Mapping[str, Resources], running: set[str]) -> Mapping[str, Resources]:
    """Return the lines of workloads, folded where there are too many: first those that are not `running`."""
    return _fold(lines, running) if len(lines) > MAX_LINES or _weight(lines.values()) > MAX_AMOUNTS else lines


def compact_late(lines: Mapping[tuple[_Start, str], Resources]) -> Mapping[tuple[_Start, str], Resources]:
    """Return late amounts by period and workload, folded by period where there are too many."""
    if len(lines) <= MAX_INFERRED and _weight(lines.values()) <= MAX_AMOUNTS:
        return lines
    folded: dict[tuple[_Start, str], Resources] = {}
    for (start, _), amounts in lines.items():
        folded[start, f"{OTHERS}//"] = sum_of([folded.get((start, f"{OTHERS}//"), {}), amounts])
    return folded


def kept_count(lines: Sequence[Resources], most: int) -> int:
    """Return how many of the last items are kept: at least one, at most `most`, and as many as there is room for."""
    kept, weight = 0, 0
    for amounts in reversed(lines[-most:]):
        weight += len(amounts)
        if kept and weight > MAX_AMOUNTS:
            break
        kept += 1
    return kept


def _weight(lines: Iterable[Resources]) -> int:
    return sum(map(len, lines))


def _fold(lines: Mapping[str, Resources], running: set[str]) -> dict[str, Resources]:
    whole = sum_of(lines.values())

    def share(workload: str) -> int:
        """Return the largest of its shares, in millionths."""
        return max((abs(n) * 10**6 // (abs(whole[name]) or 1) for name, n in found[workload].items()), default=0)

    found, weight = dict(lines), _weight(lines.values())
    for into in (_namespace_line, lambda _: f"{OTHERS}//"):
        foldable = [workload for workload in found if into(workload) != workload]
        for workload in sorted(foldable, key=lambda each: (each in running, share(each), each)):
            # A third less than the most: not every look folds again.
            if len(found) <= MAX_LINES * 2 // 3 and weight <= MAX_AMOUNTS * 2 // 3:
                return found
            amounts, line = found.pop(workload), into(workload)
            before = found.get(line, {})
            found[line] = sum_of([before, amounts])
            weight += len(found[line]) - len(before) - len(amounts)
    return found


def _namespace_line(workload: str) -> str:
    return f"{OTHERS}/{workload.split('/')[1]}/"
