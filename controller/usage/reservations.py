"""What is known of the promises that stand in a group's status.

This file alone decides when one has expired, and what the snapshot knows of its write (docs/design.md, "Recount").
What becomes of it is `bizrq.quota.recount`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import structlog

from bizrq.api.group import GroupObject
from bizrq.kube.client import NotFound
from bizrq.quota.recount import WriteState
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation
from bizrq.units import quantity
from bizrq.units.resources import Resources, larger
from bizrq.units.slot import ReservationError, Slot
from controller.watch.cluster import CATCH_UP, Cluster

log = structlog.get_logger(__name__)

#: Seconds between two tries to learn what became of a promise that has expired.
_AGAIN = 5.0


class ReservationTracker:
    """Reads the entries of every group, and remembers for how long each has stood."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        #: When each entry, as written, was first seen on our own clock: its age does not depend on anybody else's.
        self._first_seen: dict[str, dict[str, float]] = {}

    def forget(self, name: str) -> None:
        self._first_seen.pop(name, None)

    def of(self, group: GroupObject) -> tuple[list[Reservation], list[str]]:
        """The reservations of a status, and those that cannot be read and are too young to be dropped."""
        entries, unreadable = [], []
        ages = self._ages(group.name, group.status.reservations)
        for text in group.status.reservations:
            try:
                entries.append(parse_reservation(text))
            except (ReservationError, quantity.QuantityError) as error:
                if ages[_without_base(text)] < LIFETIME / 1000:
                    unreadable.append(text)
                else:
                    log.error("unreadable reservation dropped", group=group.name, error=str(error))
        return entries, unreadable

    async def expired(self, group: GroupObject, entries: Iterable[Reservation]) -> set[str]:
        """Entries, by line without base, that expired before a read which the snapshot has caught up with since.

        The snapshot then is the proof: a write that was awaited shows there or will never be.
        """
        ages = self._ages(group.name, group.status.reservations)
        old: dict[str, set[str]] = {}
        for entry in entries:
            line = _without_base(str(entry))
            if ages[line] >= LIFETIME / 1000:
                old.setdefault(entry.awaited_slot.kind, set()).add(line)
        proven: set[str] = set()
        for kind, lines in old.items():
            informer = self._cluster.informers.get(kind)
            if informer is None:
                log.error("reservations of a kind that is not watched are kept", group=group.name, kind=kind)
                continue
            try:
                revision = await self._cluster.client.revision(self._cluster.informers.resource(kind))
            except NotFound:
                # The kind is not installed any more, nor is anything of it stored.
                revision = 0
            if await informer.catch_up(revision, CATCH_UP):
                proven |= lines
        return proven

    def next_expiry(self, name: str, lines: Iterable[str]) -> float:
        """Seconds after which to look again at a group that has these entries: when the first of them has expired.

        One that has, but of which no read could prove yet what became of it, is soon asked about again.
        """
        return max(_AGAIN, 1.0 + LIFETIME / 1000 - max(self._ages(name, lines).values()))

    def write_state(self, entry: Reservation, expired: set[str]) -> WriteState:
        """What the snapshot knows of the object whose write an entry awaits."""
        store = self._cluster.informers.snapshot(entry.awaited_slot.kind)
        if store is None:
            return WriteState.PENDING
        if store.deleted_at(entry.uid) is not None:
            return WriteState.OBSERVED
        obj = store.by_uid(entry.uid)
        if obj is not None and (
            entry.resource_version is None or int(obj["metadata"]["resourceVersion"]) > entry.resource_version
        ):
            return WriteState.OBSERVED
        return WriteState.EXPIRED if _without_base(str(entry)) in expired else WriteState.PENDING

    def _ages(self, name: str, lines: Iterable[str]) -> dict[str, float]:
        """Seconds that each entry has stood unchanged on our own clock, as with a Lease; by line without base.

        A base that we set ourselves is no change: only whoever made the entry moves its expiry.
        """
        now = self._clock()
        before = self._first_seen.get(name, {})
        self._first_seen[name] = {line: before.get(line, now) for line in map(_without_base, lines)}
        return {line: now - seen for line, seen in self._first_seen[name].items()}


def reserved_by_slot(entries: Iterable[Reservation]) -> dict[Slot, Resources]:
    """The most that is promised to each slot."""
    found: dict[Slot, Resources] = {}
    for entry in entries:
        found[entry.slot] = larger(found.get(entry.slot, {}), entry.amount)
    return found


@lru_cache(maxsize=16_384)
def _without_base(line: str) -> str:
    """An entry's line as whoever made it wrote it, but for the base; one that cannot be read is itself."""
    try:
        return str(replace(parse_reservation(line), base={}))
    except (ReservationError, quantity.QuantityError):
        return line
