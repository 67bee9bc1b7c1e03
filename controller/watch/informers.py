"""The informers of the controller: which kinds it watches, what it indexes, and which versions it counted from.

This file alone decides what of the cluster is kept in memory. It does not know what a change means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from bizrq.kube.client import KubeClient, Resource
from bizrq.kube.informer import Informer
from bizrq.kube.packed import packing, unpacking
from bizrq.kube.store import Kept, Store
from bizrq.store.groups import GroupStore, without_managed_fields
from bizrq.store.reference_resolver import CONTEXT, NODES, SLICES, ReferenceResolver, resource_of, resources_of
from bizrq.units.slot import GROUP_SLOT_KIND
from bizrq.workloads.kinds.declaration import POD, REPLICA_SET, Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from controller.watch.indexes import (
    claim_groups,
    claimed_by,
    controller_uid,
    defaulted_namespace,
    labelled_group,
    owning_pods,
    slice_pool,
)
from controller.watch.invalidation import DirtySet
from controller.watch.pods import Pod, SharedParts, equivalence_key, staying_over, trimmed_pod
from controller.watch.trimming import trimmed_node, trimmed_replicaset, trimmed_slice

Object = dict[str, Any]

CLAIM: GroupKind = ("resource.k8s.io", "ResourceClaim")


class ChangeHandler(Protocol):
    """Receives each change after the store holds it. None means that the object does not exist."""

    def group_changed(self, old: Object | None, new: Object | None) -> None: ...

    def workload_changed(self, old: Object | None, new: Object | None) -> None: ...

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None: ...

    def claim_changed(self, old: Object | None, new: Object | None) -> None: ...

    def reference_changed(self, old: Object | None, new: Object | None) -> None: ...

    def context_changed(self, old: Object | None, new: Object | None) -> None: ...

    def node_changed(self, old: Object | None, new: Object | None) -> None: ...

    def restored(self, before: int, now: int) -> None: ...


class Informers:
    """Informers of groups, of every kind that is charged or that links a workload to its pods, and of CONTEXT."""

    def __init__(
        self,
        client: KubeClient,
        registry: Registry,
        handler: ChangeHandler,
        dirty: DirtySet,
        annotations: Iterable[str],
        now: Callable[[], int],
    ) -> None:
        """Create the informers without starting them.

        `annotations` of pods are kept in addition to those that always count. `dirty` receives every write of a store.
        `now` returns milliseconds since 1970.
        """
        self._registry, self._now = registry, now
        self.groups = GroupStore(client, on_change=handler.group_changed)
        watched = _watched_adapters(registry)
        #: Informers of the charged kinds and of the kinds that link them to their pods, by kind.
        self.kinds: Mapping[GroupKind, Informer] = _owned_kinds(
            client, registry, watched, handler, dirty, partial(self._trimmed_pod, SharedParts(annotations))
        )
        self.workloads = {adapter.resource: self.kinds[adapter.group_kind] for adapter in registry.charged}
        self.pods = self.kinds[POD]
        context = _context_kinds(client, handler, dirty, self.kinds)
        #: Informers that statuses are counted from, by `plural.group`. A status records the version of each.
        self.counted_from = {
            GROUP_SLOT_KIND: self.groups.informer,
            **{watched[kind].resource: informer for kind, informer in self.kinds.items()},
            **{informer.resource.key: informer for informer in context.values()},
        }
        self.nodes = Informer(
            client,
            NODES,
            on_change=handler.node_changed,
            on_write=dirty.on_node,
            indexes={"namespace": lambda _node: [""]},
            transform=trimmed_node,
        )
        self.resolver = ReferenceResolver(
            client,
            registry,
            on_change=handler.context_changed,
            on_write=dirty.on_reference,
            kept={**self.kinds, **context, (NODES.group, NODES.kind): self.nodes},
        )
        self.claims = self.resolver.informer_of(CLAIM)
        self.slices = Informer(
            client,
            SLICES,
            on_change=lambda _old, _new: None,
            on_write=dirty.on_slice,
            indexes={"pool": slice_pool},
            transform=trimmed_slice,
        )

    def count_from(self, informer: Informer) -> None:
        """Add an informer of another owner to those that statuses are counted from."""
        self.counted_from[informer.resource.key] = informer

    @property
    def all(self) -> Sequence[Informer]:
        """Every informer, for the caller to run or to wait for."""
        return [*self.counted_from.values(), *self.resolver.informers, self.nodes, self.slices]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.all:
                tasks.create_task(informer.run())

    def get(self, kind: str) -> Informer | None:
        """Return the informer of a kind by `plural.group`. None for a kind that no status is counted from."""
        return self.counted_from.get(kind)

    def snapshot(self, kind: str) -> Store | None:
        """Return the store of a kind by `plural.group`. None for a kind that no status is counted from."""
        informer = self.get(kind)
        return informer.store if informer else None

    def resource(self, kind: str) -> Resource:
        """Return where a kind is stored, by `plural.group`. Raises KeyError for a kind that is not counted from."""
        return self.counted_from[kind].resource

    def kept(self, uid: str) -> Kept | None:
        """Return the stored object with this uid, of any kind whose objects have owners and may be charged."""
        return next((kept for each in self.kinds.values() if (kept := each.store.kept(uid)) is not None), None)

    def pod(self, uid: str) -> Pod | None:
        """Return the stored pod with this uid."""
        return cast("Pod | None", self.pods.store.kept(uid))

    def all_pods(self) -> Iterable[Pod]:
        """Return all stored pods."""
        return cast("Iterable[Pod]", self.pods.store.all_kept())

    def _trimmed_pod(self, parts: SharedParts, pod: Object) -> Pod:
        return staying_over(self.pods.store.kept(pod["metadata"]["uid"]), trimmed_pod(pod, parts), self._now())

    def claims_of(self, group: str) -> list[Object]:
        """Return the claims whose own label names the group, in managed namespaces."""
        return [claim for claim in self.claims.store.index("group", group) if self.claimed_by(claim) == group]

    def claimed_by(self, claim: Object) -> str | None:
        """Return the group that a claim itself names; none in a namespace that is not managed."""
        namespace, lookup = claim["metadata"].get("namespace", ""), self.resolver.cached_lookup
        return claimed_by(claim) if self._registry.scope.manages_named(namespace, lookup) else None


def _watched_adapters(registry: Registry) -> dict[GroupKind, Adapter]:
    """Return the adapters of all charged kinds, of Pods and of ReplicaSets, by kind."""
    watched = {a.group_kind: a for a in registry.adapters if registry.is_charged(a)}
    return watched | {kind: a for kind in (POD, REPLICA_SET) if (a := registry.by_kind(*kind)) is not None}


def _owned_kinds(
    client: KubeClient,
    registry: Registry,
    watched: Mapping[GroupKind, Adapter],
    handler: ChangeHandler,
    dirty: DirtySet,
    trim_pod: Callable[[Object], Pod],
) -> dict[GroupKind, Informer]:
    """Create one informer for each kind whose objects have owners and may be charged."""
    transforms = {POD: trim_pod, REPLICA_SET: packing(trimmed_replicaset)}
    indexes = {
        "group": labelled_group,
        "unlabelled": lambda obj: defaulted_namespace(obj, registry),
        "owner": controller_uid,
    }
    return {
        kind: Informer(
            client,
            resource_of(adapter),
            others=resources_of(adapter)[1:],
            on_change=handler.pod_changed if kind == POD else unpacking(handler.workload_changed),
            on_write=dirty.on_pod if kind == POD else unpacking(dirty.on_object),
            on_rollback=handler.restored,
            indexes=indexes,
            transform=transforms.get(kind, packing(without_managed_fields)),
            groups_by={"owner": equivalence_key} if kind == POD else None,
        )
        for kind, adapter in watched.items()
    }


def _context_kinds(
    client: KubeClient, handler: ChangeHandler, dirty: DirtySet, watched: Mapping[GroupKind, Informer]
) -> dict[GroupKind, Informer]:
    """Create one informer for each kind of CONTEXT that is not watched already."""
    return {
        kind: Informer(
            client,
            resource,
            on_change=unpacking(handler.claim_changed if kind == CLAIM else handler.reference_changed),
            on_write=unpacking(dirty.on_reference),
            on_rollback=handler.restored,
            indexes={"pod": owning_pods, "group": claim_groups} if kind == CLAIM else None,
            transform=packing(without_managed_fields),
        )
        for resource in CONTEXT
        if (kind := (resource.group, resource.kind)) not in watched
    }
