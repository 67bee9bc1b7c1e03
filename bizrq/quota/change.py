"""A change that asks to be admitted, in the terms of the one group that would pay for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bizrq.quota.reservation import Reservation
from bizrq.units.resources import Resources, growth
from bizrq.units.slot import GROUP_SLOT_KIND, Slot


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
    (nothing for a create or for a move from elsewhere). `is_new` is true for those two: such a change always
    leaves its mark in the account, even where it costs nothing, so that a deletion of the group sees it.

    `pending_write` is the object whose write makes the change, where that is not the slot's own, and `read_versions`
    what the demand was counted from besides what is written: uid and resourceVersion by place. What `is_shared` several
    writes charge, each for all of it: together they need no more than the one that needs most. `unmodelled` are names
    of cards of which no model is said, where models are `hard`'s.

    `max_run_time` is how long it runs at most, in milliseconds, None where nothing bounds it, and `max_run_time_before`
    the stored object's; `run_bound_path` is the place where the kind says so, "" for one that has none.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    demand: Resources
    before: Resources = field(default_factory=dict)
    is_new: bool = True
    pending_write: Slot | None = None
    read_versions: Mapping[Slot, tuple[str, int]] = field(default_factory=dict)
    roles: Sequence[Role] = ()
    roles_before: Sequence[Role] = ()
    unspecified: Mapping[str, Sequence[str]] = field(default_factory=dict)
    max_run_time: int | None = None
    max_run_time_before: int | None = None
    run_bound_path: str = ""
    unmodelled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def is_grant(self) -> bool:
        """A budget handed to a child group rather than a workload that runs."""
        return self.slot.kind == GROUP_SLOT_KIND

    @property
    def awaited_slot(self) -> Slot:
        return self.pending_write or self.slot

    def has_read(self, entry: Reservation) -> bool:
        """Whether the write that an entry awaits is among what the demand was counted from, or can never be stored."""
        uid, version = self.read_versions.get(entry.awaited_slot, ("", 0))
        return uid == entry.uid and (entry.resource_version is None or version > entry.resource_version)

    def growth(self) -> dict[str, int]:
        """What the change needs more than before; empty where it makes nothing worse."""
        return growth(self.demand, self.before)

    def may_need_more(self) -> bool:
        """Whether an account may have to give more for it: the demand grows, or the time that it runs."""
        return bool(self.growth()) or self.runs_longer()

    def runs_longer(self) -> bool:
        """Whether it may run longer than before, which where hours are safe may need more of them."""
        return self.max_run_time_before is not None and (
            self.max_run_time is None or self.max_run_time > self.max_run_time_before
        )
