"""Writes of a group's status: when one is due, and when people's edits go first.

This file alone decides that. `controller.reconcile` decides what a status says.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupStatus
from bizrq.metrics import counted_write
from bizrq.store.edit_backoff import EditBackoff
from bizrq.store.groups import GroupStore
from bizrq.units.times import format_timestamp

#: Seconds that a write and a read may take.
_WRITE = 10.0
_READ = 5.0


class StatusWriter:
    """Writes statuses that differ, and each at least once in `interval` seconds."""

    def __init__(
        self, groups: GroupStore, *, interval: float, now: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """`now` returns milliseconds since 1970, `clock` seconds of the controller's own clock."""
        self._groups = groups
        self._interval = interval
        self._now = now
        self._clock = clock
        self._backoff = EditBackoff(clock)
        self._written: dict[str, float] = {}

    def forget(self, name: str) -> None:
        """Forget a group that is gone."""
        self._written.pop(name, None)

    async def read(self, name: str) -> None:
        """Read the version of a group that is stored now. Raises ApiError, Unreachable."""
        await self._groups.read(name, _READ)

    def wait(self, group: GroupObject) -> float:
        """Return the seconds to wait before a write, so that a person's edit of a busy group goes first."""
        return self._backoff.remaining(group)

    async def write_if_due(self, group: GroupObject, status: GroupStatus) -> GroupObject | None:
        """Write the status if it differs or was not written lately, and return the stored group.

        Raises Conflict, other ApiErrors, Unreachable.
        """
        due = self._clock() - self._written.get(group.name, float("-inf")) >= self._interval * 0.9
        if not (due or _differs(group.status, status)):
            return None
        return await self.write(group, status)

    async def write(self, group: GroupObject, status: GroupStatus) -> GroupObject:
        """Write the status on the version of the group that was read, and return the stored group.

        Raises Conflict, other ApiErrors, Unreachable.
        """
        written = msgspec.structs.replace(
            status,
            last_reconcile_time=format_timestamp(self._now()),
            recount_seconds=max(1, round(self._interval)),
        )
        body = wire.encode(msgspec.structs.replace(group, status=written))
        with counted_write():
            stored = await self._groups.write_status(group.name, body, _WRITE)
        self._written[group.name] = self._clock()
        return stored


def _differs(old: GroupStatus, new: GroupStatus) -> bool:
    """Return True if anything but times, revisions and the interval changed."""
    plain = {"last_reconcile_time": None, "counted_at": {}, "recount_seconds": 0}
    return msgspec.structs.replace(old, **plain) != msgspec.structs.replace(new, **plain)
