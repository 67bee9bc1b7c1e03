"""What documents and stored objects refer to, for verbs that count: the files first, then the cluster.

This file alone decides what is read of the cluster for that, each object once, and keeps what nobody let us see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.store.reference_resolver import WATCHED, Known, Related
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import Documents, Reference

Object = dict[str, Any]


class Around(Related):
    """What the documents refer to: one another first, else what the cluster has, read once and watched never."""

    def __init__(self, client: KubeClient, registry: Registry, documents: Sequence[Object]) -> None:
        super().__init__(client, registry)
        self._files = Documents(documents)
        self._found: dict[Reference, list[Object]] = {}
        self._readable |= {(resource.group, resource.kind): (resource,) for resource in WATCHED}
        self.unread: set[str] = set()

    def given(self, place: Reference) -> Object | None:
        """The document of this place, where one of the files has it."""
        return self._files.get(*place)

    @property
    def watched(self) -> Known:
        return _Seen(self._files, self._found)

    async def reread(self, reference: Reference, timeout: float) -> Mapping[Reference, Object | None]:
        """Nothing is older here than this command."""
        return {}

    def _known(self, read: dict[Reference, Object | None], fresh: Mapping[Reference, Object | None]) -> Known:
        return self.watched

    def _is_to_read(self, reference: Reference) -> bool:
        return reference[:2] in self._readable and reference not in self._found

    async def _read_all(self, wanted: Sequence[Reference], timeout: float) -> dict[Reference, Object | None]:
        await asyncio.gather(*(self.read(reference) for reference in wanted))
        return {}

    async def read(self, reference: Reference) -> None:
        """Ask the cluster for what a reference means; raises ApiError, Unreachable."""
        group, kind, namespace, name = reference
        self._found[reference] = []
        for resource in self._readable[group, kind]:
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
                self.unread.add(_told(resource, namespace))
            return


def _told(resource: Resource, namespace: str) -> str:
    return f"{resource.plural} in {namespace}" if namespace else resource.plural


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
