"""Reads ends and moves of pods from the watch.

This file alone decides when a deleted pod ended and which changes the record must learn at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bizrq.hours.metering import Interval, UsageRate
from bizrq.units.times import LONGEST, parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from controller.hours.allocations import workload_name
from controller.hours.pod_rates import PodRates
from controller.hours.transitions import FinishedInterval, Transitions
from controller.watch.cluster import UNHURRIED, Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]


class PodTransitions:
    """Notes ends and moves of pods in `Transitions`, and which pods change while intervals are collected."""

    def __init__(
        self,
        cluster: Cluster,
        rates: PodRates,
        transitions: Transitions,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._rates = rates
        self._transitions = transitions
        self._enqueue = enqueue
        self._now = now
        #: The latest time at which a pod that is being deleted has to be over, by uid.
        self._deadlines: dict[str, int] = {}
        #: The group that last paid for each pod, by uid.
        self._groups: dict[str, str] = {}
        #: One set of changed uids for each collection in progress.
        self._changed: list[set[str]] = []

    @contextmanager
    def tracking_changes(self) -> Iterator[set[str]]:
        """Collect the uids of pods that change meanwhile."""
        changed: set[str] = set()
        self._changed.append(changed)
        try:
            yield changed
        finally:
            # By identity: the sets of two collections may be equal.
            self._changed[:] = (each for each in self._changed if each is not changed)

    def on_move(self, old: Object, new: Object) -> None:
        """Remember when a workload came to another group: its pods' hours end in one group and begin in the other."""
        now = self._now()
        self._transitions.note_move(new["metadata"]["uid"], now)
        left, entered = self._cluster.ownership.group_of(old), self._cluster.ownership.group_of(new)
        for pod in self._cluster.descendants.pods_of(new):
            self._transitions.note_departure(pod.uid, left, entered, now)
            self._note_change(pod.uid)
        self._transitions.forget_old(now)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Note a pod's change. Enqueue its group if the pod started or ended."""
        pod = new or old
        if pod is None or pod.started is None:
            return
        self._note_change(pod.uid)
        _, deadline = _deletion(pod)
        if deadline is not None and new is not None:
            self._deadlines[pod.uid] = max(deadline, self._deadlines.get(pod.uid, deadline))
        found = self._cluster.ownership.workload_of(pod.plain())
        group = self._cluster.ownership.group_of(found[1]) if found else self._groups.get(pod.uid)
        if group is not None:
            self._groups[pod.uid] = group
        if new is None:
            self._note_end(pod, group, found)
        if group is None:
            return
        if new is None or (old is not None and (new.ended is not None) != (old.ended is not None)):
            self._enqueue(group, 0.0)
        elif old is None or old.started is None:
            self._enqueue(group, UNHURRIED)

    def _note_change(self, uid: str) -> None:
        for changed in self._changed:
            changed.add(uid)

    def _note_end(self, pod: Pod, group: str | None, found: tuple[Adapter, Object] | None) -> None:
        """Note the end of a deleted pod. The watch says it once; a later list does not say when the pod ended."""
        end = self._end_of_deleted(pod)
        if end is not None:
            self._transitions.note_end(pod.uid, end)
        cost = self._rates.cost(pod, found[1]) if found and end is not None else None
        if group is not None and found is not None and cost is not None:
            start = max(pod.started or 0, self._transitions.moved_at(found[1]["metadata"]["uid"]))
            interval = Interval(start, end, UsageRate(workload_name(*found), ()))
            finished = FinishedInterval(interval, cost, "pods", pod.revision, self._now())
            self._transitions.note_finished(group, pod.uid, finished)
        self._groups.pop(pod.uid, None)
        self._transitions.forget_old(self._now())

    def _end_of_deleted(self, pod: Pod) -> int | None:
        """Return when a deleted pod ended: by its containers, else between the deletion request and its deadline.

        Request and deadline are times of the API server's clock; in between the controller's clock decides. None where
        neither the containers nor a deletion event nor a deadline is known.
        """
        requested, deadline = _deletion(pod)
        latest = self._deadlines.pop(pod.uid, deadline)
        was_seen = pod.revision == self._cluster.informers.pods.store.resource_version
        if pod.ended is not None or not (was_seen or latest is not None):
            return pod.ended
        end = self._now()
        end = end if latest is None else min(end, latest)
        return end if requested is None else max(end, requested)


def _deletion(pod: Pod) -> tuple[int | None, int | None]:
    """Return when a pod's deletion was requested and its deadline, both by the API server's clock."""
    metadata = (pod.rest or {}).get("metadata", {})
    if metadata.get("deletionTimestamp") is None:
        return None, None
    grace = int(metadata.get("deletionGracePeriodSeconds") or 0)
    if grace > LONGEST:
        # The time that is stored means nothing.
        return None, None
    latest = parse_timestamp(metadata["deletionTimestamp"])
    return latest - 1000 * grace, latest
