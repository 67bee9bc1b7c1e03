"""The forecast of a budget: when its hours are exhausted at the present rate, and by whose workloads.

This file alone decides how that is computed, for one resource at a time. Amounts are nano-units x milliseconds, a burn
is nano-units, times are integer milliseconds. It knows no objects and no clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The horizon of the forecast for a budget without periods: ten years.
HORIZON = 10 * 365 * 86_400_000
#: Whose workloads are named.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """A group's hours of one resource: the ceiling, what its own workloads have spent, and their burn now.

    Hours carried from another period are subtracted from `spent`, which may so be below 0.
    """

    hard: int
    spent: int
    burn: int
    children: Sequence[Budget] = ()

    @property
    def total_burn(self) -> int:
        """Return the burn of the group's own workloads and of those of its subgroups."""
        return self.burn + sum(child.total_burn for child in self.children)

    def used(self, after: int) -> int:
        """Return the use that the status will show: a child holds its ceiling, or what it has spent if that is more."""
        held = (max(child.hard, child.used(after)) for child in self.children)
        return max(0, self.spent + self.burn * after) + sum(held)


def time_to_exhaustion(budget: Budget, within: int = HORIZON) -> int | None:
    """Return the time until nothing is left, 0 where nothing is; None where that is beyond `within`."""
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


def top_consumers(burns: Mapping[str, int], most: int = MAX_NAMED) -> list[tuple[str, int]]:
    """Return the workloads that burn most, with their share of the burn, in percent."""
    whole = sum(burns.values())
    first = sorted((item for item in burns.items() if item[1] > 0), key=lambda item: (-item[1], item[0]))[:most]
    return [(name, (burn * 200 + whole) // (2 * whole)) for name, burn in first]
