"""The law of safe hours: what is spent never exceeds `hard`, whoever asks for what at the same time.

As long as pods end by the bounds that their workloads were admitted with, and nobody lowers `hard`. A webhook decides,
a write is stored at once, late or never, a controller recounts whenever it likes from what it has seen; pods start
when they like. The law is also shown to be worth something: each of the shortcuts below breaks it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.hours.budget import EARLY, HOUR, max_cost, remaining_commitment, run_start
from bizrq.quota.account import Account, AccountHours
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.recount import CountedObject, Snapshot, UsageSums, WriteState, recount
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Granted
from bizrq.units.quantity import NANO, round_up_milli
from bizrq.units.slot import Slot
from tests.support.catalog import CATALOG

GPU, CASH = "requests.nvidia.com/gpu", "cash/requests.nvidia.com/gpu"
HARD = {CASH: 40 * NANO}
#: Cards of a job.
MOST = 4

Fault = Callable[["World"], None]


@dataclass
class Job:
    """As stored. It runs from `start` to the end of its bound at most; `seen` is what the controller knows of it.

    Its pods are scheduled at `start`, and `early` before it says that it began, from when its bound is taken.
    """

    slot: Slot
    demand: int
    run: int
    version: int = 1
    start: int | None = None
    early: int = 0
    ended: int | None = None
    #: What it occupied before its demand changed, and since when it occupies the present one.
    spent: int = 0
    since: int = 0

    def cost(self, now: int) -> int:
        """Nano-units x milliseconds, by its own times."""
        if self.start is None:
            return self.spent
        return self.spent + self.demand * max(0, self.end(now) - self.since)

    def end(self, now: int) -> int:
        assert self.start is not None
        return min(now, self.start + self.early + self.run, self.ended if self.ended is not None else now)

    def is_over(self, now: int) -> bool:
        return self.start is not None and (self.ended is not None or now >= self.start + self.early + self.run)


@dataclass
class Write:
    """Something that was admitted and may be stored; `onto` is the version that it replaces."""

    uid: str
    slot: Slot
    demand: int
    run: int
    onto: int | None


@dataclass
class World:
    """One group, its workloads and all that is under way; shortcuts replace its parts."""

    carried: int = 0
    now: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    seen: dict[str, Job] = field(default_factory=dict)
    #: What was deleted, and which of that has been seen.
    gone: dict[str, Job] = field(default_factory=dict)
    seen_gone: frozenset[str] = frozenset()
    writes: list[Write] = field(default_factory=list)
    entries: list[Reservation] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: {CASH: 0})
    liens: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    counts_liens: bool = True
    promises_hours: bool = True
    raises_bases: bool = False
    pays_in_full: bool = True
    trusts_the_old: bool = False
    #: How long before they say so jobs begin, and what that may have cost of all.
    early: int = 0
    early_cost: int = 0

    def spent(self) -> int:
        return sum(job.cost(self.now) for job in (*self.jobs.values(), *self.gone.values()))

    def pledged(self) -> int:
        """What is spent, and what the stored jobs may still come to spend, in nano-units x milliseconds."""
        still = 0
        for job in self.jobs.values():
            if not job.is_over(self.now):
                still += job.demand * (job.run - (0 if job.start is None else self.now - job.start - job.early))
        return self.spent() + still

    def left_over(self) -> int:
        """What is left of what came over, as it was published."""
        return max(0, self.carried * NANO - self.told)

    told: int = 0

    def account(self) -> Account:
        hours = AccountHours(
            safe=True, committed=self.liens if self.counts_liens else {}, carried={CASH: self.left_over()}
        )
        return Account("nlp", HARD, self.used, self.entries, hours, catalog=CATALOG)

    def ask(self, charge: Charge) -> bool:
        account = self.account()
        verdict = decide(account, charge, self.now)
        if not isinstance(verdict, Granted):
            return False
        if verdict.reservation is not None:
            entry = verdict.reservation
            if not self.promises_hours:
                entry = replace(entry, amount={GPU: entry.amount[GPU], CASH: 0}, base={})
            account.reserve(entry)
        self.entries = account.reservations
        return True

    def create(self, demand: int, run: int, uid: str) -> None:
        """`name.1` and `name.2` are of one name."""
        slot = Slot("jobs.batch", "a", uid.partition(".")[0])
        charge = Charge(slot, uid, None, {GPU: demand * NANO}, max_run_time=run * HOUR)
        if self.ask(charge):
            self.writes.append(Write(uid, slot, demand * NANO, run * HOUR, None))

    def change(self, uid: str, demand: int, run: int) -> None:
        job = self.jobs[uid]
        if job.is_over(self.now):
            return
        before = {GPU: job.demand}
        run_before = job.run
        if self.trusts_the_old:
            # As if what the stored one had cost in all were still held for it.
            before = {GPU: max(job.demand, demand * NANO)}
            run_before = max(job.run, run * HOUR)
        charge = Charge(
            job.slot,
            uid,
            job.version,
            {GPU: demand * NANO},
            before,
            is_new=False,
            max_run_time=run * HOUR,
            max_run_time_before=run_before,
        )
        if self.ask(charge):
            self.writes.append(Write(uid, job.slot, demand * NANO, run * HOUR, job.version))

    def delete(self, uid: str) -> None:
        job = self.gone[uid] = self.jobs.pop(uid)
        self.end(job)

    def store(self, write: Write) -> None:
        self.writes.remove(write)
        job = self.jobs.get(write.uid)
        if write.onto is None:
            if not any(job.slot == write.slot for job in self.jobs.values()):
                self.jobs[write.uid] = Job(write.slot, write.demand, write.run)
        elif job is not None and job.version == write.onto and not job.is_over(self.now):
            if job.start is not None:
                job.spent, job.since = job.cost(self.now), self.now
            job.demand, job.run, job.version = write.demand, write.run, job.version + 1

    def start(self, job: Job) -> None:
        if job.start is None:
            job.start = job.since = self.now
            job.early = self.early
            self.early_cost += MOST * NANO * self.early

    def end(self, job: Job) -> None:
        if job.start is not None and not job.is_over(self.now):
            job.ended = self.now

    def watch(self) -> None:
        self.seen = {uid: replace(job) for uid, job in self.jobs.items()}
        self.seen_gone = frozenset(self.gone)

    def recount(self) -> None:
        """From what was seen; hours are spent by the pods' own times, known at once."""
        counted = [self.counted(uid, job) for uid, job in self.seen.items() if not job.is_over(self.now)]
        spent = self.spent()
        self.told = -(-spent // HOUR)
        entries = [(entry, self.sighting(entry)) for entry in self.entries]
        exact = {CASH: max(0, spent - self.carried * NANO * HOUR)}
        cash = {CASH: round_up_milli(max(0, self.told - self.carried * NANO))}
        found = recount(Snapshot(HARD, UsageSums(counted), [], entries, cash, self.used, safe=True, exact_cash=exact))
        assert found.committed is not None
        self.used, self.liens = found.used, found.committed
        self.entries = list(found.reservations)
        if self.raises_bases:
            whole = {each.slot: each.max_cost for each in counted}
            self.entries = [
                replace(e, base={**e.base, CASH: min(e.amount[CASH], whole.get(e.slot, {}).get(CASH, 0))})
                for e in self.entries
            ]

    def counted(self, uid: str, job: Job) -> CountedObject:
        cost = {GPU: job.demand}
        ran = 0 if job.start is None else self.now - run_start(job.start + job.early, job.start)
        still = remaining_commitment(cost, job.run, ran if self.pays_in_full else 2 * ran)
        return CountedObject(job.slot, uid, cost, {}, max_cost(cost, job.run), still)

    def sighting(self, entry: Reservation) -> WriteState:
        seen = self.seen.get(entry.uid)
        if entry.uid in self.seen_gone:
            return WriteState.OBSERVED
        if entry.uid in self.gone:
            return WriteState.PENDING
        if seen is not None and (entry.resource_version is None or seen.version > entry.resource_version):
            return WriteState.OBSERVED
        # A write that can never be stored any more was looked up.
        coming = any(write.uid == entry.uid for write in self.writes)
        stored = self.jobs.get(entry.uid)
        unseen = stored is not None and (seen is None or stored.version != seen.version)
        return WriteState.PENDING if coming or unseen else WriteState.EXPIRED


def play(seed: int, carried: int = 0, fault: Fault = lambda _: None, steps: int = 60, early: int = 0) -> bool:
    """Whether the law holds all along."""
    chance, world = random.Random(seed), World(carried, early=early)
    fault(world)
    for _ in range(steps):
        jobs = list(world.jobs.values())
        act = chance.choice(("create", "change", "store", "store", "start", "start", "end", "watch", "recount", "wait"))
        if act == "create":
            uid = f"{chance.choice('abcdef')}.{len(world.made)}"
            world.made.append(uid)
            world.create(chance.randint(1, MOST), chance.randint(1, 10), uid)
        elif act == "change" and world.jobs:
            world.change(chance.choice(list(world.jobs)), chance.randint(1, MOST), chance.randint(1, 10))
        elif act == "store" and world.writes:
            world.store(chance.choice(world.writes))
        elif act == "start" and jobs:
            world.start(chance.choice(jobs))
        elif act == "end" and jobs and chance.random() < 0.2:
            world.end(chance.choice(jobs))
        elif act == "end" and jobs:
            world.delete(chance.choice(list(world.jobs)))
        elif act == "watch":
            world.watch()
        elif act == "recount":
            world.recount()
        elif act == "wait":
            world.now += chance.randint(0, 2 * HOUR)
        if world.spent() > (HARD[CASH] + carried * NANO) * HOUR + world.early_cost:
            return False
    world.now += 100 * HOUR
    for job in world.jobs.values():
        world.start(job)
    world.now += 100 * HOUR
    return world.spent() <= (HARD[CASH] + carried * NANO) * HOUR + world.early_cost


@given(st.integers(0, 2**32), st.sampled_from([0, 15]), st.sampled_from([0, EARLY, 10 * EARLY]))
def test_what_is_spent_never_exceeds_what_was_granted(seed: int, carried: int, early: int) -> None:
    """But by what pods cost that are there before their job says that it began: a moment each."""
    assert play(seed, carried, early=early)


def _set(**shortcut: bool) -> Fault:
    def fault(world: World) -> None:
        for name, value in shortcut.items():
            setattr(world, name, value)

    return fault


SHORTCUTS = {
    "liens that nobody counts": _set(counts_liens=False),
    "promises without hours": _set(promises_hours=False),
    "liens that shrink faster than hours are spent": _set(pays_in_full=False),
    "a base of more than the stored object can have left": _set(trusts_the_old=True),
}


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_each_shortcut_breaks_the_law(shortcut: str) -> None:
    assert not all(play(seed, fault=SHORTCUTS[shortcut]) for seed in range(400))


def test_a_base_of_hours_that_a_recount_raised_would_break_the_law() -> None:
    """Two cards for ten hours have run for nine when they become one for nineteen: ten hours more, and two were held.
    What is counted in all, twenty, says nothing of that.
    """

    def room_for_another(world: World) -> bool:
        world.create(2, 10, "a")
        world.store(world.writes[0])
        [(uid, job)] = world.jobs.items()
        world.start(job)
        world.now = 9 * HOUR
        world.watch()
        world.recount()
        world.change(uid, 1, 19)
        world.recount()
        world.create(2, 10, "b")
        while world.writes:
            world.store(world.writes[0])
        for each in world.jobs.values():
            world.start(each)
        world.now += 100 * HOUR
        assert world.spent() == (48 if len(world.jobs) == 2 else 28) * NANO * HOUR
        return len(world.jobs) == 2

    naive = World()
    naive.raises_bases = True
    assert room_for_another(naive)
    assert not room_for_another(World())
