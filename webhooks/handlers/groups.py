"""Admission of groups: gather the family, validate the write, charge the parent.

This file alone decides what must be gathered for a group's write. `bizrq.quota.group_validation` has the rules, and
`bizrq.quota.admission` decides whether the growth fits the parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from bizrq.api import group as wire
from bizrq.api import selector
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import Request
from bizrq.api.selector import SelectorError
from bizrq.quota import group_validation
from bizrq.quota.allowance import without_lines
from bizrq.quota.change import Charge
from bizrq.quota.group_validation import Group, GroupWrite
from bizrq.quota.recount import held_by_child
from bizrq.quota.verdict import Denied, Figures, Granted, Reason, Verdict, all_ending, already_exists, unreadable
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import NAMESPACES, RESOURCE_CLAIMS, resources_of
from bizrq.units.names import Catalog
from bizrq.units.resources import growth
from bizrq.units.slot import GROUP_SLOT_KIND, group_slot
from bizrq.workloads.devices.dra import claim_group
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.payers import owner_that_pays
from webhooks.charging.active import active_workloads
from webhooks.charging.authorization import held_of_parent
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import list_stored
from webhooks.handlers.answer import MAX_NAMED, Answer


class GroupHandler:
    """The webhook for BizGroupResourceQuota."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Answer:
        """Return the answer to a CREATE, UPDATE or DELETE of a group."""
        try:
            if request.operation == "DELETE":
                return Answer(await self._delete(request, deadline))
            return await self._write(request, deadline)
        except GroupUnreadable as error:
            # The error names the group or a child.
            hidden = f"group {request.name} or one of its children cannot be read: ask who manages it"
            return Answer(Denied(Reason.MALFORMED, str(error), figures=Figures(request.name, hidden)))

    async def _write(self, request: Request, deadline: Deadline) -> Answer:
        stored = wire.from_dict(request.old_object) if request.old_object is not None else None
        try:
            asked = wire.from_dict(request.object or {})
        except GroupUnreadable as error:
            return Answer(Denied(Reason.BAD_HARD, str(error)))
        keeps_spec = stored is not None and stored.spec == asked.spec
        if keeps_spec and _end_of_life(request.object) == _end_of_life(request.old_object):
            return Answer(Granted())
        try:
            new = None if keeps_spec or self._is_harmless(asked, stored) else self._asked(asked, stored)
        except GroupUnreadable as error:
            return Answer(Denied(Reason.BAD_HARD, str(error)))
        verb, known = ("create", asked) if stored is None else ("change", stored)
        denied = await self._context.authorizer.check_grant(request, verb, known.name, known.parent, deadline)
        if denied is not None or new is None:
            return Answer(denied or Granted())
        return await self._charge(request, asked, stored, new, deadline)

    async def _charge(
        self, request: Request, asked: GroupObject, stored: GroupObject | None, new: Group, deadline: Deadline
    ) -> Answer:
        """Return the answer to a create, or to a change of the spec, that the user may make."""
        old = self._old(stored)
        change = GroupWrite(
            new,
            old,
            children=await self._children(new, old),
            selector_error=_selector_error(asked, stored),
            cash_error=_cash_error(asked, stored, self._context.catalog),
        )
        if stored is not None and not request.dry_run:
            # What is noted by an allowance is decided on the group as it was.
            if (busy := await self._recall(stored, deadline)) is not None:
                return Answer(busy)
            await self._context.reserver.request_hold(stored, deadline.at)
        verdict = await self._charge_parent(request, change, stored, deadline)
        warning = group_validation.lowered_below(new, _taken(new)) if isinstance(verdict, Granted) else None
        if warning is None:
            return Answer(verdict)
        return Answer(verdict, [warning], Figures(new.name, group_validation.is_over(new.name)))

    async def _charge_parent(
        self, request: Request, change: GroupWrite, stored: GroupObject | None, deadline: Deadline
    ) -> Verdict:
        """Validate the write and charge the parent for its growth, both on one version of the parent."""
        new, old = change.new, change.old
        alone = group_validation.validate_alone(change)
        if not new.parent:
            return alone or Granted()

        def check(parent: GroupObject) -> Denied | None:
            try:
                return group_validation.validate(
                    replace(change, parent=wire.group_state(parent, self._context.catalog))
                )
            except GroupUnreadable as error:
                subject = f"the parent of group {new.name} cannot be read"
                return unreadable(Reason.NOT_RECONCILED, new.parent, subject, str(error))

        charge = Charge(
            slot=group_slot(new.name),
            uid=str(((request.object or {}).get("metadata") or {}).get("uid", "")) or request.uid,
            resource_version=stored.resource_version if stored else None,
            generation=stored.metadata.generation if stored else None,
            demand=held_of_parent(new),
            before=held_of_parent(old) if old else {},
            # An edit of the parent has to see a removed name, as it has to see a new child.
            is_new=old is None or bool(set(old.hard) - set(new.hard)),
        )
        if not charge.is_new and not charge.growth():
            return alone or Granted()
        if alone is not None:
            return await self._broken_rules(change, deadline) or alone
        if stored is None and (taken := await self._name_is_taken(new.name, deadline)) is not None:
            return taken
        decide = self._context.reserver.decider(request)
        verdict = await decide(new.parent, charge, deadline.at, check)
        if isinstance(verdict, Denied) and verdict.reason is Reason.NO_GROUP:
            return group_validation.parent_exists(change) or verdict
        return verdict

    async def _name_is_taken(self, name: str, deadline: Deadline) -> Denied | None:
        """Refuse to create a group that is there: its reservation would keep the parent's room for a minute."""
        groups = self._context.groups
        if groups.cached(name) is None or await groups.read(name, deadline.seconds_left()) is None:
            return None
        return already_exists(GROUPS.key, name)

    async def _broken_rules(self, change: GroupWrite, deadline: Deadline) -> Denied | None:
        """Return the refusal with the parent's rules too; None where the parent cannot be decoded."""
        with suppress(GroupUnreadable):
            stored = await self._context.groups.read(change.new.parent, deadline.seconds_left())
            parent = wire.group_state(stored, self._context.catalog) if stored is not None else None
            return group_validation.validate(replace(change, parent=parent))
        return None

    def _is_harmless(self, asked: GroupObject, stored: GroupObject | None) -> bool:
        """Return True for an edit that asks for no more while the group's entries cannot be read.

        A newer version may have written them. Until they are gone the parent is unknown, too, and gets no room by it.
        """
        if stored is None:
            return False
        try:
            wire.reservations_of(stored)
        except GroupUnreadable:
            before, after = (wire.hard_of(group, self._context.catalog) for group in (stored, asked))
            old = stored.spec
            alike = msgspec.structs.replace(asked.spec, hard=old.hard, owner=old.owner, contact=old.contact)
            return alike == old and after.keys() == before.keys() and not growth(after, before)
        return False

    def _asked(self, asked: GroupObject, stored: GroupObject | None) -> Group:
        """Return the group as it would be: the requested spec with the stored status."""
        return Group(
            name=asked.name,
            parent=asked.parent,
            hard=wire.hard_of(asked, self._context.catalog),
            used=wire.parse_amounts(stored, stored.status.used) if stored else {},
            reservations=wire.reservations_of(stored) if stored else (),
            has_schedule=wire.has_schedule(asked),
        )

    def _old(self, stored: GroupObject | None) -> Group | None:
        """Return the stored group; one with an unreadable `hard` holds nothing of its parent."""
        if stored is None:
            return None
        try:
            return wire.group_state(stored, self._context.catalog)
        except GroupUnreadable:
            return Group(stored.name, stored.parent, {})

    async def _recall(self, stored: GroupObject, deadline: Deadline) -> Denied | None:
        """Take back what processes hold ahead of a group; returns why that did not succeed."""
        recaller = self._context.recaller
        return await recaller.recall_all(stored, deadline) if recaller is not None else None

    async def _children(self, new: Group, old: Group | None) -> list[Group]:
        """Return the children to check an update's new names against, reserved ones included."""
        if old is None or not set(new.hard) - set(old.hard):
            return []
        stored = [_child_state(child, self._context.catalog) for child in await self._context.groups.children(new.name)]
        promised = [Group(e.slot.name, new.name, e.amount) for e in new.reservations if e.slot.kind == GROUP_SLOT_KIND]
        return [*stored, *promised]

    async def _delete(self, request: Request, deadline: Deadline) -> Verdict:
        stored = wire.from_dict(request.old_object or {})
        if (
            denied := await self._context.authorizer.check_grant(
                request, "delete", stored.name, stored.parent, deadline
            )
        ) is not None:
            return denied
        if not request.dry_run and (busy := await self._recall(stored, deadline)) is not None:
            return busy
        promised = [entry.slot for entry in without_lines(wire.reservations_of(stored))]
        children = {child.name for child in await self._context.groups.children(stored.name)}
        children |= {slot.name for slot in promised if slot.kind == GROUP_SLOT_KIND}
        workloads = {str(slot) for slot in promised if slot.kind != GROUP_SLOT_KIND}
        workloads |= {line.partition(" ")[0] for line in stored.status.leftovers}
        workloads |= {str(slot) for slot, _ in wire.detached_of(stored)}
        if not children and len(workloads) < MAX_NAMED:
            named = await list_stored(self._context, (NAMESPACES,), deadline, None, f"{LABEL}={stored.name}")
            manages = self._context.registry.scope.manages
            namespaces = [namespace["metadata"]["name"] for namespace in named if manages(namespace)]
            # All kinds at once: each list takes a while, and the API server asks again if the group changes meanwhile.
            kinds = (
                self._charged(adapter, stored.name, namespaces, deadline) for adapter in self._context.registry.charged
            )
            workloads.update(*await asyncio.gather(self._claims(stored.name, deadline), *kinds))
        return (
            group_validation.validate(
                group_validation.GroupDelete(
                    Group(stored.name, "", {}), sorted(children), sorted(workloads), all_ending(stored.status.ending)
                )
            )
            or Granted()
        )

    async def _charged(self, adapter: Adapter, group: str, namespaces: Sequence[str], deadline: Deadline) -> list[str]:
        """Return up to two stored workloads of a kind that the group pays for, by label or by these namespaces."""
        resources = resources_of(adapter)
        items = await list_stored(self._context, resources, deadline, None, f"{LABEL}={group}")
        for namespace in namespaces:
            items += await list_stored(self._context, resources, deadline, namespace, f"!{LABEL}")
        found: list[str] = []
        for item in await active_workloads(items, adapter, self._context, deadline):
            if await self._is_managed(item, deadline) and not await self._is_paid(item, deadline):
                found.append(f"{adapter.resource}/{item['metadata']['namespace']}/{item['metadata']['name']}")
                if len(found) == MAX_NAMED:
                    break
        return found

    async def _claims(self, group: str, deadline: Deadline) -> list[str]:
        """Return the claims that name the group."""
        found = await list_stored(self._context, (RESOURCE_CLAIMS,), deadline, None, f"{LABEL}={group}")
        named = (claim for claim in found if claim_group(claim) is not None)
        places = [claim["metadata"] for claim in named if await self._is_managed(claim, deadline)]
        return [f"{RESOURCE_CLAIMS.key}/{place['namespace']}/{place['name']}" for place in places]

    async def _is_managed(self, item: dict[str, Any], deadline: Deadline) -> bool:
        """Return whether the label of an object decides anything."""
        scope, namespace = self._context.registry.scope, item["metadata"]["namespace"]
        lookup = await self._context.resolver.resolve(
            lambda found: scope.manages_named(namespace, found), deadline.seconds_left()
        )
        return scope.manages_named(namespace, lookup)

    async def _is_paid(self, item: dict[str, Any], deadline: Deadline) -> bool:
        """Return whether an owner pays for the object."""
        if controller_of(item["metadata"]) is None:
            return False
        registry = self._context.registry
        lookup = await self._context.resolver.resolve(
            lambda found: owner_that_pays(item, registry, found), deadline.seconds_left()
        )
        return owner_that_pays(item, registry, lookup) is not None


