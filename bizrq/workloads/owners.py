"""Find what is above an object: its owners, and the group that its namespace names.

This file alone walks controller owner references and reads the defaults of namespaces. It does not know who pays:
`ownership.payers` decides that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, REQUIRED, group_of, labels_of
from bizrq.workloads.lookup import Lookup, group_and_version, reference_of
from bizrq.workloads.validation import Malformed

#: The most owners that are followed, as in Kueue.
MAX_HOPS = 10


def charged_group(obj: Mapping[str, Any], registry: Registry, lookup: Lookup) -> str | None:
    """Return the group that an object charges if nothing above it pays: its own label's, else its namespace's default.

    None in a namespace that is not managed. Raises Malformed for an invalid label.
    """
    namespace = namespace_name(obj)
    if not registry.scope.manages_named(namespace, lookup):
        return None
    return group_of(obj) or default_group(namespace, lookup)


def default_group(namespace: str, lookup: Lookup) -> str | None:
    """Return the group of a managed namespace's workloads without a label: the value of that label on the Namespace."""
    value = _labels(lookup.get("", "Namespace", "", namespace)).get(LABEL)
    return value if isinstance(value, str) and value else None


def requires_group(namespace: str, registry: Registry, lookup: Lookup) -> bool:
    """Return True if every workload of a namespace must charge a group: the label `REQUIRED` on a managed Namespace."""
    return (
        registry.scope.manages_named(namespace, lookup)
        and _labels(lookup.get("", "Namespace", "", namespace)).get(REQUIRED) == "true"
    )


def namespace_name(obj: Mapping[str, Any]) -> str:
    """Return `metadata.namespace`, or `default` where it is absent."""
    metadata = obj.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return namespace if isinstance(namespace, str) and namespace else "default"


def owner_chain(
    obj: Mapping[str, Any], registry: Registry, lookup: Lookup
) -> Iterator[tuple[dict[str, Any], Adapter, tuple[str, str]]]:
    """Yield the objects above one, the nearest first, each with its adapter and the group and kind that it made.

    A step is trusted only if the owner exists in the same namespace, has the uid of the reference, and is of a kind
    that makes such objects. A forged or stale reference ends the chain.
    """
    reference = controller_of(obj.get("metadata"))
    namespace = namespace_name(obj)
    group, _ = group_and_version(obj.get("apiVersion"))
    kind = obj.get("kind")
    for _ in range(MAX_HOPS):
        if reference is None or not isinstance(kind, str):
            return
        owner_group, _ = group_and_version(reference.get("apiVersion"))
        owner_kind, name = reference.get("kind"), reference.get("name")
        if not isinstance(owner_kind, str) or not isinstance(name, str):
            return
        adapter = registry.by_kind(owner_group, owner_kind)
        made = (group, kind)
        if adapter is None or not (made in adapter.creates or made in adapter.passes):
            return
        owner = lookup.get(owner_group, owner_kind, namespace, name)
        if owner is None:
            return
        metadata = owner.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("uid") or metadata.get("uid") != reference.get("uid"):
            return
        yield owner, adapter, made
        reference, group, kind = controller_of(metadata), owner_group, owner_kind


def has_same_controller(obj: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True where two versions of an object name the same controller, or none."""
    return controller_of(obj.get("metadata")) == controller_of(other.get("metadata"))


def is_descendant(obj: Mapping[str, Any], uid: str, namespace: str, lookup: Lookup) -> bool:
    """Return True if the object with this uid made an object, directly or not."""
    reference = controller_of(obj.get("metadata"))
    for _ in range(MAX_HOPS):
        if reference is None:
            return False
        if reference.get("uid") == uid:
            return True
        group, _ = group_and_version(reference.get("apiVersion"))
        kind, name = reference.get("kind"), reference.get("name")
        if not isinstance(kind, str) or not isinstance(name, str):
            return False
        owner = lookup.get(group, kind, namespace, name)
        metadata = owner.get("metadata") if owner is not None else None
        if not isinstance(metadata, dict) or metadata.get("uid") != reference.get("uid"):
            return False
        reference = controller_of(metadata)
    return False


def is_named_by(owner: Mapping[str, Any], reference: Mapping[str, Any], namespace: str) -> bool:
    """Return True where a reference out of a namespace names this object, in any version of its kind.

    Anybody may write the uid of an object under another kind or name, or in another namespace.
    """
    group, kind, name, uid = named_owner(reference)
    return (group, kind, namespace, name) == reference_of(owner) and uid == owner["metadata"].get("uid")


def named_owner(reference: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the API group, kind, name and uid of the owner that a reference names, in any version."""
    return group_and_version(reference.get("apiVersion"))[0], *(reference.get(key) for key in ("kind", "name", "uid"))


def _labels(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the labels of an object; empty where the object or proper labels are missing."""
    try:
        return labels_of(obj) if obj is not None else {}
    except Malformed:
        return {}


def controller_of(metadata: object) -> dict[str, Any] | None:
    """Return the owner reference with `controller: true`; None where there is none or the list is malformed."""
    references = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    if not isinstance(references, list):
        return None
    return next((r for r in references if isinstance(r, dict) and r.get("controller") is True), None)
