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
from bizrq.api.group import GroupObject, GroupUnreadable, Status
from bizrq.api.hours import HoursUnreadable
from bizrq.hours import metering
from bizrq.kube.client import Conflict, NotFound
from bizrq.kube.events import Recorder
from bizrq.quota.recount import Counted, Snapshot, recount
from bizrq.store.edit_backoff import Holds
from bizrq.store.hours import CARD_HOURS
from bizrq.units.names import DEFAULT, Catalog
from bizrq.units.resources import Resources, restrict, subtract_floor
from bizrq.units.resources import total as total_of
from bizrq.units.slot import group_slot
from bizrq.units.times import timestamp
from bizrq.workloads.config import CountingConfig
from controller import metrics
from controller.hours.budget_forecast import Foresight, Record
from controller.hours.record import Hours, Outlook
from controller.hours.record_store import Books
from controller.status import HoursTold, Teller, findings
from controller.usage.excess import Surplus
from controller.usage.findings import Told
from controller.usage.group_snapshot import Charges
from controller.usage.observed_usage import Evidence
from controller.usage.reservations import Entries, promised
from controller.usage.usage_cache import Ask, Ledgers
from controller.usage.workload_cost import Costs
from controller.usage.workload_usage import Lines, Run
from controller.watch.cluster import CATCH_UP, Cluster

log = structlog.get_logger(__name__)

_WRITE = 10.0
_READ = 5.0


