"""The keys of what makes a workload's pods, as the list of rejected makers has them (`bizrq.api.overlap`).

This file alone decides under which keys the API server finds them again, also those that are made later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from bizrq.api import overlap as wire
from bizrq.kube.store import place_of
from bizrq.units.resources import Resources, growth, larger
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import POD, REPLICA_SET, Adapter
from bizrq.workloads.ownership.own_labels import version_labels, workload_of_version
from bizrq.workloads.ownership.payers import SELECTING
from controller.usage.below import Below, Path, gather
from controller.watch.cluster import Cluster

Object = dict[str, Any]


class Makers:
    """Finds what makes the pods of workloads in one cluster."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config

    def keys(self, uid: str) -> Sequence[str]:
        """Return the keys of a stored workload, the most important first: a list has bounds. None where it is gone.

        What is made later is found by the uids of the workload and of what is between it and the makers, and by names:
        that of the workload, too, in whose place another may come. Then come the makers that have pods or ask for some.
        """
        below = self._below(uid)
        if below is None:
            return ()
        adapter, workload = below.owners[uid].path[0]
        between = [obj["metadata"]["uid"] for path in below.makers for kind, obj in path[:-1] if kind.group_kind != POD]
        names = [key for path in below.makers for key in _keys(path)]
        if REPLICA_SET in adapter.creates:
            names += _of_versions(adapter, *place_of(workload))
        return list(dict.fromkeys((uid, *between, *names, *self._cluster.descendants.makers_of(workload))))

    def keys_at(self, place: str) -> Sequence[str]:
        """Return the keys of what may come to be at a place and adopt what was left there; none where something is."""
        _, namespace, name = place.split("/", 2)
        found = [(kind, obj) for kind, obj in self._cluster.ownership.at(place) if kind.group_kind in SELECTING]
        if any(obj is not None for _, obj in found):
            return ()
        return list(dict.fromkeys(key for kind, _ in found for key in _named(kind, namespace, name)))

    def keys_of_larger(self, uid: str) -> Sequence[str]:
        """Return the uids of the makers below a workload whose pods cost more than those that it asks for itself."""
        below = self._below(uid)
        if below is None:
            return ()
        top = below.owners[uid].path[0]
        asked = self._per_pod(*top, top[1])
        makers = (path[-1] for path in below.makers if len(path) > 1)
        return [obj["metadata"]["uid"] for kind, obj in makers if growth(self._per_pod(kind, obj, top[1]), asked)]

    def _below(self, uid: str) -> Below | None:
        """Return a stored workload with what is below it; None where it is gone."""
        workload = self._cluster.placements.stored(uid)
        adapter = self._cluster.registry.of(workload) if workload is not None else None
        return gather(self._cluster, adapter, workload) if workload is not None and adapter is not None else None

    def _per_pod(self, adapter: Adapter, obj: Object, payer: Object) -> Resources:
        """Return what a pod costs, of several kinds of pods the most per resource, as far as that can be counted."""
        lookup = self._cluster.resolver.cached_lookup
        roles = counting.demand_at_least(obj, adapter, payer, lookup, self._config).roles
        return reduce(larger, (role.per_pod for role in roles), dict[str, int]())


def _keys(path: Path) -> Sequence[str]:
    """Return the keys by which the last object of a path is found again with another uid; none where none does."""
    kind, maker = path[-1]
    if kind.group_kind == POD:
        return ()
    if kind.group_kind != REPLICA_SET or len(path) == 1:
        return _named(kind, *place_of(maker))
    above, owner = path[-2]
    template = (maker.get("spec") or {}).get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    is_version = workload_of_version(maker["metadata"]["name"], labels) == owner["metadata"]["name"]
    return _of_versions(above, *place_of(owner)) if is_version else ()


def _named(kind: Adapter, namespace: str, name: str) -> Sequence[str]:
    """Return the keys of what makes the pods of whatever has this kind and name."""
    if REPLICA_SET in kind.creates:
        return _of_versions(kind, namespace, name)
    return (wire.maker_key(namespace, kind.kind, name),)


def _of_versions(kind: Adapter, namespace: str, name: str) -> Sequence[str]:
    """Return the keys of all versions of an owner."""
    return [wire.version_key(namespace, name, label) for label in version_labels(kind.group_kind)]
