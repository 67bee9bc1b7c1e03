"""How counting sees the objects that a workload refers to.

This file alone says what has to be answered. It does not know where the objects come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

Reference: TypeAlias = tuple[str, str, str, str]
"""Group, kind, namespace ("" for cluster-wide) and name ("" for all of that kind in the namespace)."""


class Lookup(Protocol):
    """The other objects in the cluster. Neither method raises."""

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """The object, or None where there is none (or where nobody could read it)."""
        ...

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        """All objects of a kind in a namespace ("" for a cluster-wide kind); empty where nobody could read them."""
        ...


class EmptyLookup:
    """A cluster with nothing in it."""

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return None

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        return ()


class TrackingLookup:
    """Passes every question on and remembers it: what demand asked for is what it depends on."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.asked: dict[Reference, None] = {}

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked[group, kind, namespace, name] = None
        return self._lookup.get(group, kind, namespace, name)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        self.asked[group, kind, namespace, ""] = None
        return self._lookup.all_of(group, kind, namespace)


class OverlayLookup:
    """A cluster in which one object is another than it is."""

    def __init__(self, lookup: Lookup, reference: Reference, obj: dict[str, Any] | None) -> None:
        self._lookup = lookup
        self._reference = reference
        self._object = obj

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if (group, kind, namespace, name) == self._reference:
            return self._object
        return self._lookup.get(group, kind, namespace, name)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        return self._lookup.all_of(group, kind, namespace)


#: All nodes of the cluster.
ALL_NODES: Final[Reference] = ("", "Node", "", "")

#: Kinds that stand in no namespace, among those that counting asks for.
CLUSTER_WIDE = frozenset(
    {
        ("", "Namespace"),
        ("", "Node"),
        ("node.k8s.io", "RuntimeClass"),
        ("resource.k8s.io", "DeviceClass"),
        ("trainer.kubeflow.org", "ClusterTrainingRuntime"),
    }
)


def group_and_version(api_version: object) -> tuple[str, str]:
    """("apps", "v1") of "apps/v1", and ("", "v1") of "v1"; anything but a text is of no group and version."""
    if not isinstance(api_version, str):
        return "", ""
    group, slash, version = api_version.partition("/")
    return (group, version) if slash else ("", group)


def reference_of(obj: Mapping[str, Any]) -> Reference:
    """The place of a stored object."""
    group, _ = group_and_version(obj.get("apiVersion"))
    return group, str(obj.get("kind")), obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class DocumentLookup:
    """The documents of some files as the cluster.

    A missing namespace is `default`; of two of one name the last counts.
    """

    def __init__(self, documents: Iterable[object]) -> None:
        self._by_name: dict[Reference, dict[str, Any]] = {}
        self._by_kind: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
        for document in documents:
            if not isinstance(document, dict):
                continue
            kind, metadata = document.get("kind"), document.get("metadata")
            if not isinstance(kind, str) or not isinstance(metadata, dict):
                continue
            name, namespace = metadata.get("name"), metadata.get("namespace")
            group, _ = group_and_version(document.get("apiVersion"))
            if not isinstance(name, str):
                continue
            if (group, kind) in CLUSTER_WIDE:
                namespace = ""
            elif not isinstance(namespace, str) or not namespace:
                namespace = "default"
            self._by_name[group, kind, namespace, name] = document
            self._by_kind.setdefault((group, kind, namespace), {})[name] = document

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self._by_name.get((group, kind, namespace, name))

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        return list(self._by_kind.get((group, kind, namespace), {}).values())
