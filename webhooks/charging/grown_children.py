"""Children that may ask for more than the workload that made them, and that pays for them.

This file alone decides what such a child adds to its payer's charge. The reservation is in the payer's slot and names
the child whose write it awaits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.change import Charge, newly
from bizrq.quota.verdict import Denied, Granted, Reason
from bizrq.store.reference_resolver import resource_of
from bizrq.units.resources import growth
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.demand.owner_allowance import child_demand, countable_demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup, Reference, group_and_version
from bizrq.workloads.owners import charged_group, controller_of
from webhooks.charging.charges import (
    Charges,
    Decided,
    PendingCharge,
    deadline_path,
    display_name,
    generation_of,
    target_version,
)
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.payers import Payers
from webhooks.charging.shared_claims import SharedClaims
from webhooks.charging.stored import list_kinds, read_versions, slot_of, stored_demand

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Family:
    """A stored payer, the group that it charges, its other stored children, and what counting them asks for."""

    maker: Adapter
    stored: Object
    group: str
    siblings: list[Object]
    lookup: Lookup
    asked: set[Reference]


class GrownChildren:
    """Counts children together with the workload that pays for them."""

    def __init__(self, context: Context, claims: SharedClaims, payers: Payers) -> None:
        self._context = context
        self._payers = payers
        self._claims = claims

    async def stored(self, maker: Adapter, above: Object, deadline: Deadline) -> list[Object]:
        """Return the stored children of an object that may ask for more than it does. Raises ApiError, Unreachable."""
        uid, namespace = above["metadata"].get("uid"), above["metadata"].get("namespace", "")
        by_kind = self._context.registry.by_kind
        kinds = [kind for group, name in sorted(maker.grows) if (kind := by_kind(group, name))]
        found = await list_kinds(self._context, kinds, namespace, deadline)
        return [obj for _, obj in found if (controller_of(obj["metadata"]) or {}).get("uid") == uid]

    def with_children(self, own: Demand, adapter: Adapter, children: Iterable[Object], lookup: Lookup) -> Demand:
        """Return what an object asks for with its stored children."""
        of = self._context.registry.of
        made = [stored_demand(self._context, child, kind, lookup) for child in children if (kind := of(child))]
        return counting.with_children(own, made, adapter, self._context.config)

    async def count(
        self, request: Request, adapter: Adapter, new: Object, old: Object | None, above: Object, deadline: Deadline
    ) -> Charges | Decided:
        """Count what the payer `above` of a child needs more with it.

        A child that grows leaves an intent even where the payer asks for more itself: the payer may be about to ask
        for less. Raises Malformed.
        """
        maker = self._context.registry.of(above)
        if maker is None or adapter.group_kind not in maker.grows:
            return Decided(Granted())
        uid, version = target_version(request, new, old)
        try:
            family = await self._family(maker, above, adapter, (new, old), uid, deadline)
            if family is None:
                return Decided(Granted())
            counted = self._charge(family, adapter, new, old, uid, version, is_by_person=request.is_by_person)
            if counted is None:
                return Decided(Granted())
            charge, before, after = counted
            claims = await self._claims.charges(charge, family.group, after, before, family.lookup, deadline)
        except (ApiError, Unreachable) as error:
            what = f"what {display_name(above)} made"
            return Decided(Denied(Reason.TIMEOUT, f"{what} could not be read, try again: {error}"))
        whom = f"{display_name(family.stored)}, which made {adapter.kind} {new['metadata'].get('name')}"
        is_intent = not (charge.growth() or (request.is_by_person and charge.newly_unspecified()))
        own = PendingCharge(family.group, charge, family.lookup, whom, is_intent=is_intent)
        return Charges([own, *claims])

    async def _family(
        self,
        maker: Adapter,
        above: Object,
        adapter: Adapter,
        contents: tuple[Object, Object | None],
        uid: str,
        deadline: Deadline,
    ) -> _Family | None:
        """Read the payer and its other children; None where it is gone or does not pay. Raises ApiError, …"""
        metadata, context = above["metadata"], self._context
        try:
            stored = await context.client.get(
                resource_of(maker, group_and_version(above.get("apiVersion"))[1]),
                metadata["name"],
                metadata["namespace"],
                timeout=deadline.seconds_left(),
            )
        except NotFound:
            return None
        if stored["metadata"]["uid"] != metadata["uid"]:
            return None
        siblings = [obj for obj in await self.stored(maker, stored, deadline) if obj["metadata"]["uid"] != uid]
        asked: set[Reference] = set()

        def count(lookup: Lookup) -> None:
            self._payers.owner(stored, lookup)
            children = [*(obj for obj in contents if obj is not None), *siblings]
            for obj, kind in ((stored, maker), *((child, adapter) for child in children)):
                asked.update(counting.references(obj, kind, lookup, context.config))

        lookup = await context.resolver.resolve(count, deadline.seconds_left())
        group = charged_group(stored, context.registry, lookup)
        if group is None or self._payers.owner(stored, lookup) is not None:
            return None
        return _Family(maker, stored, group, siblings, lookup, asked)

    def _charge(
        self,
        family: _Family,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        uid: str,
        version: int | None,
        *,
        is_by_person: bool,
    ) -> tuple[Charge, Demand, Demand] | None:
        """Return the payer's charge, and its demand before and after.

        None where the child does not grow, nor is `is_by_person` and states less than before. Raises Malformed.
        """
        context, maker, lookup = self._context, family.maker, family.lookup
        mine = counting.own_demand(new, adapter, lookup, context.config)
        was = stored_demand(context, old, adapter, lookup) if old is not None else NO_DEMAND
        states_less = is_by_person and bool(newly(mine.missing, was.missing))
        if not (growth(mine.resources, was.resources) or states_less):
            return None
        own = stored_demand(context, family.stored, maker, lookup)
        if own.roles:
            others = [stored_demand(context, sibling, adapter, lookup) for sibling in family.siblings]
            after = counting.with_children(own, [*others, mine], maker, context.config)
            before = counting.with_children(own, [*others, was] if old else others, maker, context.config)
        else:
            # It is suspended or has ended, and covers nothing: each of them is charged by itself.
            after, before = child_demand(new, adapter, family.stored, lookup, context.config), NO_DEMAND
            if old is not None:
                before = countable_demand(old, adapter, family.stored, lookup, context.config)
        metadata = family.stored["metadata"]
        charge = Charge(
            slot=Slot(maker.resource, metadata["namespace"], metadata["name"]),
            uid=uid,
            resource_version=version,
            demand=after.resources,
            before=before.resources,
            is_new=True,
            pending_write=slot_of(context, new),
            read_versions=read_versions(context, family.asked, lookup, [family.stored, *family.siblings]),
            unspecified=mine.missing,
            unspecified_before=was.missing,
            max_run_time=after.run,
            max_run_time_before=before.run,
            run_bound_path=deadline_path(maker),
            unmodelled=mine.unmodelled,
            generation=generation_of(old),
        )
        return charge, before, after
