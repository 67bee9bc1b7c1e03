"""Say at a terminal what a verb waits for, for how long at most, and from time to time how long it has waited."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable

from bizrq.cli.output.failure import progress

#: Seconds between two lines about the same wait.
_TELL = 15.0
#: Seconds between two looks at the clock.
_LOOK = 1.0


class Wait:
    """The lines about one wait of up to `seconds`: the first after `quiet` seconds, with `more`."""

    def __init__(
        self,
        what: str,
        seconds: float,
        *,
        more: str = "",
        quiet: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._seconds, self._more, self._clock = what, seconds, more, clock
        self._started = clock()
        self._due = self._started + quiet
        self._is_said = False

    def say(self) -> None:
        """Print a line if one is due."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _TELL
        if self._is_said:
            progress(f"still waiting {self._what}: {now - self._started:.0f} of {self._seconds:.0f} s")
        else:
            progress(f"waiting up to {self._seconds:.0f} s {self._what}{self._more}")
        self._is_said = True

    def end(self) -> None:
        """Say nothing from now on."""
        self._due = math.inf


@contextlib.asynccontextmanager
async def said(wait: Wait) -> AsyncIterator[None]:
    """Say what the block waits for, until it ends."""

    async def again() -> None:
        while True:
            await asyncio.sleep(_LOOK)
            wait.say()

    wait.say()
    saying = asyncio.create_task(again(), name="waits")
    try:
        yield
    finally:
        saying.cancel()
