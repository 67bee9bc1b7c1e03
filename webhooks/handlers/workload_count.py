"""The count of a workload's write: which charges it makes, and to which groups.

This file alone decides it. It charges nothing, and a write that cannot be counted raises Malformed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from msgspec import structs

from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Granted, Reason
from bizrq.store.ports import ReferenceLookup
from bizrq.units.resources import Resources, growth
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL, group_of, with_models
from bizrq.workloads.lookup import Lookup, Reference, TrackingLookup
from bizrq.workloads.owners import charged_group, has_same_controller, owner_chain, requires_group
from bizrq.workloads.ownership.memory import leaving_parts
from bizrq.workloads.ownership.own_labels import check_selector
from bizrq.workloads.ownership.payers import Paid, PayerReason, PayingOwner, selector_of
from bizrq.workloads.ownership.waiting import awaits
from bizrq.workloads.pods.roles import as_rerun
from bizrq.workloads.scope import ignored_label
from bizrq.workloads.validation import Malformed
from webhooks.charging.adoption import Adoption
from webhooks.charging.authorization import is_new_in_group
from webhooks.charging.beyond import Beyond, DemandOfWrite
from webhooks.charging.charges import (
    Busy,
    Charges,
    Counted,
    Decided,
    NothingCharged,
    PendingCharge,
    as_intent,
    charge_of,
    display_name,
)
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.grown_children import GrownChildren
from webhooks.charging.owner_trust import OwnerTrust, as_child
from webhooks.charging.payers import Payers
from webhooks.charging.reference_users import CLAIM_TEMPLATE, has_template_of
from webhooks.charging.shared_claims import SharedClaims
from webhooks.charging.stored import is_going, read_versions, stored_demand, stored_label
from webhooks.handlers.answer import subject_of

Object = dict[str, Any]
#: Objects to count by in place of what is read, None for one that does not exist.
Fresh: TypeAlias = Mapping[Reference, Object | None]


class WorkloadWrite(NamedTuple):
    """A reviewed write of a workload; `old` is None for a create.

    `adopts` is what leftovers cost that a create will adopt, by group. Counting adds `warnings` for the person.
    """

    request: Request
    adapter: Adapter
    new: Object
    old: Object | None
    warnings: set[str]
    adopts: Mapping[str, Resources] = MappingProxyType({})


class WorkloadCounter:
    """Counts the writes of workloads."""

    def __init__(
        self,
        context: Context,
        claims: SharedClaims,
        children: GrownChildren,
        owner_trust: OwnerTrust,
        payers: Payers,
        adoption: Adoption,
        beyond: Beyond,
    ) -> None:
        self._context = context
        self._claims = claims
        self._children = children
        self._owner_trust = owner_trust
        self._payers = payers
        self._adoption = adoption
        self._beyond = beyond
        self._registry = context.registry
        self._config = context.config

    async def count(self, write: WorkloadWrite, deadline: Deadline, fresh: Fresh) -> Counted:
        """Count the write as everything else is stored now. Raises Malformed, ApiError, Unreachable."""
        try:
            return await self._count(write, deadline, fresh)
        except Busy as busy:
            return Decided(Denied(Reason.BUSY, str(busy)))

    async def _count(self, write: WorkloadWrite, deadline: Deadline, fresh: Fresh) -> Counted:
        counted: list[tuple[Demand, TrackingLookup]] = []

        def count(found: Lookup) -> None:
            counted.clear()
            counted.append(self.demand(write, found))

        lookup = await self._context.resolver.resolve(count, deadline.seconds_left(), fresh)
        paid, owner = self._payers.of_stored(write.old, lookup), self._payers.owner_after(write.new, write.old, lookup)
        refused = self._label_refused(write, paid)
        if refused is not None:
            return Decided(refused)
        if owner is not None:
            is_unpaid = await self._comes_unpaid(write, paid, lookup, deadline)
            return await self._count_child(write, owner, lookup, deadline, is_unpaid=is_unpaid)
        if paid is not None:
            return await self._count_left(write, paid, lookup, deadline)
        group = charged_group(write.new, self._registry, lookup)
        if group is None and (refused := self._ungrouped_refused(write, lookup)) is not None:
            return Decided(refused, lookup)
        await self._owner_trust.check_stands(
            write.request, write.adapter, write.new, write.old, deadline, is_charged=group is not None
        )
        if stored_label(write.new) is None:
            await self._owner_trust.check_kept(write.request, write.new, deadline)
        if group is None:
            if write.old is not None and (left := await self._payers.of_released(write.old, lookup, deadline)):
                return await self._count_left(write, left, lookup, deadline)
            self._owner_trust.check_above(write.new, write.old, lookup)
            return await self._count_let_loose(write, lookup, deadline)
        children: list[Object] = []
        if write.adapter.grows and write.old is not None:
            children = await self._children.stored(write.adapter, write.old, deadline)
            # Objects that it refers to may have changed meanwhile: count it again.
            counted.clear()
        # What cannot be counted raises here, where a group pays for it.
        own = counted[0] if counted else self.demand(write, lookup)
        return await self._count_own(write, group, own, children, lookup, deadline)

    def demand(self, write: WorkloadWrite, lookup: Lookup) -> tuple[Demand, TrackingLookup]:
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
        demand = counting.own_demand(as_rerun(write.new, write.old, adapter), adapter, asked, self._config)
        counting.check_readable(demand, before)
        return demand, asked

    async def _count_own(
        self,
        write: WorkloadWrite,
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
            counting.check_template_labels(new, adapter, own_demand, group, lookup)
        if stored is None or selector_of(new) != selector_of(old or {}):
            check_selector(new, adapter.group_kind)
        declared = self._children.with_children(own_demand, adapter, children, lookup)
        before = self._children.with_children(stored, adapter, children, lookup) if stored is not None else None
        is_first = old is not None and charged_group(old, self._registry, lookup) is None
        cost = await self._beyond.of(adapter, new, old, declared, before, lookup, deadline, is_first=is_first)
        charge = cost.charge(adapter, write.request, new, old)
        # One without pods needs no template yet, so that its writes find no charge of it.
        user = old if stored is not None and stored.declared else None
        templates = self._new_templates(asked, user, adapter, lookup)
        _check_stay(adapter, asked.asked if charge.growth() else templates, lookup)
        charge = structs.replace(
            charge,
            children=self._promised_beside(adapter),
            adopts=write.adopts.get(group, {}),
            adopts_admitted=adapter.surge is None,
            changes_size=stored is not None and _sizes(stored) != _sizes(own_demand),
            templates=frozenset(name for *_, name in templates),
        )
        # While a child asks for more than the workload does, the child may be about to ask for less.
        hidden = bool(children) and stored is not None and bool(growth(own_demand.resources, stored.resources))
        claims = await self._claims.charges(charge, group, cost.demand, cost.before or NO_DEMAND, lookup, deadline)
        if not (charge.is_new or hidden or charge.may_need_more() or charge.templates):
            unchanged = PendingCharge(group, charge, lookup)
            return _charges(adapter, claims) if claims else Decided(Granted(), lookup, unchanged)
        enters = is_new_in_group(group, charge, new, old, self._registry, lookup)
        is_intent = before is not None and not charge.may_need_more()
        charge = structs.replace(charge, is_new=charge.is_new or hidden or bool(charge.templates), read_versions=seen)
        due = PendingCharge(group, charge, lookup, is_intent=is_intent, is_new_in_group=enters)
        left = self._leaving(write, due, children, lookup) if sees_others else []
        found = _charges(adapter, [*left, *claims, due])
        return replace(found, refers_anew=True) if any(has_template_of(adapter, each) for each in templates) else found

    def _new_templates(
        self, asked: TrackingLookup, stored: Object | None, adapter: Adapter, lookup: Lookup
    ) -> set[Reference]:
        """Return the claim templates and pod templates that a workload comes to name.

        Their writes do not find it by what is stored.
        """
        named = {each for each in asked.asked if each[:2] == CLAIM_TEMPLATE or has_template_of(adapter, each)}
        if named and stored is not None:
            named -= set(counting.references(stored, adapter, lookup, self._config))
        return named

    def _leaving(
        self, write: WorkloadWrite, entering: PendingCharge, children: list[Object], lookup: ReferenceLookup
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
        return [as_intent(PendingCharge(left, structs.replace(entering.charge, demand=held), lookup))]

    def _label_refused(self, write: WorkloadWrite, paid: Paid | None) -> Denied | None:
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

    async def _count_left(
        self, write: WorkloadWrite, paid: Paid, lookup: ReferenceLookup, deadline: Deadline
    ) -> Counted:
        """Count an object that leaves its owner by this write, or that an owner has left.

        If its owner makes another in its place, all of it is growth of the group that pays. Raises Malformed, ApiError,
        Unreachable.
        """
        request, adapter, new, old = write.request, write.adapter, write.new, write.old
        if old is None:
            return Decided(Granted())
        is_left = paid.reason is PayerReason.LEFTOVER
        is_replaced = not is_left and not self._is_not_replaced(paid, old, lookup)
        is_over = is_going(old) if is_left else not is_replaced
        stored = stored_demand(self._context, with_models(old, paid.models), adapter, lookup)
        demand, before = stored, None if is_replaced else stored
        # What asks for no more is let go, even where it cannot be counted.
        cost = DemandOfWrite(demand, before)
        if not (is_over and has_same_spec(old, new)):
            asked, stands = with_models(new, paid.models), with_models(old, paid.models)
            demand = counting.own_demand(asked, adapter, lookup, self._config)
            cost = await self._beyond.of(adapter, asked, stands, demand, before, lookup, deadline)
        charge = cost.charge(adapter, request, new, old)
        is_taken = self._payers.takes_away(new, paid, lookup)
        if is_taken:
            charge = structs.replace(charge, leaving=leaving_parts(paid.place, paid.models))
        if charge.may_need_more():
            whom = f"what leaves {paid.place}, which makes another in its place" if is_replaced else ""
            return _charges(adapter, [PendingCharge(paid.group, charge, lookup, whom)])
        if not is_taken:
            return Decided(Granted())
        # Whoever looks next has to know who paid, even if no controller sees this write.
        return _charges(adapter, [as_intent(PendingCharge(paid.group, charge, lookup))])

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

    async def _comes_unpaid(self, write: WorkloadWrite, paid: Paid | None, lookup: Lookup, deadline: Deadline) -> bool:
        """Return True for a stored object that gets an owner, and that no group has paid for.

        Raises Malformed, ApiError, Unreachable.
        """
        old = write.old
        if old is None or has_same_controller(old, write.new):
            return False
        if paid is not None or charged_group(old, self._registry, lookup) is not None:
            return False
        return await self._payers.of_released(old, lookup, deadline) is None

    async def _count_child(
        self,
        write: WorkloadWrite,
        owner: PayingOwner,
        lookup: ReferenceLookup,
        deadline: Deadline,
        *,
        is_unpaid: bool,
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
        child = await self._owner_trust.untrusted(
            request, adapter, new, old, owner.obj, lookup, deadline, is_unpaid=is_unpaid
        )
        if child is None:
            return await self._children.count(request, adapter, new, old, owner.obj, deadline)
        before = child.before or self._before(old, owner.group, lookup)
        charge = charge_of(adapter, request, new, child.demand, old, before)
        if not charge.is_new and not charge.may_need_more():
            return Decided(Granted())
        enters = child.is_over and is_new_in_group(owner.group, charge, new, old, self._registry, lookup)
        charge = as_child(charge, child, adapter)
        return _charges(adapter, [PendingCharge(owner.group, charge, lookup, is_new_in_group=enters)])

    def _promised_beside(self, adapter: Adapter) -> frozenset[str]:
        """Return the kinds of children whose creates are promised beside what a workload needs itself."""
        kinds = (self._registry.by_kind(*kind) for kind in adapter.creates - adapter.grows)
        return frozenset(kind.resource for kind in kinds if kind is not None)

    def _ungrouped_refused(self, write: WorkloadWrite, lookup: ReferenceLookup) -> Denied | None:
        """Refuse an object that charges no group where every workload has to charge one.

        A stored object that asks for no more is allowed, and any label of one that is being deleted. Raises Malformed.
        """
        request, new, old = write.request, write.new, write.old
        if not requires_group(request.namespace, self._registry, lookup):
            label = group_of(new)
            if label is not None:
                write.warnings.add(ignored_label(label, request.namespace))
            return None
        if old is not None:
            if is_going(old) and has_same_spec(old, new):
                return None
            stored = self._before(old, None, lookup)
            demand = counting.own_demand(new, write.adapter, lookup, self._config)
            if stored is not None and not growth(demand.resources, stored.resources):
                return None
        return Denied(
            Reason.REQUIRED,
            f"namespace {request.namespace} requires a group: label {subject_of(request, write.adapter.kind)} "
            f"{LABEL} with the group that pays for it",
        )

    async def _count_let_loose(
        self, write: WorkloadWrite, lookup: ReferenceLookup, deadline: Deadline
    ) -> Charges | NothingCharged:
        """Count the children of a workload that is to name no group any more, and that name another group themselves.

        From then on their own labels decide: it is growth of those groups. A label that names no group is none. Raises
        Malformed, ApiError, Unreachable.
        """
        request, adapter, new, old = write.request, write.adapter, write.new, write.old
        paying = charged_group(old, self._registry, lookup) if old is not None and adapter.pays else None
        if old is None or paying is None:
            return NothingCharged(lookup)
        found = await self._adoption.pay_themselves(adapter, old, paying, deadline)
        whom = f"what {subject_of(request, adapter.kind)} made that names the group itself"
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
        return Charges(due) if due else NothingCharged(lookup)

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

    A kind that neither refers to others nor grows is counted from its own object alone, unless it shares claims or
    names templates of claims.
    """
    is_final = len(charges) == 1 and not (adapter.refers or adapter.grows or charges[0].charge.templates)
    shares = not is_final and charges[0].charge.is_shared
    return Charges(charges, is_final, precheck=charges[-1] if shares else None)


def _check_stay(adapter: Adapter, asked: Iterable[Reference], lookup: Lookup) -> None:
    """Raise Malformed where the pod templates of a workload are in an object that is being deleted.

    Another may come in its place, and nobody asks what it has.
    """
    for reference in (each for each in asked if has_template_of(adapter, each)):
        found = lookup.get(*reference)
        if found is not None and is_going(found):
            _, kind, _, name = reference
            raise Malformed(f"{kind} {name}, which has the template of its pods, is being deleted: refer to another")


def _sizes(demand: Demand) -> list[Resources]:
    """Return what a pod of each role costs."""
    return [role.per_pod for role in demand.roles]


def has_same_spec(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in ("spec", "template"))
