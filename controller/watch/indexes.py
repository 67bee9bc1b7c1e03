"""Index keys of stored objects: the group that an object names, its controller, its pods, its pool.

This file alone decides by which values the stores find objects. It reads one object at a time.
"""

from __future__ import annotations

from typing import Any

from bizrq.workloads.devices import dra
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.owners import controller_of
from bizrq.workloads.validation import Malformed
from controller.watch.invalidation import pool_of

Object = dict[str, Any]


def labelled_group(obj: Object) -> list[str]:
    """Return the group that an object's own label names, as a list of one or none. An invalid label names none."""
    try:
        group = group_of(obj)
    except Malformed:
        return []
    return [group] if group is not None else []


def defaulted_namespace(obj: Object, registry: Registry) -> list[str]:
    """Return the namespace whose default group applies to an object without a label, as a list of one or none.

    No default applies to an object that its controller's kind creates: the controller pays for it.
    """
    if any(labelled_group(obj)):
        return []
    reference = controller_of(obj["metadata"])
    if reference is not None:
        group, _ = group_and_version(reference.get("apiVersion"))
        owner = registry.by_kind(group, str(reference.get("kind")))
        made = group_and_version(obj.get("apiVersion"))[0], str(obj.get("kind"))
        if owner is not None and registry.is_charged(owner) and made in owner.creates:
            return []
    return [obj["metadata"].get("namespace", "")]


def controller_uid(obj: Object) -> list[str]:
    """Return the uid of the controller that an object names, as a list of one or none."""
    reference = controller_of(obj["metadata"])
    uid = reference.get("uid") if reference is not None else None
    return [uid] if isinstance(uid, str) else []


def owning_pods(claim: Object) -> list[str]:
    """Return the uids of the pods that a claim names as its owners, controller or not."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return [owner["uid"] for owner in owners if owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1"]


def claimed_by(claim: Object) -> str | None:
    """Return the group that a claim itself names. An invalid label charges no group."""
    try:
        return dra.claim_group(claim)
    except Malformed:
        return None


def claim_groups(claim: Object) -> list[str]:
    """Return the group that a claim itself names, as a list of one or none."""
    group = claimed_by(claim)
    return [group] if group is not None else []


def slice_pool(resource_slice: Object) -> list[str]:
    """Return the pool of a ResourceSlice as an index key."""
    return [pool_of(resource_slice)]
