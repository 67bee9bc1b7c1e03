"""The admission rule: decide whether a group's account can bear one more change.

This file alone decides whether one charge fits one account. It does not know how demand is counted, nor how a
reservation is stored. docs/design.md, "Order of checks", has the checks before this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bizrq.quota import fair_share
from bizrq.quota.account import MAX_BYTES, MAX_ENTRIES, Account
from bizrq.quota.change import Charge, older_remarks, stored_remarks, surge_remarks
from bizrq.quota.headroom import replicas_that_fit
from bizrq.quota.new_reservation import added, existing_extra, reservation_for, same_write, with_cover
from bizrq.quota.prepaid import has_pending_change, remarks, unbounded_runtime, with_max_cost
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import (
    Denied,
    Granted,
    Reason,
    Verdict,
    Violation,
    exceeded,
    unmodelled,
    unreadable,
    unspecified,
)
from bizrq.units.names import cash_name
from bizrq.units.resources import Resources, add, growth, nonzero, restrict, subtract_floor, total

#: The longest entry that the CRD takes; one longer line would fail the write of all changes that it shares.
MAX_ENTRY = 16 * 1024
# Fewer names than this fit in any case: a name has at most 400 characters, two amounts at most 60.
_FEW = 32


class Input(NamedTuple):
    """Everything that the checks look at.

    `more` is the growth of the charge, in nano-units. `entry` is the reservation that the charge needs, `adds` what
    that entry adds to what the account holds. `now` is in milliseconds.
    """

    account: Account
    charge: Charge
    more: Resources
    entry: Reservation
    adds: Resources
    now: int


def decide(account: Account, charge: Charge, now: int) -> Verdict:
    """Return the verdict on the charge. Pure: the account is not changed.

    `now` is in milliseconds. What is granted must be stored, as `Account.reserve` leaves it, before the answer goes
    out, even if an equal entry is stored already: only a write proves that the version decided on is current.
    """
    charge = with_max_cost(account, with_cover(account, charge))
    more = charge.growth()
    if not more and not charge.is_new and unbounded_runtime(account, charge, more) is None:
        # Nothing gets worse, so it is always allowed, unless what was counted no longer is.
        return no_less_is_stated(account, charge) or Granted()

    entry = reservation_for(account, charge, now)
    given = Input(account, charge, more, entry, added(account, entry), now)
    # What an owner covers asks for nothing more: all that it needs is an entry.
    for check in CHECKS if more or charge.room is None else COVERED_CHECKS:
        denied = check(given)
        if denied is not None:
            return denied
    # From here the change is admitted, as soon as the entry is stored.
    return Granted(entry)


def every_name_is_counted(given: Input) -> Denied | None:
    unknown = given.account.unknown_names()
    if not unknown:
        return None
    return not_reconciled(given.account.group, given.charge, f": {', '.join(unknown)} not counted")


def payers_are_remembered(given: Input) -> Denied | None:
    account = given.account
    if not account.problem:
        return None
    # What runs would go uncharged once its workload is deleted.
    subject = f"quota {account.group} cannot remember who pays for its pods, so nothing may grow"
    return unreadable(Reason.PAYERS, account.group, subject, account.problem)


def no_less_is_stated(account: Account, charge: Charge) -> Denied | None:
    """Deny an update by which containers or cards no longer state what `hard` names.

    A create that states as little is denied, and so are its pods by native quota. What was stored like that may stay.
    What an owner covers is denied where a person writes it.
    """
    if charge.room is not None and not charge.is_by_person:
        return None
    return _unspecified(account, charge.newly_unspecified()) or _unmodelled(account, charge.newly_unmodelled())


def child_states_no_less(given: Input) -> Denied | None:
    return no_less_is_stated(given.account, given.charge)


def requests_are_stated(given: Input) -> Denied | None:
    return _unspecified(given.account, given.charge.unspecified)


def _unspecified(account: Account, asked: Mapping[str, Sequence[str]]) -> Denied | None:
    hard = account.hard
    # A budget of hours needs the amount as much as a ceiling does.
    missing = {name: who for name, who in asked.items() if (name in hard or cash_name(name) in hard) and who}
    return unspecified(account.group, missing) if missing else None


def models_are_stated(given: Input) -> Denied | None:
    asked = given.charge.unmodelled
    return _unmodelled(given.account, {name: who for name, who in asked.items() if name in given.more})


def _unmodelled(account: Account, asked: Mapping[str, Sequence[str]]) -> Denied | None:
    missing = {name: who for name, who in asked.items() if account.models_of(name)}
    return unmodelled(account.group, missing) if missing else None


def run_is_bounded(given: Input) -> Denied | None:
    return unbounded_runtime(given.account, given.charge, given.more)


def earlier_hours_are_seen(given: Input) -> Denied | None:
    # What an earlier change leaves of the hours is not known before a recount has seen it.
    if not has_pending_change(given.account, given.charge, given.more):
        return None
    return Denied(
        Reason.BUSY,
        f"quota {given.account.group}: a change of the hours of {given.charge.slot} is under way: try again",
    )


def pending_writes_are_read(given: Input) -> Denied | None:
    charge = given.charge
    if charge.is_shared or charge.is_child:
        return None
    crossing = [
        e.awaited_slot
        for e in given.account.reservations_of(charge.slot)
        if e.awaited_slot != charge.awaited_slot and not (charge.is_beside(e) or charge.has_read(e))
    ]
    if not crossing:
        return None
    # Together they may need more than each alone, and neither was counted with the other.
    return Denied(
        Reason.BUSY,
        f"quota {given.account.group}: a change of {min(crossing)} is under way, by which {charge.slot} is counted: "
        "try again",
    )


def earlier_write_is_counted(given: Input) -> Denied | None:
    """Deny an update upon one that shares its entry: a label moved, or the kind has no generation.

    The recount adds the first to `used`, and could not tell how much of the entry that was.
    """
    charge = given.charge
    entry = same_write(given.account, charge)
    if entry is None or charge.pending_write is not None or charge.slot.is_shared:
        return None
    is_later = (charge.resource_version or 0) > (entry.resource_version or 0)
    # The entry has the names that the account stores: of any other name its base says nothing.
    before = restrict(charge.before, given.account.stored_names)
    needs = nonzero(given.entry.amount)
    if not is_later or not needs or not (charge.is_new or growth(before, entry.base)):
        return None
    return _other_change(given, needs)


def growth_fits(given: Input) -> Denied | None:
    account, charge, more, _, adds, _ = given
    ceiling = partial(account.ceiling, grant=charge.is_grant)
    violations: list[Violation] = []
    for name, amount in more.items():
        spent = cash_name(name)
        if not (charge.is_grant or account.hours.safe) and _is_spent(account, spent):
            violations.append(Violation(spent, amount, account.taken(spent), account.hard[spent]))
        if name in account.hard and account.taken(name) + adds.get(name, 0) > ceiling(name) and not _runs(given, name):
            violations.append(Violation(name, amount, account.taken(name), ceiling(name)))
    if not violations:
        return None
    # Once the earlier changes of the object are counted, it may fit.
    passing = _passing(account, charge)
    if passing and not (charge.slot.is_shared or charge.is_child):
        needs = {v.resource: v.used - passing.get(v.resource, 0) + adds.get(v.resource, 0) for v in violations}
        if all(needs[v.resource] <= v.hard for v in violations):
            return _other_change(given, needs)
    of_group = remarks(account, charge, violations)
    lacking = {v.resource: v.used + adds.get(v.resource, 0) - v.hard for v in violations}
    passes = all(name in adds and lack <= charge.because_older.get(name, 0) for name, lack in lacking.items())
    older = older_remarks(charge, lacking, passes=passes)
    notes = [*surge_remarks(charge), *older, *stored_remarks(charge, lacking)]
    return exceeded(account.group, violations, replicas_that_fit(account, charge), notes, of_group)


def _runs(given: Input, name: str) -> bool:
    """Return True for a create that adopts all that it asks for, which was admitted: it runs, room or not."""
    charge = given.charge
    return charge.adopts_admitted and name in charge.adopts and not given.entry.extra.get(name, 0)


def _passing(account: Account, charge: Charge) -> Resources:
    """Return what goes with other entries of the slot: what they add that the stored object does not cost.

    `used` holds the stored object at the smallest of their bases. The rest of its cost stays taken once it is counted.
    Of what a create would adopt, another create of its name holds the base until it is stored, or can no longer be.
    """
    others = [entry for entry in account.reservations_of(charge.slot) if entry.write != charge.write]
    passing: dict[str, int] = {}
    for name, amount in subtract_floor(account.extra_of(charge.slot), existing_extra(account, charge)).items():
        held = min((entry.base.get(name, 0) for entry in others if entry.extra.get(name, 0)), default=0)
        stays = max(0, charge.before.get(name, 0) - held)
        passing[name] = max(0, amount - stays)
    adopted = restrict(total(entry.base for entry in others if entry.is_create), charge.adopts)
    return nonzero(add(passing, adopted))


def earlier_change_still_fits(given: Input) -> Denied | None:
    account, adds = given.account, given.adds
    ceiling = partial(account.ceiling, grant=given.charge.is_grant)
    lacking = [n for n in adds if n in account.hard and account.taken(n) + adds[n] > ceiling(n)]
    # It does not grow in these, but an earlier change of the object may still land and grow in them.
    return _other_change(given, lacking) if lacking else None


def _other_change(given: Input, needs: Iterable[str]) -> Denied:
    return Denied(
        Reason.BUSY,
        f"quota {given.account.group}: another change of {given.charge.slot} is under way that needs "
        f"{', '.join(sorted(needs))}: try again",
    )


def entry_is_short(given: Input) -> Denied | None:
    entry = given.entry
    if len(entry.amount) <= _FEW or len(str(entry)) <= MAX_ENTRY:
        return None
    return Denied(
        Reason.MALFORMED,
        f"quota {given.account.group} cannot reserve {len(entry.amount)} different resources for one object: "
        f"their names and amounts come to more than {MAX_ENTRY >> 10} KiB",
    )


def slot_takes_an_entry(given: Input) -> Denied | None:
    return fair_share.slot_is_full(given.account, given.entry)


def namespace_leaves_room(given: Input) -> Denied | None:
    return fair_share.namespace_takes_half(given.account, given.charge, given.adds, given.now)


def account_takes_an_entry(given: Input) -> Denied | None:
    account = given.account
    if not account.is_full() or len(account.with_entry(given.entry)) <= len(account.reservations_of(given.charge.slot)):
        return None
    return Denied(
        Reason.FULL,
        f"quota {account.group} has too many admissions under way: "
        f"{MAX_ENTRIES} entries or {MAX_BYTES >> 10} KiB; try again",
    )


#: The checks in their order (docs/design.md, "Order of checks"); the first that denies gives the verdict.
CHECKS: Sequence[Callable[[Input], Denied | None]] = (
    every_name_is_counted,
    payers_are_remembered,
    requests_are_stated,
    models_are_stated,
    run_is_bounded,
    earlier_hours_are_seen,
    pending_writes_are_read,
    earlier_write_is_counted,
    growth_fits,
    earlier_change_still_fits,
    entry_is_short,
    slot_takes_an_entry,
    namespace_leaves_room,
    account_takes_an_entry,
)
#: Those of what an owner covers.
COVERED_CHECKS: Sequence[Callable[[Input], Denied | None]] = (
    child_states_no_less,
    entry_is_short,
    slot_takes_an_entry,
    account_takes_an_entry,
)


def _is_spent(account: Account, name: str) -> bool:
    return name in account.hard and account.taken(name) >= account.hard[name]


def not_reconciled(group: str, charge: Charge, why: str = "") -> Denied:
    """Return the refusal for a group that is not counted yet: a child group may try again, a workload may not."""
    if charge.is_grant:
        return Denied(Reason.PARENT_NOT_RECONCILED, f"quota {group} is not reconciled yet{why}: try again")
    return Denied(Reason.NOT_RECONCILED, f"quota {group} is not reconciled yet{why}")
