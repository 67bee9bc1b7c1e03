"""The cached usage of groups, updated as objects change: a recount costs what has changed, not a group's size.

This file alone decides when a workload is counted again. The dirty marks say what may have changed; until all of these
are processed, a group is not recounted. After a change that concerns everything, all groups start over. From time to
time a group is checked: each workload is counted from scratch. A difference without a dirty mark is an error: drift.

The work is done in slices, one workload at a time. `refresh` returns once nothing is left to do. What is read from then
until the next await is of that one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import structlog

from bizrq.kube.informer import Informer
from bizrq.quota.recount import CountedObject, UsageSums
from bizrq.units import quantity
from bizrq.units.resources import nonzero, restrict
from bizrq.units.slot import group_slot
from bizrq.workloads.owners import MAX_HOPS
from controller import metrics
from controller.usage.workload_cost import WorkloadCosts
from controller.usage.workload_usage import NO_MESSAGES, PrepaidRun, UsageBuilder, WorkloadUsage
from controller.watch.cluster import CATCH_UP, Cluster
from controller.watch.invalidation import Mark
from controller.watch.ownership import as_left
from controller.watch.placement import Placement
from controller.watch.time_slice import Yielder

log = structlog.get_logger(__name__)


class GroupUsage:
    """The usage of one group's workloads by uid, and their sums."""

    def __init__(self, due: Iterable[str] = ()) -> None:
        self.usages: dict[str, WorkloadUsage] = {}
        self.sums = UsageSums()
        #: The workloads with messages, with shared claims, that never could be counted, and that change unseen.
        self.with_messages: dict[str, WorkloadUsage] = {}
        self.with_claims: dict[str, WorkloadUsage] = {}
        self.unknown: dict[str, WorkloadUsage] = {}
        self.transient: dict[str, WorkloadUsage] = {}
        #: The workloads that the clock alone changes.
        self.changing: dict[str, WorkloadUsage] = {}
        #: What is left of workloads that are gone.
        self.leftovers: dict[str, WorkloadUsage] = {}
        #: By the uid of each maker of pods, the workloads that it makes them for.
        self.makers: dict[str, tuple[str, ...]] = {}
        #: The workloads whose makers are not compared with the remembered payers yet.
        self.uncompared: dict[str, None] = {}
        #: What makes pods and is another group's since that was asked for, as it was counted here if it was.
        self.departed: dict[str, WorkloadUsage | None] = {}
        #: The workloads that are charged for pods which have vanished.
        self.vanishing: dict[str, WorkloadUsage] = {}
        #: The workloads to count, and the workloads whose maximum run time alone is to be applied again.
        self.due = dict.fromkeys(due)
        self.to_reprice: dict[str, None] = {}
        self.run: PrepaidRun | None = None
        #: During a check: the workloads that are left, and the sums of those that are done.
        self.unchecked: dict[str, None] = {}
        self.checked: UsageSums | None = None
        #: Errors of the cache that are not reported yet, as text.
        self.drift: list[str] = []
        #: The workloads that have changed since a recount was reported, as they were counted then, None if not at all.
        self.changed: dict[str, CountedObject | None] = {}

    def put(self, uid: str, usage: WorkloadUsage) -> None:
        """Add or replace the usage of a workload."""
        self._move_makers(uid, self.usages.get(uid), usage)
        self._note_change(uid)
        self._take_out(uid)
        self.unchecked.pop(uid, None)
        self.to_reprice.pop(uid, None)
        self.usages[uid] = usage
        self.sums.add(usage.counted)
        if self.checked is not None:
            self.checked.add(usage.counted)
        kinds = (
            (self.with_messages, usage.messages is not NO_MESSAGES),
            (self.with_claims, bool(usage.shared or usage.shown)),
            (self.unknown, usage.is_unknown),
            (self.transient, usage.is_transient),
            (self.changing, usage.again is not None),
            (self.leftovers, usage.left is not None),
            (self.vanishing, bool(usage.vanished)),
        )
        for kept, belongs in kinds:
            if belongs:
                kept[uid] = usage
            else:
                kept.pop(uid, None)

    def drop(self, uid: str) -> None:
        """Remove a workload."""
        self._move_makers(uid, self.usages.get(uid), None)
        self._note_change(uid)
        self._take_out(uid)
        kinds = (
            *(self.with_messages, self.with_claims, self.unknown, self.transient),
            *(self.changing, self.leftovers, self.vanishing),
        )
        for lines in (self.usages, *kinds):
            lines.pop(uid, None)
        for marks in (self.due, self.to_reprice, self.unchecked):
            marks.pop(uid, None)

    def changes(self, names: Collection[str]) -> list[str]:
        """Return as text what is charged more of these names, or less, than when a recount was last reported."""
        told: list[str] = []
        for uid, before in self.changed.items():
            line = self.usages.get(uid)
            after = line.counted if line is not None else None
            was, now = (nonzero(restrict(each.charged, names)) if each is not None else {} for each in (before, after))
            if (counted := after or before) is not None and was != now:
                told.append(f"{counted.slot} {uid}: {quantity.texts(was)} to {quantity.texts(now)}")
        return told

    @property
    def again(self) -> int | None:
        """Return the first moment at which the clock alone changes the usage, in milliseconds since 1970."""
        return min((usage.again for usage in self.changing.values() if usage.again is not None), default=None)

    def changed_by(self, now: int) -> list[str]:
        """Return the workloads that the clock has changed since they were counted."""
        return [uid for uid, usage in self.changing.items() if usage.again is not None and usage.again <= now]

    def _move_makers(self, uid: str, old: WorkloadUsage | None, new: WorkloadUsage | None) -> None:
        """Record who makes pods for a workload from now on."""
        before, after = (
            (line.makers, line.place, line.models, line.left) if line is not None else None for line in (old, new)
        )
        if before == after:
            return
        for maker in old.makers if old is not None else ():
            others = tuple(other for other in self.makers[maker] if other != uid)
            if others:
                self.makers[maker] = others
            else:
                del self.makers[maker]
        for maker in new.makers if new is not None else ():
            self.makers[maker] = (*self.makers.get(maker, ()), uid)
        if new is not None:
            self.uncompared[uid] = None
        else:
            self.uncompared.pop(uid, None)

    def _note_change(self, uid: str) -> None:
        known = self.usages.get(uid)
        self.changed.setdefault(uid, known.counted if known is not None else None)

    def _take_out(self, uid: str) -> None:
        """Remove a workload from the sums, and from those of the check unless it is `unchecked`."""
        if (old := self.usages.get(uid)) is None:
            return
        self.sums.remove(old.counted)
        if self.checked is not None and uid not in self.unchecked:
            self.checked.remove(old.counted)


