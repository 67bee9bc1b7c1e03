"""Every interleaving of requests, Kubernetes' controllers and ours, with pods that outlive what asked for them.

`explorer` explores what is stored and promised. This one adds what runs: a workload's controller acts on what it has
observed, which may be an older spec; pods end slowly; what is deleted, orphaned, adopted or moved leaves pods behind.
Each group has a status and, beside it, a record of the payers that it counted. A line of the record comes with the
status that counts its payer, or is stored before it, and the record takes it over. One resource, in whole cores.

A world is a value. `steps` lists what can happen next, each as atomic as the API server makes it. What a slot is
charged comes from `slot_charge` and `free`, the code's own; the rest of the protocol comes from `Rules`. A short cut is
another `Rules` and has to be found broken.

Time is not in it: a pod that ends may go on ending, a free pod stays free, and an entry may expire as soon as the
writes that it was made for can no longer be stored. Left out as well: pods that a workload's controller makes after the
workload is gone, because it has not seen that yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from bizrq.workloads.ownership import charge
from bizrq.workloads.ownership.overlap import free
from tests.model.asks import SAME, Asked, Entry, Request, request_of
from tests.model.search import Finding, remembered, search

#: Main lines have no stay: the group pays for whatever the payer has.
ALL = -1
CORES = "cores"


class Work(NamedTuple):
    """A stored workload. `acts` is the number and size of pods that its controller has observed, of generation `seen`.

    One of `by_hand` has pods that people make, and none of its controller's.
    """

    name: str
    uid: str
    version: int
    generation: int
    group: str
    pods: int
    size: int
    acts: tuple[int, int] = (0, 0)
    seen: int = 0
    by_hand: bool = False
    surge: int = 0

    @property
    def demand(self) -> int:
        return self.pods * self.size


class Pod(NamedTuple):
    """A pod. `owner` is the uid that it refers to, "" once it is let go; `top` is that of the payer that made it.

    It is "up", "ending" since fewer are asked for or its owner is gone, or "out": deleted though as many are asked for,
    by a person or by a rollout. `uid` is "" but for those that people make.
    """

    owner: str
    top: str
    generation: int
    size: int
    state: str = "up"
    uid: str = ""


class Status(NamedTuple):
    """A group's status; `at` are the versions of workloads and of pods that it was counted from.

    `lines` of uid and stay are those that the record lacks, or has otherwise.
    """

    used: int = 0
    entries: tuple[Entry, ...] = ()
    at: tuple[int, int] = (0, 0)
    lines: tuple[tuple[str, int], ...] = ()


class Line(NamedTuple):
    """A line of a record, written from what was seen at `at`.

    `stay` is `ALL` while the payer is the group's own. What stays of a payer that moved away, or of pods that another
    group's workload has adopted, is an amount that never rises. A record has a line for each of these pods instead,
    which `moves` explores.
    """

    uid: str
    stay: int
    at: tuple[int, int]


class Record(NamedTuple):
    """What a group remembers, stored apart from its status: a line for each payer that it counted.

    Each line is on a page of its own: two lines are never written together, and who changes one need not have seen the
    others. Larger pages allow no more. Pages stay: `at` is what the latest of them was written from.
    """

    lines: tuple[Line, ...] = ()
    at: tuple[int, int] = (0, 0)


class View(NamedTuple):
    """What a controller has seen: of workloads and of pods, each up to a version and as of its last change."""

    works: tuple[Work, ...] = ()
    deleted: tuple[str, ...] = ()
    pods: tuple[Pod, ...] = ()
    seen: tuple[int, int] = (0, 0)
    last: tuple[int, int] = (0, 0)


class Progress(NamedTuple):
    phase: str = "new"
    asked: Work | Pod | None = None
    decided_on: int = 0
    promises: tuple[tuple[str, tuple[str, str, int]], ...] = ()
    ended: int = 0


class World(NamedTuple):
    works: tuple[Work, ...]
    pods: tuple[Pod, ...]
    deleted: tuple[str, ...]
    version: int
    last: tuple[int, int]
    statuses: tuple[Status, ...]
    records: tuple[Record, ...]
    views: tuple[View, ...]
    progress: tuple[Progress, ...]
    restarts: int = 0


@dataclass(frozen=True, eq=False)
class Scenario(Asked):
    """Groups with their `hard` in cores, and what people ask for in any order, each a sentence.

    `create A 2 in g`, `create A 2x3 in g` (two pods of three cores), `scale A 0`, `resize A 3`, `move A to h`,
    `move A 1 to h`, `delete A`, `orphan A`, `child A 2` (a person makes a pod of two cores for it), `kill A` (a pod is
    deleted). `then` before one: not before the one above it is over. `by_hand` and `surge` are of workloads by name.
    `stands` are created, counted and running at the start.
    """

    by_hand: str = ""
    surge: Mapping[str, int] = field(default_factory=dict)
    controllers: int = 1
    apart: bool = False


class Rules:
    """The protocol as it holds. Each flag is a rule; a short cut leaves one out."""

    #: A recount charges what runs beyond the demand, and what is ending besides.
    counts_pods = True
    #: It publishes only from pods that are no older than the last change of a workload that it has seen.
    wants_new_pods = True
    #: And from workloads that are no older than the last change of a pod, or a promise and its pods count twice.
    wants_new_works = True
    #: It publishes nothing, and drops no line, from a view that is older than what the status or record came from.
    minds_at = True
    #: A demand that fell counts until the workload's own controller has observed the change.
    minds_observed = True
    #: Creates of one slot add up, and so do updates of one object from different generations.
    adds_up = True
    #: What an older object of the same name has left is no part of a create's base, but for what will be adopted.
    keeps_leftovers_apart = True
    #: A recount lowers an entry's base, and never raises it.
    keeps_bases_low = True
    #: The record outlives the controller.
    stores = True
    #: What leaves the account is remembered first or by the same write: what was counted, and what was only promised.
    remembers_first = True
    #: A line stays in the status until the record has it.
    keeps_until_taken_over = True
    #: Of a line in the status and one in the record, the one in the status counts.
    status_counts_first = True
    #: A controller forgets what it has not seen.
    drops_unseen = False
    #: Pods that a workload has adopted, or will, are its own.
    counts_adopted = True
    #: Pods that are declared and not there yet are counted beside those that are.
    counts_missing = True
    #: An update's entry stays until the workload's controller has observed the write, and until then the demand counts
    #: at the entry's base.
    awaits_observation = True
    #: Pods that nobody counts in a demand stay with the group that paid when their workload moves.
    leaves_stays = True
    #: Each child is promised in the slot of its payer, so that the next one sees it.
    promises_children = True

    def charge(self, work: Work, pods: Sequence[Pod], demand: int) -> int:
        if not self.counts_pods:
            return demand
        up = [pod for pod in pods if pod.state == "up"]
        missing = max(0, work.pods - len(up)) * work.size if self.counts_missing and demand == work.demand else 0
        amounts = (demand, _cost(up), free_of(work, pods), _cost(pods) - _cost(up), missing)
        return charge.slot_charge(*({CORES: amount} for amount in amounts)).get(CORES, 0)


class _Fresh(NamedTuple):
    uid: str
    version: int
    created: int
    many: int = 1

    def some(self, many: int) -> _Fresh:
        return self._replace(many=many)


def free_of(work: Work, pods: Sequence[Pod]) -> int:
    """What is free of a workload's pods: the youngest are those of the latest generation."""
    if not work.surge:
        return 0
    up = [pod for pod in pods if pod.state == "up"]
    found = free([_Fresh(str(i), pod.generation, pod.generation) for i, pod in enumerate(up)], work.pods, 0)
    return min(sum(up[int(each.uid)].size for each in found), work.demand)


