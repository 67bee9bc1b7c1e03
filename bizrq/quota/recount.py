"""The recount (docs/design.md, "Recount"): compute `used` from one snapshot, and the reservations to keep.

This file alone decides what a status says and when a readable reservation is dropped. It knows no watches or clocks:
the caller states what its snapshot has seen, and which entries have expired and were looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce

from bizrq.hours.budget import HOUR, in_hours
from bizrq.quota.reservation import Reservation, by_age, in_order, reserved_total
from bizrq.units.names import is_cash, metered_resource
from bizrq.units.quantity import round_up_milli
from bizrq.units.resources import (
    Limits,
    Resources,
    add,
    growth,
    larger,
    nonzero,
    restrict,
    smaller,
    subtract_floor,
    total,
)
from bizrq.units.slot import GROUP_SLOT_KIND, Slot


@dataclass(frozen=True, slots=True)
class CountedObject:
    """One stored object of the snapshot and what it costs the group: a workload's demand, or what a child holds.

    `unrequested` is what it uses though it never asked for it, as its pods show: used as well, and no drift. Where
    hours are safe, `max_cost` is what it may cost in all by `cash/` name, and `committed` what of that is still to
    come, in nano-units x milliseconds: hours that were rounded one by one add up to too many.

    `demand` is the part of `cost` that is only asked for, and `floor` what it would cost without any demand: by its
    pods, and by what its controller acts on. Both are None where that is not known apart.
    """

    slot: Slot
    uid: str
    cost: Resources
    unrequested: Resources = field(default_factory=dict)
    max_cost: Resources = field(default_factory=dict)
    committed: Resources = field(default_factory=dict)
    demand: Resources | None = None
    floor: Resources | None = None

    @property
    def charged(self) -> dict[str, int]:
        """What the group is charged for it in all."""
        return add(self.cost, self.unrequested)

    def cost_at(self, demand: Resources) -> dict[str, int]:
        """Return the cost if no more than this were asked for."""
        if self.demand is None or self.floor is None:
            return dict(self.cost)
        return larger(subtract_floor(self.cost, growth(self.demand, demand)), self.floor)


class UsageSums:
    """The cost of several stored objects, by slot and in total, kept current as objects come and go.

    `cost`, `unrequested` and `committed` are the totals; a name that has become 0 may stay.
    """

    def __init__(self, counted: Iterable[CountedObject] = ()) -> None:
        self.cost: dict[str, int] = {}
        self.unrequested: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self._by_slot: dict[Slot, CountedObject] = {}
        for each in counted:
            self.add(each)

    def get(self, slot: Slot) -> CountedObject | None:
        return self._by_slot.get(slot)

    def add(self, counted: CountedObject) -> None:
        self._by_slot[counted.slot] = counted
        self._move(counted, 1)

    def remove(self, counted: CountedObject) -> None:
        """Remove an object that was added: the same instance."""
        # Another object may have come under the same name before this one was seen to go.
        if self._by_slot.get(counted.slot) is counted:
            del self._by_slot[counted.slot]
        self._move(counted, -1)

    def equals(self, other: UsageSums) -> bool:
        """Return True where both have the same totals."""
        mine, theirs = (
            (nonzero(each.cost), nonzero(each.unrequested), nonzero(each.committed)) for each in (self, other)
        )
        return mine == theirs

    def _move(self, counted: CountedObject, sign: int) -> None:
        for sums, amounts in (
            (self.cost, counted.cost),
            (self.unrequested, counted.unrequested),
            (self.committed, counted.committed),
        ):
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + sign * amount


class WriteState(Enum):
    """The state of the write that an entry awaits."""

    PENDING = "its write may still come"
    DELIVERED = "the watch has delivered it, and the workload's own controller has not acted on it"
    UNSEEN = "something else is asked for since, and pods that were made for it may not be seen yet"
    OBSERVED = "the watch has delivered it, and its controller, if any, has acted on it"
    EXPIRED = "it expired, and a later read proved the true state, which the snapshot shows"

    @property
    def is_over(self) -> bool:
        """Return True once the snapshot shows all that the write has led to, or that it was stored at least."""
        return self not in (WriteState.PENDING, WriteState.UNSEEN)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one recount reads, at one moment.

    `shared` is what the group's own hold apart from what each of its `workloads` was counted at: claims that several
    name, and what those keep that cannot be counted. `reservations` pairs each entry of the stored status with what is
    known of its object. `cash` is what the group's own pods have spent, by `cash/` name. `published` is `used` as the
    status has it now, empty where there is none. `owner_paid` are objects that entries speak of and that another one of
    the workloads pays for: part of its cost, not of the sum. `safe` says whether hours are promised as a whole;
    `exact_cash` is `cash` before it was rounded, in nano-units x milliseconds.

    `may_drop` says whether an entry whose write is over may go: not before the payer of what it left is stored.
    `adoptable` is by slot what `used` holds of pods that a create of that name would adopt. `new_leftovers` is what
    leftovers among the workloads cost that the published status does not have: a deletion made them, so they are no
    drift. `ahead` is what processes hold ahead: they may have admitted that much which no entry shows.
    """

    hard: Limits
    workloads: UsageSums
    children: Sequence[CountedObject]
    reservations: Sequence[tuple[Reservation, WriteState]] = ()
    cash: Resources = field(default_factory=dict)
    published: Resources = field(default_factory=dict)
    owner_paid: Sequence[CountedObject] = ()
    safe: bool = False
    exact_cash: Resources = field(default_factory=dict)
    shared: Sequence[CountedObject] = ()
    may_drop: Callable[[Reservation], bool] = lambda _: True
    adoptable: Mapping[Slot, Resources] = field(default_factory=dict)
    new_leftovers: Resources = field(default_factory=dict)
    ahead: Resources = field(default_factory=dict)

    def new_names(self) -> set[str]:
        """Return the names that came into `hard` since the published status."""
        return {name for name in self.hard if self.published and name not in self.published}

    def counted_by_slot(self) -> Callable[[Slot], CountedObject | None]:
        """Return a function from a slot to what the snapshot counted for it."""
        covered, more = ({c.slot: c for c in some} for some in (self.owner_paid, (*self.shared, *self.children)))
        return lambda slot: more.get(slot) or self.workloads.get(slot) or covered.get(slot)


