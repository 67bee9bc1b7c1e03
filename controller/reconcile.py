"""One look at one group: gather, recount, write.

This file alone decides when a status may be written and what it says besides the numbers (DESIGN 5.6). The numbers
are `bizrq.quota.recount`'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec
import structlog

from bizrq.api import group as wire
from bizrq.api.group import Condition, GroupObject, GroupUnreadable, Status
from bizrq.api.hours import HoursUnreadable
from bizrq.kube.client import Conflict, NotFound
from bizrq.kube.events import Recorder
from bizrq.kube.holds import Holds
from bizrq.kube.hours import CARD_HOURS
from bizrq.quota import cash, quantity
from bizrq.quota.ledger import (
    LIFETIME,
    Reservation,
    ReservationError,
    Slot,
    group_slot,
    milliseconds,
    read,
    timestamp,
)
from bizrq.quota.names import DEFAULT, Catalog, is_cash
from bizrq.quota.recount import Counted, Recount, Sighting, Snapshot, held_for_others, recount
from bizrq.quota.resources import Resources, add, growth, larger, nonzero, restrict, subtract_floor
from bizrq.quota.resources import total as total_of
from bizrq.quota.terms import Terms, lien, possible
from bizrq.quota.thresholds import Standing, condition, crossed, words
from bizrq.workloads import counting
from bizrq.workloads.adapters import Adapter, GroupKind
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.dra import CLAIMS, Claims, of_claim
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Lookup, Recording, Reference
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.roles import has_ended, longest_run, runs_since
from controller import metrics
from controller.books import Books
from controller.cluster import Cluster, Object, claimed_by
from controller.evidence import Evidence
from controller.foresight import Foresight, Record
from controller.hours import Hours, Outlook
from controller.pods import Pod
from controller.surplus import NOTHING, Found, Surplus

log = structlog.get_logger(__name__)

#: Seconds to wait for a watch that is behind what a status was counted from.
_CATCH_UP = 10.0
_WRITE = 10.0
#: The condition and event for workloads that use other devices than they declare.
_MISMATCH = "ModelMismatch"
#: Seconds a read for an expired entry may take.
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
        self._evidence = evidence
        self._recorder = recorder
        self._config = config
        self._catalog = catalog
        self._interval = recount_interval
        self._now = now
        self._clock = clock
        #: When each entry, as written, was first seen on our own clock: its age does not depend on anybody else's.
        self._first_seen: dict[str, dict[str, float]] = {}
        self._reconciled: dict[str, float] = {}
        self._held: dict[str, tuple[str, Resources]] = {}
        self._counted: dict[str, _Cost] = {}
        #: What each workload asked for when it could last be counted, by uid: it is held at least at that.
        self._last: dict[str, counting.Demand] = {}
        #: By the place of a claim that workloads may share, those that named it when they were last counted, by uid:
        #: since when they are there, whose they are and what they are.
        self._users: dict[Slot, dict[str, tuple[str, str, Slot]]] = {}
        #: By group, the workloads that we could never count, by uid, and what the group held for them together.
        self._unknown: dict[str, tuple[frozenset[str], Resources]] = {}
        #: Workloads below which something changed since they were counted.
        self._stale: set[str] = set()
        self._surplus = Surplus(cluster, config)
        #: By what a cost was counted: the workloads' uids with their groups.
        self._referrers: dict[Reference, dict[str, str]] = {}
        self._holds = Holds(clock)
        self._foresight = Foresight(cluster, hours, catalog)
        #: The budgets of hours of each group that metrics tell of.
        self._metered: dict[str, set[str]] = {}
        cluster.on_reference = self._recounted_for
        cluster.on_below = self._changed_below

    async def reconcile(self, name: str) -> float | None:
        """Recount one group and write what differs; returns the seconds after which to look again, None when gone.

        Raises ApiError and Unreachable; the queue tries again.
        """
        group = self._cluster.groups.cached(name)
        if group is None:
            self._first_seen.pop(name, None)
            self._reconciled.pop(name, None)
            self._held.pop(name, None)
            self._unknown.pop(name, None)
            self._hours.forget(name)
            self._measure(name, [])
            return None
        if not await self._caught_up(group):
            return 1.0
        self._cluster.adopt(name, wire.detached_of(group))
        # The record first: what the status says of hours follows from it.
        outlook, problem = await self._look(group)
        if not outlook.is_done:
            return outlook.again
        expired = await self._expired(group)
        await self._count(name)
        # From here to the write nothing awaits: this is the one snapshot.
        group = self._cluster.groups.cached(name)
        if group is None:
            return None
        if self._behind(group):
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

    async def _caught_up(self, group: GroupObject) -> bool:
        """Whether every kind is at least as new as what the status was counted from (DESIGN 5.6)."""
        for kind, counted in self._behind(group).items():
            informer = self._cluster.informer(kind)
            if informer is None:
                continue
            # Asked first: to wait for what will never come would take a worker ten seconds for every group.
            with suppress(NotFound):
                if await self._cluster.client.revision(self._cluster.resource(kind)) < counted:
                    await self._unreconcile(group, kind)
                    return False
            if not await informer.catch_up(counted, _CATCH_UP):
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
            conditions=self._conditions(group, [("Ready", False, "Restored", message)]),
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
                conditions=self._conditions(group, unreadable),
                observed_generation=group.metadata.generation,
            ), lambda: None
        try:
            published = wire.amounts(group, group.status.used)
        except GroupUnreadable as error:
            log.error("used cannot be read, counted from nothing", group=group.name, error=str(error))
            published = {}
        entries, kept_texts = self._entries(group)
        sightings = [(entry, self._sighting(entry, expired)) for entry in entries]
        workloads, told, unknown = self._workloads(
            group.name, terms, max((page.watermark for page in pages), default=0) or self._now()
        )
        workloads += self._held_for(group, unknown, workloads, sightings)
        counted = recount(
            Snapshot(
                hard=hard,
                workloads=workloads,
                children=children,
                reservations=sightings,
                cash=restrict(cash.hours(record.beyond) if record is not None else {}, hard),
                published=published,
                covered=self._covered(entries),
                safe=terms.safe,
                exact=record.exact if record is not None else {},
            )
        )
        standings = self._foresight.standings(group, hard, counted.used, counted.self_used, record)
        hours = _Hours(standings, terms, record or Record())

        def done() -> None:
            self._report(group, counted, told, hours)

        status = Status(
            hard=group.spec.hard,
            used=wire.status_text(counted.used),
            self_used=wire.status_text(counted.self_used),
            reservations=sorted([*map(str, counted.reservations), *kept_texts]),
            counted_at=self._counted_at(group.name),
            detached=wire.detached_lines(self._cluster.detached_of(group.name)),
            observed_generation=group.metadata.generation,
            conditions=self._conditions(group, _findings(counted, hard, told, hours)),
            cash=wire.with_liens(record.told() if record is not None else None, counted.liens),
            hold=group.status.hold,
        )
        return status, done

    # Gathering.

    async def _count(self, name: str) -> None:
        """Have the cost of every workload of the group at hand, as it is stored now, before the snapshot is taken."""
        round_ = object()
        while todo := [found for found in self._cluster.charged_to(name) if not self._is_counted(found[1], round_)]:
            for adapter, obj in todo:
                self._counted[obj["metadata"]["uid"]] = cost = await self._cost(name, adapter, obj, round_)
                for place in cost.shared:
                    metadata = obj["metadata"]
                    user = str(metadata.get("creationTimestamp")), name, _slot(adapter, obj)
                    self._users.setdefault(place, {})[metadata["uid"]] = user
        # No await between the last look and the return: what arrives later comes with its own event.
        stored = sum(len(informer.store) for informer in self._cluster.workloads.values())
        if len(self._counted) > 2 * stored + 1000:
            stores = [informer.store for informer in self._cluster.workloads.values()]
            self._counted = {
                uid: cost for uid, cost in self._counted.items() if any(store.by_uid(uid) for store in stores)
            }
            self._last = {uid: demand for uid, demand in self._last.items() if uid in self._counted}
            self._users = {
                place: known
                for place, users in self._users.items()
                if (known := {uid: user for uid, user in users.items() if uid in self._counted})
            }
            self._stale.intersection_update(self._counted)
            self._referrers = {
                reference: known
                for reference, uids in self._referrers.items()
                if (known := {uid: group for uid, group in uids.items() if uid in self._counted})
            }

    def _is_counted(self, obj: Object, round_: object) -> bool:
        uid = obj["metadata"]["uid"]
        known = self._counted.get(uid)
        if uid in self._stale or known is None or known.version != obj["metadata"]["resourceVersion"]:
            return False
        return known.round is round_ or (known.settled and known.context == self._cluster.context)

    def _changed_below(self, uid: str) -> None:
        if uid in self._counted:
            self._stale.add(uid)

    def _recounted_for(self, reference: Reference) -> set[str]:
        """The groups of the workloads that were counted by an object which is another now; forgets their costs."""
        referrers = self._referrers.pop(reference, {})
        for uid in referrers:
            self._counted.pop(uid, None)
        return set(referrers.values())

    async def _cost(self, group: str, adapter: Adapter, obj: Object, round_: object) -> _Cost:
        """A workload's demand; for one that has ended, that of its pods that still run (spec: workloads, section 8)."""
        version, context = obj["metadata"]["resourceVersion"], self._cluster.context
        uid = obj["metadata"]["uid"]
        self._stale.discard(uid)
        asked: dict[Reference, None] = {}
        counted: list[tuple[counting.Demand, Found]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            recording = Recording(found)
            try:
                demand = self._demand(adapter, obj, recording)
                counted.append((demand, self._surplus.of(adapter, obj, demand.resources, recording)))
            finally:
                asked.update(recording.asked)

        lookup = await self._cluster.related.resolve(count, _READ)
        for reference in asked:
            self._referrers.setdefault(reference, {})[uid] = group
        try:
            if counting.is_charged_for_pods(obj, adapter, self._config):
                pods = [pod.plain() for pod in self._cluster.pods_of(obj)]
                demand = counting.of_live_pods(obj, pods, lookup, self._config)
                return _Cost(version, context, round_, False, demand.resources, demand.shared)
            # What could not be counted raises again.
            demand, found = counted[0] if counted else (self._demand(adapter, obj, lookup), NOTHING)
        except Malformed as error:
            demand = self._last.get(uid, counting.NONE)
            return _Cost(version, context, round_, False, demand.resources, demand.shared, str(error))
        self._last[uid] = demand
        cost = _Cost(version, context, round_, not lookup.has_read, demand.resources, demand.shared)
        return await self._beyond(adapter, obj, cost, found, lookup)

    def _demand(self, adapter: Adapter, obj: Object, lookup: Lookup) -> counting.Demand:
        """What a workload asks for, with children that may have grown beyond it (DESIGN 3). Raises Malformed."""
        demand = counting.demand(obj, self._cluster.registry, lookup, self._config)
        if not adapter.grows or has_ended(obj, adapter):
            return demand
        made = [
            counting.own_demand(child, kind, lookup, self._config)
            for child in self._cluster.children_of(obj, adapter.grows)
            if (kind := self._cluster.registry.of(child)) is not None
        ]
        return counting.with_children(demand, made, adapter, self._config)

    async def _beyond(self, adapter: Adapter, obj: Object, cost: _Cost, found: Found, lookup: Lookup) -> _Cost:
        """The cost with what was `found` below the workload beyond it.

        More than was known of it is believed once the watches of all owners have caught up: one may be behind that of
        the pods. Less is what a smaller demand has left behind, and counts if it has not gone in time; so does what the
        children of a workload that rolls still have of an earlier version.
        """
        uid = obj["metadata"]["uid"]
        known = self._counted.get(uid)
        if not found.resources:
            return msgspec.structs.replace(cost, held=cost.resources)
        held = add(cost.resources, found.resources)
        grown = known is not None and known.grown
        if found.at_once and (known is None or growth(held, known.held)):
            await self._catch_up(found.kinds)
            fresh = self._cluster.workloads[adapter.resource].store.by_uid(uid)
            if fresh is None or fresh["metadata"]["resourceVersion"] != cost.version:
                # It is counted anew, or is gone.
                return msgspec.structs.replace(cost, held=known.held if known is not None else cost.resources)
            found = self._surplus.of(adapter, obj, cost.resources, lookup)
            held = add(cost.resources, found.resources)
            grown = grown or (found.at_once and (known is None or bool(growth(held, known.held))))
        since = known.since if known is not None and known.since else self._clock()
        if not grown and self._clock() - since < LIFETIME / 1000:
            return msgspec.structs.replace(cost, settled=False, held=held, since=since)
        return msgspec.structs.replace(
            cost, held=held, since=since, grown=bool(found.resources), beyond=found.resources, finding=found.finding
        )

    async def _catch_up(self, kinds: Iterable[GroupKind]) -> None:
        """Have the snapshots of these kinds be no older than this moment. Raises ApiError, Unreachable."""
        revision = await self._cluster.client.revision(self._cluster.resource("pods"))
        for kind in kinds:
            adapter = self._cluster.registry.by_kind(*kind)
            informer = self._cluster.informer(adapter.resource) if adapter is not None else None
            if informer is not None:
                await informer.catch_up(revision, _CATCH_UP)

    def _workloads(self, name: str, terms: Terms, at: int) -> tuple[list[Counted], _Told, dict[str, Slot]]:
        """What the group's own workloads cost, with what they may still cost from `at`, and what people have to know.

        Then the places, by uid, of those that we could never count.
        """
        counted: list[Counted] = []
        told = _Told(
            detached=[str(slot) for slot, _ in self._cluster.detached_of(name)], unowned=self._hours.unowned(name)
        )
        unknown: dict[str, Slot] = {}
        claims = _Claims()
        now = self._now()
        for adapter, obj in self._cluster.charged_to(name):
            metadata = obj["metadata"]
            slot = _slot(adapter, obj)
            cost = self._counted[metadata["uid"]]
            if cost.problem:
                told.problems.append(f"{slot}: {cost.problem}")
                if metadata["uid"] not in self._last:
                    unknown[metadata["uid"]] = slot
            if cost.finding:
                told.surplus.append(cost.finding)
            shown = self._evidence.beyond(obj, now, countable=not cost.problem)
            # Of what cannot be counted the pods show all that they have, and some of it is what it is held at.
            more = growth(shown.resources, cost.resources) if cost.problem else shown.resources
            told.mismatches.extend(f"{slot} {finding}" for finding in shown.findings)
            found = Counted(slot, metadata["uid"], cost.resources, add(cost.beyond, more))
            counted.append(self._pledged(found, adapter, obj, terms, at, told) if terms.safe else found)
            claims.add(slot, cost.shared, shown.shared)
            for place, claim in cost.shared.items() if terms.safe else ():
                claims.pledge(self._pledged(Counted(place, "", claim), adapter, obj, terms, at, told))
        return counted + self._claims(name, claims, told), told, unknown

    def _claims(self, name: str, claims: _Claims, told: _Told) -> list[Counted]:
        """What claims cost the group that it pays for, each once: those that name it, and those that its workloads do
        and no other group's did before them.
        """
        lookup = self._cluster.related.watched
        for claim in self._cluster.claims_of(name):
            metadata = claim["metadata"]
            place, uid = Slot(CLAIMS, metadata["namespace"], metadata["name"]), metadata["uid"]
            around = Claims(labels_of(claim), metadata["namespace"], lookup, self._config)
            try:
                self._last[uid] = counting.Demand(of_claim(claim, around))
            except Malformed as error:
                told.problems.append(f"{place}: {error}")
            claims.add(place, {place: self._last.get(uid, counting.NONE).resources}, {})
        counted: list[Counted] = []
        for place, cost in sorted(claims.declared.items()):
            payer = self._payer_of_claim(place) or name
            if payer == name:
                found = Counted(place, str(place), cost, growth(claims.shown[place], cost))
                whole, lien_ = claims.pledged.get(place, ({}, {}))
                counted.append(replace(found, whole=whole, lien=lien_))
            else:
                told.claims.append(f"{claims.user[place]} uses {place}, which group {payer} pays for")
        return counted

    def _payer_of_claim(self, place: Slot) -> str | None:
        """The group that a claim names, else that of the first workload that is there and names it."""
        claim = self._cluster.claims.store.get(place.name, place.namespace) if place.kind == CLAIMS else None
        named = claimed_by(claim) if claim is not None else None
        users = self._users.get(place, {})
        if named is not None or len({group for _, group, _ in users.values()}) < 2:
            return named
        known = [
            user
            for uid, user in users.items()
            if (cost := self._counted.get(uid)) is not None
            and place in cost.shared
            and self._cluster.workloads[user[2].kind].store.by_uid(uid)
        ]
        return min(known)[1] if known else None

    def _pledged(self, found: Counted, adapter: Adapter, obj: Object, terms: Terms, at: int, told: _Told) -> Counted:
        """A workload with what it may cost where hours are safe: it was admitted only because that was left."""
        own = longest_run(obj, adapter)
        run = terms.max_run_time if own is None else own
        if run is None:
            if any(not name.startswith("count/") for name in found.cost):
                told.unbounded.append(str(found.slot))
            return found
        whole = possible(found.cost, run)
        if (since := _instant(runs_since(obj, adapter))) is not None:
            return replace(found, whole=whole, lien=lien(found.cost, run, at - since))
        # Nobody says since when: each of its pods may run as long.
        ran: Resources = {}
        for pod in self._cluster.pods_of(obj):
            if pod.started is not None and pod.ended is None:
                ran = add(ran, possible(self._pod_cost(pod, obj), min(run, max(0, at - pod.started))))
        return replace(found, whole=whole, lien=subtract_floor(whole, ran))

    def _pod_cost(self, pod: Pod, obj: Object) -> Resources:
        """What a pod occupies; nothing where it cannot be counted, so that its workload may still cost as much."""
        try:
            return self._evidence.cost(pod, obj)
        except Malformed:
            return {}

    def _held_for(
        self,
        group: GroupObject,
        unknown: dict[str, Slot],
        counted: list[Counted],
        sightings: list[tuple[Reservation, Sighting]],
    ) -> list[Counted]:
        """What workloads are held at that we could never count: as much as their group held for them before us.

        Found once, when one of them is first met; then it is no more than those of them that have been counted since
        leave of it, and nothing once none is left.
        """
        if not unknown:
            self._unknown.pop(group.name, None)
            return []
        known, held = self._unknown.get(group.name, (frozenset(), {}))
        if unknown.keys() - known:
            try:
                published = wire.amounts(group, group.status.self_used)
            except GroupUnreadable:
                published = {}
            held = held_for_others(published, sightings, counted)
        else:
            found = total_of(each.cost for each in counted if each.uid in known - unknown.keys())
            held = subtract_floor(held, found)
        self._unknown[group.name] = frozenset(unknown), held
        uid = min(unknown, key=lambda each: unknown[each])
        return [Counted(unknown[uid], uid, held)]

    def _covered(self, entries: Iterable[Reservation]) -> list[Counted]:
        """Stored objects that entries speak of and that something above them pays for."""
        covered: list[Counted] = []
        for entry in entries:
            informer = self._cluster.workloads.get(entry.slot.kind)
            stored = informer.store.get(entry.slot.name, entry.slot.namespace) if informer is not None else None
            pays = self._cluster.payer_of(stored) if stored is not None else None
            if stored is not None and pays is not None:
                cost = self._surplus.child_cost(stored, pays)
                covered.append(Counted(entry.slot, stored["metadata"]["uid"], cost))
        return covered

    def _children(self, name: str, pages: list[cash.Page]) -> list[Counted]:
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
            left = total_of(cash.taken_over(page, child.metadata.uid) for page in pages)
            if taken_over := cash.hours(left):
                held = {**held, **subtract_floor(restrict(held, taken_over), taken_over)}
            children.append(Counted(group_slot(child.name), child.metadata.uid, held))
        return children

    def _entries(self, group: GroupObject) -> tuple[list[Reservation], list[str]]:
        """The reservations of a status, and those that cannot be read and are too young to be dropped."""
        entries, unreadable = [], []
        ages = self._ages(group.name, group.status.reservations)
        for text in group.status.reservations:
            try:
                entries.append(read(text))
            except (ReservationError, quantity.QuantityError) as error:
                if ages[_without_base(text)] < LIFETIME / 1000:
                    unreadable.append(text)
                else:
                    log.error("unreadable reservation dropped", group=group.name, error=str(error))
        return entries, unreadable

    def _ages(self, name: str, lines: Iterable[str]) -> dict[str, float]:
        """Seconds that each entry has stood unchanged on our own clock, as with a Lease; by line without base.

        A base that we set ourselves is no change: only whoever made the entry moves its expiry.
        """
        now = self._clock()
        before = self._first_seen.get(name, {})
        self._first_seen[name] = {line: before.get(line, now) for line in map(_without_base, lines)}
        return {line: now - seen for line, seen in self._first_seen[name].items()}

    async def _expired(self, group: GroupObject) -> set[str]:
        """Entries, by line without base, that expired before a read which the snapshot has caught up with since.

        The snapshot then is the proof: a write that was awaited shows there or will never be.
        """
        entries, _ = self._entries(group)
        ages = self._ages(group.name, group.status.reservations)
        old: dict[str, set[str]] = {}
        for entry in entries:
            line = _without_base(str(entry))
            if ages[line] >= LIFETIME / 1000:
                old.setdefault(entry.awaited.kind, set()).add(line)
        proven: set[str] = set()
        for kind, lines in old.items():
            informer = self._cluster.informer(kind)
            if informer is None:
                log.error("reservations of a kind that is not watched are kept", group=group.name, kind=kind)
                continue
            try:
                revision = await self._cluster.client.revision(self._cluster.resource(kind))
            except NotFound:
                # The kind is not installed any more, nor is anything of it stored.
                revision = 0
            if await informer.catch_up(revision, _CATCH_UP):
                proven |= lines
        return proven

    def _sighting(self, entry: Reservation, expired: set[str]) -> Sighting:
        """What the snapshot knows of the object whose write an entry awaits."""
        store = self._cluster.snapshot(entry.awaited.kind)
        if store is None:
            return Sighting.AWAITED
        if store.deleted_at(entry.uid) is not None:
            return Sighting.DELIVERED
        obj = store.by_uid(entry.uid)
        if obj is not None and (
            entry.resource_version is None or int(obj["metadata"]["resourceVersion"]) > entry.resource_version
        ):
            return Sighting.DELIVERED
        return Sighting.OVER if _without_base(str(entry)) in expired else Sighting.AWAITED

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
            again.append(1.0 + LIFETIME / 1000)
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

    def _conditions(self, group: GroupObject, found: list[tuple[str, bool, str, str]]) -> list[Condition]:
        """Conditions with the time of their last change, as metav1.Condition has it."""
        old = {condition.type: condition for condition in group.status.conditions}
        conditions = []
        for kind, holds, reason, message in found:
            text = "True" if holds else "False"
            before = old.get(kind)
            since = before.last_transition_time if before and before.status == text else timestamp(self._now())
            conditions.append(Condition(kind, text, reason, message, since, group.metadata.generation))
        return conditions

    def _report(self, group: GroupObject, counted: Recount, told: _Told, hours: _Hours) -> None:
        """Shout once: drift, a group that goes over, hours that run low and out."""
        reference = {
            "apiVersion": wire.API_VERSION,
            "kind": wire.KIND,
            "name": group.name,
            "uid": group.metadata.uid,
            "resourceVersion": group.metadata.resource_version,
        }
        was = {c.type: c.status == "True" for c in group.status.conditions}
        if counted.drift:
            metrics.DRIFT.labels(group.name).inc()
            listed = _amounts(counted.drift)
            log.error("drift", group=group.name, drift=listed)
            self._recorder.event(reference, "Warning", "Drift", f"stored without being admitted: {listed}")
        over = {name: amount for name, amount in counted.over.items() if not is_cash(name)}
        if over and not was.get("OverQuota"):
            self._recorder.event(reference, "Warning", "OverQuota", f"over quota by {_amounts(over)}")
        if counted.exhausted and not was.get("CashExhausted"):
            self._recorder.event(reference, "Warning", "CashExhausted", hours.spent(counted))
        for standing, reached in crossed(self._told_before(group), hours.standings, hours.terms.thresholds):
            if standing.used < standing.hard or reached > 100:
                message = f"{reached}% is reached: {words(standing, hours.record.zone)}"
                self._recorder.event(reference, "Warning", "CashLow", message)
        self._measure(group.name, hours.standings, hours.record.at)
        metrics.MISMATCHES.labels(group.name).set(len(told.mismatches))
        said = {c.type: c.message for c in group.status.conditions}
        for kind, _, _, message in told.conditions():
            # Another model is news each time that it is another one.
            if said.get(kind) != message if kind == _MISMATCH else not was.get(kind):
                self._recorder.event(reference, "Warning", kind, message)

    def _told_before(self, group: GroupObject) -> dict[str, Standing]:
        """The budgets of hours as the status has them that is stored; none where it cannot be read."""
        status = group.status
        was = msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, hard=status.hard or {}))
        try:
            hard = wire.hard_of(was, self._catalog)
            used, own = (wire.amounts(group, of) for of in (status.used, status.self_used))
        except GroupUnreadable:
            return {}
        return {n: Standing(n, hard[n], used.get(n, 0), own.get(n, 0)) for n in hard if is_cash(n)}

    def _measure(self, group: str, standings: Sequence[Standing], at: int = 0) -> None:
        """Have metrics tell of these budgets of the group, and of no others."""
        gone = self._metered.pop(group, set()) - {each.name for each in standings}
        for name in gone:
            metrics.CASH_USED.remove(group, name)
            metrics.CASH_OUT.remove(group, name)
        if standings:
            self._metered[group] = {each.name for each in standings}
        for each in standings:
            metrics.CASH_USED.labels(group, each.name).set(each.used / each.hard if each.hard else 1)
            out = at if each.used >= each.hard else each.out
            metrics.CASH_OUT.labels(group, each.name).set(math.inf if out is None else out / 1000)