class UsageQuery(NamedTuple):
    """The input of a group's usage other than stored objects: its prepaid run."""

    group: str
    run: PrepaidRun | None = None


class UsageCache:
    """The usage of all groups. `refresh` brings one up to date; until the next await, `of` returns it as of now."""

    def __init__(
        self,
        cluster: Cluster,
        costs: WorkloadCosts,
        builder: UsageBuilder,
        now: Callable[[], int],
        yielder: Callable[[], Yielder] = lambda: Yielder(steps=8),
    ) -> None:
        self._yielder = yielder
        self._cluster = cluster
        self._dirty = cluster.dirty
        self._costs = costs
        self._builder = builder
        self._now = now
        self._groups: dict[str, GroupUsage] = {}
        self._counted_groups = cluster.counted_groups
        #: By uid, objects that were seen before their owner may have been: the informer that has to catch up, and with
        #: which revision. And the owners of those that have waited.
        self._awaiting: dict[str, tuple[Informer, int]] = {}
        self._waited: dict[str, str | None] = {}
        self._catching_up = asyncio.Lock()
        #: Iterators over the children of marked objects, and how many levels of these are marked.
        self._below: list[tuple[Iterator[str], int]] = []

    def of(self, group: str) -> GroupUsage:
        """Return the usage of a group as cached."""
        account = self._groups.get(group)
        if account is None:
            account = self._groups[group] = GroupUsage()
        return account

    def is_current(self, group: str) -> bool:
        """Return True where the usage of a group has all changes seen so far.

        Another group's `refresh` may have found what this one has to count.
        """
        account = self.of(group)
        is_waiting = self._awaiting or self._catching_up.locked()
        return not (self._dirty or self._below or account.due or account.to_reprice or is_waiting)

    def forget(self, group: str) -> None:
        """Forget a group that is gone. Objects that name it are counted once it exists again."""
        account = self._groups.pop(group, None)
        if account is None:
            return
        for uid, line in account.usages.items():
            self._refer(group, uid, line, None)
        if due := (*account.usages, *account.due):
            self._groups[group] = GroupUsage(due)

    async def refresh(self, query: UsageQuery, *, check: bool = False) -> None:
        """Count all workloads of the group, as they are stored at the moment of return.

        `check` counts each of them from scratch. Raises ApiError, Unreachable; then the rest is due next time.
        """
        slices = self._yielder()
        account = self.of(query.group)
        if account.run != query.run:
            account.to_reprice |= dict.fromkeys(account.usages)
        account.due |= dict.fromkeys((*account.transient, *account.changed_by(self._now())))
        if check and account.usages:
            await self._begin_check(query.group, slices)
        while True:
            # A group that was deleted and created again has another account.
            account = self.of(query.group)
            account.run = query.run
            if self._dirty or self._below:
                self._process_mark()
            elif account.due:
                await self._count(query, account.due.popitem()[0])
            elif account.to_reprice:
                self._reprice(query, account.to_reprice.popitem()[0])
            elif self._awaiting or self._catching_up.locked():
                # Before the check, and while another group's usage does it: what waits for its owner is not counted.
                await self._catch_up()
            elif account.unchecked:
                await self._check(query, next(reversed(account.unchecked)))
            elif account.checked is not None:
                self._end_check(query.group, account, account.checked)
            else:
                return
            await slices.step()

    async def _catch_up(self) -> None:
        """Let the informers of owners catch up with the objects that name these, and mark the objects again."""
        async with self._catching_up:
            waiting, self._awaiting = self._awaiting, {}
            try:
                for informer in {id(each): each for each, _ in waiting.values()}.values():
                    revision = max(wanted for each, wanted in waiting.values() if each is informer)
                    await informer.catch_up(revision, CATCH_UP)
            except BaseException:
                self._awaiting = {**waiting, **self._awaiting}
                raise
            for uid in waiting:
                obj = self._cluster.placements.stored(uid)
                self._waited[uid] = self._cluster.ownership.owner_of(obj) if obj is not None else None
                self._dirty.mark(uid, Mark(MAX_HOPS, MAX_HOPS))

    # Dirty marks.

    def _process_mark(self) -> None:
        if self._dirty.everything:
            self._restart()
        elif self._below:
            uids, levels = self._below[-1]
            uid = next(uids, None)
            if uid is None:
                self._below.pop()
            else:
                self._place(uid, Mark(0, levels - 1))
        else:
            self._place(*self._dirty.take())

    def _restart(self) -> None:
        """Mark all objects that are stored or were counted. Cached usage stays until then."""
        self._dirty.start({*self._cluster.placements.candidates(), *self._counted_groups, *self._costs.remembered()})

    def _place(self, uid: str, mark: Mark) -> None:
        """Make an object due in the groups that it is charged to now, and remove it from all others."""
        self._cluster.payers.note_reference(uid)
        standing = self._placement(uid)
        if standing.obj is None or standing.awaits is None:
            self._waited.pop(uid, None)
        elif self._waited.get(uid) != self._cluster.ownership.owner_of(standing.obj):
            self._awaiting[uid] = standing.awaits
            return
        for group in set(self._counted_groups.of(uid)).difference(standing.groups):
            self._take_from(group, uid)
        for group in standing.groups:
            self.of(group).due[uid] = None
            self._counted_groups.add(uid, group)
        known = self._cluster.payers.get(uid)
        if known is not None and known.gone is not None and standing.adapter is not None:
            self._note_adopted(uid, standing, known.group)
        if standing.obj is None:
            self._costs.forget(uid)
        elif mark.hops and (owner := self._cluster.ownership.owner_of(standing.obj)) is not None:
            self._dirty.mark(owner, Mark(mark.hops - 1))
        left = standing.left or known
        if mark.hops and left is not None and left.gone is not None:
            for _, workload in self._cluster.ownership.at(left.place):
                if workload is not None:
                    # It may be about to adopt this, or may have been.
                    self._dirty.mark(workload["metadata"]["uid"], Mark(mark.hops - 1))
        if mark.below:
            self._below.append((self._cluster.descendants.owned_by(uid), mark.below))

    def _note_adopted(self, uid: str, standing: Placement, group: str) -> None:
        """Note what was left in a group and makes pods for another now: it may not have been counted there."""
        keeper = self._cluster.ownership.payer_of(standing.obj) if standing.obj is not None else None
        if keeper is not None and self._cluster.ownership.group_of(keeper) != group:
            self.of(group).departed.setdefault(uid, None)

    def _placement(self, uid: str) -> Placement:
        try:
            return self._cluster.placements.of(uid)
        except Exception:
            # One object must not keep all others from being counted.
            log.exception("object cannot be placed and is charged to no group", uid=uid)
            return Placement()

    def _take_from(self, group: str, uid: str) -> None:
        account = self.of(group)
        line = account.usages.get(uid)
        self._refer(group, uid, line, None)
        if line is not None and (line.makers or self._cluster.informers.pod(uid) is not None):
            account.departed[uid] = line
        account.drop(uid)
        self._costs.leave(group, uid)
        if not (account.usages or account.due) and self._cluster.groups.cached(group) is None:
            # Labels may name groups that never existed.
            self._groups.pop(group, None)
        self._counted_groups.discard(uid, group)

    def _refer(self, group: str, uid: str, before: WorkloadUsage | None, now: WorkloadUsage | None) -> None:
        """Record the references that a workload is counted by, in this group and in others."""
        asked = set(now.asked if now else ())
        for other in self._counted_groups.of(uid):
            account = self._groups.get(other) if other != group else None
            line = account.usages.get(uid) if account is not None else None
            asked.update(line.asked if line else ())
        self._dirty.referrers.move(uid, before.asked if before else (), asked)

    # One workload.

    async def _count(self, query: UsageQuery, uid: str) -> None:
        """Count one workload. A change during an await marks it, so that it becomes due again."""
        try:
            line = await self._usage_of(query, uid, self._placement(uid))
        except BaseException:
            self.of(query.group).due[uid] = None
            raise
        if line is not None:
            self._put(query.group, uid, line)

    async def _usage_of(self, query: UsageQuery, uid: str, found: Placement) -> WorkloadUsage | None:
        """Return the usage of a workload that is `found` now, counted from scratch. None where it leaves the group."""
        if found.adapter is not None and found.obj is not None and query.group in found.groups:
            workload = as_left(found.obj, found.left)
            if await self._costs.count(query.group, found.adapter, workload):
                found = self._placement(uid)
        if found.adapter is None or found.obj is None or query.group not in found.groups:
            if found.obj is None:
                self._costs.forget(uid)
            self._take_from(query.group, uid)
            return None
        return self._builder.of(found.adapter, found.obj, found.left, query.run, self._now())

    def _reprice(self, query: UsageQuery, uid: str) -> None:
        """Replace the usage of a workload of which only the maximum cost has changed."""
        found = self._placement(uid)
        try:
            if found.adapter is not None and found.obj is not None:
                line = self._builder.of(found.adapter, found.obj, found.left, query.run, self._now())
                self._put(query.group, uid, line)
        except BaseException:
            self.of(query.group).due[uid] = None
            raise

    def _put(self, group: str, uid: str, usage: WorkloadUsage) -> None:
        account = self.of(group)
        self._refer(group, uid, account.usages.get(uid), usage)
        self._counted_groups.add(uid, group)
        account.put(uid, usage)

    # The check.

    async def _begin_check(self, group: str, yielder: Yielder) -> None:
        found: dict[str, None] = {}
        for _, obj in self._cluster.placements.charged_to(group):
            found[obj["metadata"]["uid"]] = None
            await yielder.step()
        account = self.of(group)
        account.unchecked = {**dict.fromkeys(account.usages), **found}
        account.checked = UsageSums()

    async def _check(self, query: UsageQuery, uid: str) -> None:
        account = self.of(query.group)
        known = account.usages.get(uid)
        found = self._placement(uid)
        if query.group not in found.groups:
            if known is not None:
                self._report_drift(query.group, known.counted, None)
            self._take_from(query.group, uid)
            return
        line = await self._usage_of(query, uid, found)
        if line is None:
            return
        account, known = self.of(query.group), self.of(query.group).usages.get(uid)
        if known is None or not line.equals(known):
            # If something changed during an await, it may have been this workload.
            is_sure = not (self._dirty or self._below) and uid in account.unchecked and uid not in account.due
            if not is_sure:
                account.due[uid] = None
            elif known is None or not (known.is_transient or uid in account.changed_by(self._now())):
                self._report_drift(query.group, known.counted if known is not None else None, line.counted)
        self._put(query.group, uid, line)

    def _end_check(self, group: str, account: GroupUsage, checked: UsageSums) -> None:
        if not checked.equals(account.sums):
            both = account.sums, checked
            kept, found = (CountedObject(group_slot(group), "", s.cost, s.unrequested, {}, s.committed) for s in both)
            self._report_drift(group, kept, found)
        account.sums, account.checked = checked, None

    def _report_drift(self, group: str, kept: CountedObject | None, found: CountedObject | None) -> None:
        """Report that cached usage differs from a count from scratch: log, metric, and event with the next status."""
        slot = (found or kept or CountedObject(group_slot(group), "", {})).slot
        amounts = [quantity.texts(counted.charged) if counted is not None else "nothing" for counted in (kept, found)]
        text = f"{slot} was cached at {amounts[0]} and is recounted at {amounts[1]}"
        log.error("cached usage was wrong", group=group, drift=text)
        metrics.CACHE_CORRECTED.inc(group)
        self.of(group).drift.append(text)
