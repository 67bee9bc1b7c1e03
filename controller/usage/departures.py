"""What left a group: a workload that moved, was let go or was deleted, as the group was charged for it.

This file alone decides how much is held of a deleted workload until its pods are seen. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from types import MappingProxyType
from typing import NamedTuple

from bizrq.quota.recount import CountedObject
from bizrq.quota.reservation import Reservation
from bizrq.units.resources import Resources, add, larger, smaller, subtract_floor
from bizrq.units.slot import Slot
from controller.usage.workload_usage import WorkloadUsage


class Departure(NamedTuple):
    """What left a group: since when that is known, in seconds of the clock, and as what it was counted, if it was.

    `may_be_lost` is True where all that is known is the promise of a move to the group: it may never have been stored.
    `promised` is what reservations added for it whose write is over, and `slot` theirs.
    """

    since: float
    line: WorkloadUsage | None = None
    may_be_lost: bool = False
    promised: Resources = MappingProxyType({})
    slot: Slot | None = None

    @property
    def was_left(self) -> bool:
        """True for what was a leftover of the group."""
        return self.line is not None and self.line.left is not None

    @property
    def charged(self) -> Resources:
        """What the group was charged for it, and promised to pay beyond that."""
        return add(self.promised, self.line.counted.charged) if self.line is not None else self.promised


class Deleted(NamedTuple):
    """A deleted workload whose pods may not all be seen; `place` is "" where nothing is known of its own."""

    departure: Departure
    place: str


def note_promises(departures: MutableMapping[str, Departure], over: Iterable[Reservation]) -> None:
    """Note what reservations whose write is over add for what left, beyond what it was counted at."""
    promised: dict[str, Resources] = {}
    for entry in over:
        known = departures.get(entry.uid)
        # What was counted has the promise of its creation.
        if known is None or (entry.is_create and known.line is not None) or entry.slot.is_shared:
            continue
        promised[entry.uid] = add(promised.get(entry.uid, {}), entry.extra)
        departures[entry.uid] = known._replace(slot=entry.slot)
    for uid, extra in promised.items():
        known = departures[uid]
        departures[uid] = known._replace(promised=larger(known.promised, extra))


def held_of_deleted(
    deleted: Mapping[str, Deleted], seen: Mapping[str, Resources], room: Resources
) -> list[CountedObject]:
    """Return what is held of deleted workloads, by uid: what was charged beyond what is `seen` of each place.

    Never more than `room` together. What has no slot was neither counted nor promised.
    """
    left = dict(seen)
    held: list[CountedObject] = []
    for uid, (departure, place) in deleted.items():
        charged, there = departure.charged, left.get(place, {})
        more = smaller(subtract_floor(charged, there), room)
        left[place] = subtract_floor(there, charged)
        room = subtract_floor(room, more)
        slot = departure.line.counted.slot if departure.line is not None else departure.slot
        if slot is not None:
            # Another one of its name may be there by now, with reservations of its own.
            held.append(CountedObject(slot._replace(name=""), uid, more))
    return held
