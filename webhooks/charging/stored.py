"""Stored objects that a charge is counted from: list them, count them, note their versions.

This file alone decides what a stored object counts that cannot be read: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.client import NotFound, Resource
from bizrq.quota.reservation import Reservation
from bizrq.store.reference_resolver import resources_of
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import Lookup, Reference, group_and_version
from bizrq.workloads.validation import Malformed
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline

Object = dict[str, Any]

PODS = Resource("", "v1", "pods", "Pod")


async def list_stored(
    context: Context,
    resources: Sequence[Resource],
    deadline: Deadline,
    namespace: str | None = None,
    label_selector: str | None = None,
    *,
    current: bool = True,
) -> list[Object]:
    """List the objects of a kind in the first of its versions that is served; return none where none is.

    Raises ApiError, Unreachable.
    """
    return await _list_served(context, resources, deadline, namespace, label_selector, current=current) or []


async def is_served(context: Context, adapter: Adapter, namespace: str, deadline: Deadline) -> bool:
    """Return True for a kind of which the cluster serves some version. Raises ApiError, Unreachable."""
    return await _list_served(context, resources_of(adapter), deadline, namespace) is not None


async def _list_served(
    context: Context, resources: Sequence[Resource], deadline: Deadline, *where: str | None, current: bool = True
) -> list[Object] | None:
    for resource in resources:
        with suppress(NotFound):
            objects, _ = await context.lists.of(resource, deadline, *where, current=current)
            return objects
    return None


async def read_stored(
    context: Context, resources: Iterable[Resource], namespace: str, name: str, deadline: Deadline
) -> Object | None:
    """Read an object of a kind in the first of its versions that is served; None where there is none.

    Raises ApiError, Unreachable.
    """
    for resource in resources:
        with suppress(NotFound):
            return await context.client.get(resource, name, namespace, timeout=deadline.seconds_left())
    return None


async def list_kinds(
    context: Context, kinds: Iterable[Adapter], namespace: str, deadline: Deadline, *, current: bool = True
) -> list[tuple[Adapter, Object]]:
    """List the objects of several kinds in a namespace, all kinds at once. Raises ApiError, Unreachable."""

    async def of(adapter: Adapter) -> list[tuple[Adapter, Object]]:
        found = await list_stored(context, resources_of(adapter), deadline, namespace, current=current)
        return [(adapter, obj) for obj in found]

    lists = await asyncio.gather(*(of(adapter) for adapter in kinds))
    return [found for each in lists for found in each]


def stored_demand(context: Context, obj: Object, adapter: Adapter, lookup: Lookup) -> Demand:
    """Return what a stored object asks for itself; one that cannot be counted counts as nothing."""
    try:
        return counting.own_demand(obj, adapter, lookup, context.config)
    except Malformed:
        return NO_DEMAND


def stored_label(obj: Object) -> str | None:
    """Return the group that a stored object names; None for a label that cannot be read."""
    try:
        return group_of(obj)
    except Malformed:
        return None


def is_going(obj: Mapping[str, Any]) -> bool:
    """Return True if a stored object is being deleted."""
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def slot_of(context: Context, obj: Mapping[str, Any]) -> Slot | None:
    """Return the slot of an object, None for a kind that counting never reads."""
    group, _ = group_and_version(obj.get("apiVersion"))
    resource = context.resolver.resource_of_kind(group, str(obj.get("kind")))
    metadata = obj.get("metadata") or {}
    return resource and Slot(resource.key, metadata.get("namespace", ""), metadata.get("name", ""))


def read_versions(
    context: Context, asked: Iterable[Reference], lookup: Lookup, others: Iterable[Object] = ()
) -> dict[Slot, tuple[str, int]]:
    """Return uid and version of the objects that counting asked for by name, and of `others`, by slot."""
    named = [lookup.get(*reference) for reference in asked if reference[3]]
    objects = [obj for obj in named if obj is not None]
    return {
        slot: version
        for obj in (*objects, *others)
        if (slot := slot_of(context, obj)) and (version := _version_of(obj))
    }


def readable_reservations(group: GroupObject | Object) -> Sequence[Reservation]:
    """Return what a stored group has reserved; nothing where that cannot be read, since such a group grants nothing."""
    try:
        return wire.reservations_of(group if isinstance(group, GroupObject) else wire.from_dict(group))
    except GroupUnreadable:
        return ()


def _version_of(obj: Mapping[str, Any]) -> tuple[str, int] | None:
    metadata = obj.get("metadata") or {}
    uid, version = metadata.get("uid"), str(metadata.get("resourceVersion", ""))
    return (uid, int(version)) if isinstance(uid, str) and version.isascii() and version.isdigit() else None
