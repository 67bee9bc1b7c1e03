"""The reservations in a group's status: their age, and what the informers know of the writes that they await.

This file alone decides when one has expired (docs/design.md, "Recount"). `bizrq.quota.recount` decides what to drop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import structlog

from bizrq.api.group import GroupObject
from bizrq.kube.client import NotFound
from bizrq.kube.informer import Informer
from bizrq.quota.allowance import is_line_text, without_lines
from bizrq.quota.recount import WriteState
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation
from bizrq.units import quantity
from bizrq.units.slot import ReservationError
from bizrq.workloads.ownership.observation import has_acted
from bizrq.workloads.ownership.payers import RESELECTING
from bizrq.workloads.pods.roles import has_ended
from controller.usage.below import unseen_below
from controller.watch.cluster import Cluster, Object, patience
from controller.watch.shown import ShownWrites

log = structlog.get_logger(__name__)

#: Seconds between two attempts to learn what became of the write of an expired reservation.
_AGAIN = 5.0


class ReservationTracker:
    """Reads the reservations of every group, and remembers since when each is there."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._shown = ShownWrites(clock)
        #: When each reservation, as written, was first seen on our own clock, by group and line without base.
        self._first_seen: dict[str, dict[str, float]] = {}

    def forget(self, name: str) -> None:
        """Forget a group that is gone."""
        self._first_seen.pop(name, None)

    def of(self, group: GroupObject) -> tuple[list[Reservation], list[str]]:
        """Return the reservations of a status, and the texts that cannot be read and stay.

        They stay for a minute; allowances (`controller.usage.allowances`) until nobody can use them.
        """
        entries, unreadable = [], []
        ages = self._ages(group.name, group.status.reservations)
        for text in group.status.reservations:
            try:
                entries.append(parse_reservation(text))
            except (ReservationError, quantity.QuantityError) as error:
                if is_line_text(text) or ages[_without_base(text)] < LIFETIME / 1000:
                    unreadable.append(text)
                else:
                    log.error("unreadable reservation dropped", group=group.name, error=str(error))
        return entries, unreadable

    async def expired(self, group: GroupObject, entries: Iterable[Reservation]) -> set[str]:
        """Return the lines without base of reservations that expired before a read the informers have caught up with.

        That is the proof: an awaited write shows in the informers by then, or never happens. Raises ApiError,
        Unreachable.
        """
        ages, now = self._ages(group.name, group.status.reservations), self._clock()
        #: By kind, since when each line is expired.
        old: dict[str, dict[str, float]] = {}
        for entry in without_lines(entries):
            line = _without_base(str(entry))
            if ages[line] >= LIFETIME / 1000:
                old.setdefault(entry.awaited_slot.kind, {})[line] = now - ages[line] + LIFETIME / 1000
        proven: set[str] = set()
        for kind, lines in old.items():
            informer = self._cluster.informers.get(kind)
            if informer is None:
                log.error("reservations of an unwatched kind are kept", group=group.name, kind=kind)
                continue
            upto = await self._shown.until(kind, [informer], partial(self._revision, kind), max(lines.values()))
            if upto is not None:
                proven.update(line for line, since in lines.items() if since <= upto)
        return proven

    async def _revision(self, kind: str) -> int:
        try:
            return await self._cluster.client.revision(self._cluster.informers.resource(kind))
        except NotFound:
            # The kind is no longer installed, so none of its objects is stored.
            return 0

    def next_expiry(self, name: str, lines: Iterable[str]) -> float:
        """Return the seconds until the first of these reservations expires.

        For one that has expired without proof of what became of its write, return a short retry delay.
        """
        ages = [age for line, age in self._ages(name, lines).items() if not is_line_text(line)]
        return max(_AGAIN, 1.0 + LIFETIME / 1000 - max(ages, default=0.0))

    def write_states(self, entries: Iterable[Reservation], expired: set[str]) -> list[tuple[Reservation, WriteState]]:
        """Return what the informers know of the writes that reservations of one group await."""
        found = [(entry, self._write_state(entry, expired)) for entry in entries]
        unseen = {entry.uid for entry, _ in self._unseen(found, expired)}
        # What was promised after it, too: together they hold what the object was admitted with.
        return [
            (entry, WriteState.UNSEEN if entry.uid in unseen and state is not WriteState.PENDING else state)
            for entry, state in found
        ]

    def is_acted_on(self, entry: Reservation) -> bool:
        """Return False while the controller of an object has not acted on the write that a reservation awaits."""
        return self._write_state(entry, set()) is not WriteState.DELIVERED

    async def see(self, entries: Iterable[Reservation], expired: set[str]) -> list[tuple[Reservation, WriteState]]:
        """Let the watches of pods show what was made for what objects asked for before and ask for no more.

        Return what is known of the writes then.
        """
        entries = list(entries)
        found = [(entry, self._write_state(entry, expired)) for entry in entries]
        unseen = list(self._unseen(found, expired))
        for _, late in unseen:
            for informer, revision in late:
                await informer.catch_up(revision, patience(informer))
        return self.write_states(entries, expired) if unseen else found

    def _unseen(
        self, entries: Iterable[tuple[Reservation, WriteState]], expired: set[str]
    ) -> Iterator[tuple[Reservation, list[tuple[Informer, int]]]]:
        """Yield the entries of which pods may not be seen that were made for them, with the watches that are late.

        Controllers may have made these, or may still, and something else is asked for now. An entry that asks for more
        upon such a one holds its pods, unless the selector may be another one now: it drops those.
        """
        delivered = [entry for entry, state in entries if state in (WriteState.DELIVERED, WriteState.OBSERVED)]
        continued = {(entry.uid, entry.generation) for entry in delivered}
        for entry in delivered:
            store = self._cluster.informers.snapshot(entry.awaited_slot.kind)
            obj = store.by_uid(entry.uid) if store is not None else None
            adapter = self._cluster.registry.of_slot(entry.awaited_slot)
            if obj is None or adapter is None:
                continue
            if not (adapter.group_kind in RESELECTING or _is_followed(entry, obj, continued)):
                continue
            if not entry.extra or _without_base(str(entry)) in expired:
                continue
            lags, late = unseen_below(self._cluster, adapter, obj)
            if lags or late:
                yield entry, late

    def _write_state(self, entry: Reservation, expired: set[str]) -> WriteState:
        """Return what the informers know of the object whose write a reservation awaits, apart from its pods."""
        store = self._cluster.informers.snapshot(entry.awaited_slot.kind)
        if store is None:
            return WriteState.PENDING
        obj, version = store.by_uid(entry.uid), entry.resource_version
        # A list does not say what has gone, but an object that was stored at a version of before is gone without it.
        is_gone = obj is None and version is not None and version <= store.resource_version
        if is_gone or store.deleted_at(entry.uid) is not None or (obj is not None and version is None):
            return WriteState.OBSERVED
        is_expired = _without_base(str(entry)) in expired
        if obj is not None and int(obj["metadata"]["resourceVersion"]) > (version or 0):
            acted = has_acted(obj, entry.generation) and not self._is_to_rerun(obj, entry)
            # Of a status that cannot be read nothing more is expected.
            return WriteState.OBSERVED if acted or (acted is None and is_expired) else WriteState.DELIVERED
        return WriteState.EXPIRED if is_expired else WriteState.PENDING

    def _is_to_rerun(self, obj: Object, entry: Reservation) -> bool:
        """Return True for an update of an ended object whose operator has yet to run it again for that."""
        adapter = self._cluster.registry.of(obj) if entry.generation is not None else None
        return adapter is not None and adapter.reruns and has_ended(obj, adapter)

    def _ages(self, name: str, lines: Iterable[str]) -> dict[str, float]:
        """Return for how many seconds each reservation is unchanged on our own clock, by line without base.

        This is how a Lease expires, too: no clock of another process matters.

        A base that the recount sets is no change: only the reservation's writer moves its expiry.
        """
        now = self._clock()
        before = self._first_seen.get(name, {})
        self._first_seen[name] = {line: before.get(line, now) for line in map(_without_base, lines)}
        return {line: now - seen for line, seen in self._first_seen[name].items()}


def _is_followed(entry: Reservation, obj: Object, continued: Collection[tuple[str, int | None]]) -> bool:
    """Return True where another write has followed, of which no entry holds the pods of this one."""
    written = (entry.generation or 0) + 1
    return obj["metadata"].get("generation", 0) > written and (entry.uid, written) not in continued


@lru_cache(maxsize=2048)
def _without_base(line: str) -> str:
    """Return a reservation's line without its base. A line that cannot be read stays as it is."""
    try:
        entry = parse_reservation(line)
        return str(replace(entry, base={})) if entry.base else line
    except (ReservationError, quantity.QuantityError):
        return line
