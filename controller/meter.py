"""When pods began and ended, by their own timestamps, for the group that pays for them.

This file alone decides which stays the meter is told. How time becomes hours is `bizrq.quota.cash`'s question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from bizrq.quota.cash import Meter, Occupied, tick
from bizrq.quota.names import is_cash, uncash
from bizrq.quota.resources import Limits, restrict
from bizrq.workloads.adapters import Adapter, builtin
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.counting import own_demand
from bizrq.workloads.labels import MODEL_LABELS, labels_of
from bizrq.workloads.lookup import Nothing
from bizrq.workloads.malformed import Malformed
from controller.cluster import Cluster
from controller.pods import Shapes, ended, started

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
        self._costs: dict[tuple[int, tuple[object, ...]], tuple[Object, dict[str, int]]] = {}
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
        now = self._moved[new["metadata"]["uid"]] = self._now()
        for pod in self._cluster.pods_of(new):
            uid = pod["metadata"]["uid"]
            self._left.pop((self._cluster.group_of(new), uid), None)
            self._left[self._cluster.group_of(old), uid] = now
        self._forget()

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """Take note of a pod's change, and have its group counted where the meter has to know at once."""
        pod = new or old
        if pod is None or started(pod) is None:
            return
        uid = pod["metadata"]["uid"]
        found = self._cluster.workload_of(pod)
        group = self._cluster.group_of(found[1]) if found else self._group.get(uid)
        if group is None:
            return
        self._group[uid] = group
        if new is None:
            end = self._ended[uid] = ended(pod) or self._now()
            stay = self._stay(pod, found, end) if self._leading else None
            if stay is not None:
                self._gone.setdefault(group, {})[uid] = stay
            del self._group[uid]
            self._forget()
        if new is None or old is None or started(old) is None or (ended(new) is not None) != (ended(old) is not None):
            self._enqueue(group, 0.0)

    def advance(self, meter: Meter, group: str, hard: Limits) -> tuple[Meter, Callable[[], None]]:
        """The group's meter moved on to now, and what to call once it is stored."""
        tracked = {uncash(name) for name in hard if is_cash(name)}
        if not tracked and not meter.running:
            self.drop(group)
            return meter, lambda: None
        now = self._now()
        # What ended and is gone stands among the stays until it is stored: a write whose reply is lost settles it once.
        gone = dict(self._gone.get(group, {}))
        stays = [*self._stays(meter, group, tracked), *(_only(stay, tracked) for stay in gone.values())]
        for uid in meter.running:
            if uid not in gone and self._over(group, uid, now) is None:
                log.warning("pod vanished unseen: charged up to the last look", group=group, pod=uid)

        def move(to: int) -> Meter:
            return tick(meter, stays, to, ended=lambda uid: self._over(group, uid, now))

        moved = move(meter.watermark)
        if moved != meter or now - meter.watermark >= self._interval:
            moved = move(now)

        def stored() -> None:
            for uid in gone:
                self._gone.get(group, {}).pop(uid, None)

        return moved, stored

    def _stays(self, meter: Meter, group: str, tracked: set[str]) -> list[Occupied]:
        """All pods that the group pays for now, and those it is already charged for that outlive their workload."""
        stays: dict[str, Occupied] = {}
        for adapter, workload in self._cluster.charged_to(group):
            for pod in self._cluster.pods_of(workload):
                stay = self._stay(pod, (adapter, workload), ended(pod))
                if stay is not None:
                    stays[stay.uid] = _only(stay, tracked)
        for uid in (*meter.running, *meter.finished):
            pod = self._cluster.pods.store.by_uid(uid)
            if uid in stays or pod is None:
                continue
            found = self._cluster.workload_of(pod)
            if found is None or self._cluster.group_of(found[1]) == group or uid in meter.finished:
                start = started(pod)
                if start is not None:
                    stays[uid] = Occupied(uid, start, ended(pod), {})
        return list(stays.values())

    def _over(self, group: str, uid: str, now: int) -> int | None:
        """When a pod that the group no longer pays for moved away or ended; None where nobody saw it."""
        lives = self._cluster.pods.store.by_uid(uid) is not None
        return self._left.get((group, uid), self._ended.get(uid, now if lives else None))

    def _stay(self, pod: Object, found: tuple[Adapter, Object] | None, end: int | None) -> Occupied | None:
        start = started(pod)
        if start is None:
            return None
        uid = pod["metadata"]["uid"]
        try:
            cost = self._cost(pod, found[1] if found else pod)
        except Malformed as error:
            log.warning("pod not metered", pod=uid, error=str(error))
            return None
        moved = self._moved.get(found[1]["metadata"]["uid"]) if found else None
        return Occupied(uid, max(start, moved or start), end, cost)

    def _cost(self, pod: Object, payer: Object) -> dict[str, int]:
        """What a pod occupies under the models of its workload, over or not. A stored pod is complete in itself."""
        labels = labels_of(payer)
        # The specs of equal pods are one object (`pods.Shapes`), which the memory keeps alive, and so its id.
        key = id(pod["spec"]), tuple(labels.get(label) for label in MODEL_LABELS.values())
        known = self._costs.get(key)
        if known is not None and known[0] is pod["spec"]:
            return known[1]
        running = {**pod, "metadata": {**pod["metadata"], "labels": labels}, "status": {}}
        cost = own_demand(running, _POD, Nothing(), self._config).resources
        found = {name: amount for name, amount in cost.items() if not name.startswith("count/")}
        if len(self._costs) >= Shapes.MOST:
            self._costs.clear()
        self._costs[key] = pod["spec"], found
        return found

    def _forget(self) -> None:
        horizon = self._now() - _KEPT
        self._ended = {uid: at for uid, at in self._ended.items() if at >= horizon}
        self._moved = {uid: at for uid, at in self._moved.items() if at >= horizon}
        self._left = {key: at for key, at in self._left.items() if at >= horizon}


def _only(stay: Occupied, tracked: set[str]) -> Occupied:
    return Occupied(stay.uid, stay.start, stay.end, restrict(stay.cost, tracked))
