"""The objects to which workloads refer: kept by a watch if they are few, else read on demand.

This file alone decides whether a reference is answered from memory or by a read. It does not know what the answer
means.
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
from bizrq.workloads.lookup import ALL_NODES, Lookup, Reference, TrackingLookup

Object = dict[str, Any]

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
#: Small kinds that affect every pod of a namespace or of the cluster. A watch spares each admission a list.
WATCHED = (
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    NAMESPACES,
)
#: Kinds to which workloads refer by name, charged or not. The controller watches them, so that it can wait for a write
#: and recount the users of the object. A kind that is not installed is no error.
CONTEXT = (
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("", "v1", "podtemplates", "PodTemplate"),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
    Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
)
#: Nodes decide what DaemonSets cost, and show which cards pods have. The controller watches them.
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
#: The kind that shows the allocated devices of pods. The controller watches it.
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
#: Kinds of referenced objects in addition to the charged kinds. Without a watch they are read each time, so that no
#: answer is stale.
READ = (
    *CONTEXT,
    Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
)
_NEEDED = frozenset((resource.group, resource.kind) for resource in READ)
#: The most rounds of reads for one object. A charged object refers to few others.
_ROUNDS = 5


def resource_of(adapter: Adapter, version: str = "") -> Resource:
    """Return the resource of a kind of workload, by default in the first of its versions."""
    return Resource(adapter.group, version or adapter.versions[0], adapter.plural, adapter.kind)


def resources_of(adapter: Adapter) -> tuple[Resource, ...]:
    """Return the resource in each version of the kind. The first version that a cluster serves has all objects."""
    return tuple(resource_of(adapter, version) for version in adapter.versions)


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
        return ResolvedLookup(self._watched, {})

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
        for _ in range(_ROUNDS):
            recording = TrackingLookup(self._known(read, fresh))
            with contextlib.suppress(ValueError):
                count(recording)
            wanted = [ref for ref in recording.asked if ref not in read and ref not in fresh and self._is_to_read(ref)]
            if not wanted:
                break
            read |= await self._read_all(wanted, timeout)
        else:
            with contextlib.suppress(ValueError):
                count(self._known(read, fresh))
        return self._known(read, fresh)

    async def reread(self, reference: Reference, timeout: float) -> Mapping[Reference, Object | None]:
        """Return the stored object if it differs from the watched one, for `resolve`. Raise ApiError or Unreachable."""
        group, kind, namespace, name = reference
        resource = next(r for r in WATCHED if (r.group, r.kind) == (group, kind))
        try:
            stored = without_managed_fields(await self._client.get(resource, name, namespace or None, timeout=timeout))
        except NotFound:
            stored = None
        return {} if stored == self.cached_lookup.get(*reference) else {reference: stored}

    def _known(self, read: dict[Reference, Object | None], fresh: Mapping[Reference, Object | None]) -> ResolvedLookup:
        """Return a lookup of the watched objects and of those read for one count."""
        return ResolvedLookup(self._watched, read, fresh)

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

    A list that was read stands in `read` or `fresh` as `{"items": […]}`.
    """

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
        """Return True if an answer depends on an object that no watch keeps current."""
        return bool(self._read)

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        if (group, kind, namespace, name) in self._fresh:
            return self._fresh[group, kind, namespace, name]
        informer = self._watched.get((group, kind))
        if informer is not None:
            return informer.store.get(name, namespace or None)
        return self._read.get((group, kind, namespace, name))

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        reference = group, kind, namespace, ""
        listed = self._fresh.get(reference) or self._read.get(reference)
        if listed is not None:
            return listed["items"]
        informer = self._watched.get((group, kind))
        return list(informer.store.index("namespace", namespace)) if informer else ()


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
