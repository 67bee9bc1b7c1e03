"""What one workload adds to its group: its cost, what its pods show beyond that, and what there is to tell of it.

This file alone brings these together for one workload, at one moment; it awaits nothing and keeps nothing. Lines are
added up and kept by `controller.usage.usage_cache`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bizrq.hours.budget import Terms, began, lien, possible
from bizrq.quota.recount import Counted
from bizrq.units.resources import Resources, add, growth, subtract_floor
from bizrq.units.slot import Slot
from bizrq.units.times import TimestampError, milliseconds
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Reference
from bizrq.workloads.pods.roles import longest_run, runs_since
from bizrq.workloads.validation import Malformed
from controller.usage.observed_usage import Evidence
from controller.usage.workload_cost import Costs, slot_of
from controller.watch.cluster import Cluster, Object
from controller.watch.pods import Pod


@dataclass(frozen=True, slots=True)
class Run:
    """How long the workloads of a group whose hours are safe may run, and the moment that what is to come begins."""

    most: int | None
    at: int

    @staticmethod
    def of(terms: Terms, at: int) -> Run | None:
        return Run(terms.max_run_time, at) if terms.safe else None


@dataclass(frozen=True, slots=True)
class Words:
    """What people have to know of a workload."""

    problem: str = ""
    surplus: str = ""
    unbounded: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()


SILENCE = Words()


@dataclass(frozen=True, slots=True)
class Line:
    """One workload in the sums of its group.

    `shared` is what it makes of claims that others may name too, `shown` what its pods show of them, and `pledged` what
    each of those may cost where hours are safe. `passes` where it may be another without any change that a watch
    tells; `is_unknown` where the workload could never be counted. `asked` is all that it was counted by.
    """

    counted: Counted
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    shown: Mapping[Slot, Resources] = field(default_factory=dict)
    pledged: Mapping[Slot, Counted] = field(default_factory=dict)
    words: Words = SILENCE
    is_unknown: bool = False
    passes: bool = False
    asked: Collection[Reference] = ()

    def agrees(self, other: Line) -> bool:
        """Whether both come to the same: words may differ by the order in which pods came."""
        return (self.counted, self.shared, self.shown, self.pledged, self.is_unknown) == (
            other.counted,
            other.shared,
            other.shown,
            other.pledged,
            other.is_unknown,
        )


class Lines:
    """Makes lines of what was counted and of what the informers have."""

    def __init__(self, cluster: Cluster, costs: Costs, evidence: Evidence) -> None:
        self._cluster = cluster
        self._costs = costs
        self._evidence = evidence

    def of(self, adapter: Adapter, obj: Object, run: Run | None, now: int) -> Line:
        """The line of a workload that was counted; `run` where hours are safe. KeyError for what never was counted."""
        uid, slot = obj["metadata"]["uid"], slot_of(adapter, obj)
        cost = self._costs.of(uid)
        unbounded: list[Slot] = []
        with self._evidence.noting() as asked:
            shown = self._evidence.beyond(obj, now, countable=not cost.problem)
            # Of what cannot be counted the pods show all that they have, and some of it is what it is held at.
            more = growth(shown.resources, cost.resources) if cost.problem else shown.resources
            counted = Counted(slot, uid, cost.resources, add(cost.beyond, more))
            pledged: dict[Slot, Counted] = {}
            if run is not None:
                counted = self._pledged(counted, adapter, obj, run, unbounded)
                for place, claim in cost.shared.items():
                    pledged[place] = self._pledged(Counted(place, "", claim), adapter, obj, run, unbounded)
        words = Words(
            f"{slot}: {cost.problem}" if cost.problem else "",
            cost.finding,
            tuple(map(str, unbounded)),
            tuple(f"{slot} {finding}" for finding in shown.findings),
        )
        return Line(
            counted,
            cost.shared,
            shown.shared,
            pledged,
            SILENCE if words == SILENCE else words,
            bool(cost.problem) and not self._costs.was_counted(uid),
            not cost.settled or shown.passes,
            {*cost.asked, *asked},
        )

    def _pledged(self, found: Counted, adapter: Adapter, obj: Object, run: Run, unbounded: list[Slot]) -> Counted:
        """A workload with what it may cost where hours are safe: it was admitted only because that was left."""
        own = longest_run(obj, adapter)
        most = run.most if own is None else own
        if most is None:
            if any(not name.startswith("count/") for name in found.cost):
                unbounded.append(found.slot)
            return found
        whole = possible(found.cost, most)
        if (since := _instant(runs_since(obj, adapter))) is not None:
            starts = (pod.started for pod in self._cluster.pods_of(obj))
            scheduled = min((start for start in starts if start is not None), default=None)
            return replace(found, whole=whole, lien=lien(found.cost, most, run.at - began(since, scheduled)))
        # Nobody says since when: each of its pods may run as long.
        ran: Resources = {}
        for pod in self._cluster.pods_of(obj):
            if pod.started is not None and pod.ended is None:
                ran = add(ran, possible(self._pod_cost(pod, obj), min(most, max(0, run.at - pod.started))))
        return replace(found, whole=whole, lien=subtract_floor(whole, ran))

    def _pod_cost(self, pod: Pod, obj: Object) -> Resources:
        """What a pod occupies; nothing where it cannot be counted, so that its workload may still cost as much."""
        try:
            return self._evidence.cost(pod, obj)
        except Malformed:
            return {}


def _instant(text: str | None) -> int | None:
    """A time as milliseconds; None where there is none that can be read."""
    try:
        return milliseconds(text) if text else None
    except TimestampError:
        return None
