"""R25: whatever happens to webhooks, controllers and the store, in any order, nothing is over-admitted.

Several webhook replicas with caches that lag, several controllers with watches that lag, kind by kind and event by
event, one store with one order. After every step, for every group and resource:

I1: what is stored is at most `hard`, unless a person lowered it.
I2: what is used and promised is at least what is stored, and at most `hard` too, unless a person lowered it.
I3: a published `used` is `selfUsed` and what the children held; and once all is settled, it is what is stored.

What webhooks and controllers conclude comes from the code (`decide`, `validate`, `recount`, `held_by_child`); what they
look at, and when, is played here. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bizrq.quota import group_validation
from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.recount import CountedObject, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation
from bizrq.quota.verdict import Denied, Granted
from bizrq.units.quantity import NANO
from bizrq.units.resources import Resources
from bizrq.units.slot import GROUP_SLOT_KIND, Slot, group_slot
from tests.support.catalog import CATALOG

CPU, GPU = "limits.cpu", "requests.nvidia.com/gpu"
#: An API write ends within this time, and a deleted uid is remembered for that.
LONGEST_WRITE, REMEMBERED = 34, 300
EXPIRED = LIFETIME // 1000
REPLICAS = CONTROLLERS = 2


@dataclass(frozen=True)
class Status:
    used: Resources | None = None
    entries: tuple[str, ...] = ()
    counted_at: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Stored:
    """A workload, or a group whose `demand` is its `hard`; `group` is who pays, "" for a root."""

    place: Slot
    uid: str
    version: int
    group: str
    demand: Resources
    status: Status | None = None
    generation: int = 1

    @property
    def is_group(self) -> bool:
        return self.status is not None

    @property
    def name(self) -> str:
        return self.place.name

    def account(self) -> Account:
        assert self.status is not None
        return Account(
            self.name, self.demand, self.status.used or {}, map(parse_reservation, self.status.entries), catalog=CATALOG
        )

    def cost(self) -> Resources:
        """What it costs whoever pays: a child what it holds, from this one version of it."""
        if self.status is None:
            return self.demand
        return held_by_child(self.demand, self.status.used or {}, map(parse_reservation, self.status.entries))


@dataclass(frozen=True)
class Event:
    version: int
    of_group: bool
    place: Slot
    uid: str
    found: Stored | None


class Conflict(Exception):
    pass


@dataclass
class Store:
    """The API server's: one order of versions, optimistic locks, a log that watches read."""

    objects: dict[Slot, Stored] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)

    @property
    def version(self) -> int:
        return len(self.log)

    def put(self, found: Stored, expected: int | None) -> Stored:
        here = self.objects.get(found.place)
        if (here.version if here else None) != expected or (here is not None and here.uid != found.uid):
            raise Conflict
        generation = here.generation + (here.demand != found.demand) if here is not None else 1
        stored = replace(found, version=self.version + 1, generation=generation)
        self.objects[found.place] = stored
        self.log.append(Event(stored.version, stored.is_group, stored.place, stored.uid, stored))
        return stored

    def remove(self, place: Slot) -> None:
        gone = self.objects.pop(place)
        self.log.append(Event(self.version + 1, gone.is_group, place, gone.uid, None))

    def group(self, name: str) -> Stored | None:
        return self.objects.get(group_slot(name))

    def groups(self) -> list[Stored]:
        return [each for each in self.objects.values() if each.is_group]

    def of(self, name: str) -> list[Stored]:
        return [each for each in self.objects.values() if each.group == name]


