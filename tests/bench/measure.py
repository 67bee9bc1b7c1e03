"""Figures as they are quoted: ratios of interleaved rounds, median with min and max."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A figure of several rounds."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"


@dataclass(frozen=True)
class Run:
    """One round of requests: how many a second, and how long each took, in seconds, sorted."""

    rate: float
    seconds: Sequence[float]
    errors: Sequence[str]

    def percentile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * share))]


async def burst(count: int, concurrency: int, request: Callable[[], Awaitable[object]]) -> Run:
    """`count` requests, so many at a time."""
    left = count
    seconds: list[float] = []
    errors: list[str] = []

    async def one_after_another() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            try:
                await request()
            except Exception as error:
                errors.append(str(error)[:200])
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    return Run(count / (time.perf_counter() - began), sorted(seconds), errors)


def ratios(top: Sequence[float], bottom: Sequence[float]) -> Spread:
    """Round by round."""
    return Spread([a / b for a, b in zip(top, bottom, strict=True)])


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the baseline varied by no more than a quarter; a run in which it did is thrown away."""
    return max(rates) <= 1.25 * statistics.median(rates) and min(rates) >= 0.75 * statistics.median(rates)
