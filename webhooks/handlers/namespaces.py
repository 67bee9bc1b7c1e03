"""Admission of the labels of namespaces: the default group, and whether bizrq manages the namespace.

This file alone decides when these may change. The default group pays for the workloads that name no group. It does not
change while it pays, or would then pay, for active workloads: they have not been admitted to the other group. To take a
namespace out of the managed namespaces, or into these, needs the right `manage` on the groups that pay there before or
after.

One race is accepted: a workload that is created while the label changes may be admitted to one group and counted to the
other. The recount reports it there (event Drift).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import RESOURCE_CLAIMS, resource_of, resources_of
from bizrq.units.slot import GROUP_SLOT_KIND
from bizrq.workloads.devices.dra import is_made_for_pod
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL, label_value, labels_of
from bizrq.workloads.ownership.payers import owner_that_pays
from bizrq.workloads.validation import Malformed
from webhooks.charging.active import active_workloads
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import list_stored, readable_reservations
from webhooks.handlers.answer import MAX_NAMED, Answer

Object = dict[str, Any]


class NamespaceHandler:
    """The webhook for the labels of namespaces."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Answer | Verdict:
        """Return the answer to a CREATE or UPDATE of a namespace."""
        was_managed, is_managed = (
            obj is not None and self._manages(obj) for obj in (request.old_object, request.object)
        )
        before = _labelled(request.old_object) if was_managed else None
        after = label_value(labels_of(request.object or {}), LABEL) if is_managed else None
        moves = request.old_object is not None and was_managed != is_managed
        if before == after and not moves:
            return Granted()
        # From then on, new workloads without a label are charged to the group.
        if after is not None:
            refused = await self._context.authorizer.check_use(request, after, deadline)
            if refused is not None:
                return refused
        if request.old_object is not None and not moves:
            active = await self._active_unlabelled(request.name, before, deadline)
            if active:
                return _refused(request.name, before, after, active)
        if moves:
            refused = await self._may_manage(request, {before, after}, deadline)
            if refused is not None:
                return refused
        if after is None or await self._context.groups.read(after, deadline.seconds_left()) is not None:
            return Granted()
        warning = f"quota {after} does not exist: until it does, workloads without a label are refused here"
        return Answer(Granted(), [warning])

    def _manages(self, namespace: Object) -> bool:
        return self._context.registry.scope.manages(namespace)

    async def _may_manage(self, request: Request, defaults: set[str | None], deadline: Deadline) -> Denied | None:
        """Refuse a user without the right on an existing group of these defaults, or one that pays there.

        Raises ApiError, Unreachable.
        """
        named = {group for group in defaults if group is not None} | await self._named_in(request.name, deadline)
        stored = await list_stored(self._context, (GROUPS,), deadline)
        promised = (
            obj["metadata"]["name"]
            for obj in stored
            if any(entry.slot.namespace == request.name for entry in readable_reservations(obj))
        )
        existing = {obj["metadata"]["name"] for obj in stored}
        return await self._context.authorizer.check_manage(request, {*promised, *(named & existing)}, deadline)

    async def _named_in(self, namespace: str, deadline: Deadline) -> set[str]:
        """Return the groups that active workloads and claims of the namespace name."""
        claims = await list_stored(self._context, (RESOURCE_CLAIMS,), deadline, namespace, LABEL)
        found = {group for claim in claims if (group := _labelled(claim)) is not None and not is_made_for_pod(claim)}
        for adapter in self._context.registry.charged:
            items = await list_stored(self._context, resources_of(adapter), deadline, namespace, LABEL)
            items = await active_workloads(items, adapter, self._context, deadline)
            found.update(group for item in items if (group := _labelled(item)) is not None)
        return found

    async def _active_unlabelled(self, namespace: str, group: str | None, deadline: Deadline) -> list[str]:
        """Return up to two workloads there that name no group and that no owner pays for, reserved ones included."""
        found: set[str] = set()
        promised = await self._context.groups.read(group, deadline.seconds_left()) if group is not None else None
        for adapter in self._context.registry.charged:
            found.update(await self._unlabelled(adapter, namespace, deadline))
            if len(found) >= MAX_NAMED:
                return sorted(found)[:MAX_NAMED]
        for entry in readable_reservations(promised) if promised is not None else ():
            if entry.slot.kind != GROUP_SLOT_KIND and entry.slot.namespace == namespace:
                found.add(f"{entry.slot} (admitted a moment ago)")
        return sorted(found)[:MAX_NAMED]

    async def _unlabelled(self, adapter: Adapter, namespace: str, deadline: Deadline) -> list[str]:
        resources = (resource_of(adapter),)
        items = await list_stored(self._context, resources, deadline, namespace, f"!{LABEL}")
        items = await active_workloads(items, adapter, self._context, deadline)
        lookup = await self._context.resolver.resolve(
            lambda known: [owner_that_pays(item, self._context.registry, known) for item in items],
            deadline.seconds_left(),
        )
        free = [item for item in items if owner_that_pays(item, self._context.registry, lookup) is None]
        return [f"{adapter.resource}/{namespace}/{item['metadata']['name']}" for item in free[:MAX_NAMED]]


def _labelled(obj: Object | None) -> str | None:
    """Return the group that the label of a stored object names; a malformed label charges no group."""
    try:
        return label_value(labels_of(obj), LABEL) if obj is not None else None
    except Malformed:
        return None


def _refused(namespace: str, before: str | None, after: str | None, active: Sequence[str]) -> Denied:
    if before is None:
        why = f"would be charged to {after} without having been admitted"
    else:
        why = f"are charged to {before} by it"
    return Denied(
        Reason.CHARGED_HERE,
        f"the label {LABEL} of namespace {namespace} cannot change while workloads without a label {why}: "
        f"{', '.join(active)}; label or delete them first",
    )
