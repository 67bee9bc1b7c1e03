"""Deleting a workload without its children: `kubectl delete --cascade=orphan`.

This file alone decides when that is refused: where a child would be left that asks for something and that nobody pays
for. A labelled child pays for itself from then on, so whoever labels the template may orphan. The API server only asks
about deletions that orphan (`registration.ORPHANING`), so that no other depends on us.

What is made between the look and the deletion, or orphaned while no webhook was there, the controller counts to the
group all the same as long as it has seen it paid (`controller/watch/detached.py`).
"""

from __future__ import annotations

from typing import Any

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.ports import ObjectReader, ReferenceReader
from bizrq.store.reference_resolver import resource_of
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.owner_allowance import child_demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import charged_group, controller_of, payer
from bizrq.workloads.validation import Malformed
from webhooks.charging.deadline import seconds_left

Object = dict[str, Any]


class OrphanHandler:
    """The webhook for deletions of workloads that leave children behind."""

    def __init__(
        self, client: ObjectReader, resolver: ReferenceReader, registry: Registry, config: CountingConfig
    ) -> None:
        self._client = client
        self._resolver = resolver
        self._registry = registry
        self._config = config

    async def admit(self, request: Request, deadline: float) -> Verdict:
        """The verdict on a DELETE that orphans."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        obj = request.old_object
        if request.operation != "DELETE" or adapter is None or obj is None or request.sub_resource:
            return Granted()
        try:
            lookup = await self._resolver.resolve(
                lambda found: payer(obj, self._registry, found), seconds_left(deadline)
            )
            above = payer(obj, self._registry, lookup)
            group = charged_group(above if above is not None else obj, lookup)
            if group is None or not adapter.pays or not self._registry.is_charged(adapter):
                return Granted()
            left = await self._left_to_nobody(adapter, obj, deadline)
        except Malformed:
            # A label that is none charges nobody.
            return Granted()
        except (ApiError, Unreachable) as error:
            what = f"what {adapter.kind} {request.namespace}/{request.name} made"
            return Denied(Reason.TIMEOUT, f"{what} could not be read, try again: {error}")
        if left is None:
            return Granted()
        return Denied(
            Reason.ORPHANS,
            f"{adapter.kind} {request.namespace}/{request.name} pays for {left}, which nobody would pay for without it:"
            f" label its pod template {LABEL}: {group} and delete it once all its pods have that, "
            "or delete it without orphaning them",
        )

    async def _left_to_nobody(self, adapter: Adapter, owner: Object, deadline: float) -> str | None:
        """One child that asks for something and names no group, nor is in a namespace that does; None without one."""
        for group, kind in sorted(adapter.creates):
            made = self._registry.by_kind(group, kind)
            if made is None:
                continue
            namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]
            try:
                found, _ = await self._client.list(resource_of(made), namespace, timeout=seconds_left(deadline))
            except NotFound:
                continue
            for item in [item for item in found if _owner_uid(item) == uid]:
                lookup = await self._resolver.resolve(
                    lambda known, item=item, made=made: self._escapes(item, made, owner, known), seconds_left(deadline)
                )
                if self._escapes(item, made, owner, lookup):
                    return f"{kind} {item['metadata']['name']}"
        return None

    def _escapes(self, child: Object, adapter: Adapter, owner: Object, lookup: Lookup) -> bool:
        if charged_group(child, lookup) is not None or child["metadata"].get("deletionTimestamp"):
            return False
        try:
            return bool(child_demand(child, adapter, owner, lookup, self._config).resources)
        except Malformed:
            return True


def _owner_uid(item: Object) -> object:
    reference = controller_of(item["metadata"])
    return reference.get("uid") if reference is not None else None
