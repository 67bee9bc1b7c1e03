"""The reservation that a change needs.

This file alone decides its amount in all, and how much of that `used` and earlier entries hold already (its base).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.prepaid import hours_base
from bizrq.quota.reservation import LIFETIME, Reservation, with_parts, with_templates
from bizrq.units.names import is_cash
from bizrq.units.resources import Resources, growth, larger, nonzero, restrict, smaller, subtract_floor


def reservation_for(account: Account, charge: Charge, now: int) -> Reservation:
    """Return the reservation that the change needs, merged with one of the same write."""
    fresh = Reservation(
        charge.slot,
        charge.uid,
        charge.resource_version,
        now + LIFETIME,
        # Other names decide nothing here, and would take the place of others' entries.
        restrict(charge.demand, account.stored_names),
        restrict(base_held(account, charge), account.stored_names),
        charge.pending_write,
        charge.generation,
        _other_parts((), charge),
    )
    entry = same_write(account, charge)
    if entry is None:
        return fresh
    # The expiry has to move, or storing the entry would be no write at all.
    return replace(
        fresh,
        amount=larger(entry.amount, fresh.amount),
        others=_other_parts(entry.others, charge),
        expires=max(fresh.expires, entry.expires + 1),
        resource_version=None
        if fresh.resource_version is None
        else max(fresh.resource_version, entry.resource_version or 0),
    )


def _other_parts(stored: Iterable[str], charge: Charge) -> tuple[str, ...]:
    if not (charge.templates or charge.leaving):
        return tuple(stored)
    return with_parts(with_templates(stored, charge.templates), charge.leaving)


def base_held(account: Account, charge: Charge) -> Resources:
    """Return what `used` and the other entries of the slot hold of the demand, never more.

    It is nothing for the create of what is charged, but for pods that it will adopt. For any other write it is no more
    than the stored object costs, and no more than an entry of the same write states. For a claim that several workloads
    may name it is no more than any entry of the slot states, since there only the largest counts.
    """
    entries = account.reservations_of(charge.slot)
    if charge.resource_version is None and charge.pending_write is None:
        base = smaller(charge.adopts, charge.demand) if charge.adopts else {}
        for entry in entries:
            # Of two creates of one name only one can adopt them.
            same = entry.write == charge.write
            base = smaller(base, entry.base) if same else subtract_floor(base, entry.base)
        return base
    base = charge.before
    for entry in entries:
        if charge.slot.is_shared or entry.write == charge.write:
            base = smaller(base, entry.base)
    if not charge.is_grant and any(map(is_cash, charge.before)):
        # The entry of the create holds what the create may spend; this one adds to it.
        base = {**base, **hours_base(charge, entries)}
    return base


def with_cover(account: Account, charge: Charge) -> Charge:
    """Return the charge of a child with what its owner covers of it, as the entries of earlier children leave it.

    A child whose entry is still there may be listed too: the larger of both counts, once. Of two of one name only one
    can be stored.
    """
    if charge.room is None or charge.pending_write is None:
        return charge
    taken = dict(charge.room.taken)
    for entry in account.reservations_of(charge.slot):
        awaited = entry.pending_write
        if awaited is not None and awaited.kind in charge.room.kinds and awaited != charge.pending_write:
            taken[entry.uid] = larger(taken.get(entry.uid, {}), entry.amount)
    left = subtract_floor(charge.room.covers, charge.room.asked(taken.values()))
    covered = structs.replace(charge, before=nonzero(smaller(charge.demand, larger(charge.before, left))))
    # What the owner covers was bounded and let in with the owner. What nobody states is covered by nothing.
    return covered if covered.growth() else structs.replace(covered, unmodelled={})


def added(account: Account, entry: Reservation) -> dict[str, int]:
    """Return what the entry adds to the reservations of its slot, in nano-units (see `slot_extra`)."""
    more = growth(entry.extra, existing_extra(account, entry))
    if not entry.slot.is_shared:
        return more
    largest = growth(entry.extra, account.extra_of(entry.slot))
    return {
        name: amount
        for of, cash in ((largest, False), (more, True))
        for name, amount in of.items()
        if is_cash(name) is cash
    }


def existing_extra(account: Account, of: Charge | Reservation) -> Resources:
    """Return what the stored entry of the same write adds to `used`; empty where there is none."""
    entry = same_write(account, of)
    return entry.extra if entry is not None else {}


def same_write(account: Account, of: Charge | Reservation) -> Reservation | None:
    """Return the stored entry of the same write, None where there is none."""
    entries = account.reservations_of(of.slot)
    if not entries:
        return None
    write = of.write
    return next((entry for entry in entries if entry.write == write), None)
