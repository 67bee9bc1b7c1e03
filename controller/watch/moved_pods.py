"""The group that pays for each pod of a workload that has moved, until it is decided that another one does.

A workload may move on before the group that it left is counted again. Its pods were made for the group that they ran
in when it moved for the first time. A pod that is seen after a move may have been made before it, as revisions tell.
This file alone remembers that, and only while the process runs (`tests/model/moves.py` explores what follows).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class _Departure(NamedTuple):
    """A workload's write out of a group, by its revision."""

    revision: int
    group: str


class MovedPods:
    """The groups of the pods of workloads that moved, by uid."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        #: By workload that was seen to move, the groups that it has left: what it has made since is the group's that it
        #: leaves next.
        self._moved: dict[str, set[str]] = {}
        #: By workload, the moves that the watch of pods had not reached, the first one first.
        self._departures: dict[str, list[_Departure]] = {}
        self._latest = 0

    def of(self, uid: str) -> str | None:
        """Return the group that pays for a pod; None for one whose workload has not moved."""
        return self._groups.get(uid)

    def has_moved(self, workload: str) -> bool:
        """Return True if a workload was seen to leave a group before."""
        return workload in self._moved

    def has_left(self, workload: str, group: str) -> bool:
        """Return True if a workload was seen to leave this group: it was stored there."""
        return group in self._moved.get(workload, ())

    def leave(self, workload: str, group: str, uids: Iterable[str], made_for: str) -> None:
        """Note that a workload leaves a group with pods that were made for some group. Those of others stay theirs."""
        self._moved.setdefault(workload, set()).add(group)
        for uid in uids:
            self._groups.setdefault(uid, made_for)

    def depart(self, workload: str, revision: int, group: str, reached: int) -> None:
        """Expect pods that a workload made before it left a group by a write of this revision.

        `reached` is the revision that the watch of pods has reached.
        """
        for uid, known in list(self._departures.items()):
            if known[-1].revision <= reached:
                del self._departures[uid]
        if reached < revision:
            self._departures.setdefault(workload, []).append(_Departure(revision, group))
            self._latest = max(self._latest, revision)

    def is_expected(self, revision: int) -> bool:
        """Return True where a pod of this revision, new to the watch, may be older than a move."""
        return revision < self._latest

    def arrive(self, uid: str, revision: int, workload: str) -> None:
        """Note the group of a pod, new to the watch, that was made before its workload left that group."""
        for departure in self._departures.get(workload, ()):
            if revision < departure.revision:
                self._groups.setdefault(uid, departure.group)

    def restored(self) -> None:
        """Expect no pods any more: revisions count anew."""
        self._moved.clear()
        self._departures.clear()
        self._latest = 0

    def give(self, uid: str, group: str) -> None:
        """Note that a group pays for a pod from now on."""
        self._groups[uid] = group

    def forget(self, uid: str) -> None:
        """Forget a pod or a workload that is gone."""
        self._groups.pop(uid, None)
        self._moved.pop(uid, None)
