"""The usage of one workload: its cost, what its pods show beyond that, and its messages.

This file alone combines these for one workload at one moment. It awaits nothing and remembers nothing;
`controller.usage.usage_cache` sums and caches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bizrq.api import group as wire
from bizrq.hours.budget import BudgetTerms, exact_cost, max_cost, remaining_commitment, run_start
from bizrq.quota.recount import CountedObject
from bizrq.units.resources import Resources, add, growth, subtract_floor
from bizrq.units.slot import Slot
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import Models, models_of
from bizrq.workloads.lookup import Reference
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import place_of
from bizrq.workloads.pods.roles import max_run_time, max_run_time_left, run_started_at
from bizrq.workloads.validation import Malformed
from controller.usage.observed_usage import ObservedUsage
from controller.usage.pod_charge import Overlap
from controller.usage.workload_cost import WorkloadCosts, slot_of
from controller.watch.cluster import Cluster, Object
from controller.watch.ownership import as_left
from controller.watch.pods import Pod


@dataclass(frozen=True, slots=True)
class PrepaidRun:
    """The maximum run time of a group with prepaid hours, and the time up to which hours are spent, in milliseconds."""

    most: int | None
    at: int

    @staticmethod
    def of(terms: BudgetTerms, at: int) -> PrepaidRun | None:
        """Return the run of a group with these terms. None where its hours are not prepaid."""
        return PrepaidRun(terms.max_run_time, at) if terms.safe else None


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages about one workload."""

    problem: str = ""
    unreadable: str = ""
    excess: str = ""
    overlap: str = ""
    #: A line of `status.ending`.
    ending: str = ""
    unbounded: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()


NO_MESSAGES = Messages()


@dataclass(frozen=True, slots=True)
class WorkloadUsage:
    """The usage of one workload in the sums of its group.

    `shared` is what it declares of claims that others may name too, `shown` what its pods show of them, and `committed`
    what each of those may cost where hours are prepaid. `is_transient`: it can change without a watch event.
    `is_unknown`: the workload could never be counted. `asked` has all references that it was counted by. `again` is the
    first moment at which the clock alone changes it, in milliseconds since 1970. `overlap` is what runs besides the
    declared pods.
    """

    counted: CountedObject
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    shown: Mapping[Slot, Resources] = field(default_factory=dict)
    committed: Mapping[Slot, CountedObject] = field(default_factory=dict)
    messages: Messages = NO_MESSAGES
    is_unknown: bool = False
    is_transient: bool = False
    asked: Collection[Reference] = ()
    again: int | None = None
    #: The uids of the workload and of the objects below it that make its pods, with the place and the models of who
    #: pays for them; and the payer that left it.
    makers: Sequence[str] = ()
    place: str = ""
    models: Models = ()
    left: Memory | None = None
    overlap: Overlap | None = None
    #: What pods cost and what is asked for below it beyond what it asks for, which no overlap explains.
    surplus: Resources = field(default_factory=dict)
    vanished: Sequence[str] = ()

    def equals(self, other: WorkloadUsage) -> bool:
        """Return True if both have equal amounts. Messages may differ by the order of pods."""
        return (self.counted, self.shared, self.shown, self.committed, self.is_unknown) == (
            other.counted,
            other.shared,
            other.shown,
            other.committed,
            other.is_unknown,
        )


