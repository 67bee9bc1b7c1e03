"""Admission of whole workloads and of their `/scale`: gather, decide, reserve.

This file alone decides which group a change is charged to and what counts as "nothing worse".
It fails closed: what cannot be counted is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import structlog

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.ports import ObjectReader, ReferenceLookup, ReferenceReader
from bizrq.store.reference_resolver import resource_of
from bizrq.units.resources import growth
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, group_of
from bizrq.workloads.lookup import ALL_NODES, Lookup, Reference, TrackingLookup
from bizrq.workloads.owners import charged_group, payer, requires_group
from bizrq.workloads.validation import Malformed
from webhooks.charging.authorization import Authorizer, is_new_in_group
from webhooks.charging.charger import PendingCharge, attributed, charge_until_stable, retry_while_busy
from webhooks.charging.deadline import seconds_left
from webhooks.charging.group_commit import Decide, Reserver
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.handlers.references import ReferenceHandler, charged_roles, deadline_path, target_version

log = structlog.get_logger(__name__)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCharge(PendingCharge):
    """What a workload's own write is charged; `is_new_in_group` as in `webhooks.charging.authorization`."""

    lookup: ReferenceLookup
    is_new_in_group: bool = False


class WorkloadHandler:
    """The webhook for workload objects and for their scale."""

    def __init__(
        self,
        client: ObjectReader,
        reserver: Reserver,
        resolver: ReferenceReader,
        authorizer: Authorizer,
        references: ReferenceHandler,
        owner_trust: OwnerTrust,
        registry: Registry,
        config: CountingConfig,
        *,
        exempt: Collection[str] = (),
    ) -> None:
        """`exempt` are the namespaces whose `/scale` is not reviewed: nothing there can be charged."""
        self._client = client
        self._exempt = exempt
        self._reserver = reserver
        self._resolver = resolver
        self._authorizer = authorizer
        self._owner_trust = owner_trust
        self._registry = registry
        self._config = config
        self._references = references

    async def admit(self, request: Request, deadline: float) -> Verdict:
        """The verdict on a CREATE or UPDATE of a workload object."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if (
            adapter is None
            or not self._registry.is_charged(adapter)
            or request.operation not in ("CREATE", "UPDATE")
            or request.sub_resource not in ("", "resize")
        ):
            return Granted()
        if request.object is None:
            return Denied(Reason.MALFORMED, f"a {request.operation} review must carry an object")
        try:
            return await self._admit(request, adapter, request.object, request.old_object, deadline)
        except Malformed as error:
            return _malformed(adapter.kind, request, error)

    async def scale(self, request: Request, deadline: float) -> Verdict:
        """The verdict on an UPDATE of a workload's `/scale`; it carries no labels, so the parent is read."""
        adapter = self._registry.by_resource(request.resource.group, request.resource.resource)
        if (
            adapter is None
            or not self._registry.is_charged(adapter)
            or adapter.scale is None
            or request.operation != "UPDATE"
            or request.object is None
        ):
            return Granted()
        try:
            wanted = counting.scale_replicas(request.object)
            parent = await self._client.get(
                resource_of(adapter, request.resource.version),
                request.name,
                request.namespace,
                timeout=seconds_left(deadline),
            )
        except NotFound:
            return Granted()
        except Malformed as error:
            return _malformed("Scale", request, error)
        except (ApiError, Unreachable) as error:
            return _unread(f"{adapter.plural} {_named(request)}", error)
        stored_version = (request.old_object or {}).get("metadata", {}).get("resourceVersion")
        if stored_version:
            # The write is decided on what the Scale was read from, whatever has been stored since.
            parent = {**parent, "metadata": {**parent["metadata"], "resourceVersion": stored_version}}
        try:
            scaled = counting.with_scale(parent, adapter, wanted)
            return await self._admit(request, adapter, scaled, parent, deadline)
        except Malformed as error:
            return _malformed(adapter.kind, request, error)

    async def _admit(
        self, request: Request, adapter: Adapter, new: Object, old: Object | None, deadline: float
    ) -> Verdict:
        """The verdict; where it hangs on what the namespace says, on a fresh read of that before it is no.

        Of a /scale nobody tells whether the namespace says anything, so the watch is believed where it says no.
        """
        if old is not None and _unchanged(old, new):
            return Granted()
        try:
            verdict = await self._judge(request, adapter, new, old, deadline)
            unsure = isinstance(verdict, Denied) or (verdict is None and request.sub_resource != "scale")
            if (
                unsure
                and group_of(new) is None
                and (
                    fresh := await self._resolver.reread(
                        ("", "Namespace", "", request.namespace), seconds_left(deadline)
                    )
                )
            ):
                verdict = await self._judge(request, adapter, new, old, deadline, fresh)
        except (ApiError, Unreachable) as error:
            if adapter.per_node and old is not None and await self._is_no_growth(request, adapter, new, old, deadline):
                return Granted()
            what = "the nodes or " if adapter.per_node else ""
            return _unread(f"{what}what {adapter.kind} {_named(request)} refers to", error)
        return verdict or Granted()

    async def _is_no_growth(
        self, request: Request, adapter: Adapter, new: Object, old: Object, deadline: float
    ) -> bool:
        """Return True if a change needs nothing more, whichever nodes exist. They could not be read.

        Raises Malformed.
        """
        unknown: Mapping[Reference, Object | None] = {ALL_NODES: {"items": []}}
        try:
            if not isinstance(await self._weigh(request, adapter, new, old, deadline, unknown), Granted):
                return False
            lookup = await self._resolver.resolve(
                lambda known: self._count(new, old, known), seconds_left(deadline), unknown
            )
        except (ApiError, Unreachable):
            return False
        return not counting.may_grow_on_nodes(new, old, adapter, lookup, self._config)

    async def _judge(
        self,
        request: Request,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        deadline: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> Verdict | None:
        """The verdict, None where no group pays nor has to. Raises Malformed, ApiError, Unreachable."""
        weighed = await self._weigh(request, adapter, new, old, deadline, fresh)
        if not isinstance(weighed, list):
            return weighed
        own, decide = weighed[-1], self._decide(request, deadline, self._reserver.decider(request))
        if not (adapter.refers or adapter.grows or len(weighed) > 1):
            verdict = await retry_while_busy(lambda: decide(own), deadline)
        elif weighed[0].charge.is_shared and isinstance(
            refused := await self._decide(request, deadline, self._reserver.dry_run)(own), Denied
        ):
            # Or what it shares with others would be promised to it for a while.
            verdict = refused
        else:
            first = [weighed]

            async def gather() -> Sequence[OwnCharge] | Verdict:
                if first:
                    return first.pop()
                return await self._weigh(request, adapter, new, old, deadline, fresh) or Granted()

            verdict = await charge_until_stable(gather, decide, deadline)
        if isinstance(verdict, Denied) and self._owner_trust.releases(request, new, old, own.lookup):
            log.warning("charged without room: its controller let go of it", slot=str(own.charge.slot), group=own.group)
            return Granted()
        return verdict

    async def _weigh(
        self,
        request: Request,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        deadline: float,
        fresh: Mapping[Reference, Object | None],
    ) -> list[OwnCharge] | Verdict | None:
        """What the change is charged, as everything else is stored now; a verdict where nothing has to be.

        None where no group pays nor has to. Raises Malformed, ApiError, Unreachable.
        """
        counted: list[tuple[Demand, TrackingLookup]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            counted.append(self._count(new, old, found))

        lookup = await self._resolver.resolve(count, seconds_left(deadline), fresh)
        above = payer(new, self._registry, lookup)
        if above is not None:
            return await self._of_child(request, adapter, new, old, above, lookup, deadline)
        group = charged_group(new, lookup)
        if group is None:
            return self._ungrouped(request, adapter, new, old, lookup)
        made: list[Object] = []
        if adapter.grows and old is not None:
            made = await self._references.stored_children(adapter, old, deadline)
            # Meanwhile what it refers to may have become another.
            counted.clear()
        # What could not be counted raises now: had nobody to pay for it, nobody would mind.
        own, asked = counted[0] if counted else self._count(new, old, lookup)
        # At once, or it would say that what was counted from is newer than it was.
        seen = self._references.read_versions(asked.asked, lookup, made) if adapter.refers or adapter.grows else {}
        stood = self._before(old, group, lookup)
        if stood is None:
            if request.namespace in self._exempt:
                return Denied(
                    Reason.EXEMPT,
                    f"workloads of namespace {request.namespace} cannot be charged to a group: "
                    f"remove the label {LABEL}",
                )
            counting.check_template_labels(new, adapter, group, lookup)
        demand = self._references.with_children(own, adapter, made, lookup)
        before = self._references.with_children(stood, adapter, made, lookup) if stood is not None else None
        charge = charge_of(adapter, request, new, demand, old, before)
        # While a child asks for more than what is written does, the child may be about to ask for less.
        hides = bool(made) and stood is not None and bool(growth(own.resources, stood.resources))
        shared = await self._references.shared_claim_charges(
            charge, group, demand, before or NO_DEMAND, lookup, deadline
        )
        claims = [OwnCharge(d.group, d.charge, d.on_behalf_of, d.is_intent, lookup=lookup) for d in shared]
        if not charge.is_new and not hides and not charge.may_need_more():
            return claims or Granted()
        due = OwnCharge(
            group,
            charge,
            is_new_in_group=is_new_in_group(group, charge, new, old, self._registry, lookup),
            lookup=lookup,
        )
        if not (adapter.refers or adapter.grows):
            return [*claims, due]
        charge = replace(charge, is_new=charge.is_new or hides, read_versions=seen)
        due = replace(due, charge=charge, is_intent=before is not None and not charge.may_need_more())
        left = charged_group(old, lookup) if old is not None else None
        if old is None or left is None or left == group or payer(old, self._registry, lookup) is not None:
            return [*claims, due]
        # What it refers to would charge the group that it leaves, until it has left: that has to see the move, too.
        held = self._references.with_children(self._before(old, left, lookup) or NO_DEMAND, adapter, made, lookup)
        leaves = replace(
            charge, demand=held.resources, before=held.resources, is_new=True, roles=(), unspecified={}, unmodelled={}
        )
        return [OwnCharge(left, leaves, is_intent=True, lookup=lookup), *claims, due]

    def _decide(self, request: Request, deadline: float, decide: Decide) -> Callable[[OwnCharge], Awaitable[Verdict]]:
        async def charged(due: OwnCharge) -> Verdict:
            verdict = await self._authorizer.charge(
                request, due.group, due.charge, due.is_new_in_group, due.lookup, deadline, decide
            )
            return (
                attributed(verdict, due.on_behalf_of) if due.on_behalf_of and isinstance(verdict, Denied) else verdict
            )

        return charged

    async def _of_child(
        self,
        request: Request,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        above: Object,
        lookup: ReferenceLookup,
        deadline: float,
    ) -> list[OwnCharge] | Verdict:
        """What is charged for an object that `above` pays for: nothing, what it outgrows that by, or all of it."""
        unpaid = await self._owner_trust.uncovered(request, adapter, new, old, above, lookup, deadline)
        group = charged_group(above, lookup)
        if unpaid is not None and group is not None:
            before = unpaid.before or self._before(old, group, lookup)
            charge = charge_of(adapter, request, new, unpaid.demand, old, before)
            if not charge.is_new and not charge.may_need_more():
                return Granted()
            enters = is_new_in_group(group, charge, new, old, self._registry, lookup)
            return [OwnCharge(group, charge, is_new_in_group=enters, lookup=lookup)]
        return await self._references.admit_child(request, adapter, new, old, above, deadline)

    def _ungrouped(
        self, request: Request, adapter: Adapter, new: Object, old: Object | None, lookup: ReferenceLookup
    ) -> Denied | None:
        """Why an object that charges nobody may not do so where every workload has to charge a group.

        What stood there before may go on as it is; a controller's release and what is going anyway are nobody's to
        refuse. Raises Malformed.
        """
        if not requires_group(request.namespace, lookup) or request.namespace in self._exempt:
            return None
        if old is not None:
            if (old.get("metadata") or {}).get("deletionTimestamp") or self._owner_trust.releases(
                request, new, old, lookup
            ):
                return None
            stood = self._before(old, None, lookup)
            demand = counting.demand(new, self._registry, lookup, self._config)
            if stood is not None and not growth(demand.resources, stood.resources):
                return None
        return Denied(
            Reason.REQUIRED,
            f"namespace {request.namespace} requires a group: label {adapter.kind} {_named(request)} "
            f"{LABEL} with the group that pays for it",
        )

    def _count(self, new: Object, old: Object | None, lookup: Lookup) -> tuple[Demand, TrackingLookup]:
        """The new demand and what it asked for; what the old one asks for becomes known, too. Raises Malformed."""
        if old is not None:
            self._before(old, charged_group(old, lookup), lookup)
        asked = TrackingLookup(lookup)
        return counting.demand(new, self._registry, asked, self._config), asked

    def _before(self, old: dict[str, Any] | None, group: str | None, lookup: Lookup) -> Demand | None:
        """What the stored object costs this group; None where it costs it nothing, not being there or elsewhere."""
        if old is None or charged_group(old, lookup) != group or payer(old, self._registry, lookup) is not None:
            return None
        try:
            return counting.demand(old, self._registry, lookup, self._config)
        except Malformed:
            return NO_DEMAND


def charge_of(
    adapter: Adapter,
    request: Request,
    new: Mapping[str, Any],
    demand: Demand,
    old: Mapping[str, Any] | None,
    before: Demand | None,
) -> Charge:
    """The change in the terms of the group that pays; raises Malformed for an unreadable resourceVersion."""
    uid, version = target_version(request, new, old)
    return Charge(
        slot=Slot(
            adapter.resource, request.namespace, request.name or str((new.get("metadata") or {}).get("name", ""))
        ),
        uid=uid,
        resource_version=version,
        demand=demand.resources,
        before=before.resources if before else {},
        is_new=before is None,
        roles=charged_roles(demand),
        roles_before=charged_roles(before) if before else (),
        unspecified=demand.missing,
        max_run_time=demand.run,
        max_run_time_before=before.run if before else None,
        run_bound_path=deadline_path(adapter),
        unmodelled=demand.unmodelled,
    )


def _unchanged(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether nothing that is charged differs: always allowed, even where the object cannot be counted."""
    keys = ("spec", "template")
    return all(old.get(key) == new.get(key) for key in keys) and _charged(old) == _charged(new)


def _charged(obj: Mapping[str, Any]) -> tuple[object, ...]:
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    return (
        {key: value for key, value in labels.items() if key == LABEL or key.startswith(LABEL + "/")},
        metadata.get("annotations"),
        metadata.get("ownerReferences"),
    )


def _named(request: Request) -> str:
    return f"{request.namespace}/{request.name}" if request.namespace else request.name


def _malformed(kind: str, request: Request, error: Malformed) -> Denied:
    return Denied(Reason.MALFORMED, f"{kind} {_named(request)}: {error}")


def _unread(what: str, error: Exception) -> Denied:
    return Denied(Reason.TIMEOUT, f"{what} could not be read, try again: {error}")
