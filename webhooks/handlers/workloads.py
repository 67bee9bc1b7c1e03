"""Admission of workloads and of their `/scale`: count the write, then charge it.

This file alone decides which charges a workload's write makes, and to which groups. A write that cannot be counted is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import structlog

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.registration import WORKLOADS
from bizrq.store.ports import ReferenceLookup
from bizrq.store.reference_resolver import resource_of
from bizrq.units.resources import Resources, add, growth, smaller
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL, group_of, with_models
from bizrq.workloads.lookup import ALL_NODES, Lookup, Reference, TrackingLookup
from bizrq.workloads.owners import charged_group, owner_chain, requires_group
from bizrq.workloads.ownership.payers import Paid, PayerReason, PayingOwner
from bizrq.workloads.ownership.waiting import awaits
from bizrq.workloads.scope import ignored_label
from bizrq.workloads.validation import Malformed
from webhooks.charging.adoption import Adoption
from webhooks.charging.authorization import is_new_in_group
from webhooks.charging.charger import Charger
from webhooks.charging.charges import Charges, Counted, Decided, NothingCharged, PendingCharge, charge_of, display_name
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.grown_children import GrownChildren
from webhooks.charging.known_models import KnownModels
from webhooks.charging.later_objects import LaterObjects
from webhooks.charging.older_versions import OlderVersions, explained, with_older
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.charging.payers import Payers, check_owner_references, is_going
from webhooks.charging.shared_claims import SharedClaims
from webhooks.charging.stored import read_versions, stored_demand, stored_label
from webhooks.handlers.answer import Answer, malformed, subject_of, unread

log = structlog.get_logger(__name__)

Object = dict[str, Any]
Fresh: TypeAlias = Mapping[Reference, Object | None]

#: What follows a warning of a model that would be a refusal, if all nodes and groups had been read.
_NOT_REFUSED = "; unknownModels: deny refuses it only where all nodes and groups can be read"
_NOTHING_FRESH: Fresh = MappingProxyType({})
_WITHOUT_NODES: Fresh = MappingProxyType({ALL_NODES: {"items": []}})


class _Write(NamedTuple):
    """A reviewed write of a workload; `old` is None for a create.

    `adopts` is what leftovers cost that a create will adopt, by group. Counting adds `warnings` for the person.
    """

    request: Request
    adapter: Adapter
    new: Object
    old: Object | None
    warnings: set[str]
    adopts: Mapping[str, Resources] = MappingProxyType({})


class WorkloadHandler:
    """The webhook for workload objects and for their scale."""

    def __init__(
        self,
        context: Context,
        charger: Charger,
        claims: SharedClaims,
        children: GrownChildren,
        owner_trust: OwnerTrust,
        payers: Payers,
    ) -> None:
        self._context = context
        self._charger = charger
        self._claims = claims
        self._children = children
        self._owner_trust = owner_trust
        self._payers = payers
        self._models = KnownModels(
            context.client, context.config, lambda: _ceilings(context), is_complete=context.groups.is_complete
        )
        self._adoption = Adoption(context)
        self._older = OlderVersions(context)
        self._later = LaterObjects(context)
        self._registry = context.registry
        self._config = context.config

    async def admit(self, request: Request, deadline: Deadline) -> Answer | Verdict:
        """Return the answer to a CREATE or UPDATE of a workload object."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if adapter is None or not self._registry.is_charged(adapter) or request.object is None:
            return Granted()
        new, old = request.object, request.old_object
        later = await self._later.of(request, adapter, deadline)
        if old is not None and _unchanged(old, new):
            return Answer(Granted(), later=later)
        if old is None or _owners(old) != _owners(new):
            check_owner_references(new)
        write = _Write(request, adapter, new, old, set())
        return Answer(await self._admit(write, deadline), sorted(write.warnings), later=later)

    async def indirect(self, request: Request, deadline: Deadline) -> Answer:
        """Grant a write of a kind that is not charged itself, with what it will make that is."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if adapter is None or self._registry.is_charged(adapter):
            return Answer(Granted())
        return Answer(Granted(), later=await self._later.of(request, adapter, deadline))

    async def leaving(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on an UPDATE by which an object may leave the owner that pays for it.

        Its registration fails open, and so does this where the owner cannot be read: the recount counts what is left.
        """
        adapter, new, old = (
            self._registry.by_kind(request.kind.group, request.kind.kind),
            request.object,
            request.old_object,
        )
        if adapter is None or not self._registry.is_charged(adapter) or new is None or old is None:
            return Granted()
        try:
            if not await self._payers.may_leave(old, new, deadline):
                return Granted()
            return await self._admit(_Write(request, adapter, new, old, set()), deadline)
        except (ApiError, Unreachable) as error:
            log.warning("allowed unseen: its owner could not be read", subject=subject_of(request), error=str(error))
            return Granted()

    async def scale(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on an UPDATE of a workload's `/scale`; it carries no labels, so the parent is read."""
        adapter = self._registry.by_resource(request.resource.group, request.resource.resource)
        if adapter is None or not self._registry.is_charged(adapter) or adapter.scale is None or request.object is None:
            return Granted()
        wanted = counting.scale_replicas(request.object)
        resource = resource_of(adapter, request.resource.version)
        try:
            parent = await self._context.client.get(
                resource, request.name, request.namespace, timeout=deadline.seconds_left()
            )
        except NotFound:
            return Granted()
        stored_version = (request.old_object or {}).get("metadata", {}).get("resourceVersion")
        if stored_version:
            # The write is decided on what the Scale was read from, whatever has been stored since.
            parent = {**parent, "metadata": {**parent["metadata"], "resourceVersion": stored_version}}
        subject = subject_of(request, adapter.kind)
        try:
            scaled = counting.with_scale(parent, adapter, wanted)
            if _unchanged(parent, scaled):
                return Granted()
            return await self._admit(_Write(request, adapter, scaled, parent, set()), deadline)
        except Malformed as error:
            return malformed(subject, error)
        except (ApiError, Unreachable) as error:
            return unread(WORKLOADS.reads.format(subject), error)

    async def _admit(self, write: _Write, deadline: Deadline) -> Verdict:
        """Return the verdict on a write. Raises Malformed, ApiError, Unreachable.

        A kind with a pod per node may not grow while the nodes cannot be read; any other change of it is granted.
        """
        try:
            return await self._admit_counted(write, deadline)
        except (ApiError, Unreachable) as error:
            if not write.adapter.per_node:
                raise
            if await self._is_no_growth(write, deadline):
                return Granted()
            subject = subject_of(write.request, write.adapter.kind)
            return unread(f"the nodes or {WORKLOADS.reads.format(subject)}", error)

    async def _is_no_growth(self, write: _Write, deadline: Deadline) -> bool:
        """Return True if a change needs nothing more, whichever nodes exist. Raises Malformed."""
        if write.old is None:
            return False
        try:
            if await self._count(write, deadline, _WITHOUT_NODES) != Decided(Granted()):
                return False
            lookup = await self._context.resolver.resolve(
                lambda known: self._demand(write, known), deadline.seconds_left(), _WITHOUT_NODES
            )
        except (ApiError, Unreachable):
            return False
        return not counting.may_grow_on_nodes(write.new, write.old, write.adapter, lookup, self._config)

    async def _admit_counted(self, write: _Write, deadline: Deadline) -> Verdict:
        """Count the write and charge it. Raises Malformed, ApiError, Unreachable.

        What is not charged is confirmed here, and a no that depends on the namespace's labels; growth by the charger.
        """
        counted, verdict = await self._count_and_charge(write, deadline)
        if isinstance(verdict, Denied) and verdict.reason is Reason.EXCEEDED and write.old is None:
            # Only a create that does not fit is worth the lists.
            counted, verdict = await self._with_adoption(write, deadline) or (counted, verdict)
        is_uncharged = isinstance(counted, NothingCharged) or isinstance(verdict, Denied)
        if is_uncharged and (group_of(write.new) is None or self._registry.scope.reads_labels):
            lookup = counted.charges[-1].lookup if isinstance(counted, Charges) else counted.lookup
            if not await self._context.confirmation.is_namespace_current(lookup, write.request.namespace, deadline):
                _, verdict = await self._count_and_charge(write, deadline)
        return verdict

    async def _with_adoption(self, write: _Write, deadline: Deadline) -> tuple[Counted, Verdict] | None:
        """Decide a create by what it will adopt, too; None where that is nothing.

        Raises Malformed, ApiError, Unreachable.

        Only what is still there once the reservation is stored is granted. A later create of this name sees the
        reservation, and what an earlier one took is not there any more.
        """
        adopts = await self._adoption.of(write.adapter, write.new, deadline)
        if not adopts:
            return None
        while True:
            write = write._replace(adopts=adopts)
            counted, verdict = await self._count_and_charge(write, deadline)
            if isinstance(verdict, Denied):
                return counted, verdict
            left = await self._adoption.of(write.adapter, write.new, deadline)
            if not any(growth(amounts, left.get(group, {})) for group, amounts in adopts.items()):
                return counted, verdict
            adopts = {group: smaller(amounts, left.get(group, {})) for group, amounts in adopts.items()}

    async def _count_and_charge(self, write: _Write, deadline: Deadline) -> tuple[Counted, Verdict]:
        """Return the first count and the verdict on it. Raises Malformed, ApiError, Unreachable."""
        count = partial(self._count, write, deadline, _NOTHING_FRESH)
        counted = await count()
        while isinstance(counted, Decided) and not await self._is_current(write, counted, deadline):
            counted = await count()
        refused = await self._check_models(write, counted, deadline)
        if refused is not None:
            return counted, refused
        verdict = await self._charger.charge(write.request, counted, deadline, count)
        if isinstance(verdict, Denied) and isinstance(counted, Charges):
            own = counted.charges[-1]
            if self._owner_trust.releases(write.request, write.new, write.old, own.lookup):
                slot = str(own.charge.slot)
                log.warning("charged without room: released by its controller", slot=slot, group=own.group)
                return counted, Granted()
        return counted, verdict

    async def _check_models(self, write: _Write, counted: Counted, deadline: Deadline) -> Denied | None:
        """Warn of models that the write brings and that nothing has; refuse them where the configuration says so."""
        mode = self._config.unknown_models
        if mode == "ignore" or not isinstance(counted, Charges):
            return None
        own = counted.charges[-1]
        group = self._context.groups.cached(own.group)
        added = own.charge.demand.keys() - own.charge.before.keys()
        found = await self._models.unknown(added, group.spec.hard if group else (), deadline.seconds_left())
        if found is None:
            return None
        if mode == "deny" and found.is_sure:
            subject = subject_of(write.request, write.adapter.kind)
            return Denied(Reason.UNKNOWN_MODEL, f"{subject}: {'; '.join(found.sentences)}")
        why = _NOT_REFUSED if mode == "deny" else ""
        write.warnings.update(f"{sentence}{why}" for sentence in found.sentences)
        return None

    async def _is_current(self, write: _Write, counted: Decided, deadline: Deadline) -> bool:
        """Return True unless a change that seemed to ask for no more may ask for more of current objects.

        A change that keeps the pods asks for no more in any case. Raises ApiError, Unreachable.
        """
        pending = counted.charge
        if pending is None or write.old is None:
            return True
        if counting.has_same_pods(write.new, write.old, write.adapter, pending.lookup, self._config):
            return True
        return await self._context.confirmation.is_current([pending], deadline)

    async def _count(self, write: _Write, deadline: Deadline, fresh: Fresh) -> Counted:
        """Count the write as everything else is stored now. Raises Malformed, ApiError, Unreachable."""
        counted: list[tuple[Demand, TrackingLookup]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            counted.append(self._demand(write, found))

        lookup = await self._context.resolver.resolve(count, deadline.seconds_left(), fresh)
        paid, owner = self._payers.of_stored(write.old, lookup), self._payers.owner_after(write.new, write.old, lookup)
        refused = self._label_refused(write, paid)
        if refused is not None:
            return Decided(refused)
        if owner is not None:
            return await self._count_child(write, owner, lookup, deadline)
        if paid is not None:
            return self._count_left(write, paid, lookup)
        group = charged_group(write.new, self._registry, lookup)
        if group is None:
            counted_without = self._count_ungrouped(write, lookup)
            if isinstance(counted_without, NothingCharged):
                return await self._count_let_loose(write, lookup, deadline) or counted_without
            return counted_without
        children: list[Object] = []
        if write.adapter.grows and write.old is not None:
            children = await self._children.stored(write.adapter, write.old, deadline)
            # Objects that it refers to may have changed meanwhile: count it again.
            counted.clear()
        # What cannot be counted raises here, where a group pays for it.
        own = counted[0] if counted else self._demand(write, lookup)
        return await self._count_own(write, group, own, children, lookup, deadline)

    async def _count_own(
        self,
        write: _Write,
        group: str,
        own: tuple[Demand, TrackingLookup],
        children: list[Object],
        lookup: ReferenceLookup,
        deadline: Deadline,
    ) -> Counted:
        """Count a workload that pays for itself, with its stored children. Raises Malformed, ApiError, Unreachable."""
        adapter, new, old = write.adapter, write.new, write.old
        own_demand, asked = own
        sees_others = bool(adapter.refers or adapter.grows)
        # Before anything is awaited, or versions newer than what was counted would be noted.
        seen = read_versions(self._context, asked.asked, lookup, children) if sees_others else {}
        stored = self._before(old, group, lookup)
        if stored is None:
            counting.check_template_labels(new, adapter, group, lookup)
        demand = self._children.with_children(own_demand, adapter, children, lookup)
        before = None
        if stored is not None:
            before = self._children.with_children(stored, adapter, children, lookup)
        versions, older, plain = await self._older.of(adapter, new, old, deadline), list[Demand](), demand.resources
        if versions:
            older = await self._demands([each.workload for each in versions], adapter, deadline)
            plain = growth(plain, before.resources if before is not None else {})
            demand, before = with_older(demand, before, older)
        if old is not None and (lets_go := await self._adoption.lets_go(adapter, old, new, deadline)):
            demand = replace(demand, resources=add(demand.resources, lets_go))
        charge = charge_of(adapter, write.request, new, demand, old, before)
        if versions:
            charge = explained(charge, plain, versions, older)
        charge = replace(charge, children=self._promised_beside(adapter), adopts=write.adopts.get(group, {}))
        # While a child asks for more than the workload does, the child may be about to ask for less.
        hidden = bool(children) and stored is not None and bool(growth(own_demand.resources, stored.resources))
        claims = await self._claims.charges(charge, group, demand, before or NO_DEMAND, lookup, deadline)
        if not charge.is_new and not hidden and not charge.may_need_more():
            unchanged = PendingCharge(group, charge, lookup)
            return _charges(adapter, claims) if claims else Decided(Granted(), lookup, unchanged)
        enters = is_new_in_group(group, charge, new, old, self._registry, lookup)
        if not sees_others:
            return _charges(adapter, [*claims, PendingCharge(group, charge, lookup, is_new_in_group=enters)])
        is_intent = before is not None and not charge.may_need_more()
        charge = replace(charge, is_new=charge.is_new or hidden, read_versions=seen)
        due = PendingCharge(group, charge, lookup, is_intent=is_intent, is_new_in_group=enters)
        left = self._leaving(write, due, children, lookup)
        return _charges(adapter, [*left, *claims, due])

    async def _demands(self, objects: Sequence[Object], adapter: Adapter, deadline: Deadline) -> list[Demand]:
        """Return what each of these asks for. Raises ApiError, Unreachable."""

        def count(known: Lookup) -> list[Demand]:
            return [stored_demand(self._context, obj, adapter, known) for obj in objects]

        return count(await self._context.resolver.resolve(count, deadline.seconds_left()))

    def _leaving(
        self, write: _Write, entering: PendingCharge, children: list[Object], lookup: ReferenceLookup
    ) -> list[PendingCharge]:
        """Return the intent that a move leaves in the group that the workload leaves.

        Until the move is stored, a write of what the workload refers to charges that group: it has to see the move.
        """
        old = write.old
        left = charged_group(old, self._registry, lookup) if old is not None else None
        if old is None or left is None or left == entering.group or self._payers.of_stored(old, lookup) is not None:
            return []
        stored = self._before(old, left, lookup) or NO_DEMAND
        held = self._children.with_children(stored, write.adapter, children, lookup).resources
        charge = replace(
            entering.charge, demand=held, before=held, is_new=True, roles=(), unspecified={}, unmodelled={}
        )
        return [PendingCharge(left, charge, lookup, is_intent=True)]

    def _label_refused(self, write: _Write, paid: Paid | None) -> Denied | None:
        """Refuse a person's change of a child's label to another group than the one that pays.

        Raises Malformed.
        """
        label = group_of(write.new)
        if write.old is None or paid is None or label in (None, paid.group, stored_label(write.old)):
            return None
        if self._owner_trust.is_trusted(write.request):
            return None
        subject = subject_of(write.request, write.adapter.kind)
        if paid.reason is PayerReason.LEFTOVER:
            why, instead = f"which paid for {paid.place} until that released it", "delete it and create it"
        else:
            why, instead = f"which pays for {paid.place}, its owner", "label the owner instead, or create it"
        return Denied(
            Reason.PAID_BY_OWNER,
            f"{subject} is charged to quota {paid.group}, {why}: its label {LABEL} cannot change to {label}; "
            f"{instead} under the other group",
        )

    def _count_left(self, write: _Write, paid: Paid, lookup: ReferenceLookup) -> Counted:
        """Count an object that leaves its owner by this write, or that an owner has left.

        If its owner makes another in its place, all of it is growth of the group that pays. Raises Malformed.
        """
        request, adapter, new, old = write.request, write.adapter, write.new, write.old
        is_left = paid.reason is PayerReason.LEFTOVER
        is_replaced = old is not None and not is_left and not self._is_not_replaced(paid, old, lookup)
        is_over = is_going(old) if is_left and old is not None else not is_replaced
        if old is None or (is_over and _has_same_spec(old, new)):
            return Decided(Granted())
        demand = counting.own_demand(with_models(new, paid.models), adapter, lookup, self._config)
        known = with_models(old, paid.models)
        before = None if is_replaced else stored_demand(self._context, known, adapter, lookup)
        charge = charge_of(adapter, request, new, demand, old, before)
        if not charge.may_need_more():
            return Decided(Granted())
        whom = f"what leaves {paid.place}, which makes another in its place" if is_replaced else ""
        return _charges(adapter, [PendingCharge(paid.group, charge, lookup, whom)])

    def _is_not_replaced(self, paid: Paid, child: Object, lookup: Lookup) -> bool:
        """Return True where no owner makes another in place of a child that leaves.

        All of them up to the payer are being deleted: one that is not makes another, if only once the ones below it are
        gone. Or the child is a pod that is being deleted, and another was made in its place when that began.
        """
        owners: list[Object] = []
        for owner, _, _ in owner_chain(child, self._registry, lookup):
            owners.append(owner)
            if owner["metadata"].get("uid") == paid.payer:
                break
        if all(map(is_going, owners)):
            return True
        name = str(child["metadata"].get("name"))
        return (
            child.get("kind") == "Pod"
            and is_going(child)
            and not any(awaits(owner, is_old=True)(name) for owner in owners)
        )

    async def _count_child(
        self, write: _Write, owner: PayingOwner, lookup: ReferenceLookup, deadline: Deadline
    ) -> Counted:
        """Count an object that an owner pays for: it costs nothing, the growth of its payer, or what that does not
        cover.

        Raises Malformed, ApiError, Unreachable.
        """
        request, adapter, new, old = write.request, write.adapter, write.new, write.old
        label = group_of(new)
        if old is None and label not in (None, owner.group):
            pays = f"{display_name(owner.obj)} pays for it in {owner.group}"
            write.warnings.add(f"{subject_of(request, adapter.kind)}: its label {LABEL}={label} is ignored: {pays}")
        child = await self._owner_trust.untrusted(request, adapter, new, old, owner.obj, lookup, deadline)
        if child is None:
            return await self._children.count(request, adapter, new, old, owner.obj, deadline)
        before = child.before or self._before(old, owner.group, lookup)
        charge = charge_of(adapter, request, new, child.demand, old, before)
        if not charge.is_new and not charge.may_need_more():
            return Decided(Granted())
        enters = child.is_over and is_new_in_group(owner.group, charge, new, old, self._registry, lookup)
        if child.room is not None and child.slot is not None:
            charge = replace(
                charge,
                slot=child.slot,
                pending_write=charge.slot,
                is_new=True,
                is_child=True,
                roles=(),
                roles_before=(),
                max_run_time_before=charge.max_run_time,
                room=child.room,
                children=frozenset({adapter.resource}),
            )
        return _charges(adapter, [PendingCharge(owner.group, charge, lookup, is_new_in_group=enters)])

    def _promised_beside(self, adapter: Adapter) -> frozenset[str]:
        """Return the kinds of children whose creates are promised beside what a workload needs itself."""
        kinds = (self._registry.by_kind(*kind) for kind in adapter.creates - adapter.grows)
        return frozenset(kind.resource for kind in kinds if kind is not None)

    def _count_ungrouped(self, write: _Write, lookup: ReferenceLookup) -> NothingCharged | Decided:
        """Refuse an object that charges no group where every workload has to charge one.

        A stored object that asks for no more is allowed, and any label of one that is being deleted. Raises Malformed.
        """
        request, new, old = write.request, write.new, write.old
        if not requires_group(request.namespace, self._registry, lookup):
            label = group_of(new)
            if label is not None:
                write.warnings.add(ignored_label(label, request.namespace))
            return NothingCharged(lookup)
        if old is not None:
            if is_going(old) and _has_same_spec(old, new):
                return NothingCharged(lookup)
            stored = self._before(old, None, lookup)
            demand = counting.own_demand(new, write.adapter, lookup, self._config)
            if stored is not None and not growth(demand.resources, stored.resources):
                return NothingCharged(lookup)
        return Decided(
            Denied(
                Reason.REQUIRED,
                f"namespace {request.namespace} requires a group: label {subject_of(request, write.adapter.kind)} "
                f"{LABEL} with the group that pays for it",
            ),
            lookup,
        )

    async def _count_let_loose(self, write: _Write, lookup: ReferenceLookup, deadline: Deadline) -> Charges | None:
        """Count the pods of a workload that is to name no group any more, and that name another group themselves.

        From then on their own labels decide: it is growth of those groups. A label that names no group is none. Return
        None where nothing grows. Raises Malformed, ApiError, Unreachable.
        """
        request, adapter, new, old = write.request, write.adapter, write.new, write.old
        paying = charged_group(old, self._registry, lookup) if old is not None and adapter.pays else None
        if old is None or paying is None:
            return None
        found = await self._adoption.pay_themselves(adapter, old, paying, deadline)
        whom = f"pods that {subject_of(request, adapter.kind)} made and that name the group themselves"
        due = [
            PendingCharge(
                group,
                charge_of(adapter, request, new, Demand(cost), old, None),
                lookup,
                whom,
                is_new_in_group=True,
            )
            for group, cost in sorted(found.items())
            if await self._context.groups.read(group, deadline.seconds_left()) is not None
        ]
        return Charges(due) if due else None

    def _demand(self, write: _Write, lookup: Lookup) -> tuple[Demand, TrackingLookup]:
        """Return the new demand and what it asked for; what the old one asks for becomes known, too.

        Raises Malformed.
        """
        before = None
        if self._payers.of_stored(write.old, lookup) is not None:
            counting.references(write.old or {}, write.adapter, lookup, self._config)
        elif write.old is not None:
            before = self._before(write.old, charged_group(write.old, self._registry, lookup), lookup)
        asked = TrackingLookup(lookup)
        adapter = counting.adapter_of(write.new, self._registry)
        if self._payers.owner_after(write.new, write.old, asked) is not None:
            return NO_DEMAND, asked
        demand = counting.own_demand(write.new, adapter, asked, self._config)
        counting.check_readable(demand, before)
        return demand, asked

    def _before(self, old: Object | None, group: str | None, lookup: Lookup) -> Demand | None:
        """Return what the stored object costs this group; None where there is none, or another group pays."""
        if (
            old is None
            or self._payers.of_stored(old, lookup) is not None
            or charged_group(old, self._registry, lookup) != group
        ):
            return None
        try:
            return counting.own_demand(old, counting.adapter_of(old, self._registry), lookup, self._config)
        except Malformed:
            return NO_DEMAND


def _charges(adapter: Adapter, charges: list[PendingCharge]) -> Charges:
    """Return the charges of a workload's write, its own the last.

    A kind that neither refers to others nor grows is counted from its own object alone, unless it shares claims.
    """
    is_final = len(charges) == 1 and not (adapter.refers or adapter.grows)
    shares = not is_final and charges[0].charge.is_shared
    return Charges(charges, is_final, precheck=charges[-1] if shares else None)


def _ceilings(context: Context) -> set[str]:
    """Return the names in `hard` of all groups."""
    return {name for group in context.groups.values() for name in group.spec.hard}


def _unchanged(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether nothing that is charged differs. Such a write is allowed even where it cannot be counted."""
    return _has_same_spec(old, new) and _charged(old) == _charged(new)


def _has_same_spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in ("spec", "template"))


def _owners(obj: Mapping[str, Any]) -> object:
    return (obj.get("metadata") or {}).get("ownerReferences")


def _charged(obj: Mapping[str, Any]) -> tuple[object, ...]:
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    return (
        {key: value for key, value in labels.items() if key == LABEL or key.startswith(LABEL + "/")},
        metadata.get("annotations"),
        _owners(obj),
    )
