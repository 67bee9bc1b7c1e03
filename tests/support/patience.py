"""An event loop whose time passes while everything in it waits, for tests that hold server and client alike.

Computing takes a little of it, and what others use of the machine takes nothing: who misses a deadline waited past it.
Waiting is shorter than it says: what comes over a socket of this very process comes at once, or not at all.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any
from unittest.mock import patch

#: One real second of waiting is so many of the loop, and so many seconds of processor time are one.
SPEED = 20
#: The longest real wait in seconds: after it the loop's time is that of its next timer.
LONGEST = 0.25


class PatientLoop(asyncio.SelectorEventLoop):
    """Sets `time.monotonic` to its own time while it runs: timers and deadlines go by one clock.

    A default argument that is `time.monotonic` itself stays real: pass this loop's `time` as the clock there.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        #: How much work is under way in other threads, which takes real time.
        self.elsewhere = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def run_forever(self) -> None:
        with patch("time.monotonic", self.time):
            super().run_forever()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.elsewhere += 1
        future.add_done_callback(self._returned)
        return future

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("processes take real time: run this test on an ordinary event loop")

    subprocess_shell = subprocess_exec

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self.elsewhere -= 1


class _Selector(selectors.DefaultSelector):
    """Waits for less long than it is asked to, and sets the loop's time as if it had waited."""

    def __init__(self, loop: PatientLoop) -> None:
        super().__init__()
        self._loop = loop
        self._worked = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self._loop.elsewhere:
            events = super().select(timeout if timeout is None else min(timeout, LONGEST))
        else:
            events = super().select(min(timeout / SPEED, LONGEST))
            if not events:
                self._loop.now += timeout
        # Timers come up even where something is always going on.
        before, self._worked = self._worked, time.thread_time()
        self._loop.now += (self._worked - before) / SPEED
        return events