def _cost(pods: Iterable[Pod]) -> int:
    return sum(pod.size for pod in pods)


# -- What can happen next ----------------------------------------------------------------------------------------------


def first(scenario: Scenario) -> World:
    works: list[Work] = []
    pods: list[Pod] = []
    for number, sentence in enumerate(scenario.stands):
        asked = request_of(0, sentence)
        work = Work(
            asked.name, f"{asked.name}.s{number}", 1, 1, asked.group, asked.pods, asked.size, (asked.pods, asked.size),
            1, asked.name in scenario.by_hand, scenario.surge.get(asked.name, 0),
        )  # fmt: skip
        works.append(work)
        pods += [Pod(work.uid, work.uid, 1, work.size)] * (0 if work.by_hand else work.pods)
    at = (1, 1)
    statuses, records = [], []
    for name in scenario.names:
        own = [work for work in works if work.group == name]
        statuses.append(Status(sum(work.demand for work in own), (), at))
        records.append(Record(tuple(sorted(Line(work.uid, ALL, at) for work in own)), at))
    view = View(tuple(sorted(works)), (), tuple(sorted(pods)), at, at)
    return World(
        view.works,
        view.pods,
        (),
        1,
        at,
        tuple(statuses),
        tuple(records),
        (view,) * scenario.controllers,
        (Progress(),) * len(scenario.requests),
        scenario.restarts,
    )


