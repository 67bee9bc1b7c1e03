"""The objects of which a group awaits a change, though no cost of its own may follow from that.

This file alone knows which these are. A reservation may end with any change of its object: where a status was written
between review and write, the API server reviews the write again, and the version that it was decided on is gone. A pod
that stays with a group goes to another one as soon as the demand there pays for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class AwaitedChanges:
    """The groups to recount when an object changes, whatever changes of it; as the last recount of each left them."""

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}
        self._uids: dict[str, frozenset[str]] = {}

    def groups_of(self, uid: str) -> Collection[str]:
        """Return the groups that await a change of this object."""
        return tuple(self._groups.get(uid, ()))

    def replace(self, group: str, uids: Iterable[str]) -> None:
        """Replace the objects of which a group awaits a change."""
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
