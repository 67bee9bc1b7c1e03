"""Wait until a controller in this process has nothing to do: what it does next follows from the test's next step."""

from __future__ import annotations

import time
from time import monotonic as real_time

from controller.metrics import RECONCILES
from tests.support.cluster import eventually

#: Longer than any delay with which a change makes a recount due.
_RESTS = 2.0


async def at_rest(*, really: bool = False) -> None:
    """Wait until nothing has been reconciled for some seconds of the loop, or `really` by the clock of the queue.

    A patient loop is far ahead of that clock, so what is reserved may expire meanwhile.
    """
    done, since = -1.0, 0.0

    async def nothing_done() -> bool:
        nonlocal done, since
        clock = real_time if really else time.monotonic
        now = sum(sample.value for metric in RECONCILES.collect() for sample in metric.samples)
        if now != done:
            done, since = now, clock()
        return clock() - since > _RESTS

    await eventually(nothing_done, 600, "the controller has nothing to do")
