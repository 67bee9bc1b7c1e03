"""The keys of what makes a workload's pods, as the list of rejected makers has them (`bizrq.api.overlap`).

This file alone decides under which keys the API server finds them again, also those that are made later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bizrq.api import overlap as wire
from bizrq.workloads.kinds.declaration import POD, REPLICA_SET, Adapter
from bizrq.workloads.ownership.own_labels import version_labels, workload_of_version
from controller.usage.below import Path, gather
from controller.watch.cluster import Cluster

Object = dict[str, Any]
#: Returns the keys of what makes the pods of the workload with this uid.
KeysOf: TypeAlias = Callable[[str], Sequence[str]]


def keys_of_makers(cluster: Cluster, uid: str) -> Sequence[str]:
    """Return the keys of a stored workload, the most important first: a list has bounds. None where it is gone.

    What is made later is found by the uids of the workload and of what is between it and the makers, and by names. Then
    come the makers that have pods or ask for some.
    """
    workload = cluster.placements.stored(uid)
    adapter = cluster.registry.of(workload) if workload is not None else None
    if workload is None or adapter is None:
        return ()
    makers = gather(cluster, adapter, workload).makers
    between = [obj["metadata"]["uid"] for path in makers for kind, obj in path[:-1] if kind.group_kind != POD]
    names = [key for path in makers for key in _keys(path)]
    if REPLICA_SET in adapter.creates:
        names += _of_versions(adapter, workload)
    return list(dict.fromkeys((uid, *between, *names, *cluster.descendants.makers_of(workload))))


def _keys(path: Path) -> Sequence[str]:
    """Return the keys by which the last object of a path is found again with another uid; none where none does."""
    if len(path) < 2:
        return ()
    (above, owner), (kind, maker) = path[-2:]
    metadata = maker["metadata"]
    if kind.group_kind != REPLICA_SET:
        return (wire.maker_key(metadata["namespace"], kind.kind, metadata["name"]),)
    template = (maker.get("spec") or {}).get("template") or {}
    labels = (template.get("metadata") or {}).get("labels")
    is_version = workload_of_version(metadata["name"], labels) == owner["metadata"]["name"]
    return _of_versions(above, owner) if is_version else ()


def _of_versions(kind: Adapter, owner: Object) -> Sequence[str]:
    """Return the keys of all versions of an owner."""
    namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
    return [wire.version_key(namespace, name, label) for label in version_labels(kind.group_kind)]
