"""What asks for fewer pods, or is gone, before its controller had made all of them: some may come long after it.

A controller makes pods in lots, and its client sends some twenty requests a second for all that it works on. So whoever
keeps it busy can have pods come a minute after nothing asks for them: nothing is charged for them any more. This file
alone decides of which objects that may be true. The API server rejects their pods (`controller.overlap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from bizrq.api.overlap import GONE, LOWERED
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
from bizrq.workloads.ownership.observation import has_observed, may_act_on_earlier
from bizrq.workloads.ownership.payers import selector_of
from bizrq.workloads.ownership.takeover import replicas_of
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.selectors import selects
from bizrq.workloads.validation import map_at
from controller.watch.informers import Informers
from controller.watch.pods import Pod
from controller.watch.time_slice import Yielder

Object = dict[str, Any]

#: Milliseconds for which pods may come. Five workers of a controller, each with a lot of 245 pods, take a minute.
WAITS: Final = 300_000
#: The kinds that ask for `spec.replicas` pods.
_REPLICATED: Final = frozenset({REPLICA_SET, REPLICATION_CONTROLLER, STATEFUL_SET})
#: The kinds that ask for a number of pods which a person may lower.
_LOWERED: Final = _REPLICATED | {JOB}


class Unfinished:
    """Finds the makers of pods that go too early, or ask for fewer."""

    def __init__(
        self, informers: Informers, registry: Registry, payer: Callable[[Object], str | None], now: Callable[[], int]
    ) -> None:
        """`payer` returns the group that pays for an object; `now` returns milliseconds since 1970."""
        self._informers = informers
        self._registry = registry
        self._payer = payer
        self._now = now
        #: What is being deleted, and whether pods of it may come.
        self._going: dict[str, bool] = {}
        #: The most pods that each maker asked for which asks for fewer now, until its controller has seen that.
        self._lowered: dict[str, float] = {}
        self._report: Callable[[str, int, str, str], None] = _nobody

    def subscribe(self, report: Callable[[str, int, str, str], None]) -> None:
        """Call `report` with the uid of each such maker, the time until which its pods may come, and why none should.

        Then with the group that pays. A time that is over means that none may come any more.
        """
        self._report = report

    async def find_unseen(self) -> None:
        """Report what may have been lowered while nobody watched, once all watches have synced."""
        yielder = Yielder(steps=8)
        for adapter in self._registry.adapters:
            if adapter.group_kind not in _LOWERED:
                continue
            for obj in self._informers.kinds[adapter.group_kind].store.values():
                if may_act_on_earlier(obj) and not _is_going(obj):
                    self._lower(obj, adapter, math.inf)
                await yielder.step()

    def note_change(self, old: Object, new: Object) -> None:
        """Note that an object asks for fewer pods, or that its controller has seen it."""
        uid, generation = new["metadata"]["uid"], new["metadata"].get("generation")
        if old["metadata"].get("generation") == generation:
            if uid in self._lowered and _has_seen(old, new):
                del self._lowered[uid]
                self._report(uid, 0, LOWERED, "")
            return
        adapter = self._registry.of(new)
        if adapter is None or adapter.group_kind not in _LOWERED:
            return
        before, after = _wanted(old, adapter), _wanted(new, adapter)
        if after < before:
            self._lower(new, adapter, max(before, self._lowered.get(uid, 0)))
        elif uid in self._lowered and _is_job_to_grow(new, adapter):
            self._report(uid, 0, LOWERED, "")

    def _lower(self, obj: Object, adapter: Adapter, before: float) -> None:
        uid = obj["metadata"]["uid"]
        self._lowered[uid] = before
        if _is_job_to_grow(obj, adapter):
            return
        if self._is_unfinished(obj, adapter, revision_of(obj)) and (group := self._payer(obj)) is not None:
            self._report(uid, self._now() + WAITS, LOWERED, group)

    def note_end(self, old: Object, new: Object | None) -> None:
        """Note that an object starts to go, or is gone where `new` is None: its controller begins no more pods.

        Call it once the watch has shown that.
        """
        adapter, uid = self._registry.of(old), old["metadata"]["uid"]
        if adapter is None or POD not in adapter.creates:
            return
        if new is not None:
            is_unfinished = self._going[uid] = self._is_unfinished(old, adapter, revision_of(new))
        else:
            known, store = self._going.pop(uid, None), self._informers.kinds[adapter.group_kind].store
            is_unfinished = self._is_unfinished(old, adapter, store.resource_version) if known is None else known
            self._lowered.pop(uid, None)
        if is_unfinished and (group := self._payer(old)) is not None:
            self._report(uid, self._now() + WAITS, GONE, group)

    def _is_unfinished(self, obj: Object, adapter: Adapter, revision: int) -> bool:
        """Return True for what asked for more pods than it had at a revision, as far as its controller has seen.

        In a namespace that goes none can come.
        """
        lookup, name = self._informers.resolver.cached_lookup, obj["metadata"].get("namespace", "")
        namespace = lookup.get("", "Namespace", "", name)
        if namespace is None or _is_going(namespace) or has_ended(obj, adapter):
            return False
        return min(self._pods_of(obj, revision), _made(obj, adapter)) < self._asked(obj, adapter)

    def _pods_of(self, obj: Object, revision: int) -> int:
        """Return how many pods an object had at a revision that its controller takes for its own."""
        grouped, selector = self._informers.pods.store.grouped("owner", obj["metadata"]["uid"]), selector_of(obj)
        return sum(
            number
            for pod, number in grouped
            if isinstance(pod, Pod) and _was_there(pod, revision) and (not selector or selects(selector, pod.selected))
        )

    def _asked(self, obj: Object, adapter: Adapter) -> float:
        """Return how many pods an object asks for in the spec that its controller acts on, at most."""
        before = self._lowered.get(obj["metadata"]["uid"])
        if before is None and adapter.group_kind in _LOWERED and may_act_on_earlier(obj):
            return math.inf
        return max(before or 0, _wanted(obj, adapter))


def _wanted(obj: Object, adapter: Adapter) -> float:
    """Return how many pods an object asks for. Of a kind whose number is not known, one."""
    kind, spec, status = adapter.group_kind, map_at(obj, "spec"), map_at(obj, "status")
    if kind in _REPLICATED:
        return replicas_of(obj)
    if kind == DAEMON_SET:
        return _number(status.get("desiredNumberScheduled"), 0) if has_observed(obj) else math.inf
    if kind == JOB and not spec.get("suspend"):
        most, succeeded = _number(spec.get("parallelism"), 1), _number(status.get("succeeded"), 0)
        return min(most, _number(spec.get("completions"), most + succeeded) - succeeded)
    return 0 if kind == JOB else 1


def _made(obj: Object, adapter: Adapter) -> float:
    """Return how many pods the controller of an object says that it has, once it is done with making them.

    What somebody makes below the object meanwhile is no sign that it is. Infinity for a kind that says no number.
    """
    status, kind = map_at(obj, "status"), adapter.group_kind
    if kind in _LOWERED:
        return _number(status.get("active" if kind == JOB else "replicas"), 0)
    return math.inf


def _is_job_to_grow(obj: Object, adapter: Adapter) -> bool:
    """Return True for a Job that wants more pods than it has: while they are rejected, its controller says nothing."""
    return adapter.group_kind == JOB and _wanted(obj, adapter) > _made(obj, adapter)


def _has_seen(old: Object, new: Object) -> bool:
    """Return True where an update of an object's status is of its present spec.

    A Job does not say so, but its controller writes a status on the version alone that it has read.
    """
    seen = has_observed(new)
    return old.get("status") != new.get("status") if seen is None else seen


def _number(value: object, default: int) -> int:
    return value if type(value) is int else default


def _was_there(pod: Pod, revision: int) -> bool:
    """Return True for a pod that its owner asked for at a revision: nobody had deleted it, and it had not ended."""
    return not pod.is_terminated and (not pod.is_being_deleted or pod.revision > revision)


def _is_going(obj: Object) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def _nobody(uid: str, until: int, why: str, group: str) -> None:
    """Report to nobody."""
