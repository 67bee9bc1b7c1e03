"""Admission of groups: gather the family, ask the tree's rules, charge the parent.

This file alone decides what has to be gathered about a group's change. It fails closed. The rules themselves stand
in `bizrq.quota.group_validation`, and whether the parent can bear it is the ledger's question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bizrq.api import group as wire
from bizrq.api import selector
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import Request
from bizrq.api.selector import SelectorError
from bizrq.kube.client import ApiError, NotFound, Resource, Unreachable
from bizrq.quota import group_validation
from bizrq.quota.change import Charge
from bizrq.quota.group_validation import Group, GroupWrite
from bizrq.quota.recount import held_by_child
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.ports import GroupReader, ObjectReader, ReferenceReader
from bizrq.store.reference_resolver import CONTEXT, NAMESPACES, resources_of
from bizrq.units.names import Catalog
from bizrq.units.slot import GROUP_SLOT_KIND, group_slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices.dra import CLAIM, claim_group
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL
from bizrq.workloads.owners import controller_of, payer
from webhooks.charging.active import active_workloads
from webhooks.charging.authorization import Authorizer, expands_budget
from webhooks.charging.deadline import seconds_left
from webhooks.charging.group_commit import Reserver

#: A deletion's refusal names this many children or workloads.
MAX_NAMED = 2


_CLAIMS = next(resource for resource in CONTEXT if (resource.group, resource.kind) == CLAIM)


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict with what a person should be warned of."""

    verdict: Verdict
    warnings: Sequence[str] = ()


