"""Every interleaving of a few requests, with the code's own functions as the steps.

A world is a value: what is stored, what the groups' statuses say, what each controller has seen so far, and how far
each request is. `steps` lists what can happen next, each as atomic as the API server makes it: a webhook stores a
reservation or takes it back, a write is stored, fails or is refused elsewhere, a controller's watches move on, a
controller publishes. What a webhook decides and what a controller publishes comes from `Rules`, which asks `decide` and
`recount`; a wrong short cut is another `Rules`, or a patch of the code, and has to be found broken by the same
exploration.

Time is not in it: an entry may expire as soon as the writes it was made for can no longer be stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.recount import CountedObject, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.quota.verdict import Denied
from bizrq.units.quantity import NANO
from bizrq.units.slot import GROUP_SLOT_KIND, Slot
from tests.model.search import Finding, remembered, search
from tests.support.catalog import CATALOG
from tests.support.language import NOW, res, slot

Amounts = tuple[tuple[str, int], ...]
#: What a controller watches apart from one another: workloads, groups, and templates that workloads refer to.
KINDS = ("deployments.apps", GROUP_SLOT_KIND, "podtemplates")


class Status(NamedTuple):
    """`used` is None until the first recount; `counted_at` has a version for each of KINDS.

    `given` is how often allowances were given; it grows with the status as its resourceVersion does.
    """

    used: Amounts | None = None
    entries: tuple[str, ...] = ()
    counted_at: tuple[int, ...] = (0, 0, 0)
    given: int = 0


class Stored(NamedTuple):
    """A stored object; for a group `demand` is its `hard`, and it has a status."""

    place: Slot
    uid: str
    version: int
    group: str
    demand: Amounts
    status: Status | None = None
    generation: int = 1
    # A version below 0 is an object that is to go.


class Seen(NamedTuple):
    """What a controller keeps of a stored object; `cost` of one that refers to a template is its number of pods."""

    place: Slot
    uid: str
    version: int
    group: str
    cost: Amounts


class Kind(NamedTuple):
    """One controller's view of one kind: objects, deleted uids, and the version up to which it has seen."""

    objects: tuple[Seen, ...] = ()
    deleted: tuple[str, ...] = ()
    version: int = 0

    def at(self, place: Slot) -> Seen | None:
        return next((seen for seen in self.objects if seen.place == place), None)


class Promise(NamedTuple):
    """Which entry a request has stored: in which group, and what makes the entry its own."""

    group: str
    place: Slot
    uid: str
    #: Of the object that the change was decided on, None for a create.
    generation: int | None

    @classmethod
    def of(cls, group: str, entry: Reservation) -> Promise:
        return cls(group, entry.slot, entry.uid, entry.generation)


class Progress(NamedTuple):
    """How far a request is; `asked` is the write that was allowed, `ended` the version at which it was over.

    One that is "reserved" still has to find what it was counted from, besides itself, as it `read` it.
    """

    phase: str = "new"
    asked: Stored | None = None
    decided_on: int | None = None
    promises: tuple[Promise, ...] = ()
    ended: int = 0
    read: tuple[Slot, int] | None = None


#: What a granted charge leaves: the status, and the entry that stands for it, None where it needs none.
Admitted = tuple[Status, Reservation | None]


class World(NamedTuple):
    stored: tuple[Stored, ...]
    past: tuple[Stored, ...]
    version: int
    roots: tuple[tuple[str, Status], ...]
    caches: tuple[tuple[str, Status], ...]
    deleted: tuple[tuple[int, str], ...]
    views: tuple[tuple[Kind, ...], ...]
    progress: tuple[Progress, ...]


@dataclass(frozen=True)
class Request:
    verb: str
    place: Slot
    group: str = ""
    demand: Amounts = ()


@dataclass(frozen=True, eq=False)
class Scenario:
    """Root groups with their `hard`, and what people ask for, in any order; a word of them each is a sentence.

    `refers` has the workloads that refer to a template, which is stored from the start with one cpu: what such a
    workload names is its number of pods, as cpu.
    """

    groups: Mapping[str, str]
    asks: Sequence[str]
    controllers: int = 1
    kinds_apart: bool = False
    lost_replies: bool = False
    #: Whether webhooks refuse what they have reserved for already, as where that shows who else does.
    takes_back: bool = False
    #: Whether controllers start anew, from a list: it says what there is, and not what has gone.
    restarts: bool = False
    refers: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = field(init=False)
    hard: Mapping[str, Amounts] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "requests", tuple(_request(ask) for ask in self.asks))
        object.__setattr__(self, "hard", {name: amounts_of(res(hard)) for name, hard in self.groups.items()})


