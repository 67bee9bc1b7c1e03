"""The compact form of a pod: its owner, what it asks for, when it ran. A cluster has a hundred thousand of them.

This file alone decides when a pod started and ended, by its own timestamps. It does not know who pays, or how much.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec
import orjson

from bizrq.kube.store import Kept
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp
from bizrq.workloads.devices import hami
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.lives import Life, is_live, life_from
from bizrq.workloads.ownership.own_labels import OWN_LABELS
from bizrq.workloads.ownership.payers import SELECTING
from bizrq.workloads.ownership.waiting import ordinal_of
from bizrq.workloads.pods import resize
from bizrq.workloads.pods.podspec import COUNTED, COUNTED_OF_CONTAINER

Object = dict[str, Any]

#: Fields that decide what a pod costs and which model its devices have.
_SPEC = ("containers", "initContainers", *COUNTED)
#: The version that a LeaderWorkerSet or a DaemonSet made a pod from; other kinds that surge have an owner for each one.
_VERSIONS = ("leaderworkerset.sigs.k8s.io/template-revision-hash", "controller-revision-hash")
_LABELS = (LABEL, hami.IGNORE, *_VERSIONS)
#: A grace other than this one is kept.
_GRACE = 30
#: The kinds of owners that keep a pod by its labels, for some also by its name.
_SELECTING = frozenset(kind for _, kind in SELECTING)
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_STATUS = ("resourceClaimStatuses", "extendedResourceClaimStatus")


class PodOwner(msgspec.Struct, frozen=True, gc=False):
    """The controller of a pod, as its owner reference names it. All pods of a controller share one."""

    api_version: str
    kind: str
    name: str
    uid: str


class Pod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that counting and metering read. Equal `labels`, `spec` and `owner` are shared between pods.

    Times are milliseconds since 1970. It has no reference cycle, so Python's garbage collector need not track it.
    """

    uid: str
    namespace: str
    name: str
    revision: int
    created: int | None
    owner: PodOwner | None
    labels: Object
    #: All labels that an owner's selector may name. Of a pod whose owner releases nothing, those that count.
    selected: Object
    spec: Object
    node: str | None
    phase: str | None
    #: When it was bound to its node; None while it is pending.
    started: int | None
    #: When the last container of a finished pod ended; None while it runs.
    ended: int | None
    #: Rare fields of `metadata` and `status`, by these names.
    rest: Object | None
    #: Whether it was over already when the deletion came that `rest` tells of.
    was_over: bool = False

    @property
    def is_being_deleted(self) -> bool:
        return self.rest is not None and self.rest["metadata"].get("deletionTimestamp") is not None

    @property
    def is_terminated(self) -> bool:
        """Return True if the pod has a terminal phase."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def version(self) -> str:
        """Return the version that its maker's template had, where the pod itself has to tell; else ""."""
        return str(next((self.labels[key] for key in _VERSIONS if key in self.labels), ""))

    def life(self, gone: int | None = None) -> Life:
        """Return the fields that decide if the pod is live. `gone` is the time at which it was found missing."""
        metadata = self.rest["metadata"] if self.rest is not None else {}
        return life_from(self.phase, self.node, self.created, metadata, self.spec, gone, was_over=self.was_over)

    @property
    def kept_by(self) -> Hashable:
        """Return a key that is equal for pods of one owner which that owner keeps or does not keep alike."""
        if self.owner is None or (self.owner.kind not in _SELECTING):
            return None
        if self.owner.kind == "StatefulSet":
            return id(self.selected), ordinal_of(self.name, self.owner.name) is None
        return id(self.selected)

    @property
    def is_resized(self) -> bool:
        """Return True if the pod may hold more than its spec says, as after a resize in place."""
        status = (self.rest or {}).get("status", {})
        return any(key in status for key in (*resize.STATUSES.values(), *resize.HELD))

    def plain(self) -> Object:
        """Return the pod as the object that counting reads. Its parts are shared: do not change them."""
        rest = self.rest or {}
        metadata: Object = {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "resourceVersion": str(self.revision),
            "labels": self.selected,
            **rest.get("metadata", {}),
        }
        if self.created is not None:
            metadata["creationTimestamp"] = format_timestamp(self.created)
        if self.owner is not None:
            owner = self.owner
            reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
            metadata["ownerReferences"] = [{**reference, "controller": True}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": self.spec if self.node is None else {**self.spec, "nodeName": self.node},
            "status": {"phase": self.phase, **rest.get("status", {})},
        }


