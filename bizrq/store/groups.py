"""The store of groups: a cache fed by a watch, live reads, and guarded status writes.

This file alone decides which version of a group is the newest known, and which groups are its children. It decides
nothing about quota.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.kube.informer import Informer
from bizrq.units.hierarchy import ChildIndex

GROUPS = Resource(wire.API_GROUP, "v1alpha1", wire.PLURAL, wire.KIND, namespaced=False)
#: The selectable field of the definition of groups (KEP-4358).
PARENT_FIELD = "spec.parentBizGroup"


class GroupStore:
    """All groups by name. A read or write may bring a newer version than the watch has."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_change: Callable[[dict[str, Any] | None, dict[str, Any] | None], None] = lambda _old, _new: None,
    ) -> None:
        """`on_change` is called with (old, new) for each change that the watch brings, as by an informer."""
        self._client = client
        self._notify_change = on_change
        self._newest: dict[str, GroupObject] = {}
        self._tree = ChildIndex()
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.informer = Informer(
            client,
            GROUPS,
            on_change=self._on_change,
            on_rollback=self._start_over,
            transform=without_managed_fields,
        )

    @property
    def synced(self) -> bool:
        return self.informer.synced.is_set() and self.informer.installed is not False

    def cached(self, name: str) -> GroupObject | None:
        """Return the newest known version of a group. It may allow a write, but never refuse one."""
        return self._newest.get(name)

    def values(self) -> Collection[GroupObject]:
        """Return the newest known version of each group."""
        return self._newest.values()

    @property
    def is_complete(self) -> bool:
        """Return True: all groups are watched."""
        return True

    @property
    def revision(self) -> int:
        """Return the revision that the watch has reached: each group is known as it was stored then, or later."""
        return self.informer.store.resource_version

    @property
    def by_name(self) -> Mapping[str, GroupObject]:
        """Return the newest known version of each group, as a view that follows changes."""
        return MappingProxyType(self._newest)

    def parent_of(self, name: str) -> str:
        """Return the parent of a known group; "" for a root and for an unknown group."""
        return self._tree.parent(name)

    def child_names(self, name: str) -> Collection[str]:
        """Return the names of the known children of a group, without a scan of all groups."""
        return self._tree.children(name)

    def known_children(self, name: str) -> list[GroupObject]:
        """Return the newest known version of each child of a group."""
        return [self._newest[child] for child in self._tree.children(name)]

    async def read(self, name: str, timeout: float) -> GroupObject | None:
        """Return the stored group, read now, or None if it does not exist. Raise ApiError or Unreachable."""
        try:
            path = GROUPS.path(name=name)
        except ValueError:
            return None
        try:
            body = await self._client.request("GET", path, timeout=timeout)
        except NotFound:
            self._forget(name)
            return None
        return self._learn(wire.decode(body))

    async def children(self, name: str, timeout: float | None = None) -> list[GroupObject]:
        """Return the stored children of a group, read now. Raise ApiError or Unreachable.

        Kubernetes 1.30 rejects the selector with 400, and any version does while the stored definition of groups lacks
        the selectable field. Then the list is of all groups. `timeout` is in seconds, for a page.
        """
        try:
            items, _ = await self._client.list(GROUPS, field_selector=f"{PARENT_FIELD}={name}", timeout=timeout)
        except ApiError as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            items, _ = await self._client.list(GROUPS, timeout=timeout)
        return [child for child in map(wire.from_dict, items) if child.parent == name]

    async def write_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        """Replace the status of the version that `body` names, and return the stored group.

        Raise Conflict, NotFound or another ApiError. After Unreachable the outcome is unknown.
        """
        path = GROUPS.path(name=name, subresource="status")
        return self._learn(wire.decode(await self._client.request("PUT", path, body=body, timeout=timeout)))

    async def merge_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        """Merge a patch into the status of whatever version is stored, and return the stored group.

        The API server itself repeats the patch after a conflict, within milliseconds, so that it passes between the
        writes of a busy group. Raise the same errors as `write_status`.
        """
        path, patch = GROUPS.path(name=name, subresource="status"), "application/merge-patch+json"
        answer = await self._client.request("PATCH", path, body=body, content_type=patch, timeout=timeout)
        return self._learn(wire.decode(answer))

    async def wait_for_change(self, name: str, timeout: float) -> None:
        """Return when a newer version of the group is known, or after `timeout` seconds."""
        event = asyncio.Event()
        self._waiting[name].add(event)
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[name].discard(event)
            if not self._waiting[name]:
                del self._waiting[name]

    def _learn(self, group: GroupObject) -> GroupObject:
        known = self._newest.get(group.name)
        if known is None or known.resource_version < group.resource_version:
            self._newest[group.name] = group
            self._tree.put(group.name, group.parent)
            self._notify(group.name)
        return group

    def _forget(self, name: str) -> None:
        if self._newest.pop(name, None) is not None:
            self._tree.remove(name)
            self._notify(name)

    def _notify(self, name: str) -> None:
        for event in self._waiting.get(name, ()):
            event.set()

    def _start_over(self, before: int, now: int) -> None:
        """Drop every newer version after a restore of the API server's store to an older state."""
        self._newest = {g.name: g for g in map(wire.from_dict, self.informer.store.values())}
        self._tree = ChildIndex()
        for group in self._newest.values():
            self._tree.put(group.name, group.parent)
        for name in list(self._waiting):
            self._notify(name)

    def _on_change(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        if new is not None:
            self._learn(wire.from_dict(new))
        elif old is not None:
            known = self._newest.get(old["metadata"]["name"])
            if known is not None and known.metadata.uid == old["metadata"]["uid"]:
                self._forget(known.name)
        self._notify_change(old, new)


def without_managed_fields(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without managedFields, which no code reads and which multiply its size."""
    obj["metadata"].pop("managedFields", None)
    return obj
