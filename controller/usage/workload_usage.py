"""What one workload adds to its group: its cost, what its pods show beyond that, and what there is to tell of it.

This file alone brings these together for one workload, at one moment; it awaits nothing and keeps nothing. Lines are
added up and kept by `controller.usage.usage_cache`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bizrq.hours.budget import BudgetTerms, max_cost, remaining_commitment, run_start
from bizrq.quota.recount import CountedObject
from bizrq.units.resources import Resources, add, growth, subtract_floor
from bizrq.units.slot import Slot
from bizrq.units.times import TimestampError, parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Reference
from bizrq.workloads.pods.roles import max_run_time, run_started_at
from bizrq.workloads.validation import Malformed
from controller.usage.observed_usage import ObservedUsage
from controller.usage.workload_cost import WorkloadCosts, slot_of
from controller.watch.cluster import Cluster, Object
from controller.watch.pods import Pod


@dataclass(frozen=True, slots=True)
class PrepaidRun:
    """How long the workloads of a group whose hours are safe may run, and the moment that what is to come begins."""

    most: int | None
    at: int

    @staticmethod
    def of(terms: BudgetTerms, at: int) -> PrepaidRun | None:
        return PrepaidRun(terms.max_run_time, at) if terms.safe else None


@dataclass(frozen=True, slots=True)
class Messages:
    """What people have to know of a workload."""

    problem: str = ""
    excess: str = ""
    unbounded: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()


NO_MESSAGES = Messages()


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """One workload in the sums of its group.

    `shared` is what it makes of claims that others may name too, `shown` what its pods show of them, and `committed`
    what each of those may cost where hours are safe. `is_transient` where it may be another without any change that a
    watch tells; `is_unknown` where the workload could never be counted. `asked` is all that it was counted by.
    """

    counted: CountedObject
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    shown: Mapping[Slot, Resources] = field(default_factory=dict)
    committed: Mapping[Slot, CountedObject] = field(default_factory=dict)
    messages: Messages = NO_MESSAGES
    is_unknown: bool = False
    is_transient: bool = False
    asked: Collection[Reference] = ()

    def equals(self, other: WorkloadUsage) -> bool:
        """Whether both come to the same: words may differ by the order in which pods came."""
        return (self.counted, self.shared, self.shown, self.committed, self.is_unknown) == (
            other.counted,
            other.shared,
            other.shown,
            other.committed,
            other.is_unknown,
        )


class UsageBuilder:
    """Makes lines of what was counted and of what the informers have."""

    def __init__(self, cluster: Cluster, costs: WorkloadCosts, observed: ObservedUsage) -> None:
        self._cluster = cluster
        self._costs = costs
        self._observed = observed

    def of(self, adapter: Adapter, obj: Object, run: PrepaidRun | None, now: int) -> WorkloadUsage:
        """The line of a workload that was counted; `run` where hours are safe. KeyError for what never was counted."""
        uid, slot = obj["metadata"]["uid"], slot_of(adapter, obj)
        cost = self._costs.of(uid)
        unbounded: list[Slot] = []
        with self._observed.tracking() as asked:
            shown = self._observed.unrequested(obj, now, countable=not cost.problem)
            # Of what cannot be counted the pods show all that they have, and some of it is what it is held at.
            more = growth(shown.resources, cost.resources) if cost.problem else shown.resources
            counted = CountedObject(slot, uid, cost.resources, add(cost.excess, more))
            pledged: dict[Slot, CountedObject] = {}
            if run is not None:
                counted = self._with_commitment(counted, adapter, obj, run, unbounded)
                for place, claim in cost.shared.items():
                    pledged[place] = self._with_commitment(
                        CountedObject(place, "", claim), adapter, obj, run, unbounded
                    )
        words = Messages(
            f"{slot}: {cost.problem}" if cost.problem else "",
            cost.finding,
            tuple(map(str, unbounded)),
            tuple(f"{slot} {finding}" for finding in shown.findings),
        )
        return WorkloadUsage(
            counted,
            cost.shared,
            shown.shared,
            pledged,
            NO_MESSAGES if words == NO_MESSAGES else words,
            bool(cost.problem) and not self._costs.was_counted(uid),
            not cost.settled or shown.is_transient,
            {*cost.asked, *asked},
        )

    def _with_commitment(
        self, found: CountedObject, adapter: Adapter, obj: Object, run: PrepaidRun, unbounded: list[Slot]
    ) -> CountedObject:
        """A workload with what it may cost where hours are safe: it was admitted only because that was left."""
        own = max_run_time(obj, adapter)
        most = run.most if own is None else own
        if most is None:
            if any(not name.startswith("count/") for name in found.cost):
                unbounded.append(found.slot)
            return found
        whole = max_cost(found.cost, most)
        if (since := _instant(run_started_at(obj, adapter))) is not None:
            starts = (pod.started for pod in self._cluster.descendants.pods_of(obj))
            scheduled = min((start for start in starts if start is not None), default=None)
            return replace(
                found,
                max_cost=whole,
                committed=remaining_commitment(found.cost, most, run.at - run_start(since, scheduled)),
            )
        # Nobody says since when: each of its pods may run as long.
        ran: Resources = {}
        for pod in self._cluster.descendants.pods_of(obj):
            if pod.started is not None and pod.ended is None:
                ran = add(ran, max_cost(self._pod_cost(pod, obj), min(most, max(0, run.at - pod.started))))
        return replace(found, max_cost=whole, committed=subtract_floor(whole, ran))

    def _pod_cost(self, pod: Pod, obj: Object) -> Resources:
        """What a pod occupies; nothing where it cannot be counted, so that its workload may still cost as much."""
        try:
            return self._observed.cost(pod, obj)
        except Malformed:
            return {}


def _instant(text: str | None) -> int | None:
    """A time as milliseconds; None where there is none that can be read."""
    try:
        return parse_timestamp(text) if text else None
    except TimestampError:
        return None
