"""The lines that the record of a group's payers needs for what was counted, and those that it needs no longer.

This file alone decides when a payer is remembered because of a count, and when a line goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bizrq.workloads.ownership.memory import Memory
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage
from controller.watch.cluster import Cluster

#: Milliseconds for which the line of a payer stays that left nothing: watches of other kinds may be behind.
_LINGERS = 60_000
#: Seconds between two looks for lines that nothing refers to.
_SWEEP = 60.0


@dataclass(frozen=True, slots=True)
class DueLines:
    """Whether a record has to be written, and the uids of the lines that go with that write."""

    is_due: bool
    dropped: frozenset[str]


class PayerLines:
    """Compares the remembered payers of groups with what was counted."""

    def __init__(self, cluster: Cluster, now: Callable[[], int], clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._clock = clock
        #: When the lines of a group were last looked through.
        self._swept: dict[str, float] = {}

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        self._swept.pop(group, None)
        self._cluster.payers.forget(group)

    def due(self, group: str, usage: GroupUsage) -> DueLines:
        """Remember who makes pods for the group, and return what its record needs."""
        payers, needed = self._cluster.payers, usage.makers
        for line in self._uncompared(group, usage):
            for uid in line.makers:
                known, left = payers.in_group(group, uid), line.left
                if left is not None:
                    if known is None or known.gone is None:
                        payers.remember(uid, replace(left, group=group, gone=left.gone or self._now()))
                elif known is None or known.gone is not None or known.place != line.place:
                    payers.remember(uid, Memory(group, line.place, self._now()))
        is_due = any(uid in needed or self._is_referred(uid) for uid in payers.pending(group))
        swept = self._clock() - self._swept.get(group, float("-inf")) >= _SWEEP
        if not (is_due or swept):
            return DueLines(False, frozenset())
        known = payers.of(group)
        dropped = frozenset(uid for uid in known.keys() - needed.keys() if self._may_go(uid, known[uid]))
        if swept:
            self._swept[group] = self._clock()
        return DueLines(is_due or (swept and bool(dropped)), dropped)

    def _uncompared(self, group: str, usage: GroupUsage) -> list[WorkloadUsage]:
        """Take the lines whose makers, or what is remembered of these, may have changed since the last call."""
        changed, due = self._cluster.payers.take_changes(group), dict(usage.uncompared)
        usage.uncompared.clear()
        if changed is None:
            return list(usage.usages.values())
        for maker in changed:
            due |= dict.fromkeys(usage.makers.get(maker, ()))
        return [usage.usages[uid] for uid in due]

    def _may_go(self, uid: str, memory: Memory) -> bool:
        """Return True if nothing that is stored or live refers to the line of an object that makes no pods any more."""
        if memory.gone is None:
            # It stands and makes nothing, or another group pays for it now.
            return self._cluster.placements.is_stored(uid)
        if self._is_referred(uid):
            return self._cluster.placements.is_kept(uid)
        return self._now() - memory.gone >= _LINGERS

    def _is_referred(self, uid: str) -> bool:
        """Return True if an object has this uid, or one that is stored or still runs names it as its controller."""
        cluster = self._cluster
        return (
            cluster.placements.is_stored(uid)
            or any(cluster.descendants.owned_by(uid))
            or bool(cluster.vanished.of(uid))
        )
