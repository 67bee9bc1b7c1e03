"""When pods began and ended, by their own timestamps, for the group that pays for them.

This file alone decides which stays the meter is told. How time becomes hours is `bizrq.quota.cash`'s question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from bizrq.quota.cash import Meter, Occupied, tick
from bizrq.quota.names import is_cash, uncash
from bizrq.quota.resources import Limits, Resources, restrict
from bizrq.workloads.adapters import builtin
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.counting import own_demand
from bizrq.workloads.labels import MODEL_LABELS, labels_of
from bizrq.workloads.lookup import Nothing
from bizrq.workloads.malformed import Malformed
from controller.cluster import Cluster
from controller.pods import Pod, Shapes

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_POD = next(adapter for adapter in builtin().adapters if (adapter.group, adapter.kind) == ("", "Pod"))
#: How long the end of a deleted pod is remembered, in milliseconds: far longer than a write takes.
_KEPT = 600_000


class Stays:
    """Remembers what the watch says only once: the ends of pods that are gone, and moves of their workloads."""

    def __init__(
        self,
        cluster: Cluster,
        config: CountingConfig,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
        cash_interval: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._enqueue = enqueue
        self._now = now
        self._interval = int(cash_interval * 1000)
        self._costs: dict[tuple[int, tuple[object, ...]], tuple[Object, Resources]] = {}
        self._ended: dict[str, int] = {}
        self._group: dict[str, str] = {}
        self._gone: dict[str, dict[str, Occupied]] = {}
        #: When a workload came to its group, by its uid, and when a pod left a group, by that and the pod's uid.
        self._moved: dict[str, int] = {}
        self._left: dict[tuple[str | None, str], int] = {}
        self._leading = False
        cluster.on_pod = self.on_pod
        cluster.on_move = self.on_move

    def begin(self) -> None:
        """We lead from now on: what ended before may have been settled by whoever led then."""
        self._gone.clear()
        self._leading = True

    def end(self) -> None:
        """Another leads from now on, and settles what ends."""
        self._gone.clear()
        self._leading = False

    def drop(self, group: str) -> None:
        """Forget what ended in a group that does not meter, or is no more."""
        self._gone.pop(group, None)

    def on_move(self, old: Object, new: Object) -> None:
        """Remember when a workload came to another group: its pods' hours end here and begin there."""
        uid, now = new["metadata"]["uid"], self._now()
        self._moved.pop(uid, None)
        self._moved[uid] = now
        left, entered = self._cluster.group_of(old), self._cluster.group_of(new)
        for pod in self._cluster.pods_of(new):
            self._left.pop((entered, pod.uid), None)
            self._left.pop((left, pod.uid), None)
            self._left[left, pod.uid] = now
        self._forget()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Take note of a pod's change, and have its group counted where the meter has to know at once."""
        pod = new or old
        if pod is None or pod.started is None:
            return
        found = self._cluster.workload_of(pod.plain())
        group = self._cluster.group_of(found[1]) if found else self._group.get(pod.uid)
        if group is None:
            return
        self._group[pod.uid] = group
        if new is None:
            self._note_end(pod, group, found[1] if found else None)
        if new is None or old is None or old.started is None or (new.ended is not None) != (old.ended is not None):
            self._enqueue(group, 0.0)

    def _note_end(self, pod: Pod, group: str, workload: Object | None) -> None:
        """A pod is gone: the watch says so only once."""
        end = self._ended[pod.uid] = pod.ended or self._now()
        if self._leading:
            moved = self._moved.get(workload["metadata"]["uid"]) if workload else None
            stay = self._stay(pod, end, moved or 0, self._cost(pod, workload))
            if stay is not None:
                self._gone.setdefault(group, {})[pod.uid] = stay
        del self._group[pod.uid]
        self._forget()

    def advance(self, meter: Meter, group: str, hard: Limits) -> tuple[Meter, Callable[[], None]]:
        """The group's meter moved on to now, and what to call once it is stored."""
        tracked = {uncash(name) for name in hard if is_cash(name)}
        if not tracked and not meter.running:
            self.drop(group)
            return meter, lambda: None
        now = self._now()
        # What ended and is gone stands among the stays until it is stored: a write whose reply is lost settles it once.
        gone = dict(self._gone.get(group, {}))
        here = self._stays(meter, group, tracked)
        stays = [*here.values(), *(stay._replace(cost=restrict(stay.cost, tracked)) for stay in gone.values())]
        for uid in meter.running:
            if uid not in here and uid not in gone and self._over(group, uid, now) is None:
                log.warning("pod vanished unseen: charged up to the last look", group=group, pod=uid)

        def move(to: int) -> Meter:
            return tick(meter, stays, to, ended=lambda uid: self._over(group, uid, now))

        moved = meter
        # Where nothing but time moves it, its interval says how often it is written.
        if now - meter.watermark >= self._interval or move(meter.watermark) != meter:
            moved = move(now)

        def stored() -> None:
            for uid in gone:
                self._gone.get(group, {}).pop(uid, None)

        return moved, stored

    def _stays(self, meter: Meter, group: str, tracked: set[str]) -> dict[str, Occupied]:
        """All pods that the group pays for now, and those it is already charged for that outlive their workload."""
        stays: dict[str, Occupied] = {}
        for _, workload in self._cluster.charged_to(group):
            moved = self._moved.get(workload["metadata"]["uid"], 0)
            # By spec: a workload has thousands of pods, and a handful of specs.
            costs: dict[int, Resources | None] = {}
            for pod in self._cluster.pods_of(workload):
                key = id(pod.spec)
                if key not in costs:
                    cost = self._cost(pod, workload)
                    costs[key] = cost and restrict(cost, tracked)
                stay = self._stay(pod, pod.ended, moved, costs[key])
                if stay is not None:
                    stays[pod.uid] = stay
        for uid in (*meter.running, *meter.finished):
            pod = None if uid in stays else self._cluster.pod(uid)
            if pod is None or pod.started is None:
                continue
            found = self._cluster.workload_of(pod.plain())
            if found is None or self._cluster.group_of(found[1]) == group or uid in meter.finished:
                stays[uid] = Occupied(uid, pod.started, pod.ended, {})
        return stays

    def _over(self, group: str, uid: str, now: int) -> int | None:
        """When a pod that the group no longer pays for moved away or ended; None where nobody saw it."""
        lives = self._cluster.pod(uid) is not None
        return self._left.get((group, uid), self._ended.get(uid, now if lives else None))

    def _stay(self, pod: Pod, end: int | None, moved: int, cost: Resources | None) -> Occupied | None:
        if pod.started is None or cost is None:
            return None
        return Occupied(pod.uid, max(pod.started, moved), end, cost)

    def _cost(self, pod: Pod, payer: Object | None) -> Resources | None:
        """What a pod occupies under the models of its workload, over or not; None where it cannot be counted.

        A stored pod is complete in itself: nothing else is asked.
        """
        try:
            labels = labels_of(payer) if payer else pod.labels
            # The specs of equal pods are one object (`pods.Shapes`), which the memory keeps alive, and so its id.
            key = id(pod.spec), tuple(labels.get(label) for label in MODEL_LABELS.values())
            known = self._costs.get(key)
            if known is not None and known[0] is pod.spec:
                return known[1]
            running = {"metadata": {"namespace": pod.namespace, "labels": labels}, "spec": pod.spec}
            cost = own_demand(running, _POD, Nothing(), self._config).resources
        except Malformed as error:
            log.warning("pod not metered", pod=pod.uid, error=str(error))
            return None
        found = {name: amount for name, amount in cost.items() if not name.startswith("count/")}
        if len(self._costs) >= Shapes.MOST:
            self._costs.clear()
        self._costs[key] = pod.spec, found
        return found

    def _forget(self) -> None:
        horizon = self._now() - _KEPT
        for noted in (self._ended, self._moved, self._left):
            _forget_before(noted, horizon)


def _forget_before(noted: dict[Any, int], horizon: int) -> None:
    """What was noted stands in that order: most often one look at the oldest is enough."""
    while noted and noted[oldest := next(iter(noted))] < horizon:
        del noted[oldest]
