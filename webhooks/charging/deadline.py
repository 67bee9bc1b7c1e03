"""Deadlines of reviews, as values that carry their clock.

This file alone turns the moment by which a review must be answered into timeouts and into tries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds for which a write that has to see another write first is tried again.
BUSY_SECONDS = 3.0
#: Seconds between two such tries, at random up to this: two that wait for each other should not meet again.
BUSY_PAUSE = 0.2
#: Seconds before the deadline in which nothing is tried again: the last answer says more than "out of time".
ANSWER_MARGIN = 0.3
#: Seconds that a request to the API server gets at least, so that it is not cut off as it begins.
LEAST_TIMEOUT = 0.1


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment by which a review must be answered, in seconds of `clock`."""

    at: float
    clock: Callable[[], float] = time.monotonic

    @property
    def is_over(self) -> bool:
        return self.clock() >= self.at

    def seconds_left(self) -> float:
        """Return the seconds until the deadline, never less than `LEAST_TIMEOUT`."""
        return max(LEAST_TIMEOUT, self.at - self.clock())


class BusyRetries:
    """Bounds the tries of a write while another write that it has to see is under way."""

    __slots__ = ("_clock", "_until")

    def __init__(self, deadline: Deadline) -> None:
        self._clock = deadline.clock
        self._until = min(deadline.at - ANSWER_MARGIN, deadline.clock() + BUSY_SECONDS)

    async def again(self) -> bool:
        """Pause and return True; return False at once where no time is left for another try."""
        if self._clock() + BUSY_PAUSE > self._until:
            return False
        await asyncio.sleep(random.uniform(0, BUSY_PAUSE))  # noqa: S311 jitter
        return True
