"""Pause the status writes of a busy group for an edit of its spec (docs/reservations.md, "Holds").

The API server repeats an edit if the group was written meanwhile, and a busy group is written all the time. So the
first review of an edit stores a hold in the status. A status write succeeds only on the version that it was made from,
so every later writer reads the hold and waits until the edit is stored or the hold is over.

This file alone decides how long a hold lasts and when an edit needs one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.units.times import TimestampError, parse_timestamp

#: Seconds of a hold, on the writer's own clock since it first read the hold. A loaded API server needs that long for
#: one more attempt of the edit. A stored edit ends its hold at once.
HOLD = 2.0
#: Milliseconds from one hold to the next, so that endless edits do not stop admissions. A hold whose edit was stored is
#: short, and so is the rest after it.
REST = 4_000
REST_LANDED = 1_000


class EditBackoff:
    """The holds that one process has read, with the time of the first read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    def remaining(self, group: GroupObject) -> float:
        """Return the seconds for which to defer writes of the group's status; 0 without a hold."""
        hold = group.status.hold
        if hold is None or group.metadata.generation > hold.generation:
            self._seen.pop(group.name, None)
            return 0.0
        mark, since = self._seen.get(group.name, ("", 0.0))
        if mark != hold.since:
            since = self._clock()
            self._seen[group.name] = hold.since, since
        return max(0.0, HOLD - (self._clock() - since))


def needs_hold(group: GroupObject, now: int) -> bool:
    """Return True if an edit of this stored group needs a hold: others write it, and the rest is over.

    `now` is in milliseconds.
    """
    if not group.status.reservations:
        return False
    hold = group.status.hold
    if hold is None:
        return True
    rest = REST_LANDED if group.metadata.generation > hold.generation else REST
    try:
        return now - parse_timestamp(hold.since) >= rest
    except (TimestampError, GroupUnreadable):
        return True
