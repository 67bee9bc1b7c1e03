"""What is held of deleted workloads whose pods may not be seen yet."""

from __future__ import annotations

import pytest

from bizrq.quota.recount import CountedObject
from bizrq.quota.reservation import Reservation
from controller.usage.departures import Deleted, Departure, held_of_deleted, note_promises
from tests.support.language import entry, res, slot


def promised(amount: str, name: str = "web") -> Departure:
    return Departure(0.0, promised=res(amount), slot=slot(name))


def reserved(amount: str) -> Reservation:
    return entry("web", amount, of="web")


@pytest.mark.parametrize(
    ("seen", "room", "held"),
    [
        ({}, "cpu=9", "cpu=3"),
        ({"here": "cpu=2"}, "cpu=9", "cpu=1"),
        ({"here": "cpu=4"}, "cpu=9", "cpu=0"),
        ({"elsewhere": "cpu=2"}, "cpu=9", "cpu=3"),
        ({}, "cpu=2", "cpu=2"),
    ],
)
def test_what_was_promised_is_held_beyond_what_is_seen_there_and_fits(
    seen: dict[str, str], room: str, held: str
) -> None:
    deleted = {"uid": Deleted(promised("cpu=3"), "here")}
    found = held_of_deleted(deleted, {place: res(amount) for place, amount in seen.items()}, res(room))
    assert found == [CountedObject(slot("web")._replace(name=""), "uid", res(held))]


def test_pods_that_are_seen_and_room_count_once_for_two_of_one_place() -> None:
    deleted = {uid: Deleted(promised("cpu=3"), "here") for uid in ("first", "second")}
    found = held_of_deleted(deleted, {"here": res("cpu=4")}, res("cpu=1"))
    assert [each.cost for each in found] == [res("cpu=0"), res("cpu=1")]


def test_what_was_neither_counted_nor_promised_holds_nothing() -> None:
    assert held_of_deleted({"uid": Deleted(Departure(0.0), "")}, {}, res("cpu=9")) == []


def test_promises_of_one_workload_add_up_and_never_fall() -> None:
    uid = reserved("cpu=1").uid
    departures = {uid: Departure(0.0)}
    note_promises(departures, [reserved("cpu=1"), reserved("cpu=2")])
    note_promises(departures, [reserved("cpu=1")])
    assert departures[uid].promised == res("cpu=3")
    assert departures[uid].charged == res("cpu=3")
    note_promises(departures, [entry("other", "cpu=9", of="other")])
    assert departures.keys() == {uid}
