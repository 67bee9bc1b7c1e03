"""What a recount publishes, which reservations it keeps, and which drift it reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bizrq.quota.recount import CountedObject, Recount, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import Reservation
from tests.support.language import entry, res, slot, uid

PENDING, OBSERVED, EXPIRED = WriteState.PENDING, WriteState.OBSERVED, WriteState.EXPIRED


def counted(place: str, cost: str) -> CountedObject:
    return CountedObject(slot(place), uid(place), res(cost))


def recounted(
    hard: str,
    workloads: Sequence[CountedObject] = (),
    children: Sequence[CountedObject] = (),
    entries: Sequence[tuple[Reservation, WriteState]] = (),
    cash: str = "",
    published: str = "",
) -> Recount:
    return recount(Snapshot(res(hard), UsageSums(workloads), children, entries, res(cash), res(published)))


def test_used_is_the_usage_of_own_workloads_and_the_budgets_of_children() -> None:
    found = recounted(
        "cpu=100 gpu=16 cash/gpu=50",
        workloads=[counted("web", "cpu=4 gpu=1"), counted("api", "cpu=2")],
        children=[counted("group nlp", "cpu=10 gpu=4 cash/gpu=20")],
        cash="cash/gpu=3",
    )
    assert found.self_used == res("cpu=6 gpu=1 cash/gpu=3")
    assert found.used == res("cpu=16 gpu=5 cash/gpu=23")


def test_exactly_the_names_of_hard_are_published() -> None:
    found = recounted("cpu=10 gpu=4", workloads=[counted("web", "cpu=4 mem=1Gi")])
    assert found.used == res("cpu=4 gpu=0")
    assert found.self_used == res("cpu=4 gpu=0")
    assert list(found.used) == sorted(found.used)


def test_an_empty_hard_publishes_nothing() -> None:
    found = recounted("", workloads=[counted("web", "cpu=4")])
    assert (found.used, found.self_used, found.over, found.drift) == ({}, {}, {}, {})


@pytest.mark.parametrize(("state", "kept"), [(PENDING, True), (OBSERVED, False), (EXPIRED, False)])
def test_a_reservation_is_dropped_when_its_object_is_observed_or_proved_gone(state: WriteState, kept: bool) -> None:
    reservation = entry("web", "cpu=4")
    found = recounted("cpu=10", entries=[(reservation, state)])
    assert (found.reservations == (reservation,)) is kept
    assert (found.dropped == (reservation,)) is not kept


def test_reservations_of_one_slot_that_await_different_objects_are_dropped_together() -> None:
    """The second includes the write that the first awaits, and that write is not counted yet."""
    first, second = entry("web", "cpu=4", rv=5), entry("web", "cpu=8", rv=6, awaits="podtemplates/team-a/t")
    other = entry("web", "cpu=3", of="another")
    half = recounted("cpu=10", entries=[(first, PENDING), (second, OBSERVED), (other, OBSERVED)])
    assert [each.awaited_slot for each in half.reservations] == [slot("web"), slot("podtemplates/team-a/t")]
    assert half.dropped == (other,)
    assert recounted("cpu=10", entries=[(first, EXPIRED), (second, OBSERVED)]).reservations == ()


BASES = [
    ("nothing where no object is counted", [], entry("web", "cpu=4"), ""),
    ("the counted object", [counted("web", "cpu=3")], entry("web", "cpu=4", rv=5), "cpu=3"),
    (
        "no more than before, where less is counted",
        [counted("web", "cpu=1")],
        entry("web", "cpu=4", "cpu=3", rv=5),
        "cpu=1",
    ),
    (
        "more than before, where more is counted",
        [counted("web", "cpu=3")],
        entry("web", "cpu=4", "cpu=1", rv=5),
        "cpu=3",
    ),
    (
        "the counted object, even if it is another",
        [counted("web", "cpu=3")],
        entry("web", "cpu=4", of="another"),
        "cpu=3",
    ),
    ("only the resources of the reservation", [counted("web", "cpu=3 gpu=1")], entry("web", "cpu=4", rv=5), "cpu=3"),
    (
        "more than the reservation, where it asks for less",
        [counted("web", "cpu=6")],
        entry("web", "cpu=4", rv=5),
        "cpu=6",
    ),
    ("nothing where it has gone elsewhere", [counted("api", "cpu=3")], entry("web", "cpu=4", "cpu=3", rv=5), ""),
]


@pytest.mark.parametrize(("why", "workloads", "reservation", "base"), BASES, ids=[row[0] for row in BASES])
def test_the_base_of_a_kept_reservation_is_the_usage_of_its_slot(
    why: str, workloads: list[CountedObject], reservation: Reservation, base: str
) -> None:
    [kept] = recounted("cpu=10 gpu=4", workloads, entries=[(reservation, PENDING)]).reservations
    assert kept.base == res(base)
    assert (kept.amount, kept.expires, kept.uid) == (reservation.amount, reservation.expires, reservation.uid)


def test_the_base_of_a_childs_reservation_is_what_the_child_holds() -> None:
    found = recounted(
        "cpu=10", children=[counted("group nlp", "cpu=4")], entries=[(entry("group nlp", "cpu=6", rv=3), PENDING)]
    )
    assert found.reservations[0].base == res("cpu=4")


OVER_QUOTA = [
    ("what is used alone", [counted("web", "cpu=12")], [], "cpu=2"),
    ("what is used and reserved", [counted("web", "cpu=8")], [(entry("api", "cpu=3"), PENDING)], "cpu=1"),
    ("not what was reserved and is observed", [counted("web", "cpu=8")], [(entry("api", "cpu=3"), OBSERVED)], ""),
    ("not what is exactly enough", [counted("web", "cpu=10")], [], ""),
]


@pytest.mark.parametrize(("why", "workloads", "entries", "over"), OVER_QUOTA, ids=[row[0] for row in OVER_QUOTA])
def test_a_group_is_over_quota_by(
    why: str, workloads: list[CountedObject], entries: list[tuple[Reservation, WriteState]], over: str
) -> None:
    assert recounted("cpu=10", workloads, entries=entries).over == res(over)


def test_hours_are_exhausted_at_their_ceiling() -> None:
    hard = "cpu=10 cash/cpu=5 cash/gpu=5 cash/mem=0"
    assert recounted(hard, cash="cash/cpu=5 cash/gpu=4999m").exhausted == ("cash/limits.cpu", "cash/limits.memory")


DRIFT = [
    ("growth that was not charged", "cpu=4", [], [counted("web", "cpu=7")], "cpu=3"),
    (
        "growth beyond what was reserved",
        "cpu=4",
        [(entry("api", "cpu=2"), OBSERVED)],
        [counted("web", "cpu=7")],
        "cpu=1",
    ),
    ("not growth that was reserved", "cpu=4", [(entry("api", "cpu=3"), OBSERVED)], [counted("web", "cpu=7")], ""),
    (
        "not growth that two reservations of one slot cover by the larger",
        "cpu=4",
        [(entry("api", "cpu=3"), OBSERVED), (entry("api", "cpu=1", of="b"), PENDING)],
        [counted("web", "cpu=7")],
        "",
    ),
    ("not what shrinks", "cpu=9", [], [counted("web", "cpu=7")], ""),
    ("not a first count", "", [], [counted("web", "cpu=7")], ""),
    ("not hours, which only time adds", "cpu=7 cash/cpu=1", [], [counted("web", "cpu=7")], ""),
]


@pytest.mark.parametrize(("why", "published", "entries", "workloads", "drift"), DRIFT, ids=[row[0] for row in DRIFT])
def test_drift_is(
    why: str, published: str, entries: list[tuple[Reservation, WriteState]], workloads: list[CountedObject], drift: str
) -> None:
    found = recounted("cpu=10 cash/cpu=5", workloads, entries=entries, published=published, cash="cash/cpu=2")
    assert found.drift == res(drift)


HOLDING = [
    ("its hard", "cpu=10", "cpu=4", [], "cpu=10"),
    ("its hard before anybody has counted it", "cpu=10", "", [], "cpu=10"),
    ("what it uses, where hard was lowered below", "cpu=3", "cpu=8", [], "cpu=8"),
    ("what it uses and has reserved", "cpu=3", "cpu=2", [entry("web", "cpu=4")], "cpu=6"),
    (
        "of two reservations of a slot the larger",
        "cpu=3",
        "cpu=2",
        [entry("web", "cpu=4"), entry("web", "cpu=2", of="b")],
        "cpu=6",
    ),
    ("each resource by itself", "cpu=3 gpu=4", "cpu=8 gpu=1", [], "cpu=8 gpu=4"),
    ("nothing of what its hard does not name", "cpu=3", "cpu=1 gpu=9", [], "cpu=3"),
    ("a zero, so that the name is known", "cpu=0", "", [], "cpu=0"),
]


@pytest.mark.parametrize(("why", "hard", "used", "entries", "held"), HOLDING, ids=[row[0] for row in HOLDING])
def test_a_child_holds(why: str, hard: str, used: str, entries: list[Reservation], held: str) -> None:
    assert held_by_child(res(hard), res(used), entries) == res(held)
