"""Admission of ResourceClaims that people make.

This file alone decides which group pays for the write of a claim. A claim that names a group is charged to it, used or
not, and no other group's workload may name it. One that names none is charged with its first user. A claim that is made
for a pod is charged with the pod's workload, and only Kubernetes makes such claims. Rules: docs/counting.md, "Shared
claims" and "Claims from templates".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bizrq.api.review import Request
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Granted, Verdict
from bizrq.units.resources import Resources, larger
from bizrq.units.slot import Slot
from bizrq.workloads.devices.dra import CLAIM, CLAIMS, MADE_FOR, claim_conflict, claim_cost, claim_group, owners_of
from bizrq.workloads.lookup import Lookup, OverlayLookup
from bizrq.workloads.validation import Malformed, malformed
from webhooks.charging.active import PODS
from webhooks.charging.charger import Charger
from webhooks.charging.charges import (
    Charges,
    Counted,
    Decided,
    NothingCharged,
    PendingCharge,
    display_name,
    target_version,
)
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.charging.reference_users import ReferenceUser, ReferenceUsers
from webhooks.charging.shared_claims import SharedClaims, claim_busy, claim_context
from webhooks.charging.stored import stored_demand
from webhooks.handlers.answer import MAX_NAMED
from webhooks.handlers.in_use import used_by_earlier

Object = dict[str, Any]


class ClaimHandler:
    """The webhook for ResourceClaims."""

    def __init__(
        self,
        context: Context,
        charger: Charger,
        users: ReferenceUsers,
        claims: SharedClaims,
        owner_trust: OwnerTrust,
    ) -> None:
        self._context = context
        self._charger = charger
        self._users = users
        self._claims = claims
        self._owner_trust = owner_trust

    async def admit(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on a CREATE or UPDATE of a claim."""
        if request.object is None:
            return Granted()
        if not self._owner_trust.is_trusted(request):
            await self._check_owners(request.object, request.old_object, request.namespace, deadline)
        count = partial(self._count, request, request.object, request.old_object, deadline)
        return await self._charger.charge(request, await count(), deadline, count)

    async def _count(self, request: Request, new: Object, old: Object | None, deadline: Deadline) -> Counted:
        """Count what the claim costs its group more as it is to be. Raises Malformed, ApiError, Unreachable."""
        name = request.name or str(new["metadata"].get("name", ""))
        reference, place = (*CLAIM, request.namespace, name), Slot(CLAIMS, request.namespace, name)
        group_before, group = _stored_group(old), claim_group(new)
        # A claim that changes hands may be held by pods whose workload names it no more.
        moves = old is not None and group != group_before
        # No controller makes a claim that is named before it exists.
        by_person = old is None and not self._owner_trust.is_trusted(request)
        found = await self._users.find(reference, (new, old), deadline, made=by_person, held=moves)
        if by_person and (refused := used_by_earlier(reference, found)) is not None:
            return Decided(refused)
        users = [each for each in found if moves or not each.is_made]
        payer = group or (users[0].group if users else None)
        if payer is not None and (moves or old is None):
            _check_users(users, place, payer)
        # Of a claim that nobody uses yet, whoever comes to name it has counted nothing.
        is_unused = old is None and not users
        is_new = group is not None and (old is None or group_before != group)
        if is_unused or is_new:
            but_of = "" if is_unused else payer or ""
            if (awaited := await self._claims.pending_write(reference, deadline, but_of)) is not None:
                return Decided(claim_busy(f"ResourceClaim {request.namespace}/{name}", awaited))
        if payer is None:
            return NothingCharged()
        own = (new if group is not None else None, old if group_before == payer else None)
        lookup = await self._context.resolver.resolve(
            lambda known: [self._cost(claim, known) for claim in (new, old)], deadline.seconds_left()
        )
        demand, before = (self._cost(claim, lookup) for claim in own)
        for user in users:
            if user.group == payer:
                after_it, before_it = (
                    stored_demand(self._context, user.obj, user.adapter, OverlayLookup(user.lookup, reference, claim))
                    for claim in (new, old)
                )
                demand = larger(demand, after_it.shared.get(place, {}))
                before = larger(before, before_it.shared.get(place, {}))
        uid, version = target_version(request, new, old)
        charge = Charge(
            slot=place,
            uid=uid,
            resource_version=version,
            demand=demand,
            before=before,
            is_new=is_new,
            is_shared=True,
            # Hours are spent by those that use it.
            max_run_time=0,
            max_run_time_before=0,
        )
        if not charge.is_new and not charge.growth():
            return Decided(Granted())
        whom = f"{display_name(users[0].obj)}, which names it" if users else ""
        return Charges([PendingCharge(payer, charge, lookup, whom, is_new_in_group=is_new)])

    async def _check_owners(self, new: Object, old: Object | None, namespace: str, deadline: Deadline) -> None:
        """Refuse a claim that a person makes a pod's: the pod could have it in place of the one that is charged.

        Kubernetes knows a pod's claim by the uid of its controller, whatever the kind. Raises Malformed, ApiError,
        Unreachable.
        """
        known = () if old is None else owners_of(old)
        added = [owner for owner in owners_of(new) if owner not in known]
        whose = [f"{owner['kind']} {owner.get('name')}" for owner in added if owner.get("kind") in MADE_FOR]
        if added and not whose:
            uids = {str(owner.get("uid")) for owner in added}
            pods, _ = await self._context.lists.of(PODS, deadline, namespace)
            whose = [f"Pod {pod['metadata']['name']}" for pod in pods if pod["metadata"]["uid"] in uids]
        if whose:
            path = "metadata.ownerReferences"
            raise malformed(path, f"only Kubernetes makes claims for {whose[0]}: remove the reference")

    def _cost(self, claim: Object | None, lookup: Lookup) -> Resources:
        """Return what a claim costs, nothing without one. Raises Malformed."""
        return {} if claim is None else claim_cost(claim, claim_context(claim, lookup, self._context.config))


def _check_users(users: Sequence[ReferenceUser], place: Slot, payer: str) -> None:
    """Raise Malformed where workloads of other groups name the claim."""
    others = sorted((user.group, display_name(user.obj)) for user in users if user.group != payer)
    if others:
        more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        names = " and ".join(name for _, name in others[:MAX_NAMED])
        raise Malformed(f"{claim_conflict(place, payer, others[0][0])}, but is named by {names}{more}")


def _stored_group(claim: Object | None) -> str | None:
    """Return the group that a stored claim names; a malformed label charges no group."""
    try:
        return claim_group(claim) if claim is not None else None
    except Malformed:
        return None
