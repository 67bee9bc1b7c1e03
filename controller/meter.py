"""When pods and their claims began and ended, by their own timestamps, for the group that pays for them.

This file alone decides which stays the meter is told. How time becomes hours is `bizrq.quota.cash`'s question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import structlog

from bizrq.quota.cash import Meter, Occupied, tick
from bizrq.quota.ledger import milliseconds
from bizrq.quota.names import is_cash, uncash
from bizrq.quota.resources import Limits, Resources, restrict
from bizrq.workloads.malformed import Malformed
from controller.cluster import Cluster
from controller.evidence import Evidence, is_allocated, payer_of_claim
from controller.pods import Pod

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_User: TypeAlias = tuple[Pod, Object]
"""A pod, and the workload that pays for it."""

#: How long the end of a deleted pod is remembered, in milliseconds: far longer than a write takes.
_KEPT = 600_000


class Stays:
    """Remembers what the watch says only once: ends of pods and of claims' allocations, and moves of workloads."""

    def __init__(
        self,
        cluster: Cluster,
        evidence: Evidence,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
        cash_interval: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._evidence = evidence
        self._enqueue = enqueue
        self._now = now
        self._interval = int(cash_interval * 1000)
        #: Who uses an allocated claim, by its uid; and when it was first seen so, where nobody says since when it is.
        self._users: dict[str, dict[str, _User]] = {}
        self._seen: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._group: dict[str, str] = {}
        self._gone: dict[str, dict[str, Occupied]] = {}
        #: When a workload came to its group, by its uid, and when a pod left a group, by that and the pod's uid.
        self._moved: dict[str, int] = {}
        self._left: dict[tuple[str | None, str], int] = {}
        self._leading = False
        cluster.on_pod = self.on_pod
        cluster.on_move = self.on_move
        cluster.on_claim = self.on_claim

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
        with_claims: list[tuple[Pod, Object]] = []
        for _, workload in self._cluster.charged_to(group):
            moved = self._moved.get(workload["metadata"]["uid"], 0)
            # By what they have in common: a workload has thousands of pods, and a handful of costs.
            costs: dict[object, Resources | None] = {}
            for pod in self._cluster.pods_of(workload):
                key = self._evidence.alike(pod)
                if key not in costs:
                    cost = self._cost(pod, workload)
                    costs[key] = cost and restrict(cost, tracked)
                stay = self._stay(pod, pod.ended, moved, costs[key])
                if stay is not None:
                    stays[pod.uid] = stay
                if self._evidence.may_have_claims(pod):
                    with_claims.append((pod, workload))
        for key, stay in self._stays_of_claims(meter, group, with_claims).items():
            stays[key] = stay._replace(cost=restrict(stay.cost, tracked))
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
        lives = self._cluster.pod(uid) is not None or self._claim(uid) is not None
        return self._left.get((group, uid), self._ended.get(uid, now if lives else None))

    def _stay(self, pod: Pod, end: int | None, moved: int, cost: Resources | None) -> Occupied | None:
        if pod.started is None or cost is None:
            return None
        return Occupied(pod.uid, max(pod.started, moved), end, cost)

    def _cost(self, pod: Pod, payer: Object | None) -> Resources | None:
        """What a pod occupies besides its claims; None where it cannot be counted."""
        try:
            return self._evidence.cost(pod, payer)
        except Malformed as error:
            log.warning("pod not metered", pod=pod.uid, error=str(error))
            return None

    # Claims: from their allocation to their deallocation, once, however many pods share them (spec: devices, T3).

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Take note of a claim's change, and have its group counted where the meter has to know at once."""
        before = self._allocation(old) if old is not None else None
        after = self._allocation(new) if new is not None else None
        if before == after:
            return
        users: dict[str, _User] = {}
        if old is not None and before is not None:
            users = self._users_of(old)
            self._note_deallocation(old, before, users)
        if new is not None and after is not None:
            users |= self._users_of(new)
        for group in users:
            self._enqueue(group, 0.0)

    def _note_deallocation(self, claim: Object, key: str, users: dict[str, _User]) -> None:
        """A claim's devices are free again: the watch says so only once."""
        self._ended.pop(key, None)
        end = self._ended[key] = self._now()
        for group, user in users.items():
            stay = self._stay_of_claim(claim, key, end, *user) if self._leading else None
            if stay is not None:
                self._gone.setdefault(group, {})[key] = stay
        uid = claim["metadata"]["uid"]
        self._users.pop(uid, None)
        self._seen.pop(uid, None)
        self._forget()

    def _allocation(self, claim: Object) -> str | None:
        """The name of one allocation of a claim, by which its hours are stored; None while nothing is allocated."""
        return f"{claim['metadata']['uid']}@{self._allocated(claim)}" if is_allocated(claim) else None

    def _allocated(self, claim: Object) -> int:
        """When a claim was allocated: as the scheduler says, which it need not, else when that was first seen."""
        told = claim["status"]["allocation"].get("allocationTimestamp")
        return milliseconds(told) if told else self._seen.setdefault(claim["metadata"]["uid"], self._now())

    def _users_of(self, claim: Object) -> dict[str, _User]:
        """The groups that pay for an allocated claim, each with a pod that uses it and the pod's workload.

        Those of before, where no pod is left: a claim outlives its pods by the moment that its deallocation takes.
        """
        found: dict[str, _User] = {}
        for pod in self._evidence.pods_using(claim):
            workload = self._cluster.workload_of(pod.plain())
            group = self._cluster.group_of(workload[1]) if workload else None
            if workload is not None and group is not None:
                found.setdefault(group, (pod, workload[1]))
        payer = payer_of_claim(claim)
        if payer is not None:
            found = {group: user for group, user in found.items() if group == payer}
        if not found:
            return self._users.get(claim["metadata"]["uid"], {})
        self._users[claim["metadata"]["uid"]] = found
        return found

    def _stay_of_claim(self, claim: Object, key: str, end: int | None, pod: Pod, workload: Object) -> Occupied | None:
        try:
            cost = self._evidence.cost_of_claim(claim, pod, workload)
        except Malformed as error:
            log.warning("claim not metered", claim=claim["metadata"]["name"], error=str(error))
            return None
        moved = self._moved.get(workload["metadata"]["uid"], 0)
        return Occupied(key, max(self._allocated(claim), moved), end, cost)

    def _stays_of_claims(self, meter: Meter, group: str, pods: Iterable[tuple[Pod, Object]]) -> dict[str, Occupied]:
        """The allocated claims of the group's pods, once each, and those charged already that outlive their pods."""
        stays: dict[str, Occupied] = {}
        for key in (*meter.running, *meter.finished):
            uid, allocation, since = key.partition("@")
            if allocation:
                # Another process may have seen it first, and said so.
                self._seen[uid] = int(since)
        for pod, workload in pods:
            for uid, claim in self._evidence.claims_of(pod).items():
                if payer_of_claim(claim) in (None, group) and (key := self._allocation(claim)) not in (None, *stays):
                    stay = self._stay_of_claim(claim, key, None, pod, workload)
                    if stay is not None:
                        stays[key] = stay
                        self._users.setdefault(uid, {}).setdefault(group, (pod, workload))
        for key in (*meter.running, *meter.finished):
            claim = self._claim(key)
            if claim is None or key in stays:
                continue
            users = self._users_of(claim)
            if not users or group in users or key in meter.finished:
                stays[key] = Occupied(key, self._allocated(claim), None, {})
        return stays

    def _claim(self, key: str) -> Object | None:
        """The claim that still has this allocation."""
        uid, allocation, _ = key.partition("@")
        claim = self._cluster.claims.store.by_uid(uid) if allocation else None
        return claim if claim is not None and self._allocation(claim) == key else None

    def _forget(self) -> None:
        horizon = self._now() - _KEPT
        for noted in (self._ended, self._moved, self._left):
            _forget_before(noted, horizon)


def _forget_before(noted: dict[Any, int], horizon: int) -> None:
    """What was noted stands in that order: most often one look at the oldest is enough."""
    while noted and noted[oldest := next(iter(noted))] < horizon:
        del noted[oldest]
