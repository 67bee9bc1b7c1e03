"""The reservations in a group's status: their age, and what the informers know of the writes that they await.

This file alone decides when one has expired (docs/design.md, "Recount"). `bizrq.quota.recount` decides what to drop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

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


class _Found(NamedTuple):
    """A reservation, what is known of the write that it awaits, and the stored object; None where there is none."""

    entry: Reservation
    state: WriteState
    obj: Object | None

    @property
    def written(self) -> int:
        """The generation that the write gave the object."""
        return (self.entry.generation or 0) + 1

    @property
    def is_followed(self) -> bool:
        """True where another write has followed."""
        return self.obj is not None and self.obj["metadata"].get("generation", 0) > self.written


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
        for text in group.status.reservations:
            try:
                entries.append(parse_reservation(text))
            except (ReservationError, quantity.QuantityError) as error:
                if is_line_text(text) or not self._is_old(group, text):
                    unreadable.append(text)
                else:
                    log.error("unreadable reservation dropped", group=group.name, error=str(error))
        return entries, unreadable

    def _is_old(self, group: GroupObject, text: str) -> bool:
        """Return True for a text that has been in the status for a reservation's lifetime."""
        since = self._since(group.name, group.status.reservations)
        return self._clock() - since[_without_base(text)] >= LIFETIME / 1000

    async def expired(self, group: GroupObject, entries: Iterable[Reservation]) -> set[str]:
        """Return the lines without base of reservations that expired before a read the informers have caught up with.

        That is the proof: an awaited write shows in the informers by then, or never happens. Raises ApiError,
        Unreachable.
        """
        since, latest = self._since(group.name, group.status.reservations), self._clock() - LIFETIME / 1000
        if min(since.values(), default=latest + 1.0) > latest:
            return set()
        #: By kind, since when each line is expired.
        old: dict[str, dict[str, float]] = {}
        for entry in without_lines(entries):
            line = _without_base(str(entry))
            if since[line] <= latest:
                old.setdefault(entry.awaited_slot.kind, {})[line] = since[line] + LIFETIME / 1000
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
        now = self._clock()
        oldest = min((since for line, since in self._since(name, lines).items() if not is_line_text(line)), default=now)
        return max(_AGAIN, 1.0 + LIFETIME / 1000 - (now - oldest))

    def write_states(self, entries: Iterable[Reservation], expired: set[str]) -> list[tuple[Reservation, WriteState]]:
        """Return what the informers know of the writes that reservations of one group await."""
        found = [self._found(entry, expired) for entry in entries]
        unseen = {entry.uid for entry, _ in self._unseen(found, expired)}
        # What was promised after it, too: together they hold what the object was admitted with.
        return [
            (entry, WriteState.UNSEEN if entry.uid in unseen and state is not WriteState.PENDING else state)
            for entry, state, _ in found
        ]

    def is_acted_on(self, entry: Reservation) -> bool:
        """Return False while the controller of an object has not acted on the write that a reservation awaits."""
        return self._found(entry, set()).state is not WriteState.DELIVERED

    async def see(self, entries: Iterable[Reservation], expired: set[str]) -> list[tuple[Reservation, WriteState]]:
        """Let the watches of pods show what was made for what objects asked for before and ask for no more.

        Return what is known of the writes then.
        """
        entries = list(entries)
        found = [self._found(entry, expired) for entry in entries]
        unseen = list(self._unseen(found, expired))
        waits = {(informer, revision) for _, late in unseen for informer, revision in late}
        await asyncio.gather(*(informer.catch_up(revision, patience(informer)) for informer, revision in waits))
        return self.write_states(entries, expired) if unseen else [(entry, state) for entry, state, _ in found]

    def _unseen(
        self, found: Iterable[_Found], expired: set[str]
    ) -> Iterator[tuple[Reservation, list[tuple[Informer, int]]]]:
        """Yield the entries of which pods may not be seen that were made for them, with the watches that are late.

        Controllers may have made these, or may still, and something else is asked for now. An entry that asks for more
        upon such a one holds its pods, unless the selector may be another one now: it drops those.
        """
        delivered = [each for each in found if each.state in (WriteState.DELIVERED, WriteState.OBSERVED)]
        followed = [each for each in delivered if self._may_reselect(each) or each.is_followed]
        if not followed:
            return
        continued = {(entry.uid, entry.generation) for entry, *_ in delivered}
        for each in followed:
            entry, _, obj = each
            adapter = self._cluster.registry.of_slot(entry.awaited_slot)
            if obj is None or adapter is None or not entry.extra or _is_in(expired, entry):
                continue
            if not self._may_reselect(each) and (entry.uid, each.written) in continued:
                continue
            lags, late = unseen_below(self._cluster, adapter, obj)
            if lags or late:
                yield entry, late

    @cached_property
    def _reselecting(self) -> frozenset[str]:
        """The kinds that may drop their pods by another selector."""
        adapters = self._cluster.registry.adapters
        return frozenset(adapter.resource for adapter in adapters if adapter.group_kind in RESELECTING)

    def _may_reselect(self, found: _Found) -> bool:
        """Return True for a stored object that may drop the pods of which its selector says nothing any more."""
        return found.obj is not None and found.entry.awaited_slot.kind in self._reselecting

    def _found(self, entry: Reservation, expired: set[str]) -> _Found:
        """Return what the informers know of the object whose write a reservation awaits, apart from its pods."""
        store = self._cluster.informers.snapshot(entry.awaited_slot.kind)
        if store is None:
            return _Found(entry, WriteState.PENDING, None)
        obj, version = store.by_uid(entry.uid), entry.resource_version
        if obj is None:
            # A list does not say what has gone, but an object that was stored at a version of before is gone without
            # it.
            is_gone = version is not None and version <= store.resource_version
            is_over = is_gone or store.deleted_at(entry.uid) is not None
            return _Found(entry, WriteState.OBSERVED if is_over else _awaited_by(entry, expired), None)
        if version is None:
            return _Found(entry, WriteState.OBSERVED, obj)
        if int(obj["metadata"]["resourceVersion"]) <= version:
            return _Found(entry, _awaited_by(entry, expired), obj)
        acted = has_acted(obj, entry.generation) and not self._is_to_rerun(obj, entry)
        # Of a status that cannot be read nothing more is expected.
        is_over = acted or (acted is None and _is_in(expired, entry))
        return _Found(entry, WriteState.OBSERVED if is_over else WriteState.DELIVERED, obj)

    def _is_to_rerun(self, obj: Object, entry: Reservation) -> bool:
        """Return True for an update of an ended object whose operator has yet to run it again for that."""
        adapter = self._cluster.registry.of(obj) if entry.generation is not None else None
        return adapter is not None and adapter.reruns and has_ended(obj, adapter)

    def _since(self, name: str, lines: Iterable[str]) -> dict[str, float]:
        """Return since when each reservation is unchanged on our own clock, by line without base. Do not change it.

        This is how a Lease expires, too: no clock of another process matters.

        A base that the recount sets is no change: only the reservation's writer moves its expiry.
        """
        now, before = self._clock(), self._first_seen.get(name, {})
        self._first_seen[name] = since = {line: before.get(line, now) for line in map(_without_base, lines)}
        return since


def _awaited_by(entry: Reservation, expired: set[str]) -> WriteState:
    """Return the state of a write that is not seen."""
    return WriteState.EXPIRED if _is_in(expired, entry) else WriteState.PENDING


def _is_in(expired: set[str], entry: Reservation) -> bool:
    return bool(expired) and _without_base(str(entry)) in expired


@lru_cache(maxsize=2048)
def _without_base(line: str) -> str:
    """Return a reservation's line without its base. A line that cannot be read stays as it is."""
    try:
        entry = parse_reservation(line)
        return str(replace(entry, base={})) if entry.base else line
    except (ReservationError, quantity.QuantityError):
        return line
