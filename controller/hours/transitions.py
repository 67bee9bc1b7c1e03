"""Memory of what the watch says only once: ends of pods and allocations, moves of workloads to other groups.

This file alone decides for how long these are remembered. Times are integer milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bizrq.hours.metering import Interval
from bizrq.units.resources import Resources

#: How long an end or a move is remembered: far longer than a write or a failover takes.
_KEPT = 600_000
#: How long a finished interval waits for the record of its group.
_KEPT_FINISHED = 7 * _KEPT


class FinishedInterval(NamedTuple):
    """An interval whose object is gone, until the record has it.

    `kind` and `revision` say which deletion ended it. `noted` is when the controller learned of that.
    """

    interval: Interval
    cost: Resources
    kind: str
    revision: int
    noted: int


class Transitions:
    """Ends and moves, by uid. An allocation of a claim has a key of its own (`ClaimAllocations.name`)."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        #: When a workload came to its group, by its uid, and when a pod left a group, by that and the pod's uid.
        self._moves: dict[str, int] = {}
        self._departures: dict[tuple[str | None, str], int] = {}
        self._finished: dict[str, dict[str, FinishedInterval]] = {}

    def end_of(self, key: str) -> int | None:
        """Return when an object that is gone ended."""
        return self._ends.get(key)

    def moved_at(self, workload: str, default: int = 0) -> int:
        """Return when a workload came to its group, or `default` where it did not move lately."""
        return self._moves.get(workload, default)

    def left_at(self, group: str, pod: str) -> int | None:
        """Return when a pod left a group."""
        return self._departures.get((group, pod))

    def finished_in(self, group: str) -> Mapping[str, FinishedInterval]:
        """Return the finished intervals that the group's record has yet to take over, by key."""
        return self._finished.get(group, {})

    def note_end(self, key: str, at: int) -> None:
        """Remember when an object ended."""
        self._ends.pop(key, None)
        self._ends[key] = at

    def note_move(self, workload: str, at: int) -> None:
        """Remember when a workload came to another group."""
        self._moves.pop(workload, None)
        self._moves[workload] = at

    def note_departure(self, pod: str, left: str | None, entered: str | None, at: int) -> None:
        """Remember when a pod left one group for another."""
        self._departures.pop((entered, pod), None)
        self._departures.pop((left, pod), None)
        self._departures[left, pod] = at

    def note_finished(self, group: str, key: str, finished: FinishedInterval) -> None:
        """Remember an interval until the group's record has it."""
        self._finished.setdefault(group, {})[key] = finished

    def mark_stored(self, group: str, keys: Iterable[str]) -> None:
        """Forget finished intervals that the group's record has taken over."""
        kept = self._finished.get(group, {})
        for key in keys:
            kept.pop(key, None)
        if not kept:
            self._finished.pop(group, None)

    def drop_group(self, group: str) -> None:
        """Forget the finished intervals of a group that keeps no record."""
        self._finished.pop(group, None)

    def forget_old(self, now: int) -> None:
        """Forget what is remembered long enough."""
        for noted in (self._ends, self._moves, self._departures):
            _forget_before(noted, now - _KEPT)
        for group in [*self._finished]:
            finished = self._finished[group]
            while finished and finished[oldest := next(iter(finished))].noted < now - _KEPT_FINISHED:
                del finished[oldest]
            if not finished:
                del self._finished[group]


def _forget_before(noted: dict[Any, int], horizon: int) -> None:
    """Drop entries older than `horizon`. They are in order of time, so most often one comparison is enough."""
    while noted and noted[oldest := next(iter(noted))] < horizon:
        del noted[oldest]