def _request(sentence: str) -> Request:
    """`create A cpu=6 in g`, `update A cpu=2`, `move A to h`, `delete A`, `touch A`; and the same of `group c`.

    `edit T cpu=3` is of a template.
    """
    verb, *words = sentence.split()
    place = slot(f"group {words.pop(1)}") if words[0] == "group" else slot(words[0])
    place = _template(words[0]) if verb == "edit" else place
    amounts, _, group = " ".join(words[1:]).replace("to ", "in ").partition("in ")
    return Request(verb, place, group, amounts_of(res(amounts)))


def _template(name: str) -> Slot:
    return Slot(KINDS[2], "team-a", name)


class Rules:
    """What webhooks and controllers do: as designed."""

    #: Whether a webhook reads again, once its promise is stored, what it has counted from.
    looks_again = True
    #: Of which requests a webhook takes the promise back when it refuses them.
    takes_back: Sequence[str] = ("create",)
    #: Whether what refers to a template leaves a promise in the group that it moves away from, too.
    marks_moves = True

    #: Whether a controller leaves a status alone that was counted from something newer than it has seen.
    minds_counted_at = True
    #: Whether a webhook may answer from a status that is no longer the stored one (only a wrong rule wants to).
    answers_from_cache = False
    #: Whether the account, too, has to hold what the laws say of it, and not only the store.
    keeps_accounts = True

    def admit(self, hard: Mapping[str, int], status: Status, charge: Charge) -> Admitted | None:
        """What a granted charge leaves; None where it is refused."""
        account = account_of(hard, status)
        verdict = decide(account, charge, NOW)
        if isinstance(verdict, Denied):
            return None
        if verdict.reservation is None:
            return status, None
        account.reserve(replace(verdict.reservation, expires=NOW))
        return status._replace(entries=lines(account.reservations)), verdict.reservation

    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        """What a view knows of an entry's object: delivered, or expired and proved by a later read.

        `over_since` is the version at which the last write was over that the entry was made for, None while one may
        still come; `now` is what a read finds.
        """
        here = kind.at(entry.awaited_slot)
        found = next((seen for seen in kind.objects if seen.uid == entry.uid), None)
        if entry.uid in kind.deleted:
            return WriteState.OBSERVED
        if found is None and entry.resource_version is not None and kind.version >= entry.resource_version:
            # It was stored at that version, so it has gone since.
            return WriteState.OBSERVED
        if found is not None and (entry.resource_version is None or found.version > entry.resource_version):
            return WriteState.OBSERVED
        if over_since is None or kind.version < over_since:
            return WriteState.PENDING
        agrees = (here and (here.uid, here.version)) == (now and (now.uid, now.version))
        return WriteState.EXPIRED if agrees else WriteState.PENDING

    def publish(
        self,
        hard: Mapping[str, int],
        status: Status,
        workloads: Sequence[CountedObject],
        children: Sequence[CountedObject],
        sightings: Sequence[tuple[Reservation, WriteState]],
    ) -> Status:
        found = recount(Snapshot(hard, UsageSums(workloads), children, sightings))
        return status._replace(used=amounts_of(found.used), entries=lines(found.reservations))


def account_of(hard: Mapping[str, int], status: Status) -> Account:
    return Account("g", hard, dict(status.used or ()), map(parse_reservation, status.entries), catalog=CATALOG)


def lines(entries: Sequence[Reservation]) -> tuple[str, ...]:
    return tuple(sorted(map(str, entries)))


def amounts_of(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted(amounts.items()))


# -- What can happen next ----------------------------------------------------------------------------------------------


def first(scenario: Scenario, *, cached: bool = False) -> World:
    nothing = Status(used=())
    roots = tuple(
        (name, nothing._replace(used=tuple((each, 0) for each, _ in hard))) for name, hard in scenario.hard.items()
    )
    templates = sorted({_template(name) for name in scenario.refers.values()})
    stored = tuple(Stored(place, f"u{place.name}", 0, "", amounts_of(res("cpu=1"))) for place in templates)
    views = ((Kind(), Kind(), Kind(tuple(Seen(*each[:5]) for each in stored))),) * scenario.controllers
    return World(stored, (), 0, roots, roots if cached else (), (), views, (Progress(),) * len(scenario.requests))


