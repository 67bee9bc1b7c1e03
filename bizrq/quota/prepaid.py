"""Hours in safe mode: admit only a run whose whole cost is known and left.

This file alone decides the most that a run may cost, and what a refusal says about hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from bizrq.hours.budget import format_duration, max_cost
from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied, Reason, Violation
from bizrq.units.names import cash_name, is_cash, metered_resource
from bizrq.units.resources import Resources, growth, restrict, smaller


def with_max_cost(account: Account, charge: Charge) -> Charge:
    """Return the charge with the most that it may cost, where hours are safe; 0 where nothing bounds its run.

    The stored object counts for no more than the new one could cost in as long a run. It may have run already, and
    that much of its lien is gone.
    """
    if not account.hours.safe or charge.is_grant:
        return charge
    run = account.hours.run_bound(charge.max_run_time) or 0
    names = [name for name in account.hard if is_cash(name)]

    def cost(demand: Resources, length: int) -> dict[str, int]:
        return restrict(max_cost(demand, length), names)

    was = account.hours.run_bound(charge.max_run_time_before) or 0
    before = smaller(cost(charge.before, was), cost(charge.demand, min(run, was)))
    return structs.replace(
        charge,
        demand={**charge.demand, **cost(charge.demand, run)},
        before={**charge.before, **before},
        roles=[replace(role, per_pod={**role.per_pod, **cost(role.per_pod, run)}) for role in charge.roles],
        roles_before=[
            replace(role, per_pod={**role.per_pod, **cost(role.per_pod, was)}) for role in charge.roles_before
        ],
    )


def unbounded_runtime(account: Account, charge: Charge, more: Resources) -> Denied | None:
    """Deny a change that may need more safe hours without a bound on its cost."""
    if not account.hours.safe or charge.is_grant:
        return None
    longest, own = account.hours.max_run_time, charge.max_run_time
    metered = any(charge.demand.get(metered_resource(name), 0) for name in account.hard if is_cash(name))
    grows = charge.runs_longer() or any(cash_name(name) in account.hard for name in more)
    if not metered or not grows:
        return None
    if own is None and longest is None:
        own_way = f"set {charge.run_bound_path}, or have" if charge.run_bound_path else "have"
        what = f"nothing bounds the run of {charge.slot}: {own_way} spec.cash.maxRunTime of the group set"
    elif own is not None and longest is not None and own > longest:
        limit = f"set {charge.run_bound_path} to {longest // 1000} or less"
        what = f"{charge.slot} may run for {format_duration(own)}: {limit}"
    else:
        return None
    return Denied(Reason.UNBOUNDED, f"quota {account.group} admits only runs whose whole cost is sure, and {what}")


def has_pending_change(account: Account, charge: Charge, more: Resources) -> bool:
    """Return True for an update that needs more hours while an earlier one that did is still awaited."""
    return charge.resource_version is not None and any(
        entry.uid == charge.uid
        and entry.resource_version not in (None, charge.resource_version)
        and any(map(is_cash, growth(entry.amount, entry.base)))
        for entry in (account.reservations_of(charge.slot) if not charge.is_grant and any(map(is_cash, more)) else ())
    )


def hours_base(charge: Charge, entries: Iterable[Reservation]) -> dict[str, int]:
    """Return the hours that the stored object may still cost: the least that any entry of the slot states."""
    base = {name: amount for name, amount in charge.before.items() if is_cash(name)}
    for entry in entries:
        if entry.uid == charge.uid and entry.resource_version is not None:
            base = smaller(base, restrict(entry.base, base))
    return base


def remarks(account: Account, charge: Charge, violations: Iterable[Violation]) -> list[str]:
    """Return what a refusal says about hours in addition to the numbers."""
    if charge.is_grant or not any(is_cash(violation.resource) for violation in violations):
        return []
    hours, said = account.hours, []
    run = hours.run_bound(charge.max_run_time)
    if hours.safe and run is not None:
        said.append(f"requested is what it may cost in {format_duration(run)}, used has what others may still cost")
    if hours.next_grant:
        said.append(f"next grant {hours.next_grant}")
    return said
