"""The lines that the record of a group's payers needs for what was counted, and those that it needs no longer.

This file alone decides when a payer is remembered because of a count, and when a line goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from bizrq.workloads.ownership.memory import Memory
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage
from controller.watch.cluster import Cluster
from controller.watch.remembered import DueLines
from controller.watch.time_slice import Yielder

#: Milliseconds for which the line of a payer stays that left nothing: watches of other kinds may be behind.
_LINGERS = 60_000
#: Seconds between two looks for lines that nothing refers to.
_SWEEP = 60.0
#: As many lines are looked at in one piece.
_FEW = 200


class PayerLines:
    """Compares the remembered payers of groups with what was counted."""

    def __init__(self, cluster: Cluster, now: Callable[[], int], clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._clock = clock
        #: When the lines of a group were last looked through, and those found then that may go, page by page.
        self._swept: dict[str, float] = {}
        self._idle: dict[str, list[list[str]]] = {}
        #: The lines of what has left a group, once what stays of it is stored.
        self._left: dict[str, set[str]] = {}

    def leave(self, group: str, uids: Collection[str]) -> None:
        """Let the lines of what has left a group go: a status is stored that counts what stays of it."""
        if uids:
            self._left.setdefault(group, set()).update(uids)

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        for known in (self._swept, self._idle, self._left):
            known.pop(group, None)
        self._cluster.payers.forget(group)

    def has_more(self, group: str) -> bool:
        """Return True if more lines may go than `due` has named until now."""
        return bool(self._idle.get(group) or self._left.get(group) or self._cluster.payers.given_up(group))

    async def prepare(self, group: str, usage: GroupUsage) -> bool:
        """Do most of the work of `due` in slices, where there is much. Return False if nothing was done."""
        yielder = Yielder(steps=8)
        self._mark_changes(group, usage)
        is_much = len(usage.uncompared) > _FEW
        while len(usage.uncompared) > _FEW:
            self._compare(group, usage, _FEW)
            await yielder.yield_if_due()
        undecided = self._cluster.payers.undecided(group)
        if len(undecided) > _FEW:
            is_much = True
            for uid in undecided:
                self._is_due(group, uid, usage)
                await yielder.step()
        if self._clock() - self._swept.get(group, float("-inf")) >= _SWEEP:
            is_much = True
            await self._sweep(group, usage, yielder)
        return is_much

    def due(self, group: str, usage: GroupUsage) -> DueLines:
        """Remember who makes pods for the group, and return what has to be stored of that, and what goes."""
        payers, put = self._cluster.payers, self.due_to_put(group, usage)
        idle, said = self._idle.get(group, []), payers.said(group).payers
        asked = {*(idle.pop() if idle else ()), *self._left.pop(group, ()), *payers.given_up(group)}
        if not payers.has_room(group, put, burst=True):
            # Before the record takes over the lines of the status: fewer may do.
            asked.update(said)
        return DueLines(put, [uid for uid in asked if self._may_go(group, uid, usage)])

    def due_to_put(self, group: str, usage: GroupUsage) -> list[str]:
        """Remember who makes pods for the group, and return the uids of which something has to be stored."""
        self._mark_changes(group, usage)
        self._compare(group, usage, len(usage.uncompared))
        return [uid for uid in self._cluster.payers.undecided(group) if self._is_due(group, uid, usage)]

    async def _sweep(self, group: str, usage: GroupUsage, yielder: Yielder) -> None:
        """Look through all lines for those that may go, and for payers of which nobody has seen that they went.

        A line that was under way when the API server's store was restored may be of a payer that never was.
        """
        self._swept[group] = self._clock()
        payers, by_page = self._cluster.payers, dict[Collection[int], list[list[str]]]()
        for uid in payers.of(group):
            payers.note_reference(uid)
            if self._may_go(group, uid, usage):
                chunks = by_page.setdefault(payers.recorded(group).places.get(uid, ()), [[]])
                if len(chunks[-1]) >= _FEW:
                    chunks.append([])
                chunks[-1].append(uid)
            elif uid not in usage.makers:
                self._cluster.releases.settle([uid])
            await yielder.step()
        self._idle[group] = [chunk for chunks in by_page.values() for chunk in chunks]

    def _mark_changes(self, group: str, usage: GroupUsage) -> None:
        """Mark the workloads of whose makers something else is remembered since the last call."""
        changed = self._cluster.payers.take_changes(group)
        if changed is None:
            usage.uncompared |= dict.fromkeys(usage.usages)
            return
        for maker in changed:
            usage.uncompared |= dict.fromkeys(usage.makers.get(maker, ()))

    def _compare(self, group: str, usage: GroupUsage, most: int) -> None:
        """Remember the makers of marked workloads, no more than `most` of these."""
        for _ in range(most):
            line = usage.usages.get(usage.uncompared.popitem()[0])
            if line is not None:
                self._remember(group, line)

    def _remember(self, group: str, line: WorkloadUsage) -> None:
        payers = self._cluster.payers
        for uid in line.makers:
            payers.note_reference(uid)
            known, left = payers.in_group(group, uid), line.left
            if left is not None:
                if known is None or known.gone is None:
                    payers.remember(uid, replace(left, group=group, gone=left.gone or self._now()))
            elif known is None or known.gone is not None or (known.place, known.models) != (line.place, line.models):
                payers.remember(uid, Memory(group, line.place, self._now(), None, line.models))
            elif (last := payers.get(uid)) is not None and last.gone is None and last.group != group:
                # It has come back from a group that remembers it still.
                payers.remember(uid, replace(known, since=max(self._now(), last.since + 1)))

    def _is_due(self, group: str, uid: str, usage: GroupUsage) -> bool:
        """Return True for what has to be stored: of a payer that makes pods, or that something refers to.

        What need not be is asked again once something changes that refers to it, and at each sweep.
        """
        if uid in usage.makers or self._is_referred(uid):
            return True
        self._cluster.payers.set_aside(group, uid)
        return False

    def _may_go(self, group: str, uid: str, usage: GroupUsage) -> bool:
        """Return True if nothing that is stored or live refers to the line of an object that makes no pods any more."""
        memory = self._cluster.payers.in_group(group, uid)
        if memory is None or uid in usage.makers:
            return uid in self._cluster.payers.given_up(group)
        if memory.gone is None:
            # It stands and makes nothing, or another group pays for it now.
            return self._cluster.placements.is_stored(uid)
        if self._is_referred(uid):
            placements = self._cluster.placements
            return placements.is_kept(uid) and not placements.is_early(uid, memory)
        return self._now() - memory.gone >= _LINGERS

    def _is_referred(self, uid: str) -> bool:
        """Return True if an object has this uid, or one that is stored or still runs names it as its controller."""
        cluster = self._cluster
        return (
            cluster.placements.is_stored(uid)
            or any(cluster.descendants.owned_by(uid))
            or bool(cluster.vanished.of(uid))
        )
