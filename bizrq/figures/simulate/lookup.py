"""The objects to which manifests and workloads refer: from the files first, then from the cluster.

This file alone decides what the command reads from the cluster for counting. It reads each object once, and keeps a
list of what the user may not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.store.payers import PAYERS, KnownPayers, read_payers
from bizrq.store.ports import ObjectReader
from bizrq.store.reference_resolver import NODES, READ, WATCHED, resources_of
from bizrq.workloads.kinds.declaration import GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import DocumentLookup, Lookup, Reference, TrackingLookup

Object = dict[str, Any]

#: What an answer supposes where the user may not read who paid for what is left.
RELEASED = f"you may not read {PAYERS.plural}: if an owner has released it, another group may pay for it"

#: Rounds of reading. An object refers to few others; one that refers to more and more is not followed further.
_ROUNDS = 5


class FileLookup:
    """A ReferenceLookup of the files' documents, and of the cluster's objects where the files have none."""

    def __init__(self, files: DocumentLookup, stored: Mapping[Reference, Sequence[Object]]) -> None:
        self._files = files
        self._stored = stored

    @property
    def has_read(self) -> bool:
        """Return True if an object comes from the cluster: no watch keeps it current."""
        return bool(self._stored)

    @property
    def watched(self) -> Collection[Reference]:
        """Return nothing: the command watches nothing."""
        return ()

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        written = self._files.get(group, kind, namespace, name)
        if written is not None:
            return written
        return next(iter(self._stored.get((group, kind, namespace, name), ())), None)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        written = self._files.all_of(group, kind, namespace)
        names = {obj["metadata"]["name"] for obj in written}
        stored = self._stored.get((group, kind, namespace, ""), ())
        return [*written, *(obj for obj in stored if obj["metadata"]["name"] not in names)]


class FileReferenceReader:
    """A ReferenceReader that reads each object once and watches none. `unread` names what the user may not read."""

    def __init__(self, client: ObjectReader, registry: Registry, documents: Sequence[Object]) -> None:
        self._client = client
        self._files = DocumentLookup(documents)
        self._readable = {(resource.group, resource.kind): (resource,) for resource in (*READ, *WATCHED, NODES)}
        self._readable |= {adapter.group_kind: resources_of(adapter) for adapter in registry.adapters}
        self._stored: dict[Reference, list[Object]] = {}
        #: What may not be read, by place, in words.
        self._denied: dict[Reference, str] = {}
        #: What was asked for of it.
        self.unread: set[str] = set()

    def note(self, place: Reference) -> None:
        """Remember that an answer depends on this place, if the user may not read it."""
        if place in self._denied:
            self.unread.add(self._denied[place])

    def deny(self, place: Reference, what: str) -> None:
        """Remember that the user may not read a place, and that an answer depends on it."""
        self._denied[place] = what
        self.unread.add(what)

    def document(self, place: Reference) -> Object | None:
        """Return the document of this place, or None if no file has it."""
        return self._files.get(*place)

    def resource_of_kind(self, group: str, kind: str) -> Resource | None:
        found = self._readable.get((group, kind))
        return found[0] if found else None

    @property
    def cached_lookup(self) -> FileLookup:
        return FileLookup(self._files, self._stored)

    async def resolve(
        self,
        count: Callable[[Lookup], object],
        timeout: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> FileLookup:
        """Read what `count` asks for, until it asks for nothing more; its last call has all answers.

        Raise ApiError or Unreachable. The client's own timeout bounds each read. `fresh` is always empty, because
        `reread` finds nothing newer.
        """
        for _ in range(_ROUNDS):
            tracking = TrackingLookup(self.cached_lookup)
            with contextlib.suppress(ValueError):
                count(tracking)
            for asked in tracking.asked:
                self.note(asked)
            missing = [ref for ref in tracking.asked if ref[:2] in self._readable and ref not in self._stored]
            if not missing:
                break
            await asyncio.gather(*map(self.read, missing))
        else:
            with contextlib.suppress(ValueError):
                count(self.cached_lookup)
        return self.cached_lookup

    async def is_current(self, lookup: Lookup, references: Collection[Reference], timeout: float) -> bool:
        """Return True: every object was read by this command, so none is out of date."""
        return True

    async def read(self, reference: Reference) -> None:
        """Read one object, or all objects of a kind in a namespace. Raise ApiError or Unreachable."""
        group, kind, namespace, name = reference
        self._stored[reference] = []
        for resource in self._readable[group, kind]:
            try:
                if name:
                    self._stored[reference] = [await self._client.get(resource, name, namespace or None)]
                else:
                    self._stored[reference] = (await self._client.list(resource, namespace or None))[0]
            except NotFound:
                # The cluster may serve another version of the kind.
                continue
            except ValueError:
                pass
            except Forbidden:
                self.deny(reference, describe_unread(resource, namespace))
            return


async def readable_payers(
    client: KubeClient, registry: Registry, groups: Iterable[GroupObject], kinds: Iterable[GroupKind], unread: set[str]
) -> KnownPayers:
    """Return who paid for what is left of workloads, for objects of these kinds.

    Nobody where the user may not read that, added to `unread`; nothing is left of a kind that no other kind makes.
    Raise ApiError or Unreachable.
    """
    made = {kind for adapter in registry.adapters for kind in adapter.creates}
    if made.isdisjoint(kinds):
        return KnownPayers()
    try:
        return await read_payers(client, registry, groups)
    except Forbidden:
        unread.add(PAYERS.plural)
        return KnownPayers()


def describe_unread(resource: Resource, namespace: str) -> str:
    return f"{resource.plural} in {namespace}" if namespace else resource.plural
