"""Pauses after failures.

This file alone decides how long to wait before the next attempt. It does not know what failed.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Pauses that double with each failure, up to a limit, and start over after a calm time. All in seconds."""

    def __init__(self, first: float, longest: float, calm: float, clock: Callable[[], float]) -> None:
        self._first = first
        self._longest = longest
        self._calm = calm
        self._clock = clock
        self._pause = 0.0
        self._failed_at = float("-inf")

    def after_failure(self) -> float:
        """Record a failure and return the pause, with jitter of half its length."""
        is_calm = self._clock() - self._failed_at > max(self._calm, 2 * self._pause)
        self._pause = self._first if is_calm else min(self._pause * 2, self._longest)
        self._failed_at = self._clock()
        return self._pause * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
