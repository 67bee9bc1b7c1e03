"""The reservation protocol holds in every interleaving of a few requests, and each named short cut does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from bizrq.quota import admission, new_reservation, recount
from bizrq.quota.change import Charge
from bizrq.quota.recount import CountedObject, WriteState
from bizrq.quota.reservation import Reservation
from bizrq.units.resources import add, growth, total
from tests.model import explorer
from tests.model.explorer import Admitted, Kind, Rules, Scenario, Status, Stored, amounts_of, explore

ONE = {"g": "cpu=10"}
TWO = {"g": "cpu=10", "h": "cpu=10"}
#: A refers to the template T.
REFERS = {"A": "T"}
SCENARIOS = {
    "two creates": Scenario(ONE, ["create A cpu=6 in g", "create B cpu=6 in g"]),
    "create, delete, create": Scenario(
        ONE, ["create A cpu=6 in g", "delete A", "create B cpu=6 in g", "create A cpu=6 in g"]
    ),
    "create, delete, create, with room": Scenario(
        ONE, ["create A cpu=4 in g", "delete A", "create B cpu=6 in g", "create A cpu=4 in g"]
    ),
    "a move, a growth": Scenario(
        {"g": "cpu=4", "h": "cpu=8"}, ["create A cpu=4 in g", "move A to h", "update A cpu=5", "create B cpu=3 in h"]
    ),
    "grow races": Scenario(ONE, ["create A cpu=2 in g", "update A cpu=6", "update A cpu=3", "create B cpu=6 in g"]),
    "shrink, then grow": Scenario(
        ONE, ["create A cpu=6 in g", "update A cpu=1", "update A cpu=7", "create B cpu=5 in g"]
    ),
    "a stale grow": Scenario(ONE, ["create A cpu=5 in g", "update A cpu=1", "update A cpu=6", "create B cpu=8 in g"]),
    "recreate and grow": Scenario(
        ONE, ["create A cpu=6 in g", "delete A", "create A cpu=2 in g", "update A cpu=9", "create B cpu=4 in g"]
    ),
    "lost replies": Scenario(
        ONE, ["create A cpu=2 in g", "update A cpu=6", "update A cpu=3", "create B cpu=6 in g"], lost_replies=True
    ),
    "a controller that starts anew": Scenario(
        ONE, ["create A cpu=5 in g", "update A cpu=1", "update A cpu=14", "delete A"], restarts=True
    ),
    "a controller that starts anew, and others ask": Scenario(
        ONE, ["create A cpu=5 in g", "update A cpu=7", "delete A", "create B cpu=4 in g"], restarts=True
    ),
    "a promise is taken back": Scenario(
        ONE, ["create A cpu=6 in g", "create A cpu=5 in g", "create B cpu=6 in g", "delete A"], takes_back=True
    ),
    "promises of updates are taken back": Scenario(
        ONE, ["create A cpu=2 in g", "update A cpu=6", "update A cpu=5", "create B cpu=4 in g"], takes_back=True
    ),
    "a move": Scenario(TWO, ["create A cpu=6 in g", "move A to h", "create B cpu=6 in g", "create C cpu=6 in h"]),
    "a move and back": Scenario(TWO, ["create A cpu=6 in g", "move A to h", "move A to g", "create B cpu=6 in g"]),
    "a move while it grows": Scenario(
        TWO, ["create A cpu=2 in g", "move A to h", "update A cpu=7", "create B cpu=6 in h"]
    ),
    "two resources, one for the other": Scenario(
        {"g": "cpu=10 gpu=4"},
        ["create A cpu=2 gpu=3 in g", "update A cpu=7 gpu=1", "update A cpu=1 gpu=4", "create B cpu=6 gpu=2 in g"],
    ),
    "a child is lowered, another created": Scenario(
        {"p": "cpu=10"}, ["create group c cpu=6 in p", "update group c cpu=3", "create group d cpu=6 in p"]
    ),
    "a child is lowered and raised": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=3 in p", "update group c cpu=1", "update group c cpu=5", "create B cpu=6 in p"],
    ),
    "a child is lowered below what runs in it": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=3 in p", "create A cpu=3 in c", "update group c cpu=1", "create B cpu=8 in p"],
    ),
    "a child goes while something enters it": Scenario(
        {"p": "cpu=10"}, ["create group c cpu=6 in p", "create A cpu=6 in c", "delete group c", "create B cpu=6 in p"]
    ),
    "a child is lowered as its workload shrinks": Scenario(
        {"p": "cpu=10"},
        [
            "create group c cpu=6 in p",
            "create A cpu=5 in c",
            "update A cpu=1",
            "update group c cpu=2",
            "create B cpu=6 in p",
        ],
    ),
    "a grandchild is created while its parent is lowered": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=6 in p", "create group d cpu=5 in c", "update group c cpu=2", "create B cpu=6 in p"],
    ),
    "a child is deleted and created": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=6 in p", "delete group c", "create group c cpu=6 in p", "create B cpu=6 in p"],
    ),
    "workloads and groups are seen apart": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=6 in p", "create A cpu=4 in p", "update group c cpu=3"],
        kinds_apart=True,
    ),
    "two controllers": Scenario(
        ONE, ["create A cpu=6 in g", "delete A", "create B cpu=3 in g", "update B cpu=7"], controllers=2
    ),
    "two controllers, shrink and grow": Scenario(
        ONE, ["create A cpu=6 in g", "update A cpu=1", "update A cpu=7", "create B cpu=6 in g"], controllers=2
    ),
    "two controllers, a child is lowered": Scenario(
        {"p": "cpu=10"},
        ["create group c cpu=6 in p", "update group c cpu=3", "create B cpu=6 in p"],
        controllers=2,
    ),
    "two controllers, a move": Scenario(
        TWO, ["create A cpu=6 in g", "move A to h", "create B cpu=6 in g"], controllers=2
    ),
    "more pods and larger ones": Scenario(
        ONE, ["create A cpu=2 in g", "update A cpu=4", "edit T cpu=2", "create B cpu=4 in g"], refers=REFERS
    ),
    "fewer pods, but larger ones": Scenario(
        ONE, ["create A cpu=4 in g", "update A cpu=2", "edit T cpu=2", "create B cpu=6 in g"], refers=REFERS
    ),
    "two edits of a template": Scenario(
        ONE, ["create A cpu=2 in g", "edit T cpu=4", "edit T cpu=2", "create B cpu=6 in g"], refers=REFERS
    ),
    "the template is seen apart from the pods": Scenario(
        ONE, ["create A cpu=2 in g", "update A cpu=4", "edit T cpu=2"], refers=REFERS, kinds_apart=True
    ),
    "a move while its template is edited": Scenario(
        TWO, ["create A cpu=2 in g", "move A to h", "edit T cpu=2", "create B cpu=7 in h"], refers=REFERS
    ),
    "two controllers, more pods and larger ones": Scenario(
        ONE, ["create A cpu=2 in g", "update A cpu=4", "edit T cpu=2"], refers=REFERS, controllers=2
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_interleaving_breaks_a_law(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert found.law is None, str(found)
    assert found.worlds > 20


class Native(Rules):
    """Charge `used` at admission, overwrite it from the recount (kubernetes#123434)."""

    keeps_accounts = False

    def admit(self, hard: Mapping[str, int], status: Status, charge: Charge) -> Admitted | None:
        more = growth(charge.demand, charge.before)
        used = add(dict(status.used or ()), more)
        if any(used[name] > ceiling for name, ceiling in hard.items() if name in more):
            return None
        return status._replace(used=amounts_of(used)), None

    def publish(
        self,
        hard: Mapping[str, int],
        status: Status,
        workloads: Sequence[CountedObject],
        children: Sequence[CountedObject],
        sightings: Sequence[tuple[Reservation, WriteState]],
    ) -> Status:
        counted = total(each.cost for each in (*workloads, *children))
        return status._replace(used=tuple((name, counted.get(name, 0)) for name in hard))


class DropAsSoonAsSeen(Rules):
    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        if kind.at(entry.awaited_slot) is not None:
            return WriteState.OBSERVED
        return super().sighting(entry, kind, over_since, now)


class DropOnceEnoughIsCounted(Rules):
    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        here = kind.at(entry.awaited_slot)
        if here is not None and not growth(entry.amount, dict(here.cost)):
            return WriteState.OBSERVED
        return super().sighting(entry, kind, over_since, now)


class DropAtTheVersionDecidedOn(Rules):
    """An update counts as delivered by the very object that it was decided on."""

    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        earlier = entry
        if entry.resource_version is not None:
            earlier = replace(entry, resource_version=entry.resource_version - 1)
        return super().sighting(earlier, kind, over_since, now)


class GoneWhereNotSeen(Rules):
    """What a view does not have is gone, also where the view is older than the version decided on."""

    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        if entry.resource_version is not None and all(seen.uid != entry.uid for seen in kind.objects):
            return WriteState.OBSERVED
        return super().sighting(entry, kind, over_since, now)


class DropWhatHasExpired(Rules):
    """Expired is expired, without a look at what became of the object."""

    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        return WriteState.PENDING if over_since is None else WriteState.EXPIRED


class AgreeByLooksAlone(Rules):
    """The snapshot shows what the read found, and may for all that be older than the expiry."""

    def sighting(self, entry: Reservation, kind: Kind, over_since: int | None, now: Stored | None) -> WriteState:
        if over_since is not None:
            over_since = 0
        return super().sighting(entry, kind, over_since, now)


class AlreadyReservedNothingToWrite(Rules):
    """What stands in the status already, at least as much of it, need not be stored again."""

    answers_from_cache = True

    def admit(self, hard: Mapping[str, int], status: Status, charge: Charge) -> Admitted | None:
        granted = super().admit(hard, status, charge)
        return (status, None) if granted is not None and granted[0] == status else granted


class TakeBackWhatOthersShare(Rules):
    """Updates of one object from one generation share a promise, and one of them may be stored."""

    takes_back = ("create", "update")


class NoCountedAt(Rules):
    minds_counted_at = False


class NoSecondLook(Rules):
    """What a promise was counted from may have changed before the promise was stored, and nobody looks."""

    looks_again = False


class NoMarkWhereItLeaves(Rules):
    marks_moves = False


SHORT_CUTS: Sequence[tuple[type[Rules], str]] = [
    (Native, "two creates"),
    (Native, "a child is lowered, another created"),
    (DropAsSoonAsSeen, "create, delete, create, with room"),
    (DropAsSoonAsSeen, "grow races"),
    (DropOnceEnoughIsCounted, "create, delete, create, with room"),
    (DropAtTheVersionDecidedOn, "grow races"),
    (GoneWhereNotSeen, "grow races"),
    (DropWhatHasExpired, "two creates"),
    (AgreeByLooksAlone, "two controllers"),
    (AlreadyReservedNothingToWrite, "lost replies"),
    (TakeBackWhatOthersShare, "promises of updates are taken back"),
    (NoCountedAt, "two controllers"),
    (NoCountedAt, "two controllers, a child is lowered"),
    (NoCountedAt, "two controllers, a move"),
    (NoSecondLook, "more pods and larger ones"),
    (NoMarkWhereItLeaves, "a move while its template is edited"),
]


@pytest.mark.parametrize(("rules", "name"), SHORT_CUTS, ids=lambda each: getattr(each, "__name__", each))
def test_each_short_cut_is_found_broken(rules: type[Rules], name: str) -> None:
    found = explore(SCENARIOS[name], rules())
    assert found.law is not None


#: What the code would do wrong by one line, as a patch of that line.
SLIPS = {
    "a create with a base": (Reservation, "extra", property(lambda _: {}), "two creates"),
    "a recount that calls everything held": (recount, "_within", lambda _, amount, *__: amount, "two creates"),
    "a slot with one entry": (Reservation, "same_write", lambda _, __: True, "grow races"),
    "the latest amount wins": (new_reservation, "larger", lambda _, new: dict(new), "grow races"),
    "two writes that do not know of each other": (
        Charge,
        "has_read",
        lambda *_: True,
        "more pods and larger ones",
    ),
    "an entry for a move and for what comes upon it": (
        admission,
        "CHECKS",
        [each for each in admission.CHECKS if each is not admission.earlier_write_is_counted],
        "a move, a growth",
    ),
    "a promise that goes before one that it was counted from": (
        recount,
        "_awaited",
        lambda _: {},
        "the template is seen apart from the pods",
    ),
    "a child that holds only its hard": (
        explorer,
        "held_by_child",
        lambda hard, used, entries: dict(hard),
        "a child is lowered below what runs in it",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_of_the_code_is_found_broken(slip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong, scenario = SLIPS[slip]
    monkeypatch.setattr(owner, name, wrong)
    assert explore(SCENARIOS[scenario]).law is not None


def test_one_line_for_all_writes_of_a_slot_is_found_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two creates of one name, the first may be stored after the second was promised."""
    for owner in (Reservation, Charge):
        monkeypatch.setattr(owner, "write", property(lambda each: each.slot))
    assert explore(SCENARIOS["create, delete, create, with room"]).law is not None
