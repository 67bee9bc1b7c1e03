"""Charge until what was counted from is stable, and try again while a group is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bizrq.quota.change import Charge
from bizrq.quota.verdict import TRY_AGAIN, Denied, Granted, Reason, Verdict

#: Seconds that a write waits for another one that it would have to be counted with.
PATIENCE = 3.0


_PAUSE = 0.1


#: Seconds before the deadline in which nothing is tried again: the last answer says more than "too late".
_LAST = 0.3


@dataclass(frozen=True, slots=True)
class Due:
    """A charge that somebody else's write makes, and for whom."""

    group: str
    charge: Charge
    whom: str = ""
    #: It makes nothing worse, and is charged only to be seen by others.
    is_mark: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where nothing has changed that the charge is counted from."""
        amounts = [tuple(sorted(found.items())) for found in (self.charge.demand, self.charge.before)]
        runs = (self.charge.run, self.charge.run_before)
        return self.group, self.charge.slot, self.charge.uid, self.charge.resource_version, *amounts, *runs


_D = TypeVar("_D", bound=Due)


async def patiently(look: Callable[[], Awaitable[Verdict]], deadline: float) -> Verdict:
    """What a look says; while another change has to be seen first, what the next one says, for a while.

    The API server itself comes again where an update met another write: what it asked for first is under way then.
    """
    until = min(deadline - _LAST, time.monotonic() + PATIENCE)
    while True:
        verdict = await look()
        busy = isinstance(verdict, Denied) and verdict.reason is Reason.BUSY
        if not busy or time.monotonic() + _PAUSE > until:
            return verdict
        await asyncio.sleep(_PAUSE)


async def settle(
    gather: Callable[[], Awaitable[Sequence[_D] | Verdict]],
    decide: Callable[[_D], Awaitable[Verdict]],
    deadline: float,
) -> Verdict:
    """Charge what is found, until a look after the last promise was stored finds nothing new.

    Raises what `gather` does. What another write has to be waited for is tried again for a while.
    """
    granted: set[tuple[object, ...]] = set()

    async def look() -> Verdict:
        while True:
            gathered = await gather()
            if isinstance(gathered, Granted | Denied):
                return gathered
            due = [found for found in gathered if found.key not in granted]
            if not due:
                return Granted()
            for found in due:
                verdict = await decide(found)
                # A mark that cannot be left is no reason to refuse what makes nothing worse.
                if isinstance(verdict, Denied) and (verdict.reason in TRY_AGAIN or not found.is_mark):
                    return verdict
                granted.add(found.key)

    return await patiently(look, deadline)


def told(verdict: Denied, whom: str) -> Denied:
    return Denied(verdict.reason, f"{verdict.message}; charged for {whom}", verdict.violations, whom)