@dataclass(frozen=True, slots=True)
class _Hours:
    """What there is to tell of a group's hours."""

    standings: Sequence[Standing]
    terms: Terms
    record: Record

    def spent(self, counted: Recount) -> str:
        """Which are out, and until when that is so."""
        grant = f", next grant {self.record.next_grant}" if self.record.next_grant else ""
        return f"spent: {', '.join(counted.exhausted)}; growth is refused{grant}"

    def low(self) -> tuple[str, bool, str, str]:
        """The condition that tells in time."""
        record = self.record
        return ("CashLow", *condition(self.standings, self.terms.thresholds, record.zone, record.next_grant))


@dataclass(slots=True)
class _Told:
    """What people have to know of a group's workloads, in words."""

    problems: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    unbounded: list[str] = field(default_factory=list)
    detached: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    unowned: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)

    def conditions(self) -> list[tuple[str, bool, str, str]]:
        """A true condition for each that says something; its type is also the reason of the event that tells of it."""
        kinds = (
            ("Uncountable", "Malformed", "", self.problems),
            (_MISMATCH, "UsesOthers", "", self.mismatches),
            ("Surplus", "BeyondOwner", "", self.surplus),
            ("Unbounded", "RunsOn", "nothing bounds their run, so their hours are not sure: ", self.unbounded),
            ("ForeignClaim", "OfAnother", "give each its own: ", self.claims),
            ("Detached", "LetGo", "counted though no owner pays any more, label or delete: ", self.detached),
            ("Unowned", "Outlived", "hours are charged though their workload is gone: ", self.unowned),
        )
        return [(kind, True, reason, head + _first_two(lines)) for kind, reason, head, lines in kinds if lines]


