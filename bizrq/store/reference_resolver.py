"""Objects that counting refers to: kept by watch where they are few, read when asked for otherwise.

This file alone decides where a reference is answered from. It does not know what the answer means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import Lookup, Reference, TrackingLookup

Object = dict[str, Any]

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
#: Small kinds that bear on every pod of a namespace or of the cluster: watched, so that no admission has to list.
WATCHED = (
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    NAMESPACES,
)
#: What workloads refer to by name, charged itself or not: the controller watches it, so that a write of it can be
#: awaited and changes what its users cost. A kind that is not installed is no error.
CONTEXT = (
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("", "v1", "podtemplates", "PodTemplate"),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
)
#: What tells which devices pods really have: the controller watches it. No count waits for it.
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
#: Kinds that a workload names one of, besides those that are counted: where they are not watched they are read each
#: time, so that no answer is old.
READ = (
    *CONTEXT,
    Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
)
_NEEDED = frozenset((resource.group, resource.kind) for resource in READ)
#: A counted object refers to few others; one that keeps asking for more is not followed for ever.
_ROUNDS = 5


def resource_of(adapter: Adapter, version: str = "") -> Resource:
    """Where a kind of workload is stored; in the first of its versions where none is asked for."""
    return Resource(adapter.group, version or adapter.versions[0], adapter.plural, adapter.kind)


def resources_of(adapter: Adapter) -> tuple[Resource, ...]:
    """The same in each of its versions, of which a cluster may serve any: the first that is served has all objects."""
    return tuple(resource_of(adapter, version) for version in adapter.versions)


class ReferenceResolver:
    """The cluster as counting sees it."""

    def __init__(
        self,
        client: KubeClient,
        registry: Registry,
        *,
        on_change: Callable[[Object | None, Object | None], None] = lambda _old, _new: None,
        on_write: Callable[[Object | None, Object | None], None] = lambda _old, _new: None,
        kept: Mapping[GroupKind, Informer] = MappingProxyType({}),
    ) -> None:
        """`registry` has the kinds that may own one another, `kept` those that the caller watches anyway."""
        self._client = client
        self._readable = {(resource.group, resource.kind): (resource,) for resource in READ}
        self._readable |= {(adapter.group, adapter.kind): resources_of(adapter) for adapter in registry.adapters}
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

    def resource_of_kind(self, group: str, kind: str) -> Resource | None:
        """Where a kind is stored that counting may ask for by name; None for one that it never reads."""
        found = self._readable.get((group, kind))
        return found[0] if found else None

    @property
    def informers(self) -> Sequence[Informer]:
        """Those that are its own, for the caller to run."""
        return list(self._own.values())

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers)

    def informer_of(self, kind: GroupKind) -> Informer:
        """The informer of a kind that is watched. KeyError for any other."""
        return self._watched[kind]

    @property
    def cached_lookup(self) -> ResolvedLookup:
        """What can be answered without asking anybody."""
        return ResolvedLookup(self._watched, {})

    async def resolve(
        self,
        count: Callable[[Lookup], object],
        timeout: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> ResolvedLookup:
        """A lookup that answers everything `count` asks for; what has to be read is read now. `count` is called last
        with what has the same answers, and nothing awaits from then on.

        `fresh` has been read already, and stands above what is watched. What `count` raises is its own affair: it will
        raise it again. Raises ApiError, Unreachable.
        """
        read: dict[Reference, Object | None] = {}
        for _ in range(_ROUNDS):
            recording = TrackingLookup(self._known(read, fresh))
            with contextlib.suppress(ValueError):
                count(recording)
            wanted = [ref for ref in recording.asked if ref not in read and self._is_to_read(ref)]
            if not wanted:
                break
            read |= await self._read_all(wanted, timeout)
        else:
            with contextlib.suppress(ValueError):
                count(self._known(read, fresh))
        return self._known(read, fresh)

    async def reread(self, reference: Reference, timeout: float) -> Mapping[Reference, Object | None]:
        """What is stored of one object that is watched, where its watch says something else; for `resolve`.

        Raises ApiError, Unreachable.
        """
        group, kind, namespace, name = reference
        resource = next(r for r in WATCHED if (r.group, r.kind) == (group, kind))
        try:
            stored = without_managed_fields(await self._client.get(resource, name, namespace or None, timeout=timeout))
        except NotFound:
            stored = None
        return {} if stored == self.cached_lookup.get(*reference) else {reference: stored}

    def _known(self, read: dict[Reference, Object | None], fresh: Mapping[Reference, Object | None]) -> ResolvedLookup:
        """What can be answered with what has been read for one count."""
        return ResolvedLookup(self._watched, read, fresh)

    def _is_to_read(self, reference: Reference) -> bool:
        """Whether somebody has to be asked for it: one object, of a kind that is not watched."""
        kind = reference[:2]
        return bool(reference[3]) and kind in self._readable and kind not in self._watched

    async def _read_all(self, wanted: Sequence[Reference], timeout: float) -> dict[Reference, Object | None]:
        """The objects that stand there now, None for none. Raises ApiError, Unreachable."""
        return {reference: await self._read(reference, timeout) for reference in wanted}

    async def _read(self, reference: Reference, timeout: float) -> Object | None:
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
                # An owner of a kind that nobody gave us the right to read: what cannot be seen exempts nothing.
                return None
        return None


class ResolvedLookup:
    """What is watched and what has been read, as the pure core asks for it."""

    def __init__(
        self,
        watched: dict[tuple[str, str], Informer],
        read: dict[Reference, Object | None],
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> None:
        self._watched = watched
        self._read = read
        self._fresh = fresh

    @property
    def has_read(self) -> bool:
        """Whether the answer depends on an object that nobody watches here."""
        return bool(self._read)

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        if (group, kind, namespace, name) in self._fresh:
            return self._fresh[group, kind, namespace, name]
        informer = self._watched.get((group, kind))
        if informer is not None:
            return informer.store.get(name, namespace or None)
        return self._read.get((group, kind, namespace, name))

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        informer = self._watched.get((group, kind))
        return list(informer.store.index("namespace", namespace)) if informer else ()


def _namespace(obj: Object) -> list[str]:
    return [obj["metadata"].get("namespace", "")]
