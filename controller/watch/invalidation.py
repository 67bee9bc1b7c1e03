"""What has changed since it was counted: uids of objects whose place or cost may be another, or everything.

This file alone decides whose cost a change may bear on. It errs on the one side only: what is noted in vain is counted
again in vain, and what would be too much to note is everything. It counts nothing.

A cost depends on the object itself, on all that names it as its owner, however far below, and on what any of these
refer to. So a change is noted for the object, for the owner that it names and the one that it named, and from each of
those up as owners stand when the journal is read. Who pays for an object depends on its owners: where an object comes,
goes, or changes its labels or owner, what it owns is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import structlog

from bizrq.workloads.demand import observed
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import ALL_NODES, Reference, reference_of
from bizrq.workloads.owners import MAX_HOPS, controller_of
from controller.watch.pods import Pod

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: More than this is everything: who never reads it, as a controller that waits for its turn, keeps no list for ever.
MAX_MARKED = 200_000


class Mark(NamedTuple):
    """An object to look at again: how many levels of its owners are to be, too, and how many of what it owns."""

    hops: int = 0
    below: int = 0


class ReverseIndex:
    """Which workloads were counted by what, by uid."""

    def __init__(self) -> None:
        self._uids: dict[Reference, set[str]] = {}

    def of(self, reference: Reference) -> Iterable[str]:
        return self._uids.get(reference, ())

    def move(self, uid: str, before: Iterable[Reference], now: Iterable[Reference]) -> None:
        """A workload was counted by these, and is by those now."""
        gone, new = set(before).difference(now), set(now).difference(before)
        for reference in gone:
            users = self._uids[reference]
            users.discard(uid)
            if not users:
                del self._uids[reference]
        for reference in new:
            self._uids.setdefault(reference, set()).add(uid)


class CountedGroups:
    """Which groups each object is counted or due in, by uid."""

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
    """Notes what is written into the stores, until it is taken."""

    def __init__(self) -> None:
        #: What is noted stands for all there is.
        self.everything = True
        self.referrers = ReverseIndex()
        self._noted: dict[str, Mark] = {}
        self._most = MAX_MARKED

    def __bool__(self) -> bool:
        return self.everything or bool(self._noted)

    def start(self, uids: Iterable[str]) -> None:
        """Note these, which are all there are, and from now on no more than what changes."""
        self.everything = False
        self._noted = dict.fromkeys(uids, Mark())
        self._most = MAX_MARKED + 2 * len(self._noted)

    def mark_all(self) -> None:
        self.everything = True
        self._noted.clear()

    def mark(self, uid: str, mark: Mark = Mark()) -> None:  # noqa: B008 a tuple
        if self.everything:
            return
        known = self._noted.get(uid)
        if known is not None:
            mark = Mark(max(known.hops, mark.hops), max(known.below, mark.below))
        self._noted[uid] = mark
        if len(self._noted) > self._most:
            self.mark_all()

    def take(self) -> tuple[str, Mark]:
        """The next that is to be looked at. KeyError where there is none."""
        return self._noted.popitem()

    def mark_reference(self, reference: Reference) -> None:
        for uid in self.referrers.of(reference):
            self.mark(uid)

    # What stores tell.

    def on_object(self, old: Object | None, new: Object | None) -> None:
        """A workload, or what stands between one and its pods."""
        self._guarded(self._object, old, new)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._guarded(self._pod, old, new)

    def on_reference(self, old: Object | None, new: Object | None) -> None:
        """What workloads refer to by name. A claim is its pods', too."""
        self._guarded(self._reference, old, new)

    def on_node(self, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or node_devices(old) != node_devices(new):
            self._guarded(self._reference, old, new)
        if old is None or new is None or node_placing(old) != node_placing(new):
            self.mark_reference(ALL_NODES)

    def on_slice(self, old: Object | None, new: Object | None) -> None:
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
            log.exception("a change is not understood; everything is counted again")
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
    """All of a pod that anybody counts by."""
    shared = pod.owner, id(pod.labels), id(pod.spec)
    return *shared, pod.namespace, pod.name, pod.node, pod.phase, pod.started, pod.ended, pod.rest


def identity_of(obj: Object | None) -> object:
    """What binds an object to a group or to an owner."""
    if obj is None:
        return None
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    ours = {key: value for key, value in labels.items() if key.startswith(LABEL)}
    return metadata["uid"], ours, metadata.get("ownerReferences")


def node_reference(name: str) -> Reference:
    return "", "Node", "", name


def pool_reference(pool: str) -> Reference:
    """What stands for all ResourceSlices of a pool."""
    return "resource.k8s.io", "ResourceSlice", "", pool


def pool_key(driver: str, pool: str) -> str:
    return f"{driver}/{pool}"


def pool_of(held: Object) -> str:
    """The pool that a ResourceSlice is of."""
    spec = held["spec"]
    return pool_key(str(spec.get("driver")), str((spec.get("pool") or {}).get("name")))


def node_devices(node: Object) -> object:
    """What a node tells of its cards."""
    labels = node["metadata"].get("labels") or {}
    return [labels.get(key) for key in observed.NODE_LABELS], node["metadata"].get("annotations")


def node_placing(node: Object) -> object:
    """Return the parts of a node that decide which pods it takes."""
    return node["metadata"].get("labels"), node.get("spec")
