"""The group that pays for each pod of a workload that has moved, until it is decided that another one does.

A workload may move on before the group that it left is counted again. Its pods were made for the group that they ran
in when it moved for the first time. This file alone remembers that, and only while the process runs
(`tests/model/moves.py` explores what follows).
"""

from __future__ import annotations

from collections.abc import Iterable


class MovedPods:
    """The groups of the pods of workloads that moved, by uid."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}

    def of(self, uid: str) -> str | None:
        """Return the group that pays for a pod; None for one whose workload has not moved."""
        return self._groups.get(uid)

    def leave(self, uids: Iterable[str], group: str) -> None:
        """Note that what makes these pods leaves a group. Those of other groups stay theirs."""
        for uid in uids:
            self._groups.setdefault(uid, group)

    def give(self, uid: str, group: str) -> None:
        """Note that a group pays for a pod from now on."""
        self._groups[uid] = group

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._groups.pop(uid, None)
