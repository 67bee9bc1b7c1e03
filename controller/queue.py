"""A work queue of keys, each processed at most once at a time (client-go's workqueue semantics).

This file alone decides when a key is due. A key that is added while it is processed becomes due again afterwards.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable


class WorkQueue:
    """Keys by the time they are due. At least `pace` seconds pass between two runs of one key."""

    def __init__(self, *, pace: float = 0.1, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = pace
        self._clock = clock
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: str, after: float = 0.0) -> None:
        """Make the key due in `after` seconds. A key that is due sooner stays so."""
        due = max(self._clock() + after, self._not_before.get(key, 0.0))
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._wake.set()

    async def get(self) -> str:
        """Wait for the next key that is due and return it. Call `done` afterwards."""
        while True:
            now = self._clock()
            busy = []
            found = None
            while self._heap and self._heap[0][0] <= now:
                due, key = heapq.heappop(self._heap)
                if self._due.get(key) != due:
                    continue
                if key in self._busy:
                    busy.append((due, key))
                    continue
                found = key
                break
            for entry in busy:
                heapq.heappush(self._heap, entry)
            if found is not None:
                del self._due[found]
                self._busy.add(found)
                self._not_before[found] = now + self._pace
                return found
            self._wake.clear()
            # `done` of a busy key sets the event; other keys end the timeout.
            waiting = [due for due, key in self._heap if key not in self._busy]
            try:
                async with asyncio.timeout(max(0.0, min(waiting) - now) if waiting else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: str, *, failed: bool = False) -> None:
        """End the processing of a key. A failed key is retried with a growing delay, 10 ms to 30 s."""
        self._busy.discard(key)
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, min(30.0, 0.005 * 2**count))
        else:
            self._failures.pop(key, None)
        self._wake.set()

    def forget(self, key: str) -> None:
        """Drop the pace and failures of a key whose object is gone."""
        self._not_before.pop(key, None)
        self._failures.pop(key, None)
