"""The entry that a change needs: how much in all, and how much of it `used` holds already."""

from __future__ import annotations

from dataclasses import replace

from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.prepaid import hours_base
from bizrq.quota.reservation import LIFETIME, Reservation
from bizrq.units.names import is_cash
from bizrq.units.resources import Resources, growth, larger, smaller
from bizrq.units.slot import GROUPS, Slot


def promise(account: Account, charge: Charge, now: int) -> Reservation:
    """The reservation that the change needs, merged with the one it shares."""
    base = held(account, charge)
    fresh = Reservation(
        charge.slot, charge.uid, charge.resource_version, now + LIFETIME, charge.demand, base, charge.awaits
    )
    for entry in account.of(charge.slot):
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


def held(account: Account, charge: Charge) -> Resources:
    """What `used` holds for the slot, and never more: nothing for the create of what is charged, and for any other
    write no more than any entry of the slot says and than the stored object costs.
    """
    base: Resources = {}
    if charge.resource_version is not None or charge.awaits is not None:
        base = charge.before
        for entry in account.of(charge.slot):
            base = smaller(base, entry.base)
        if not charge.is_grant and any(map(is_cash, charge.before)):
            # What a create may spend, its own entry holds, beside what this one may spend more.
            base = {**base, **hours_base(charge, account.of(charge.slot))}
    return base


def rises(account: Account, entry: Reservation) -> dict[str, int]:
    """What the entry adds to what its slot has been promised: see `slot_extra`."""
    more = growth(entry.extra, account.added(entry.slot))
    if entry.slot.kind != GROUPS and any(map(is_cash, entry.amount)):
        before = stood(account, entry.slot, entry.uid, entry.awaits, entry.resource_version is None)
        more = {name: amount for name, amount in more.items() if not is_cash(name)}
        more |= {name: amount for name, amount in growth(entry.extra, before).items() if is_cash(name)}
    return more


def stood(account: Account, slot: Slot, uid: str, awaits: Slot | None, is_create: bool) -> Resources:
    """What the entry of the same write adds that stands there already."""
    for entry in account.of(slot):
        if (entry.uid, entry.awaits, entry.resource_version is None) == (uid, awaits, is_create):
            return entry.extra
    return {}
