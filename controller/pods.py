"""What is kept of a pod: who made it, what it asks for, when it ran. A cluster has a hundred thousand of them.

This file alone decides when a pod began and ended, by its own timestamps. It does not know who pays, nor how much.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from bizrq.quota.ledger import ReservationError, milliseconds
from bizrq.workloads.labels import LABEL

Object = dict[str, Any]

#: What a pod costs, and what proves its model.
_SPEC = (
    *("containers", "initContainers", "overhead", "resources", "resourceClaims", "runtimeClassName"),
    *("nodeSelector", "affinity", "schedulerName"),
)
_CONTAINER = ("name", "resources", "restartPolicy", "securityContext")
_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


class Shapes:
    """Specs that are the same are kept once: the pods of a workload differ in nothing that counts."""

    #: More kinds of pods than a cluster has; past it the sharing begins anew.
    MOST = 20_000

    def __init__(self) -> None:
        self._specs: dict[bytes, Object] = {}

    def shared(self, spec: Object) -> Object:
        if len(self._specs) >= self.MOST:
            self._specs.clear()
        return self._specs.setdefault(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS), spec)


def trimmed(pod: Object, shapes: Shapes) -> Object:
    """A pod without what neither counting nor the meter reads, and with `started` and `ended` in milliseconds."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key.startswith(LABEL)}
    if labels:
        kept["labels"] = labels
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            reference = {key: owner.get(key) for key in ("apiVersion", "kind", "name", "uid", "controller")}
            kept["ownerReferences"] = shapes.shared({"": [reference]})[""]
    counted = {key: spec[key] for key in _SPEC if key in spec}
    for containers in ("containers", "initContainers"):
        if containers in counted:
            counted[containers] = [{key: c[key] for key in _CONTAINER if key in c} for c in counted[containers] or ()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept,
        "spec": shapes.shared(counted),
        "status": shapes.shared({"phase": status.get("phase")}),
        "started": _started(status),
        "ended": _ended(metadata, status),
    }


def started(pod: Object) -> int | None:
    """When a trimmed pod was bound to its node, in milliseconds; None while it waits (spec: devices, T1)."""
    return pod["started"]


def ended(pod: Object) -> int | None:
    """When the last container of a trimmed pod that is over ended, in milliseconds; None while it runs (T2)."""
    return pod["ended"]


def _started(status: Object) -> int | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _time(condition.get("lastTransitionTime"))
    return None


def _ended(metadata: Object, status: Object) -> int | None:
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        _time(((container.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for container in status.get("containerStatuses") or ()
    ]
    known = [end for end in ends if end is not None]
    if known:
        return max(known)
    # Evicted before anything ran: no container tells, so the pod's own deletion does, or its start.
    return _time(metadata.get("deletionTimestamp")) or _started(status)


@lru_cache(maxsize=65_536)
def _time(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        return milliseconds(text)
    except ReservationError:
        return None