class Reconciler:
    """Keeps the status of groups true. One instance a process; `reconcile` is called for one name at a time."""

    def __init__(
        self,
        cluster: Cluster,
        hours: Hours,
        books: Books,
        evidence: Evidence,
        recorder: Recorder,
        config: CountingConfig,
        *,
        catalog: Catalog = DEFAULT,
        recount_interval: float = 300.0,
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._hours = hours
        self._books = books
        self._catalog = catalog
        self._interval = recount_interval
        self._now = now
        self._clock = clock
        surplus = Surplus(cluster, config)
        self._entries = Entries(cluster, clock)
        costs = Costs(cluster, surplus, config, clock)
        self._ledgers = Ledgers(cluster, costs, Lines(cluster, costs, evidence), now)
        self._charges = Charges(cluster, costs, surplus, config)
        self._foresight = Foresight(cluster, hours, catalog)
        self._teller = Teller(recorder, catalog, now)
        self._holds = Holds(clock)
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
            for part in (self._entries, self._ledgers, self._charges, self._hours, self._teller):
                part.forget(name)
            return None
        if not await self._caught_up(group):
            return 1.0
        self._cluster.adopt(name, wire.detached_of(group))
        # The record first: what the status says of hours follows from it.
        outlook, problem = await self._look(group)
        if not outlook.is_done:
            return outlook.again
        entries, _ = self._entries.of(group)
        expired = await self._entries.expired(group, entries)
        run = self._run(group)
        await self._settle(Ask(name, run, promised(entries)))
        # From here to the write nothing awaits: this is the one snapshot.
        group = self._cluster.groups.cached(name)
        if group is None:
            return None
        if self._behind(group) or self._run(group) != run:
            return 0.0
        if group.metadata.deletion_timestamp is not None and not problem:
            await self._hours.bequeath(group)
            return self._interval
        status, stored = self._status(group, expired, problem)
        return min(outlook.again, await self._write(group, status, stored))

    async def _look(self, group: GroupObject) -> tuple[Outlook, str]:
        """Have the group's record moved on; and what is wrong with it, where it cannot be read."""
        try:
            return await self._hours.look(group, wire.hard_of(group, self._catalog)), ""
        except (GroupUnreadable, HoursUnreadable) as error:
            return Outlook(True, self._interval), str(error)

    async def _settle(self, ask: Ask) -> None:
        """Have a group's account up to date, and gone over once in a while."""
        due = self._clock() - self._checked.get(ask.group, float("-inf")) >= self._interval * 0.9
        await self._ledgers.settle(ask, check=due)
        if due:
            self._checked[ask.group] = self._clock()

    def _run(self, group: GroupObject) -> Run | None:
        """How long what is charged to the group may run, from where its hours are spent up to; None where they are not
        safe, or nobody can tell.
        """
        try:
            at = max((page.watermark for page in self._hours.pages(group.name)), default=0)
            return Run.of(wire.terms_of(group, self._catalog), at)
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
        status = Status(
            reservations=group.status.reservations,
            detached=group.status.detached,
            cash=group.status.cash,
            conditions=self._teller.conditions(group, [("Ready", False, "Restored", message)]),
        )
        await self._put(group, status)

    def _status(self, group: GroupObject, expired: set[str], problem: str) -> tuple[Status, Callable[[], None]]:
        """The status that the snapshot makes, and what to call once it is stored."""
        try:
            if problem:
                raise GroupUnreadable(problem)
            hard, terms = wire.hard_of(group, self._catalog), wire.terms_of(group, self._catalog)
            pages = self._hours.pages(group.name)
            children = self._children(group.name, pages)
            record = self._foresight.record(group, pages)
        except (GroupUnreadable, HoursUnreadable) as error:
            # What cannot be read is not nothing: the group is unknown until a person has mended it.
            log.error("group cannot be counted", group=group.name, error=str(error))
            unreadable = [("Ready", False, "Unreadable", str(error))]
            return Status(
                reservations=group.status.reservations,
                detached=group.status.detached,
                cash=group.status.cash,
                hold=group.status.hold,
                conditions=self._teller.conditions(group, unreadable),
                observed_generation=group.metadata.generation,
            ), lambda: None
        try:
            published = wire.amounts(group, group.status.used)
        except GroupUnreadable as error:
            log.error("used cannot be read, counted from nothing", group=group.name, error=str(error))
            published = {}
        entries, kept_texts = self._entries.of(group)
        sightings = [(entry, self._entries.sighting(entry, expired)) for entry in entries]
        detached = self._cluster.detached_of(group.name)
        told = Told(detached=[str(slot) for slot, _ in detached], unowned=self._hours.unowned(group.name))
        account = self._ledgers.of(group.name)
        besides = self._charges.besides(group, account, sightings, told)
        counted = recount(
            Snapshot(
                hard=hard,
                workloads=account.sums,
                children=children,
                reservations=sightings,
                cash=restrict(metering.hours(record.beyond) if record is not None else {}, hard),
                published=published,
                covered=self._charges.covered(entries),
                safe=terms.safe,
                exact=record.exact if record is not None else {},
                besides=besides,
            )
        )
        standings = self._foresight.standings(group, hard, counted.used, counted.self_used, record)
        hours = HoursTold(standings, terms, record or Record())

        def done() -> None:
            self._teller.report(group, counted, told, hours)

        status = Status(
            hard=group.spec.hard,
            used=wire.status_text(counted.used),
            self_used=wire.status_text(counted.self_used),
            reservations=sorted([*map(str, counted.reservations), *kept_texts]),
            counted_at=self._counted_at(group.name),
            detached=wire.detached_lines(detached),
            observed_generation=group.metadata.generation,
            conditions=self._teller.conditions(group, findings(counted, hard, told, hours)),
            cash=wire.with_liens(record.told() if record is not None else None, counted.liens),
            hold=group.status.hold,
        )
        return status, done

    # Gathering.

    def _children(self, name: str, pages: list[metering.Page]) -> list[Counted]:
        """What each child holds, without the hours that its parent has taken over; raises GroupUnreadable."""
        children: list[Counted] = []
        for child in self._cluster.groups.values():
            if child.parent != name:
                continue
            version = f"{child.metadata.resource_version} {self._cluster.context}"
            known = self._held.get(child.name)
            if known is None or known[0] != version:
                known = self._held[child.name] = version, wire.held_of(child, self._catalog)
            held = known[1]
            left = total_of(metering.taken_over(page, child.metadata.uid) for page in pages)
            if taken_over := metering.hours(left):
                held = {**held, **subtract_floor(restrict(held, taken_over), taken_over)}
            children.append(Counted(group_slot(child.name), child.metadata.uid, held))
        return children

    def _counted_at(self, name: str) -> dict[str, str]:
        counted = {
            kind: str(informer.store.resource_version)
            for kind, informer in self._cluster.counted_from.items()
            if informer.installed
        }
        # Of the record what we wrote ourselves: its own watch may not have brought that yet.
        return {**counted, CARD_HOURS.key: str(self._books.revision(name))} if self._books.has(name) else counted

    # Writing.

    async def _write(self, group: GroupObject, status: Status, stored: Callable[[], None]) -> float:
        """Store the status where it differs or is due; returns when to look again."""
        if wait := self._holds.left(group):
            return min(wait, 0.1)
        due = self._clock() - self._reconciled.get(group.name, float("-inf")) >= self._interval * 0.9
        if due or _differs(group.status, status):
            await self._put(group, status)
            metrics.WRITES.inc()
        stored()
        again = [self._interval]
        if status.reservations:
            again.append(self._entries.left(group.name, status.reservations))
        return min(again)

    async def _put(self, group: GroupObject, status: Status) -> None:
        written = msgspec.structs.replace(status, last_reconcile_time=timestamp(self._now()))
        body = wire.encode(msgspec.structs.replace(group, status=written))
        try:
            await self._cluster.groups.write_status(group.name, body, _WRITE)
        except Conflict:
            await self._cluster.groups.read(group.name, _READ)
            raise
        self._reconciled[group.name] = self._clock()


def _differs(old: Status, new: Status) -> bool:
    """Whether anything but times and revisions changed."""
    plain = {"last_reconcile_time": None, "counted_at": {}}
    return msgspec.structs.replace(old, **plain) != msgspec.structs.replace(new, **plain)
