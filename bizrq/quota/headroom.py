"""Compute how many more replicas would fit, for refusals, by the same sums as the admission rule."""

from __future__ import annotations

from bizrq.quota.account import Account
from bizrq.quota.change import Charge, Role
from bizrq.quota.new_reservation import base_held, existing_extra
from bizrq.quota.prepaid import with_max_cost
from bizrq.units.names import is_cash
from bizrq.units.resources import growth


def replicas_that_fit(account: Account, charge: Charge) -> int | None:
    """Return how many more replicas of the one role that grew would fit; None where several grew or none did.

    None also where surge is charged: its pods do not grow with the replicas.
    """
    charge = with_max_cost(account, charge)
    grown = role_that_grew(charge)
    if grown is None or grown[0].surge:
        return None
    role, was = grown
    holds, most = base_held(account, charge), None
    before = existing_extra(account, charge)
    for name in account.hard:
        # The entry of the same write takes nothing from it; no entry of a shared claim does, except for hours.
        own = account.extra_of(charge.slot) if charge.slot.is_shared and not is_cash(name) else before
        left = max(0, account.ceiling(name) - account.taken(name) + own.get(name, 0))
        each = role.per_pod.get(name, 0)
        if is_cash(name) and not account.hours.safe:
            if left == 0 and role.per_pod.get(name.removeprefix("cash/"), 0):
                return 0
            continue
        rest = charge.demand.get(name, 0) - role.replicas * each
        room = holds.get(name, 0) + left - rest
        if each > 0:
            fits = max(0, room // each - was)
            most = fits if most is None else min(most, fits)
        elif room < 0:
            return 0
    return most


def role_that_grew(charge: Charge) -> tuple[Role, int] | None:
    """Return the one role that grew, and how many replicas it had; None where several grew or none did."""
    old = {role.name: role for role in charge.roles_before}
    nothing = Role("", 0, {})
    grown = [role for role in charge.roles if growth(_cost(role), _cost(old.get(role.name, nothing)))]
    if len(grown) != 1:
        return None
    [role] = grown
    was = old.get(role.name, nothing)
    return role, was.replicas - was.surge


def _cost(role: Role) -> dict[str, int]:
    return {name: amount * role.replicas for name, amount in role.per_pod.items()}
