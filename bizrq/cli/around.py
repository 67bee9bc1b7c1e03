"""What documents and stored objects refer to, for verbs that count: the files first, then the cluster.

This file alone decides what is read of the cluster for that, each object once, and keeps what nobody let us see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.related import READ, WATCHED, Known, Related, resources_of
from bizrq.workloads.adapters import Registry
from bizrq.workloads.lookup import Documents, Lookup, Recording, Reference

Object = dict[str, Any]

#: As admission: an object that keeps asking for more is not followed for ever.
_ROUNDS = 5


class Around(Related):
    """What the documents refer to: one another first, else what the cluster has, read once."""

    def __init__(self, client: KubeClient, registry: Registry, documents: Sequence[Object]) -> None:
        super().__init__(client, registry)
        self._files = Documents(documents)
        self._found: dict[Reference, list[Object]] = {}
        kinds = {(resource.group, resource.kind): (resource,) for resource in (*READ, *WATCHED)}
        kinds |= {(adapter.group, adapter.kind): resources_of(adapter) for adapter in registry.adapters}
        self._resources: dict[tuple[str, str], tuple[Resource, ...]] = kinds
        self.unread: set[str] = set()

    def given(self, place: Reference) -> Object | None:
        """The document of this place, where one of the files has it."""
        return self._files.get(*place)

    @property
    def watched(self) -> Known:
        return _Seen(self._files, self._found)

    async def resolve(
        self,
        count: Callable[[Lookup], object],
        timeout: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> Known:
        for _ in range(_ROUNDS):
            recording = Recording(self.watched)
            with contextlib.suppress(ValueError):
                count(recording)
            wanted = [ref for ref in recording.asked if ref[:2] in self._resources and ref not in self._found]
            if not wanted:
                break
            await asyncio.gather(*(self.read(reference) for reference in wanted))
        return self.watched

    async def reread(self, reference: Reference, timeout: float) -> Mapping[Reference, Object | None]:
        """Nothing is older here than this command."""
        return {}

    async def read(self, reference: Reference) -> None:
        """Ask the cluster for what a reference means; raises ApiError, Unreachable."""
        group, kind, namespace, name = reference
        self._found[reference] = []
        for resource in self._resources[group, kind]:
            try:
                if name:
                    self._found[reference] = [await self._client.get(resource, name, namespace or None)]
                else:
                    self._found[reference] = (await self._client.list(resource, namespace or None))[0]
            except NotFound:
                # Another version of the kind may be served.
                continue
            except ValueError:
                pass
            except Forbidden:
                self.unread.add(f"{resource.plural} in {namespace}" if namespace else resource.plural)
            return


class _Seen(Known):
    """The files' documents before the cluster's objects, as the pure core asks for them."""

    def __init__(self, files: Documents, found: Mapping[Reference, list[Object]]) -> None:
        super().__init__({}, {})
        self._files = files
        self._found = found

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        given = self._files.get(group, kind, namespace, name)
        if given is not None:
            return given
        return next(iter(self._found.get((group, kind, namespace, name), ())), None)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        given = self._files.all_of(group, kind, namespace)
        names = {obj["metadata"]["name"] for obj in given}
        stored = self._found.get((group, kind, namespace, ""), ())
        return [*given, *(obj for obj in stored if obj["metadata"]["name"] not in names)]
