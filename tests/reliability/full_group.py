"""What the tests of a full group share: pods that take a moment to stop, and requests that are sent until admitted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sandbox.kubelet import STOP_SECONDS
from tests.reliability.routes import attempt
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods
from tests.support.objects import Object
from tests.support.tenant import Tenant

#: Seconds within which a request is admitted once the pods that were ending have gone.
SOON = 5.0
#: Seconds that the pods of these tests take to stop.
STOPS = 2


def briefly(made: Object) -> Object:
    """The workload with pods that take a moment to stop."""
    stops_briefly(made["spec"]["template"])
    return made


def stops_briefly(pod: Object) -> None:
    """Have a pod, or those of a template, take a moment to stop."""
    pod["metadata"].setdefault("annotations", {})[STOP_SECONDS] = str(STOPS)
    pod["spec"]["terminationGracePeriodSeconds"] = STOPS + 1


async def admitted(request: Callable[[], Awaitable[object]], tenant: Tenant) -> None:
    """Retry until no pod is ending, and then for some seconds more; raises the last refusal."""
    until: float | None = None
    while True:
        refused = await attempt(request())
        if refused is None:
            return
        ending = any("deletionTimestamp" in each["metadata"] for each in await tenant.pods())
        until = None if ending else until or time.monotonic() + SOON
        if until is not None and time.monotonic() > until:
            raise refused
        await asyncio.sleep(0.1)


async def rests(live: LivePods) -> None:
    """Once nothing is ending, all that runs is counted and fits.

    Until then what a rollout and its undo replaced ran beside what came.
    """

    async def none_ends() -> bool:
        return not live.gone and not any("deletionTimestamp" in each["metadata"] for each in live.live())

    await eventually(none_ends, 60, "no pod is ending")
    await live.settled(ever=8)
