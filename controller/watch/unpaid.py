"""What was nobody's when a group came to pay for its owner, or when it came to name what a group had paid for.

A workload of no group gets a label, or a workload of a group adopts pods of none: no group has admitted those. Nor has
one admitted what was adopted once the adopter was gone. This file alone remembers which objects these are, and only
while the process runs.
"""

from __future__ import annotations

from collections.abc import Set


class Unpaid:
    """The uids of objects that no group pays for, though one pays for their owner or did, by the uid of that."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._owned: dict[str, set[str]] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self._owners

    def of(self, owner: str) -> Set[str]:
        """Return those of an owner."""
        return self._owned.get(owner, frozenset())

    def add(self, uid: str, owner: str) -> None:
        """Note that an object was nobody's when it came to this owner, or when a group came to pay for that."""
        self.discard(uid)
        self._owners[uid] = owner
        self._owned.setdefault(owner, set()).add(uid)

    def discard(self, uid: str) -> None:
        """Forget an object: a group pays for it, or it is gone."""
        if (owner := self._owners.pop(uid, None)) is not None:
            self._owned[owner].discard(uid)
            if not self._owned[owner]:
                del self._owned[owner]
