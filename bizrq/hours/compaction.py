"""What bounds a record of hours: how many lines it has, and how many amounts stand in them.

This file alone decides what is folded together where there is more, the smallest first, so that no amount is lost. It
does not know what a line is for; amounts are integers by resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bizrq.units.resources import Resources
from bizrq.units.resources import total as sum_of

MOST_LINES = 300
MOST_TOLD = 100
MOST_AMOUNTS = 3_000
#: Whose line the smallest shares of others' lines are folded into; a namespace may follow.
OTHERS = "others"

_Start = TypeVar("_Start")


def by_workload(lines: Mapping[str, Resources], running: set[str]) -> Mapping[str, Resources]:
    """What has ended, by workload: of those that are not `running` first."""
    return _fold(lines, running) if len(lines) > MOST_LINES or _weight(lines.values()) > MOST_AMOUNTS else lines


def by_start(lines: Mapping[tuple[_Start, str], Resources]) -> Mapping[tuple[_Start, str], Resources]:
    """What was told late, by the start of its period and by workload."""
    if len(lines) <= MOST_TOLD and _weight(lines.values()) <= MOST_AMOUNTS:
        return lines
    folded: dict[tuple[_Start, str], Resources] = {}
    for (start, _), amounts in lines.items():
        folded[start, f"{OTHERS}//"] = sum_of([folded.get((start, f"{OTHERS}//"), {}), amounts])
    return folded


def last_of(lines: Sequence[Resources], most: int) -> int:
    """How many of the last of them are kept: one, then as many as `most` and as there is room for."""
    kept, weight = 0, 0
    for amounts in reversed(lines[-most:]):
        weight += len(amounts)
        if kept and weight > MOST_AMOUNTS:
            break
        kept += 1
    return kept


def _weight(lines: Iterable[Resources]) -> int:
    return sum(map(len, lines))


def _fold(lines: Mapping[str, Resources], running: set[str]) -> dict[str, Resources]:
    whole = sum_of(lines.values())

    def share(workload: str) -> int:
        """The largest of its shares, in millionths."""
        return max((abs(n) * 10**6 // (abs(whole[name]) or 1) for name, n in found[workload].items()), default=0)

    found, weight = dict(lines), _weight(lines.values())
    for into in (_namespace_line, lambda _: f"{OTHERS}//"):
        foldable = [workload for workload in found if into(workload) != workload]
        for workload in sorted(foldable, key=lambda each: (each in running, share(each), each)):
            # A third less than the most: not every look folds again.
            if len(found) <= MOST_LINES * 2 // 3 and weight <= MOST_AMOUNTS * 2 // 3:
                return found
            amounts, line = found.pop(workload), into(workload)
            before = found.get(line, {})
            found[line] = sum_of([before, amounts])
            weight += len(found[line]) - len(before) - len(amounts)
    return found


def _namespace_line(workload: str) -> str:
    return f"{OTHERS}/{workload.split('/')[1]}/"
