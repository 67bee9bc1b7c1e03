"""The objects whose writes reservations await, and the groups that have these reservations.

This file alone knows that. A reservation may end with a change from which no cost follows: where a status was written
between review and write, the API server reviews the write again, and the version that it was decided on is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class AwaitedWrites:
    """The groups to recount when an object changes, whatever changes of it; as the last recount of each left them."""

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}
        self._uids: dict[str, frozenset[str]] = {}

    def groups_of(self, uid: str) -> Collection[str]:
        """Return the groups with a reservation that awaits a write of this object."""
        return tuple(self._groups.get(uid, ()))

    def replace(self, group: str, uids: Iterable[str]) -> None:
        """Replace the objects that a group's reservations await."""
        before, now = self._uids.pop(group, frozenset()), frozenset(uids)
        if now:
            self._uids[group] = now
        for uid in now - before:
            self._groups.setdefault(uid, set()).add(group)
        for uid in before - now:
            groups = self._groups[uid]
            groups.discard(group)
            if not groups:
                del self._groups[uid]