def equivalence_key(pod: object) -> Hashable:
    """Return a key that is equal for pods of one owner that count alike.

    A pod with rare fields or claims is in a class of its own.
    """
    if not isinstance(pod, Pod):
        return id(pod)
    if pod.rest is not None or "resourceClaims" in pod.spec:
        return pod.uid
    return id(pod.spec), id(pod.labels), pod.node, pod.phase, pod.namespace, pod.owner, pod.kept_by


class SharedParts:
    """Keeps equal parts once: the pods of a workload differ in nothing that counts."""

    #: More different parts than a cluster has. Beyond this the sharing starts over.
    MOST = 20_000

    def __init__(self, annotations: Iterable[str] = ()) -> None:
        """`annotations` are those that count; few pods have them, so each keeps its own."""
        self.annotations = frozenset(annotations)
        self._parts: dict[bytes, Object] = {}
        self._owners: dict[str, PodOwner] = {}

    def shared(self, part: Object) -> Object:
        """Return the first part that is equal to this one."""
        if len(self._parts) >= self.MOST:
            self._parts.clear()
        return self._parts.setdefault(orjson.dumps(part, option=orjson.OPT_SORT_KEYS), part)

    def owner(self, metadata: Object) -> PodOwner | None:
        """Return the shared controller of a pod."""
        reference = controller_of(metadata)
        if reference is None:
            return None
        if len(self._owners) >= self.MOST:
            self._owners.clear()
        found = PodOwner(
            intern(reference["apiVersion"]), intern(reference["kind"]), reference["name"], reference["uid"]
        )
        known = self._owners.setdefault(found.uid, found)
        # A pod's creator writes its references freely: share them only if they are equal.
        return known if known == found else found