@dataclass(frozen=True, slots=True)
class Recount:
    """A status to publish. `drift` is growth that was neither used nor reserved before, in nano-units.

    `exhausted` are budgets of hours of which nothing is left; one that was handed down and not spent is none of them.
    `committed` is None where hours are not safe, or not yet: an entry of before does not say what it may cost.
    """

    used: dict[str, int]
    self_used: dict[str, int]
    reservations: tuple[Reservation, ...]
    dropped: tuple[Reservation, ...]
    drift: dict[str, int]
    over: dict[str, int]
    exhausted: tuple[str, ...]
    committed: dict[str, int] | None = None


def recount(snapshot: Snapshot) -> Recount:
    """Return the status, counted from the snapshot alone.

    Laws: `used = self_used + Σ children`; no kept entry's base is more than what `used` and the earlier entries of its
    slot hold.
    """
    names = set(snapshot.hard)
    beyond = total((snapshot.workloads.unrequested, *(w.unrequested for w in snapshot.shared)))
    # Without `unrequested`: it stays used whatever is reserved, so it must not pay for an entry.
    kept, dropped, granted = _settle(snapshot)
    own = total((snapshot.workloads.cost, *(w.cost for w in snapshot.shared), beyond))
    self_used = _of(names, add(subtract_floor(own, granted), snapshot.cash))
    used = _of(names, add(self_used, total(child.cost for child in snapshot.children)))
    taken = add(used, reserved_total(_without_hours(kept)))
    # Entries of before a name came into `hard` do not have it: until they are gone, what is taken of it is unknown.
    unknown = {name for name in snapshot.new_names() if any(name not in entry.amount for entry in kept)}
    return Recount(
        used={name: amount for name, amount in used.items() if name not in unknown},
        self_used={name: amount for name, amount in self_used.items() if name not in unknown},
        reservations=tuple(in_order(kept)),
        dropped=tuple(dropped),
        drift=_drift(snapshot, subtract_floor(used, add(beyond, snapshot.new_leftovers))),
        over={n: taken[n] - hard for n, hard in snapshot.hard.items() if taken[n] > hard},
        exhausted=tuple(sorted(_exhausted(snapshot.hard, used, self_used))),
        committed=_committed(snapshot, kept),
    )


def _exhausted(hard: Limits, used: Resources, self_used: Resources) -> Iterator[str]:
    """Yield the budgets of which nothing is left. One that children hold, and do not spend here, is no alarm."""
    for name, ceiling in hard.items():
        if is_cash(name) and used[name] >= ceiling and (self_used[name] or not used[name]):
            yield name


def held_for_uncountable(
    published: Resources, reservations: Iterable[tuple[Reservation, WriteState]], counted: Resources
) -> dict[str, int]:
    """Return what to hold for workloads that cannot be counted: what was held before beyond `counted`.

    `published` is `self_used` of the stored status. Entries that are dropped now belong to it, so that no less is held
    than before.
    """
    over = (e for e, state in reservations if state.is_over and e.slot.kind != GROUP_SLOT_KIND)
    held = growth(add(published, reserved_total(over)), counted)
    return {name: amount for name, amount in held.items() if not is_cash(name)}


