"""Wait until a controller in this process has nothing to do: what it does next follows from the test's next step."""

from __future__ import annotations

# By name: under a patient loop the controller's queue goes by the real clock, too.
from time import monotonic

from controller.metrics import RECONCILES
from tests.support.cluster import eventually

#: Real seconds, longer than any delay with which a change makes a recount due.
_RESTS = 2.0


async def at_rest() -> None:
    """Wait until nothing has been reconciled for some seconds."""
    done, since = -1.0, 0.0

    async def nothing_done() -> bool:
        nonlocal done, since
        now = sum(sample.value for metric in RECONCILES.collect() for sample in metric.samples)
        if now != done:
            done, since = now, monotonic()
        return monotonic() - since > _RESTS

    await eventually(nothing_done, 600, "the controller has nothing to do")
