"""How many more replicas would fit: what a refusal tells people, by the same sums as the admission rule."""

from __future__ import annotations

from bizrq.quota.account import Account
from bizrq.quota.change import Charge, Role
from bizrq.quota.new_reservation import held, stood
from bizrq.quota.prepaid import priced
from bizrq.units.names import is_cash
from bizrq.units.resources import growth


def replicas_that_fit(account: Account, charge: Charge) -> int | None:
    """How many more replicas of the one role that grew would fit; None where several grew or none did."""
    charge = priced(account, charge)
    grown = role_that_grew(charge)
    if grown is None:
        return None
    role, was = grown
    holds, most = held(account, charge), None
    before = stood(account, charge.slot, charge.uid, charge.awaits, charge.resource_version is None)
    for name in account.hard:
        # What the slot itself has been promised is not in its way, unless that may be spent besides.
        own = account.added(charge.slot) if not is_cash(name) else before
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
    """The one role that needs more than before, and how many replicas it had; None where several do or none does."""
    old = {role.name: role for role in charge.roles_before}
    nothing = Role("", 0, {})
    grown = [role for role in charge.roles if growth(_cost(role), _cost(old.get(role.name, nothing)))]
    if len(grown) != 1:
        return None
    [role] = grown
    return role, old.get(role.name, nothing).replicas


def _cost(role: Role) -> dict[str, int]:
    return {name: amount * role.replicas for name, amount in role.per_pod.items()}