def held_by_child(hard: Limits, used: Resources, reservations: Iterable[Reservation]) -> dict[str, int]:
    """Return what a child holds of its parent: the larger of its `hard` and of what it uses and has reserved."""
    taken = add(used, reserved_total(_without_hours(reservations)))
    return larger(hard, restrict(taken, hard))


def _without_hours(reservations: Iterable[Reservation]) -> Iterable[Reservation]:
    """Yield the entries without the hours that workloads may still cost: like liens, those are not used yet."""
    for entry in reservations:
        hours = entry.slot.kind != GROUP_SLOT_KIND and any(map(is_cash, entry.amount))
        yield replace(entry, amount={n: a for n, a in entry.amount.items() if not is_cash(n)}) if hours else entry


def _awaited(reservations: Iterable[tuple[Reservation, WriteState]]) -> dict[Slot, set[Slot]]:
    """Return the slots whose writes are still awaited, by the slot that is charged."""
    awaited: dict[Slot, set[Slot]] = {}
    for entry, sighting in reservations:
        if sighting is WriteState.PENDING:
            awaited.setdefault(entry.slot, set()).add(entry.awaited_slot)
    return awaited


def _settle(snapshot: Snapshot) -> tuple[list[Reservation], list[Reservation], dict[str, int]]:
    """Return the entries to keep and to drop, and what of the workloads' cost the entries hold instead of `used`."""
    held, awaited = snapshot.counted_by_slot(), _awaited(snapshot.reservations)
    by_slot: defaultdict[Slot, _Entries] = defaultdict(_Entries)
    dropped: list[Reservation] = []
    for entry, state in snapshot.reservations:
        counted = held(entry.slot)
        if state is WriteState.PENDING:
            by_slot[entry.slot].pending.append(entry)
        elif state in (WriteState.DELIVERED, WriteState.UNSEEN) and _is_counted_apart(entry, counted):
            by_slot[entry.slot].delivered.append(entry)
            by_slot[entry.slot].is_unseen |= state is WriteState.UNSEEN
        elif state is WriteState.UNSEEN:
            by_slot[entry.slot].pending.append(entry)
        elif _is_held(entry, counted, awaited.get(entry.slot, set())):
            by_slot[entry.slot].held.append(entry)
        elif not snapshot.may_drop(entry):
            by_slot[entry.slot].pending.append(entry)
        else:
            dropped.append(entry)
    kept: list[Reservation] = []
    promised: list[Resources] = []
    new_names = snapshot.new_names()
    for slot, entries in by_slot.items():
        counted = held(slot)
        if slot.is_shared:
            kept += [replace(each, base=_counted_base(each, counted)) for each in (*entries.pending, *entries.held)]
            continue
        if len(entries.delivered) == 1 and counted is not None:
            entries.delivered[0] = _with_names(entries.delivered[0], new_names, counted)
        if entries.delivered and counted is not None:
            cost = entries.cost_without(counted)
            promised.append(subtract_floor(counted.cost, cost))
            counted = replace(counted, cost=cost)
        kept += entries.with_bases(counted, snapshot.adoptable.get(slot, {}))
    return kept, dropped, total(promised)


def _is_counted_apart(entry: Reservation, counted: CountedObject | None) -> bool:
    """Return True for the delivered write of an object that is counted here, its demand apart from what runs."""
    return counted is not None and counted.uid == entry.uid and None not in (counted.demand, counted.floor)


def _with_names(entry: Reservation, new: Iterable[str], counted: CountedObject) -> Reservation:
    """Return a delivered entry with what its object asks for of names that came into `hard` after it.

    Its controller may never act on the write. What was asked for before is not known, so `used` holds none of it.
    """
    demand = counted.demand or {}
    more = {name: demand.get(name, 0) for name in new if name not in entry.amount and not is_cash(name)}
    return replace(entry, amount={**entry.amount, **more}) if more else entry


def _is_held(entry: Reservation, counted: CountedObject | None, awaited: set[Slot]) -> bool:
    """Return True where the slot awaits another object that the entry may have been counted from."""
    if not awaited - {entry.awaited_slot}:
        return False
    return entry.slot.is_shared or bool(growth(entry.amount, counted.cost if counted is not None else {}))


