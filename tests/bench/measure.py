"""Figures as they are quoted: ratios of interleaved rounds, median with min and max."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
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


def steady(rates: Sequence[float]) -> list[int]:
    """The rounds whose baseline is within a quarter of the median; what others ran in between is thrown away."""
    middle = statistics.median(rates)
    return [number for number, rate in enumerate(rates) if 0.75 * middle <= rate <= 1.25 * middle]


class Budget:
    """So many seconds for the rounds of a row, and a least and a most of rounds, however long they take."""

    def __init__(self, seconds: float, least: int = 3, most: int = 7) -> None:
        self._until = time.monotonic() + seconds
        self._least = least
        self._most = most

    def rounds(self) -> Iterator[int]:
        for number in range(self._most):
            if number >= self._least and time.monotonic() > self._until:
                return
            yield number


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """For how long the event loop was not to be had, in seconds of our own CPU, each time."""
    stalls = [0.0]

    async def measure() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            stalls.append(time.thread_time() - began)

    task = asyncio.create_task(measure())
    await asyncio.sleep(0)
    try:
        yield stalls
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
