"""Transforms that reduce a watched object to the fields that counting reads.

This file alone decides which fields of nodes, ResourceSlices and ReplicaSets stay in memory. `pods` reduces pods.
"""

from __future__ import annotations

from typing import Any

from bizrq.workloads.demand import observed

Object = dict[str, Any]


def trimmed_node(node: Object) -> Object:
    """A node as far as it tells which cards it has."""
    metadata = node["metadata"]
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    for key, counted in (("labels", observed.NODE_LABELS), ("annotations", observed.NODE_ANNOTATIONS)):
        kept[key] = {name: value for name, value in (metadata.get(key) or {}).items() if name in counted}
    return {"apiVersion": "v1", "kind": "Node", "metadata": kept}


def trimmed_slice(held: Object) -> Object:
    """A ResourceSlice as far as it tells what its devices are, and of how much."""
    metadata, spec = held["metadata"], held.get("spec") or {}
    told = {key: spec[key] for key in ("driver", "pool", "sharedCounters") if key in spec}
    keys = ("name", "attributes", "capacity", "consumesCounters")
    told["devices"] = [{key: device[key] for key in keys if key in device} for device in spec.get("devices") or ()]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion")},
        "spec": told,
    }


def trimmed_replicaset(replicaset: Object) -> Object:
    """A ReplicaSet as a step between a pod and its owner, as a workload, and as the template that a Rollout may name.

    A Deployment keeps ten old ones, so only what counts is kept.
    """
    keys = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "ownerReferences")
    spec, status = replicaset.get("spec") or {}, replicaset.get("status") or {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {key: replicaset["metadata"][key] for key in keys if key in replicaset["metadata"]},
        "spec": {key: spec[key] for key in ("replicas", "template") if key in spec},
        "status": {key: status[key] for key in ("observedGeneration", "replicas") if key in status},
    }
