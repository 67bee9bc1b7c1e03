"""Every interleaving of moves between groups, pod by pod, with a controller of ours that sees them late.

`pods` explores who pays for what outlives what asked for it, with an amount for what stays of a move. This one has
moves alone, and a line for each pod that stays. It models `controller/usage/stays.py` as it stands, with what the
controller keeps in memory for that: the group of each pod of what moved (`controller/watch/moved_pods.py`), what left a
group and as what it was counted there, and demands that fell. A restart forgets all of it.

A world is a value. Pods cost one core each and are numbered by age. `may_pay` has the groups that may pay for a pod by
docs/ownership.md: the one that it was made for, and each whose workload asked for it while nobody had deleted it. That
is known to the laws alone, which add up pods and ask no controller.

The controller sees each write of a workload in order, unless its watch starts over, and pods as they are at one moment.
A workload's own controller ends the youngest of its pods first.

A workload that is deleted leaves its pods. The garbage collector deletes them later, or never: then they are orphans.

Left out: what `pods` explores (adoptions, sizes of pods, surge, the pages of a record, two controllers), objects
between a workload and its pods with a watch of their own, pods that a controller makes after its workload is gone, and
time. A pod that ends may go on ending, the controller waits for a workload's own one as long as it takes, and an entry
may expire as soon as its writes can no longer be stored. A restart takes longer than a workload's controller needs.
These are limits (docs/ownership.md, "What is not exact"): until a group is counted that a workload has left, it may pay
for pods of other groups' making, so each of them has it in `may_pay`. After a restart nobody knows for which group a
pod was made, nor where a workload asked for something and moved on before anybody counted it: the laws are of all
groups together then (`adds_up`), or the scenario leaves it out (`is_prompt`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from bizrq.workloads.ownership import charge
from tests.model.asks import SAME, Asked, Entry, Request, request_of
from tests.model.search import Finding, remembered, search

CORES = "cores"
#: Stands for the group of a workload that names none: it asks nobody, and what it makes is no group's.
NOBODY = "nobody"


class Observed(NamedTuple):
    """What a workload's controller goes by: so many pods, admitted in that group, of that generation."""

    pods: int = 0
    group: str = ""
    generation: int = 0


class Work(NamedTuple):
    """A stored workload. `acts` is the number of pods that its controller has observed, of generation `seen`.

    `acts_in` is the group that admitted that, and `fell` the version of the last write that asked for less. One that
    `is_gone` is how the watch shows its deletion. Where controllers tell late, this one `goes` by more than it has
    stored.
    """

    name: str
    version: int
    generation: int
    group: str
    pods: int
    acts: int = 0
    seen: int = 0
    acts_in: str = ""
    fell: int = 0
    is_gone: bool = False
    goes: Observed = Observed()

    @property
    def observed(self) -> Observed:
        return Observed(self.acts, self.acts_in, self.seen)

    @property
    def lags(self) -> bool:
        return self.seen < self.generation


class Pod(NamedTuple):
    """A pod, which is ending once it is not `up`. `may_pay` is what the laws know of it, sorted.

    `made` is the version of its creation, as long as the controller has not seen it.
    """

    uid: int
    owner: str
    up: bool
    may_pay: tuple[str, ...] = ()
    made: int = 0


class Line(NamedTuple):
    """A line of a workload: the group paid for it, after others whose lines have a lower `since`."""

    name: str
    since: int = 0
    is_gone: bool = False


class Status(NamedTuple):
    """A group's status, with the lines of the workloads that it counted and of the pods that stayed."""

    used: int = 0
    entries: tuple[Entry, ...] = ()
    workloads: tuple[Line, ...] = ()
    stayed: tuple[int, ...] = ()

    def line(self, name: str) -> Line | None:
        return next((line for line in self.workloads if line.name == name), None)


class Left(NamedTuple):
    """What left a group. `cost` is what it was counted at there, None where it was not.

    `promised` is what the entries of its writes added that are over.
    """

    group: str
    name: str
    cost: int | None
    may_be_lost: bool
    promised: int = 0


class Move(NamedTuple):
    """A write that took a workload out of a group, which the watch of pods has not reached."""

    name: str
    version: int
    group: str


class Hold(NamedTuple):
    """The demand that counts of a workload, and the group in which it was counted first."""

    name: str
    counts: int
    group: str


class View(NamedTuple):
    """What the controller has seen: `coming` are the writes of workloads that it has not, in order.

    `missed` is the version of the first change of a pod that it has not seen, 0 if there is none, and `last` that of
    the last one that it has.
    """

    works: tuple[Work, ...] = ()
    coming: tuple[Work, ...] = ()
    pods: tuple[Pod, ...] = ()
    missed: int = 0
    last: int = 0


