"""One reconciliation of one group: gather, recount, write.

This file alone decides when a status may be written, and what it says. `bizrq.quota.recount` computes its numbers,
`controller.status` words its conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from bizrq.api import enforcement
from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupStatus, GroupUnreadable
from bizrq.api.hours import HoursUnreadable
from bizrq.hours import metering
from bizrq.hours.budget import BudgetTerms
from bizrq.hours.metering import RecordPage
from bizrq.kube.client import Conflict
from bizrq.kube.events import EventRecorder
from bizrq.quota.allowance import Line, looked_at
from bizrq.quota.recount import CountedObject, Recount, Snapshot, WriteState, recount
from bizrq.quota.reservation import Reservation
from bizrq.units.names import Catalog
from bizrq.units.resources import Limits, Resources, restrict, subtract_floor
from bizrq.units.resources import total as total_of
from bizrq.units.slot import group_slot
from bizrq.units.times import format_timestamp
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.ownership.runs_on import RunsOn
from controller import metrics
from controller.enforcement import EnforcementWatch
from controller.freshness import Freshness, VersionTracker
from controller.hours.budget_forecast import BudgetForecaster, BudgetState
from controller.hours.record import RecordReconciler, RecordResult
from controller.hours.record_store import RecordStore
from controller.overlap import OverlapList
from controller.status import ConditionDraft, HoursReport, StatusReporter, conditions, measure_ahead, scarcest
from controller.status_writer import StatusWriter
from controller.usage.allowances import Ahead, Allowances
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import ExcessUsage
from controller.usage.findings import Findings
from controller.usage.group_snapshot import GroupSnapshots
from controller.usage.makers import Makers
from controller.usage.observed_usage import ObservedUsage
from controller.usage.overlaps import rejections
from controller.usage.payer_lines import PayerLines
from controller.usage.reservations import ReservationTracker
from controller.usage.runs_on import RunningOn, counted_objects, ending_lines, messages
from controller.usage.stays import Stays
from controller.usage.usage_cache import GroupUsage, UsageCache, UsageQuery
from controller.usage.vanished_usage import VanishedUsage
from controller.usage.workload_cost import WorkloadCosts
from controller.usage.workload_usage import PrepaidRun, UsageBuilder
from controller.watch.cluster import Cluster

log = structlog.get_logger(__name__)

#: How often a status is counted and written at once while another process writes the group in between.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The reservations with what processes hold ahead of them, and the state of the write that each awaits."""

    ahead: Ahead
    states: list[tuple[Reservation, WriteState]]


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The input of a recount, read without awaiting, so that it shows one moment."""

    hard: Limits
    terms: BudgetTerms
    pages: list[RecordPage]
    children: list[CountedObject]
    record: BudgetState | None
    awaited: _Awaited
    usage: GroupUsage
    #: The pods that run on although nobody asks for them any more.
    apart: dict[str, RunsOn]


@dataclass(frozen=True, slots=True)
class _Report:
    """What to report in events and metrics once the status is stored."""

    hard: Limits
    counted: Recount
    findings: Findings
    hours: HoursReport
    #: The uids of the leftovers that it counts.
    leftovers: frozenset[str]
    #: Pods may not be seen yet that a reservation holds.
    is_unseen: bool
    #: What processes hold ahead with this status, and how many notes it has taken over.
    lines: list[Line]
    moved: int


class _Due(NamedTuple):
    """A group to be counted, and what was found out before.

    `expired` are lines of reservations, as `ReservationTracker.expired` returns them; `again` are the seconds until its
    record is due, and `problem` is what is wrong with that, "" where nothing is.
    """

    name: str
    expired: set[str]
    run: PrepaidRun | None
    again: float
    problem: str


class Reconciler:
    """Keeps the status of groups up to date. `reconcile` must not run twice at a time for one name."""

    def __init__(
        self,
        cluster: Cluster,
        record_reconciler: RecordReconciler,
        record_store: RecordStore,
        observed: ObservedUsage,
        claim_payers: ClaimPayers,
        recorder: EventRecorder,
        overlaps: OverlapList,
        enforcement: EnforcementWatch,
        allowances: Allowances,
        config: CountingConfig,
        *,
        catalog: Catalog,
        recount_interval: float = 300.0,
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` returns milliseconds since 1970; `clock` and `recount_interval` are in seconds."""
        self._cluster = cluster
        self._record_reconciler = record_reconciler
        self._catalog = catalog
        self._interval = recount_interval
        self._now = now
        self._clock = clock
        excess = ExcessUsage(cluster, config)
        cluster.subscribe(VanishedUsage(cluster, observed))
        costs = WorkloadCosts(cluster, excess, claim_payers, config, now, clock)
        self._tracker = ReservationTracker(cluster, clock)
        self._allowances = allowances
        self._versions = VersionTracker(cluster, record_store)
        self._usage_cache = UsageCache(cluster, costs, UsageBuilder(cluster, costs, observed), now)
        self._snapshots = GroupSnapshots(cluster, claim_payers, excess, config)
        self._forecaster = BudgetForecaster(cluster, record_reconciler, catalog)
        self._reporter = StatusReporter(recorder, catalog, now)
        self._writer = StatusWriter(cluster.groups, interval=recount_interval, now=now, clock=clock)
        self._payer_lines = PayerLines(cluster, now, clock)
        self._runs_on = RunningOn(cluster, excess, now)
        self._stays = Stays(cluster, costs, excess, self._runs_on, self._tracker, overlaps.may_pass, now, clock)
        self._overlaps = overlaps
        self._makers = Makers(cluster, config)
        self._enforcement = enforcement
        #: Why the payers of a group could not all be stored; "" if they could.
        self._full: dict[str, str] = {}
        #: When each group's usage was last checked from scratch.
        self._checked: dict[str, float] = {}
        #: What each child holds of its parent, by the version that it was read from.
        self._held: dict[str, tuple[str, Resources]] = {}
        #: The groups that another process wrote, when their status was written last, between the snapshot and that.
        self._contended: set[str] = set()
        #: The uids of the leftovers that the published status of each group counts.
        self._left: dict[str, frozenset[str]] = {}

    def find_unseen(self) -> None:
        """Remember who paid for what was left while nobody watched. Call it before any group is counted.

        The group of another label, or of a default, would be charged for it until the one that paid is counted.
        """
        for group in self._cluster.groups.values():
            entries, _ = self._tracker.of(group)
            self._cluster.releases.find_unseen(group.name, _over(self._tracker.write_states(entries, set())))

    async def reconcile(self, name: str) -> float | None:
        """Recount one group and write its status if it differs.

        Returns the seconds after which to look again, or None when the group is gone. Raises ApiError and Unreachable;
        the queue tries again.
        """
        group = self._cluster.groups.cached(name)
        if group is None:
            self._forget(name)
            return None
        freshness, kind = await self._versions.catch_up(group)
        if freshness is not Freshness.CURRENT:
            if freshness is Freshness.RESTORED:
                await self._write_restored(group, kind)
            return 1.0
        # An older version listed here what is left.
        self._cluster.releases.adopt(name, wire.detached_of(group))
        # The record first: what the status says of hours follows from it.
        outlook, problem = await self._reconcile_record(group)
        if not outlook.is_done:
            return outlook.requeue_after
        if not await self._allowances.prepare(group):
            return 0.0
        entries, kept_texts = self._tracker.of(group)
        expired = await self._tracker.expired(group, entries)
        states = await self._tracker.see(self._allowances.ahead(name, entries, kept_texts).entries, expired)
        self._cluster.releases.find_unseen(name, _over(states))
        run = self._prepaid_run(group)
        await self._refresh_usage(UsageQuery(name, run))
        if await self._stays.settle(name, self._usage_cache, lambda group: self._awaited(group, expired).states):
            await self._refresh_usage(UsageQuery(name, run))
        return await self._publish(_Due(name, expired, run, outlook.requeue_after, problem))

    async def _publish(self, due: _Due) -> float | None:
        """Count what a group is charged at one moment, and write that upon the version of the group that is stored.

        Where it was written meanwhile, the next snapshot follows at once: until then little has changed, and who has
        written it is about to write it again. Returns the seconds after which to look again, or None when the group is
        gone. Raises Conflict after some tries, other ApiErrors, Unreachable.
        """
        name, tries = due.name, 0
        while True:
            await self._prepare_snapshot(due, is_first=not tries)
            # From here to the write nothing awaits: this is the one snapshot.
            group = self._cluster.groups.cached(name)
            if group is None:
                return None
            self._cluster.payers.read_status(group)
            is_same_run = self._prepaid_run(group) == due.run
            if self._versions.behind(group) or not is_same_run:
                return 0.0
            if not self._allowances.has_read(group):
                self._contended.add(name)
                tries += 1
                if tries == _TRIES:
                    return 0.0
                continue
            awaited = self._awaited(group, due.expired)
            ended = _over(awaited.states)
            # Pods of what was never seen itself may have been seen only while the count waited for them.
            is_unsettled = self._stays.is_due(name, self._usage_cache.of(name), ended)
            if is_unsettled or self._cluster.releases.find_unseen(name, ended):
                return 0.0
            if group.metadata.deletion_timestamp is not None and not due.problem:
                await self._record_reconciler.transfer_to_parent(group)
                return self._interval
            try:
                again = await self._recount(group, awaited, due.problem)
            except Conflict:
                self._contended.add(name)
                tries += 1
                if tries == _TRIES:
                    raise
            else:
                if not tries:
                    self._contended.discard(name)
                return min(due.again, again)

    async def _prepare_snapshot(self, due: _Due, *, is_first: bool) -> None:
        """Do what takes time before the snapshot: between that and the write, somebody else may write the group."""
        name = due.name
        is_changed = await self._payer_lines.prepare(name, self._usage_cache.of(name))
        await self._refresh_if_late(due, is_late=is_changed)
        # What comes while a page is written is stored on another only where it is too much for the status.
        for burst in (not is_first, True, True):
            if not await self._store_ahead(name, burst=burst):
                break
            await self._refresh_if_late(due)
        if name in self._contended:
            # The watch is later than the next write of who writes the group all the time.
            await self._writer.read(name)
            await self._refresh_if_late(due)
        # Last: whoever writes the group all the time has done so meanwhile.
        await self._read_notes(due)

    async def _read_notes(self, due: _Due) -> None:
        """Read the notes of allowances again where the group was written since."""
        group = self._cluster.groups.cached(due.name)
        if group is not None and not self._allowances.has_read(group):
            await self._allowances.prepare(group)
            await self._refresh_if_late(due)

    async def _refresh_if_late(self, due: _Due, *, is_late: bool = False) -> None:
        if is_late or not self._usage_cache.is_current(due.name):
            await self._refresh_usage(UsageQuery(due.name, due.run))

    async def _store_ahead(self, name: str, *, burst: bool) -> bool:
        """Store new payers where they are too many for the status. Return False if nothing was done."""
        group = self._cluster.groups.cached(name)
        if group is None or group.metadata.deletion_timestamp is not None or self._versions.behind(group):
            return False
        self._cluster.payers.read_status(group)
        put = self._payer_lines.due_to_put(name, self._usage_cache.of(name))
        if self._cluster.payers.has_room(name, put, burst=burst):
            return False
        counted_at, runs_on = self._versions.counted_at(name), self._runs_on.of(name)
        return await self._cluster.payers.store_ahead(group, put, counted_at, runs_on, burst=burst)

    def _awaited(self, group: GroupObject, expired: set[str]) -> _Awaited:
        """Return the reservations of a status, and what the informers know now of the writes that they await."""
        ahead = self._allowances.ahead(group.name, *self._tracker.of(group))
        return _Awaited(ahead, self._tracker.write_states(ahead.entries, expired))

    def _forget(self, name: str) -> None:
        """Drop all that is remembered of a group that is gone."""
        for known in (self._checked, self._held, self._full, self._left):
            known.pop(name, None)
        self._contended.discard(name)
        parts = (
            self._tracker,
            self._allowances,
            self._usage_cache,
            self._payer_lines,
            self._stays,
            self._snapshots,
            self._record_reconciler,
            self._overlaps,
            self._reporter,
            self._writer,
        )
        for part in parts:
            part.forget(name)
        self._cluster.awaited.replace(name, ())

    async def _reconcile_record(self, group: GroupObject) -> tuple[RecordResult, str]:
        """Move the group's record on. Returns also what is wrong with a record that cannot be read."""
        try:
            return await self._record_reconciler.reconcile(group, wire.hard_of(group, self._catalog)), ""
        except (GroupUnreadable, HoursUnreadable) as error:
            return RecordResult(True, self._interval), str(error)

    async def _refresh_usage(self, query: UsageQuery) -> None:
        """Bring the group's usage up to date, and check it from scratch once in a while."""
        due = self._clock() - self._checked.get(query.group, float("-inf")) >= self._interval * 0.9
        await self._usage_cache.refresh(query, check=due)
        if due:
            self._checked[query.group] = self._clock()

    def _prepaid_run(self, group: GroupObject) -> PrepaidRun | None:
        """Return how long the group's workloads may run, counted from the record's watermark.

        None where the group's hours are not prepaid, or its terms or record cannot be read.
        """
        try:
            at = max((page.watermark for page in self._record_reconciler.pages(group.name)), default=0)
            return PrepaidRun.of(wire.terms_of(group, self._catalog), at)
        except (GroupUnreadable, HoursUnreadable):
            return None

    async def _recount(self, group: GroupObject, awaited: _Awaited, problem: str) -> float:
        """Gather, decide, write. Returns the seconds after which to look again."""
        try:
            if problem:
                raise GroupUnreadable(problem)
            gathered = self._gather(group, awaited)
        except (GroupUnreadable, HoursUnreadable) as error:
            log.error("group cannot be counted", group=group.name, error=str(error))
            return await self._write(group, self._unreadable_status(group, str(error)), None)
        status, report = self._decide(group, gathered)
        # The payers first, or with the status: only then may it count what they make.
        due = self._payer_lines.due(group.name, self._usage_cache.of(group.name))
        runs_on = self._runs_on.of(group.name)
        lines = await self._cluster.payers.store(group, due, status.counted_at, runs_on)
        self._full[group.name] = lines.problem
        if self._payers_problem(group.name) != status.payers_problem:
            return 0.0
        status.payers, status.payers_pages = lines.payers, lines.pages
        again = await self._write(group, status, report)
        self._cluster.payers.settle_dropped(group.name, due.dropped)
        self._payer_lines.leave(group.name, self._stays.take_settled(group.name))
        return min(again, 1.0) if self._payer_lines.has_more(group.name) else again

    def _payers_problem(self, name: str) -> str:
        """Return why the group's payers cannot all be remembered, with what to do; "" if they can."""
        return _repair(self._cluster.payers.problem(name) or self._full.get(name, ""))

    # Gather.

    def _gather(self, group: GroupObject, awaited: _Awaited) -> _Gathered:
        """Read what a recount takes. Raises GroupUnreadable, HoursUnreadable."""
        hard, terms = wire.hard_of(group, self._catalog), wire.terms_of(group, self._catalog)
        pages = self._record_reconciler.pages(group.name)
        children = self._children(group.name, pages)
        record = self._forecaster.budget_state(group, pages)
        usage = self._usage_cache.of(group.name)
        apart = self._runs_on.apart(group.name, usage)
        return _Gathered(hard, terms, pages, children, record, awaited, usage, apart)

    def _children(self, name: str, pages: list[metering.RecordPage]) -> list[CountedObject]:
        """Return what each child holds, without hours that its parent has taken over. Raises GroupUnreadable."""
        children: list[CountedObject] = []
        for child in self._cluster.groups.known_children(name):
            version = f"{child.metadata.resource_version} {self._cluster.context}"
            known = self._held.get(child.name)
            if known is None or known[0] != version:
                known = self._held[child.name] = version, self._held_by(child)
            held = known[1]
            left = total_of(metering.inherited_from(page, child.metadata.uid) for page in pages)
            if taken_over := metering.to_hours(left):
                held = {**held, **subtract_floor(restrict(held, taken_over), taken_over)}
            children.append(CountedObject(group_slot(child.name), child.metadata.uid, held))
        return children

    def _held_by(self, child: GroupObject) -> dict[str, int]:
        """Return what a child holds. Raise GroupUnreadable without a quote: readers of the parent read it."""
        try:
            return wire.held_of_parent(child, self._catalog)
        except GroupUnreadable as error:
            log.error("child cannot be read", group=child.name, error=str(error))
            raise GroupUnreadable(f"child {child.name} cannot be read; the controller's log says more") from None

    # Decide.

    def _decide(self, group: GroupObject, gathered: _Gathered) -> tuple[GroupStatus, _Report]:
        """Recount the group. Returns its status, and what to report once that is stored."""
        hard, record, ahead = gathered.hard, gathered.record, gathered.awaited.ahead
        findings = self._findings(group, gathered)
        counted = recount(self._snapshot(group, gathered, findings))
        lines = self._allowances.given(group, hard, counted, ahead, ahead.entries)
        promised = (entry.uid for entry in counted.reservations)
        self._cluster.awaited.replace(group.name, (*promised, *self._stays.awaits(group.name)))
        levels = self._forecaster.budget_levels(group, hard, counted.used, counted.self_used, record)
        hours = HoursReport(levels, gathered.terms, record or BudgetState())
        status = self._counted_status(group, gathered, counted, findings, hours, lines)
        is_unseen = any(state is WriteState.UNSEEN for _, state in gathered.awaited.states)
        left = frozenset(gathered.usage.leftovers)
        return status, _Report(hard, counted, findings, hours, left, is_unseen, lines, len(ahead.moved))

    def _findings(self, group: GroupObject, gathered: _Gathered) -> Findings:
        """Return what is to be said of the group besides what counting its workloads finds."""
        problem = self._payers_problem(group.name)
        known = gathered.usage.usages
        return Findings(
            leftovers=_told(sorted((*_leftovers(gathered.usage), *self._stays.lines(group.name))), gathered.hard),
            payers=[problem] if problem else [],
            ignored=[str(slot) for uid, slot in self._cluster.ignored.of(group.name).items() if uid not in known],
            unowned=self._record_reconciler.unowned(group.name),
            overlap=messages(gathered.apart),
        )

    def _snapshot(self, group: GroupObject, gathered: _Gathered, findings: Findings) -> Snapshot:
        """Return what is counted, and add what is found of the workloads."""
        hard, terms, record, usage = gathered.hard, gathered.terms, gathered.record, gathered.usage
        ahead, sightings = gathered.awaited.ahead, gathered.awaited.states
        shared = [
            *self._snapshots.shared(group, usage, sightings, findings),
            *counted_objects(gathered.apart),
            *self._stays.held(group, usage, sightings),
        ]
        published = self._left.get(group.name, ())
        return Snapshot(
            hard=hard,
            workloads=usage.sums,
            children=gathered.children,
            reservations=sightings,
            cash=restrict(metering.to_hours(record.spent) if record is not None else {}, hard),
            published=_published(group),
            owner_paid=self._snapshots.owner_paid(usage, ahead.entries),
            safe=terms.safe,
            exact_cash=record.exact if record is not None else {},
            shared=shared,
            adoptable=self._snapshots.adoptable(usage, ahead.entries),
            may_drop=partial(self._snapshots.may_drop, group.name, usage),
            new_leftovers=total_of(line.counted.cost for uid, line in usage.leftovers.items() if uid not in published),
            ahead=ahead.amount,
        )

    def _counted_status(
        self,
        group: GroupObject,
        gathered: _Gathered,
        counted: Recount,
        findings: Findings,
        hours: HoursReport,
        lines: list[Line],
    ) -> GroupStatus:
        """Return the status that publishes a count. `lines` are what processes hold ahead with it."""
        hard, record, ahead = gathered.hard, gathered.record, gathered.awaited.ahead
        drafts = conditions(counted, hard, findings, hours, self._catalog)
        return GroupStatus(
            hard=group.spec.hard,
            used=wire.format_amounts(counted.used),
            self_used=wire.format_amounts(counted.self_used),
            scarcest=scarcest(counted.used, hard, self._catalog),
            reservations=sorted(
                [*map(str, looked_at(counted.reservations)), *ahead.texts, *(line.entry.line for line in lines)]
            ),
            counted_at=self._versions.counted_at(group.name),
            ending=_told(sorted((*findings.ending, *ending_lines(gathered.apart)))[: wire.MAX_ENDING], hard),
            leftovers=findings.leftovers[: wire.MAX_LEFTOVERS],
            payers_problem=self._payers_problem(group.name),
            observed_generation=group.metadata.generation,
            conditions=self._reporter.conditions(group, [*drafts, *self._enforced()]),
            cash=wire.with_committed(record.cash_status() if record is not None else None, counted.committed),
            hold=group.status.hold,
        )

    def _unreadable_status(self, group: GroupObject, problem: str) -> GroupStatus:
        """Return the status of a group that cannot be read, until a person repairs it."""
        status = self._uncounted_status(group, "Unreadable", problem)
        status.ending, status.hold = group.status.ending, group.status.hold
        status.observed_generation = group.metadata.generation
        return status

    def _uncounted_status(self, group: GroupObject, reason: str, message: str) -> GroupStatus:
        """Return a status without a count: the usage is unknown, not zero. Reservations stay."""
        return GroupStatus(
            reservations=group.status.reservations,
            detached=group.status.detached,
            leftovers=group.status.leftovers,
            payers=group.status.payers,
            payers_pages=group.status.payers_pages,
            payers_problem=group.status.payers_problem,
            cash=group.status.cash,
            conditions=self._reporter.conditions(group, [("Ready", False, reason, message), *self._enforced()]),
        )

    def _enforced(self) -> list[ConditionDraft]:
        """Return the condition `Enforced`, none while nobody knows whether the registration is there."""
        is_there = self._enforcement.is_there
        return [] if is_there is None else [enforcement.draft(is_there, self._enforcement.pause)]

    # Write.

    def _list_overlap(self, group: GroupObject, report: _Report) -> None:
        """List the makers whose pods nobody may replace for now."""
        found = rejections(group, report.counted, self._usage_cache.of(group.name), self._makers)
        ends = {key: format_timestamp(each.ends) for key, each in found.items() if each.ends is not None}
        self._overlaps.set(group.name, {key: each.text for key, each in found.items()}, ends)

    async def _write(self, group: GroupObject, status: GroupStatus, report: _Report | None) -> float:
        """Store the status if it differs or is due, then report. Returns the seconds after which to look again."""
        if report is not None:
            # Before the status: each replacement until then is one too many.
            self._list_overlap(group, report)
        if wait := self._writer.wait(group):
            return min(wait, 0.1)
        stored = await self._writer.write_if_due(group, status)
        if stored is not None:
            self._cluster.payers.read_own(stored, status.payers)
        if report is not None:
            if stored is not None:
                metrics.FOLDED.inc(report.moved)
            measure_ahead(group.name, report.lines)
            self._left[group.name] = report.leftovers
            usage = self._usage_cache.of(group.name)
            changes = usage.changes(report.counted.drift) if report.counted.drift else []
            usage.changed.clear()
            self._reporter.report(group, report.hard, report.counted, report.findings, report.hours, changes)
        else:
            self._reporter.forget_counted(group.name)
        again = [self._interval]
        if (soon := self._stays.again(group.name)) is not None:
            again.append(soon)
        elif report is not None and report.is_unseen:
            again.append(self._allowances.due_after(group.name, 0.5))
        ends = [pod.until for pod in self._runs_on.of(group.name).values()]
        again += [max(0.1, (end - self._now()) / 1000) for end in ends]
        changes = self._usage_cache.of(group.name).again
        if changes is not None:
            again.append(max(0.1, (changes - self._now()) / 1000))
        if status.reservations:
            again.append(self._tracker.next_expiry(group.name, status.reservations))
        return min(again)

    async def _write_restored(self, group: GroupObject, kind: str) -> None:
        """Write that the usage is unknown until it is counted again: the store is older than the status."""
        message = f"{kind} are older than this status: the API server's store was restored; recounting"
        try:
            await self._writer.write(group, self._uncounted_status(group, "Restored", message))
        except Conflict:
            # The watch may not show what is stored now.
            await self._writer.read(group.name)
            raise
        self._reporter.forget_counted(group.name)