@dataclass(slots=True)
class _Entries:
    """The entries of one slot: those whose write is to come, is not acted on, or is over but held by another's."""

    pending: list[Reservation] = field(default_factory=list)
    delivered: list[Reservation] = field(default_factory=list)
    held: list[Reservation] = field(default_factory=list)
    #: Pods that are counted may be those that were made for a delivered entry.
    is_unseen: bool = False

    def cost_without(self, counted: CountedObject) -> dict[str, int]:
        """Return the cost of an object without what its delivered entries hold."""
        base = _least((counted.demand or {}, *(entry.base for entry in self.delivered)))
        if not self.is_unseen:
            return counted.cost_at(base)
        beside = subtract_floor(counted.cost, total(entry.extra for entry in self.delivered))
        return larger(replace(counted, floor={}).cost_at(base), beside)

    def with_bases(self, counted: CountedObject | None, adoptable: Resources) -> list[Reservation]:
        """Return them with the base that each may keep: what is counted, and what earlier ones add to that.

        A base is lowered and never raised, but for an entry that is held: that adds only what nothing else holds.
        """
        cost = {**counted.cost, **counted.max_cost} if counted is not None else {}
        kept: list[Reservation] = []
        for entry in by_age((*self.pending, *self.delivered)):
            room: Resources = entry.base
            if entry.is_create:
                room, adoptable = adoptable, subtract_floor(adoptable, entry.base)
            elif entry not in self.delivered:
                is_own = counted is not None and (entry.pending_write is not None or counted.uid == entry.uid)
                earlier = total(each.extra for each in kept if entry.builds_on(each))
                # A lien shrinks as the workload runs, and no other entry holds any of it.
                hours = counted.max_cost if counted is not None else {}
                room = add(cost if is_own else {}, {name: more for name, more in earlier.items() if name not in hours})
            kept.append(replace(entry, base=_within(entry.base, entry.amount, room)))
        beside = add(cost, total(each.extra for each in kept))
        return kept + [replace(entry, base=_within(entry.amount, beside)) for entry in self.held]


def _within(base: Resources, *ceilings: Resources) -> dict[str, int]:
    """Return the base by name, no more than any of these amounts, without names that are 0."""
    return nonzero(_least((base, *ceilings)))


def _least(amounts: Iterable[Resources]) -> Resources:
    return reduce(smaller, amounts)


def _of(names: set[str], amounts: Resources) -> dict[str, int]:
    """Return the tracked names only, all of them: an absent one would be unknown."""
    return {name: amounts.get(name, 0) for name in sorted(names)}


def _counted_base(entry: Reservation, counted: CountedObject | None) -> dict[str, int]:
    """Return what `used` holds of the entry's amount, and of hours no more than admission found.

    A lien shrinks as the workload runs, so a base for hours is never raised.
    """
    if counted is None:
        return {}
    held = {**counted.cost, **{name: min(entry.base.get(name, 0), most) for name, most in counted.max_cost.items()}}
    return {name: held[name] for name in entry.amount if held.get(name, 0)}


def _committed(snapshot: Snapshot, kept: Iterable[Reservation]) -> dict[str, int] | None:
    """Return what the workloads may still cost together; None until every entry states its own cost."""
    if not snapshot.safe:
        return None
    hours = [name for name in snapshot.hard if is_cash(name)]
    for entry in kept:
        if entry.slot.kind != GROUP_SLOT_KIND and any(
            entry.amount.get(metered_resource(n), 0) and n not in entry.amount for n in hours
        ):
            return None
    liens = total((snapshot.workloads.committed, *(counted.committed for counted in snapshot.shared)))
    # Spent hours are rounded up: round the sum, so that what just fits still fits.
    exact = snapshot.exact_cash
    spent = {name: exact[name] if name in exact else snapshot.cash.get(name, 0) * HOUR for name in hours}
    both = in_hours({name: amount + liens.get(name, 0) for name, amount in spent.items()})
    return nonzero({name: round_up_milli(both[name]) - round_up_milli(hour) for name, hour in in_hours(spent).items()})


def _drift(snapshot: Snapshot, used: Mapping[str, int]) -> dict[str, int]:
    """Growth that no admission charged: over what was published and promised before.

    A first count and cash, which only time adds, are no drift. What a create adopts counts twice until its controller
    has acted: all that it asks for was admitted.
    """
    entries = (entry for entry, _ in snapshot.reservations)
    promised = reserved_total(replace(entry, base={}) if entry.is_create and entry.base else entry for entry in entries)
    promised = add(promised, snapshot.ahead)
    return restrict(
        {
            name: amount - snapshot.published[name] - promised.get(name, 0)
            for name, amount in used.items()
            if name in snapshot.published
            and not is_cash(name)
            and amount > snapshot.published[name] + promised.get(name, 0)
        },
        used,
    )