def steps(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    """What can happen next, in words, and the world after it."""
    for number in range(len(scenario.requests)):
        yield from request_steps(world, scenario, rules, number)
    for number in range(scenario.controllers):
        yield from watch_steps(world, scenario, number)
        yield from _publish(world, scenario, rules, number)
    if world.caches and world.caches != world.roots:
        yield "the webhook's cache moves on", world._replace(caches=world.roots)


def request_steps(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    """What can happen next to one request."""
    request, progress = scenario.requests[number], world.progress[number]
    if progress.phase == "new" and request.verb == "edit":
        yield from _edit(world, scenario, rules, number, request)
    elif progress.phase == "new" and rules.marks_moves and _leaves(world, scenario, request):
        yield from _mark(world, scenario, rules, number, request)
    elif progress.phase in ("new", "marked"):
        yield from _ask(world, scenario, rules, number, request)
    elif progress.phase == "reserved":
        yield from _look_again(world, number, progress)
    elif progress.phase == "allowed":
        yield from _write(world, number, progress)
        if scenario.takes_back and request.verb in rules.takes_back:
            yield from _take_back(world, scenario, number, progress)


def _ask(world: World, scenario: Scenario, rules: Rules, number: int, request: Request) -> Iterator[tuple[str, World]]:
    """A request reaches a webhook, with the object as it is or as a stale read has it."""
    current = stored_at(world.stored, request.place)
    if request.verb == "create":
        versions: list[Stored | None] = [None]
    else:
        versions = [current, *(old for old in world.past if old.place == request.place)] if current else []
    for old, template in itertools.product(versions, _read(world, scenario.refers.get(request.place.name))):
        asked, charge = change_of(number, request, old, template)
        says = f"{number} {request.verb} {request.place.name} {dict(request.demand)} of version {old and old.version}"
        says += f" with {template.place.name}@{template.version}" if template else ""
        if request.verb == "touch":
            yield f"{says}: no question", allow(world, number, asked, old, None)
            continue
        if charge is None:
            assert old is not None
            if old is current and may_go(world, old):
                yield f"{says}: nothing is charged to it", allow(world, number, asked, old, None)
            continue
        found = group_of(world, scenario, asked.group)
        if found is None:
            continue
        hard, status = dict(found[0]), found[1]
        for cached in {status, *(s for name, s in world.caches if name == asked.group)}:
            granted = rules.admit(hard, cached, charge)
            if granted is None:
                continue
            after, entry = granted
            read = (template.place, template.version) if template and entry and rules.looks_again else None
            if after == cached:
                if cached == status or rules.answers_from_cache:
                    promise = entry and Promise.of(asked.group, entry)
                    yield f"{says}: nothing to store", allow(world, number, asked, old, promise, read)
                continue
            if cached != status:
                continue  # The stored status is another: a conflict.
            promise = entry and Promise.of(asked.group, entry)
            reserved = with_status(world, asked.group, after)
            yield f"{says}: reserved {after.entries}", allow(reserved, number, asked, old, promise, read)
            if scenario.lost_replies:
                allowed = allow(reserved, number, asked, old, promise)
                yield f"{says}: reserved, reply lost", again(allowed, number, "new")


def _read(world: World, template: str | None) -> list[Stored | None]:
    """A template as it is, and as a stale read has it; nothing for a workload that refers to none."""
    if template is None:
        return [None]
    return [each for each in (*world.stored, *world.past) if each.place == _template(template)]


def _leaves(world: World, scenario: Scenario, request: Request) -> bool:
    current = stored_at(world.stored, request.place)
    refers = request.verb == "move" and request.place.name in scenario.refers
    return refers and current is not None and current.group != request.group


def _mark(world: World, scenario: Scenario, rules: Rules, number: int, request: Request) -> Iterator[tuple[str, World]]:
    """A move says so in the group that it leaves: an edit of the template would charge that one meanwhile."""
    versions = [each for each in (*world.stored, *world.past) if each.place == request.place]
    for old, template in itertools.product(versions, _read(world, scenario.refers[request.place.name])):
        if old.group == request.group:
            continue
        assert template is not None
        cost, seen = _times(old.demand, template), {template.place: (template.uid, template.version)}
        found = group_of(world, scenario, old.group)
        assert found is not None
        charge = Charge(
            old.place, old.uid, old.version, cost, cost, is_new=True, read_versions=seen, generation=old.generation
        )
        granted = rules.admit(dict(found[0]), found[1], charge)
        if granted is None or granted[1] is None:
            continue
        known = world.progress[number]
        promises = tuple(sorted({*known.promises, Promise.of(old.group, granted[1])}))
        marked = with_progress(with_status(world, old.group, granted[0]), number, Progress("marked", promises=promises))
        yield f"{number} moves {old.place.name}@{old.version}: says so in {old.group}: {granted[0].entries}", marked


def _edit(world: World, scenario: Scenario, rules: Rules, number: int, request: Request) -> Iterator[tuple[str, World]]:
    """A template's edit reaches a webhook: the workload that refers to it is charged, as it is or as a stale read
    has it.

    Only once it is there: that something begins to refer to a template just while that is edited is left to the
    recount, since neither of the two can know of the other.
    """
    [name] = [name for name, template in scenario.refers.items() if _template(template) == request.place]
    if stored_at(world.stored, slot(name)) is None:
        return
    users = [each for each in (*world.stored, *world.past) if each.place == slot(name)]
    for old in _read(world, request.place.name):
        assert old is not None
        asked = old._replace(demand=request.demand, generation=old.generation + 1)
        for user in users:
            says = f"{number} edits {old.place.name}@{old.version} to {dict(request.demand)} for {user.version}"
            cost, before = _times(user.demand, asked), _times(user.demand, old)
            seen = {user.place: (user.uid, user.version)}
            charge = Charge(
                user.place,
                old.uid,
                old.version,
                cost,
                before,
                is_new=False,
                pending_write=old.place,
                read_versions=seen,
                generation=old.generation,
            )
            found = group_of(world, scenario, user.group)
            assert found is not None
            hard, status = found
            granted = rules.admit(dict(hard), status, charge)
            if granted is None:
                continue
            after, entry = granted
            if entry is None:
                yield f"{says}: nothing more", allow(world, number, asked, old, None)
                continue
            promise = Promise.of(user.group, entry)
            reserved = with_status(world, user.group, after)
            read = (user.place, user.version) if rules.looks_again else None
            yield f"{says}: reserved {after.entries}", allow(reserved, number, asked, old, promise, read)


def _look_again(world: World, number: int, progress: Progress) -> Iterator[tuple[str, World]]:
    """What the promise was counted from is read once more, now that the promise is stored."""
    assert progress.read is not None
    place, version = progress.read
    found = stored_at(world.stored, place)
    if found is not None and found.version == version:
        yield (
            f"{number} finds {place.name}@{version} again",
            with_progress(world, number, progress._replace(phase="allowed", read=None)),
        )
    else:
        yield f"{number} finds another {place.name}", again(world, number, "new")


def _take_back(world: World, scenario: Scenario, number: int, progress: Progress) -> Iterator[tuple[str, World]]:
    """A webhook refuses what it has stored a promise for, and takes that back. It may decide it anew."""
    after = world
    for promise in progress.promises:
        found = group_of(after, scenario, promise.group)
        if found is None:
            continue
        kept = tuple(e for e in found[1].entries if Promise.of(promise.group, parse_reservation(e)) != promise)
        after = with_status(after, promise.group, found[1]._replace(entries=kept))
    for phase in ("new", "done"):
        yield f"{number} is refused by its webhook, which takes its promise back: {phase}", again(after, number, phase)


def change_of(
    number: int, request: Request, old: Stored | None, template: Stored | None
) -> tuple[Stored, Charge | None]:
    """The object as it would be, and the charge; no charge for a deletion."""
    uid = old.uid if old else f"u{number}"
    status = old.status if old else (Status() if request.place.kind == GROUP_SLOT_KIND else None)
    group = request.group or (old.group if old else "")
    keeps = request.verb in ("move", "delete", "touch") and old is not None
    demand = old.demand if keeps and old and not request.demand else request.demand
    version = -1 if request.verb == "delete" else 0
    generation = 1 if old is None else old.generation + (demand != old.demand)
    asked = Stored(request.place, uid, version, group, demand, status, generation)
    if request.verb in ("delete", "touch"):
        return asked, None
    stays = old is not None and old.group == group
    charge = Charge(
        request.place,
        uid,
        old.version if old else None,
        _times(asked.demand, template) if template else _cost(asked),
        ((_times(old.demand, template) if template else _cost(old)) if old is not None and stays else {}),
        is_new=not stays,
        read_versions={template.place: (template.uid, template.version)} if template else {},
        generation=old.generation if old else None,
    )
    return asked, charge


def _times(pods: Amounts, template: Stored | Seen | None) -> dict[str, int]:
    """What so many pods of a template cost; nothing where there is no template."""
    unit = dict(template.demand if isinstance(template, Stored) else template.cost) if template else {}
    return {name: number * unit.get(name, 0) // NANO for name, number in pods}


def _cost(found: Stored) -> dict[str, int]:
    """What a stored object costs whoever pays for it: a workload's demand, what a child group holds."""
    if found.status is None:
        return dict(found.demand)
    return held_by_child(
        dict(found.demand), dict(found.status.used or ()), map(parse_reservation, found.status.entries)
    )


def may_go(world: World, old: Stored) -> bool:
    """A group's deletion is decided from its own status and a live list; a workload's by nobody."""
    if old.status is None:
        return True
    return not old.status.entries and not any(found.group == old.place.name for found in world.stored)


def allow(
    world: World,
    number: int,
    asked: Stored,
    old: Stored | None,
    promise: Promise | None,
    read: tuple[Slot, int] | None = None,
) -> World:
    known = world.progress[number]
    promises = tuple(sorted({*known.promises, *((promise,) if promise else ())}))
    phase = "reserved" if read else "allowed"
    return with_progress(world, number, Progress(phase, asked, old.version if old else None, promises, read=read))


def _write(world: World, number: int, progress: Progress) -> Iterator[tuple[str, World]]:
    """A write that was allowed is stored, meets a conflict, or is refused by somebody else."""
    asked = progress.asked
    assert asked is not None
    current = stored_at(world.stored, asked.place)
    done = again(world, number, "done")
    if (current.version if current else None) == progress.decided_on:
        if asked.version < 0:
            yield f"{number} deletes {asked.place.name}", again(_store(world, current, None), number, "done")
        else:
            # A write of the spec leaves the status as it is, which has the version that was decided on.
            stored = asked._replace(version=world.version + 1)
            after = again(_store(world, current, stored), number, "done")
            yield f"{number} stores {asked.place.name}@{stored.version}", after
    elif current is not None and progress.decided_on is not None:
        yield f"{number} conflict, asks again", again(world, number, "new")
    else:
        yield f"{number} fails", done
    yield f"{number} is refused elsewhere", done


def again(world: World, number: int, phase: str) -> World:
    """The write that was allowed can no longer be stored: it is, or it never will be."""
    known = world.progress[number]
    return with_progress(world, number, Progress(phase, promises=known.promises, ended=world.version))


def _store(world: World, old: Stored | None, new: Stored | None) -> World:
    stored = tuple(sorted((*(each for each in world.stored if each is not old), *((new,) if new else ()))))
    past = tuple(each for each in world.past if old is None or each.place != old.place)
    past = tuple(sorted((*past, old))) if old is not None and new is not None else past
    deleted = (*world.deleted, (world.version + 1, old.uid)) if old is not None and new is None else world.deleted
    return world._replace(stored=stored, past=past, version=world.version + 1, deleted=deleted)


def watch_steps(world: World, scenario: Scenario, number: int) -> Iterator[tuple[str, World]]:
    """A controller's watches deliver everything that there is, both kinds at once or each for itself."""
    fresh = seen_now(world.stored, world.deleted, world.version)
    view = world.views[number]
    if scenario.restarts and (listed := seen_now(world.stored, (), world.version)) != view:
        yield f"controller {number} starts anew at {world.version}", _view(world, number, listed)
    wanted = [fresh]
    if scenario.kinds_apart:
        wanted = [(*view[:kind], fresh[kind], *view[kind + 1 :]) for kind in range(len(KINDS))]
    for now in wanted:
        if now != view:
            yield f"controller {number} sees up to {world.version}", _view(world, number, now)


def _kind(place: Slot) -> int:
    return KINDS.index(place.kind)


@remembered
def seen_now(stored: tuple[Stored, ...], deleted: tuple[tuple[int, str], ...], version: int) -> tuple[Kind, ...]:
    """A view of everything that there is."""
    seen: tuple[list[Seen], ...] = tuple([] for _ in KINDS)
    for each in stored:
        seen[_kind(each.place)].append(Seen(each.place, each.uid, each.version, each.group, amounts_of(_cost(each))))
    uids = tuple(uid for _, uid in deleted)
    return tuple(Kind(tuple(objects), uids, version) for objects in seen)


def _publish(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    for name in names(world, scenario):
        found = group_of(world, scenario, name)
        assert found is not None
        status = found[1]
        after = recounted(world, scenario, rules, number, name, status)
        if after is not None and (after.used, after.entries) != (status.used, status.entries):
            seen = after.counted_at
            says = f"controller {number} publishes {name} as of {seen}: {after.used}, {after.entries}"
            yield says, with_status(world, name, after)


def recounted(world: World, scenario: Scenario, rules: Rules, number: int, name: str, status: Status) -> Status | None:
    """What a controller makes of a group's status; None where it has to catch up first."""
    found = group_of(world, scenario, name)
    assert found is not None
    hard, view = found[0], world.views[number]
    versions = tuple(kind.version for kind in view)
    if rules.minds_counted_at and any(v < c for v, c in zip(versions, status.counted_at, strict=True)):
        return None
    sights = tuple(_sight(world, rules, name, parse_reservation(line), view) for line in status.entries)
    counted = tuple(
        tuple((o.place, o.uid, _counted(o, view, scenario)) for o in kind.objects if o.group == name)
        for kind in view[:2]
    )
    # A recount asks no version of what it counts: views that differ in nothing else have the same answer.
    used, entries = _published(rules, hard, status.used, status.entries, counted[0], counted[1], sights)
    return status._replace(
        used=used, entries=entries, counted_at=versions if rules.minds_counted_at else status.counted_at
    )


#: The slot and the uid of what is counted, and what it costs.
CountedAs = tuple[Slot, str, Amounts]


@remembered
def _published(
    rules: Rules,
    hard: Amounts,
    used: Amounts | None,
    entries: tuple[str, ...],
    workloads: tuple[CountedAs, ...],
    children: tuple[CountedAs, ...],
    sights: tuple[WriteState, ...],
) -> tuple[Amounts | None, tuple[str, ...]]:
    """`used` and the entries of the status that a recount comes to."""
    own, groups = (
        [CountedObject(place, uid, dict(cost)) for place, uid, cost in each] for each in (workloads, children)
    )
    sightings = list(zip(map(parse_reservation, entries), sights, strict=True))
    after = rules.publish(dict(hard), Status(used, entries), own, groups, sightings)
    return after.used, after.entries


def names(world: World, scenario: Scenario) -> list[str]:
    """All groups: the roots, and those that are stored."""
    return [*scenario.groups, *(each.place.name for each in world.stored if each.status is not None)]


def _counted(found: Seen, view: tuple[Kind, ...], scenario: Scenario) -> Amounts:
    """What a controller counts an object at, which may take a template that it has seen."""
    name = scenario.refers.get(found.place.name)
    return amounts_of(_times(found.cost, view[2].at(_template(name)))) if name else found.cost


def _sight(world: World, rules: Rules, group: str, entry: Reservation, view: tuple[Kind, ...]) -> WriteState:
    mine = Promise.of(group, entry)
    made = [each for each in world.progress if mine in each.promises]
    open_ = any(each.phase in ("marked", "noting", "reserved", "allowed") for each in made)
    over = None if open_ else max((each.ended for each in made), default=0)
    return rules.sighting(entry, view[_kind(entry.awaited_slot)], over, stored_at(world.stored, entry.awaited_slot))


def stored_at(objects: Sequence[Stored], place: Slot) -> Stored | None:
    return next((each for each in objects if each.place == place), None)


def group_of(world: World, scenario: Scenario, name: str) -> tuple[Amounts, Status] | None:
    """A group's `hard` and its status."""
    if name in scenario.hard:
        return scenario.hard[name], dict(world.roots)[name]
    found = next((each for each in world.stored if each.status is not None and each.place.name == name), None)
    return None if found is None or found.status is None else (found.demand, found.status)


def with_status(world: World, name: str, status: Status) -> World:
    """A status write; for a child group it is a new version of an object that its parent counts."""
    if name in dict(world.roots):
        return world._replace(roots=tuple((each, status if each == name else old) for each, old in world.roots))
    old = next(each for each in world.stored if each.status is not None and each.place.name == name)
    return _store(world, old, old._replace(version=world.version + 1, status=status))


def with_progress(world: World, number: int, progress: Progress) -> World:
    return world._replace(progress=(*world.progress[:number], progress, *world.progress[number + 1 :]))


def _view(world: World, number: int, view: tuple[Kind, ...]) -> World:
    return world._replace(views=(*world.views[:number], view, *world.views[number + 1 :]))


# -- What must hold ----------------------------------------------------------------------------------------------------


class Balance(NamedTuple):
    """What a group has stored, and what its account takes, in nano-units."""

    hard: Amounts
    demanded: Mapping[str, int]
    taken: Mapping[str, int]


def broken(before: World, world: World, scenario: Scenario, rules: Rules) -> str | None:
    """The first law that the world breaks, or the step to it."""
    balances = balances_of(world.stored, world.roots, scenario)
    for name in scenario.groups:
        hard, demanded, _ = balances[name]
        over = {each: amount for each, amount in demanded.items() if amount > dict(hard).get(each, amount)}
        if over:
            return f"I1: {name} has more stored than its hard: {over}"
    if not rules.keeps_accounts:
        return None
    earlier = balances_of(before.stored, before.roots, scenario)
    for name, (hard, demanded, taken) in balances.items():
        was = earlier[name].taken if name in earlier else {}
        for each, ceiling in hard:
            if demanded.get(each, 0) > taken.get(each, 0):
                return f"I2: {name} has {demanded.get(each)} of {each} stored, and {taken.get(each)} taken"
            if taken[each] > max(ceiling, was.get(each, 0)):
                return f"{name} takes {taken[each]} of {each}, more than its hard and than before"
    return None


@remembered
def balances_of(
    stored: tuple[Stored, ...], roots: tuple[tuple[str, Status], ...], scenario: Scenario
) -> dict[str, Balance]:
    """By group what the laws compare. They ask for nothing else of a world: it may be any with these objects."""
    world = World(stored, (), 0, roots, (), (), (), ())
    return {
        name: Balance(
            (group_of(world, scenario, name) or ((), None))[0],
            demand_of(world, scenario, name),
            _taken(world, scenario, name),
        )
        for name in names(world, scenario)
    }


def demand_of(world: World, scenario: Scenario, name: str) -> dict[str, int]:
    """What is stored under a group, whatever a status says: of a child its `hard`, or what is in it if that is more."""
    demanded: dict[str, int] = {}
    for each in world.stored:
        if each.group == name:
            inside = demand_of(world, scenario, each.place.name) if each.status is not None else {}
            template = scenario.refers.get(each.place.name)
            demand = (
                _times(each.demand, stored_at(world.stored, _template(template))) if template else dict(each.demand)
            )
            for resource, amount in demand.items():
                demanded[resource] = demanded.get(resource, 0) + max(amount, inside.get(resource, 0))
    return demanded


def _taken(world: World, scenario: Scenario, name: str) -> dict[str, int]:
    found = group_of(world, scenario, name)
    if found is None:
        return {}
    hard, status = found
    account = account_of(dict(hard), status)
    return {resource: account.taken(resource) for resource, _ in hard}


def unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    """What is still promised or miscounted once all requests are over and a controller has seen everything.

    So neither what the controllers have seen so far makes a difference, nor what only stale reads find.
    """
    return _unsettled(world._replace(past=(), caches=(), views=()), scenario, rules)


@remembered
def _unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    for _ in range(10):
        world = world._replace(views=(seen_now(world.stored, world.deleted, world.version),))
        published = next(_publish(world, scenario, rules, 0), None)
        if published is None:
            break
        _, world = published
    for name in scenario.groups:
        hard, status = group_of(world, scenario, name) or ((), Status())
        demanded = demand_of(world, scenario, name)
        if status.entries or dict(status.used or ()) != {each: demanded.get(each, 0) for each, _ in hard}:
            return f"{name} never settles: {status}, though {demanded} is stored"
    return None


def explore(scenario: Scenario, rules: Rules | None = None, most: int = 200_000) -> Finding:
    """Every world that the scenario can come to."""
    rules = rules or Rules()

    def law(before: World, world: World) -> str | None:
        found = broken(before, world, scenario, rules)
        if found is None and rules.keeps_accounts and all(each.phase == "done" for each in world.progress):
            found = unsettled(world, scenario, rules)
        return found

    start = first(scenario, cached=rules.answers_from_cache)
    return search(start, lambda world: steps(world, scenario, rules), law, most)