def _child_state(child: GroupObject, catalog: Catalog) -> Group:
    """Return a child. Raise GroupUnreadable without a quote: it is for people who may read the parent."""
    try:
        return wire.group_state(child, catalog)
    except GroupUnreadable:
        raise GroupUnreadable(f"child {child.name} cannot be read: ask who manages it") from None


def _end_of_life(obj: Mapping[str, Any] | None) -> tuple[object, object]:
    """Return what of a group's metadata decides when it ends: its finalizers, and the owners that it goes with."""
    metadata = (obj or {}).get("metadata") or {}
    return metadata.get("finalizers") or [], metadata.get("ownerReferences") or []


def _selector_error(asked: GroupObject, stored: GroupObject | None) -> str:
    """Return why a namespaceSelector that the write changes cannot be read; a stored one does not block an edit."""
    given = asked.spec.namespace_selector
    if given is None or (stored is not None and stored.spec.namespace_selector == given):
        return ""
    try:
        selector.validate(given)
    except SelectorError as error:
        return f"group {asked.name}: spec.namespaceSelector: {error}"
    return ""


def _cash_error(asked: GroupObject, stored: GroupObject | None, catalog: Catalog) -> str:
    """Return why a spec.cash that the write changes cannot be read; a stored one does not block an edit."""
    if stored is not None and stored.spec.cash == asked.spec.cash:
        return ""
    try:
        wire.terms_of(asked, catalog)
    except GroupUnreadable as error:
        return str(error)
    return ""


def _taken(group: Group) -> Mapping[str, int]:
    return held_by_child(dict.fromkeys(group.hard, 0), group.used, group.reservations)
