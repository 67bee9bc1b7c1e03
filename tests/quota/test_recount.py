"""What a recount publishes, which reservations it keeps, and which drift it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bizrq.quota.recount import CountedObject, Recount, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import Reservation, reserved_total
from bizrq.units.resources import add, nonzero
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
    new_leftovers: str = "",
) -> Recount:
    snapshot = Snapshot(res(hard), UsageSums(workloads), children, entries, res(cash), res(published))
    return recount(replace(snapshot, new_leftovers=res(new_leftovers)))


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


@pytest.mark.parametrize(("sighting", "kept"), [(PENDING, True), (OBSERVED, False), (EXPIRED, False)])
def test_a_reservation_goes_once_its_object_is_delivered_or_proved_over(sighting: WriteState, kept: bool) -> None:
    reservation = entry("web", "cpu=4")
    found = recounted("cpu=10", entries=[(reservation, sighting)])
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
    ("nothing where nothing stands there", [], entry("web", "cpu=4"), ""),
    (
        "no more than before, where less is counted",
        [counted("web", "cpu=1")],
        entry("web", "cpu=4", "cpu=3", rv=5),
        "cpu=1",
    ),
    (
        "no more than it was, where more is counted",
        [counted("web", "cpu=3")],
        entry("web", "cpu=4", "cpu=1", rv=5),
        "cpu=1",
    ),
    ("nothing for a create", [counted("web", "cpu=3")], entry("web", "cpu=4", of="another"), ""),
    (
        "nothing of another object of the name",
        [counted("web", "cpu=3")],
        entry("web", "cpu=4", "cpu=3", of="another", rv=5),
        "",
    ),
    (
        "only what the reservation is about",
        [counted("web", "cpu=3 gpu=1")],
        entry("web", "cpu=4", "cpu=3 gpu=1", rv=5),
        "cpu=3",
    ),
    ("no more than the amount", [counted("web", "cpu=6")], entry("web", "cpu=4", "cpu=6", rv=5), "cpu=4"),
    ("nothing where it has gone elsewhere", [counted("api", "cpu=3")], entry("web", "cpu=4", "cpu=3", rv=5), ""),
]


@pytest.mark.parametrize(("why", "workloads", "reservation", "base"), BASES, ids=[row[0] for row in BASES])
def test_the_base_of_a_kept_reservation_falls_to_what_used_holds_for_its_slot_and_never_rises(
    why: str, workloads: list[CountedObject], reservation: Reservation, base: str
) -> None:
    [kept] = recounted("cpu=10 gpu=4", workloads, entries=[(reservation, PENDING)]).reservations
    assert kept.base == res(base)
    assert (kept.amount, kept.expires, kept.uid) == (reservation.amount, reservation.expires, reservation.uid)


def test_a_childs_reservation_has_no_more_than_the_child_holds_as_its_base() -> None:
    reservation = entry("group nlp", "cpu=6", "cpu=5", rv=3)
    found = recounted("cpu=10", children=[counted("group nlp", "cpu=4")], entries=[(reservation, PENDING)])
    assert found.reservations[0].base == res("cpu=4")


def test_the_base_of_an_update_may_hold_what_the_reservations_before_it_add() -> None:
    created, grown = entry("web", "cpu=2"), entry("web", "cpu=3", "cpu=2", rv=5, gen=1)
    again = entry("web", "cpu=6", "cpu=3", rv=6, gen=2)
    assert recounted("cpu=10", entries=[(each, PENDING) for each in (again, grown, created)]).reservations == (
        created,
        grown,
        again,
    )
    found = recounted("cpu=10", [counted("web", "cpu=1")], entries=[(created, OBSERVED), (grown, PENDING)])
    assert found.reservations == (replace(grown, base=res("cpu=1")),), "it was shrunk before"


def test_the_base_of_a_create_is_what_it_will_adopt() -> None:
    reservation, other = entry("web", "cpu=4", "cpu=3"), entry("web", "cpu=4", "cpu=1", of="z")
    entries = [(reservation, PENDING), (other, PENDING)]
    found = recount(Snapshot(res("cpu=10"), UsageSums(), (), entries, adoptable={slot("web"): res("cpu=3")}))
    assert found.reservations == (reservation, replace(other, base={}))
    assert recounted("cpu=10", entries=entries).reservations == (replace(reservation, base={}), replace(other, base={}))


def unobserved(demand: str, floor: str, cost: str) -> CountedObject:
    return replace(counted("web", cost), demand=res(demand), floor=res(floor))


UNOBSERVED = [
    ("grows", unobserved("cpu=5", "cpu=2", "cpu=5"), entry("web", "cpu=5", "cpu=2", rv=5), "cpu=2", "cpu=5"),
    ("was scaled to 0 and back", unobserved("cpu=5", "cpu=5", "cpu=5"), entry("web", "cpu=5", rv=5), "cpu=5", "cpu=10"),
    ("the same, pods ending", unobserved("cpu=5", "cpu=5", "cpu=10"), entry("web", "cpu=5", rv=5), "cpu=5", "cpu=10"),
    ("counted as one", counted("web", "cpu=5"), entry("web", "cpu=5", "cpu=2", rv=5), "cpu=5", "cpu=5"),
]


@pytest.mark.parametrize(
    ("why", "workload", "reservation", "used", "taken"), UNOBSERVED, ids=[row[0] for row in UNOBSERVED]
)
def test_until_its_controller_acts_on_it_the_demand_of_an_update_counts_at_the_base(
    why: str, workload: CountedObject, reservation: Reservation, used: str, taken: str
) -> None:
    found = recounted("cpu=20", [workload], entries=[(reservation, WriteState.DELIVERED)])
    assert found.used == found.self_used == res(used)
    assert add(found.used, reserved_total(found.reservations)) == res(taken)


ONE, FIVE = entry("web", "cpu=1", rv=5, gen=1), entry("web", "cpu=5", "cpu=2", rv=5, gen=1)
AGAIN = entry("web", "cpu=1", rv=9, gen=3)
UNSEEN = [
    ("was scaled up and to 0", unobserved("", "", ""), [ONE], "cpu=0", "cpu=1"),
    ("the same, and up again", unobserved("cpu=1", "", "cpu=1"), [ONE, AGAIN], "cpu=0", "cpu=2"),
    ("its pods are seen", unobserved("cpu=1", "cpu=1", "cpu=1"), [ONE], "cpu=0", "cpu=1"),
    ("was scaled up and back", unobserved("cpu=2", "cpu=2", "cpu=2"), [FIVE], "cpu=2", "cpu=5"),
    ("is another group's", None, [FIVE], "cpu=0", "cpu=5"),
]


@pytest.mark.parametrize(("why", "workload", "entries", "used", "taken"), UNSEEN, ids=[row[0] for row in UNSEEN])
def test_until_its_pods_are_seen_what_was_asked_for_before_is_held(
    why: str, workload: CountedObject | None, entries: list[Reservation], used: str, taken: str
) -> None:
    workloads = [workload] if workload is not None else []
    found = recounted("cpu=20", workloads, entries=[(each, WriteState.UNSEEN) for each in entries], published="cpu=2")
    assert not found.dropped
    assert found.used == found.self_used
    assert nonzero(found.used) == nonzero(res(used))
    assert add(found.used, reserved_total(found.reservations)) == res(taken)


def test_a_name_that_is_new_is_published_though_nobody_acts_on_a_change() -> None:
    """A workload's controller may be gone. What was asked for before is not known: pods and demand count."""
    workload = unobserved("cpu=5 mem=5Gi", "cpu=2 mem=2Gi", "cpu=5 mem=5Gi")
    delivered, later = entry("web", "cpu=5", "cpu=2", rv=5, gen=1), entry("web", "cpu=5", "cpu=2", rv=6, gen=2)
    found = recounted("cpu=20 mem=20Gi", [workload], entries=[(delivered, WriteState.DELIVERED)], published="cpu=5")
    assert found.used == res("cpu=2 mem=2Gi")
    assert add(found.used, reserved_total(found.reservations)) == res("cpu=5 mem=7Gi")
    for entries in ([(delivered, PENDING)], [(delivered, WriteState.DELIVERED), (later, WriteState.DELIVERED)]):
        found = recounted("cpu=20 mem=20Gi", [workload], entries=entries, published="cpu=5")
        assert found.used.keys() == res("cpu=1").keys(), "what is under way may ask for more"


