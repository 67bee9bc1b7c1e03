"""Slices of long work on the event loop.

This file alone decides for how long one piece of work may block the loop.
"""

from __future__ import annotations

import asyncio
import time

#: Seconds of one slice, and the number of steps between two looks at the time.
_SLICE, _STEPS = 0.005, 64


class Yielder:
    """Yields to the event loop after each slice of work."""

    def __init__(self, seconds: float = _SLICE, steps: int = _STEPS) -> None:
        self._slice, self._every = seconds, steps
        self._until = time.perf_counter() + seconds
        self._steps = 0

    async def step(self) -> None:
        """Count one small step. Yields if the slice is over."""
        self._steps += 1
        if self._steps % self._every == 0:
            await self.yield_if_due()

    async def yield_if_due(self) -> None:
        """Yield to the event loop if the slice is over."""
        if time.perf_counter() > self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + self._slice