def trimmed_pod(pod: Object, shapes: SharedParts) -> Pod:
    """Return the compact form of a pod that the API server sent."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    counted = _only(spec, _SPEC)
    for containers in ("containers", "initContainers"):
        if containers in counted:
            counted[containers] = [_only(container, COUNTED_OF_CONTAINER) for container in counted[containers] or ()]
    if (grace := spec.get("terminationGracePeriodSeconds")) not in (None, _GRACE):
        counted["terminationGracePeriodSeconds"] = grace
    labels = metadata.get("labels") or {}
    counted_labels = shapes.shared({key: value for key, value in labels.items() if key.startswith(_LABELS)})
    owner = shapes.owner(metadata)
    kind = (group_and_version(owner.api_version)[0], owner.kind) if owner is not None else None
    may_be_released = kind is None or kind in SELECTING
    own_labels = OWN_LABELS.get(kind, ()) if kind is not None else ()
    return Pod(
        metadata["uid"],
        intern(metadata.get("namespace") or ""),
        metadata["name"],
        int(metadata["resourceVersion"]),
        _time(metadata.get("creationTimestamp")),
        owner,
        counted_labels,
        shapes.shared({key: value for key, value in labels.items() if key not in own_labels})
        if may_be_released
        else counted_labels,
        shapes.shared(counted),
        _interned(spec.get("nodeName")),
        _interned(status.get("phase")),
        _started(status),
        _ended(metadata, status),
        _rest(metadata, spec, status, shapes.annotations),
    )


def staying_over(before: Kept | None, pod: Pod, now: int) -> Pod:
    """Return a pod that stays over if it was, when another deletion of it came.

    `before` is what was kept of it until now. `now` is in milliseconds since 1970. Without another deletion the clock
    decides anew: it may have been wrong for a while.
    """
    if not isinstance(before, Pod) or not before.is_being_deleted or not pod.is_being_deleted:
        return pod
    was_over = before.was_over if _deletion(before) == _deletion(pod) else not is_live(before.life(), now)
    return msgspec.structs.replace(pod, was_over=True) if was_over else pod


def _deletion(pod: Pod) -> Object:
    return _only(pod.rest["metadata"], _DELETION) if pod.rest is not None else {}


def _only(found: Object, keys: Iterable[str]) -> Object:
    return {key: found[key] for key in keys if key in found}


def _rest(metadata: Object, spec: Object, status: Object, counted: Collection[str]) -> Object | None:
    rest_of_metadata, rest_of_status = _only(metadata, _DELETION), {**_only(status, _STATUS), **_resized(spec, status)}
    annotations = _only(metadata.get("annotations") or {}, counted)
    if annotations:
        rest_of_metadata["annotations"] = annotations
    if not rest_of_metadata and not rest_of_status:
        return None
    return {"metadata": rest_of_metadata, "status": rest_of_status}


def _resized(spec: Object, status: Object) -> Object:
    """Return what the status says of resources that are not those asked for, as after a resize in place."""
    of_pod, asked_of_pod = _only(status, resize.HELD), spec.get("resources") or {}
    found: Object = of_pod if asked_of_pod and _has_other(of_pod, asked_of_pod) else {}
    for containers, statuses in resize.STATUSES.items():
        asked = {c.get("name"): c.get("resources") or {} for c in spec.get(containers) or ()}
        reported = [_only(s, ("name", *resize.HELD)) for s in status.get(statuses) or ()]
        if any(_has_other(s, asked.get(s.get("name")) or {}) for s in reported):
            found[statuses] = reported
    if found:
        found["conditions"] = [c for c in status.get("conditions") or () if c.get("type") == "PodResizePending"]
    return found


def _has_other(reported: Object, asked: Object) -> bool:
    has, allocated = reported.get("resources"), reported.get("allocatedResources")
    differs = has is not None and any((has.get(k) or {}) != (asked.get(k) or {}) for k in ("requests", "limits"))
    return differs or (allocated is not None and allocated != (asked.get("requests") or {}))


def _interned(text: str | None) -> str | None:
    return intern(text) if text else None


def _started(status: Object) -> int | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            return _time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None
    # A kubelet need not keep that condition. A pod that a node has started is bound to it.
    return _time(status.get("startTime"))


def _ended(metadata: Object, status: Object) -> int | None:
    ends = [_finished(container) for container in status.get("containerStatuses") or ()]
    # Sidecars are among these, and outlive the containers that they serve.
    first = status.get("initContainerStatuses") or ()
    known = [end for end in (*ends, *map(_finished, first)) if end is not None]
    if status.get("phase") not in ("Succeeded", "Failed"):
        # A pod that is being deleted may go without a final phase: then its last container says when it ended.
        runs = None in ends or any((container.get("state") or {}).get("running") is not None for container in first)
        is_over = metadata.get("deletionTimestamp") is not None and ends and not runs
        return max(known) if is_over else None
    if known:
        return max(known)
    return _disrupted(status) or _time(metadata.get("deletionTimestamp")) or _started(status)


def _finished(container: Object) -> int | None:
    return _time(((container.get("state") or {}).get("terminated") or {}).get("finishedAt"))


def _disrupted(status: Object) -> int | None:
    """Return when a pod without container times was evicted, else when a condition last changed after its start."""
    times = {c.get("type"): _time(c.get("lastTransitionTime")) for c in status.get("conditions") or ()}
    if (reported := times.get("DisruptionTarget")) is not None:
        return reported
    started = _started(status) or 0
    return max((at for at in times.values() if at is not None and at > started), default=None)


@lru_cache(maxsize=65_536)
def _time(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_timestamp(text)
    except TimestampError:
        return None
