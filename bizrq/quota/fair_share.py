"""Reservations that would shut others out of a group (docs/reservations.md, "Space for everybody").

This file alone decides how much room one slot and one namespace may take while their writes are not seen. A write that
is refused elsewhere costs its sender nothing, and its reservation stays for a minute.
"""

from __future__ import annotations

from collections.abc import Iterator

from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.reservation import LIFETIME, Reservation
from bizrq.quota.verdict import Denied, Reason
from bizrq.units.resources import Resources

#: Creates of one name that may be under way at once. Updates have an entry for each generation, so all but the last of
#: them are stored.
MAX_SLOT_CREATES = 8
#: The bytes of all entries of one slot, as they are stored.
MAX_SLOT_BYTES = 16 * 1024
#: Milliseconds after which a write that is not seen yet is an unusual one: most are stored within a few of them.
SLOW = 5_000


def slot_is_full(account: Account, entry: Reservation) -> Denied | None:
    """Refuse for now one more entry of a slot that has taken its share of the account."""
    entries = account.reservations_of(entry.slot)
    if not entries or any(old.same_write(entry) for old in entries):
        return None
    is_full = entry.is_create and sum(old.is_create for old in entries) >= MAX_SLOT_CREATES
    if not is_full and sum(len(old.line) + 3 for old in entries) < MAX_SLOT_BYTES:
        return None
    return Denied(
        Reason.FULL,
        f"quota {account.group} has too many changes of {entry.slot} under way: "
        f"{MAX_SLOT_CREATES} creates or {MAX_SLOT_BYTES >> 10} KiB; try again",
    )


def namespace_takes_half(account: Account, charge: Charge, adds: Resources, now: int) -> Denied | None:
    """Refuse for now a namespace more than half of what is free, while a write of it is unusually long under way.

    That holds for the space of the entries, too: many small ones would fill it.
    """
    namespace, usual = charge.slot.namespace, now - SLOW + LIFETIME
    if charge.is_grant or account.all_expire_from(namespace, usual):
        return None
    crowds = account.would_crowd(namespace)
    # A write that has its entry takes no more space.
    crowds = crowds and not any(old.write == charge.write for old in account.reservations_of(charge.slot))
    if not (crowds or any(_takes(account, namespace, adds, 2))):
        return None
    slow = [
        entry.awaited_slot
        for entry in account.entries()
        if entry.slot.namespace == namespace
        and entry.expires < usual
        and not (entry.write == charge.write or charge.is_after(entry))
    ]
    if not slow:
        return None
    names = ", ".join(sorted(_takes(account, namespace, adds, 2))) or "the space for admissions under way"
    return Denied(
        Reason.FULL,
        f"quota {account.group}: {min(slow)} was admitted a while ago and is not stored: until that is settled, "
        f"namespace {namespace} takes no more than half of what is left of {names}; try again",
    )


def must_be_free(account: Account, entry: Reservation) -> bool:
    """Return True for a create that affects others even if its name is taken, so that it can never be stored.

    It does where another create of the name is under way, or where its namespace would take more than a quarter of what
    is free by writes that nobody has seen.
    """
    entries = account.reservations_of(entry.slot)
    if any(old.resource_version is None and old.write != entry.write for old in entries):
        return True
    return any(_takes(account, entry.slot.namespace, entry.extra, 4))


def _takes(account: Account, namespace: str, adds: Resources, part: int) -> Iterator[str]:
    """Yield the names of which a namespace would take more than this part of what is free without its entries."""
    held = account.reserved_by(namespace)
    for name, amount in adds.items():
        if amount and name in account.hard:
            mine = held.get(name, 0)
            if part * (mine + amount) > account.ceiling(name) - account.taken(name) + mine:
                yield name
