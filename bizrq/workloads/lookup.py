"""The objects that a workload refers to, as counting reads them.

This file alone defines that interface. It does not know where the objects come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

Reference: TypeAlias = tuple[str, str, str, str]
"""Group, kind, namespace ("" for cluster-wide) and name ("" for all of that kind in the namespace)."""


class Lookup(Protocol):
    """The other objects of the cluster. Neither method raises."""

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object; None where it does not exist or cannot be read."""
        ...

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        """Return all objects of a kind in a namespace ("" for a cluster-wide kind); empty where they cannot be read."""
        ...


class EmptyLookup:
    """A cluster without objects."""

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return None

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        return ()


class TrackingLookup:
    """Record every lookup: the demand depends on what it looks up."""

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
    """Replace one object of a cluster."""

    def __init__(self, lookup: Lookup, reference: Reference, obj: dict[str, Any] | None) -> None:
        self.beneath = lookup
        self._reference = reference
        self._object = obj

    def get(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if (group, kind, namespace, name) == self._reference:
            return self._object
        return self.beneath.get(group, kind, namespace, name)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[dict[str, Any]]:
        return self.beneath.all_of(group, kind, namespace)


#: All nodes of the cluster.
ALL_NODES: Final[Reference] = ("", "Node", "", "")

#: The cluster-wide kinds among those that counting looks up.
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
    """Return ("apps", "v1") for "apps/v1", and ("", "v1") for "v1"; ("", "") for anything but a text."""
    if not isinstance(api_version, str):
        return "", ""
    group, slash, version = api_version.partition("/")
    return (group, version) if slash else ("", group)


def reference_of(obj: Mapping[str, Any]) -> Reference:
    """Return the reference of a stored object."""
    group, _ = group_and_version(obj.get("apiVersion"))
    return group, str(obj.get("kind")), obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class DocumentLookup:
    """Documents that serve as the cluster.

    A missing namespace is `default`. Of two documents with one name the last counts.
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
