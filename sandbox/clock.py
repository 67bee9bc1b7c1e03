"""Keep the sandbox's time, which can run fast and be set forward. All timestamps of objects come from it.

It wakes tasks that wait for a time, and does not know why they wait.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta


class Clock:
    """A clock that starts at `now` (UTC; default: the real time) and runs `rate` times as fast as the real one.

    Time never runs backwards: `advance` refuses negative seconds, `rate` refuses to be negative. A clock of rate 0
    stands still until `advance`.
    """

    def __init__(self, now: datetime | None = None, rate: float = 1.0) -> None:
        if rate < 0:
            raise ValueError(f"rate must not be negative, not {rate}")
        self._base = (now or datetime.now(UTC)).astimezone(UTC)
        self._since = time.monotonic()
        self._rate = rate
        self._moved: set[asyncio.Event] = set()

    def now(self) -> datetime:
        return self._base + timedelta(seconds=(time.monotonic() - self._since) * self._rate)

    def stamp(self) -> str:
        """Return the present time as Kubernetes writes it: whole seconds, RFC 3339, UTC."""
        return rfc3339(self.now())

    def advance(self, seconds: float) -> None:
        """Set the clock forward by this many of its own seconds, and wake the tasks whose time has come."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds})")
        self._base += timedelta(seconds=seconds)
        self._wake()

    async def until(self, when: datetime) -> None:
        """Return once the clock shows `when` or later."""
        moved = asyncio.Event()
        self._moved.add(moved)
        try:
            while (left := (when - self.now()).total_seconds()) > 0:
                moved.clear()
                real = left / self._rate if self._rate > 0 else None
                try:
                    async with asyncio.timeout(real):
                        await moved.wait()
                except TimeoutError:
                    continue
        finally:
            self._moved.discard(moved)

    def _wake(self) -> None:
        for moved in self._moved:
            moved.set()


def rfc3339(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Parse RFC 3339 into an aware datetime; raise ValueError for other text."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
