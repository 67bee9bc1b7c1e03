"""What the workloads of groups come to, kept as objects change: a recount costs what has changed, not a group's size.

This file alone decides when a line is made anew. The journal says what may be another; until all of that is looked at
again, a group is not counted. Whatever is unsure is counted again: after a change that bears on everything all groups
begin anew, and from time to time a group is gone over line by line, as if nothing were known of it. What differs then
without a change that the journal knows of is an error, and is told.

The work is done in slices, one workload at a time. Only once nothing is left to do does `settle` return, and what is
read until the next await is of that one moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import structlog

from bizrq.quota.recount import Counted, Sums
from bizrq.units import quantity
from bizrq.units.resources import Resources, add
from bizrq.units.slot import Slot, group_slot
from bizrq.workloads.lookup import Reference
from controller import metrics
from controller.usage.workload_cost import Costs
from controller.usage.workload_usage import SILENCE, Line, Lines, Run
from controller.watch.cluster import Cluster, Standing
from controller.watch.invalidation import Noted
from controller.watch.time_slice import Slices

log = structlog.get_logger(__name__)


class Account:
    """The lines of one group's workloads by uid, and what they come to."""

    def __init__(self, due: Iterable[str] = ()) -> None:
        self.lines: dict[str, Line] = {}
        self.sums = Sums()
        #: Those that have something to tell, that share claims, that never could be counted, that may pass unseen.
        self.telling: dict[str, Line] = {}
        self.claiming: dict[str, Line] = {}
        self.unknown: dict[str, Line] = {}
        self.passing: dict[str, Line] = {}
        #: Those to count anew, and of those left the ones whose run is to be reckoned anew.
        self.due = dict.fromkeys(due)
        self.to_reckon: dict[str, None] = {}
        self.run: Run | None = None
        #: While all is gone over: those still to be, and the sums of what has been.
        self.unchecked: dict[str, None] = {}
        self.checked: Sums | None = None
        #: What was found to have been kept wrong, in words, and not told yet.
        self.drift: list[str] = []

    def put(self, uid: str, line: Line) -> None:
        """Add the line of a workload, or replace it at its place."""
        self._take_out(uid)
        self.unchecked.pop(uid, None)
        self.to_reckon.pop(uid, None)
        self.lines[uid] = line
        self.sums.add(line.counted)
        if self.checked is not None:
            self.checked.add(line.counted)
        kinds = (
            (self.telling, line.words is not SILENCE),
            (self.claiming, bool(line.shared or line.shown)),
            (self.unknown, line.is_unknown),
            (self.passing, line.passes),
        )
        for kept, belongs in kinds:
            if belongs:
                kept[uid] = line
            else:
                kept.pop(uid, None)

    def drop(self, uid: str) -> None:
        self._take_out(uid)
        for lines in (self.lines, self.telling, self.claiming, self.unknown, self.passing):
            lines.pop(uid, None)
        for marks in (self.due, self.to_reckon, self.unchecked):
            marks.pop(uid, None)

    def _take_out(self, uid: str) -> None:
        """Take a line from the sums; what is not `unchecked` is in those of the check."""
        if (old := self.lines.get(uid)) is None:
            return
        self.sums.remove(old.counted)
        if self.checked is not None and uid not in self.unchecked:
            self.checked.remove(old.counted)


class Ask(NamedTuple):
    """What a group is counted by besides what is stored: the runs of its hours, and what its status promises."""

    group: str
    run: Run | None = None
    promised: Mapping[Slot, Resources] = {}


