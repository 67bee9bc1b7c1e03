"""The group that pays for each pod of a workload that has moved, until it is decided that another one does.

A workload may move on before the group that it left is counted again, and may even be deleted by then. Its pods were
made for the group that they ran in when it moved for the first time. A pod that is seen after a move may have been made
before it, as revisions tell. This file alone remembers that, and only while the process runs (`tests/model/moves.py`
explores what follows).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bizrq.workloads.labels import Models


class _Departure(NamedTuple):
    """A workload's write out of a group, by its revision."""

    revision: int
    group: str


@dataclass(slots=True)
class MadePods:
    """The pods that a workload made for a group that it has left, by uid, and the place and models that it had."""

    place: str
    models: Models
    uids: set[str] = field(default_factory=set)


class MovedPods:
    """The groups of the pods of workloads that moved, by uid."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        #: By pod, the group that it was taken from when another one's demand paid for it.
        self._taken_from: dict[str, str] = {}
        #: By workload that was seen to move, the groups that it has left: what it has made since is the group's that it
        #: leaves next.
        self._moved: dict[str, set[str]] = {}
        #: By workload, the moves that the watch of pods had not reached, the first one first.
        self._departures: dict[str, list[_Departure]] = {}
        self._latest = 0
        #: By workload and group, the pods that it made there. They outlast the workload.
        self._made: dict[str, dict[str, MadePods]] = {}
        #: By pod, the workload that made it.
        self._maker: dict[str, str] = {}
        #: By object below a workload with departures, that workload.
        self._below: dict[str, str] = {}

    def of(self, uid: str) -> str | None:
        """Return the group that pays for a pod; None for one whose workload has not moved."""
        return self._groups.get(uid)

    def made_at(self, uid: str) -> str:
        """Return the place of the workload that made a pod for the group that pays for it; "" if nobody noted that."""
        made = self._made.get(self._maker.get(uid, ""), {}).get(self._groups.get(uid, ""))
        return made.place if made is not None else ""

    def has_moved(self, workload: str) -> bool:
        """Return True if a workload was seen to leave a group before."""
        return workload in self._moved

    def has_left(self, workload: str, group: str) -> bool:
        """Return True if a workload was seen to leave this group: it was stored there."""
        return group in self._moved.get(workload, ()) or self.made_for(workload, group) is not None

    def made_for(self, workload: str, group: str) -> MadePods | None:
        """Return the pods that a workload, which may be gone, made before it left a group. Do not change them."""
        return self._made.get(workload, {}).get(group)

    def expected(self, workload: str) -> int:
        """Return the revision from which on the watch of pods has shown all that a workload made before it moved."""
        return max((departure.revision for departure in self._departures.get(workload, ())), default=0)

    def leave(self, workload: str, group: str, made: MadePods, made_for: str) -> None:
        """Note that a workload leaves a group with pods that were made for some group. Those of others stay theirs."""
        self._moved.setdefault(workload, set()).add(group)
        self._made.setdefault(workload, {}).setdefault(made_for, MadePods(made.place, made.models))
        for uid in made.uids:
            self._note(uid, workload, made_for)

    def depart(self, workload: str, revision: int, group: str, reached: int, below: Iterable[str]) -> None:
        """Expect pods that a workload made before it left a group by a write of this revision.

        `reached` is the revision that the watch of pods has reached, `below` are the uids of what the workload has
        made besides.
        """
        for uid, known in list(self._departures.items()):
            if known[-1].revision <= reached:
                self._arrived(uid)
        if reached < revision:
            self._departures.setdefault(workload, []).append(_Departure(revision, group))
            self._latest = max(self._latest, revision)
            for uid in below:
                self._below[uid] = workload

    def is_expected(self, revision: int) -> bool:
        """Return True where a pod of this revision, new to the watch, may be older than a move."""
        return revision < self._latest

    def note_below(self, uid: str, owner: str) -> None:
        """Note what an object belongs to: the pods of a workload that moved may be seen when both are gone."""
        workload = self._below.get(owner, owner)
        if workload in self._departures:
            self._below[uid] = workload

    def arrive(self, uid: str, revision: int, maker: str) -> None:
        """Note the group of a pod, new to the watch, that was made before its workload left that group.

        `maker` is the workload, or an object between both where that is all that is known.
        """
        workload = self._below.get(maker, maker)
        for departure in self._departures.get(workload, ()):
            if revision < departure.revision:
                self._note(uid, workload, departure.group)

    def restored(self) -> None:
        """Expect no pods any more: revisions count anew."""
        self._moved.clear()
        for uid in list(self._departures):
            self._arrived(uid)
        self._latest = 0

    def give(self, uid: str, group: str, taken_from: str = "") -> None:
        """Note that a group pays for a pod from now on: for its demand, where the pod is taken from another group."""
        self._groups[uid] = group
        if taken_from:
            self._taken_from[uid] = taken_from

    def taken_from(self, uid: str) -> str | None:
        """Return the group that a pod was taken from when another one's demand paid for it."""
        return self._taken_from.get(uid)

    def release(self, uid: str) -> None:
        """Note that no group pays for a pod from now on, unless one pays for its owner."""
        self._groups.pop(uid, None)
        self._taken_from.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Forget a pod or a workload that is gone."""
        self.release(uid)
        self._moved.pop(uid, None)
        if (workload := self._maker.pop(uid, None)) is not None:
            for made in self._made[workload].values():
                made.uids.discard(uid)
            self._drop(workload)
        self._drop(uid)

    def _note(self, uid: str, workload: str, group: str) -> None:
        if uid not in self._groups:
            self._groups[uid] = group
            self._maker[uid] = workload
            self._made[workload][group].uids.add(uid)

    def _arrived(self, workload: str) -> None:
        """Expect no pods of a workload any more."""
        del self._departures[workload]
        for uid in [each for each, top in self._below.items() if top == workload]:
            del self._below[uid]
        self._drop(workload)

    def _drop(self, workload: str) -> None:
        """Forget what a workload made, where it is gone, has no pods left and none is expected."""
        gone = workload not in self._moved and workload not in self._departures
        if gone and not any(made.uids for made in self._made.get(workload, {}).values()):
            self._made.pop(workload, None)