class Watch:
    """One kind as a process has seen it so far, event by event."""

    def __init__(self, store: Store, of_groups: bool, version: int = 0) -> None:
        self._log = store.log
        self._of_groups = of_groups
        self.version = 0
        self.objects: dict[Slot, Stored] = {}
        self.deleted: dict[str, float] = {}
        self.deliver(version, now=0.0)
        # A list says what is there, not what has gone.
        self.deleted.clear()

    def deliver(self, upto: int, now: float) -> None:
        for event in self._log[self.version : upto]:
            self.version = event.version
            if event.of_group is not self._of_groups:
                continue
            if event.found is None:
                del self.objects[event.place]
                self.deleted[event.uid] = now
            else:
                self.objects[event.place] = event.found

    def by_uid(self, uid: str) -> Stored | None:
        return next((each for each in self.objects.values() if each.uid == uid), None)


@dataclass
class Controller:
    workloads: Watch
    groups: Watch
    #: When each entry, as whoever made it wrote it, was first seen on this controller's own clock.
    first_seen: dict[str, float] = field(default_factory=dict)

    def watch(self, place: Slot) -> Watch:
        return self.groups if place.kind == GROUP_SLOT_KIND else self.workloads


@dataclass(frozen=True)
class Pending:
    """A write that was allowed and is under way; `decided_on` is the version that it may replace, None for a create."""

    wanted: Stored | None
    place: Slot
    decided_on: int | None
    since: float


def units(*amounts: int) -> Resources:
    return dict(zip((CPU, GPU), (amount * NANO for amount in amounts), strict=True))


NAMES = ["a", "b"]
CHILDREN = {"ai": "corp", "nlp": "ai", "ops": "corp"}
ALL_GROUPS = ["corp", *CHILDREN]
WORKLOADS = st.sampled_from(NAMES)
PAYERS = st.sampled_from(["nlp", "nlp", "nlp", "ai"])
#: What becomes of a write that was allowed; a lost reply is one that nobody hears of.
FATES = st.sampled_from(["stored", "stored", "under way", "under way", "lost"])
DEMANDS = st.builds(units, st.integers(0, 5), st.integers(0, 2))
HARD = st.builds(units, st.integers(2, 11), st.integers(3, 7))
REPLICA = st.integers(0, REPLICAS - 1)
CONTROLLER = st.integers(0, CONTROLLERS - 1)
LAG = st.integers(1, 6) | st.just(1_000_000)


class Protocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.clock = 0.0
        self.uids = count()
        self.pending: list[Pending] = []
        self.past: dict[Slot, Stored] = {}
        self.caches = [Watch(self.store, of_groups=True) for _ in range(REPLICAS)]
        self.controllers = [self._controller(0) for _ in range(CONTROLLERS)]
        #: What a person may find stored: `hard`, or what was taken when it was lowered, until less is.
        self.ceilings: dict[str, dict[str, int]] = {}

    def _controller(self, version: int) -> Controller:
        return Controller(Watch(self.store, False, version), Watch(self.store, True, version))

    @initialize(hard=HARD)
    def begin(self, hard: Resources) -> None:
        self.store.put(Stored(group_slot("corp"), "u-corp", 0, "", units(16, 9), Status()), None)
        self._settle()
        for name, parent in CHILDREN.items():
            if name != "ops":
                self._ask_group(0, name, parent, hard if name == "nlp" else units(11, 7), "stored")
                self._settle()

    # -- Webhooks --------------------------------------------------------------------------------------------------

    @rule(replica=REPLICA, name=WORKLOADS, payer=PAYERS, demand=DEMANDS, stale=st.booleans(), fate=FATES)
    def ask(self, replica: int, name: str, payer: str, demand: Resources, stale: bool, fate: str) -> None:
        """Somebody creates, changes or moves a workload."""
        self._decide(replica, payer, [self._workload(name, payer, demand, stale)], fate)

    @precondition(lambda self: any(not each.is_group for each in self.store.objects.values()))
    @rule(replica=REPLICA, number=st.integers(0, 20), demand=DEMANDS, stale=st.booleans(), fate=FATES)
    def ask_to_change(self, replica: int, number: int, demand: Resources, stale: bool, fate: str) -> None:
        """Somebody changes what is there, in its group."""
        there = [each for each in self.store.objects.values() if not each.is_group]
        found = there[number % len(there)]
        self._decide(replica, found.group, [self._workload(found.name, found.group, demand, stale)], fate)

    @rule(
        replica=REPLICA,
        payer=PAYERS,
        asked=st.lists(st.tuples(WORKLOADS, DEMANDS), min_size=2, max_size=4),
        fate=FATES,
    )
    def ask_together(self, replica: int, payer: str, asked: list[tuple[str, Resources]], fate: str) -> None:
        """Requests that wait on one group are decided in one write."""
        self._decide(replica, payer, [self._workload(name, payer, demand, False) for name, demand in asked], fate)

    def _workload(self, name: str, payer: str, demand: Resources, stale: bool) -> tuple[Charge, Pending]:
        place = Slot("deployments.apps", "team-a", name)
        old = self.store.objects.get(place)
        if stale and old is not None and place in self.past:
            old = self.past[place]
        uid = old.uid if old else f"u-{next(self.uids)}"
        stays = old is not None and old.group == payer
        version = old.version if old else None
        before, generation = old.demand if old and stays else {}, old.generation if old else None
        charge = Charge(place, uid, version, demand, before, is_new=not stays, generation=generation)
        return charge, Pending(Stored(place, uid, 0, payer, demand), place, version, self.clock)

    @rule(replica=REPLICA, name=st.sampled_from(["nlp", "nlp", *CHILDREN]), hard=HARD, fate=FATES)
    def ask_for_a_group(self, replica: int, name: str, hard: Resources, fate: str) -> None:
        """Somebody creates a group, or changes its `hard`."""
        self._ask_group(replica, name, CHILDREN[name], hard, fate)

    def _ask_group(self, replica: int, name: str, parent: str, hard: Resources, fate: str) -> None:
        old = self.store.group(name)
        uid = old.uid if old else f"u-{next(self.uids)}"
        wanted = Stored(group_slot(name), uid, 0, parent, hard, old.status if old else Status())
        version = old.version if old else None
        pending = Pending(wanted, wanted.place, version, self.clock)
        before, generation = old.cost() if old else {}, old.generation if old else None
        charge = Charge(wanted.place, uid, version, wanted.cost(), before, is_new=old is None, generation=generation)

        def check(found: Stored) -> Denied | None:
            asked = group_validation.Group(name, parent, hard)
            before = group_validation.Group(name, parent, old.demand) if old else None
            return group_validation.validate(
                group_validation.GroupWrite(asked, before, group_validation.Group(parent, found.group, found.demand))
            )

        self._decide(replica, parent, [(charge, pending)], fate, check)

    def _decide(
        self,
        replica: int,
        group: str,
        asked: Sequence[tuple[Charge, Pending]],
        fate: str,
        check: Callable[[Stored], Denied | None] = lambda _: None,
    ) -> None:
        """As webhooks do: allow from the cache if the write holds, refuse from a fresh read only."""
        stored, fresh = self.caches[replica].objects.get(group_slot(group)), False
        while True:
            if stored is None:
                if fresh:
                    return
                stored, fresh = self.store.group(group), True
                continue
            account = stored.account()
            verdicts = []
            for charge, _ in asked:
                verdict = check(stored) or decide(account, charge, int(self.clock * 1000))
                if isinstance(verdict, Granted) and verdict.reservation is not None:
                    account.reserve(verdict.reservation)
                verdicts.append(verdict)
            if not fresh and any(isinstance(verdict, Denied) for verdict in verdicts):
                stored = None
                continue
            if any(isinstance(verdict, Granted) and verdict.reservation is not None for verdict in verdicts):
                assert stored.status is not None
                entries = tuple(sorted(map(str, account.reservations)))
                assert entries != stored.status.entries, "storing it would be no write"
                try:
                    self._write_status(stored, replace(stored.status, entries=entries))
                except Conflict:
                    stored, fresh = None, False
                    continue
            break
        allowed = [each for (_, each), v in zip(asked, verdicts, strict=True) if isinstance(v, Granted)]
        if fate == "stored":
            for each in allowed:
                self._store(each)
        elif fate == "under way":
            self.pending += allowed

    def _write_status(self, stored: Stored, status: Status) -> None:
        self.store.put(replace(stored, status=status), stored.version)

    @rule(replica=REPLICA, events=LAG)
    def a_webhooks_cache_moves_on(self, replica: int, events: int) -> None:
        cache = self.caches[replica]
        cache.deliver(cache.version + events, self.clock)

    # -- The store -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pending)
    @rule(number=st.integers(0, 20), stored=st.integers(0, 3).map(bool))
    def finish(self, number: int, stored: bool) -> None:
        """A write that was allowed is stored, unless it meets a conflict, or somebody else refuses it."""
        pending = self.pending.pop(number % len(self.pending))
        if stored:
            self._store(pending)

    def _store(self, pending: Pending) -> None:
        here = self.store.objects.get(pending.place)
        if (here.version if here else None) != pending.decided_on:
            return
        if pending.wanted is None:
            self.store.remove(pending.place)
            self.past.pop(pending.place, None)
            return
        if pending.wanted.is_group and here is not None:
            self._lowered(here, pending.wanted.demand)
        if here is not None:
            self.past[pending.place] = here
        self.store.put(pending.wanted, pending.decided_on)

    @rule(name=WORKLOADS)
    def delete(self, name: str) -> None:
        """Nobody is asked."""
        place = Slot("deployments.apps", "team-a", name)
        if place in self.store.objects:
            self.store.remove(place)
            self.past.pop(place, None)

    @rule(name=st.sampled_from(list(CHILDREN)))
    def ask_to_delete_a_group(self, name: str) -> None:
        """Decided from its own status and a live list; repeated by the API server when the object has moved."""
        here = self.store.group(name)
        if here is not None and here.status is not None and not here.status.entries and not self.store.of(name):
            self.pending.append(Pending(None, here.place, here.version, self.clock))

    @rule(hard=st.builds(units, st.integers(8, 16), st.integers(5, 9)))
    def a_person_changes_the_root(self, hard: Resources) -> None:
        here = self.store.group("corp")
        assert here is not None
        self._lowered(here, hard)
        self.store.put(replace(here, demand=hard), here.version)

    def _lowered(self, here: Stored, hard: Resources) -> None:
        account = here.account()
        self.ceilings[here.name] = {name: max(hard[name], account.taken(name)) for name in hard}

    @rule(seconds=st.sampled_from([1, 10, 20, LONGEST_WRITE, REMEMBERED]))
    def time_passes(self, seconds: int) -> None:
        """A write that takes longer than any is over, and was not stored."""
        self.clock += seconds
        self.pending = [each for each in self.pending if self.clock - each.since < LONGEST_WRITE]
        for controller in self.controllers:
            for watch in (controller.workloads, controller.groups):
                watch.deleted = {uid: at for uid, at in watch.deleted.items() if self.clock - at < REMEMBERED}

    # -- Controllers -----------------------------------------------------------------------------------------------

    @rule(number=CONTROLLER, of_groups=st.booleans(), events=LAG)
    def a_watch_delivers(self, number: int, of_groups: bool, events: int) -> None:
        controller = self.controllers[number]
        watch = controller.groups if of_groups else controller.workloads
        watch.deliver(watch.version + events, self.clock)

    @rule(number=CONTROLLER, behind=st.integers(0, 12))
    def a_controller_starts_anew(self, number: int, behind: int) -> None:
        """From a list that may be old: what it must not do with it, `countedAt` says."""
        self.controllers[number] = self._controller(max(0, self.store.version - behind))

    @rule(number=CONTROLLER, workloads=LAG | st.just(0), groups=LAG)
    def look_and_recount(self, number: int, workloads: int, groups: int) -> None:
        controller = self.controllers[number]
        controller.workloads.deliver(controller.workloads.version + workloads, self.clock)
        for name in ALL_GROUPS:
            controller.groups.deliver(controller.groups.version + groups, self.clock)
            self._recount(controller, name)

    def _recount(self, controller: Controller, name: str) -> None:
        group = controller.groups.objects.get(group_slot(name))
        if group is None or group.status is None:
            return
        versions = (controller.workloads.version, controller.groups.version)
        if any(seen < counted for seen, counted in zip(versions, group.status.counted_at, strict=True)):
            return
        entries = [parse_reservation(line) for line in group.status.entries]
        workloads = [CountedObject(o.place, o.uid, o.cost()) for o in self._seen(controller.workloads, name)]
        children = [CountedObject(o.place, o.uid, o.cost()) for o in self._seen(controller.groups, name)]
        found = recount(
            Snapshot(
                group.demand,
                UsageSums(workloads),
                children,
                [(e, self._sighting(controller, name, e)) for e in entries],
            )
        )
        for resource in group.demand:
            own = sum(each.cost.get(resource, 0) for each in workloads)
            held = sum(each.cost.get(resource, 0) for each in children)
            assert (found.self_used[resource], found.used[resource]) == (own, own + held), "I3"
        status = Status(found.used, tuple(sorted(map(str, found.reservations))), versions)
        if (status.used, status.entries) != (group.status.used, group.status.entries):
            try:
                self._write_status(group, status)
            except Conflict:
                # As the real one: it reads the group, and looks again later.
                controller.groups.deliver(self.store.version, self.clock)

    def _seen(self, watch: Watch, name: str) -> Iterable[Stored]:
        return [each for each in watch.objects.values() if each.group == name]

    def _sighting(self, controller: Controller, group: str, entry: Reservation) -> WriteState:
        """Delivered, or expired on this controller's clock, read after that, and shown by the snapshot."""
        watch = controller.watch(entry.awaited_slot)
        here = watch.by_uid(entry.uid)
        was_stored = entry.resource_version is not None and entry.resource_version <= watch.version
        if entry.uid in watch.deleted or (here is None and was_stored):
            return WriteState.OBSERVED
        if here is not None and (entry.resource_version is None or here.version > entry.resource_version):
            return WriteState.OBSERVED
        line = f"{group} {replace(entry, base={})}"
        if self.clock - controller.first_seen.setdefault(line, self.clock) < EXPIRED:
            return WriteState.PENDING
        # Of an object that came and went there are events, too: the watch has reached the revision of a read.
        is_shown = all(event.place != entry.awaited_slot for event in self.store.log[watch.version :])
        return WriteState.EXPIRED if is_shown else WriteState.PENDING

    # -- Laws ------------------------------------------------------------------------------------------------------

    def _stored(self, name: str) -> dict[str, int]:
        """What is stored under a group, whatever any status says."""
        demanded = dict(units(0, 0))
        for each in self.store.of(name):
            inside = self._stored(each.name) if each.is_group else {}
            for resource, amount in each.demand.items():
                demanded[resource] += max(amount, inside.get(resource, 0))
        return demanded

    @invariant()
    def nothing_is_over_admitted_and_everything_is_accounted_for(self) -> None:
        for group in self.store.groups():
            account, stored = group.account(), self._stored(group.name)
            ceilings = self.ceilings.get(group.name, {})
            for name, hard in group.demand.items():
                taken = account.taken(name)
                ceiling = max(hard, min(ceilings.get(name, 0), taken))
                assert stored[name] <= taken, f"I2: {group.name} has {stored} stored, and {taken} of {name} taken"
                assert taken <= ceiling, f"I2: {group.name} takes {taken} of {name}, over {ceiling}"
                assert stored[name] <= ceiling, f"I1: {group.name} has {stored} stored, over {ceiling} of {name}"
                self.ceilings.setdefault(group.name, {})[name] = ceiling

    @invariant()
    def no_group_is_an_orphan(self) -> None:
        for group in self.store.groups():
            assert not group.group or self.store.group(group.group) is not None

    def teardown(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """With no write under way and a controller that sees everything, no promise stays and all is counted."""
        self.pending.clear()
        self.clock += EXPIRED
        controller = self.controllers[0]
        for last in (False, True):
            for name in reversed(ALL_GROUPS):
                for watch in (controller.workloads, controller.groups):
                    watch.deliver(self.store.version, self.clock)
                self._recount(controller, name)
            if not last:
                self.clock += EXPIRED
        for group in self.store.groups():
            assert group.status is not None
            stored = self._stored(group.name)
            assert group.status.entries == (), f"{group.name} is never rid of {group.status.entries}"
            assert group.status.used == {name: stored[name] for name in group.demand}, f"I3: {group}, {stored}"


def test_a_change_of_one_resource_never_overdraws_what_another_change_under_way_needs() -> None:
    """A has 6 of 10 cores and b 3; a raise of a to 7 is under way, its shrinking to 1 is stored and not counted yet."""
    play = Protocol()
    play.begin(units(10, 4))
    place = Slot("deployments.apps", "team-a", "a")

    def ask(name: str, cpu: int, gpu: int, fate: str) -> None:
        play.caches[0].deliver(play.store.version, play.clock)
        play.ask(0, name, "nlp", units(cpu, gpu), False, fate)
        play.nothing_is_over_admitted_and_everything_is_accounted_for()

    ask("a", 6, 0, "stored")
    ask("b", 3, 0, "stored")
    play._settle()
    ask("a", 7, 0, "under way")
    ask("a", 1, 0, "stored")
    ask("a", 1, 1, "stored")
    assert play.store.objects[place].demand == units(1, 1), "it needs no more than the raise left"
    for number in range(CONTROLLERS):
        play.look_and_recount(number, 1_000_000, 1_000_000)
        play.nothing_is_over_admitted_and_everything_is_accounted_for()
    play.finish(0, True)
    play.nothing_is_over_admitted_and_everything_is_accounted_for()
    play.teardown()


def test_a_promise_expires_once_the_watch_has_shown_that_its_object_came_and_went() -> None:
    """A watch that is before both would count the object afterwards, beside what was admitted in its place."""
    play = Protocol()
    play.begin(units(2, 3))
    play.ask(0, "a", "nlp", units(2, 0), False, "stored")
    play.look_and_recount(0, 1, 1_000_000)
    play.time_passes(REMEMBERED)
    play.delete("a")
    play.look_and_recount(0, 0, 1_000_000)
    play.ask(0, "a", "nlp", units(1, 0), False, "stored")
    play.look_and_recount(0, 1, 1_000_000)
    play.nothing_is_over_admitted_and_everything_is_accounted_for()
    play.teardown()


def test_a_change_of_what_has_gone_holds_nothing_where_a_controller_starts_anew() -> None:
    """The change is decided on an old version and can never be stored; a list does not say that its object has gone."""
    play = Protocol()
    play.begin(units(2, 3))
    for cpu in (1, 0):
        play.ask(0, "a", "nlp", units(cpu, 0), False, "stored")
        play.look_and_recount(0, 1_000_000, 1_000_000)
    play.ask(0, "a", "nlp", units(3, 0), True, "under way")
    play.nothing_is_over_admitted_and_everything_is_accounted_for()
    play.delete("a")
    play.a_controller_starts_anew(0, 0)
    play.look_and_recount(0, 1_000_000, 1_000_000)
    play.nothing_is_over_admitted_and_everything_is_accounted_for()
    play.teardown()


#: 500 plays of some 40 steps: about 20,000. A failure prints the steps, and the seed that plays them again.
TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=500,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
