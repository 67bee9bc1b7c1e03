"""The pods that were nobody's when a group came to pay for their owner, until the group pays for them too.

A workload of no group gets a label, or a workload of a group adopts pods of none: no group has admitted those. This
file alone remembers which they are, and only while the process runs.
"""

from __future__ import annotations

from collections.abc import Set


class UnpaidPods:
    """Pods without a payer, by the uid of their owner, for which a group pays."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._pods: dict[str, set[str]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._owners

    def of(self, owner: str) -> Set[str]:
        """Return the pods of an owner."""
        return self._pods.get(owner, frozenset())

    def add(self, uid: str, owner: str) -> None:
        """Note that a pod was nobody's when a group came to pay for its owner."""
        self._owners[uid] = owner
        self._pods.setdefault(owner, set()).add(uid)

    def discard(self, uid: str) -> None:
        """Forget a pod: a group pays for it, or it is gone."""
        if (owner := self._owners.pop(uid, None)) is not None:
            self._pods[owner].discard(uid)
            if not self._pods[owner]:
                del self._pods[owner]
