"""Dirty marks: uids of objects whose placement or cost may have changed since they were counted, or everything.

This file alone decides whose cost a change may affect. It errs on one side only: a needless mark costs a needless
count, and too many marks become "everything". It counts nothing.

A cost depends on the object, on all objects below it at any depth, and on what any of these refer to. So a change marks
the object, its owner before and after, and the owners above as they are when the marks are read. Who pays for an
object depends on its owners. So an object that comes, goes, or changes its labels or owner marks what it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import structlog

from bizrq.workloads.demand import observed
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import ALL_NODES, Reference, reference_of
from bizrq.workloads.owners import MAX_HOPS, controller_of
from bizrq.workloads.ownership.payers import selector_of
from controller.watch.pods import Pod

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: More marks than this mean everything. A standby controller never reads them, so the list must not grow for ever.
MAX_MARKED = 200_000


class Mark(NamedTuple):
    """A mark of an object: how many levels above it (`hops`) and below it (`below`) are marked with it."""

    hops: int = 0
    below: int = 0


class ReverseIndex:
    """The workloads that were counted by each reference, by uid."""

    def __init__(self) -> None:
        self._uids: dict[Reference, set[str]] = {}

    def of(self, reference: Reference) -> Iterable[str]:
        """Return the uids of the workloads that were counted by this reference."""
        return self._uids.get(reference, ())

    def move(self, uid: str, before: Iterable[Reference], now: Iterable[Reference]) -> None:
        """Replace the references that a workload was counted by."""
        gone, new = set(before).difference(now), set(now).difference(before)
        for reference in gone:
            users = self._uids[reference]
            users.discard(uid)
            if not users:
                del self._uids[reference]
        for reference in new:
            self._uids.setdefault(reference, set()).add(uid)


class CountedGroups:
    """The groups that each object is counted or due in, by uid."""

    def __init__(self, referrers: ReverseIndex) -> None:
        self._referrers = referrers
        self._groups: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def of(self, uid: str) -> Collection[str]:
        """Return the groups that an object is counted or due in."""
        return self._groups.get(uid, ())

    def add(self, uid: str, group: str) -> None:
        """Record that an object is counted or due in the group."""
        self._groups.setdefault(uid, set()).add(group)

    def discard(self, uid: str, group: str) -> None:
        """Record that an object is no longer counted in the group."""
        groups = self._groups.get(uid, set())
        groups.discard(group)
        if not groups:
            self._groups.pop(uid, None)

    def using(self, reference: Reference) -> set[str]:
        """Return the groups whose workloads were counted by an object."""
        return {group for uid in self._referrers.of(reference) for group in self.of(uid)}


class DirtySet:
    """Collects marks from the writes of stores until they are taken."""

    def __init__(self) -> None:
        #: True where every object is marked.
        self.everything = True
        self.referrers = ReverseIndex()
        self._marks: dict[str, Mark] = {}
        self._most = MAX_MARKED

    def __bool__(self) -> bool:
        return self.everything or bool(self._marks)

    def start(self, uids: Iterable[str]) -> None:
        """Mark these, which are all objects, and from now on only what changes."""
        self.everything = False
        self._marks = dict.fromkeys(uids, Mark())
        self._most = MAX_MARKED + 2 * len(self._marks)

    def mark_all(self) -> None:
        """Mark everything."""
        self.everything = True
        self._marks.clear()

    def mark(self, uid: str, mark: Mark = Mark()) -> None:  # noqa: B008 a tuple
        """Mark one object, joined with the mark that it has."""
        if self.everything:
            return
        known = self._marks.get(uid)
        if known is not None:
            mark = Mark(max(known.hops, mark.hops), max(known.below, mark.below))
        self._marks[uid] = mark
        if len(self._marks) > self._most:
            self.mark_all()

    def take(self) -> tuple[str, Mark]:
        """Remove and return the latest mark. Raises KeyError where there is none."""
        return self._marks.popitem()

    def mark_reference(self, reference: Reference) -> None:
        """Mark all workloads that were counted by this reference."""
        for uid in self.referrers.of(reference):
            self.mark(uid)

    # Writes of stores.

    def on_object(self, old: Object | None, new: Object | None) -> None:
        """Mark a workload, or an object between a workload and its pods."""
        self._guarded(self._object, old, new)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Mark a pod and its owners."""
        self._guarded(self._pod, old, new)

    def on_reference(self, old: Object | None, new: Object | None) -> None:
        """Mark the users of an object that workloads refer to by name, and the pods that own a claim."""
        self._guarded(self._reference, old, new)

    def on_node(self, old: Object | None, new: Object | None) -> None:
        """Mark the workloads on a node that shows other devices."""
        if old is None or new is None or node_devices(old) != node_devices(new):
            self._guarded(self._reference, old, new)
        if old is None or new is None or node_placing(old) != node_placing(new):
            self.mark_reference(ALL_NODES)

    def on_slice(self, old: Object | None, new: Object | None) -> None:
        """Mark the workloads that use the pool of a ResourceSlice."""
        if old is None or new is None or old["spec"] != new["spec"]:
            for held in (old, new):
                if held is not None:
                    self.mark_reference(pool_reference(pool_of(held)))

    def _guarded(self, note: Callable[[Any, Any], None], old: object, new: object) -> None:
        if self.everything:
            return
        try:
            note(old, new)
        except Exception:
            log.exception("change not understood, recounting everything")
            self.mark_all()

    def _object(self, old: Object | None, new: Object | None) -> None:
        below = MAX_HOPS if identity_of(old) != identity_of(new) else 0
        for obj in (old, new):
            if obj is not None:
                self.mark(obj["metadata"]["uid"], Mark(MAX_HOPS, below))
                self._note_owner(controller_of(obj["metadata"]))
        self._reference(old, new)

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _content(old) == _content(new):
            return
        below = 0 if old and new and (old.owner, old.labels) == (new.owner, new.labels) else MAX_HOPS
        for pod in (old, new):
            if pod is not None:
                self.mark(pod.uid, Mark(MAX_HOPS, below))
                if pod.owner is not None:
                    self.mark(pod.owner.uid, Mark(MAX_HOPS - 1))

    def _reference(self, old: Object | None, new: Object | None) -> None:
        for obj in (old, new):
            if obj is not None:
                self.mark_reference(reference_of(obj))
                for owner in obj["metadata"].get("ownerReferences") or ():
                    if owner.get("kind") == "Pod" and isinstance(owner.get("uid"), str):
                        self.mark(owner["uid"], Mark(MAX_HOPS))

    def _note_owner(self, reference: Object | None) -> None:
        if reference is not None and isinstance(reference.get("uid"), str):
            self.mark(reference["uid"], Mark(MAX_HOPS - 1))