class UsageBuilder:
    """Builds the usage of workloads from their cost and from the informers."""

    def __init__(self, cluster: Cluster, costs: WorkloadCosts, observed: ObservedUsage) -> None:
        self._cluster = cluster
        self._costs = costs
        self._observed = observed

    def of(
        self, adapter: Adapter, stored: Object, left: Memory | None, run: PrepaidRun | None, now: int
    ) -> WorkloadUsage:
        """Return the usage of a workload that `left` has let go, if any; `run` is there where hours are prepaid.

        Raises KeyError if it was never counted.
        """
        obj = as_left(stored, left)
        uid, slot = obj["metadata"]["uid"], slot_of(adapter, obj)
        cost = self._costs.of(uid)
        unbounded: list[Slot] = []
        with self._observed.tracking() as asked:
            shown = self._observed.unrequested(obj, now, countable=not cost.problem)
            # The pods of an uncountable workload show all that they use, which includes what it is held at.
            more = growth(shown.resources, cost.resources) if cost.problem else shown.resources
            counted = CountedObject(
                slot,
                uid,
                cost.resources,
                add(cost.excess, more),
                demand=cost.resources if cost.floor is not None else None,
                floor=cost.floor,
            )
            pledged: dict[Slot, CountedObject] = {}
            if run is not None:
                counted = self._with_commitment(counted, adapter, obj, run, unbounded)
                for place, claim in cost.shared.items():
                    pledged[place] = self._with_commitment(
                        CountedObject(place, "", claim), adapter, obj, run, unbounded
                    )
        words = Messages(
            f"{slot}: {cost.problem}" if cost.problem else "",
            f"{slot}: {cost.unreadable}" if cost.unreadable else "",
            cost.finding,
            f"{slot}: {overlap_message(cost.overlap)}" if cost.overlap is not None else "",
            _ending_line(slot, cost.overlap) if cost.overlap is not None else "",
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
            cost.again,
            self._cluster.descendants.makers_of(obj),
            place_of(obj),
            models_of(obj),
            left,
            cost.overlap,
            cost.surplus,
            cost.vanished,
        )

    def _with_commitment(
        self, found: CountedObject, adapter: Adapter, obj: Object, run: PrepaidRun, unbounded: list[Slot]
    ) -> CountedObject:
        """Return a workload with its maximum cost, which its group committed at admission."""
        own = max_run_time(obj, adapter)
        most = run.most if own is None else own
        if most is None:
            if any(not name.startswith("count/") for name in found.cost):
                unbounded.append(found.slot)
            return found
        whole = max_cost(found.cost, most)
        if (left := max_run_time_left(obj, adapter)) is not None:
            most = left
        if (since := _instant(run_started_at(obj, adapter))) is not None:
            starts = (pod.started for pod in self._cluster.descendants.pods_of(obj))
            scheduled = min((start for start in starts if start is not None), default=None)
            return replace(
                found,
                max_cost=whole,
                committed=remaining_commitment(found.cost, most, run.at - run_start(since, scheduled)),
            )
        # Without a start time, each of its pods may run as long.
        outlasts = False
        ran: Resources = {}
        for pod in self._cluster.descendants.pods_of(obj):
            if pod.started is not None and pod.ended is None:
                ran = add(ran, exact_cost(self._pod_cost(pod, obj), min(most, max(0, run.at - pod.started))))
                outlasts = outlasts or run.at - pod.started > most
        if own is None and outlasts:
            # The group's maximum ends nothing.
            unbounded.append(found.slot)
        return replace(found, max_cost=whole, committed=subtract_floor(exact_cost(found.cost, most), ran))

    def _pod_cost(self, pod: Pod, obj: Object) -> Resources:
        """Return what a pod occupies. Nothing if it cannot be counted, so that its workload's commitment stays."""
        try:
            return self._observed.cost(pod, obj)
        except Malformed:
            return {}


def overlap_message(overlap: Overlap) -> str:
    """Return what people read of pods that run besides those that a workload asks for."""
    pods = [f"{overlap.ending} ending"] if overlap.ending else []
    pods += [f"{overlap.beyond} that a rollout has had for more than ten minutes"] if overlap.beyond else []
    pods += [f"{overlap.older} of an older version that asks for more"] if overlap.older else []
    since = f" since {format_timestamp(overlap.since)}" if overlap.since is not None else ""
    until = f" until {format_timestamp(overlap.until)} at the latest" if overlap.until is not None else ""
    return f"pods {' and '.join(pods)}{since}{until}"


def _ending_line(slot: Slot, overlap: Overlap) -> str:
    """Return the line of `status.ending`."""
    pods = {"ending": overlap.ending, "beyond": overlap.beyond, "older": overlap.older}
    return wire.ending_line(slot, overlap.amounts, overlap.until, since=overlap.since, pods=pods)


def _instant(text: str | None) -> int | None:
    """Return a time in milliseconds since 1970. None if it is missing or cannot be read."""
    try:
        return parse_timestamp(text) if text else None
    except TimestampError:
        return None
