"""The reservation that a change needs.

This file alone decides its amount in all, and how much of that `used` holds already (its base).
"""

from __future__ import annotations

from dataclasses import replace

from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.prepaid import hours_base
from bizrq.quota.reservation import LIFETIME, Reservation
from bizrq.units.names import is_cash
from bizrq.units.resources import Resources, growth, larger, smaller
from bizrq.units.slot import GROUP_SLOT_KIND, Slot


def reservation_for(account: Account, charge: Charge, now: int) -> Reservation:
    """Return the reservation that the change needs, merged with one of the same write."""
    base = base_held(account, charge)
    fresh = Reservation(
        charge.slot, charge.uid, charge.resource_version, now + LIFETIME, charge.demand, base, charge.pending_write
    )
    for entry in account.reservations_of(charge.slot):
        if entry.same_write(fresh):
            # The expiry has to move, or storing the entry would be no write at all.
            fresh = replace(
                fresh,
                amount=larger(entry.amount, fresh.amount),
                expires=max(fresh.expires, entry.expires + 1),
                resource_version=None
                if fresh.resource_version is None
                else max(fresh.resource_version, entry.resource_version or 0),
            )
    return fresh


def base_held(account: Account, charge: Charge) -> Resources:
    """Return what `used` holds for the slot, never more.

    It is nothing for the create of what is charged. For any other write it is no more than any entry of the slot
    states, and no more than the stored object costs.
    """
    base: Resources = {}
    if charge.resource_version is not None or charge.pending_write is not None:
        base = charge.before
        for entry in account.reservations_of(charge.slot):
            base = smaller(base, entry.base)
        if not charge.is_grant and any(map(is_cash, charge.before)):
            # The entry of the create holds what the create may spend; this one adds to it.
            base = {**base, **hours_base(charge, account.reservations_of(charge.slot))}
    return base


def added(account: Account, entry: Reservation) -> dict[str, int]:
    """Return what the entry adds to the reservations of its slot, in nano-units (see `slot_extra`)."""
    more = growth(entry.extra, account.extra_of(entry.slot))
    if entry.slot.kind != GROUP_SLOT_KIND and any(map(is_cash, entry.amount)):
        before = existing_extra(account, entry.slot, entry.uid, entry.pending_write, entry.resource_version is None)
        more = {name: amount for name, amount in more.items() if not is_cash(name)}
        more |= {name: amount for name, amount in growth(entry.extra, before).items() if is_cash(name)}
    return more


def existing_extra(account: Account, slot: Slot, uid: str, awaits: Slot | None, is_create: bool) -> Resources:
    """Return what the stored entry of the same write adds to `used`; empty where there is none."""
    for entry in account.reservations_of(slot):
        if (entry.uid, entry.pending_write, entry.resource_version is None) == (uid, awaits, is_create):
            return entry.extra
    return {}