class GroupHandler:
    """The webhook for BizGroupResourceQuota."""

    def __init__(
        self,
        client: ObjectReader,
        store: GroupReader,
        reserver: Reserver,
        resolver: ReferenceReader,
        authorizer: Authorizer,
        registry: Registry,
        config: CountingConfig,
        *,
        catalog: Catalog,
    ) -> None:
        self._client = client
        self._store = store
        self._reserver = reserver
        self._resolver = resolver
        self._authorizer = authorizer
        self._registry = registry
        self._config = config
        self._catalog = catalog

    async def admit(self, request: Request, deadline: float) -> Answer:
        """The answer to a CREATE, UPDATE or DELETE of a group."""
        if request.sub_resource:
            return Answer(Granted())
        try:
            if request.operation == "DELETE":
                return Answer(await self._delete(request, deadline))
            if request.operation in ("CREATE", "UPDATE"):
                return await self._write(request, deadline)
        except GroupUnreadable as error:
            return Answer(Denied(Reason.MALFORMED, str(error)))
        except (ApiError, Unreachable) as error:
            return Answer(
                Denied(Reason.TIMEOUT, f"group {request.name}: its family could not be read, try again: {error}")
            )
        return Answer(Granted())

    async def _write(self, request: Request, deadline: float) -> Answer:
        stored = wire.from_dict(request.old_object) if request.old_object is not None else None
        try:
            asked = wire.from_dict(request.object or {})
        except GroupUnreadable as error:
            return Answer(Denied(Reason.BAD_HARD, str(error)))
        if stored is not None and stored.spec == asked.spec:
            return Answer(Granted())
        try:
            new = self._asked(asked, stored)
        except GroupUnreadable as error:
            return Answer(Denied(Reason.BAD_HARD, str(error)))
        old = self._old(stored)
        # A `hard` that cannot be read never let anything in: to repair it is to create it.
        unread = stored is not None and old is not None and stored.spec.hard and not old.hard
        grants = stored is not None and stored.spec.cash != asked.spec.cash
        if grants or expands_budget(new, None if unread else old):
            verb = "create" if stored is None else "raise"
            if (
                denied := await self._authorizer.check_grant(request, verb, new.name, new.parent, deadline)
            ) is not None:
                return Answer(denied)
        change = GroupWrite(
            new,
            old,
            children=await self._children(new, old),
            selector_error=_selector_error(asked, stored),
            cash_error=_cash_error(asked, stored, self._catalog),
        )
        if stored is not None and not request.dry_run:
            await self._reserver.request_hold(stored, deadline)
        verdict = await self._charge_parent(request, change, stored, deadline)
        warning = group_validation.lowered_below(new, _taken(new)) if isinstance(verdict, Granted) else None
        return Answer(verdict, [warning] if warning else [])

    async def _charge_parent(
        self, request: Request, change: GroupWrite, stored: GroupObject | None, deadline: float
    ) -> Verdict:
        """The tree's verdict, and where the parent has to give more, its account's, both on one version of it."""
        new, old = change.new, change.old
        alone = group_validation.validate_alone(change)
        if not new.parent:
            return alone or Granted()

        def check(parent: GroupObject) -> Denied | None:
            try:
                return group_validation.validate(_beside(change, wire.group_state(parent, self._catalog)))
            except GroupUnreadable as error:
                return Denied(Reason.NOT_RECONCILED, f"the parent of group {new.name} cannot be read: {error}")

        charge = Charge(
            slot=group_slot(new.name),
            uid=str(((request.object or {}).get("metadata") or {}).get("uid", "")) or request.uid,
            resource_version=stored.resource_version if stored else None,
            demand=_held(new),
            before=_held(old) if old else {},
            # A name that goes has to be seen by an edit of the parent, as a new child has.
            is_new=old is None or bool(set(old.hard) - set(new.hard)),
        )
        if not charge.is_new and not charge.growth():
            return alone or Granted()
        if alone is not None:
            return await self._broken_rules(change, deadline) or alone
        decide = self._reserver.decider(request)
        verdict = await decide(new.parent, charge, deadline, check)
        if isinstance(verdict, Denied) and verdict.reason is Reason.NO_GROUP:
            return group_validation.parent_exists(change) or verdict
        return verdict

    async def _broken_rules(self, change: GroupWrite, deadline: float) -> Denied | None:
        """Return the refusal with the parent's rules too; None where the parent cannot be decoded."""
        with suppress(GroupUnreadable):
            stored = await self._store.read(change.new.parent, seconds_left(deadline))
            parent = wire.group_state(stored, self._catalog) if stored is not None else None
            return group_validation.validate(replace(change, parent=parent))
        return None

    def _asked(self, asked: GroupObject, stored: GroupObject | None) -> Group:
        """The group as it would be: the spec that is asked for with the status that is stored."""
        return Group(
            name=asked.name,
            parent=asked.parent,
            hard=wire.hard_of(asked, self._catalog),
            used=wire.parse_amounts(stored, stored.status.used) if stored else {},
            reservations=wire.reservations_of(stored) if stored else (),
            has_schedule=wire.has_schedule(asked),
        )

    def _old(self, stored: GroupObject | None) -> Group | None:
        """The stored group; one whose `hard` cannot be read never got anything from its parent."""
        if stored is None:
            return None
        try:
            return wire.group_state(stored, self._catalog)
        except GroupUnreadable:
            return Group(stored.name, stored.parent, {})

    async def _children(self, new: Group, old: Group | None) -> list[Group]:
        """The children that an update's new names must find, those among them that are only promised yet too."""
        if old is None or not set(new.hard) - set(old.hard):
            return []
        stored = [wire.group_state(child, self._catalog) for child in await self._store.children(new.name)]
        promised = [Group(e.slot.name, new.name, e.amount) for e in new.reservations if e.slot.kind == GROUP_SLOT_KIND]
        return [*stored, *promised]

    async def _delete(self, request: Request, deadline: float) -> Verdict:
        if request.old_object is None:
            return Denied(Reason.MALFORMED, "a DELETE review must carry oldObject")
        stored = wire.from_dict(request.old_object)
        if (
            denied := await self._authorizer.check_grant(request, "delete", stored.name, stored.parent, deadline)
        ) is not None:
            return denied
        promised = [entry.slot for entry in wire.reservations_of(stored)]
        children = {child.name for child in await self._store.children(stored.name)}
        children |= {slot.name for slot in promised if slot.kind == GROUP_SLOT_KIND}
        workloads = {str(slot) for slot in promised if slot.kind != GROUP_SLOT_KIND}
        workloads |= {str(slot) for slot, _ in wire.detached_of(stored)}
        if not children and len(workloads) < MAX_NAMED:
            named = await self._stored((NAMESPACES,), f"{LABEL}={stored.name}", deadline)
            namespaces = [namespace["metadata"]["name"] for namespace in named]
            # All kinds at once: the API server takes its time over each, and asks again if the group moved meanwhile.
            kinds = (self._charged(adapter, stored.name, namespaces, deadline) for adapter in self._registry.charged)
            workloads.update(*await asyncio.gather(self._claims(stored.name, deadline), *kinds))
        return (
            group_validation.validate(
                group_validation.GroupDelete(Group(stored.name, "", {}), sorted(children), sorted(workloads))
            )
            or Granted()
        )

    async def _charged(self, adapter: Adapter, group: str, namespaces: Sequence[str], deadline: float) -> list[str]:
        """Up to two stored workloads of a kind that are charged to the group, the default of these namespaces."""
        resources = resources_of(adapter)
        items = await self._stored(resources, f"{LABEL}={group}", deadline)
        for namespace in namespaces:
            items += await self._stored(resources, f"!{LABEL}", deadline, namespace)
        found: list[str] = []
        for item in await active_workloads(items, adapter, self._client, self._resolver, self._config, deadline):
            if not await self._is_paid(item, deadline):
                found.append(f"{adapter.resource}/{item['metadata']['namespace']}/{item['metadata']['name']}")
                if len(found) == MAX_NAMED:
                    break
        return found

    async def _claims(self, group: str, deadline: float) -> list[str]:
        """Claims that name the group themselves."""
        found = await self._stored((_CLAIMS,), f"{LABEL}={group}", deadline)
        places = (claim["metadata"] for claim in found if claim_group(claim) is not None)
        return [f"{_CLAIMS.key}/{place['namespace']}/{place['name']}" for place in places]

    async def _stored(
        self, resources: Sequence[Resource], selector: str, deadline: float, namespace: str | None = None
    ) -> list[dict[str, Any]]:
        """The stored objects of a kind, in the first of these versions that is served; none where none is."""
        for resource in resources:
            with suppress(NotFound):
                left = seconds_left(deadline)
                return (await self._client.list(resource, namespace, label_selector=selector, timeout=left))[0]
        return []

    async def _is_paid(self, item: dict[str, Any], deadline: float) -> bool:
        """Whether something above the object pays for it."""
        if controller_of(item["metadata"]) is None:
            return False
        lookup = await self._resolver.resolve(lambda found: payer(item, self._registry, found), seconds_left(deadline))
        return payer(item, self._registry, lookup) is not None


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


def _beside(change: GroupWrite, parent: Group) -> GroupWrite:
    return replace(change, parent=parent)


def _held(group: Group) -> dict[str, int]:
    """What the group holds of its parent; a name that it gives as 0 stays, so that the entry carries it."""
    return held_by_child(group.hard, group.used, group.reservations)


def _taken(group: Group) -> Mapping[str, int]:
    return held_by_child(dict.fromkeys(group.hard, 0), group.used, group.reservations)
