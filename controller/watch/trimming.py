"""Transforms that reduce a watched object to the fields that counting reads.

This file alone decides which fields of nodes, ResourceSlices and ReplicaSets stay in memory. `pods` reduces pods.
"""

from __future__ import annotations

from typing import Any

from bizrq.workloads.demand import observed

Object = dict[str, Any]


def trimmed_node(node: Object) -> Object:
    """Return the fields of a node that say which devices it has and which pods it takes."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    kept["labels"] = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    kept["annotations"] = {name: annotations[name] for name in observed.NODE_ANNOTATIONS if name in annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": kept, "spec": {"taints": spec.get("taints") or []}}


def trimmed_slice(held: Object) -> Object:
    """Return the fields of a ResourceSlice that say what its devices are, and of which capacity."""
    metadata, spec = held["metadata"], held.get("spec") or {}
    spec_fields = {key: spec[key] for key in ("driver", "pool", "sharedCounters") if key in spec}
    keys = ("name", "attributes", "capacity", "consumesCounters")
    spec_fields["devices"] = [
        {key: device[key] for key in keys if key in device} for device in spec.get("devices") or ()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion")},
        "spec": spec_fields,
    }


def trimmed_replicaset(replicaset: Object) -> Object:
    """Return the fields of a ReplicaSet as a link between pods and owner, as a workload, and as a Rollout's template.

    A Deployment keeps ten old ReplicaSets, so only counted fields stay.
    """
    keys = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "ownerReferences")
    times = ("creationTimestamp", "deletionTimestamp")
    spec, status = replicaset.get("spec") or {}, replicaset.get("status") or {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {key: replicaset["metadata"][key] for key in (*keys, *times) if key in replicaset["metadata"]},
        "spec": {key: spec[key] for key in ("replicas", "selector", "template") if key in spec},
        "status": {key: status[key] for key in ("observedGeneration", "replicas") if key in status},
    }
