"""The objects to which workloads refer: kept by a watch if they are few, else read on demand.

This file alone decides whether a reference is answered from memory or by a read, and when a watched object is current.
It does not know what the answer means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource, Unreachable, revision_of
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.shared_reads import SharedReads
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import ALL_NODES, Lookup, OverlayLookup, Reference, TrackingLookup

Object = dict[str, Any]

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
#: Small kinds that affect every pod of a namespace or of the cluster. A watch spares each admission a list.
WATCHED = (
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    NAMESPACES,
)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
#: The revisions of a StatefulSet's template.
REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
#: Kinds to which workloads refer by name, charged or not. The controller watches them, so that it can wait for a write
#: and recount the users of the object. A kind that is not installed is no error.
CONTEXT = (
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("", "v1", "podtemplates", "PodTemplate"),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    RESOURCE_CLAIMS,
    Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"),
)
#: Nodes decide what DaemonSets cost, and show which cards pods have. The controller watches them.
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
#: The kind that shows the allocated devices of pods. The controller watches it.
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
#: Kinds of referenced objects in addition to the charged kinds. Without a watch they are read each time, so that no
#: answer is stale.
READ = (
    *CONTEXT,
    REVISIONS,
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
)
_NEEDED = frozenset((resource.group, resource.kind) for resource in READ)
#: The most rounds of reads for one object. Most are done after two: each asks for what the last one has found.
_ROUNDS = 20
#: Seconds that a read which several wait for may take.
_SHARED_READ = 5.0


def resource_of(adapter: Adapter, version: str = "") -> Resource:
    """Return the resource of a kind of workload, by default in the first of its versions."""
    return Resource(adapter.group, version or adapter.versions[0], adapter.plural, adapter.kind)


def resources_of(adapter: Adapter) -> tuple[Resource, ...]:
    """Return the resource in each version of the kind. The first version that a cluster serves has all objects."""
    return tuple(resource_of(adapter, version) for version in adapter.versions)


class _Newer(NamedTuple):
    """What a read found that the watch has not shown: all objects of a reference, at a revision of an epoch."""

    objects: Sequence[Object]
    revision: int
    epoch: int


class ReferenceResolver:
    """Resolve references from watched objects, and from the API server for all others."""

    def __init__(
        self,
        client: KubeClient,
        registry: Registry,
        *,
        on_change: Callable[[Object | None, Object | None], None] = lambda _old, _new: None,
        on_write: Callable[[Object | None, Object | None], None] = lambda _old, _new: None,
        kept: Mapping[GroupKind, Informer] = MappingProxyType({}),
    ) -> None:
        """`registry` has the kinds that may own one another; `kept` are informers of the caller.

        `on_change` and `on_write` are those of the informers that the resolver adds.
        """
        self._client = client
        self._readable = {(resource.group, resource.kind): (resource,) for resource in READ}
        self._readable[NODES.group, NODES.kind] = (NODES,)
        self._readable |= {adapter.group_kind: resources_of(adapter) for adapter in registry.adapters}
        self._own = {
            (resource.group, resource.kind): Informer(
                client,
                resource,
                on_change=on_change,
                on_write=on_write,
                indexes={"namespace": _namespace},
                transform=without_managed_fields,
            )
            for resource in WATCHED
        }
        self._watched = {**kept, **self._own}
        #: What is newer than the watches. An entry counts until its watch has reached the entry's revision.
        self._newer: dict[Reference, _Newer] = {}
        self._reads = SharedReads(self._read_current)

    def resource_of_kind(self, group: str, kind: str) -> Resource | None:
        """Return the resource of a kind that counting may ask for by name; None for any other kind."""
        found = self._readable.get((group, kind))
        return found[0] if found else None

    @property
    def informers(self) -> Sequence[Informer]:
        """Return the informers that the resolver added, for the caller to run."""
        return list(self._own.values())

    @property
    def synced(self) -> bool:
        """Return True after the first list of each of its informers."""
        return all(informer.synced.is_set() for informer in self.informers)

    def informer_of(self, kind: GroupKind) -> Informer:
        """Return the informer of a watched kind. Raise KeyError for any other kind."""
        return self._watched[kind]

    @property
    def cached_lookup(self) -> ResolvedLookup:
        """Return a lookup that answers from memory alone."""
        return ResolvedLookup(self, {})

    async def resolve(
        self,
        count: Callable[[Lookup], object],
        timeout: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> ResolvedLookup:
        """Return a lookup that answers every question of `count`, and read what is not in memory.

        Nothing awaits after the last call of `count`, which gets the answers of the returned lookup. `fresh` holds
        objects that were read before; they take precedence over watched ones. Errors of `count` are ignored, since the
        caller's own count raises them again. Raise ApiError or Unreachable.
        """
        read: dict[Reference, Object | None] = {}
        answers: dict[Reference, Sequence[Object]] = {}
        for _ in range(_ROUNDS):
            recording = TrackingLookup(self._known(read, fresh, answers))
            with contextlib.suppress(ValueError):
                count(recording)
            wanted = [ref for ref in recording.asked if ref not in read and ref not in fresh and self._is_to_read(ref)]
            if not wanted:
                break
            read |= await self._read_all(wanted, timeout)
        else:
            with contextlib.suppress(ValueError):
                count(self._known(read, fresh, answers))
        return self._known(read, fresh, answers)

    async def is_current(self, lookup: Lookup, references: Collection[Reference], timeout: float) -> bool:
        """Return True if the lookup answered these watched references as they are stored now.

        Otherwise the lookups that follow have newer answers. All who ask for one reference at a moment share a read.
        Raise ApiError or Unreachable.
        """
        while isinstance(lookup, OverlayLookup):
            lookup = lookup.beneath
        if not isinstance(lookup, ResolvedLookup):
            return True
        answered = [reference for reference in references if reference in lookup.watched]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*map(self._reads.of, answered))
        except TimeoutError:
            raise Unreachable(f"{self._client.server} did not answer in time", sent=True) from None
        return all(_same(lookup.answered(reference), self.watched_now(reference)) for reference in answered)

    @property
    def is_ahead(self) -> bool:
        """Return True if something is known that a watch has not shown."""
        return bool(self._newer)

    def watching(self, kind: GroupKind) -> Informer | None:
        """Return the informer of a watched kind, None for any other kind."""
        return self._watched.get(kind)

    def watched_now(self, reference: Reference) -> Sequence[Object]:
        """Return the newest known objects of a watched kind: the one of this name, or all of the namespace."""
        group, kind, namespace, name = reference
        store = self._watched[group, kind].store
        if self._newer and (newer := self._newer.get(reference)) is not None:
            if store.epoch == newer.epoch and store.resource_version < newer.revision:
                return newer.objects
            del self._newer[reference]
        if not name:
            return list(store.index("namespace", namespace))
        found = store.get(name, namespace or None)
        return [found] if found is not None else ()

    async def _read_current(self, reference: Reference) -> None:
        """Read a watched reference, and keep what the watch has not shown. Raise ApiError or Unreachable."""
        group, kind, namespace, name = reference
        informer = self._watched[group, kind]
        epoch = informer.store.epoch
        # A list says of which revision an absence is.
        items, revision = await self._client.list(
            informer.resource,
            namespace or None,
            field_selector=f"metadata.name={name}" if name else None,
            timeout=_SHARED_READ,
            transform=without_managed_fields,
        )
        if not _same(items, self.watched_now(reference)):
            self._newer[reference] = _Newer(items, revision_of({"metadata": {"resourceVersion": revision}}), epoch)

    def _known(
        self,
        read: dict[Reference, Object | None],
        fresh: Mapping[Reference, Object | None],
        answers: dict[Reference, Sequence[Object]],
    ) -> ResolvedLookup:
        """Return a lookup of the watched objects and of those read for one count."""
        return ResolvedLookup(self, read, fresh, answers)

    def _is_to_read(self, reference: Reference) -> bool:
        """Return True for a reference to one object, or to all nodes, of a kind that is not watched."""
        kind = reference[:2]
        return (bool(reference[3]) or reference == ALL_NODES) and kind in self._readable and kind not in self._watched

    async def _read_all(self, wanted: Sequence[Reference], timeout: float) -> dict[Reference, Object | None]:
        """Return the stored objects, None for one that does not exist. Raise ApiError or Unreachable."""
        return {reference: await self._read(reference, timeout) for reference in wanted}

    async def _read(self, reference: Reference, timeout: float) -> Object | None:
        if reference == ALL_NODES:
            # Without the right to read nodes this raises: unknown nodes are not zero nodes.
            nodes, _ = await self._client.list(NODES, timeout=timeout, transform=_placing)
            return {"items": nodes}
        group, kind, namespace, name = reference
        for resource in self._readable[group, kind]:
            try:
                return await self._client.get(resource, name, namespace or None, timeout=timeout)
            except NotFound:
                continue
            except ValueError:
                return None
            except Forbidden:
                if (group, kind) in _NEEDED:
                    raise
                # The owner is of a kind without a right to read it. An unreadable owner exempts nothing.
                return None
        return None


class ResolvedLookup:
    """Answer the lookups of the core from watched objects and from objects that were read.

    A list that was read stands in `read` or `fresh` as `{"items": […]}`. With `answers`, the first answer from a watch
    is kept for each reference.
    """

    def __init__(
        self,
        resolver: ReferenceResolver,
        read: dict[Reference, Object | None],
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
        answers: dict[Reference, Sequence[Object]] | None = None,
    ) -> None:
        self._resolver = resolver
        self._read = read
        self._fresh = fresh
        self._answers = answers

    @property
    def has_read(self) -> bool:
        """Return True if an answer depends on an object that no watch keeps current."""
        return bool(self._read)

    @property
    def watched(self) -> Collection[Reference]:
        """Return the references that were answered from a watch, which may be behind."""
        return (self._answers or {}).keys()

    def answered(self, reference: Reference) -> Sequence[Object]:
        """Return the first answer from a watch. Raise KeyError where there was none."""
        return (self._answers or {})[reference]

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        reference = group, kind, namespace, name
        if reference in self._fresh:
            return self._fresh[reference]
        informer = self._resolver.watching((group, kind))
        if informer is None:
            return self._read.get(reference)
        if self._answers is None and not self._resolver.is_ahead:
            return informer.store.get(name, namespace or None)
        return next(iter(self._watched(reference)), None) if name else None

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        reference = group, kind, namespace, ""
        listed = self._fresh.get(reference) or self._read.get(reference)
        if listed is not None:
            return listed["items"]
        return self._watched(reference) if self._resolver.watching((group, kind)) is not None else ()

    def _watched(self, reference: Reference) -> Sequence[Object]:
        found = self._resolver.watched_now(reference)
        if self._answers is not None:
            self._answers.setdefault(reference, found)
        return found


def _same(some: Iterable[Object], others: Iterable[Object]) -> bool:
    """Return True for the same objects in any order."""
    by_uid, by_uid_too = ({obj["metadata"]["uid"]: obj for obj in objects} for objects in (some, others))
    return by_uid == by_uid_too


def _placing(node: Object) -> Object:
    """Reduce a node to the fields that decide which pods it takes."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {"taints": spec.get("taints") or []},
    }


def _namespace(obj: Object) -> list[str]:
    return [obj["metadata"].get("namespace", "")]