class Ledgers:
    """The accounts of all groups. `settle` brings one up to date; until the next await, `of` has it as of now."""

    def __init__(
        self,
        cluster: Cluster,
        costs: Costs,
        lines: Lines,
        now: Callable[[], int],
        slices: Callable[[], Slices] = lambda: Slices(steps=8),
    ) -> None:
        self._slices = slices
        self._cluster = cluster
        self._journal = cluster.journal
        self._costs = costs
        self._lines = lines
        self._now = now
        self._accounts: dict[str, Account] = {}
        #: In which accounts an object is, counted or due, by uid.
        self._places: dict[str, set[str]] = {}
        #: What is not charged only until the deletion of its owner is forgotten, with the time of that; and the same
        #: as a heap, the oldest first, in which those stay that are not charged for that reason any more.
        self._going: dict[str, float] = {}
        self._oldest: list[tuple[float, str]] = []
        #: What objects own that have to be looked at again, and how many levels of it.
        self._below: list[tuple[Iterator[str], int]] = []
        cluster.users_of = self._users_of

    def of(self, group: str) -> Account:
        return self._accounts.setdefault(group, Account())

    def forget(self, group: str) -> None:
        """The group is no more; what names it is counted when there is one again."""
        account = self._accounts.pop(group, None)
        if account is None:
            return
        for uid, line in account.lines.items():
            self._refer(group, uid, line, None)
        if due := (*account.lines, *account.due):
            self._accounts[group] = Account(due)

    async def settle(self, ask: Ask, *, check: bool = False) -> None:
        """Have all that the group is charged counted as it is stored at the moment of return.

        `check` goes over everything as if nothing were known. Raises ApiError, Unreachable; then what is left is due
        the next time.
        """
        slices = self._slices()
        await self._forget_owners(slices)
        account = self.of(ask.group)
        if account.run != ask.run:
            account.to_reckon |= dict.fromkeys(account.lines)
        account.due |= dict.fromkeys(account.passing)
        if check and account.lines:
            await self._begin_check(ask.group, slices)
        while True:
            # A group that went and came has another.
            account = self.of(ask.group)
            account.run = ask.run
            if self._journal or self._below:
                self._read_journal()
            elif account.due:
                await self._count(ask, account.due.popitem()[0])
            elif account.to_reckon:
                self._reckon(ask, account.to_reckon.popitem()[0])
            elif account.unchecked:
                await self._check(ask, next(reversed(account.unchecked)))
            elif account.checked is not None:
                self._end_check(ask.group, account, account.checked)
            else:
                return
            await slices.between()

    async def _forget_owners(self, slices: Slices) -> None:
        """Look again at what was about to go with its owner, and has not for as long as that is remembered."""
        while self._oldest:
            since, uid = self._oldest[0]
            if self._going.get(uid) == since:
                if self._cluster.going_since(uid) == since:
                    return
                del self._going[uid]
                self._journal.note(uid)
            heapq.heappop(self._oldest)
            await slices.between()

    # What has changed.

    def _read_journal(self) -> None:
        if self._journal.everything:
            self._begin_anew()
        elif self._below:
            uids, levels = self._below[-1]
            uid = next(uids, None)
            if uid is None:
                self._below.pop()
            else:
                self._place(uid, Noted(0, levels - 1))
        else:
            self._place(*self._journal.take())

    def _begin_anew(self) -> None:
        """All that is stored or was counted is looked at again; what is kept stands until it is."""
        self._journal.begin({*self._cluster.candidates(), *self._places, *self._costs.remembered()})

    def _place(self, uid: str, noted: Noted) -> None:
        """Have an object counted again in the groups that it is charged to now, and in no others."""
        standing = self._standing(uid)
        before = self._places.get(uid, frozenset())
        for group in before - set(standing.groups):
            self._take_from(group, uid)
        for group in standing.groups:
            self.of(group).due[uid] = None
            self._places.setdefault(uid, set()).add(group)
        self._note_going(uid, standing.going_since)
        if standing.obj is None:
            self._costs.forget(uid)
        elif noted.hops and (owner := self._cluster.owner_of(standing.obj)) is not None:
            self._journal.note(owner, Noted(noted.hops - 1))
        if noted.below:
            self._below.append((self._cluster.owned_by(uid), noted.below))

    def _note_going(self, uid: str, since: float | None) -> None:
        """Owners' deletions are forgotten in the order of their times, which is not the one in which they are read."""
        if since is None:
            self._going.pop(uid, None)
        elif self._going.get(uid) != since:
            self._going[uid] = since
            heapq.heappush(self._oldest, (since, uid))

    def _standing(self, uid: str) -> Standing:
        try:
            return self._cluster.standing(uid)
        except Exception:
            # As with an index that fails: one object must not keep all others from being counted.
            log.exception("an object is charged to no group, as nobody understands it", uid=uid)
            return Standing()

    def _take_from(self, group: str, uid: str) -> None:
        account = self.of(group)
        self._refer(group, uid, account.lines.get(uid), None)
        account.drop(uid)
        if not (account.lines or account.due) and self._cluster.groups.cached(group) is None:
            # Anybody may name groups that never were.
            self._accounts.pop(group, None)
        places = self._places.get(uid, set())
        places.discard(group)
        if not places:
            self._places.pop(uid, None)

    def _refer(self, group: str, uid: str, before: Line | None, now: Line | None) -> None:
        """Note what a workload is counted by: by its line in this group now, and by those in others."""
        asked = set(now.asked if now else ())
        for other in self._places.get(uid, ()):
            account = self._accounts.get(other) if other != group else None
            line = account.lines.get(uid) if account is not None else None
            asked.update(line.asked if line else ())
        self._journal.referrers.move(uid, before.asked if before else (), asked)

    def _users_of(self, reference: Reference) -> Collection[str]:
        """The groups of the workloads that were counted by an object."""
        return {group for uid in self._journal.referrers.of(reference) for group in self._places.get(uid, ())}

    # One workload.

    async def _count(self, ask: Ask, uid: str) -> None:
        """Whatever changes while others are awaited is noted, so that it is due again."""
        try:
            line = await self._line(ask, uid)
        except BaseException:
            self.of(ask.group).due[uid] = None
            raise
        if line is not None:
            self._put(ask.group, uid, line)

    async def _line(self, ask: Ask, uid: str) -> Line | None:
        """A workload counted from nothing; None where it is not the group's any more, and so has no line."""
        found = self._standing(uid)
        if found.adapter is not None and found.obj is not None and ask.group in found.groups:
            await self._costs.count(ask.group, found.adapter, found.obj, ask.promised)
            found = self._standing(uid)
        if found.adapter is None or found.obj is None or ask.group not in found.groups:
            if found.obj is None:
                self._costs.forget(uid)
            self._take_from(ask.group, uid)
            return None
        return self._lines.of(found.adapter, found.obj, ask.run, self._now())

    def _reckon(self, ask: Ask, uid: str) -> None:
        """The line of a workload of which nothing has changed but what it may still cost."""
        found = self._standing(uid)
        try:
            if found.adapter is not None and found.obj is not None:
                self._put(ask.group, uid, self._lines.of(found.adapter, found.obj, ask.run, self._now()))
        except BaseException:
            self.of(ask.group).due[uid] = None
            raise

    def _put(self, group: str, uid: str, line: Line) -> None:
        account = self.of(group)
        self._refer(group, uid, account.lines.get(uid), line)
        self._places.setdefault(uid, set()).add(group)
        account.put(uid, line)

    # The check.

    async def _begin_check(self, group: str, slices: Slices) -> None:
        found: dict[str, None] = {}
        for _, obj in self._cluster.charged_to(group):
            found[obj["metadata"]["uid"]] = None
            await slices.between()
        account = self.of(group)
        account.unchecked = {**dict.fromkeys(account.lines), **found}
        account.checked = Sums()

    async def _check(self, ask: Ask, uid: str) -> None:
        account = self.of(ask.group)
        known = account.lines.get(uid)
        if ask.group not in self._standing(uid).groups:
            if known is not None:
                self._tell(ask.group, known.counted, None)
            self._take_from(ask.group, uid)
            return
        line = await self._line(ask, uid)
        if line is None:
            return
        account, known = self.of(ask.group), self.of(ask.group).lines.get(uid)
        if known is None or not line.agrees(known):
            # Where something changed while others were awaited, it may have been this.
            is_sure = not (self._journal or self._below) and uid in account.unchecked and uid not in account.due
            if not is_sure:
                account.due[uid] = None
            elif known is None or not known.passes:
                self._tell(ask.group, known.counted if known is not None else None, line.counted)
        self._put(ask.group, uid, line)

    def _end_check(self, group: str, account: Account, checked: Sums) -> None:
        if not checked.agrees(account.sums):
            both = account.sums, checked
            kept, found = (Counted(group_slot(group), "", s.cost, s.beyond, {}, s.lien) for s in both)
            self._tell(group, kept, found)
        account.sums, account.checked = checked, None

    def _tell(self, group: str, kept: Counted | None, found: Counted | None) -> None:
        """Count twice, shout once: what was kept of something is not what it is counted at."""
        slot = (found or kept or Counted(group_slot(group), "", {})).slot
        amounts = [
            ", ".join(f"{name}={quantity.text(name, amount)}" for name, amount in sorted(add(c.cost, c.beyond).items()))
            if c is not None
            else "nothing"
            for c in (kept, found)
        ]
        text = f"{slot} was kept at {amounts[0]} and is counted at {amounts[1]}"
        log.error("kept sums were wrong", group=group, drift=text)
        metrics.CORRECTED.labels(group).inc()
        self.of(group).drift.append(text)
