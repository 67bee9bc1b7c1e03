"""Decide if a controller waits for a pod that is being deleted before it makes another in its place.

This file alone knows which controllers do. No second pod runs in addition to an awaited one, so it is fresh and not
ending. Unreadable fields count as not awaited, which charges more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bizrq.workloads.kinds.declaration import DAEMON_SET, DEPLOYMENT, JOB, STATEFUL_SET, GroupKind
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.ownership.own_labels import DEPLOYMENT_HASH

#: True for the names of pods that a controller waits for.
Awaited = Callable[[str], bool]
#: As many digits as an ordinal may have.
_DIGITS: Final = 10

Object = Mapping[str, Any]


def awaits(owner: Object, *, is_old: bool) -> Awaited:
    """Return for which pods, by name, the owner's controller makes no other while they are being deleted.

    `owner` is the object whose controller decides that: the Deployment, not its ReplicaSet. `is_old` says that the pods
    are of another version than the one that the owner asks for now.
    """
    group, _ = group_and_version(owner.get("apiVersion"))
    kind = owner.get("kind")
    rule = _RULES.get((group, kind)) if isinstance(kind, str) else None
    return rule(owner, is_old) if rule is not None else _none


def ordinal_of(name: str, owner: str) -> int | None:
    """Return the ordinal of a StatefulSet's pod; None where the name is not one that the StatefulSet gives.

    Source: kubernetes pkg/controller/statefulset/stateful_set_utils.go, getParentNameAndOrdinal.
    """
    parent, dash, digits = name.rpartition("-")
    if parent != owner or not dash or len(digits) > _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def current_version(owner: Object, made: Sequence[Object]) -> str | None:
    """Return the uid of the ReplicaSet that has the owner's pod template now; None where none has.

    Of several the oldest, and of those of one second the one with the first name. Source: kubernetes
    pkg/controller/deployment/util/deployment_util.go, FindNewReplicaSet, and pkg/controller/controller_utils.go,
    ReplicaSetsByCreationTimestamp.
    """
    wanted = _plain((owner.get("spec") or {}).get("template"))
    same = [each["metadata"] for each in made if _plain((each.get("spec") or {}).get("template")) == wanted]
    oldest = min(same, key=lambda m: (str(m.get("creationTimestamp")), str(m.get("name"))), default=None)
    return oldest.get("uid") if oldest is not None else None


def _plain(template: Any) -> object:
    """Return a pod template without the hash that the controller adds."""
    if not isinstance(template, dict):
        return template
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != DEPLOYMENT_HASH}
    rest = {key: value for key, value in metadata.items() if key not in ("labels", "creationTimestamp")}
    return {**template, "metadata": {**rest, "labels": labels}}


def _every(_: str) -> bool:
    return True


def _none(_: str) -> bool:
    return False


def _in_range(owner: Object, is_old: bool) -> Awaited:
    """A StatefulSet makes web-0 again once the old web-0 is gone; it makes none in place of one out of range."""
    spec = owner.get("spec") or {}
    start, replicas = (spec.get("ordinals") or {}).get("start", 0), spec.get("replicas", 1)
    own = str((owner.get("metadata") or {}).get("name"))
    if not isinstance(start, int) or not isinstance(replicas, int):
        return _none

    def is_in_range(name: str) -> bool:
        ordinal = ordinal_of(name, own)
        return ordinal is not None and start <= ordinal < start + replicas

    return is_in_range


def _without_surge(owner: Object, is_old: bool) -> Awaited:
    """A DaemonSet makes a node's pod once the old one is gone, unless it may have both."""
    strategy = (owner.get("spec") or {}).get("updateStrategy") or {}
    return _every if (strategy.get("rollingUpdate") or {}).get("maxSurge", 0) in (0, "0", "0%") else _none


def _recreated(owner: Object, is_old: bool) -> Awaited:
    """Under Recreate a Deployment makes the new version once the old one's pods are gone."""
    strategy = (owner.get("spec") or {}).get("strategy") or {}
    return _every if is_old and strategy.get("type") == "Recreate" else _none


def _only_failed(owner: Object, is_old: bool) -> Awaited:
    """A Job with this policy replaces a pod once it has a terminal phase (KEP-3939)."""
    return _every if (owner.get("spec") or {}).get("podReplacementPolicy") == "Failed" else _none


_RULES: Final[Mapping[GroupKind, Callable[[Object, bool], Awaited]]] = {
    STATEFUL_SET: _in_range,
    DAEMON_SET: _without_surge,
    DEPLOYMENT: _recreated,
    JOB: _only_failed,
}
