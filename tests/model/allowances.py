"""Every interleaving of admissions ahead of the write: allowances beside the reservation protocol.

A group's status holds a line for each process (`bizrq.quota.allowance`). A process admits creates within its line by a
note in its own journal, a guarded write; a count moves notes to the status; who needs the room recalls: it marks the
journal, and then drops the line with one guarded write that keeps its notes as entries. All else happens as in
`tests.model.explorer`, whose steps are taken over: what a webhook decides, what is stored, what controllers see.

The steps ask the code's own functions. A wrong short cut is another `Rules`, and has to be found broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.allowance import (
    Journal,
    Line,
    Note,
    fold,
    is_line,
    is_noted,
    is_plain,
    line_of,
    lines_of,
    looked_at,
    may_admit,
    needs_count,
    needs_recall,
    spent,
    without_lines,
)
from bizrq.quota.reservation import Reservation, parse_reservation, reserved_total
from bizrq.quota.verdict import Denied, Granted
from bizrq.units.resources import Resources, add, growth, subtract_floor, total
from bizrq.units.slot import group_slot
from tests.model import explorer
from tests.model.explorer import Amounts, Progress, Promise, Request, Status, Stored, amounts_of, lines
from tests.model.search import Finding, remembered, search
from tests.support.catalog import CATALOG
from tests.support.language import NOW, res

#: So many notes at most get lost or are late: each is written anew.
MOST_LOST = 1
#: The journal that the line of an unknown holder names.
STRANGER = "stranger"


class Known(NamedTuple):
    """A version of the group: its `hard` and its generation, and the status."""

    hard: Amounts
    generation: int
    status: Status


class Cached(NamedTuple):
    """What of a version that a process has of the group decides what it notes: its line, as text.

    It looks at more, and so notes less than here.
    """

    line: str
    generation: int
    given: int


class Put(NamedTuple):
    """A write of a journal that is under way: what it stores, and the request that waits for it."""

    journal: Journal
    number: int


class Holder(NamedTuple):
    """A webhook process: up, ending, down, or unborn.

    It writes its journal from the version that is stored, or meets a conflict and reads that first. So what it knows of
    it needs no place here; of the group it knows whatever its cache has.
    """

    state: str = "up"
    cache: Cached | None = None
    put: Put | None = None


class Recall(NamedTuple):
    """What somebody has read who recalls a line: a slow one may act on it much later."""

    holder: str
    epoch: int
    notes: tuple[Note, ...]


class Copy(NamedTuple):
    """What a controller has read of the journals; it `is_current` until somebody writes the status."""

    journals: tuple[Journal | None, ...]
    is_current: bool = True


class World(NamedTuple):
    """`journals` has None for one that is gone; `copies` what each controller has read of them, None before that."""

    base: explorer.World
    holders: tuple[Holder, ...]
    journals: tuple[Journal | None, ...]
    recalls: tuple[Recall, ...] = ()
    copies: tuple[Copy | None, ...] = ()
    #: The uids of which the published `used` is the sum.
    counted: tuple[str, ...] = ()
    #: What a step did wrong, if it did.
    wrong: str = ""


@dataclass(frozen=True, eq=False)
class Scenario(explorer.Scenario):
    """Lines are in the group `ahead`, of so many `holders`, `give` at a time, with `gifts` in all.

    With `stands` that group is there already with this `hard`, a child of one that nobody asks, and no controller has
    an old snapshot: that would be too much to explore. `faults` are what may go wrong besides.

    lost: a journal's write is stored and its answer lost. late: it is stored after its process gave up waiting.
    crash: the first process dies, and another one starts. slow: who recalls may act long after it has read.
    copies: a controller counts with journals that it read before. deleted: somebody deletes the journal of the first
    process. older: a controller that knows no lines writes, too. ends: the first process ends and hands its line back
    first, or runs out of time. spoilt: somebody writes the line of the first process so that nobody can read it.
    stranger: the group has from the start a line of one core by a journal that was never there.
    """

    ahead: str = "g"
    give: str = "cpu=3"
    holders: int = 1
    gifts: int = 1
    stands: str = ""
    faults: Collection[str] = ()

    @property
    def amount(self) -> dict[str, int]:
        return res(self.give)


class Rules(explorer.Rules):
    """What processes do with lines: as designed."""

    #: What of a journal a recall takes for final: what is there once it is marked.
    marks_first = True
    #: Whether a process that lost a race for its journal looks at what the other wrote.
    minds_marks = True
    #: Whether a line is used only in the generation that it was given in.
    minds_edits = True
    #: Whether a count needs a journal that was read after the status was written that it counts upon.
    reads_after_status = True
    #: Whether a line of another epoch stands apart from a recalled one.
    minds_epochs = True
    #: Whether a process that starts takes a journal of its own.
    starts_anew = True
    #: Whether the answer waits for the note.
    notes_first = True
    #: Whether an unknown outcome of a note is looked up.
    looks_up = True
    #: Whether the line of a journal that is gone stays while writes that it admitted may still come.
    waits_for_writes = True
    #: Whether a process that ends admits nothing more before it hands its line back, and marks its own journal.
    ends_first = True
    #: Whether a process uses the line alone that names its journal.
    minds_holders = True
    #: Whether a journal is marked before its line of no use is removed.
    fences_first = True

    def handed_back(self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note]) -> list[Reservation]:
        """The entries after a process that ends has handed its line back."""
        return self.folded(entries, line, notes, noted=True)[0]

    def replaced(self, entries: Sequence[Reservation], holder: str, notes: Sequence[Note]) -> list[Reservation]:
        """The entries after a count with all notes of a journal in place of its line of no use."""
        return self.folded(entries, Line(holder, 0, 0, {}), notes, noted=False)[0]

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        return fold(entries, line, notes, noted=noted)

    def pruned(self, journal: Journal, holder: str, group: str, cache: Cached) -> Journal:
        return journal.pruned(holder, group, cache.given, [parse_reservation(cache.line)] if cache.line else [])

    def raised(self, line: Line, free: Resources, amount: Resources) -> Line | None:
        """A line that a count gives or raises to an amount, None where there is no room for it."""
        more = growth(amount, line.amount)
        return None if not more or growth(more, free) else replace(line, amount=add(line.amount, more))

    def may_change(self, entries: Sequence[Reservation]) -> bool:
        """Whether a group with these entries may be edited."""
        return not any(map(is_line, entries))

    def denied(self, account: Account, charge: explorer.Charge) -> str:
        """What becomes of a charge that is refused: `refused`, or what has to come before it is decided."""
        if needs_recall(account, charge, NOW):
            return "recall"
        return "count" if needs_count(account, charge, NOW) else "refused"


def first(scenario: Scenario) -> World:
    base = explorer.first(scenario)
    if scenario.stands:
        [parent], hard = scenario.groups, amounts_of(res(scenario.stands))
        nothing = tuple((name, 0) for name, _ in hard)
        child = Stored(group_slot(scenario.ahead), "u", 0, parent, hard, Status(used=nothing))
        base = base._replace(stored=(child,), roots=((parent, Status(used=hard)),))
        base = base._replace(views=(explorer.seen_now(base.stored, (), 0),) * scenario.controllers)
    if "stranger" in scenario.faults:
        line = Line(STRANGER, 0, 1, res("cpu=1")).entry
        base = base._replace(
            roots=tuple(
                (name, status._replace(entries=lines([line])) if name == scenario.ahead else status)
                for name, status in base.roots
            )
        )
    names = scenario.holders + ("crash" in scenario.faults)
    states = ["up"] * scenario.holders + ["unborn"] * (names - scenario.holders)
    holders = tuple(Holder(state) for state in states)
    return World(base, holders, (Journal(),) * names, copies=(None,) * scenario.controllers)


def name_of(number: int) -> str:
    return f"h{number}"


def journal_of(journals: Sequence[Journal | None], holder: str) -> Journal | None:
    """The journal that a line names, None where there is none."""
    return None if holder == STRANGER else journals[int(holder[1:])]


def known_of(world: World, scenario: Scenario) -> Known | None:
    """The group as it is stored now."""
    found = explorer.group_of(world.base, scenario, scenario.ahead)
    if found is None:
        return None
    stored = explorer.stored_at(world.base.stored, group_slot(scenario.ahead))
    return Known(found[0], stored.generation if stored else 1, found[1])


@remembered
def _cached(known: Known, name: str, rules: Rules) -> Cached:
    found = () if spoilt_in(known.status) else lines_in(known.status)
    line = next((line for line in found if line.holder == name or not rules.minds_holders), None)
    return Cached(str(line.entry) if line is not None else "", known.generation, known.status.given)


@remembered
def entries_of(status: Status) -> tuple[Reservation, ...]:
    return tuple(map(parse_reservation, status.entries))


@remembered
def lines_in(status: Status) -> tuple[Line, ...]:
    """The lines that can be read."""
    spoilt = spoilt_in(status)
    return tuple(lines_of(entry for entry in entries_of(status) if entry not in spoilt))


@remembered
def spoilt_in(status: Status) -> tuple[Reservation, ...]:
    """The lines of no use: nobody knows from which note on they hold what."""
    return tuple(entry for entry in entries_of(status) if is_line(entry) and not entry.others)


def with_base(world: World, scenario: Scenario, base: explorer.World) -> World:
    """The world after a step of the explorer; a written status makes what was read of journals too old."""
    if scenario.stands:
        view = explorer.seen_now(base.stored, base.deleted, base.version)
        base = base._replace(views=(view,) * scenario.controllers)
    before, after = known_of(world, scenario), known_of(world._replace(base=base), scenario)
    if before == after:
        return world._replace(base=base)
    return world._replace(base=base, copies=tuple(each and each._replace(is_current=False) for each in world.copies))


def with_holder(world: World, number: int, holder: Holder) -> World:
    return world._replace(holders=(*world.holders[:number], holder, *world.holders[number + 1 :]))


def with_journal(world: World, number: int, journal: Journal | None) -> World:
    """A journal is written. Of all writes from one version only one is stored."""
    world = world._replace(journals=(*world.journals[:number], journal, *world.journals[number + 1 :]))
    return with_holder(world, number, world.holders[number]._replace(put=None))


def with_status(world: World, scenario: Scenario, status: Status) -> World:
    return with_base(world, scenario, explorer.with_status(world.base, scenario.ahead, status))


# -- What can happen next ----------------------------------------------------------------------------------------------


def steps(world: World, scenario: Scenario, rules: Rules) -> Iterator[tuple[str, World]]:
    """What can happen next, in words, and the world after it."""
    known = known_of(world, scenario)
    for number, request in enumerate(scenario.requests):
        if not _waits_for_recall(known, scenario, rules, world.base.progress[number], request):
            for says, base in explorer.request_steps(world.base, scenario, rules, number):
                yield says, with_base(world, scenario, base)
        if request.verb == "create" and request.group == scenario.ahead and request.place.kind == explorer.KINDS[0]:
            yield from _note(world, scenario, rules, number)
        yield from _refuse(world, scenario, rules, number)
    for number, holder in enumerate(world.holders):
        yield from _learn(world, scenario, rules, number, holder)
        yield from _live(world, scenario, rules, number, holder)
    if known is not None:
        yield from _recall(world, scenario, rules, known)
    for number in range(scenario.controllers):
        for says, base in explorer.watch_steps(world.base, scenario, number):
            yield says, world._replace(base=base)
        yield from _count(world, scenario, rules, number)


def _waits_for_recall(
    known: Known | None, scenario: Scenario, rules: Rules, progress: Progress, request: Request
) -> bool:
    """Whether a request is an edit or the deletion of a group with lines: it recalls them first."""
    if known is None or request.place != group_slot(scenario.ahead) or request.verb == "create":
        return False
    return progress.phase == "new" and not rules.may_change(entries_of(known.status))


def _note(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    """A create reaches a process that admits it by its line, if it may: by what it knows, however old that is."""
    request = scenario.requests[number]
    if world.base.progress[number].phase != "new":
        return
    asked, _ = explorer.change_of(number, request, None, None)
    for of, holder in enumerate(world.holders):
        stored = world.journals[of]
        may_note = holder.state == "up" or (holder.state == "ending" and not rules.ends_first)
        if not may_note or holder.cache is None or holder.put is not None or stored is None:
            continue
        found = noted(scenario, rules, of, holder.cache, stored, number)
        if found is None:
            continue
        journal, promise = found
        says = f"{number} {request.verb} {request.place.name}: {name_of(of)} notes it"
        allowed = explorer.allow(world.base, number, asked, None, promise)
        waits = explorer.with_progress(allowed, number, allowed.progress[number]._replace(phase="noting"))
        under_way = with_holder(world, of, holder._replace(put=Put(journal, number)))
        if not rules.notes_first:
            yield f"{says} after the answer", under_way._replace(base=allowed)
            continue
        after = with_journal(world, of, journal)._replace(wrong=_misplaced(world, scenario, holder))
        yield says, after._replace(base=allowed)
        if "lost" in scenario.faults and stored.last < MOST_LOST:
            yield f"{says}, answer lost", after._replace(base=waits)
        if "late" in scenario.faults and stored.last < MOST_LOST:
            yield f"{says}, late", under_way._replace(base=waits)


def _misplaced(world: World, scenario: Scenario, holder: Holder) -> str:
    """What is wrong with a note that is stored just now."""
    known = known_of(world, scenario)
    if known is None:
        return "a note of a group that is gone"
    if holder.cache is not None and holder.cache.generation != known.generation:
        return f"a note by generation {holder.cache.generation} of a group of generation {known.generation}"
    return ""


@remembered
def noted(
    scenario: Scenario, rules: Rules, of: int, cache: Cached, journal: Journal, number: int
) -> tuple[Journal, Promise] | None:
    """The journal with a note of a request, None where the process does not admit it by its line."""
    _, charge = explorer.change_of(number, scenario.requests[number], None, None)
    assert charge is not None
    if not cache.line or not is_plain(charge):
        return None
    journal, line = rules.pruned(journal, name_of(of), scenario.ahead, cache), Line.of(parse_reservation(cache.line))
    if rules.minds_edits and line.generation != cache.generation:
        return None
    if rules.minds_marks and journal.is_recalled(scenario.ahead, line.epoch):
        return None
    entry = Reservation(charge.slot, charge.uid, None, NOW, charge.demand)
    if not may_admit(line, spent(journal.after(scenario.ahead, line)), entry):
        return None
    return journal.with_note(scenario.ahead, line.epoch, entry), Promise.of(scenario.ahead, entry)


def _account(scenario: Scenario, known: Known, entries: Iterable[Reservation]) -> Account:
    return Account(scenario.ahead, dict(known.hard), dict(known.status.used or ()), entries, catalog=CATALOG)


def _refuse(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    """A request that does not fit is refused by the group as it is, once nothing is held ahead."""
    request, known = scenario.requests[number], known_of(world, scenario)
    if known is None or world.base.progress[number].phase != "new":
        return
    current = explorer.stored_at(world.base.stored, request.place)
    if request.verb not in ("create", "update") or (request.verb == "update" and current is None):
        return
    old = None if request.verb == "create" else current
    asked, charge = explorer.change_of(number, request, old, None)
    if charge is None or asked.group != scenario.ahead:
        return
    found = _refused(scenario, rules, known, number, old, world.counted)
    if found is not None:
        over = explorer.again(world.base, number, "done")
        yield f"{number} {request.verb} {request.place.name} refused", world._replace(base=over, wrong=found)


@remembered
def _refused(
    scenario: Scenario,
    rules: Rules,
    known: Known,
    number: int,
    old: explorer.Stored | None,
    counted: tuple[str, ...],
) -> str | None:
    """What is wrong with the refusal of a request, "" for nothing; None where it is not refused."""
    _, charge = explorer.change_of(number, scenario.requests[number], old, None)
    assert charge is not None
    entries = entries_of(known.status)
    account = _account(scenario, known, entries)
    if not isinstance(decide(account, charge, NOW), Denied) or rules.denied(account, charge) != "refused":
        return None
    rest = [each for each in entries if not is_line(each) and not (each.is_create and each.uid in counted)]
    fits = isinstance(decide(_account(scenario, known, rest), charge, NOW), Granted)
    return f"{number} refused though it fits: {known.status}" if fits else ""


def _is_in(counted: Collection[str], entry: Reservation) -> bool:
    """Whether `used`, which is the sum of what was counted, holds the object of a create already."""
    return entry.is_create and entry.uid in counted


def _learn(world: World, scenario: Scenario, rules: Rules, number: int, holder: Holder) -> Iterator[tuple[str, World]]:
    """A process learns of the group, and of what became of a note whose answer it has not got."""
    known, name, journal = known_of(world, scenario), name_of(number), world.journals[number]
    if holder.state != "up":
        return
    if known is not None and holder.cache != (cache := _cached(known, name, rules)):
        yield f"{name}: its cache moves on", with_holder(world, number, holder._replace(cache=cache))
    for request, progress in enumerate(world.base.progress):
        if progress.phase != "noting":
            continue
        assert progress.asked is not None
        notes = journal.notes if journal is not None else ()
        if any(note.entry.uid == progress.asked.uid for note in notes) or not rules.looks_up:
            allowed = explorer.with_progress(world.base, request, progress._replace(phase="allowed"))
            yield f"{request} answered by {name}", world._replace(base=allowed)
        yield f"{request} asks again", world._replace(base=explorer.again(world.base, request, "new"))


def _live(world: World, scenario: Scenario, rules: Rules, number: int, holder: Holder) -> Iterator[tuple[str, World]]:
    """Writes that land late, crashes, a journal that somebody deletes."""
    name, journal = name_of(number), world.journals[number]
    if holder.put is not None and journal is not None:
        landed = with_journal(world, number, holder.put.journal)
        yield f"{name}: a write of its journal lands", landed._replace(wrong=_misplaced(world, scenario, holder))
        yield f"{name}: a write never lands", with_holder(world, number, holder._replace(put=None))
    if "crash" in scenario.faults and number == 0 and holder.state == "up":
        yield f"{name} dies", with_holder(_unanswered(world), number, Holder("down", put=holder.put))
    if "ends" in scenario.faults and number == 0 and holder.state == "up":
        yield f"{name} ends", with_holder(_unanswered(world), number, holder._replace(state="ending"))
    if holder.state == "ending":
        yield f"{name} is gone", with_holder(world, number, Holder("down", put=holder.put))
        yield from _hand_back(world, scenario, rules, number)
    if "spoilt" in scenario.faults and number == 0:
        yield from _spoil(world, scenario, name)
    if holder.state == "unborn" and world.holders[0].state == "down":
        if rules.starts_anew:
            yield f"{name} starts", with_holder(world, number, Holder())
        else:
            empty = replace(journal or Journal(), last=0, notes=())
            again = with_holder(with_journal(world, 0, empty), 0, Holder())
            yield "h0 starts again", with_holder(again, number, Holder("none"))
    if "deleted" in scenario.faults and number == 0 and journal is not None:
        yield f"the journal of {name} is deleted", with_journal(world, 0, None)


def _unanswered(world: World) -> World:
    """A process admits nothing more by notes: who waits for one is decided by the group."""
    base = world.base
    for request, each in enumerate(base.progress):
        base = explorer.again(base, request, "new") if each.phase == "noting" else base
    return world._replace(base=base)


def _hand_back(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    """A process that ends does with its own line what a recall does."""
    known, name, journal = known_of(world, scenario), name_of(number), world.journals[number]
    line = next((line for line in lines_in(known.status) if line.holder == name), None) if known else None
    if known is None or line is None or journal is None or spoilt_in(known.status):
        return
    if rules.ends_first and not journal.is_recalled(scenario.ahead, line.epoch):
        marked = with_journal(world, number, journal.recall(scenario.ahead, line.epoch))
        yield f"{name} marks its own journal: {line.epoch}", marked
        return
    kept = lines(rules.handed_back(entries_of(known.status), line, journal.after(scenario.ahead, line)))
    yield f"{name} hands its line back: {kept}", with_status(world, scenario, known.status._replace(entries=kept))


def _spoil(world: World, scenario: Scenario, name: str) -> Iterator[tuple[str, World]]:
    known = known_of(world, scenario)
    for line in lines_in(known.status) if known is not None else ():
        if known is not None and line.holder == name:
            rest = [entry for entry in entries_of(known.status) if entry != line.entry]
            spoilt = known.status._replace(entries=lines([*rest, replace(line.entry, others=())]))
            yield f"somebody spoils the line of {name}", with_status(world, scenario, spoilt)


def _recall(world: World, scenario: Scenario, rules: Rules, known: Known) -> Iterator[tuple[str, World]]:
    """Somebody marks a journal, and drops the line with what is noted by it. It may stop in between."""
    if spoilt_in(known.status):
        return
    for line in lines_in(known.status):
        journal = journal_of(world.journals, line.holder)
        if journal is None:
            continue
        number = int(line.holder[1:])
        recall = Recall(line.holder, line.epoch, journal.after(scenario.ahead, line))
        if not journal.is_recalled(scenario.ahead, line.epoch):
            if rules.marks_first:
                after = with_journal(world, number, journal.recall(scenario.ahead, line.epoch))
                if "slow" in scenario.faults:
                    after = after._replace(recalls=tuple(sorted({*after.recalls, recall})))
                yield f"a recall marks {line.holder}: {line.epoch}", after
            else:
                yield f"a recall reads {line.holder}", world._replace(recalls=(recall,))
        elif rules.marks_first:
            yield from _drop(world, scenario, rules, known, recall)
    for recall in world.recalls:
        rest = world._replace(recalls=tuple(each for each in world.recalls if each != recall))
        yield from _drop(rest, scenario, rules, known, recall)


def _drop(world: World, scenario: Scenario, rules: Rules, known: Known, recall: Recall) -> Iterator[tuple[str, World]]:
    entries = entries_of(known.status)
    line = line_of(entries, recall.holder)
    if line is None or (line.epoch != recall.epoch and rules.minds_epochs):
        return
    kept, _ = rules.folded(entries, line, recall.notes, noted=True)
    after = with_status(world, scenario, known.status._replace(entries=lines(kept)))
    if not rules.marks_first:
        number = int(line.holder[1:])
        journal = after.journals[number]
        if journal is not None:
            after = with_journal(after, number, journal.recall(scenario.ahead, line.epoch))
    yield f"a recall drops {line.holder}: {lines(kept)}", after


# -- Counts ------------------------------------------------------------------------------------------------------------


def _count(world: World, scenario: Scenario, rules: Rules, number: int) -> Iterator[tuple[str, World]]:
    known = known_of(world, scenario)
    has_lines = known is not None and any(map(is_line, entries_of(known.status)))
    copy = Copy(world.journals) if "copies" not in scenario.faults else world.copies[number]
    if copy is not None and not copy.is_current and rules.reads_after_status:
        copy = None
    if "copies" in scenario.faults and has_lines and copy != Copy(world.journals):
        read = (*world.copies[:number], Copy(world.journals), *world.copies[number + 1 :])
        yield f"controller {number} reads the journals", world._replace(copies=read)
    for name in explorer.names(world.base, scenario):
        if name != scenario.ahead and not scenario.stands:
            found = explorer.group_of(world.base, scenario, name)
            assert found is not None
            after = explorer.recounted(world.base, scenario, rules, number, name, found[1])
            if after is not None and (after.used, after.entries) != (found[1].used, found[1].entries):
                base = explorer.with_status(world.base, name, after)
                yield f"controller {number} publishes {name}: {after}", with_base(world, scenario, base)
    if known is None:
        return
    yield from _fence(world, scenario, rules, known, number)
    if "older" in scenario.faults and has_lines:
        yield from _published(world, scenario, number, known, _older(world, scenario, rules, number, known))
    if not has_lines or copy is not None:
        for status in _statuses(world, scenario, rules, number, known, copy.journals if copy else world.journals):
            yield from _published(world, scenario, number, known, status)


def _fence(world: World, scenario: Scenario, rules: Rules, known: Known, number: int) -> Iterator[tuple[str, World]]:
    """A controller marks the journal of a line of no use, with whatever epoch that has."""
    for entry in spoilt_in(known.status) if rules.fences_first else ():
        of, epoch = int(entry.slot.name[1:]), known.status.given - 1
        journal = world.journals[of]
        if journal is not None and not journal.is_recalled(scenario.ahead, epoch):
            marked = with_journal(world, of, journal.recall(scenario.ahead, epoch))
            yield f"controller {number} marks {entry.slot.name}: {epoch}", marked


def _published(
    world: World, scenario: Scenario, number: int, known: Known, status: Status | None
) -> Iterator[tuple[str, World]]:
    if status is None or (status.used, status.entries) == (known.status.used, known.status.entries):
        return
    seen = world.base.views[number]
    counted = tuple(sorted(o.uid for kind in seen[:2] for o in kind.objects if o.group == scenario.ahead))
    after = with_status(world, scenario, status)
    yield f"controller {number} publishes {status.used}, {status.entries}", after._replace(counted=counted)


def _older(world: World, scenario: Scenario, rules: Rules, number: int, known: Known) -> Status | None:
    """What a controller writes that knows no lines: it keeps them, as entries of a kind that it does not watch."""
    rest = known.status._replace(entries=lines(without_lines(entries_of(known.status))))
    after = explorer.recounted(world.base, scenario, rules, number, scenario.ahead, rest)
    if after is None:
        return None
    kept = [entry for entry in entries_of(known.status) if is_line(entry)]
    return after._replace(entries=lines([*entries_of(after), *kept]))


def _statuses(
    world: World,
    scenario: Scenario,
    rules: Rules,
    number: int,
    known: Known,
    journals: Sequence[Journal | None],
) -> Iterator[Status]:
    """What a count may write: with the lines as they are, or with more of them."""
    entries = without_lines(entries_of(known.status))
    kept: list[Line] = []
    of_no_use: list[Reservation] = []
    for entry in spoilt_in(known.status):
        journal = journal_of(journals, entry.slot.name)
        is_final = journal is not None and journal.is_recalled(scenario.ahead, known.status.given - 1)
        if journal is not None and (is_final or not rules.fences_first):
            entries = rules.replaced(entries, entry.slot.name, journal.of_group(scenario.ahead))
        elif journal is not None or not _is_over(world, rules, number):
            of_no_use.append(entry)
    for line in lines_in(known.status):
        journal = journal_of(journals, line.holder)
        notes = journal.after(scenario.ahead, line) if journal is not None else ()
        entries, left = rules.folded(entries, line, notes, noted=False)
        # A count goes on with a recall that it finds, as everybody does.
        is_recalled = journal is not None and journal.is_recalled(scenario.ahead, line.epoch)
        if not is_recalled and (journal is not None or not _is_over(world, rules, number)):
            kept.append(left)
    folded = known.status._replace(entries=lines(looked_at(entries)))
    after = explorer.recounted(world.base, scenario, rules, number, scenario.ahead, folded)
    if after is None:
        return
    yield after._replace(entries=lines([*entries_of(after), *(line.entry for line in kept), *of_no_use]))
    if of_no_use:
        return
    taken = add(dict(after.used or ()), reserved_total([*entries_of(after), *(line.entry for line in kept)]))
    free = subtract_floor(dict(known.hard), taken)
    for of, holder in enumerate(world.holders):
        mine = next((line for line in kept if line.holder == name_of(of)), None)
        fresh = Line(name_of(of), after.given, known.generation, {})
        raised = rules.raised(mine or fresh, free, scenario.amount)
        if holder.state == "up" and raised is not None and (mine is not None or after.given < scenario.gifts):
            rest = [line.entry for line in kept if line is not mine]
            given = after.given + (mine is None)
            yield after._replace(entries=lines([*entries_of(after), *rest, raised.entry]), given=given)


def _is_over(world: World, rules: Rules, number: int) -> bool:
    """Whether all that a lost journal may have admitted is stored or never will be, and this controller has seen it."""
    if not rules.waits_for_writes:
        return True
    if any(each.phase in ("allowed", "noting") for each in world.base.progress):
        return False
    return world.base.views[number][0].version >= max(each.ended for each in world.base.progress)


# -- What must hold ----------------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """What a group holds: by `used` and entries, by lines, and by notes; `twice` is what of that `used` has already."""

    held: dict[str, int]
    lines: dict[str, int]
    noted: dict[str, int]
    twice: dict[str, int]


@remembered
def _sums(status: Status, journals: tuple[Journal | None, ...], counted: tuple[str, ...], ahead: str) -> Sums:
    """The sums of the group `ahead` where `used` is that of the objects `counted`."""
    held = [each for each in without_lines(entries_of(status)) if not (is_noted(each) and _is_in(counted, each))]
    noted: list[Resources] = []
    twice: list[Resources] = []
    for line in lines_in(status):
        journal = journal_of(journals, line.holder)
        notes = journal.after(ahead, line) if journal is not None else ()
        noted.append(spent(notes) if journal is not None else line.amount)
        twice.append(spent(note for note in notes if _is_in(counted, note.entry)))
    for entry in spoilt_in(status):
        journal = journal_of(journals, entry.slot.name)
        notes = journal.of_group(ahead) if journal is not None else ()
        noted.append(entry.amount)
        twice.append(spent(note for note in notes if _is_in(counted, note.entry)))
    return Sums(
        add(dict(status.used or ()), reserved_total(held)),
        total(entry.amount for entry in entries_of(status) if is_line(entry)),
        total(noted),
        total(twice),
    )


def broken(before: World, world: World, scenario: Scenario) -> str | None:
    """The first law that the world breaks, or the step to it."""
    if world.wrong:
        return world.wrong
    balances = explorer.balances_of(world.base.stored, world.base.roots, scenario)
    for name in scenario.groups:
        if more := growth(balances[name].demanded, dict(balances[name].hard)):
            return f"I1: {name} has more stored than its hard: {more}"
    known, was = known_of(world, scenario), known_of(before, scenario)
    if known is None:
        return None
    for line in lines_in(known.status):
        journal = journal_of(world.journals, line.holder)
        if journal is not None and growth(spent(journal.after(scenario.ahead, line)), line.amount):
            return f"{line.holder} has noted more than its line holds"
    sums = _sums(known.status, world.journals, world.counted, scenario.ahead)
    earlier = _sums(was.status, before.journals, before.counted, scenario.ahead) if was is not None else None
    for name, ceiling in known.hard:
        stored = balances[scenario.ahead].demanded.get(name, 0)
        if stored > sums.held.get(name, 0) + sums.noted.get(name, 0):
            return f"I2: {stored} of {name} is stored, and {sums} holds it"
        most = ceiling if earlier is None else max(ceiling, _taken(earlier, name))
        if _taken(sums, name) > most:
            return f"{_taken(sums, name)} of {name} is taken, more than its hard and than before: {sums}"
    return None


def _taken(sums: Sums, name: str) -> int:
    return sums.held.get(name, 0) + sums.lines.get(name, 0) - sums.twice.get(name, 0)


def unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    """What is still held once all requests are over, everything is recalled, and a controller has seen it all.

    So it makes no difference what processes and controllers had seen or read by then.
    """
    base = world.base._replace(past=(), caches=(), views=())
    down = (Holder("down"),) * len(world.holders)
    return _unsettled(world._replace(base=base, recalls=(), holders=down, copies=()), scenario, rules)


@remembered
def _unsettled(world: World, scenario: Scenario, rules: Rules) -> str | None:
    for _ in range(20):
        seen = explorer.seen_now(world.base.stored, world.base.deleted, world.base.version)
        world = world._replace(base=world.base._replace(views=(seen,)), copies=(Copy(world.journals),))
        known = known_of(world, scenario)
        if known is None:
            return None
        after = next(_recall(world, scenario, rules, known), None) or next(_count(world, scenario, rules, 0), None)
        if after is None:
            break
        world = after[1]
    known = known_of(world, scenario)
    if known is None:
        return None
    demanded = explorer.demand_of(world.base, scenario, scenario.ahead)
    if known.status.entries or dict(known.status.used or ()) != {each: demanded.get(each, 0) for each, _ in known.hard}:
        return f"{scenario.ahead} never settles: {known.status}, though {demanded} is stored"
    return None


def _status(world: World, scenario: Scenario) -> Status:
    known = known_of(world, scenario)
    return known.status if known is not None else Status()


def explore(scenario: Scenario, rules: Rules | None = None, most: int = 60_000) -> Finding:
    """Every world that the scenario can come to."""
    rules = rules or Rules()

    def law(before: World, world: World) -> str | None:
        found = broken(before, world, scenario)
        if found is None and all(each.phase == "done" for each in world.base.progress):
            found = unsettled(world, scenario, rules)
        return found

    return search(first(scenario), lambda world: steps(world, scenario, rules), law, most)
