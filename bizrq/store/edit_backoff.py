"""Letting a person's edit of a group pass between the status writes of a busy one (docs/reservations.md, "Holds").

The API server repeats an edit whenever the group was written meanwhile, and a busy group is written all the time.
So the first review of an edit leaves a hold in the status: whoever writes after that meets it, since a status write
only succeeds on the version it was made from, and waits until the edit has landed or the hold is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.units.times import TimestampError, milliseconds

#: Seconds for which a hold is honoured, on the writer's own clock since it first saw it: as long as an API server that
#: has all it can do needs for one more try of the edit. An edit that lands ends its hold at once.
HOLD = 2.0
#: Milliseconds from one hold to the next: edits without end must not stop admissions. A hold whose edit has landed took
#: little of that time.
REST = 4_000
REST_LANDED = 1_000


class Holds:
    """The holds that one process has seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    def left(self, group: GroupObject) -> float:
        """Seconds for which the group's status should not be written; 0 where nothing holds it."""
        hold = group.status.hold
        if hold is None or group.metadata.generation > hold.generation:
            self._seen.pop(group.name, None)
            return 0.0
        mark, since = self._seen.get(group.name, ("", 0.0))
        if mark != hold.since:
            since = self._clock()
            self._seen[group.name] = hold.since, since
        return max(0.0, HOLD - (self._clock() - since))


def wanted(group: GroupObject, now: int) -> bool:
    """Whether an edit of this stored group needs a hold: others write it, and the last hold has rested."""
    if not group.status.reservations:
        return False
    hold = group.status.hold
    if hold is None:
        return True
    rest = REST_LANDED if group.metadata.generation > hold.generation else REST
    try:
        return now - milliseconds(hold.since) >= rest
    except (TimestampError, GroupUnreadable):
        return True
