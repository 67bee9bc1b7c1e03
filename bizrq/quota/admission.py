"""The admission rule: whether a group's account can bear one more change.

This file alone decides whether a change is admitted. What it is decided on are an `Account`
and a `Charge`; the entry that has to be stored before anybody is told yes is `bizrq.quota.new_reservation`'s.
"""

from __future__ import annotations

from functools import partial

from bizrq.quota.account import MAX_BYTES, MAX_ENTRIES, Account
from bizrq.quota.change import Charge
from bizrq.quota.headroom import replicas_that_fit
from bizrq.quota.new_reservation import promise, rises
from bizrq.quota.prepaid import chained, notes, priced, unbounded
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict, Violation, exceeded, unmodelled, unspecified
from bizrq.units.names import cash

#: The longest entry that the CRD takes; one longer line would fail the write of everybody who waits with it.
MAX_ENTRY = 16 * 1024
# Fewer names than this fit in any case: a name has at most 400 characters, two amounts at most 60.
_FEW = 32


def decide(account: Account, charge: Charge, now: int) -> Verdict:
    """Whether the account can bear the change. Pure: the account is not touched.

    The order (docs/design.md, "Order of checks"): nothing worse, unknown names, unstated requests and runs, other
    changes under way, then hours and ceilings at once. What is granted must be stored, as `reserve` leaves it, before
    the answer goes out: an entry that stands there already does not do.
    """
    charge = priced(account, charge)
    more = charge.worse_in()
    endless = unbounded(account, charge, more)
    if not more and not charge.enters and endless is None:
        return Granted()
    unknown = account.unknown()
    if unknown:
        return not_reconciled(account.group, charge, f": {', '.join(unknown)} not counted")
    missing = {name: who for name, who in charge.missing.items() if name in account.hard and who}
    if missing:
        return unspecified(account.group, missing)
    unsaid = {name: who for name, who in charge.unmodelled.items() if name in more and account.models_of(name)}
    if unsaid:
        return unmodelled(account.group, unsaid)
    if endless is not None:
        return endless

    if chained(account, charge, more):
        # What the earlier one left to spend is not known before it is seen.
        return Denied(
            Reason.BUSY, f"quota {account.group}: a change of the hours of {charge.slot} is under way: try again"
        )

    crossing = [e.awaited for e in account.of(charge.slot) if e.awaited != charge.awaited and not charge.has_seen(e)]
    if crossing and not charge.is_shared:
        # Together they may need more than each alone, and neither was counted with the other.
        return Denied(
            Reason.BUSY,
            f"quota {account.group}: a change of {min(crossing)} is under way, by which {charge.slot} is counted: "
            "try again",
        )

    entry = promise(account, charge, now)
    adds = rises(account, entry)
    ceiling = partial(account.ceiling, grant=charge.is_grant)
    violations = []
    for name, amount in more.items():
        spent = cash(name)
        if not (charge.is_grant or account.hours.safe) and _is_spent(account, spent):
            violations.append(Violation(spent, amount, account.taken(spent), account.hard[spent]))
        if name in account.hard and account.taken(name) + adds.get(name, 0) > ceiling(name):
            violations.append(Violation(name, amount, account.taken(name), ceiling(name)))
    if violations:
        return exceeded(
            account.group, violations, replicas_that_fit(account, charge), notes(account, charge, violations)
        )
    beside = sorted(n for n in adds if n in account.hard and account.taken(n) + adds[n] > ceiling(n))
    if beside:
        # It does not grow in these, but an earlier change of the object may still land and grow in them.
        return Denied(
            Reason.BUSY,
            f"quota {account.group}: another change of {charge.slot} is under way that needs {', '.join(beside)}: "
            "try again",
        )
    if len(entry.amount) > _FEW and len(str(entry)) > MAX_ENTRY:
        return Denied(
            Reason.MALFORMED,
            f"quota {account.group} cannot reserve {len(entry.amount)} different resources for one object: "
            f"their names and amounts come to more than {MAX_ENTRY >> 10} KiB",
        )
    if account.full() and len(account.with_entry(entry)) > len(account.of(charge.slot)):
        return Denied(
            Reason.FULL,
            f"quota {account.group} has too many admissions under way: "
            f"{MAX_ENTRIES} entries or {MAX_BYTES >> 10} KiB; try again",
        )
    # From here the change is admitted as soon as the entry is stored.
    return Granted(entry)


def _is_spent(account: Account, name: str) -> bool:
    return name in account.hard and account.taken(name) >= account.hard[name]


def not_reconciled(group: str, charge: Charge, why: str = "") -> Denied:
    """The refusal while nothing is known of a group: a child may come again at once, a workload is told."""
    if charge.is_grant:
        return Denied(Reason.PARENT_NOT_RECONCILED, f"quota {group} is not reconciled yet{why}: try again")
    return Denied(Reason.NOT_RECONCILED, f"quota {group} is not reconciled yet{why}")
