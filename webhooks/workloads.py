"""Admission of whole workloads and of their `/scale`: gather, decide, reserve.

This file alone decides which group a change is charged to and what counts as "nothing worse" (DESIGN 3.5 to 3.11).
It fails closed: what cannot be counted is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from typing import Any

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, KubeClient, NotFound, Unreachable
from bizrq.kube.related import Related, resource_of
from bizrq.quota.ledger import Charge, Role, Slot
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.workloads import counting
from bizrq.workloads.adapters import Adapter, Registry
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.counting import NONE, Demand
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.owners import charged_group, payer
from webhooks.reserve import Reserver
from webhooks.rights import Rights, joins

_UID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


class Workloads:
    """The webhook for workload objects and for their scale."""

    def __init__(
        self,
        client: KubeClient,
        reserver: Reserver,
        related: Related,
        rights: Rights,
        registry: Registry,
        config: CountingConfig,
        *,
        exempt: Collection[str] = (),
    ) -> None:
        """`exempt` are the namespaces whose `/scale` is not reviewed: nothing there can be charged."""
        self._client = client
        self._exempt = exempt
        self._reserver = reserver
        self._related = related
        self._rights = rights
        self._registry = registry
        self._config = config

    async def admit(self, request: Request, deadline: float) -> Verdict:
        """The verdict on a CREATE or UPDATE of a workload object."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if (
            adapter is None
            or not self._registry.is_charged(adapter)
            or request.operation not in ("CREATE", "UPDATE")
            or request.sub_resource
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
                resource_of(adapter, request.resource.version), request.name, request.namespace, timeout=_left(deadline)
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
        self, request: Request, adapter: Adapter, new: dict[str, Any], old: dict[str, Any] | None, deadline: float
    ) -> Verdict:
        if charged_group(new, self._related.watched) is None or (old is not None and _unchanged(old, new)):
            return Granted()
        try:
            lookup = await self._related.resolve(lambda found: self._count(new, old, found), _left(deadline))
        except (ApiError, Unreachable) as error:
            return _unread(f"what {adapter.kind} {_named(request)} refers to", error)
        group = charged_group(new, lookup)
        if group is None or payer(new, self._registry, lookup) is not None:
            return Granted()
        demand = counting.demand(new, self._registry, lookup, self._config)
        before = self._before(old, group, lookup)
        if before is None:
            if request.namespace in self._exempt:
                return Denied(
                    Reason.EXEMPT,
                    f"workloads of namespace {request.namespace} cannot be charged to a group: "
                    f"remove the label {LABEL}",
                )
            counting.check_template_labels(new, adapter, group)
        charge = charge_of(adapter, request, new, demand, old, before)
        if not charge.enters and not charge.worse_in():
            return Granted()
        decide = self._reserver.consider if request.dry_run else self._reserver.reserve
        new_here = joins(group, charge, new, old, self._registry, lookup)
        return await self._rights.charge(request, group, charge, new_here, lookup, deadline, decide)

    def _count(self, new: dict[str, Any], old: dict[str, Any] | None, lookup: Lookup) -> None:
        """Ask for both demands, so that what they refer to becomes known."""
        if old is not None:
            self._before(old, charged_group(old, lookup), lookup)
        counting.demand(new, self._registry, lookup, self._config)

    def _before(self, old: dict[str, Any] | None, group: str | None, lookup: Lookup) -> Demand | None:
        """What the stored object costs this group; None where it costs it nothing, not being there or elsewhere."""
        if old is None or charged_group(old, lookup) != group or payer(old, self._registry, lookup) is not None:
            return None
        try:
            return counting.demand(old, self._registry, lookup, self._config)
        except Malformed:
            return NONE


def charge_of(
    adapter: Adapter,
    request: Request,
    new: Mapping[str, Any],
    demand: Demand,
    old: Mapping[str, Any] | None,
    before: Demand | None,
) -> Charge:
    """The change in the terms of the group that pays; raises Malformed for an unreadable resourceVersion."""
    metadata = new.get("metadata") or {}
    uid = str(metadata.get("uid", "")) or str(((old or {}).get("metadata") or {}).get("uid", "")) or request.uid
    if not _UID.fullmatch(uid):
        raise Malformed(f"metadata.uid: {uid[:64]!r} is no uid of an object")
    version = None
    if old is not None:
        text = str((old.get("metadata") or {}).get("resourceVersion", ""))
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise Malformed(f"metadata.resourceVersion: {text[:64]!r} is no version of a stored object")
        version = int(text)
    return Charge(
        slot=Slot(adapter.resource, request.namespace, request.name or str(metadata.get("name", ""))),
        uid=uid,
        resource_version=version,
        demand=demand.resources,
        before=before.resources if before else {},
        enters=before is None,
        roles=_roles(demand),
        roles_before=_roles(before) if before else (),
        missing=demand.missing,
    )


def _roles(demand: Demand) -> tuple[Role, ...]:
    return tuple(Role(role.name, role.replicas, role.per_pod) for role in demand.roles)


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


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
