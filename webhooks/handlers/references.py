"""Writes of what workloads refer to: such a write may make what the workloads cost grow.

This file alone decides which charges such a write makes. The reservation is in the workload's slot and names the
object whose write it awaits. Two such writes know of each other only through what is stored: so a reservation is
stored first, and what it was counted from is read again before the answer goes out (`Charger.charge`; tests/model has
the reasons).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bizrq.api.review import Request
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Granted, Verdict
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.devices.dra import CLAIM, is_made_for_pod
from bizrq.workloads.lookup import OverlayLookup, Reference, TrackingLookup
from bizrq.workloads.validation import Malformed
from webhooks.charging.charger import Charger
from webhooks.charging.charges import (
    Charges,
    Counted,
    Decided,
    PendingCharge,
    charged_roles,
    deadline_path,
    display_name,
    target_version,
)
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.reference_users import ReferenceUser, ReferenceUsers, is_of_claims
from webhooks.charging.shared_claims import SharedClaims, claim_busy
from webhooks.charging.stored import read_versions, slot_of
from webhooks.handlers.in_use import InUseCheck, used_by_earlier

Object = dict[str, Any]

#: The content of an object that does not exist: while a claim template is gone, its users are charged for no devices of
#: it. It is immutable, so its users grow only when it is created again. Without a pod template they cannot be counted.
_NOTHING: Object = {"spec": {"spec": {"devices": {}}}}


class ReferenceHandler:
    """The webhook for what workloads refer to."""

    def __init__(
        self, context: Context, charger: Charger, users: ReferenceUsers, claims: SharedClaims, in_use: InUseCheck
    ) -> None:
        self._context = context
        self._charger = charger
        self._users = users
        self._claims = claims
        self._in_use = in_use

    async def admit(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on the write of an object that workloads may refer to."""
        new, old = request.object, request.old_object
        about = old if new is None else new
        if about is None:
            return Granted()
        name = request.name or str(about["metadata"].get("name", ""))
        reference = (request.kind.group, request.kind.kind, request.namespace, name)
        if not await self._users.may_have(reference, deadline):
            return Granted()
        if request.operation == "DELETE":
            if reference[:2] == CLAIM and is_made_for_pod(about):
                return Granted()
            return await self._in_use.admit(reference, about, deadline)
        if request.operation == "CREATE":
            # A name that is taken may be free by the time of the write, and what comes then is counted by nobody.
            taken = await self._charger.name_check(request, deadline)()
            if taken is not None:
                return taken
        uid, version = target_version(request, about, old)
        count = partial(self._count, reference, uid, version, about, old or _NOTHING, deadline)
        return await self._charger.charge(request, await count(), deadline, count)

    async def _count(
        self, reference: Reference, uid: str, version: int | None, new: Object, old: Object, deadline: Deadline
    ) -> Counted:
        """Count what the users of an object need more with its new content, by group and slot.

        Raises Malformed, ApiError, Unreachable.
        """
        due: list[PendingCharge] = []
        if is_of_claims(reference) and (busy := await self._promised(reference, deadline)) is not None:
            return busy
        found = await self._users.find(reference, (new, old), deadline, made=version is None)
        if (refused := used_by_earlier(reference, found)) is not None:
            return Decided(refused)
        for user in (each for each in found if not each.is_made):
            counted = self._charge(user, reference, uid, version, new, old)
            if counted is None:
                continue
            charge, before, after = counted
            lookup = OverlayLookup(user.lookup, reference, new)
            due += await self._claims.charges(charge, user.group, after, before, lookup, deadline)
            if charge.growth() or charge.states_less():
                whom = f"{display_name(user.obj)}, which refers to {reference[1]} {reference[3]}"
                due.append(PendingCharge(user.group, charge, user.lookup, whom))
        # As late as can be: what comes to refer to it meanwhile is not among its users.
        if not is_of_claims(reference) and (busy := await self._promised(reference, deadline)) is not None:
            return busy
        return Charges(sorted(due, key=lambda found: (found.group, found.charge.slot)))

    async def _promised(self, reference: Reference, deadline: Deadline) -> Decided | None:
        """Return the verdict where a workload whose write is under way comes to refer to an object."""
        awaited = await self._claims.pending_write(reference, deadline)
        return awaited and Decided(claim_busy(f"{reference[1]} {reference[2]}/{reference[3]}", awaited))

    def _charge(
        self, user: ReferenceUser, reference: Reference, uid: str, version: int | None, new: Object, old: Object
    ) -> tuple[Charge, Demand, Demand] | None:
        """Return one user's charge, and its demand before and after; None where no growth can be known.

        Raises Malformed where the new content takes away that it can be counted.
        """
        adapter, obj, config = user.adapter, user.obj, self._context.config
        try:
            before: Demand | None = counting.own_demand(
                obj, adapter, OverlayLookup(user.lookup, reference, old), config
            )
        except Malformed:
            before = None
        recording = TrackingLookup(OverlayLookup(user.lookup, reference, new))
        try:
            after = counting.own_demand(obj, adapter, recording, config)
        except Malformed as error:
            if before is None:
                return None
            raise Malformed(f"{display_name(obj)} refers to it: {error}") from None
        others = (asked for asked in recording.asked if asked != reference)
        charge = Charge(
            slot=Slot(adapter.resource, obj["metadata"]["namespace"], obj["metadata"]["name"]),
            uid=uid,
            resource_version=version,
            demand=after.resources,
            before=before.resources if before else {},
            is_new=False,
            pending_write=slot_of(self._context, new),
            read_versions=read_versions(self._context, others, user.lookup, [obj]),
            roles=charged_roles(after),
            roles_before=charged_roles(before or NO_DEMAND),
            unspecified=after.missing,
            max_run_time=after.run,
            max_run_time_before=before.run if before else None,
            run_bound_path=deadline_path(adapter),
            unmodelled=after.unmodelled,
            stated=after.stated,
            unspecified_before=before.missing if before else {},
            unmodelled_before=before.unmodelled if before else {},
        )
        return charge, before or NO_DEMAND, after
