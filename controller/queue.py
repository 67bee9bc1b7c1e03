"""A work queue of keys, each processed at most once at a time (client-go's workqueue semantics).

This file alone decides when a key is due. A key that is added while it is processed becomes due again afterwards.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller import metrics

#: The name of the queue in metrics.
NAME = "groups"


class WorkQueue:
    """Keys by the time they are due. At least `pace` seconds pass between two runs of one key."""

    def __init__(self, *, pace: float = 0.1, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = pace
        self._clock = clock
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        #: The keys that are processed, and since when.
        self._busy: dict[str, float] = {}
        self._began = clock()
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def begin(self) -> None:
        """Measure how long keys wait from now on only: nobody has taken any before."""
        self._began = self._clock()

    def depth(self) -> int:
        """Return the number of keys that are due and not processed."""
        now = self._clock()
        return sum(due <= now and key not in self._busy for key, due in self._due.items())

    def working(self) -> list[float]:
        """Return for how many seconds each key is being processed."""
        now = self._clock()
        return [now - since for since in self._busy.values()]

    def add(self, key: str, after: float = 0.0) -> None:
        """Make the key due in `after` seconds. A key that is due sooner stays so."""
        due = max(self._clock() + after, self._not_before.get(key, 0.0))
        if key not in self._due:
            metrics.QUEUE_ADDS.labels(NAME).inc()
        elif self._due[key] <= due:
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
                due = max(self._due.pop(found), self._began)
                metrics.QUEUE_SECONDS.labels(NAME).observe(now - due)
                self._busy[found] = now
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
        began = self._busy.pop(key, None)
        if began is not None:
            metrics.WORK_SECONDS.labels(NAME).observe(self._clock() - began)
        if failed:
            metrics.QUEUE_RETRIES.labels(NAME).inc()
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, min(30.0, 0.005 * 2**count))
        else:
            self._failures.pop(key, None)
        self._wake.set()

    def forget(self, key: str) -> None:
        """Drop the pace and failures of a key whose object is gone."""
        self._not_before.pop(key, None)
        self._failures.pop(key, None)


class QueueState(Collector):
    """What waits and what is being processed, as it is at a scrape; 0 while no worker takes any."""

    def __init__(self, queue: WorkQueue, is_served: Callable[[], bool]) -> None:
        self._queue = queue
        self._is_served = is_served

    def collect(self) -> Iterator[GaugeMetricFamily]:
        served = self._is_served()
        working = self._queue.working() if served else []
        for name, documentation, value in (
            ("workqueue_depth", "Groups that are due for a reconciliation", self._queue.depth() if served else 0),
            ("workqueue_unfinished_work_seconds", "Time of the reconciliations under way, together", sum(working)),
            (
                "workqueue_longest_running_processor_seconds",
                "Time of the longest reconciliation under way",
                max(working, default=0.0),
            ),
        ):
            family = GaugeMetricFamily(name, documentation, labels=["name"])
            family.add_metric([NAME], value)
            yield family
