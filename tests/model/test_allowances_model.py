"""Admission by allowances holds in every interleaving of a few requests, and each named short cut does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bizrq.quota.account import Account
from bizrq.quota.allowance import Journal, Line, Note
from bizrq.quota.change import Charge
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.units.resources import Resources
from tests.model import explorer
from tests.model.allowances import Cached, Rules, Scenario, explore

ONE = {"g": "cpu=6"}
SMALL = {"g": "cpu=3"}
TREE = {"p": "cpu=4"}
#: Lines hold 3 cores if nothing else is said.
SCENARIOS = {
    "two creates": Scenario(ONE, ["create A cpu=3 in g", "create B cpu=3 in g"]),
    "two that do not fit together": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"]),
    "small ones up to the brim": Scenario(SMALL, ["create A cpu=1 in g", "create B cpu=2 in g"], give="cpu=2"),
    "two processes": Scenario({"g": "cpu=2"}, ["create A cpu=1 in g"], give="cpu=1", holders=2, gifts=2),
    "a line is given again": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], gifts=2),
    "create, delete, create": Scenario(SMALL, ["create A cpu=3 in g", "delete A", "create A cpu=3 in g"], gifts=2),
    "one name twice": Scenario(ONE, ["create A cpu=3 in g", "create A cpu=2 in g"]),
    "it grows elsewhere": Scenario(ONE, ["create A cpu=3 in g", "update A cpu=5"]),
    "shrink, then grow": Scenario(ONE, ["create A cpu=3 in g", "update A cpu=1", "update A cpu=4"]),
    "a move": Scenario({"g": "cpu=3", "h": "cpu=3"}, ["create A cpu=3 in g", "move A to h"]),
    "lost answers of notes": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"lost"}),
    "lost answers of entries": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], lost_replies=True),
    "notes that are stored late": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"late"}),
    "a crash and a restart": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"crash"}, gifts=2),
    "a slow recall": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"slow"}, gifts=2),
    "journals that were read before": Scenario(ONE, ["create A cpu=3 in g", "create B cpu=3 in g"], faults={"copies"}),
    "journals that were read before a growth": Scenario(
        ONE, ["create A cpu=3 in g", "update A cpu=5"], faults={"copies"}
    ),
    "a journal is deleted": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"deleted"}),
    "an older version counts, too": Scenario(ONE, ["create A cpu=3 in g", "create B cpu=4 in g"], faults={"older"}),
    "a clean end": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"ends"}),
    "a clean end with notes that are stored late": Scenario(SMALL, ["create A cpu=2 in g"], faults={"ends", "late"}),
    "a clean end beside an older version": Scenario(SMALL, ["create A cpu=3 in g"], faults={"ends", "older"}),
    "a line that cannot be read": Scenario(SMALL, ["create A cpu=2 in g", "create B cpu=2 in g"], faults={"spoilt"}),
    "a line of an unknown holder": Scenario(SMALL, ["create A cpu=1 in g"], give="cpu=2", faults={"stranger"}),
    "two controllers": Scenario(SMALL, ["create A cpu=3 in g", "delete A"], controllers=2),
    "the group is edited": Scenario(
        TREE,
        ["create A cpu=2 in c", "update group c cpu=3"],
        ahead="c",
        give="cpu=2",
        stands="cpu=4",
    ),
    "the group goes": Scenario(
        TREE,
        ["create A cpu=2 in c", "delete group c"],
        ahead="c",
        give="cpu=2",
        stands="cpu=4",
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_a_law(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert found.law is None, str(found)
    assert found.worlds > 100


class DropBeforeTheMark(Rules):
    """The journal is read, the line is dropped, and only then the journal is marked."""

    marks_first = False


class RecallForgetsNotes(Rules):
    """The next count will see the objects."""

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        kept, left = super().folded(entries, line, notes, noted=noted)
        return (super().folded(entries, line, (), noted=noted)[0] if noted else kept), left


class CountForgetsNotes(Rules):
    """What is noted is stored by now, and this count holds it."""

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        kept, left = super().folded(entries, line, notes, noted=noted)
        return (kept if noted else super().folded(entries, line, (), noted=noted)[0]), left


class CountLeavesTheAmount(Rules):
    """Notes become entries, and the line stays as large as it was."""

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        kept, left = super().folded(entries, line, notes, noted=noted)
        return kept, replace(left, amount=line.amount)


class CountLeavesSeen(Rules):
    """Notes become entries, and the line does not say which."""

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        kept, left = super().folded(entries, line, notes, noted=noted)
        return kept, replace(left, seen=line.seen)


class CountTakesBack(Rules):
    """A count lowers the line by more than what it has moved."""

    def folded(
        self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note], *, noted: bool
    ) -> tuple[list[Reservation], Line]:
        kept, left = super().folded(entries, line, notes, noted=noted)
        return kept, replace(left, amount={})


class GivesWithoutRoom(Rules):
    def raised(self, line: Line, free: Resources, amount: Resources) -> Line | None:
        return super().raised(line, amount, amount)


class MindsNoMarks(Rules):
    """A process believes what its cache says of its line."""

    minds_marks = False


class ForgetsMarksEarly(Rules):
    """Where the cache has no line of that epoch, the mark goes: but the cache may be older than the line."""

    def pruned(self, journal: Journal, holder: str, group: str, cache: Cached) -> Journal:
        less = super().pruned(journal, holder, group, cache)
        mine = Line.of(parse_reservation(cache.line)).epoch if cache.line else -1
        return replace(less, recalled=tuple((name, epoch) for name, epoch in less.recalled if epoch == mine))


class ForgetsNotesEarly(Rules):
    """A note that is answered need not stay in the journal."""

    def pruned(self, journal: Journal, holder: str, group: str, cache: Cached) -> Journal:
        return replace(super().pruned(journal, holder, group, cache), notes=())


class OneEpoch(Rules):
    """Who recalls drops whatever line its process has by then."""

    minds_epochs = False


class TakesOver(Rules):
    """A process that starts again goes on with the line and an empty journal of the same name."""

    starts_anew = False


class AnswersFirst(Rules):
    notes_first = False


class TakesUnknownForStored(Rules):
    looks_up = False


class DropsTheLineOfALostJournal(Rules):
    waits_for_writes = False


class EditsBesideLines(Rules):
    def may_change(self, entries: Sequence[Reservation]) -> bool:
        return True


class RefusesBesideLines(Rules):
    def denied(self, account: Account, charge: Charge) -> str:
        found = super().denied(account, charge)
        return "refused" if found == "recall" else found


class RefusesBeforeTheCount(Rules):
    """After a recall the notes are entries, and `used` may hold their objects already."""

    def denied(self, account: Account, charge: Charge) -> str:
        found = super().denied(account, charge)
        return "refused" if found == "count" else found


class CountsWithOldJournals(Rules):
    """A count goes on with journals that were read before somebody wrote the status."""

    reads_after_status = False


class EndsWhileItNotes(Rules):
    """A process drops its own line, as it knows its notes, while it still admits; its journal is not marked."""

    ends_first = False


class EndsWithoutItsNotes(Rules):
    """What an ending process has admitted is stored by now."""

    def handed_back(self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note]) -> list[Reservation]:
        return super().handed_back(entries, line, ())


class EndsWithPlainEntries(Rules):
    """An ending process stores its notes as if a count had looked at them."""

    def handed_back(self, entries: Sequence[Reservation], line: Line, notes: Sequence[Note]) -> list[Reservation]:
        return self.folded(entries, line, notes, noted=False)[0]


class UsesAnyLine(Rules):
    """What is held ahead is there for whoever admits first."""

    minds_holders = False


class RemovesWithoutAFence(Rules):
    """Nobody uses a line that cannot be read: but caches are older."""

    fences_first = False


class RemovesWithoutNotes(Rules):
    """What a line of no use has admitted is stored by now."""

    def replaced(self, entries: Sequence[Reservation], holder: str, notes: Sequence[Note]) -> list[Reservation]:
        return super().replaced(entries, holder, ())


SHORT_CUTS: Sequence[tuple[type[Rules], str]] = [
    (DropBeforeTheMark, "two creates"),
    (RecallForgetsNotes, "two creates"),
    (CountForgetsNotes, "two creates"),
    (CountLeavesTheAmount, "two creates"),
    (CountLeavesSeen, "two creates"),
    (CountTakesBack, "two creates"),
    (GivesWithoutRoom, "two creates"),
    (MindsNoMarks, "two creates"),
    (ForgetsMarksEarly, "a line is given again"),
    (ForgetsNotesEarly, "two creates"),
    (OneEpoch, "a slow recall"),
    (TakesOver, "a crash and a restart"),
    (AnswersFirst, "two creates"),
    (TakesUnknownForStored, "notes that are stored late"),
    (DropsTheLineOfALostJournal, "a journal is deleted"),
    (EditsBesideLines, "the group is edited"),
    (RefusesBesideLines, "two creates"),
    (RefusesBeforeTheCount, "journals that were read before"),
    (CountsWithOldJournals, "journals that were read before a growth"),
    (EndsWhileItNotes, "a clean end"),
    (EndsWithoutItsNotes, "a clean end"),
    (EndsWithPlainEntries, "a clean end beside an older version"),
    (UsesAnyLine, "a line of an unknown holder"),
    (RemovesWithoutAFence, "a line that cannot be read"),
    (RemovesWithoutNotes, "a line that cannot be read"),
]


@pytest.mark.parametrize(("rules", "name"), SHORT_CUTS, ids=lambda each: getattr(each, "__name__", each))
def test_each_short_cut_is_found_broken(rules: type[Rules], name: str) -> None:
    assert explore(SCENARIOS[name], rules()).law is not None


def test_a_group_that_goes_beside_its_lines_is_found_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deletion asks for objects alone."""
    monkeypatch.setattr(
        explorer,
        "may_go",
        lambda world, old: not any(found.group == old.place.name for found in world.stored),
    )
    monkeypatch.setattr(Rules, "may_change", lambda *_: True)
    assert explore(SCENARIOS["the group goes"]).law is not None
