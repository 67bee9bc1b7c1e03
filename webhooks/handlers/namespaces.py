"""What a namespace says about the workloads in it that name no group: their default group, or that they must name one.

This file alone decides when those labels of a Namespace may change. While workloads stand there that the default pays
for, or that it would pay for from then on, it may not: nobody would have admitted them to the other group.

The race that is accepted: a workload that is created while the label changes is decided by the one webhook before, and
counted by the controller after. It was admitted to some group, and the recount tells the other one (event Drift).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.verdict import Denied, Granted, Reason
from bizrq.store.ports import GroupReader, ObjectReader, ReferenceReader
from bizrq.store.reference_resolver import resource_of
from bizrq.units.slot import GROUP_SLOT_KIND
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, label_value, labels_of
from bizrq.workloads.owners import payer
from bizrq.workloads.validation import Malformed
from webhooks.charging.active import active_workloads
from webhooks.charging.authorization import Authorizer
from webhooks.charging.deadline import seconds_left
from webhooks.handlers.groups import MAX_NAMED, Answer

Object = dict[str, Any]


class NamespaceHandler:
    """The webhook for the labels of namespaces."""

    def __init__(
        self,
        client: ObjectReader,
        store: GroupReader,
        resolver: ReferenceReader,
        authorizer: Authorizer,
        registry: Registry,
        config: CountingConfig,
    ) -> None:
        self._client = client
        self._store = store
        self._resolver = resolver
        self._authorizer = authorizer
        self._registry = registry
        self._config = config

    async def admit(self, request: Request, deadline: float) -> Answer:
        """The answer to a CREATE or UPDATE of a namespace."""
        if request.operation not in ("CREATE", "UPDATE") or request.object is None or request.sub_resource:
            return Answer(Granted())
        try:
            before = _default(request.old_object)
            after = label_value(labels_of(request.object), LABEL)
        except Malformed as error:
            return Answer(Denied(Reason.MALFORMED, f"namespace {request.name}: {error}"))
        try:
            # Whatever comes there without a label is brought into the group.
            if after is not None and before != after:
                refused = await self._authorizer.check_use(request, after, deadline)
                if refused is not None:
                    return Answer(refused)
            if before != after and request.old_object is not None:
                standing = await self._active_unlabelled(request.name, before, deadline)
                if standing:
                    return Answer(_refused(request.name, before, after, standing))
            if after is None or before == after or await self._store.read(after, seconds_left(deadline)) is not None:
                return Answer(Granted())
        except (ApiError, Unreachable) as error:
            what = f"what namespace {request.name} charges"
            return Answer(Denied(Reason.TIMEOUT, f"{what} could not be read, try again: {error}"))
        warning = f"quota {after} does not exist: until it does, workloads without a label are refused here"
        return Answer(Granted(), [warning])

    async def _active_unlabelled(self, namespace: str, group: str | None, deadline: float) -> list[str]:
        """Up to two workloads there that name no group and pay for themselves, those among them that are promised."""
        found: set[str] = set()
        promised = await self._store.read(group, seconds_left(deadline)) if group is not None else None
        for adapter in self._registry.charged:
            found.update(await self._unlabelled(adapter, namespace, deadline))
            if len(found) >= MAX_NAMED:
                return sorted(found)[:MAX_NAMED]
        if promised is not None:
            try:
                entries = wire.reservations_of(promised)
            except GroupUnreadable:
                return sorted(found)
            for entry in entries:
                if entry.slot.kind != GROUP_SLOT_KIND and entry.slot.namespace == namespace:
                    found.add(f"{entry.slot} (admitted a moment ago)")
        return sorted(found)[:MAX_NAMED]

    async def _unlabelled(self, adapter: Adapter, namespace: str, deadline: float) -> list[str]:
        try:
            items, _ = await self._client.list(
                resource_of(adapter), namespace, label_selector=f"!{LABEL}", timeout=seconds_left(deadline)
            )
        except NotFound:
            return []
        items = await active_workloads(items, adapter, self._client, self._resolver, self._config, deadline)
        lookup = await self._resolver.resolve(
            lambda known: [payer(item, self._registry, known) for item in items], seconds_left(deadline)
        )
        free = [item for item in items if payer(item, self._registry, lookup) is None]
        return [f"{adapter.resource}/{namespace}/{item['metadata']['name']}" for item in free[:MAX_NAMED]]


def _default(namespace: Object | None) -> str | None:
    """The default group of a stored namespace; a label that is none charges nobody."""
    try:
        return label_value(labels_of(namespace), LABEL) if namespace is not None else None
    except Malformed:
        return None


def _refused(namespace: str, before: str | None, after: str | None, standing: Sequence[str]) -> Denied:
    if before is None:
        why = f"would be charged to {after} without having been admitted"
    else:
        why = f"are charged to {before} by it"
    return Denied(
        Reason.CHARGED_HERE,
        f"the label {LABEL} of namespace {namespace} cannot change while workloads without a label {why}: "
        f"{', '.join(standing)}; label or delete them first",
    )