def _instant(text: str | None) -> int | None:
    """A time as milliseconds; None where there is none that can be read."""
    try:
        return milliseconds(text) if text else None
    except ReservationError:
        return None


@dataclass(slots=True)
class _Claims:
    """What a group's workloads make of claims that others may name as well, and what their pods show of them."""

    declared: dict[Slot, Resources] = field(default_factory=dict)
    shown: dict[Slot, Resources] = field(default_factory=dict)
    user: dict[Slot, Slot] = field(default_factory=dict)
    #: The most that any of them may still cost, and might have at its begin, where hours are safe.
    pledged: dict[Slot, tuple[Resources, Resources]] = field(default_factory=dict)

    def pledge(self, found: Counted) -> None:
        whole, lien_ = self.pledged.get(found.slot, ({}, {}))
        self.pledged[found.slot] = larger(whole, found.whole), larger(lien_, found.lien)

    def add(self, user: Slot, declared: Mapping[Slot, Resources], shown: Mapping[Slot, Resources]) -> None:
        for found, costs in ((self.declared, declared), (self.shown, shown)):
            for place, cost in costs.items():
                found[place] = larger(found.get(place, {}), cost)
        for place in (*declared, *shown):
            self.user.setdefault(place, user)
            self.declared.setdefault(place, {})
            self.shown.setdefault(place, {})


