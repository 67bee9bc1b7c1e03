"""When hours are out, if what runs now goes on running: and by whose workloads.

This file alone decides how a budget is foreseen. One resource at a time; amounts are nano-units x milliseconds, a burn
is nano-units, times are integer milliseconds. It knows no objects and no clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: As far as a budget without periods is foreseen: ten years.
FAR = 10 * 365 * 86_400_000
#: Whose workloads are named.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """A group's hours of one resource: its ceiling, and what its own workloads have spent of it and burn now.

    What came over from another period is not in `spent`, which may so be below 0.
    """

    hard: int
    spent: int
    burn: int
    children: Sequence[Budget] = ()

    def used(self, after: int) -> int:
        """What its status will say: a child holds its whole ceiling, and more once it has spent more."""
        held = (max(child.hard, child.used(after)) for child in self.children)
        return max(0, self.spent + self.burn * after) + sum(held)


def out_in(budget: Budget, within: int = FAR) -> int | None:
    """How long until nothing is left, 0 where nothing is; None where that is not before `within` is over."""
    if budget.used(within - 1) < budget.hard:
        return None
    soonest, latest = 0, within - 1
    while soonest < latest:
        middle = (soonest + latest) // 2
        if budget.used(middle) < budget.hard:
            soonest = middle + 1
        else:
            latest = middle
    return soonest


def burners(burns: Mapping[str, int], most: int = NAMED) -> list[tuple[str, int]]:
    """The workloads that burn most, with their share of all that burns, in percent."""
    whole = sum(burns.values())
    first = sorted((item for item in burns.items() if item[1] > 0), key=lambda item: (-item[1], item[0]))[:most]
    return [(name, (burn * 200 + whole) // (2 * whole)) for name, burn in first]