def _content(pod: Pod) -> object:
    """Return everything of a pod that counting reads."""
    shared = pod.owner, id(pod.selected), id(pod.spec)
    return *shared, pod.namespace, pod.name, pod.node, pod.phase, pod.started, pod.ended, pod.rest, pod.was_over


def identity_of(obj: Object | None) -> object:
    """Return what ties an object to a group, an owner or its children: uid, our labels, owner references, selector.

    Of an object with an owner all labels, since the owner keeps it by these. One that is being deleted adopts nothing.
    """
    if obj is None:
        return None
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    if controller_of(metadata) is None:
        labels = {key: value for key, value in labels.items() if key.startswith(LABEL)}
    is_going = metadata.get("deletionTimestamp") is not None
    return metadata["uid"], labels, metadata.get("ownerReferences"), selector_of(obj), is_going


def node_reference(name: str) -> Reference:
    return "", "Node", "", name


def pool_reference(pool: str) -> Reference:
    """Return the reference that stands for all ResourceSlices of a pool."""
    return "resource.k8s.io", "ResourceSlice", "", pool


def pool_key(driver: str, pool: str) -> str:
    return f"{driver}/{pool}"


def pool_of(held: Object) -> str:
    """Return the pool of a ResourceSlice, as `driver/name`."""
    spec = held["spec"]
    return pool_key(str(spec.get("driver")), str((spec.get("pool") or {}).get("name")))


def node_devices(node: Object) -> object:
    """Return what a node says about its devices."""
    labels = node["metadata"].get("labels") or {}
    return [labels.get(key) for key in observed.NODE_LABELS], node["metadata"].get("annotations")


def node_placing(node: Object) -> object:
    """Return the fields of a node that decide which pods it takes."""
    return node["metadata"].get("labels"), node.get("spec")