def _over(states: Iterable[tuple[Reservation, WriteState]]) -> list[Reservation]:
    """Return the reservations whose write is over."""
    return [entry for entry, state in states if state.is_over]


def _leftovers(usage: GroupUsage) -> Iterator[str]:
    """Yield the lines of `status.leftovers`: what is left of workloads that are gone, and what it costs.

    Pods that have ended may stay for long, and cost nothing.
    """
    for line in usage.leftovers.values():
        left, charged = line.left, line.counted.charged
        if left is not None and (line.is_unknown or any(charged.values())):
            yield wire.leftover_line(line.counted.slot, left.place, left.gone or left.since, charged)


def _told(lines: Iterable[str], hard: Limits) -> list[str]:
    """Return lines for people as a status has them: with what the group limits."""
    return [wire.within(line, hard) for line in lines]


def _repair(problem: str) -> str:
    """Return a problem with the record of payers, and what a person can do."""
    return f"{problem[:400]}; docs/operations.md says how to repair bizgrouppayers" if problem else ""


def _published(group: GroupObject) -> Resources:
    """Return the `used` that the stored status publishes. Nothing where it cannot be read."""
    try:
        return wire.parse_amounts(group, group.status.used)
    except GroupUnreadable as error:
        log.error("published used cannot be read, recounting without it", group=group.name, error=str(error))
        return {}