def steps(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    """What can happen next, in words, and the world after it."""
    for number, request in enumerate(scenario.requests):
        progress = world.progress[number]
        if progress.phase == "allowed":
            yield from _write(world, scenario, number, progress)
        elif progress.phase == "new" and (request.after is None or world.progress[request.after].phase == "done"):
            yield from _ask(world, scenario, rules, number, request)
    for work in world.works:
        yield from _act(world, work)
    yield from _end(world)
    for number in range(scenario.controllers):
        yield from _watch(world, scenario, number)
        yield from _count(world, scenario, rules, number)
    if world.restarts:
        yield from _restart(world, rules)


def _ask(world: World, scenario: Scenario, rules: Rules, number: int, request: Request) -> Iterator[tuple[str, World]]:
    work = next((each for each in world.works if each.name == request.name), None)
    says = f"{number} {scenario.asks[number]}"
    if request.verb == "create":
        # A fresh read: a name that is taken is refused.
        if work is None:
            uid = f"{request.name}.{number}"
            asked = Work(
                request.name, uid, 0, 1, request.group, request.pods, request.size,
                by_hand=request.name in scenario.by_hand, surge=scenario.surge.get(request.name, 0),
            )  # fmt: skip
            base = min(asked.demand, _create_base(world, scenario, rules, asked))
            entry = Entry("create", request.name, uid, 0, 0, asked.demand, base)
            yield from _promise(world, scenario, rules, number, says, asked, 0, asked.group, entry)
        return
    if work is None and request.verb == "kill":
        for pod in {pod for pod in world.pods if pod.state == "up" and pod.top.partition(".")[0] == request.name}:
            yield says, _progress(_swap(world, pod, pod._replace(state="ending")), number, Progress("done"))
    if work is None:
        return
    if request.verb == "delete":
        yield says, _progress(_put(world, work, None), number, Progress("done", ended=world.version + 1))
    elif request.verb == "orphan":
        # Kubernetes' garbage collector takes the references out before the owner goes.
        let_go = (pod._replace(owner="") if pod.owner == work.uid else pod for pod in world.pods)
        yield says, _progress(_put(_pods(world, let_go), work, None), number, Progress("done", ended=world.version + 2))
    elif request.verb == "kill":
        for pod in {pod for pod in world.pods if pod.owner == work.uid and pod.state == "up"}:
            yield says, _progress(_swap(world, pod, pod._replace(state="out")), number, Progress("done"))
    elif request.verb == "child":
        yield from _ask_child(world, scenario, rules, number, request, work, says)
    else:
        yield from _ask_update(world, scenario, rules, number, request, work, says)


def _ask_update(
    world: World, scenario: Scenario, rules: Rules, number: int, request: Request, work: Work, says: str
) -> Iterator[tuple[str, World]]:
    pods = request.pods if request.verb in ("scale", "move") and request.pods != SAME else work.pods
    size = request.size if request.verb == "resize" else work.size
    asked = work._replace(pods=pods, size=size, group=request.group or work.group)
    if (pods, size) != (work.pods, work.size):
        asked = asked._replace(generation=work.generation + 1)
    before = work.demand if asked.group == work.group else 0
    if asked.demand <= before and asked.group == work.group:
        yield f"{says}: nothing more", _allow(world, number, asked, work.version, None)
        return
    entry = Entry("update", work.name, work.uid, work.version, work.generation, asked.demand, before)
    yield from _promise(world, scenario, rules, number, says, asked, work.version, asked.group, entry)


def _ask_child(
    world: World, scenario: Scenario, rules: Rules, number: int, request: Request, work: Work, says: str
) -> Iterator[tuple[str, World]]:
    """A person makes a pod for a workload: the workload's demand pays as far as no other child takes it."""
    uid = f"p{number}"
    siblings = [pod for pod in world.pods if pod.owner == work.uid and pod.state == "up"]
    taken = _cost(siblings)
    if rules.promises_children:
        there = {pod.uid for pod in siblings}
        entries = _status(world, scenario, work.group).entries
        taken += sum(e.amount for e in entries if (e.kind, e.name) == ("child", work.name) and e.uid not in there)
    unpaid = min(request.size, max(0, taken + request.size - work.demand))
    asked = Pod(work.uid, work.uid, 0, request.size, "up", uid)
    if not unpaid and not rules.promises_children:
        yield f"{says}: paid for", _allow(world, number, asked, 0, None)
        return
    entry = Entry("child", work.name, uid, 0, 0, request.size, request.size - unpaid)
    yield from _promise(world, scenario, rules, number, says, asked, 0, work.group, entry)


def _create_base(world: World, scenario: Scenario, rules: Rules, asked: Work) -> int:
    """What `used` holds of a create: pods that were let go and that it will adopt, less what others are to adopt."""
    status = _status(world, scenario, asked.group)
    lines = _lines_of(world, scenario, rules, asked.group)
    mine = [pod for pod in world.pods if _matches(asked, pod) and lines.get(pod.top) == ALL]
    held = _cost(pod for pod in mine if not rules.keeps_leftovers_apart or (not pod.owner and pod.state == "up"))
    return max(0, held - sum(e.base for e in status.entries if (e.kind, e.name) == ("create", asked.name)))


def _matches(work: Work, pod: Pod) -> bool:
    """The selector: names of one workload select the same pods."""
    return pod.top.partition(".")[0] == work.name


def _promise(
    world: World,
    scenario: Scenario,
    rules: Rules,
    number: int,
    says: str,
    asked: Work | Pod,
    decided_on: int,
    group: str,
    entry: Entry,
) -> Iterator[tuple[str, World]]:
    """Reviews of one write share an entry: the largest amount, the smallest base, the latest version."""
    status = _status(world, scenario, group)
    kept: list[Entry] = []
    for each in status.entries:
        shares = each.key == entry.key if rules.adds_up else (each.kind, each.uid) == (entry.kind, entry.uid)
        if shares:
            entry = entry._replace(
                amount=max(each.amount, entry.amount),
                base=min(each.base, entry.base),
                version=max(each.version, entry.version),
            )
        else:
            kept.append(each)
    entries = tuple(sorted((*kept, entry)))
    if status.used + extras(entries, rules) <= scenario.groups[group]:
        after = _with_status(world, scenario, group, status._replace(entries=entries))
        yield f"{says}: promised {entry.extra}", _allow(after, number, asked, decided_on, (group, entry.key))


def extras(entries: Sequence[Entry], rules: Rules) -> int:
    if rules.adds_up:
        return sum(entry.extra for entry in entries)
    by_slot: dict[tuple[str, str], int] = {}
    for entry in entries:
        slot = (entry.name, entry.uid if entry.kind == "child" else "")
        by_slot[slot] = max(by_slot.get(slot, 0), entry.extra)
    return sum(by_slot.values())


def _write(world: World, scenario: Scenario, number: int, progress: Progress) -> Iterator[tuple[str, World]]:
    asked = progress.asked
    done = progress._replace(phase="done", asked=None, ended=world.version)
    stored = done._replace(ended=world.version + 1)
    if isinstance(asked, Pod):
        yield f"{number} stores {asked.uid}", _progress(_swap(world, None, asked), number, stored)
    elif asked is not None:
        current = next((each for each in world.works if each.name == asked.name), None)
        if (current.version if current else 0) == progress.decided_on:
            new = asked._replace(version=world.version + 1)
            if current is not None:
                new = new._replace(acts=current.acts, seen=current.seen)
            words = f"{number} stores {new.name}: {new.pods}x{new.size} in {new.group}"
            yield words, _progress(_put(world, current, new), number, stored)
        elif current is not None and progress.decided_on:
            yield f"{number} conflict, asks again", _progress(world, number, done._replace(phase="new"))
        else:
            yield f"{number} fails", _progress(world, number, done)
    if scenario.refuses:
        yield f"{number} is refused elsewhere", _progress(world, number, done)


def _act(world: World, work: Work) -> Iterator[tuple[str, World]]:
    """What the workload's own controller does, which goes by what it has observed."""
    if work.seen < work.generation:
        now = work._replace(acts=(work.pods, work.size), seen=work.generation)
        yield f"{work.uid}'s controller observes generation {work.generation}", _put(world, work, now)
    if work.by_hand or not work.seen:
        return
    wanted, size = work.acts
    up = [pod for pod in world.pods if pod.owner == work.uid and pod.state == "up"]
    mine = Pod(work.uid, work.uid, work.seen, size)
    rolls = any(pod.size != size for pod in up)
    most = wanted + (work.surge if rolls else 0)
    adopts = [pod for pod in world.pods if not pod.owner and pod.state == "up" and _matches(work, pod)]
    if not adopts and len(up) < most and sum(pod.size == size for pod in up) < wanted:
        yield f"{work.uid}'s controller makes a pod of {size}", _swap(world, None, mine)
    for pod in set(up):
        if pod.size != size:
            words = f"{work.uid}'s controller replaces a pod of {pod.size}"
            yield words, _swap(world, pod, pod._replace(state="out"))
        elif len(up) > most:
            yield f"{work.uid}'s controller deletes a pod", _swap(world, pod, pod._replace(state="ending"))
    if adopts:
        adopted = (p._replace(owner=work.uid, generation=work.seen) if p in adopts else p for p in world.pods)
        yield f"{work.uid} adopts", _pods(world, adopted)


def _end(world: World) -> Iterator[tuple[str, World]]:
    """The garbage collector deletes what has no owner any more, and kubelets end what is deleted."""
    there = {work.uid for work in world.works}
    gone = {pod.owner for pod in world.pods if pod.owner and pod.state == "up"} - there
    for owner in gone:
        ending = (p._replace(state="ending") if (p.owner, p.state) == (owner, "up") else p for p in world.pods)
        yield f"the pods of {owner} are deleted", _pods(world, ending)
    for pod in {pod for pod in world.pods if pod.state != "up"}:
        yield f"a pod of {pod.owner or pod.top} is gone", _swap(world, pod, None)


def _watch(world: World, scenario: Scenario, number: int) -> Iterator[tuple[str, World]]:
    view, version = world.views[number], world.version
    wanted = [View(world.works, world.deleted, world.pods, (version, version), world.last)]
    if scenario.apart:
        works = View(world.works, world.deleted, view.pods, (version, view.seen[1]), (world.last[0], view.last[1]))
        pods = View(view.works, view.deleted, world.pods, (view.seen[0], version), (view.last[0], world.last[1]))
        wanted = [works, pods, *wanted]
    for now in wanted:
        if now != view:
            yield f"controller {number} sees up to {now.seen}", _view(world, number, now)


def _restart(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """A controller starts anew: it lists what is there, and has only what is stored."""
    view = View(world.works, (), world.pods, (world.version, world.version), world.last)
    after = world._replace(restarts=world.restarts - 1)
    if not rules.stores:
        statuses = tuple(each._replace(lines=()) for each in world.statuses)
        after = after._replace(statuses=statuses, records=(Record(),) * len(world.records))
    for number in range(len(world.views)):
        yield f"controller {number} restarts", _view(after, number, view)


# -- A recount ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """A view, sorted by who pays: the pods of each workload that stands, and by uid those of payers that do not."""

    works: Mapping[str, Work]
    pods: Mapping[str, Sequence[Pod]]
    left: Mapping[str, Sequence[Pod]]


def sort(view: View, main: Mapping[str, str], rules: Rules) -> Snapshot:
    works = {work.uid: work for work in view.works}
    pods: dict[str, list[Pod]] = {uid: [] for uid in works}
    left: dict[str, list[Pod]] = {}
    for pod in view.pods:
        payer = pod.owner if pod.owner in works else None
        if not pod.owner and pod.state == "up" and rules.counts_adopted:
            # What will adopt it: of its own group only, since nobody else counts it in a demand.
            fits = (w for w in view.works if _matches(w, pod) and w.group == main.get(pod.top) and not w.by_hand)
            payer = next((work.uid for work in fits), None)
        if payer is not None:
            pods[payer].append(pod)
        else:
            left.setdefault(pod.top, []).append(pod)
    return Snapshot(works, pods, left)


def granted(work: Work, entries: Sequence[Entry], rules: Rules) -> int:
    """The demand that a recount counts, beside which the `entries` that stay add what they promise.

    Until the workload's controller has observed a write, pods of an earlier generation may be about to end, and those
    that the entry promises come besides.
    """
    if work.seen == work.generation or not rules.awaits_observation:
        return work.demand
    mine = [e.base for e in entries if (e.kind, e.uid) == ("update", work.uid) and e.version < work.version]
    return min((work.demand, *mine))


def demand_of(work: Work, entries: Sequence[Entry], rules: Rules) -> int:
    """The same, or what the workload's controller may still act on if that is more."""
    demand = granted(work, entries, rules)
    lags = work.seen < work.generation and rules.minds_observed
    return max(demand, work.acts[0] * work.acts[1]) if lags else demand


class Recount:
    """One controller's recount of all groups, from one view."""

    def __init__(self, world: World, scenario: Scenario, rules: Rules, view: View) -> None:
        self.world = world
        self.scenario = scenario
        self.rules = rules
        self.view = view
        self.lines = {name: _lines_of(world, scenario, rules, name) for name in scenario.names}
        self.main = {uid: name for name, lines in self.lines.items() for uid, stay in lines.items() if stay == ALL}
        self.found = sort(view, self.main, rules)
        self.kept = {
            name: [e for e in _status(world, scenario, name).entries if not _is_dropped(world, rules, name, e, view)]
            for name in scenario.names
        }
        self.granted = {w.uid: granted(w, self.kept[w.group], rules) for w in view.works}
        self.demands = {w.uid: demand_of(w, self.kept[w.group], rules) for w in view.works}
        self.charges = {w.uid: rules.charge(w, self._pods(w), self.demands[w.uid]) for w in view.works}

    def _pods(self, work: Work) -> Sequence[Pod]:
        pods = self.found.pods[work.uid]
        return pods if self.rules.counts_adopted else [pod for pod in pods if pod.top == work.uid]

    def _stays(self, group: str, tops: Iterable[str]) -> int:
        """What other groups remember that stays with them, of payers with these uids."""
        others = [lines for name, lines in self.lines.items() if name != group]
        return sum(max(0, lines.get(top, 0)) for lines in others for top in tops)

    def _beyond(self, work: Work) -> int:
        return self.charges[work.uid] - self.granted[work.uid] if self.rules.leaves_stays else 0

    def remembered(self, group: str) -> dict[str, int]:
        """The lines that the group has to have."""
        found, lines = self.found, self.lines[group]
        new: dict[str, int] = {}
        entries = _status(self.world, self.scenario, group).entries
        awaited = {entry.uid for entry in entries}
        for uid in {*lines, *awaited}:
            stay, work, left = lines.get(uid), found.works.get(uid), _cost(found.left.get(uid, ()))
            if stay is None and (uid in self.main or (work is None and not left)):
                continue
            adopter = next((w for w in found.works.values() if any(p.top == uid for p in found.pods[w.uid])), None)
            beyond = 0
            if work is not None and work.group == group:
                new[uid] = ALL
            elif work is not None:
                beyond = self._beyond(work)
            elif left:
                beyond = left
            elif adopter is not None and adopter.group != group and self.rules.counts_adopted:
                beyond = min(self._beyond(adopter), _cost(found.pods[adopter.uid]))
            is_main = stay in (None, ALL)
            # What will be adopted is not yet.
            let_go = any(pod.top == uid and not pod.owner for pod in self.view.pods)
            if (left or let_go) and work is None and is_main:
                new[uid] = ALL
            elif beyond and not (stay is None and work is None):
                new[uid] = beyond if is_main else min(stay or 0, beyond)
            elif is_main and work is None and uid in awaited and not self.rules.drops_unseen:
                new[uid] = ALL
        new.update((work.uid, ALL) for work in found.works.values() if work.group == group)
        return new

    def published(self, group: str, lines: Mapping[str, int]) -> Status:
        """The status that goes with these lines; which of them it has itself is not said here."""
        found = self.found
        used = 0
        for uid, work in found.works.items():
            if work.group == group:
                tops = {uid, *(pod.top for pod in found.pods[uid])}
                used += self.charges[uid] - self._stays(group, tops)
        for uid, stay in lines.items():
            if stay != ALL:
                used += stay
            elif uid not in found.works:
                left = _cost(found.left.get(uid, ()))
                used += max(0, left - self._stays(group, [uid]))
        entries: list[Entry] = []
        for entry in sorted(self.kept[group], key=lambda each: each.generation):
            entries.append(entry._replace(base=self._base(group, entry, entries)))
        return Status(used, tuple(sorted(entries)), self.view.seen)

    def _base(self, group: str, entry: Entry, earlier: Sequence[Entry]) -> int:
        """What `used` holds of an entry's amount, less what earlier entries of the slot have of that."""
        work = next((w for w in self.view.works if w.name == entry.name and w.group == group), None)
        earlier = [each for each in earlier if (each.kind, each.name) == (entry.kind, entry.name)]
        beside = sum(each.base for each in earlier)
        if entry.kind == "create":
            mine = [pod for pod in self.view.pods if pod.top.partition(".")[0] == entry.name]
            mine = [pod for pod in mine if self.lines[group].get(pod.top) == ALL]
            if not self.rules.keeps_leftovers_apart:
                return min(entry.amount, _cost(mine))
            room = _cost(pod for pod in mine if pod.state == "up") - beside
        elif work is None or (entry.kind == "update" and work.uid != entry.uid):
            room = 0
        elif entry.kind == "child":
            room = self.demands[work.uid] - _cost(p for p in self.found.pods[work.uid] if p.state == "up") - beside
        elif not self.rules.keeps_bases_low:
            return min(entry.amount, self.granted[work.uid])
        elif work.version > entry.version:
            # It was delivered, and is not observed yet: the demand counts at its base.
            room = entry.base
        else:
            room = self.granted[work.uid] + sum(each.extra for each in earlier)
        return min(entry.base, entry.amount, max(0, room))


class Change(NamedTuple):
    """A line that a group has to have from now on, or no longer where `stay` is None.

    `known` is the stay of before.
    """

    group: str
    uid: str
    known: int | None
    stay: int | None

    @property
    def arrives(self) -> bool:
        """True where the group had no line of the payer and pays for it from now on."""
        return self.known is None and self.stay == ALL

    @property
    def is_of_stay(self) -> bool:
        return any(stay not in (None, ALL) for stay in (self.known, self.stay))


def _count(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    """A controller brings what is remembered up to what it has seen, by records or by statuses that it publishes."""
    view = world.views[number]
    old_pods, old_works = view.seen[1] < view.last[0], view.seen[0] < view.last[1]
    if (old_pods and rules.wants_new_pods) or (old_works and rules.wants_new_works):
        return
    for says, statuses, records in _counts(world.statuses, world.records, view, world.progress, scenario, rules):
        yield f"controller {number} {says}", world._replace(statuses=statuses, records=records)


@remembered
def _counts(
    statuses: tuple[Status, ...],
    records: tuple[Record, ...],
    view: View,
    progress: tuple[Progress, ...],
    scenario: Scenario,
    rules: Rules,
) -> Sequence[tuple[str, tuple[Status, ...], tuple[Record, ...]]]:
    """What a controller with this view may publish and record next, in words, and what is stored then."""
    world = World((), (), (), 0, (0, 0), statuses, records, (view,), progress)
    return [(says, after.statuses, after.records) for says, after in _counted(world, scenario, rules)]


def _counted(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    """The same, in a world with this view alone."""
    [view] = world.views
    counted = Recount(world, scenario, rules, view)
    due = list(_due(counted, scenario))
    # What leaves a group first: of two main lines nobody could tell which is the payer's.
    leaves = {change.uid for change in due if not change.arrives}
    for change in due:
        is_in_status = change.uid in dict(_status(world, scenario, change.group).lines)
        # A newer line is never in the record alone: the one in the status would count.
        if not (change.arrives and change.uid in leaves) and (change.stay is None or not is_in_status):
            yield from _remember(world, scenario, rules, change)
    for group in scenario.names:
        status = _status(world, scenario, group)
        for uid, stay in status.lines:
            if not any(change.uid == uid and change.group == group for change in due):
                yield from _remember(world, scenario, rules, Change(group, uid, stay, stay))
        if rules.minds_at and _is_older(view.seen, (*status.at, *_record(world, scenario, group).at)):
            continue
        mine = [change for change in due if change.group == group]
        kept = _kept(world, scenario, group)
        if rules.remembers_first:
            if any(change.stay is None and change.uid in kept for change in mine):
                continue
            # What stays with another group is no part of this one's charge.
            if any(change.is_of_stay for change in due if change.group != group):
                continue
            if any(change.arrives and change.uid in leaves for change in mine):
                continue
        new = dict(counted.lines[group])
        for change in mine if rules.remembers_first else ():
            new.pop(change.uid, None)
            if change.stay is not None:
                new[change.uid] = change.stay
        lines = tuple(sorted((uid, stay) for uid, stay in new.items() if kept.get(uid) != stay))
        if not rules.keeps_until_taken_over:
            lines = tuple(line for line in lines if line not in status.lines)
        now = counted.published(group, new)._replace(lines=lines)
        if now._replace(at=status.at) != status:
            entries = [tuple(entry) for entry in now.entries]
            words = f"publishes {group}: {now.used}, {entries}, remembers {lines}"
            yield words, _with_status(world, scenario, group, now)


def _due(counted: Recount, scenario: Scenario) -> Iterator[Change]:
    for group in scenario.names:
        known, wanted = counted.lines[group], counted.remembered(group)
        for uid in sorted({*known, *wanted}):
            stay = wanted.get(uid)
            if known.get(uid) != stay:
                yield Change(group, uid, known.get(uid), stay)


def _remember(world: World, scenario: Scenario, rules: Rules, change: Change) -> Iterator[tuple[str, World]]:
    """A page of a record is written, unless that was written from what is newer, or says so already."""
    seen, record = world.views[0].seen, _record(world, scenario, change.group)
    stored = next((line for line in record.lines if line.uid == change.uid), None)
    if (stored.stay if stored is not None else None) == change.stay:
        return
    if stored is not None and rules.minds_at and _is_older(seen, stored.at):
        return
    lines = [line for line in record.lines if line is not stored]
    if change.stay is not None:
        lines.append(Line(change.uid, change.stay, seen))
    words = f"records in {change.group}: {change.uid} {change.stay}"
    at = max(seen[0], record.at[0]), max(seen[1], record.at[1])
    yield words, _with_record(world, scenario, change.group, Record(tuple(sorted(lines)), at))


def _is_older(seen: tuple[int, int], at: Sequence[int]) -> bool:
    """True where what was seen is older than any of these pairs."""
    return any(have < wanted for have, wanted in zip(itertools.cycle(seen), at, strict=False))


def _is_dropped(world: World, rules: Rules, group: str, entry: Entry, view: View) -> bool:
    """The write that an entry awaits has been delivered, or is over for good and the view shows what became of it."""
    if entry.uid in view.deleted:
        return True
    work = next((w for w in view.works if w.uid == entry.uid), None)
    if entry.kind == "child":
        if any(pod.uid == entry.uid for pod in view.pods):
            return True
    elif entry.kind == "create":
        if work is not None:
            return True
    elif work is not None and work.version > entry.version:
        observed = work.seen > entry.generation or work.seen == work.generation
        return observed or work.group != group or not rules.awaits_observation
    mine = (group, entry.key)
    made = [progress for progress in world.progress if mine in progress.promises]
    if any(progress.phase == "allowed" for progress in made):
        return False
    return min(view.seen) >= max((progress.ended for progress in made), default=0)


# -- Small changes -----------------------------------------------------------------------------------------------------


def _status(world: World, scenario: Scenario, group: str) -> Status:
    return world.statuses[scenario.names.index(group)]


def _record(world: World, scenario: Scenario, group: str) -> Record:
    return world.records[scenario.names.index(group)]


def _kept(world: World, scenario: Scenario, group: str) -> dict[str, int]:
    """The lines of a group's record: uid and stay."""
    return {line.uid: line.stay for line in _record(world, scenario, group).lines}


def _lines_of(world: World, scenario: Scenario, rules: Rules, group: str) -> dict[str, int]:
    """All lines of a group, those in its status and those in its record."""
    said, kept = dict(_status(world, scenario, group).lines), _kept(world, scenario, group)
    return {**kept, **said} if rules.status_counts_first else {**said, **kept}


def _with_status(world: World, scenario: Scenario, group: str, status: Status) -> World:
    number = scenario.names.index(group)
    return world._replace(statuses=(*world.statuses[:number], status, *world.statuses[number + 1 :]))


def _with_record(world: World, scenario: Scenario, group: str, record: Record) -> World:
    number = scenario.names.index(group)
    return world._replace(records=(*world.records[:number], record, *world.records[number + 1 :]))


def _allow(
    world: World,
    number: int,
    asked: Work | Pod,
    decided_on: int,
    promise: tuple[str, tuple[str, str, int]] | None,
) -> World:
    promises = {*world.progress[number].promises, *((promise,) if promise else ())}
    return _progress(world, number, Progress("allowed", asked, decided_on, tuple(sorted(promises))))


def _progress(world: World, number: int, progress: Progress) -> World:
    return world._replace(progress=(*world.progress[:number], progress, *world.progress[number + 1 :]))


def _view(world: World, number: int, view: View) -> World:
    return world._replace(views=(*world.views[:number], view, *world.views[number + 1 :]))


def _put(world: World, old: Work | None, new: Work | None) -> World:
    works = tuple(sorted((*(each for each in world.works if each is not old), *((new,) if new else ()))))
    deleted = (*world.deleted, old.uid) if old is not None and new is None else world.deleted
    version = world.version + 1
    return world._replace(works=works, deleted=tuple(sorted(deleted)), version=version, last=(version, world.last[1]))


def _pods(world: World, pods: Iterable[Pod]) -> World:
    version = world.version + 1
    return world._replace(pods=tuple(sorted(pods)), version=version, last=(world.last[0], version))


def _swap(world: World, old: Pod | None, new: Pod | None) -> World:
    pods = list(world.pods)
    if old is not None:
        pods.remove(old)
    if new is not None:
        pods.append(new)
    return _pods(world, pods)


def ranked(world: World) -> World:
    """The same world with versions that are numbered from 0: only their order matters.

    One controller never sees what is older than what it has written.
    """
    statuses, records = world.statuses, world.records
    if len(world.views) == 1:
        statuses, records = tuple(map(_timeless, statuses)), tuple(map(_timeless, records))
    known = {0, world.version, *world.last}
    for part in (*world.works, *statuses, *records, *world.views, *world.progress):
        known.update(_versions(part))
    order = tuple(sorted(known))
    if order[-1] == len(order) - 1:
        # They are numbered already.
        is_same = (statuses, records) == (world.statuses, world.records)
        return world if is_same else world._replace(statuses=statuses, records=records)
    return World(
        tuple(_renumbered(work, order) for work in world.works),
        world.pods,
        world.deleted,
        order.index(world.version),
        (order.index(world.last[0]), order.index(world.last[1])),
        tuple(_renumbered(status, order) for status in statuses),
        tuple(_renumbered(record, order) for record in records),
        tuple(_renumbered(view, order) for view in world.views),
        tuple(_renumbered(progress, order) for progress in world.progress),
        world.restarts,
    )


Part = TypeVar("Part", Work, Status, Record, View, Progress)


@remembered
def _timeless(part: Part) -> Part:
    """A status or a record without what it was counted from."""
    if isinstance(part, Status):
        return part._replace(at=(0, 0))
    assert isinstance(part, Record)
    return Record(tuple(line._replace(at=(0, 0)) for line in part.lines))


@remembered
def _versions(part: Work | Status | Record | View | Progress) -> Collection[int]:
    """All versions that a part of a world speaks of."""
    if isinstance(part, Work):
        return (part.version,)
    if isinstance(part, Status):
        return {*part.at, *(entry.version for entry in part.entries)}
    if isinstance(part, Record):
        return {*part.at, *(version for line in part.lines for version in line.at)}
    if isinstance(part, View):
        return {*part.seen, *part.last, *(work.version for work in part.works)}
    return part.decided_on, part.ended


@remembered
def _renumbered(part: Part, order: tuple[int, ...]) -> Part:
    """The same part with the place in `order` of each version."""

    def two(pair: tuple[int, int]) -> tuple[int, int]:
        return order.index(pair[0]), order.index(pair[1])

    if isinstance(part, Work):
        return part._replace(version=order.index(part.version))
    if isinstance(part, Status):
        entries = tuple(entry._replace(version=order.index(entry.version)) for entry in part.entries)
        return part._replace(entries=entries, at=two(part.at))
    if isinstance(part, Record):
        return Record(tuple(line._replace(at=two(line.at)) for line in part.lines), two(part.at))
    if isinstance(part, View):
        works = tuple(_renumbered(work, order) for work in part.works)
        return part._replace(works=works, seen=two(part.seen), last=two(part.last))
    return part._replace(decided_on=order.index(part.decided_on), ended=order.index(part.ended))


# -- What must hold ----------------------------------------------------------------------------------------------------


def broken(before: World, world: World, scenario: Scenario, rules: Rules) -> str | None:
    """The first law that the world breaks.

    Pods that are deleted though as many are asked for ("out") are nobody's growth: no admission sees them go, so they
    are left out here and must be counted once the world is settled.
    """
    run = _running(world)
    taken = {name: _taken(world, scenario, rules, name) for name in scenario.names}
    if run > sum(taken.values()):
        return f"{run} cores run beyond those that are free, and {taken} are taken"
    if run > sum(scenario.groups.values()):
        return f"{run} cores run beyond those that are free, more than hard"
    for name, hard in scenario.groups.items():
        out = max(_out(world.pods), *(_out(view.pods) for view in world.views))
        if taken[name] > max(hard, _taken(before, scenario, rules, name)) + out:
            return f"{name} takes {taken[name]}, more than its hard and than before"
    return None


def _running(world: World) -> int:
    """The cores of all live pods but those that are free or out."""
    spared = 0
    for work in world.works:
        spared += free_of(work, [pod for pod in world.pods if pod.owner == work.uid])
    return _cost(pod for pod in world.pods if pod.state != "out") - spared


def _out(pods: Iterable[Pod]) -> int:
    return _cost(pod for pod in pods if pod.state == "out")


def _taken(world: World, scenario: Scenario, rules: Rules, name: str) -> int:
    status = _status(world, scenario, name)
    return status.used + extras(status.entries, rules)


def unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    """What is miscounted once all controllers have seen everything, and still is once all pods that end are gone.

    The first controller counts, from a view of what there is then: what any has seen so far makes no difference.
    """
    return _unsettled(ranked(world._replace(views=(View(),), restarts=0)), scenario, rules)


@remembered
def _unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    works = tuple(w._replace(acts=(w.pods, w.size), seen=w.generation) for w in world.works)
    world = world._replace(works=works, version=world.version + 1, last=(world.version + 1, world.last[1]))
    world = _settle(world, scenario, rules)
    spared = sum(free_of(work, [p for p in world.pods if p.owner == work.uid]) for work in world.works)
    used = sum(status.used for status in world.statuses)
    if any(status.entries for status in world.statuses):
        return f"promises stay: {world.statuses}"
    if used < _cost(world.pods) - spared:
        return f"{used} are used, and {_cost(world.pods) - spared} run"
    world = _pods(world, (p for p in world.pods if p.state == "up" and p.owner in {w.uid for w in world.works}))
    world = _settle(world, scenario, rules)
    used = sum(status.used for status in world.statuses)
    wanted = sum(
        rules.charge(w, [p for p in world.pods if p.owner == w.uid], demand_of(w, (), rules)) for w in world.works
    )
    if used != wanted:
        return f"{used} are used, and {wanted} are asked for or run"
    known = [_lines_of(world, scenario, rules, name) for name in scenario.names]
    if sorted(uid for lines in known for uid, stay in lines.items() if stay == ALL) != sorted(
        w.uid for w in world.works
    ):
        return f"remembered for nothing: {known}"
    return None


def _settle(world: World, scenario: Scenario, rules: Rules) -> World:
    for _ in range(60):
        moves = [*_watch(world, scenario, 0)][-1:] or [*_count(world, scenario, rules, 0)]
        if not moves:
            break
        world = moves[0][1]
    return world


def explore(scenario: Scenario, rules: Rules | None = None, most: int = 60_000) -> Finding:
    """Every world that the scenario can come to."""
    rules = rules or Rules()

    def law(before: World, world: World) -> str | None:
        found = broken(before, world, scenario, rules)
        if found is None and all(each.phase == "done" for each in world.progress):
            found = unsettled(world, scenario, rules)
        return found

    return search(first(scenario), lambda world: steps(world, scenario, rules), law, most, same=ranked)