def test_an_entry_stays_until_the_payer_of_what_it_left_is_stored() -> None:
    gone, other = entry("web", "cpu=4"), entry("api", "cpu=1")
    entries = [(gone, OBSERVED), (other, OBSERVED)]
    found = recount(Snapshot(res("cpu=10"), UsageSums(), (), entries, may_drop=lambda each: each is not gone))
    assert (found.reservations, found.dropped) == ((gone,), (other,))


def test_an_entry_that_another_write_of_its_slot_holds_adds_what_nothing_else_does() -> None:
    """More pods of an enlarged template: the pods are seen, and the template is not."""
    template = entry("web", "cpu=4", "cpu=2", rv=5, awaits="podtemplates/team-a/t")
    pods = entry("web", "cpu=8", "cpu=4", rv=6)
    found = recounted("cpu=10", [counted("web", "cpu=4")], entries=[(template, PENDING), (pods, OBSERVED)])
    assert add(found.used, reserved_total(found.reservations)) == res("cpu=8")
    found = recounted("cpu=10", [counted("web", "cpu=8")], entries=[(template, PENDING), (pods, OBSERVED)])
    assert found.reservations == (template,), "all of it is counted"


OVER_QUOTA = [
    ("what is used alone", [counted("web", "cpu=12")], [], "cpu=2"),
    ("what is used and reserved", [counted("web", "cpu=8")], [(entry("api", "cpu=3"), PENDING)], "cpu=1"),
    ("not what was reserved and is delivered", [counted("web", "cpu=8")], [(entry("api", "cpu=3"), OBSERVED)], ""),
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


def test_a_budget_that_children_hold_and_nobody_spends_here_is_not_exhausted() -> None:
    """The children's budgets report."""
    child = [counted("a child", "cash/cpu=5 cash/gpu=4")]
    found = recounted("cash/cpu=5 cash/gpu=5", children=child, cash="cash/gpu=1")
    assert found.used == res("cash/cpu=5 cash/gpu=5")
    assert found.exhausted == tuple(res("cash/gpu=1"))


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
    (
        "not what a create adopts, as long as that counts by itself, too",
        "cpu=4",
        [(entry("web", "cpu=5", "cpu=4"), OBSERVED)],
        [counted("left", "cpu=4"), counted("web", "cpu=5")],
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


def test_what_a_deletion_leaves_is_no_drift_and_its_growth_is() -> None:
    left, web = counted("left", "cpu=3"), counted("web", "cpu=4")
    first = recounted("cpu=10", [left, web], published="cpu=4", new_leftovers="cpu=3")
    assert (first.used, first.drift) == (res("cpu=7"), {})
    grown = counted("left", "cpu=5")
    assert recounted("cpu=10", [grown, web], published="cpu=7").drift == res("cpu=2")


HOLDING = [
    ("its hard", "cpu=10", "cpu=4", [], "cpu=10"),
    ("its hard before anybody has counted it", "cpu=10", "", [], "cpu=10"),
    ("what it uses, where hard was lowered below", "cpu=3", "cpu=8", [], "cpu=8"),
    ("what it uses and has reserved", "cpu=3", "cpu=2", [entry("web", "cpu=4")], "cpu=6"),
    (
        "of two reservations of a slot the sum",
        "cpu=3",
        "cpu=2",
        [entry("web", "cpu=4"), entry("web", "cpu=2", of="b")],
        "cpu=8",
    ),
    ("each resource by itself", "cpu=3 gpu=4", "cpu=8 gpu=1", [], "cpu=8 gpu=4"),
    ("nothing of what its hard does not name", "cpu=3", "cpu=1 gpu=9", [], "cpu=3"),
    ("a zero, so that the name is known", "cpu=0", "", [], "cpu=0"),
]


@pytest.mark.parametrize(("why", "hard", "used", "entries", "held"), HOLDING, ids=[row[0] for row in HOLDING])
def test_a_child_holds(why: str, hard: str, used: str, entries: list[Reservation], held: str) -> None:
    assert held_by_child(res(hard), res(used), entries) == res(held)
