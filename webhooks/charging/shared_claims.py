"""Claims that several workloads may name: each is charged once, in its own slot.

This file alone decides what a workload's write adds to the cost of such a claim. Rules: docs/counting.md, "Shared
claims".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.quota.change import Charge
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied, Reason
from bizrq.store.groups import GROUPS
from bizrq.units.resources import growth, larger
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.devices.dra import CLAIM, CLAIMS, POD_GROUP, ClaimContext, claim_conflict, claim_cost, claim_group
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Lookup, OverlayLookup, Reference
from bizrq.workloads.ownership.payers import has_stayed
from bizrq.workloads.validation import Malformed
from webhooks.charging.charges import Busy, PendingCharge, display_name
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.reference_users import ReferenceUsers
from webhooks.charging.stored import readable_reservations, slot_of, stored_demand

Object = dict[str, Any]

#: Of a pod that stays with the group that its workload left: until it ends, or the demand in the new group pays for it.
_HELD = "is held by {}, which stays with group {} for now: try again"


class SharedClaims:
    """Charges groups for claims that several workloads may name."""

    def __init__(
        self, context: Context, users: ReferenceUsers, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        """`now` is the time of day in milliseconds."""
        self._context = context
        self._users = users
        self._now = now

    async def charges(
        self, own: Charge, group: str, demand: Demand, before: Demand, lookup: Lookup, deadline: Deadline
    ) -> list[PendingCharge]:
        """Return what a workload's write makes shared claims cost the group, one charge for each claim.

        `own` is the charge of the write itself. A claim that costs no more because others hold it already is charged
        as an intent: the others may be about to let go of it. Raises Malformed where a claim is another group's, Busy
        where it may become another group's, ApiError, Unreachable.
        """
        due: list[PendingCharge] = []
        listed: list[tuple[Adapter, Object]] | None = None
        for place, cost in sorted(demand.shared.items()):
            cost_before = before.shared.get(place, {})
            if not growth(cost, cost_before):
                continue
            # All of them are of the workload's namespace.
            listed = await self._users.may_use(_reference(place), deadline) if listed is None else listed
            held = await self._cost_held(place, group, own, listed, lookup, deadline)
            charge = Charge(
                slot=place,
                uid=own.uid,
                resource_version=own.resource_version,
                demand=larger(cost, held),
                before=larger(cost_before, held),
                pending_write=own.awaited_slot,
                is_shared=True,
                max_run_time=own.max_run_time,
                # Any other workload that holds it may end sooner.
                max_run_time_before=0,
                run_bound_path=own.run_bound_path,
            )
            due.append(PendingCharge(group, charge, lookup, _of_claim(place), is_intent=not charge.may_need_more()))
        return due

    async def _cost_held(
        self,
        place: Slot,
        group: str,
        own: Charge,
        listed: Sequence[tuple[Adapter, Object]],
        lookup: Lookup,
        deadline: Deadline,
    ) -> dict[str, int]:
        """Return what a claim costs the group as it is stored, without the workload that is being written and its pods.

        `listed` are the objects that may name it. Raises Malformed where it is another group's, Busy where it may
        become another group's, ApiError, Unreachable.
        """
        reference = _reference(place)
        claim = lookup.get(*reference)
        named = claim_group(claim) if claim is not None and place.kind == CLAIMS else None
        held: dict[str, int] = {}
        is_ours = named is not None
        if claim is not None and named == group:
            held = dict(claim_cost(claim, claim_context(claim, lookup, self._context.config)))
        for user in await self._users.find(reference, (claim,), deadline, listed, held=True):
            if slot_of(self._context, user.obj) == own.awaited_slot or user.payer == own.uid:
                continue
            if user.group != group:
                if has_stayed(user.obj, self._context.registry, user.lookup, self._context.payers):
                    raise Busy(f"{_of_claim(place)} {_HELD.format(display_name(user.obj), user.group)}")
                raise Malformed(claim_conflict(place, user.group, group))
            demand = stored_demand(self._context, user.obj, user.adapter, OverlayLookup(user.lookup, reference, claim))
            held = larger(held, demand.shared.get(place, {}))
            is_ours = True
        if not is_ours:
            await self._check_promised(place, group, own, deadline)
        return held

    async def _check_promised(self, place: Slot, group: str, own: Charge, deadline: Deadline) -> None:
        """Raise Busy where a workload of another group is to name a claim that no stored one names.

        Of two that come at the same moment, each looks once more when its own reservation is stored. So at least one
        sees the other. Raises ApiError, Unreachable.
        """

        def awaited_by(entry: Reservation) -> Slot | None:
            return entry.pending_write if entry.slot == place and entry.pending_write != own.awaited_slot else None

        if (awaited := await self._awaited(awaited_by, deadline, group)) is not None:
            raise Busy(_promised(_of_claim(place), awaited))

    async def pending_write(self, reference: Reference, deadline: Deadline, except_group: str = "") -> Slot | None:
        """Return a workload that another group than `except_group` let name a claim, or any template.

        It may not be stored yet. Raises ApiError, Unreachable.
        """
        if reference[:2] == POD_GROUP:
            return None
        return await self._awaited(partial(_awaited_by, reference), deadline, except_group)

    def known_write(self, reference: Reference) -> Slot | None:
        """Return what `pending_write` does by the groups as this process knows them, which may be behind."""
        return self._first(partial(_awaited_by, reference), self._context.groups.values())

    async def _awaited(
        self, awaited_by: Callable[[Reservation], Slot | None], deadline: Deadline, except_group: str
    ) -> Slot | None:
        """Return a workload that is awaited by the reservations of other groups. Raises ApiError, Unreachable."""
        groups, _ = await self._context.client.list(GROUPS, timeout=deadline.seconds_left())
        return self._first(awaited_by, (group for group in groups if group["metadata"]["name"] != except_group))

    def _first(
        self, awaited_by: Callable[[Reservation], Slot | None], groups: Iterable[GroupObject | Object]
    ) -> Slot | None:
        now = self._now()
        awaited = [
            writing
            for group in groups
            for entry in readable_reservations(group)
            if entry.expires > now and (writing := awaited_by(entry)) is not None
        ]
        return min(awaited, default=None)


def _awaited_by(reference: Reference, entry: Reservation) -> Slot | None:
    """Return the workload that a reservation awaits, which may come to name a claim or a template."""
    *_, namespace, name = reference
    if reference[:2] == CLAIM:
        return entry.pending_write if entry.slot == Slot(CLAIMS, namespace, name) else None
    is_there = entry.slot.namespace == namespace
    return entry.awaited_slot if is_there and entry.may_name_template(name) else None


def claim_context(claim: Object, lookup: Lookup, config: CountingConfig) -> ClaimContext:
    """Return what a claim's cost depends on, apart from the claim itself."""
    return ClaimContext(labels_of(claim), counting.namespace_of(claim), lookup, config)


def claim_busy(where: str, awaited: Slot) -> Denied:
    """Refuse for now a write that would take a claim or template from a workload whose write is under way."""
    return Denied(Reason.BUSY, _promised(where, awaited))


def _promised(where: str, awaited: Slot) -> str:
    return f"{where} was promised to {awaited} a moment ago: try again"


def _reference(place: Slot) -> Reference:
    """Return the object that the slot of a shared claim is named after."""
    if place.kind == CLAIMS:
        return (*CLAIM, place.namespace, place.name)
    return (*POD_GROUP, place.namespace, place.name.rpartition(".")[0])


def _of_claim(place: Slot) -> str:
    kind = "ResourceClaim" if place.kind == CLAIMS else "claim of PodGroup"
    return f"{kind} {place.namespace}/{place.name}"
