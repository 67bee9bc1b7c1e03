"""One look at one group: gather, recount, write.

This file alone decides when a status may be written. Its numbers are `bizrq.quota.recount`'s, its words
`controller.status`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupStatus, GroupUnreadable
from bizrq.api.hours import HoursUnreadable
from bizrq.hours import metering
from bizrq.kube.client import Conflict, NotFound
from bizrq.kube.events import EventRecorder
from bizrq.quota.recount import CountedObject, Snapshot, recount
from bizrq.store.edit_backoff import EditBackoff
from bizrq.store.hours import CARD_HOURS
from bizrq.units.names import Catalog
from bizrq.units.resources import Resources, restrict, subtract_floor
from bizrq.units.resources import total as total_of
from bizrq.units.slot import group_slot
from bizrq.units.times import format_timestamp
from bizrq.workloads.config import CountingConfig
from controller import metrics
from controller.hours.budget_forecast import BudgetForecaster, BudgetState
from controller.hours.record import RecordReconciler, RecordResult
from controller.hours.record_store import RecordStore
from controller.status import HoursReport, StatusReporter, conditions
from controller.usage.excess import ExcessUsage
from controller.usage.findings import Findings
from controller.usage.group_snapshot import GroupSnapshots
from controller.usage.observed_usage import ObservedUsage
from controller.usage.reservations import ReservationTracker, reserved_by_slot
from controller.usage.usage_cache import UsageCache, UsageQuery
from controller.usage.workload_cost import WorkloadCosts
from controller.usage.workload_usage import PrepaidRun, UsageBuilder
from controller.watch.cluster import CATCH_UP, Cluster

log = structlog.get_logger(__name__)

_WRITE = 10.0
_READ = 5.0


class Reconciler:
    """Keeps the status of groups true. One instance a process; `reconcile` is called for one name at a time."""

    def __init__(
        self,
        cluster: Cluster,
        record_reconciler: RecordReconciler,
        record_store: RecordStore,
        observed: ObservedUsage,
        recorder: EventRecorder,
        config: CountingConfig,
        *,
        catalog: Catalog,
        recount_interval: float = 300.0,
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._record_reconciler = record_reconciler
        self._record_store = record_store
        self._catalog = catalog
        self._interval = recount_interval
        self._now = now
        self._clock = clock
        surplus = ExcessUsage(cluster, config)
        self._tracker = ReservationTracker(cluster, clock)
        costs = WorkloadCosts(cluster, surplus, config, clock)
        self._usage_cache = UsageCache(cluster, costs, UsageBuilder(cluster, costs, observed), now)
        self._snapshots = GroupSnapshots(cluster, costs, surplus, config)
        self._forecaster = BudgetForecaster(cluster, record_reconciler, catalog)
        self._reporter = StatusReporter(recorder, catalog, now)
        self._backoff = EditBackoff(clock)
        self._reconciled: dict[str, float] = {}
        self._checked: dict[str, float] = {}
        self._held: dict[str, tuple[str, Resources]] = {}

    async def reconcile(self, name: str) -> float | None:
        """Recount one group and write what differs; returns the seconds after which to look again, None when gone.

        Raises ApiError and Unreachable; the queue tries again.
        """
        group = self._cluster.groups.cached(name)
        if group is None:
            for known in (self._reconciled, self._checked, self._held):
                known.pop(name, None)
            for part in (self._tracker, self._usage_cache, self._snapshots, self._record_reconciler, self._reporter):
                part.forget(name)
            return None
        if not await self._caught_up(group):
            return 1.0
        self._cluster.adopt_detached(name, wire.detached_of(group))
        # The record first: what the status says of hours follows from it.
        outlook, problem = await self._reconcile_record(group)
        if not outlook.is_done:
            return outlook.requeue_after
        entries, _ = self._tracker.of(group)
        expired = await self._tracker.expired(group, entries)
        run = self._run(group)
        await self._settle(UsageQuery(name, run, reserved_by_slot(entries)))
        # From here to the write nothing awaits: this is the one snapshot.
        group = self._cluster.groups.cached(name)
        if group is None:
            return None
        if self._behind(group) or self._run(group) != run:
            return 0.0
        if group.metadata.deletion_timestamp is not None and not problem:
            await self._record_reconciler.transfer_to_parent(group)
            return self._interval
        status, stored = self._status(group, expired, problem)
        return min(outlook.requeue_after, await self._write(group, status, stored))

    async def _reconcile_record(self, group: GroupObject) -> tuple[RecordResult, str]:
        """Have the group's record moved on; and what is wrong with it, where it cannot be read."""
        try:
            return await self._record_reconciler.reconcile(group, wire.hard_of(group, self._catalog)), ""
        except (GroupUnreadable, HoursUnreadable) as error:
            return RecordResult(True, self._interval), str(error)

    async def _settle(self, query: UsageQuery) -> None:
        """Have a group's account up to date, and gone over once in a while."""
        due = self._clock() - self._checked.get(query.group, float("-inf")) >= self._interval * 0.9
        await self._usage_cache.refresh(query, check=due)
        if due:
            self._checked[query.group] = self._clock()

    def _run(self, group: GroupObject) -> PrepaidRun | None:
        """How long what is charged to the group may run, from where its hours are spent up to; None where they are not
        safe, or nobody can tell.
        """
        try:
            at = max((page.watermark for page in self._record_reconciler.pages(group.name)), default=0)
            return PrepaidRun.of(wire.terms_of(group, self._catalog), at)
        except (GroupUnreadable, HoursUnreadable):
            return None

    async def _caught_up(self, group: GroupObject) -> bool:
        """Whether every kind is at least as new as what the status was counted from."""
        for kind, counted in self._behind(group).items():
            informer = self._cluster.informer(kind)
            if informer is None:
                continue
            # Asked first: to wait for what will never come would take a worker ten seconds for every group.
            with suppress(NotFound):
                if await self._cluster.client.revision(self._cluster.resource(kind)) < counted:
                    await self._unreconcile(group, kind)
                    return False
            if not await informer.catch_up(counted, CATCH_UP):
                return False
        return True

    def _behind(self, group: GroupObject) -> dict[str, int]:
        """Kinds whose snapshot is older than what the status was counted from, with the version to reach."""
        behind: dict[str, int] = {}
        for kind, text in group.status.counted_at.items():
            informer = self._cluster.informer(kind)
            counted = int(text) if text.isdigit() else 0
            if informer is not None and informer.installed and informer.store.resource_version < counted:
                behind[kind] = counted
        return behind

    async def _unreconcile(self, group: GroupObject, kind: str) -> None:
        """The store is older than the status: what was counted may never have been. Unknown until counted again."""
        log.error("the API server's revision is below what the status was counted from", group=group.name, kind=kind)
        message = f"{kind} are older than this status: the API server's store was restored; counting again"
        status = GroupStatus(
            reservations=group.status.reservations,
            detached=group.status.detached,
            cash=group.status.cash,
            conditions=self._reporter.conditions(group, [("Ready", False, "Restored", message)]),
        )
        await self._put(group, status)

    def _status(self, group: GroupObject, expired: set[str], problem: str) -> tuple[GroupStatus, Callable[[], None]]:
        """The status that the snapshot makes, and what to call once it is stored."""
        try:
            if problem:
                raise GroupUnreadable(problem)
            hard, terms = wire.hard_of(group, self._catalog), wire.terms_of(group, self._catalog)
            pages = self._record_reconciler.pages(group.name)
            children = self._children(group.name, pages)
            record = self._forecaster.budget_state(group, pages)
        except (GroupUnreadable, HoursUnreadable) as error:
            # What cannot be read is not nothing: the group is unknown until a person has mended it.
            log.error("group cannot be counted", group=group.name, error=str(error))
            unreadable = [("Ready", False, "Unreadable", str(error))]
            return GroupStatus(
                reservations=group.status.reservations,
                detached=group.status.detached,
                cash=group.status.cash,
                hold=group.status.hold,
                conditions=self._reporter.conditions(group, unreadable),
                observed_generation=group.metadata.generation,
            ), lambda: None
        try:
            published = wire.parse_amounts(group, group.status.used)
        except GroupUnreadable as error:
            log.error("used cannot be read, counted from nothing", group=group.name, error=str(error))
            published = {}
        entries, kept_texts = self._tracker.of(group)
        sightings = [(entry, self._tracker.write_state(entry, expired)) for entry in entries]
        detached = self._cluster.detached_of(group.name)
        told = Findings(
            detached=[str(slot) for slot, _ in detached], unowned=self._record_reconciler.unowned(group.name)
        )
        account = self._usage_cache.of(group.name)
        besides = self._snapshots.shared(group, account, sightings, told)
        counted = recount(
            Snapshot(
                hard=hard,
                workloads=account.sums,
                children=children,
                reservations=sightings,
                cash=restrict(metering.to_hours(record.spent) if record is not None else {}, hard),
                published=published,
                owner_paid=self._snapshots.owner_paid(entries),
                safe=terms.safe,
                exact_cash=record.exact if record is not None else {},
                shared=besides,
            )
        )
        levels = self._forecaster.budget_levels(group, hard, counted.used, counted.self_used, record)
        hours = HoursReport(levels, terms, record or BudgetState())

        def done() -> None:
            self._reporter.report(group, counted, told, hours)

        status = GroupStatus(
            hard=group.spec.hard,
            used=wire.format_amounts(counted.used),
            self_used=wire.format_amounts(counted.self_used),
            reservations=sorted([*map(str, counted.reservations), *kept_texts]),
            counted_at=self._counted_at(group.name),
            detached=wire.detached_lines(detached),
            observed_generation=group.metadata.generation,
            conditions=self._reporter.conditions(group, conditions(counted, hard, told, hours, self._catalog)),
            cash=wire.with_committed(record.cash_status() if record is not None else None, counted.committed),
            hold=group.status.hold,
        )
        return status, done

    # Gathering.

    def _children(self, name: str, pages: list[metering.RecordPage]) -> list[CountedObject]:
        """What each child holds, without the hours that its parent has taken over; raises GroupUnreadable."""
        children: list[CountedObject] = []
        for child in self._cluster.groups.values():
            if child.parent != name:
                continue
            version = f"{child.metadata.resource_version} {self._cluster.context}"
            known = self._held.get(child.name)
            if known is None or known[0] != version:
                known = self._held[child.name] = version, wire.held_of_parent(child, self._catalog)
            held = known[1]
            left = total_of(metering.inherited_from(page, child.metadata.uid) for page in pages)
            if taken_over := metering.to_hours(left):
                held = {**held, **subtract_floor(restrict(held, taken_over), taken_over)}
            children.append(CountedObject(group_slot(child.name), child.metadata.uid, held))
        return children

    def _counted_at(self, name: str) -> dict[str, str]:
        counted = {
            kind: str(informer.store.resource_version)
            for kind, informer in self._cluster.counted_from.items()
            if informer.installed
        }
        # Of the record what we wrote ourselves: its own watch may not have brought that yet.
        return (
            {**counted, CARD_HOURS.key: str(self._record_store.revision(name))}
            if self._record_store.has(name)
            else counted
        )

    # Writing.

    async def _write(self, group: GroupObject, status: GroupStatus, stored: Callable[[], None]) -> float:
        """Store the status where it differs or is due; returns when to look again."""
        if wait := self._backoff.remaining(group):
            return min(wait, 0.1)
        due = self._clock() - self._reconciled.get(group.name, float("-inf")) >= self._interval * 0.9
        if due or _differs(group.status, status):
            await self._put(group, status)
            metrics.STATUS_WRITES.inc()
        stored()
        again = [self._interval]
        if status.reservations:
            again.append(self._tracker.next_expiry(group.name, status.reservations))
        return min(again)

    async def _put(self, group: GroupObject, status: GroupStatus) -> None:
        written = msgspec.structs.replace(status, last_reconcile_time=format_timestamp(self._now()))
        body = wire.encode(msgspec.structs.replace(group, status=written))
        try:
            await self._cluster.groups.write_status(group.name, body, _WRITE)
        except Conflict:
            await self._cluster.groups.read(group.name, _READ)
            raise
        self._reconciled[group.name] = self._clock()


def _differs(old: GroupStatus, new: GroupStatus) -> bool:
    """Whether anything but times and revisions changed."""
    plain = {"last_reconcile_time": None, "counted_at": {}}
    return msgspec.structs.replace(old, **plain) != msgspec.structs.replace(new, **plain)
