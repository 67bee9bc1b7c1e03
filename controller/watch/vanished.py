"""Pods that are gone from the API while their node may still run them: deleted by force, or without a terminal phase.

This file alone decides which pods these are, and remembers them until their grace is over. It is told who pays, and
what they used. A controller that starts anew knows those that the record of a group has (`controller.usage.runs_on`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.workloads.ownership.lives import Life, ends_at
from controller.watch.pods import Pod

#: More than a cluster deletes by force within a grace. Beyond this those that end first are forgotten.
MOST = 20_000


class Vanished(NamedTuple):
    """A pod as it was last seen. Its `life` says since when it is gone, and so until when it is live."""

    pod: Pod
    life: Life


class SharedClaim(NamedTuple):
    """The slot of a claim that several pods may use, and what a pod uses of it."""

    place: Slot
    cost: Resources


class LastUsage(NamedTuple):
    """What a pod was seen to use before it vanished: by itself, and of claims that others may name, by their uids."""

    resources: Resources
    shared: Mapping[str, SharedClaim]


_UNSEEN = LastUsage({}, {})


class VanishedPods:
    """Remembers vanished pods by the uid of their controller; one without a controller by its own."""

    def __init__(self, now: Callable[[], int]) -> None:
        """`now` returns milliseconds since 1970."""
        self._now = now
        self._by_owner: dict[str, dict[str, Vanished]] = {}
        #: The end, owner and uid of each, the earliest first. Entries of pods that came back stay until they end.
        self._ends: list[tuple[int, str, str]] = []
        #: By group: the pods that it paid for when they vanished, with their ends and the place of their payer.
        self._charged: dict[str, dict[str, tuple[Pod, int, str]]] = {}
        self._groups: dict[str, str] = {}
        self._usage: dict[str, LastUsage] = {}

    def note_usage(self, uid: str, usage: LastUsage) -> None:
        """Remember what a vanished pod used for as long as the pod: its node may run it on with that."""
        self._usage[uid] = usage

    def used(self, uid: str) -> Resources:
        """Return what a vanished pod was seen to use by itself; nothing where nobody saw it go."""
        return self._usage.get(uid, _UNSEEN).resources

    def claims(self, group: str) -> Iterator[tuple[Slot, str, SharedClaim]]:
        """Yield each claim that a vanished pod of the group shared: the pod's slot, the claim's uid, and the claim."""
        for uid, (pod, _, _) in self.charged_to(group).items():
            for claim, found in self._usage.get(uid, _UNSEEN).shared.items():
                yield Slot("pods", pod.namespace, pod.name), claim, found

    def charge(self, pod: Pod, group: str, place: str) -> None:
        """Charge a pod that has vanished to the group that paid for it, if it is remembered."""
        if (end := self.end_of(pod)) is not None:
            self._charged.setdefault(group, {})[pod.uid] = pod, end, place
            self._groups[pod.uid] = group

    def charged_to(self, group: str) -> Mapping[str, tuple[Pod, int, str]]:
        """Return the vanished pods that a group pays for, by uid, with their ends and the place of their payer."""
        self._forget_ended()
        return self._charged.get(group, {})

    def group_of(self, uid: str) -> str | None:
        """Return the group that pays for a vanished pod, if that is known."""
        return self._groups.get(uid)

    def end_of(self, pod: Pod) -> int | None:
        """Return the moment up to which a vanished pod is live; None where it is not remembered."""
        found = self._by_owner.get(_owner(pod), {}).get(pod.uid)
        return ends_at(found.life) if found is not None else None

    def record(self, old: Pod | None, new: Pod | None) -> None:
        """Record a change of the watch: a pod that goes may run on; one that is there has not vanished."""
        self._forget_ended()
        if new is not None:
            if self._ends:
                self._drop(_owner(new), new.uid)
        elif old is not None and (end := self._end(old)) is not None:
            found = Vanished(old, old.life(self._now()))
            self._by_owner.setdefault(_owner(old), {})[old.uid] = found
            heapq.heappush(self._ends, (end, _owner(old), old.uid))
            if len(self._ends) > MOST:
                self._drop(*heapq.heappop(self._ends)[1:])

    def of(self, owner: str) -> Sequence[Vanished]:
        """Return the vanished pods of a controller, or the vanished pod that has this uid and no controller."""
        self._forget_ended()
        return tuple(self._by_owner.get(owner, {}).values())

    def _end(self, pod: Pod) -> int | None:
        """Return the moment up to which a pod that has gone now is live; None where its node has stopped it.

        The kubelet deletes a pod once all containers have stopped, and that shows in its last status. One that was gone
        only when its grace was over has been stopped as well.
        """
        now = self._now()
        if pod.ended is not None:
            return None
        before = pod.life()
        if before.deleted is not None and not before.is_forced and before.deleted <= now:
            return None
        end = ends_at(pod.life(now))
        return end if end is not None and end > now else None

    def _forget_ended(self) -> None:
        while self._ends and self._ends[0][0] <= self._now():
            self._drop(*heapq.heappop(self._ends)[1:])

    def _drop(self, owner: str, uid: str) -> None:
        pods = self._by_owner.get(owner, {})
        pods.pop(uid, None)
        if not pods:
            self._by_owner.pop(owner, None)
        self._usage.pop(uid, None)
        group = self._groups.pop(uid, "")
        charged = self._charged.get(group, {})
        charged.pop(uid, None)
        if not charged:
            self._charged.pop(group, None)


def _owner(pod: Pod) -> str:
    return pod.owner.uid if pod.owner is not None else pod.uid
