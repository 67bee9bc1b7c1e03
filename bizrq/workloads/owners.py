"""Who pays for an object: the group it names, its namespace's, or whoever made it.

This file alone walks controller owner references and knows of namespaces' defaults. It does not know what anything
costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, REQUIRED, group_of, labels_of
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.validation import Malformed

#: The longest way up that is followed (as Kueue does).
MOST_HOPS = 10


def charged_group(obj: Mapping[str, Any], lookup: Lookup) -> str | None:
    """The group that an object charges if nothing above it pays: its own label's, else its namespace's default.

    Raises Malformed for a label that is none.
    """
    return group_of(obj) or default_group(namespace_name(obj), lookup)


def default_group(namespace: str, lookup: Lookup) -> str | None:
    """The group of workloads without a label in a namespace: the same label, on the Namespace."""
    value = _labels(lookup.get("", "Namespace", "", namespace)).get(LABEL)
    return value if isinstance(value, str) and value else None


def requires_group(namespace: str, lookup: Lookup) -> bool:
    """Whether every workload of a namespace has to charge a group: the label `REQUIRED`, on the Namespace."""
    return _labels(lookup.get("", "Namespace", "", namespace)).get(REQUIRED) == "true"


def namespace_name(obj: Mapping[str, Any]) -> str:
    """`metadata.namespace`, `default` where there is none."""
    metadata = obj.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return namespace if isinstance(namespace, str) and namespace else "default"


def payer(obj: Mapping[str, Any], registry: Registry, lookup: Lookup) -> dict[str, Any] | None:
    """The nearest object above this one that is charged and names a group, None where the object pays for itself.

    The group of the label does not matter: whoever is above pays.
    """
    # What was passed on by those below: only a kind that makes such objects pays for them.
    passed: set[tuple[str, str]] = set()
    for owner, adapter, made in makers(obj, registry, lookup):
        if made not in adapter.creates:
            passed.add(made)
        elif (
            passed <= adapter.creates
            and registry.is_charged(adapter)
            and adapter.pays
            and (_labels(owner).get(LABEL) or default_group(namespace_name(obj), lookup))
        ):
            return owner
    return None


def makers(
    obj: Mapping[str, Any], registry: Registry, lookup: Lookup
) -> Iterator[tuple[dict[str, Any], Adapter, tuple[str, str]]]:
    """Whatever is above an object, the nearest first, each with its adapter and the group and kind that it made.

    A hop is trusted only where the owner exists in the same namespace, has the uid that the reference says, and is of
    a kind that makes such objects: a forged or stale reference leads nowhere.
    """
    reference = controller_of(obj.get("metadata"))
    namespace = namespace_name(obj)
    group, _ = group_and_version(obj.get("apiVersion"))
    kind = obj.get("kind")
    for _ in range(MOST_HOPS):
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


def is_below(obj: Mapping[str, Any], uid: str, namespace: str, lookup: Lookup) -> bool:
    """Whether an object was made by what has this uid, or by something that it made."""
    reference = controller_of(obj.get("metadata"))
    for _ in range(MOST_HOPS):
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


def _labels(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The labels of an object; none where it is not there, or has no proper ones."""
    try:
        return labels_of(obj) if obj is not None else {}
    except Malformed:
        return {}


def controller_of(metadata: object) -> dict[str, Any] | None:
    """The owner reference that says `controller: true`. What is no proper list of references has none."""
    references = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    if not isinstance(references, list):
        return None
    return next((r for r in references if isinstance(r, dict) and r.get("controller") is True), None)