class Mind(NamedTuple):
    """What the controller remembers, and no other one will.

    `notes` are pods and the groups that they were made for, `moves` those that unseen pods may be older than, `counted`
    has a cost by group and workload, `looked` are the groups whose record it has looked through, `settled` what it is
    done with, by group and workload, and `moved` the workloads that it has seen leave a group, with that. `deleted` are
    workloads whose deletion it has seen, `ended` those of which pods may be older, and `gone` those that a group pays
    for by a line that is to be stored, with that group. `given` are pods that a demand pays for, and the groups that
    they were taken from.
    """

    notes: tuple[tuple[int, str], ...] = ()
    moves: tuple[Move, ...] = ()
    counted: tuple[tuple[str, str, int], ...] = ()
    left: tuple[Left, ...] = ()
    holds: tuple[Hold, ...] = ()
    looked: tuple[str, ...] = ()
    settled: tuple[tuple[str, str], ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    deleted: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    given: tuple[tuple[int, str], ...] = ()


class Progress(NamedTuple):
    phase: str = "new"
    asked: Work | None = None
    decided_on: int = 0
    promises: tuple[tuple[str, tuple[str, str, int]], ...] = ()
    ended: int = 0


class World(NamedTuple):
    works: tuple[Work, ...]
    pods: tuple[Pod, ...]
    version: int
    last: int
    statuses: tuple[Status, ...]
    view: View
    mind: Mind
    progress: tuple[Progress, ...]
    restarts: int = 0


@dataclass(frozen=True, eq=False)
class Scenario(Asked):
    """Groups with their `hard` in cores, and what people ask for, as in `tests.model.pods`.

    The watches of workloads and of pods may be `late`, each by itself. A watch of workloads that `relists` may skip
    writes. Where `is_prompt`, nobody changes a workload before its own controller has observed, and ours has counted,
    what it asks for now. Where `is_acted_on`, it has the pods that it asks for, counted or not.
    """

    late: str = "works pods"
    relists: bool = False
    is_prompt: bool = False
    is_acted_on: bool = False
    #: The laws are of all groups together.
    adds_up: bool = False
    #: The workload's controller stores what it has observed after it has made the pods, as that of a Deployment does.
    tells_late: bool = False
    #: All pods are made in one second: nobody knows their order, so the controller takes the youngest for the oldest.
    one_second: bool = False

    @property
    def paying(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != NOBODY)

    @property
    def is_whole(self) -> bool:
        return self.adds_up or self.restarts > 0


class Rules:
    """How it is decided which pods stay. Each flag is a rule; a short cut leaves one out."""

    #: Pods that the demand in the new group does not pay for stay with the one that paid.
    leaves_stays = True
    #: The controller notes the group of each pod when it sees the move.
    notes_moves = True
    #: A pod that is seen after a move, but was made before it, is noted too.
    notes_late_pods = True
    #: Not the group that a workload leaves, but the one whose record has it where the other never counted it.
    notes_remembered = True
    #: That only before the controller has seen a move of the workload: after it, what is not noted is the other's.
    minds_seen_moves = True
    #: What a group was only promised by a move shows in pods that moved on from there, and in no others.
    doubts_lost_moves = True
    #: Pods that the demand in the new group pays for are that group's from then on.
    gives_covered = True
    #: No more stays than the status holds beyond what the group is charged now, and what was promised.
    minds_room = True
    #: A group goes on paying for pods that may still be made for it.
    holds_what_may_come = True
    #: The demand pays for pods once the workload's controller has observed what was promised.
    awaits_observation = True
    #: A controller that starts anew looks through the lines of the record for what has left.
    looks_through = True
    #: What is promised of a move ends with what left: it is room for what stays.
    counts_ending_promises = True
    #: A demand that fell counts until pods are seen that are no older.
    wants_new_pods = True
    #: No older than what shows that it is observed: until then a controller that lags made pods for it.
    wants_pods_of_now = True
    #: What has left a group is settled from pods that are no older than that.
    settles_from_new_pods = True
    #: In its place stays one that was taken for a pod that the demand pays for, and that its controller ends.
    takes_back = True
    #: Those first that are ending: no demand will pay for them. Pods of one second do not tell which is older.
    keeps_ending_first = True
    #: Of those that were surely made for the group, at first.
    keeps_noted_first = True
    #: Once the demand pays for a pod that stays, it stays no more.
    gives_up = True
    #: That a move to the group was stored, once a move out of it was seen.
    sees_moves_out = True
    #: What has left a group is not settled while the group still has a promise of it.
    awaits_promises = True
    #: What was promised for a demand that has changed since is over once pods are seen that are no older.
    sees_what_was_asked = True
    #: What was charged or promised for a workload that is gone is held until pods are seen that are no older, beyond
    #: those that are seen. The count goes on: in a busy group one that waits would never be done.
    holds_deleted = True
    #: What is counted meanwhile was promised, so it takes nothing of what is held for what is gone.
    counts_all_promises = True
    #: What a workload leaves that is deleted is the group's that it was in, counted there or not.
    leaves_where_it_was = True
    #: A demand that no group has admitted pays for no pods: those of the group that the workload left stay there.
    pays_by_a_group = True


# -- What can happen next ----------------------------------------------------------------------------------------------


def first(scenario: Scenario) -> World:
    works: list[Work] = []
    pods: list[Pod] = []
    for sentence in scenario.stands:
        asked = request_of(0, sentence)
        goes = Observed(asked.pods, asked.group, 1) if scenario.tells_late else Observed()
        works.append(Work(asked.name, 1, 1, asked.group, asked.pods, asked.pods, 1, asked.group, goes=goes))
        pods += [Pod(len(pods) + i, asked.name, True, (asked.group,)) for i in range(asked.pods)]
    statuses, counted = [], []
    for group in scenario.names:
        own = [work for work in works if work.group == group]
        statuses.append(Status(sum(work.pods for work in own), (), tuple(sorted(Line(work.name) for work in own))))
        counted += [(group, work.name, work.pods) for work in own]
    stored = tuple(sorted(works))
    holds = tuple(Hold(work.name, work.pods, work.group) for work in stored)
    return World(
        stored,
        tuple(pods),
        1,
        1,
        tuple(statuses),
        View(stored, (), tuple(pods), 0, 1),
        Mind(counted=tuple(sorted(counted)), holds=holds, looked=scenario.names),
        (Progress(),) * len(scenario.requests),
        scenario.restarts,
    )


def steps(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    """What can happen next, in words, and the world after it, before watches that are never late have seen that."""
    for number, request in enumerate(scenario.requests):
        progress = world.progress[number]
        if progress.phase == "allowed":
            yield from _write(world, scenario, number, progress)
        elif progress.phase == "new" and (request.after is None or world.progress[request.after].phase == "done"):
            yield from _ask(world, scenario, number, request)
    for work in world.works:
        yield from _act(world, scenario, work)
    for pod in world.pods:
        if not pod.up:
            yield f"pod {pod.uid} of {pod.owner} is gone", _with_pods(world, (p for p in world.pods if p != pod))
    for owner in {pod.owner for pod in world.pods if pod.up} - {work.name for work in world.works}:
        ending = (pod._replace(up=False) if pod.owner == owner else pod for pod in world.pods)
        yield f"the pods of {owner} are deleted", _with_pods(world, ending)
    yield from _watch(world, scenario, rules)
    for group in scenario.paying:
        yield from _count(world, scenario, rules, group)
    if world.restarts and not any(work.lags for work in world.works):
        view = View(world.works, (), world.pods, 0, world.last)
        after = world._replace(view=view, mind=Mind(), restarts=world.restarts - 1)
        yield "the controller restarts", after._replace(mind=_found_gone(after, scenario))


def _found_gone(world: World, scenario: Scenario) -> Mind:
    """What a controller finds gone that starts anew: the group pays that paid last."""
    there = {work.name for work in world.works}
    gone: set[tuple[str, str]] = set()
    for name in {line.name for status in world.statuses for line in status.workloads} - there:
        payer = _payer(name, world.statuses, world.mind, scenario)
        assert payer is not None
        if not payer.is_gone:
            gone.add((payer.group, name))
    return world.mind._replace(gone=tuple(sorted(gone)))


def _ask(world: World, scenario: Scenario, number: int, request: Request) -> Iterator[tuple[str, World]]:
    work = next((each for each in world.works if each.name == request.name), None)
    says = f"{number} {scenario.asks[number]}"
    if request.verb == "create":
        if work is None:
            asked = Work(request.name, 0, 1, request.group, request.pods)
            entry = Entry("create", request.name, request.name, 0, 0, asked.pods, 0)
            yield from _promise(world, scenario, number, says, asked, 0, entry)
        return
    if work is None:
        return
    if request.verb == "delete":
        if not scenario.is_prompt or _is_counted(world, work):
            done = _progress(world, number, Progress("done", ended=world.version + 1))
            yield says, _put(done, work, work._replace(is_gone=True))
        return
    pods = request.pods if request.pods != SAME else work.pods
    asked = work._replace(pods=pods, group=request.group or work.group)
    asked = asked._replace(generation=work.generation + (pods != work.pods))
    is_move = asked.group != work.group
    if scenario.is_prompt and not _is_counted(world, work):
        return
    if scenario.is_acted_on and not _is_acted_on(world, work):
        return
    if (pods <= work.pods and not is_move) or asked.group == NOBODY:
        yield f"{says}: nothing more", _allow(world, number, asked, work.version, None)
        return
    before = 0 if is_move else work.pods
    entry = Entry("update", work.name, work.name, work.version, work.generation, pods, before)
    earlier = next((e for e in _status(world, scenario, asked.group).entries if e.key == entry.key), None)
    # Upon a write that it would share the entry with: the recount could not tell how much of it is counted.
    if earlier is not None and earlier.version < work.version and earlier.amount and (is_move or before > earlier.base):
        return
    yield from _promise(world, scenario, number, says, asked, work.version, entry)


def _is_counted(world: World, work: Work) -> bool:
    """True once the workload's controller acts on what it asks for now, and ours has counted that if it is anything."""
    costs = (cost for group, name, cost in world.mind.counted if (group, name) == (work.group, work.name))
    return not work.lags and work.pods <= max(costs, default=0)


def _is_acted_on(world: World, work: Work) -> bool:
    """True once the workload has the pods that it asks for now."""
    return not work.lags and work.pods == sum(pod.owner == work.name and pod.up for pod in world.pods)


def _promise(
    world: World, scenario: Scenario, number: int, says: str, asked: Work, decided_on: int, entry: Entry
) -> Iterator[tuple[str, World]]:
    """Reviews of one write share an entry: the largest amount, the smallest base, the latest version."""
    status = _status(world, scenario, asked.group)
    for each in status.entries:
        if each.key == entry.key:
            amount, base = max(each.amount, entry.amount), min(each.base, entry.base)
            entry = entry._replace(amount=amount, base=base, version=max(each.version, entry.version))
    entries = tuple(sorted((*(each for each in status.entries if each.key != entry.key), entry)))
    if status.used + sum(each.extra for each in entries) <= scenario.groups[asked.group]:
        after = _with_status(world, scenario, asked.group, status._replace(entries=entries))
        words = f"{says}: promised {entry.extra}"
        yield words, _allow(after, number, asked, decided_on, (asked.group, entry.key))


def _allow(
    world: World, number: int, asked: Work, decided_on: int, promise: tuple[str, tuple[str, str, int]] | None
) -> World:
    promises = {*world.progress[number].promises, *((promise,) if promise else ())}
    asked = Work(asked.name, 0, asked.generation, asked.group, asked.pods)
    return _progress(world, number, Progress("allowed", asked, decided_on, tuple(sorted(promises))))


def _write(world: World, scenario: Scenario, number: int, progress: Progress) -> Iterator[tuple[str, World]]:
    asked = progress.asked
    assert asked is not None
    done = progress._replace(phase="done", asked=None, ended=world.version)
    current = next((each for each in world.works if each.name == asked.name), None)
    if (current.version if current else 0) == progress.decided_on:
        words = f"{number} stores {asked.name}: {asked.pods} in {asked.group}"
        new = asked
        if current is not None:
            new = asked._replace(acts=current.acts, seen=current.seen, acts_in=current.acts_in, fell=current.fell)
            if not new.lags or new.group == NOBODY:
                new = new._replace(acts_in=new.group)
            is_late = current.goes.generation < new.generation
            new = new._replace(goes=current.goes if is_late else current.goes._replace(group=new.group))
        falls = current is not None and asked.pods < current.pods
        yield words, _progress(_put(world, current, new, falls=falls), number, done._replace(ended=world.version + 1))
    elif current is not None and progress.decided_on:
        yield f"{number} conflict, asks again", _progress(world, number, done._replace(phase="new"))
    else:
        yield f"{number} fails", _progress(world, number, done)
    if scenario.refuses:
        yield f"{number} is refused elsewhere", _progress(world, number, done)


def _act(world: World, scenario: Scenario, work: Work) -> Iterator[tuple[str, World]]:
    """What the workload's own controller does, by what it has observed: it makes pods, and deletes the youngest."""
    goes = work.goes if scenario.tells_late else work.observed
    if scenario.tells_late and goes.generation < work.generation:
        others = (each for each in world.works if each != work)
        now = work._replace(goes=Observed(work.pods, work.group, work.generation))
        yield (
            f"{work.name}'s controller goes by generation {work.generation}",
            world._replace(works=tuple(sorted((*others, now)))),
        )
    elif work.lags:
        now = work._replace(acts=work.pods, seen=work.generation, acts_in=work.group)
        yield f"{work.name}'s controller observes generation {work.generation}", _put(world, work, now)
    if not goes.generation:
        return
    up = [pod for pod in world.pods if pod.owner == work.name and pod.up]
    if len(up) < goes.pods:
        uid = max(_uids(world), default=-1) + 1
        uncounted = (name for name in scenario.names if _status(world, scenario, name).line(work.name))
        may_pay = {goes.group, *((work.group,) if work.pods else ()), *uncounted}
        made = Pod(uid, work.name, True, tuple(sorted(may_pay)), world.version + 1)
        yield f"{work.name}'s controller makes pod {uid}", _with_pods(world, (*world.pods, made))
    elif len(up) > goes.pods:
        ends = max(up)
        pods = (pod._replace(up=False) if pod == ends else pod for pod in world.pods)
        yield f"{work.name}'s controller deletes pod {ends.uid}", _with_pods(world, pods)


def _watch(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    view = world.view
    if view.coming:
        yield f"the controller sees {_words(view.coming[0])}", _deliver(world, 1, scenario, rules)
        if scenario.relists and len(view.coming) > 1:
            yield f"the controller lists {_words(view.coming[-1])}", _deliver(world, len(view.coming), scenario, rules)
    if view.missed:
        yield f"the controller sees the pods {[pod.uid for pod in world.pods]}", _deliver_pods(world, rules)


def _words(work: Work) -> str:
    if work.is_gone:
        return f"that {work.name} is gone"
    return f"{work.name}: {work.pods} in {work.group}, generation {work.seen} of {work.generation} observed"


def _deliver(world: World, number: int, scenario: Scenario, rules: Rules) -> World:
    """Of so many writes the last is seen, and no other."""
    view, mind = world.view, world.mind
    old = {work.name: work for work in view.works}
    # The writes of several workloads come together.
    for new in {work.name: work for work in view.coming[:number]}.values():
        known = old.get(new.name)
        if new.is_gone:
            if known is not None:
                last = known._replace(version=new.version) if number > 1 else new
                mind = _note_deletion(world, mind, last, scenario, rules)
                del old[new.name]
            continue
        if known is not None and known.group not in (new.group, NOBODY) and rules.notes_moves:
            mind = _note_move(world, mind, known.group, new, scenario, rules)
        old[new.name] = new
    view = view._replace(works=tuple(sorted(old.values())), coming=view.coming[number:])
    return world._replace(view=view, mind=mind)


class Payer(NamedTuple):
    group: str
    is_gone: bool


def _payer(name: str, statuses: Sequence[Status], mind: Mind, scenario: Scenario) -> Payer | None:
    """The group that is remembered for a workload: of several the last one, stored or not."""
    found: list[tuple[int, str, bool]] = []
    for group, status in zip(scenario.names, statuses, strict=True):
        line, is_gone = status.line(name), (group, name) in mind.gone
        if line is not None:
            found.append((line.since, group, line.is_gone))
        if is_gone:
            found.append((len(statuses), group, True))
    return Payer(*max(found)[1:]) if found else None


def _note_deletion(world: World, mind: Mind, last: Work, scenario: Scenario, rules: Rules) -> Mind:
    """The group that it was in pays for what is left."""
    name, group = last.name, last.group
    if not rules.leaves_where_it_was and (payer := _payer(name, world.statuses, mind, scenario)) is not None:
        group = payer.group
    notes = {uid for uid, _ in mind.notes}
    is_expected = any(move.name == name for move in mind.moves)
    is_noted = is_expected or any(pod.owner == name and pod.uid in notes for pod in world.view.pods)
    return mind._replace(
        moved=tuple(each for each in mind.moved if each[0] != name or is_noted),
        holds=tuple(hold for hold in mind.holds if hold.name != name),
        deleted=tuple(sorted({*mind.deleted, name})),
        ended=(*mind.ended, name) if 0 < world.view.missed <= last.version else mind.ended,
        gone=tuple(sorted({*mind.gone, (group, name)})),
    )


def _note_move(world: World, mind: Mind, left: str, new: Work, scenario: Scenario, rules: Rules) -> Mind:
    """The group that was left is that of the pods which are seen by then, unless they were another's already."""
    moved = tuple(sorted({*mind.moved, (new.name, left)}))
    notes, has_stayed = dict(mind.notes), {uid for status in world.statuses for uid in status.stayed}
    remember = [name for name in scenario.names if _status(world, scenario, name).line(new.name)]
    is_first = all(name != new.name for name, _ in mind.moved) or not rules.minds_seen_moves
    if rules.notes_remembered and is_first and remember and left not in remember:
        left = remember[0]
    for pod in world.view.pods:
        if pod.owner == new.name and pod.uid not in has_stayed:
            notes.setdefault(pod.uid, left)
    moves = mind.moves
    if 0 < world.view.missed <= new.version:
        moves = (*moves, Move(new.name, new.version, left))
    return mind._replace(notes=tuple(sorted(notes.items())), moves=moves, moved=moved)


def _deliver_pods(world: World, rules: Rules) -> World:
    """A pod that is new was made for the group that its workload left first of all since."""
    there, mind = {pod.uid for pod in world.pods}, world.mind
    known, notes = {pod.uid for pod in world.view.pods}, {uid: group for uid, group in mind.notes if uid in there}
    for pod in world.pods if rules.notes_late_pods else ():
        since = (move.group for move in mind.moves if move.name == pod.owner and move.version > pod.made)
        if pod.uid not in known and (left := next(since, None)) is not None:
            notes.setdefault(pod.uid, left)
    given = tuple(each for each in mind.given if each[0] in there)
    mind = mind._replace(notes=tuple(sorted(notes.items())), moves=(), ended=(), given=given)
    pods = tuple(pod._replace(made=0) for pod in world.pods)
    return world._replace(pods=pods, view=world.view._replace(pods=pods, missed=0, last=world.last), mind=mind)


def _seen_at_once(world: World, scenario: Scenario, rules: Rules) -> World:
    """What a watch has that is never late."""
    if world.view.missed and "pods" not in scenario.late:
        world = _deliver_pods(world, rules)
    while world.view.coming and "works" not in scenario.late:
        world = _deliver(world, 1, scenario, rules)
    return world


# -- A recount ---------------------------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """What a workload is charged, and what it would be if nothing were asked for."""

    charge: int
    floor: int


class Recount:
    """One recount of one group, from what the controller has seen and remembers."""

    def __init__(self, world: World, scenario: Scenario, rules: Rules, group: str, states: Sequence[str]) -> None:
        """`states` are those of the entries of the group's status."""
        self.world = world
        self.rules = rules
        self.group = group
        self.scenario = scenario
        self.view = world.view
        self.works = {work.name: work for work in world.view.works}
        self.there = {pod.uid: pod for pod in world.view.pods}
        self.entries = {name: _status(world, scenario, name).entries for name in scenario.names}
        self.status = _status(world, scenario, group)
        #: The lines of pods, by group. Those of pods that are gone go, or whose workload came back to the group.
        self.stayed = {
            name: {
                uid for uid in _status(world, scenario, name).stayed if uid in self.there and not self._is_in(uid, name)
            }
            for name in scenario.names
        }
        self.notes = dict(world.mind.notes)
        self.given = dict(world.mind.given)
        self.left = {(each.group, each.name): each for each in world.mind.left}
        self.holds = {hold.name: hold for hold in world.mind.holds}
        self.held = 0
        self.may_hold = 0
        self.is_early = False
        self.promised: set[str] = set()
        self.settled: set[str] = set()
        self.counted = {(where, name): cost for where, name, cost in world.mind.counted}
        for (where, name), cost in list(self.counted.items()):
            if name not in self.works or self.works[name].group != where:
                self.left[where, name] = Left(where, name, cost, False)
                del self.counted[where, name]
        self.states = list(zip(self.status.entries, states, strict=True))
        self.mind_gone = set(world.mind.gone)
        self._find_gone()
        self.own = [work for work in self.view.works if work.group == group]
        self._count()
        if rules.leaves_stays:
            self._settle()
        self._count()

    def _find_gone(self) -> None:
        """Remember what went unseen, by its lines or by the promise of its creation; and sort what is left."""
        owners = {pod.owner for pod in self.view.pods}
        for entry, state in self.states:
            is_create = entry.kind == "create" and state == "over" and entry.name not in self.works
            if is_create and entry.name in owners and self._payer(entry.name) is None:
                self.mind_gone.add((self.group, entry.name))
        for line in self.status.workloads:
            payer = self._payer(line.name)
            if line.name not in self.works and payer == Payer(self.group, is_gone=False):
                self.mind_gone.add((self.group, line.name))
        self.payers: dict[str, str] = {}
        for name in sorted(owners - self.works.keys()):
            if (payer := self._payer(name)) is not None:
                self.payers[name] = payer.group

    def _payer(self, name: str) -> Payer | None:
        mind = self.world.mind._replace(gone=tuple(sorted(self.mind_gone)))
        return _payer(name, self.world.statuses, mind, self.scenario)

    def _count(self) -> None:
        self.leftovers = sum(
            not self._has_stayed(pod.uid) for pod in self.view.pods if self.payers.get(pod.owner) == self.group
        )
        self.costs = {work.name: self._cost(work) for work in self.own}
        self.counted.update({(self.group, name): cost.charge for name, cost in self.costs.items()})

    def _hold(self, work: Work) -> Hold:
        """Return the demand that counts: one that fell counts until it is observed, and the pods are no older."""
        known = self.holds.get(work.name)
        if work.lags and work.acts_in == work.group and (known is None or known.counts <= work.acts):
            known = self.holds[work.name] = Hold(work.name, work.acts, work.group)
        if known is not None and known.counts > work.pods:
            since = work.version if self.rules.wants_pods_of_now else work.fell
            is_behind = self.rules.wants_new_pods and 0 < self.view.missed <= since
            if work.lags or is_behind:
                return known
        found = self.holds[work.name] = Hold(work.name, work.pods, work.group)
        return found

    def _has_fallen(self, work: Work) -> bool:
        return self._hold(work).counts > work.pods

    def _cost(self, work: Work) -> _Cost:
        hold = self._hold(work)
        counts = hold.counts if hold.group == work.group else work.pods
        earlier = counts if work.lags and hold.counts > work.pods else 0
        up, ending = 0, 0
        for pod in self._pods(work):
            up, ending = (up + 1, ending) if pod.up else (up, ending + 1)
        missing = max(0, work.pods - up) if not earlier else 0
        return _Cost(max(counts, slot_charge(earlier or work.pods, up, ending, missing)), min(up, work.pods))

    def _pods(self, work: Work) -> Iterable[Pod]:
        return (pod for pod in self.view.pods if pod.owner == work.name and not self._has_stayed(pod.uid))

    def _is_in(self, uid: int, group: str) -> bool:
        work = self.works.get(self.there[uid].owner)
        return work is not None and work.group == group

    def _has_stayed(self, uid: int) -> bool:
        return any(uid in stayed for stayed in self.stayed.values())

    # Which pods stay.

    def _settle(self) -> None:
        if self.rules.looks_through and self.group not in self.world.mind.looked:
            for name in (line.name for line in self.status.workloads if not line.is_gone):
                if (self.group, name) not in self.counted:
                    self.left.setdefault((self.group, name), Left(self.group, name, None, False))
        states = self.states
        over = [entry for entry, state in states if state != "pending"]
        self.promised = {entry.name for entry, state in states if state == "pending"}
        for entry in over:
            key = self.group, entry.name
            if key not in self.counted:
                is_seen = self.rules.sees_moves_out and (entry.name, self.group) in self.world.mind.moved
                self.left.setdefault(key, Left(*key, None, entry.kind == "update" and not is_seen))
        for key, left in self.left.items():
            # What was counted has the promise of its creation.
            mine = (entry for entry in over if key == (self.group, entry.name))
            extra = sum(entry.extra for entry in mine if entry.kind != "create" or left.cost is None)
            self.left[key] = left._replace(promised=max(left.promised, extra))
        mine = {name: left for (group, name), left in self.left.items() if group == self.group}
        charged = sum(cost.charge for cost in self.costs.values()) + self.leftovers
        room = self.status.used - charged - len(self.stayed[self.group])
        if self.rules.counts_ending_promises:
            room += sum(entry.extra for entry in over if entry.name in mine)
        self.room = max(0, room) if self.rules.minds_room else len(self.there)
        promised = sum(entry.extra for entry in self.status.entries) if self.rules.counts_all_promises else 0
        self.may_hold = max(self.room, self.status.used + promised - charged - len(self.stayed[self.group]))
        # What is left of a workload asks for nothing.
        left = (Work(name, 0, 0, group, 0) for name, group in self.payers.items())
        taken = [work for work in (*self.view.works, *left) if work.group != self.group]
        made = {work.name: self._made(work, mine.get(work.name)) for work in taken}
        stay = {work.name: [p for p in self._of(work) if p.uid in self.stayed[self.group]] for work in taken}
        covered: dict[str, set[int]] = {}
        for work in taken:
            is_behind = self.rules.settles_from_new_pods and self._is_behind(work)
            self.is_early |= is_behind and work.name in mine
            covered[work.name] = self._covered(work, made[work.name], stay[work.name])
            if (made[work.name] or stay[work.name]) and work.name in self.works:
                self._hold(work)
                self._give(work, covered[work.name], made[work.name], () if is_behind else stay[work.name])
        for work in taken:
            self._keep(made[work.name], covered[work.name])
        self._settle_left(mine, made, stay)

    def _is_behind(self, work: Work) -> bool:
        """True where pods are not seen yet that may stay."""
        if work.name in self.works:
            return 0 < self.view.missed <= work.version
        return any(move.name == work.name for move in self.world.mind.moves)

    def _of(self, work: Work) -> Iterable[Pod]:
        return (pod for pod in self.view.pods if pod.owner == work.name)

    def _made(self, work: Work, left: Left | None) -> list[Pod]:
        """Return the pods that may stay of what has left the group."""
        if left is None:
            return []
        is_let_go = work.group == NOBODY and work.name not in self.works
        is_noted = is_let_go or (left.may_be_lost and self.rules.doubts_lost_moves)
        made_for = (self.group,) if is_noted else (None, self.group)
        return [pod for pod in self._pods(work) if self.notes.get(pod.uid) in made_for]

    def _covered(self, work: Work, made: Sequence[Pod], stay: Sequence[Pod]) -> set[int]:
        """Return the pods that the demand pays for, the oldest first."""
        if work.group == NOBODY and self.rules.pays_by_a_group:
            return set()
        demand = work.pods
        for entry in self.entries[work.group]:
            acted = not work.lags or work.seen > entry.generation
            if entry.name == work.name and entry.kind == "update" and work.version > entry.version and not acted:
                demand = min(demand, entry.base) if self.rules.awaits_observation else demand
        mine = {pod.uid for pod in (*made, *stay)}
        pods = sorted({*self._pods(work), *stay}, key=lambda pod: (pod.uid in mine, self._age(pod)))
        return {pod.uid for pod in [pod for pod in pods if pod.up][:demand]}

    def _give(self, work: Work, covered: set[int], made: Sequence[Pod], stay: Sequence[Pod]) -> None:
        back = [
            pod.uid
            for pod in self._pods(work)
            if not pod.up and self.given.get(pod.uid) == self.group and self.notes.get(pod.uid) == work.group
        ]
        for pod in (*made, *stay):
            if pod.uid in covered and self.rules.gives_covered:
                self.notes[pod.uid] = work.group
                self.given[pod.uid] = self.group
        for pod in stay if self.rules.gives_up else ():
            if pod.uid in covered:
                self.stayed[self.group].discard(pod.uid)
                if back and self.rules.takes_back:
                    uid = back.pop()
                    self.stayed[self.group].add(uid)
                    self.notes[uid] = self.group
                    del self.given[uid]
                else:
                    self.room += 1

    def _age(self, pod: Pod) -> int:
        """Return what pods are sorted by, the oldest first as far as the controller knows."""
        return -pod.uid if self.scenario.one_second else pod.uid

    def _keep(self, made: Sequence[Pod], covered: set[int]) -> None:
        noted = self.notes if self.rules.keeps_noted_first else {}
        ends_first = self.rules.keeps_ending_first
        for pod in sorted(made, key=lambda pod: (pod.up and ends_first, pod.uid not in noted, self._age(pod))):
            if pod.uid not in covered and self.room:
                self.room -= 1
                self.stayed[self.group].add(pod.uid)

    def _settle_left(
        self, mine: Mapping[str, Left], made: Mapping[str, Sequence[Pod]], stay: Mapping[str, Sequence[Pod]]
    ) -> None:
        """Hold what may still get pods for what it asked for here, and pay for the rest no longer."""
        for name, left in mine.items():
            work = self.works.get(name)
            is_back = work is not None and work.group == self.group
            if name in self.world.mind.ended and self.rules.holds_deleted:
                more = min(max(0, (left.cost or 0) + left.promised - self._charged_pods(name)), self.may_hold)
                self.may_hold -= more
                self.room = max(0, self.room - more)
                self.held += more
                continue
            has_fallen = work is not None and self._has_fallen(work)
            if left.cost is not None and not is_back and has_fallen and self.rules.holds_what_may_come:
                there = len({*made[name], *stay[name]})
                more = min(max(0, left.cost - there), self.room)
                self.room -= more
                self.held += more
                continue
            if name in self.promised and not is_back and self.rules.awaits_promises:
                continue
            del self.left[self.group, name]
            if not is_back:
                self.settled.add(name)
        if any(group == self.group and name not in self.world.mind.ended for group, name in self.left):
            return
        for name, pods in made.items():
            for pod in pods:
                if pod not in stay[name] and pod.uid not in self.stayed[self.group]:
                    self.notes[pod.uid] = self.works[name].group if name in self.works else self.payers[name]
                    if self.notes[pod.uid] == NOBODY:
                        del self.notes[pod.uid]

    def _charged_pods(self, name: str) -> int:
        """Return how many pods of what is gone the group pays for."""
        is_ours = self.payers.get(name) == self.group
        uids = {pod.uid for pod in self.view.pods if pod.owner == name}
        return sum(uid in self.stayed[self.group] or (is_ours and not self._has_stayed(uid)) for uid in uids)

    # The status.

    def published(self) -> Status:
        """Return the status that counts this, with its lines."""
        kept: list[Entry] = []
        used = self.held + len(self.stayed[self.group]) + self.leftovers
        costs = dict(self.costs)
        for entry, state in sorted(self.states, key=lambda each: each[0].generation):
            cost = costs.get(entry.name)
            if state == "delivered" and cost is not None:
                over = max(0, self.works[entry.name].pods - entry.base)
                costs[entry.name] = cost._replace(charge=min(cost.charge, max(self._least(cost, over), cost.floor)))
                kept.append(entry)
            elif state == "pending":
                earlier = sum(each.extra for each in kept if each.name == entry.name)
                room = earlier + (self.costs[entry.name].charge if entry.name in self.costs else 0)
                kept.append(entry._replace(base=min(entry.base, room) if entry.kind == "update" else 0))
        used += sum(cost.charge for cost in costs.values())
        return Status(used, tuple(sorted(kept)), self._lines(), tuple(sorted(self.stayed[self.group])))

    def _lines(self) -> tuple[Line, ...]:
        """Those of what has left go once a status without it is stored, and those of what is gone with its pods."""
        settled = {name for group, name in self.world.mind.settled if group == self.group} & self.works.keys()
        settled -= self.costs.keys()
        settled |= {name for name, payer in self.payers.items() if payer == NOBODY}
        settled |= {name for group, name in self.mind_gone if group == NOBODY}
        lines = {line.name: line for line in self.status.workloads if line.name not in settled}
        lines |= {name: Line(name, self._last(name) + 1) for name in self.costs if self._is_new(name)}
        for group, name in self.mind_gone:
            if group == self.group:
                lines[name] = Line(name, self._last(name) + 1, is_gone=True)
        owners = {pod.owner for pod in self.view.pods}
        kept = (line for line in lines.values() if not line.is_gone or self.view.missed or line.name in owners)
        return tuple(sorted(kept))

    def _is_new(self, name: str) -> bool:
        line = self.status.line(name)
        return line is None or line.since < self._last(name)

    def _last(self, name: str) -> int:
        lines = (status.line(name) for status in self.world.statuses)
        return max((line.since for line in lines if line is not None), default=-1)

    def _least(self, cost: _Cost, over: int) -> int:
        return cost.charge - over

    def mind(self) -> Mind:
        looked = tuple(sorted({*self.world.mind.looked, self.group}))
        others = [each for each in self.world.mind.settled if each[0] != self.group]
        settled = sorted({*others, *((self.group, name) for name in self.settled)})
        return Mind(
            tuple(sorted(self.notes.items())),
            self.world.mind.moves,
            tuple(sorted((*key, cost) for key, cost in self.counted.items())),
            tuple(sorted(self.left.values(), key=lambda each: each[:2])),
            tuple(sorted(self.holds.values())),
            looked,
            tuple(settled),
            self.world.mind.moved,
            self.world.mind.deleted,
            self.world.mind.ended,
            tuple(sorted(each for each in self.mind_gone if each[0] != self.group)),
            tuple(sorted((uid, group) for uid, group in self.given.items() if uid in self.there)),
        )


@cache
def slot_charge(demand: int, up: int, ending: int, missing: int) -> int:
    amounts = (demand, up, 0, ending, missing)
    return charge.slot_charge(*({CORES: amount} for amount in amounts)).get(CORES, 0)


def _count(world: World, scenario: Scenario, rules: Rules, group: str) -> Iterator[tuple[str, World]]:
    """The controller counts a group and stores its status."""
    view = world.view
    # The watch of workloads catches up with the pods first.
    if view.coming and view.coming[0].version <= view.last:
        return
    states = tuple(_state(world, group, entry, rules) for entry in _status(world, scenario, group).entries)
    counted = _counted(view, world.mind, world.statuses, states, scenario, rules, group)
    if counted is None:
        return
    status, mind = counted
    after = _with_status(world, scenario, group, status)._replace(mind=mind)
    if after != world:
        entries = [(entry.name, entry.amount, entry.base) for entry in status.entries]
        yield f"{group} uses {status.used}, promises {entries}; pods {list(status.stayed)} stay", after


@remembered
def _counted(
    view: View,
    mind: Mind,
    statuses: tuple[Status, ...],
    states: tuple[str, ...],
    scenario: Scenario,
    rules: Rules,
    group: str,
) -> tuple[Status, Mind] | None:
    """What a recount publishes and remembers, by what the controller knows alone. None where it waits for a watch."""
    found = Recount(World((), (), 0, 0, statuses, view, mind, ()), scenario, rules, group, states)
    return (found.published(), found.mind()) if not found.is_early else None


def _state(world: World, group: str, entry: Entry, rules: Rules) -> str:
    """What the controller knows of the write that an entry awaits: "pending", "delivered", or "over"."""
    work = next((each for each in world.view.works if each.name == entry.name), None)
    if work is not None and (entry.kind == "create" or work.version > entry.version):
        is_over = entry.kind == "create" or not work.lags or work.seen > entry.generation
        # Its controller may have made pods for what was asked for, or may still, and something else is asked for now.
        is_unseen = work.generation > entry.generation + 1 and (work.lags or 0 < world.view.missed <= work.version)
        if is_unseen and rules.sees_what_was_asked:
            return "pending"
        return "over" if is_over else "delivered"
    if entry.name in world.mind.deleted:
        return "over"
    made = [progress for progress in world.progress if (group, entry.key) in progress.promises]
    if any(progress.phase == "allowed" for progress in made):
        return "pending"
    ended = max((progress.ended for progress in made), default=0)
    return "pending" if world.view.coming and world.view.coming[0].version <= ended else "over"


# -- Small changes -----------------------------------------------------------------------------------------------------


def _status(world: World, scenario: Scenario, group: str) -> Status:
    return world.statuses[scenario.names.index(group)]


def _with_status(world: World, scenario: Scenario, group: str, status: Status) -> World:
    number = scenario.names.index(group)
    return world._replace(statuses=(*world.statuses[:number], status, *world.statuses[number + 1 :]))


def _progress(world: World, number: int, progress: Progress) -> World:
    return world._replace(progress=(*world.progress[:number], progress, *world.progress[number + 1 :]))


def _put(world: World, old: Work | None, new: Work, *, falls: bool = False) -> World:
    version = world.version + 1
    new = new._replace(version=version, fell=version if falls else new.fell)
    others = (each for each in world.works if each is not old)
    works = tuple(sorted((*others, *(() if new.is_gone else (new,)))))
    view = world.view._replace(coming=(*world.view.coming, new._replace(goes=Observed())))
    pods = world.pods
    if new.pods and not new.is_gone and new.group != NOBODY:
        # What it asks for now pays for pods that nobody has deleted.
        pods = tuple(_payable(pod, new.group) if (pod.owner, pod.up) == (new.name, True) else pod for pod in pods)
    return world._replace(works=works, pods=pods, version=version, view=view)


def _payable(pod: Pod, group: str) -> Pod:
    return pod if group in pod.may_pay else pod._replace(may_pay=tuple(sorted((*pod.may_pay, group))))


def _with_pods(world: World, pods: Iterable[Pod]) -> World:
    version = world.version + 1
    view = world.view._replace(missed=world.view.missed or version)
    return world._replace(pods=tuple(sorted(pods)), version=version, last=version, view=view)


def _uids(world: World) -> set[int]:
    """The pods that are there, or that something speaks of."""
    pods = {pod.uid for pod in (*world.pods, *world.view.pods)}
    return pods.union((uid for uid, _ in world.mind.notes), *(status.stayed for status in world.statuses))


def ranked(world: World) -> World:
    """The same world with all versions and pods numbered by their order, and without what decides nothing any more."""
    view, mind, promised = world.view, world.mind, {entry.key for s in world.statuses for entry in s.entries}
    progress = tuple(_what_counts(each, promised) for each in world.progress)
    to_come = [work.version for work in view.coming]
    seen = [*(work.version for work in view.works), *to_come]
    last, last_seen = _floor(world.last, to_come), _floor(view.last, to_come)
    missed = min((v for v in seen if v >= view.missed), default=world.version) if view.missed else 0
    since = [*(move.version for move in mind.moves), *to_come]
    known = {0, world.version, last, last_seen, missed, *seen, *since}
    known.update(work.version for work in world.works)
    known.update(entry.version for status in world.statuses for entry in status.entries)
    for each in progress:
        known.update((each.decided_on, each.ended))
    rank = {version: number for number, version in enumerate(sorted(known))}
    age = {uid: number for number, uid in enumerate(sorted(_uids(world)))}
    since_of: dict[str, list[int]] = {}
    for each in (line for status in world.statuses for line in status.workloads):
        since_of.setdefault(each.name, []).append(each.since)

    # Most steps change little: what keeps its numbers is not made anew.
    def of(works: tuple[Work, ...]) -> tuple[Work, ...]:
        made: list[Work] = []
        for work in works:
            version = rank[work.version]
            fell = rank[_floor(work.fell, seen)] if 0 < view.missed <= work.fell else 0
            is_same = version == work.version and fell == work.fell
            made.append(work if is_same else Work(work[0], version, *work[2:8], fell, *work[9:]))
        return tuple(made)

    def aged(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
        made: list[Pod] = []
        for pod in pods:
            uid, since_then = age[pod.uid], rank[_floor(pod.made, since)] if pod.made else 0
            is_same = uid == pod.uid and since_then == pod.made
            made.append(pod if is_same else Pod(uid, *pod[1:4], since_then))
        return tuple(made)

    def status_of(status: Status) -> Status:
        used, entries, works, stay = status
        if entries:
            entries = tuple(Entry(*e[:3], rank[e[3]], *e[4:]) for e in entries)
        if works:
            works = tuple(line_of(line) for line in works)
        return Status(used, entries, works, tuple(age[uid] for uid in stay) if stay else stay)

    def line_of(line: Line) -> Line:
        since = sum(other < line.since for other in since_of[line.name]) if line.since else 0
        return line if since == line.since else Line(line.name, since, line.is_gone)

    if mind.notes or mind.moves or mind.given:
        mind = mind._replace(
            notes=tuple((age[uid], group) for uid, group in mind.notes),
            given=tuple((age[uid], group) for uid, group in mind.given),
            moves=tuple(Move(m.name, rank[m.version], m.group) for m in mind.moves),
        )
    works, pods = of(world.works), aged(world.pods)
    return World(
        works,
        pods,
        rank[world.version],
        rank[last],
        tuple(map(status_of, world.statuses)),
        View(
            works if view.works == world.works else of(view.works),
            of(view.coming) if view.coming else (),
            pods if view.pods == world.pods else aged(view.pods),
            rank[missed],
            rank[last_seen],
        ),
        mind,
        tuple(Progress(p[0], p[1], rank[p.decided_on], p[3], rank[p.ended]) for p in progress),
        world.restarts,
    )


def _what_counts(progress: Progress, promised: Collection[tuple[str, str, int]]) -> Progress:
    if progress.phase != "done":
        return progress
    promises = tuple(each for each in progress.promises if each[1] in promised)
    return Progress("done", promises=promises, ended=progress.ended if promises else 0)


def _floor(version: int, others: Iterable[int]) -> int:
    """The latest of the other versions that is not later; 0 where all are."""
    latest = 0
    if version:
        for other in others:
            if latest < other <= version:
                latest = other
    return latest


# -- What must hold ----------------------------------------------------------------------------------------------------


def broken(world: World, scenario: Scenario) -> str | None:
    """The first law that the world breaks, of any groups together."""
    for groups in _some(scenario.paying, whole=scenario.is_whole):
        lives = [pod.uid for pod in world.pods if groups.issuperset(pod.may_pay)]
        taken = hard = 0
        for name in groups:
            status = _status(world, scenario, name)
            taken += status.used + sum(entry.extra for entry in status.entries)
            hard += scenario.groups[name]
        if len(lives) > taken:
            return f"hidden: pods {lives} are those of {sorted(groups)}, and {taken} are taken there"
        comes = sum(_may_come(work, world, groups) for work in world.works)
        if len(lives) + comes > hard:
            return f"over: pods {lives} are those of {sorted(groups)}, {comes} may come, and hard is {hard}"
    return None


@cache
def _some(names: tuple[str, ...], *, whole: bool) -> tuple[frozenset[str], ...]:
    """All sets of groups, or that of all of them alone."""
    sizes = (len(names),) if whole else range(1, len(names) + 1)
    return tuple(frozenset(each) for size in sizes for each in itertools.combinations(names, size))


def _may_come(work: Work, world: World, groups: frozenset[str]) -> int:
    """How many pods may be made for these groups, for what is stored and what the workload's controller goes by."""
    goes = work.goes if work.goes.generation else work.observed
    asked = max(work.pods if work.group in groups else 0, goes.pods if goes.group in groups else 0)
    return max(0, asked - sum(pod.owner == work.name and pod.up for pod in world.pods))


def unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    """What is miscounted in a world in which nothing happens any more, but that pods which end are gone."""
    is_quiet = all(each.phase == "done" for each in world.progress) and not (world.view.coming or world.view.missed)
    ahead = (
        *(_act(world, scenario, work) for work in world.works),
        *(_count(world, scenario, rules, g) for g in scenario.paying),
    )
    if not is_quiet or next(itertools.chain(*ahead), None) is not None:
        return None
    for groups in _some(scenario.paying, whole=scenario.is_whole):
        lives = sum(groups.issuperset(pod.may_pay) for pod in world.pods)
        most = sum(not groups.isdisjoint(pod.may_pay) for pod in world.pods)
        used = sum(_status(world, scenario, name).used for name in groups)
        if used < lives or (used > most and len(groups) == len(scenario.paying)):
            return f"{used} are used in {sorted(groups)} at last, and {lives} pods are theirs"
    for name in () if scenario.is_whole else scenario.paying:
        used, hard = _status(world, scenario, name).used, scenario.groups[name]
        if used > hard:
            return f"{name} uses {used} at last, and hard is {hard}"
    there = {work.name for work in world.works}
    is_settled = all(pod.up and pod.owner in there for pod in world.pods)
    for name in scenario.paying if is_settled and all(work.group != NOBODY for work in world.works) else ():
        own = [work for work in world.works if work.group == name]
        wanted = Status(sum(work.pods for work in own), (), tuple(sorted(Line(work.name) for work in own)))
        if _status(world, scenario, name) != wanted:
            return f"{name} comes to {_status(world, scenario, name)}, not {wanted}"
    return None


def explore(scenario: Scenario, rules: Rules | None = None, most: int = 60_000) -> Finding:
    """Every world that the scenario can come to."""
    rules = rules or Rules()

    def law(_: World, world: World) -> str | None:
        return broken(world, scenario) or unsettled(world, scenario, rules)

    def same(world: World) -> World:
        return ranked(_seen_at_once(world, scenario, rules))

    return search(first(scenario), lambda world: steps(world, scenario, rules), law, most, same=same)
