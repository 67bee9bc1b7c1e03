"""Manifests as `kubectl apply` takes them: where each would be stored, and what would stand there.

This file alone decides what of a stored object outlives the file that is applied to it. It asks nobody.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from bizrq.api import group as wire
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import CLUSTER_WIDE, Reference, group_and_version

Object = dict[str, Any]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def in_namespace(document: object, namespace: str) -> object:
    """The document with the namespace that it has where it names none."""
    if not isinstance(document, dict):
        return document
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        return {**document, "items": [in_namespace(item, namespace) for item in document["items"]]}
    metadata = document.get("metadata")
    if _stands_alone(document) or not isinstance(metadata, dict) or metadata.get("namespace"):
        return document
    return {**document, "metadata": {**metadata, "namespace": namespace}}


def _stands_alone(document: Mapping[str, Any]) -> bool:
    """Whether objects of the kind stand in no namespace."""
    group, _ = group_and_version(document.get("apiVersion"))
    return group == wire.API_GROUP or (group, document.get("kind")) in CLUSTER_WIDE


def place_of(document: Mapping[str, Any]) -> Reference:
    """Where a document would be stored; a name that is generated ends where its random letters would be."""
    group, _ = group_and_version(document.get("apiVersion"))
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, name = metadata.get("namespace"), metadata.get("name") or metadata.get("generateName")
    namespace = namespace if isinstance(namespace, str) and namespace else "default"
    return (
        group,
        str(document.get("kind")),
        "" if _stands_alone(document) else namespace,
        name if isinstance(name, str) else "",
    )


def as_written(document: Object, old: Object | None, adapter: Adapter | None, place: Reference, number: int) -> Object:
    """The document as `kubectl apply` would have it stored, as far as it is charged.

    A uid that no other has; of a stored object the uid, version and owners, the labels and annotations that no file
    ever said, and where this one says nothing of the replicas, the number that stands there.
    """
    new = copy.copy(document)
    metadata = {**document["metadata"], **({"namespace": place[2]} if place[2] else {})}
    if old is None:
        new["metadata"] = {**metadata, "uid": f"fit-{number}"}
        return new
    stored = {key: old["metadata"][key] for key in ("uid", "resourceVersion") if key in old["metadata"]}
    new["metadata"] = {**_kept(metadata, old["metadata"]), **stored}
    if adapter is None or adapter.scale is None:
        return new
    was, mine = _at(old, adapter.scale), _at(document, adapter.scale)
    return counting.with_scale(new, adapter, was) if mine is None and isinstance(was, int) else new


def _kept(metadata: Object, stored: Object) -> Object:
    """The metadata with what `kubectl apply` leaves as it is stored: what it did not write itself the last time."""
    try:
        last = json.loads((stored.get("annotations") or {}).get(_LAST_APPLIED, "{}")).get("metadata") or {}
    except (ValueError, AttributeError):
        last = {}
    owners = {"ownerReferences": stored["ownerReferences"]} if "ownerReferences" in stored else {}
    kept: Object = {}
    for key in ("labels", "annotations"):
        mine, was = metadata.get(key) or {}, last.get(key) or {}
        if isinstance(mine, dict) and isinstance(was, dict):
            kept[key] = {name: value for name, value in (stored.get(key) or {}).items() if name not in was} | mine
    return {**owners, **metadata, **{key: value for key, value in kept.items() if value}}


def _at(obj: object, path: Iterable[str]) -> object:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj
