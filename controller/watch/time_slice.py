"""Long work on the event loop, in slices.

This file alone decides for how long one piece of work may keep the loop from everybody else.
"""

from __future__ import annotations

import asyncio
import time

#: Seconds, looked at after so many steps.
_SLICE, _STEPS = 0.005, 64


class Slices:
    """Lets everybody else have a turn now and then."""

    def __init__(self, seconds: float = _SLICE, steps: int = _STEPS) -> None:
        self._slice, self._every = seconds, steps
        self._until = time.perf_counter() + seconds
        self._steps = 0

    async def between(self) -> None:
        """After each of very many small steps."""
        self._steps += 1
        if self._steps % self._every == 0:
            await self.now()

    async def now(self) -> None:
        if time.perf_counter() > self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + self._slice
