"""ResourceClaims that people make: whose they are, and what those that name them need more with them.

This file alone decides about the write of a claim. One that names a group is charged to it from then on, used or not,
and no other group's workload may name it; one that names none is charged with the first workload that does. What is
made for a pod came in with the pod's workload. Rules: docs/counting.md, "Shared claims".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, Unreachable
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.ports import ReferenceReader
from bizrq.units.resources import Resources, larger
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices.dra import CLAIM, CLAIMS, ClaimContext, claim_conflict, claim_cost, claim_group
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import OverlayLookup
from bizrq.workloads.validation import Malformed
from webhooks.charging.authorization import Authorizer
from webhooks.charging.charger import attributed, charge_until_stable
from webhooks.charging.deadline import seconds_left
from webhooks.charging.group_commit import Reserver
from webhooks.handlers.references import MAX_NAMED, ReferenceHandler, busy, display_name, target_version
from webhooks.handlers.workloads import OwnCharge

Object = dict[str, Any]


class ClaimHandler:
    """The webhook for ResourceClaims."""

    def __init__(
        self,
        reserver: Reserver,
        resolver: ReferenceReader,
        authorizer: Authorizer,
        references: ReferenceHandler,
        config: CountingConfig,
    ) -> None:
        self._reserver = reserver
        self._resolver = resolver
        self._authorizer = authorizer
        self._references = references
        self._config = config

    async def admit(self, request: Request, deadline: float) -> Verdict:
        """The verdict on a CREATE or UPDATE of a claim."""
        new, old = request.object, request.old_object
        if new is None or request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
            return Granted()
        decide = self._reserver.decider(request)

        async def charged(due: OwnCharge) -> Verdict:
            verdict = await self._authorizer.charge(
                request, due.group, due.charge, due.is_new_in_group, due.lookup, deadline, decide
            )
            return (
                attributed(verdict, due.on_behalf_of) if due.on_behalf_of and isinstance(verdict, Denied) else verdict
            )

        async def gather() -> Sequence[OwnCharge] | Verdict:
            return await self._due(request, new, old, deadline)

        where = f"ResourceClaim {request.namespace}/{request.name}"
        try:
            return await charge_until_stable(gather, charged, deadline)
        except Malformed as error:
            return Denied(Reason.MALFORMED, f"{where}: {error}")
        except (ApiError, Unreachable) as error:
            return Denied(Reason.TIMEOUT, f"what names {where} could not be read, try again: {error}")

    async def _due(
        self, request: Request, new: Object, old: Object | None, deadline: float
    ) -> list[OwnCharge] | Verdict:
        """What the claim costs its group more as it is to be. Raises Malformed, ApiError, Unreachable."""
        name = request.name or str(new["metadata"].get("name", ""))
        reference, place = (*CLAIM, request.namespace, name), Slot(CLAIMS, request.namespace, name)
        users = await self._references.users(reference, (new, old), deadline)
        before_it, group = _payer(old), claim_group(new)
        if group is None and not users:
            return []
        payer = group or users[0][2]
        others = sorted((of, display_name(obj)) for _, obj, of, _ in users if of != payer)
        if others and (group != before_it or old is None):
            more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
            names = " and ".join(each for _, each in others[:MAX_NAMED])
            raise Malformed(f"{claim_conflict(place, payer, others[0][0])}, but is named by {names}{more}")
        comes = group is not None and (old is None or before_it != group)
        if comes and (awaited := await self._references.pending_write(reference, deadline, but=payer)) is not None:
            return busy(f"ResourceClaim {request.namespace}/{name}", awaited)
        lookup = await self._resolver.resolve(
            lambda known: [claim_cost(claim, self._around(claim, known)) for claim in (new, old) if claim is not None],
            seconds_left(deadline),
        )
        demand: Resources = claim_cost(new, self._around(new, lookup)) if group is not None else {}
        before: Resources = claim_cost(old, self._around(old, lookup)) if old is not None and before_it == payer else {}
        for adapter, obj, of, known in users:
            if of == payer:
                cost = [
                    self._references.stored_demand(obj, adapter, OverlayLookup(known, reference, claim)).shared.get(
                        place, {}
                    )
                    for claim in (new, old)
                ]
                demand, before = larger(demand, cost[0]), larger(before, cost[1])
        uid, version = target_version(request, new, old)
        charge = Charge(
            slot=place,
            uid=uid,
            resource_version=version,
            demand=demand,
            before=before,
            is_new=comes,
            is_shared=True,
            # Hours are spent by those that use it.
            max_run_time=0,
            max_run_time_before=0,
        )
        if not charge.is_new and not charge.growth():
            return []
        whom = f"{display_name(users[0][1])}, which names it" if users else ""
        return [OwnCharge(payer, charge, whom, is_new_in_group=charge.is_new, lookup=lookup)]

    def _around(self, claim: Object, lookup: Any) -> ClaimContext:
        return ClaimContext(labels_of(claim), claim["metadata"].get("namespace", ""), lookup, self._config)


def _payer(claim: Object | None) -> str | None:
    """The group that a stored claim names; a label that is none charges nobody."""
    try:
        return claim_group(claim) if claim is not None else None
    except Malformed:
        return None
