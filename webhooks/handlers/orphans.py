"""Deleting a workload without its children: `kubectl delete --cascade=orphan`.

This file alone decides when that is refused: where a child would be left that costs something and that no group pays
for. A labelled child pays for itself from then on, so a labelled template may be orphaned. Only deletions that orphan
are reviewed (`registration.ORPHANING`).

A child that is made between this check and the deletion, or orphaned while no webhook was running, is still counted to
the group by the controller, which remembers who paid (`controller/watch/releases.py`).
"""

from __future__ import annotations

from typing import Any

from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.reference_resolver import resource_of
from bizrq.workloads.demand.owner_allowance import child_demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import charged_group, controller_of, payer
from bizrq.workloads.validation import Malformed
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import list_stored
from webhooks.handlers.answer import subject_of

Object = dict[str, Any]


class OrphanHandler:
    """The webhook for deletions of workloads that leave children behind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on a DELETE that orphans."""
        registry, obj = self._context.registry, request.old_object
        adapter = registry.by_kind(request.kind.group, request.kind.kind)
        if adapter is None or obj is None or not adapter.pays or not registry.is_charged(adapter):
            return Granted()
        try:
            lookup = await self._context.resolver.resolve(
                lambda found: payer(obj, registry, found), deadline.seconds_left()
            )
            above = payer(obj, registry, lookup)
            group = charged_group(above if above is not None else obj, lookup)
            left = await self._unpaid_child(adapter, obj, deadline) if group is not None else None
        except Malformed:
            # A malformed label charges no group.
            return Granted()
        if left is None:
            return Granted()
        return Denied(
            Reason.ORPHANS,
            f"{subject_of(request)} pays for {left}, which no group would pay for without it:"
            f" label its pod template {LABEL}: {group} and delete it once all its pods have that, "
            "or delete it without orphaning them",
        )

    async def _unpaid_child(self, adapter: Adapter, owner: Object, deadline: Deadline) -> str | None:
        """Return a child that costs something and that no label charges to a group; None where there is none."""
        for group, kind in sorted(adapter.creates):
            made = self._context.registry.by_kind(group, kind)
            if made is None:
                continue
            namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]
            found = await list_stored(self._context, (resource_of(made),), deadline, namespace)
            for item in [item for item in found if _owner_uid(item) == uid]:
                lookup = await self._context.resolver.resolve(
                    lambda known, item=item, made=made: self._escapes(item, made, owner, known), deadline.seconds_left()
                )
                if self._escapes(item, made, owner, lookup):
                    return f"{kind} {item['metadata']['name']}"
        return None

    def _escapes(self, child: Object, adapter: Adapter, owner: Object, lookup: Lookup) -> bool:
        if charged_group(child, lookup) is not None or child["metadata"].get("deletionTimestamp"):
            return False
        try:
            return bool(child_demand(child, adapter, owner, lookup, self._context.config).resources)
        except Malformed:
            return True


def _owner_uid(item: Object) -> object:
    reference = controller_of(item["metadata"])
    return reference.get("uid") if reference is not None else None
