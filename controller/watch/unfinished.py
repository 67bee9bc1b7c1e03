"""What went before its controller had made all of its pods: some may come long after it.

A controller makes pods in lots, and its client sends some twenty requests a second for all that it works on. So whoever
keeps it busy can have pods come a minute after the object that asked for them is gone: nothing is charged for them any
more. This file alone decides of which objects that may be true. The API server rejects their pods
(`controller.overlap`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bizrq.kube.client import revision_of
from bizrq.workloads.kinds.declaration import (
    DAEMON_SET,
    JOB,
    POD,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    STATEFUL_SET,
    Adapter,
)
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.ownership.observation import has_observed
from bizrq.workloads.ownership.takeover import replicas_of
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import map_at
from controller.watch.informers import Informers
from controller.watch.pods import Pod

Object = dict[str, Any]

#: Milliseconds for which pods may come. Five workers of a controller, each with a lot of 245 pods, take a minute.
WAITS: Final = 300_000
#: The kinds that ask for `spec.replicas` pods.
_REPLICATED: Final = frozenset({REPLICA_SET, REPLICATION_CONTROLLER, STATEFUL_SET})


class Unfinished:
    """Finds the makers of pods that go too early."""

    def __init__(self, informers: Informers, registry: Registry, now: Callable[[], int]) -> None:
        """`now` returns milliseconds since 1970."""
        self._informers = informers
        self._registry = registry
        self._now = now
        #: What is being deleted, and whether pods of it may come.
        self._going: dict[str, bool] = {}
        self._report: Callable[[str, int], None] = _nobody

    def subscribe(self, report: Callable[[str, int], None]) -> None:
        """Call `report` with the uid of each maker that goes too early, and with the time until which pods may come."""
        self._report = report

    def note(self, old: Object, new: Object | None, *, is_paid: bool = True) -> None:
        """Note that an object starts to go, or is gone where `new` is None: its controller begins no more pods.

        Call it once the watch has shown that, with `is_paid` if a group pays for the object.
        """
        adapter, uid = self._registry.of(old), old["metadata"]["uid"]
        if adapter is None or POD not in adapter.creates:
            return
        if new is not None:
            is_unfinished = self._going[uid] = self._is_unfinished(old, adapter, revision_of(new))
        else:
            known, store = self._going.pop(uid, None), self._informers.kinds[adapter.group_kind].store
            is_unfinished = self._is_unfinished(old, adapter, store.resource_version) if known is None else known
        if is_unfinished and is_paid:
            self._report(uid, self._now() + WAITS)

    def _is_unfinished(self, obj: Object, adapter: Adapter, revision: int) -> bool:
        """Return True for what asks for more pods than it had at a revision. In a namespace that goes none can come."""
        lookup, name = self._informers.resolver.cached_lookup, obj["metadata"].get("namespace", "")
        namespace = lookup.get("", "Namespace", "", name)
        if namespace is None or _is_going(namespace) or has_ended(obj, adapter):
            return False
        grouped = self._informers.pods.store.grouped("owner", obj["metadata"]["uid"])
        has = sum(number for pod, number in grouped if isinstance(pod, Pod) and _was_there(pod, revision))
        return has < _asked(obj, adapter)


def _asked(obj: Object, adapter: Adapter) -> float:
    """Return how many pods an object asks for. Of a kind whose number is not known, one."""
    kind, spec, status = adapter.group_kind, map_at(obj, "spec"), map_at(obj, "status")
    if kind in _REPLICATED:
        return replicas_of(obj)
    if kind == DAEMON_SET:
        return _number(status.get("desiredNumberScheduled"), 0) if has_observed(obj) else float("inf")
    if kind == JOB and not spec.get("suspend"):
        most, succeeded = _number(spec.get("parallelism"), 1), _number(status.get("succeeded"), 0)
        return min(most, _number(spec.get("completions"), most + succeeded) - succeeded)
    return 0 if kind == JOB else 1


def _number(value: object, default: int) -> int:
    return value if type(value) is int else default


def _was_there(pod: Pod, revision: int) -> bool:
    """Return True for a pod that its owner asked for at a revision: nobody had deleted it, and it had not ended."""
    return not pod.is_terminated and (not pod.is_being_deleted or pod.revision > revision)


def _is_going(obj: Object) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def _nobody(uid: str, until: int) -> None:
    """Report to nobody."""