def _slot(adapter: Adapter, obj: Object) -> Slot:
    return Slot(adapter.resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


class _Cost(msgspec.Struct, frozen=True):
    """What a stored object costs, by its version. `settled` where nothing else that changes can change it."""

    version: str
    context: int
    round: object
    settled: bool
    resources: Resources
    #: Claims that others may name as well, as in `counting.Demand`.
    shared: Mapping[Slot, Resources] = msgspec.field(default_factory=dict)
    problem: str = ""
    #: What it and all below it hold; what of that is counted beyond its own demand, and that in words; whether it was
    #: more than had been known, and since when there is any.
    held: Resources = msgspec.field(default_factory=dict)
    beyond: Resources = msgspec.field(default_factory=dict)
    finding: str = ""
    grown: bool = False
    since: float = 0.0


@lru_cache(maxsize=16_384)
def _without_base(line: str) -> str:
    """An entry's line as whoever made it wrote it, but for the base; one that cannot be read is itself."""
    try:
        return str(replace(read(line), base={}))
    except (ReservationError, quantity.QuantityError):
        return line


def _differs(old: Status, new: Status) -> bool:
    """Whether anything but times and revisions changed."""
    plain = {"last_reconcile_time": None, "counted_at": {}}
    return msgspec.structs.replace(old, **plain) != msgspec.structs.replace(new, **plain)


def _findings(counted: Recount, hard: Resources, told: _Told, hours: _Hours) -> list[tuple[str, bool, str, str]]:
    """Conditions in a person's words."""
    cards = [f"{name} {_of(name, counted.used[name], hard[name])}" for name in sorted(hard)]
    over = counted.over
    findings = [
        ("Ready", True, "Reconciled", ", ".join(cards[:6]) + (f" and {len(cards) - 6} more" if len(cards) > 6 else "")),
        (
            ("OverQuota", True, "Over", f"over quota by {_amounts(over)}; growth is refused, nothing is stopped")
            if over
            else ("OverQuota", False, "Within", "every resource is within its quota")
        ),
    ]
    if any(is_cash(name) for name in hard):
        findings.append(
            ("CashExhausted", True, "Spent", hours.spent(counted))
            if counted.exhausted
            else ("CashExhausted", False, "Left", "hours are left of every resource")
        )
        findings.append(hours.low())
    return findings + told.conditions()


def _first_two(lines: list[str]) -> str:
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    return "; ".join(lines[:2]) + more


def _of(name: str, used: int, hard: int) -> str:
    return f"{quantity.text(name, used)}/{quantity.text(name, hard)}"


def _amounts(amounts: Resources) -> str:
    return ", ".join(f"{name}={quantity.text(name, amount)}" for name, amount in sorted(nonzero(amounts).items()))
