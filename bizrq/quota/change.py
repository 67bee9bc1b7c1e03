"""A change that asks to be admitted, in the terms of the one group that would pay for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bizrq.quota.reservation import Reservation
from bizrq.units.resources import Resources, growth
from bizrq.units.slot import GROUPS, Slot


@dataclass(frozen=True, slots=True)
class Role:
    """One set of equal pods of a workload."""

    name: str
    replicas: int
    per_pod: Resources


@dataclass(frozen=True, slots=True)
class Charge:
    """A change that asks to be admitted, in the terms of the one group that would pay for it.

    `demand` is what the slot needs in all after the change, `before` what the stored object costs this group
    (nothing for a create or for a move from elsewhere). `enters` is true for those two: such a change always
    leaves its mark in the account, even where it costs nothing, so that a deletion of the group sees it.

    `awaits` is the object whose write makes the change, where that is not the slot's own, and `seen` what the demand
    was counted from besides what is written: uid and resourceVersion by place. What `is_shared` several writes charge,
    each for all of it: together they need no more than the one that needs most. `unmodelled` are names of cards of
    which no model is said, where models are `hard`'s.

    `run` is how long it runs at most, in milliseconds, None where nothing bounds it, and `run_before` the stored
    object's; `bounded_by` is the place where the kind says so, "" for one that has none.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    demand: Resources
    before: Resources = field(default_factory=dict)
    enters: bool = True
    awaits: Slot | None = None
    seen: Mapping[Slot, tuple[str, int]] = field(default_factory=dict)
    roles: Sequence[Role] = ()
    roles_before: Sequence[Role] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: int | None = None
    run_before: int | None = None
    bounded_by: str = ""
    unmodelled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def is_grant(self) -> bool:
        """A budget handed to a child group rather than a workload that runs."""
        return self.slot.kind == GROUPS

    @property
    def awaited(self) -> Slot:
        return self.awaits or self.slot

    def has_seen(self, entry: Reservation) -> bool:
        """Whether the write that an entry awaits is among what the demand was counted from, or can never be stored."""
        uid, version = self.seen.get(entry.awaited, ("", 0))
        return uid == entry.uid and (entry.resource_version is None or version > entry.resource_version)

    def worse_in(self) -> dict[str, int]:
        """What the change needs more than before; empty where it makes nothing worse."""
        return growth(self.demand, self.before)

    def may_need_more(self) -> bool:
        """Whether an account may have to give more for it: the demand grows, or the time that it runs."""
        return bool(self.worse_in()) or self.runs_longer()

    def runs_longer(self) -> bool:
        """Whether it may run longer than before, which where hours are safe may need more of them."""
        return self.run_before is not None and (self.run is None or self.run > self.run_before)
