"""Apply a manifest as `kubectl apply` does: where it would be stored, and the resulting object.

This file alone decides which parts of the stored object survive. It reads nothing.
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
    """Return the document with this namespace if it sets none."""
    if not isinstance(document, dict):
        return document
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        return {**document, "items": [in_namespace(item, namespace) for item in document["items"]]}
    metadata = document.get("metadata")
    if _is_cluster_wide(document) or not isinstance(metadata, dict) or metadata.get("namespace"):
        return document
    return {**document, "metadata": {**metadata, "namespace": namespace}}


def _is_cluster_wide(document: Mapping[str, Any]) -> bool:
    """Return True for a kind without namespace."""
    group, _ = group_and_version(document.get("apiVersion"))
    kind = document.get("kind")
    return group == wire.API_GROUP or (isinstance(kind, str) and (group, kind) in CLUSTER_WIDE)


def place_of(document: Mapping[str, Any]) -> Reference:
    """Return the place where a document would be stored; a generated name ends before its random letters."""
    group, _ = group_and_version(document.get("apiVersion"))
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, name = metadata.get("namespace"), metadata.get("name") or metadata.get("generateName")
    namespace = namespace if isinstance(namespace, str) and namespace else "default"
    return (
        group,
        str(document.get("kind")),
        "" if _is_cluster_wide(document) else namespace,
        name if isinstance(name, str) else "",
    )


def as_written(document: Object, old: Object | None, adapter: Adapter | None, place: Reference, number: int) -> Object:
    """Return the object that `kubectl apply` would store, as far as it matters for its charge.

    A new object gets a unique uid. A stored object keeps its uid, version and owners, the labels and annotations that
    no manifest has set, and its replicas if this manifest sets none.
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
    """Return the metadata with the stored labels, annotations and owners that `kubectl apply` keeps."""
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
