"""The change that `decide` decides on, in the terms of the one group that would pay for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec import field as struct_field

from bizrq.quota.reservation import Reservation, Write
from bizrq.units import quantity
from bizrq.units.resources import Resources, add, growth, larger, scale, total
from bizrq.units.slot import GROUP_SLOT_KIND, Slot
from bizrq.units.text import by_number


@dataclass(frozen=True, slots=True)
class Role:
    """One set of equal pods of a workload; `surge` of them are charged in addition to the declared ones."""

    name: str
    replicas: int
    per_pod: Resources
    surge: int = 0


def surge_remark(role: str, pods: int, surge: int) -> str:
    """Return what people read of surge that is charged."""
    return f"{surge} of the {pods} pods of {role} {by_number(surge, 'is', 'are')} surge"


@dataclass(frozen=True, slots=True)
class OlderVersion:
    """A version of a workload whose pods cost more than those of its template. A scale-up may add pods of it.

    `since` is when it was made, as its object says, "" where that is not known.
    """

    name: str
    pods: int
    since: str
    per_pod: Resources


#: A refusal names this many older versions.
MAX_OLDER = 2


@dataclass(frozen=True, slots=True)
class Room:
    """What the owner of a child is charged for (`covers`), and what its other children ask for, by uid.

    They are of these `kinds`, and were listed at this `revision`. `scaled_to` is what the owner's controller may raise
    any one of them to; empty for a controller that scales none. Of children that are `declared` by number, its
    controller makes those that are missing, each of which costs `least` or more.
    """

    covers: Resources
    taken: Mapping[str, Resources]
    kinds: frozenset[str]
    revision: int = 0
    scaled_to: Resources = field(default_factory=dict)
    declared: int = 0
    least: Resources = field(default_factory=dict)

    def asked(self, others: Collection[Resources]) -> dict[str, int]:
        """Return what children besides the one that is charged may come to ask for."""
        missing = max(0, self.declared - 1 - len(others))
        asked = add(total(others), scale(self.least, missing)) if missing else total(others)
        return larger(asked, self.scaled_to) if any(asked.values()) else asked


class Charge(Struct, frozen=True):
    """A change to admit, in the terms of the one group that would pay for it.

    `demand` is what the slot needs in all after the change, `before` what the stored object costs this group, both in
    nano-units by name. `before` is empty for a create and for a move from another group; `is_new` is true for those
    two. Such a change always leaves an entry, even where it costs nothing, so that a deletion of the group sees it.

    `pending_write` is the object whose write makes the change, where that is not the slot's own. `read_versions` are
    the other objects that the demand was counted from: uid and resourceVersion by slot. A demand that `is_shared` is
    charged by several writes, each for all of it: together they need no more than the largest. One that `is_child` is
    added to those of its siblings in the slot of their payer, and does not wait for them. `unspecified` are requests
    and limits with the containers that do not state them, and `unmodelled` names of cards without a model, with the
    roles that ask for them; those of the stored object are `unspecified_before` and `unmodelled_before`.

    `generation` is the stored object's, None for a create. `adopts` is what `used` holds of leftovers that a create
    will adopt; with `adopts_admitted` all of that was admitted: of a kind that surges, some was free. `templates` are
    those that the object comes to name, of claims or pods: its entry says so to others. `leaving` are the parts of the
    entry of an object that leaves its owner (`bizrq.workloads.ownership.memory`).

    With `room` the charge is a child's, in the slot of its owner: `before` is what the owner covers of it, which
    depends on the entries of the children that came before. One that `is_by_person` has to state what `hard` names: an
    operator may add containers that do not. `children` are the kinds of objects whose creates are promised in the slot
    beside what its own object needs.

    `max_run_time` is the longest run in milliseconds, None where nothing bounds it; `max_run_time_before` is that of
    the stored object. `run_bound_path` is the field that bounds the run, "" for a kind without one. `stated` are the
    requests and limits that all containers state, None where there are no pods.

    Added pods cost as much as those of the `older` versions do. `because_older` is how much of the growth that is, and
    `because_stored` how much is for stored pods that cost more than those of the new template. `changes_size` is True
    where the write itself changes what a pod costs.

    An admission makes several of these: with so many fields a struct takes a twentieth of a dataclass's time.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    demand: Resources
    before: Resources = struct_field(default_factory=dict)
    is_new: bool = True
    pending_write: Slot | None = None
    read_versions: Mapping[Slot, tuple[str, int]] = struct_field(default_factory=dict)
    roles: Sequence[Role] = ()
    roles_before: Sequence[Role] = ()
    unspecified: Mapping[str, Sequence[str]] = struct_field(default_factory=dict)
    max_run_time: int | None = None
    max_run_time_before: int | None = None
    run_bound_path: str = ""
    unmodelled: Mapping[str, Sequence[str]] = struct_field(default_factory=dict)
    is_shared: bool = False
    stated: frozenset[str] | None = frozenset()
    is_child: bool = False
    is_by_person: bool = False
    generation: int | None = None
    room: Room | None = None
    children: frozenset[str] = frozenset()
    adopts: Resources = struct_field(default_factory=dict)
    adopts_admitted: bool = False
    templates: frozenset[str] = frozenset()
    leaving: tuple[str, ...] = ()
    older: Sequence[OlderVersion] = ()
    because_older: Resources = struct_field(default_factory=dict)
    because_stored: Resources = struct_field(default_factory=dict)
    changes_size: bool = False
    unspecified_before: Mapping[str, Sequence[str]] = struct_field(default_factory=dict)
    unmodelled_before: Mapping[str, Sequence[str]] = struct_field(default_factory=dict)

    @property
    def is_grant(self) -> bool:
        """Return True for the budget of a child group, False for a workload."""
        return self.slot.kind == GROUP_SLOT_KIND

    @property
    def awaited_slot(self) -> Slot:
        return self.pending_write or self.slot

    @property
    def write(self) -> Write:
        """The write that the charge is of, as its entry states it."""
        return self.slot, self.uid, self.pending_write, self.generation, self.resource_version is None

    def has_read(self, entry: Reservation) -> bool:
        """Return True where the demand was counted with the awaited write, or that write can no longer land."""
        uid, version = self.read_versions.get(entry.awaited_slot, ("", 0))
        return uid == entry.uid and (entry.resource_version is None or version > entry.resource_version)

    def is_after(self, entry: Reservation) -> bool:
        """Return True where the object was reviewed after the awaited write was stored, or could no longer be."""
        if self.resource_version is None or (entry.awaited_slot, entry.uid) != (self.slot, self.uid):
            return False
        return entry.resource_version is None or entry.resource_version < self.resource_version

    def is_beside(self, entry: Reservation) -> bool:
        """Return True where an entry of the slot is a child's, which adds to what the slot's own object needs."""
        awaited = entry.pending_write
        return awaited is not None and entry.resource_version is None and awaited.kind in self.children

    def growth(self) -> dict[str, int]:
        """Return what the change needs more than before; empty where it makes nothing worse."""
        return growth(self.demand, self.before)

    def may_need_more(self) -> bool:
        """Return True where the demand or the length of the run grows, or less is stated than before."""
        return bool(self.growth()) or self.runs_longer() or self.states_less()

    def states_less(self) -> bool:
        """Return True where containers or cards do not state what they did: what they use is not counted then."""
        return bool(self.newly_unspecified() or self.newly_unmodelled())

    def newly_unspecified(self) -> dict[str, list[str]]:
        """Return the requests and limits with the containers that do not state them, and did or were not there."""
        return newly(self.unspecified, self.unspecified_before)

    def newly_unmodelled(self) -> dict[str, list[str]]:
        """Return the names of cards with the roles that ask for them without a model, and did not before."""
        return newly(self.unmodelled, self.unmodelled_before)

    def runs_longer(self) -> bool:
        """Return True where it may run longer than before: in safe mode that may need more hours."""
        return self.max_run_time_before is not None and (
            self.max_run_time is None or self.max_run_time > self.max_run_time_before
        )


def newly(now: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return those of each name that it did not have before, without names that have none."""
    new = {name: [each for each in who if each not in before.get(name, ())] for name, who in now.items()}
    return {name: who for name, who in new.items() if who}


def surge_remarks(charge: Charge) -> list[str]:
    """Return what people read of surge that is charged, for each role that has some."""
    return [surge_remark(role.name, role.replicas, role.surge) for role in charge.roles if role.surge]


def older_remarks(charge: Charge, resources: Iterable[str], *, passes: bool) -> list[str]:
    """Return what people read of older versions at whose size added pods count in these resources.

    `passes` is True where the same request fits without them.
    """
    sizes = {name: max((each.per_pod.get(name, 0) for each in charge.older), default=0) for name in resources}
    sizes = {name: size for name, size in sizes.items() if charge.because_older.get(name, 0)}
    largest = [each for each in charge.older if any(each.per_pod.get(name, 0) == size for name, size in sizes.items())]
    if not largest:
        return []
    size = ",".join(f"{name}={quantity.text(name, amount)}" for name, amount in sorted(sizes.items()))
    named = ", ".join(_named(each) for each in largest[:MAX_OLDER])
    more = f" and {len(largest) - MAX_OLDER} more" if len(largest) > MAX_OLDER else ""
    remark = f"added pods count as {size} each, like those of {named}{more}, which may be scaled instead"
    if passes:
        is_create = charge.resource_version is None
        until = "nothing of that is left" if is_create else "the rollout is complete and their pods have gone"
        remark += f": {_FIRST if charge.changes_size else 'the same request passes'} once {until}"
    return [remark]


#: What to do where a template and the number of pods change in one write: it never passes as it is.
_FIRST: Final = "change the template by itself first, and the rest"


def stored_remarks(charge: Charge, resources: Iterable[str]) -> list[str]:
    """Return what people read of stored pods that stay while others are added, for these resources."""
    if not any(charge.because_stored.get(name, 0) for name in resources):
        return []
    if charge.changes_size:
        why = "pods that run cost more than those of the new template and stay beside the added ones"
        return [f"{why}: {_FIRST} once all pods are of it"]
    return ["pods that run stay beside those that take their place"]


def _named(version: OlderVersion) -> str:
    pods = "1 pod" if version.pods == 1 else f"{version.pods or 'no'} pods"
    return f"{version.name} ({pods}{f', since {version.since}' if version.since else ''})"
