"""Which changes are admitted, why others are rejected, and which reservation an admitted change leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec import structs

from bizrq.quota.account import MAX_BYTES, MAX_ENTRIES, Account
from bizrq.quota.admission import MAX_ENTRY, decide
from bizrq.quota.change import Charge
from bizrq.quota.fair_share import MAX_SLOT_CREATES, SLOW, must_be_free
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.units.slot import GROUP_SLOT_KIND, ReservationError, Slot, group_slot
from bizrq.units.times import format_timestamp, parse_timestamp
from tests.support.catalog import CATALOG
from tests.support.language import NOW, account, create, entry, grant, move, res, role, slot, uid, update


def granted(verdict: Verdict) -> Reservation:
    assert isinstance(verdict, Granted), verdict
    assert verdict.reservation is not None, "the change was admitted without a reservation"
    return verdict.reservation


def refused(verdict: Verdict) -> Denied:
    assert isinstance(verdict, Denied), verdict
    return verdict


def stating(
    charge: Charge, missing: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Charge:
    return structs.replace(charge, unspecified=missing, unspecified_before=before)


# -- Nothing worse -----------------------------------------------------------------------------------------------------

OVER = account("nlp cpu=10 cash/cpu=5", "cpu=20 cash/cpu=9")
NOTHING_WORSE = [
    ("an update that asks for the same", OVER, update("web", "cpu=4", "cpu=4")),
    ("an update that asks for less", OVER, update("web", "cpu=4", "cpu=1")),
    ("an update of what costs nothing", OVER, update("web", "", "")),
    ("an update that gives up a resource", OVER, update("web", "cpu=4 gpu=1", "cpu=4")),
    ("an update in a group that is not counted", account("nlp cpu=10", "?"), update("web", "cpu=4", "cpu=4")),
    (
        "an update without requests, as before",
        OVER,
        stating(update("web", "cpu=4", "cpu=4"), {"limits.cpu": "c"}, before={"limits.cpu": "c"}),
    ),
    ("an update without requests that the group does not count", OVER, stating(update("web", "", ""), {"memory": "c"})),
    ("a child that is lowered", OVER, grant("ai", "cpu=1", before="cpu=8")),
]


@pytest.mark.parametrize(("why", "group", "charge"), NOTHING_WORSE, ids=[row[0] for row in NOTHING_WORSE])
def test_a_change_that_needs_no_more_is_admitted_without_a_reservation(
    why: str, group: Account, charge: Charge
) -> None:
    assert decide(group, charge, NOW) == Granted(None)


# -- Each reason, in the order in which they are checked ---------------------------------------------------------------

REFUSED = [
    (
        "a resource of hard that no recount has published is unknown, not zero",
        account("nlp cpu=10 gpu=4", "?"),
        create("web", "cpu=1"),
        Reason.NOT_RECONCILED,
        "quota nlp is not reconciled yet: limits.cpu, requests.nvidia.com/gpu not counted",
    ),
    (
        "one unknown resource is enough, though the change does not ask for it",
        Account("nlp", res("cpu=10 gpu=4"), res("cpu=0"), catalog=CATALOG),
        create("web", "cpu=1"),
        Reason.NOT_RECONCILED,
        "quota nlp is not reconciled yet: requests.nvidia.com/gpu not counted",
    ),
    (
        "a child may come again at once, when its parent will have been counted",
        account("ai cpu=60", "?"),
        grant("nlp", "cpu=10"),
        Reason.PARENT_NOT_RECONCILED,
        "quota ai is not reconciled yet: limits.cpu not counted: try again",
    ),
    (
        "a group that cannot remember who pays for its pods does not grow",
        Account("nlp", res("cpu=10"), res("cpu=0"), catalog=CATALOG, problem="the record is full"),
        stating(create("web", "cpu=1"), {"limits.cpu": ("c",)}),
        Reason.PAYERS,
        "quota nlp cannot remember who pays for its pods, so nothing may grow: the record is full",
    ),
    (
        "containers must say what hard names",
        account("nlp cpu=10 mem=1Gi"),
        stating(create("web", ""), {"limits.memory": ("c", "b"), "limits.cpu": ("c",)}),
        Reason.UNSPECIFIED,
        "failed quota: nlp: must specify limits.cpu for: c; limits.memory for: b,c",
    ),
    (
        "spent hours refuse growth of their resource",
        account("nlp cpu=10 cash/cpu=100", "cash/cpu=100"),
        create("web", "cpu=1"),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/limits.cpu=1, used: cash/limits.cpu=100, "
        "limited: cash/limits.cpu=100; left: cash/limits.cpu=0",
    ),
    (
        "hours that are more than spent do too",
        account("nlp cash/gpu=16", "cash/gpu=16500m"),
        create("job", "gpu=1 cpu=1", roles=[role("worker gpu=1 cpu=1", 1)]),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=1, used: cash/requests.nvidia.com/gpu=16500m, "
        "limited: cash/requests.nvidia.com/gpu=16; left: cash/requests.nvidia.com/gpu=0; fits: 0 more replicas",
    ),
    (
        "no hours at all are spent from the start",
        account("nlp cash/gpu=0"),
        create("job", "gpu=1"),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=1, used: cash/requests.nvidia.com/gpu=0, "
        "limited: cash/requests.nvidia.com/gpu=0; left: cash/requests.nvidia.com/gpu=0",
    ),
    (
        "more than is left",
        account("nlp cpu=10", "cpu=8"),
        create("web", "cpu=4", roles=[role("pods cpu=1", 4)]),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu=4, used: limits.cpu=8, limited: limits.cpu=10; "
        "left: limits.cpu=2; fits: 2 more replicas",
    ),
    (
        "one more core of a model of which all are used",
        account("nlp cpu=10 cpu.A4=4", "cpu=4 cpu.A4=4"),
        create("web", "cpu=1 cpu.A4=1", roles=[role("pods cpu=1 cpu.A4=1", 1)]),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu.A4=1, used: limits.cpu.A4=4, limited: limits.cpu.A4=4; "
        "left: limits.cpu.A4=0; fits: 0 more replicas",
    ),
    (
        "too much of the model and of the base names both, sorted",
        account("nlp cpu=10 cpu.A4=4", "cpu=8 cpu.A4=4"),
        create("web", "cpu=4 cpu.A4=4", roles=[role("pods cpu=2 cpu.A4=2", 2)]),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu=4,limits.cpu.A4=4, used: limits.cpu=8,limits.cpu.A4=4, "
        "limited: limits.cpu=10,limits.cpu.A4=4; left: limits.cpu=2,limits.cpu.A4=0; fits: 0 more replicas",
    ),
    (
        "a ceiling and hours that are both exceeded are not CashExhausted",
        account("nlp cpu=10 cash/cpu=1", "cpu=10 cash/cpu=1"),
        create("web", "cpu=1"),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: cash/limits.cpu=1,limits.cpu=1, used: cash/limits.cpu=1,limits.cpu=10, "
        "limited: cash/limits.cpu=1,limits.cpu=10; left: cash/limits.cpu=0,limits.cpu=0",
    ),
    (
        "a scale upon a create that is stored and not counted: counting it frees nothing",
        account("nlp cpu=10", "cpu=4", [entry("web", "cpu=4")]),
        update("web", "cpu=4", "cpu=8", roles=[role("pods cpu=1", 8)], roles_before=[role("pods cpu=1", 4)]),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu=4, used: limits.cpu=8, limited: limits.cpu=10; "
        "left: limits.cpu=2; fits: 2 more replicas",
    ),
    (
        "a scale that would fit once the changes before it are counted: it was raised, and lowered again",
        account("nlp cpu=10", "cpu=4", [entry("web", "cpu=8", "cpu=4", rv=5, gen=1)]),
        update("web", "cpu=4", "cpu=8", gen=3),
        Reason.BUSY,
        "quota nlp: another change of deployments.apps/team-a/web is under way that needs limits.cpu: try again",
    ),
    (
        "a create of the name of one that was stored and deleted, which would fit once that is counted",
        account("nlp cpu=10", "cpu=4", [entry("web", "cpu=4", of="old")]),
        create("web", "cpu=4", of="new"),
        Reason.BUSY,
        "quota nlp: another change of deployments.apps/team-a/web is under way that needs limits.cpu: try again",
    ),
    (
        "reserved amounts count as used",
        account("nlp cpu=10", "cpu=4", [entry("api", "cpu=4")]),
        create("web", "cpu=4"),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu=4, used: limits.cpu=8, limited: limits.cpu=10; left: limits.cpu=2",
    ),
    (
        "an update asks for its growth, not for its whole",
        account("nlp mem=10Gi", "mem=9Gi"),
        update("web", "mem=4Gi", "mem=6Gi", roles=[role("pods mem=1Gi", 6)], roles_before=[role("pods mem=1Gi", 4)]),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.memory=2Gi, used: limits.memory=9Gi, limited: limits.memory=10Gi; "
        "left: limits.memory=1Gi; fits: 1 more replica",
    ),
    (
        "over a lowered hard nothing is left",
        account("nlp cpu=10", "cpu=12"),
        create("web", "cpu=1"),
        Reason.EXCEEDED,
        "exceeded quota: nlp, requested: limits.cpu=1, used: limits.cpu=12, limited: limits.cpu=10; left: limits.cpu=0",
    ),
    (
        "a child asks for more than its parent has",
        account("ai cpu=60", "cpu=30"),
        grant("speech", "cpu=31"),
        Reason.EXCEEDED,
        "exceeded quota: ai, requested: limits.cpu=31, used: limits.cpu=30, limited: limits.cpu=60; "
        "left: limits.cpu=30",
    ),
    (
        "a child asks for more hours than its parent has",
        account("ai cash/cpu=500", "cash/cpu=480"),
        grant("speech", "cash/cpu=30"),
        Reason.CASH,
        "exceeded quota: ai, requested: cash/limits.cpu=30, used: cash/limits.cpu=480, "
        "limited: cash/limits.cpu=500; left: cash/limits.cpu=20",
    ),
    (
        "what an earlier change of the object may still need is not overdrawn by one that does not ask for it",
        account("nlp cpu=10 gpu=4", "cpu=9", [entry("web", "cpu=7", "cpu=6", rv=5)]),
        update("web", "cpu=1", "cpu=1 gpu=1"),
        Reason.BUSY,
        "quota nlp: another change of deployments.apps/team-a/web is under way that needs limits.cpu: try again",
    ),
    (
        "too many reservations",
        account("nlp cpu=10k", "", [entry(f"web-{n}", "cpu=1", expires=NOW + LIFETIME) for n in range(MAX_ENTRIES)]),
        create("web", "cpu=1"),
        Reason.FULL,
        "quota nlp has too many admissions under way: 2000 entries or 256 KiB; try again",
    ),
]


@pytest.mark.parametrize(("why", "group", "charge", "reason", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_each_refusal_is_one_complete_line(
    why: str, group: Account, charge: Charge, reason: Reason, message: str
) -> None:
    verdict = refused(decide(group, charge, NOW))
    assert verdict.message == message
    assert verdict.reason is reason
    assert verdict.code == (429 if message.endswith("try again") else 403)


def test_the_first_reason_in_order_is_returned() -> None:
    """Reasons: unknown usage, unstated resources, conflicting changes, hours and ceilings, too many reservations."""
    entries = [entry(f"web-{n}", "cpu=1") for n in range(MAX_ENTRIES)]
    hard = "nlp cpu=10 cash/cpu=1"
    charge = stating(create("web", "cpu=20"), {"limits.cpu": ("c",)})

    assert refused(decide(account(hard, "?", entries), charge, NOW)).reason is Reason.NOT_RECONCILED
    known = account(hard, "cash/cpu=1", entries)
    assert refused(decide(known, charge, NOW)).reason is Reason.UNSPECIFIED
    verdict = refused(decide(known, structs.replace(charge, unspecified={}), NOW))
    assert verdict.reason is Reason.EXCEEDED
    assert [violation.resource for violation in verdict.violations] == ["cash/limits.cpu", "limits.cpu"]
    crossed = account(hard, "cash/cpu=1", [entry("web", "cpu=1", awaits="pods/team-a/a")])
    assert refused(decide(crossed, structs.replace(charge, unspecified={}), NOW)).reason is Reason.BUSY
    assert refused(decide(known, create("web", "gpu=1"), NOW)).reason is Reason.FULL
    busy = account("nlp cpu=10", "cpu=9", [entry("web", "cpu=7", "cpu=6", rv=5), *entries[:-1]])
    assert refused(decide(busy, update("web", "cpu=1", "cpu=1 gpu=1"), NOW)).reason is Reason.BUSY


def test_cards_without_a_model_are_rejected_where_the_group_limits_models() -> None:
    """Admit them if the group limits no model, or if nothing grows."""
    charge = structs.replace(create("web", "gpu=1"), unmodelled={"requests.nvidia.com/gpu": ("main",)})
    verdict = refused(decide(account("nlp gpu=8 requests.nvidia.com/gpu.A100=4"), charge, NOW))
    assert verdict.reason is Reason.UNSPECIFIED
    assert verdict.message == "failed quota: nlp: must specify the model of requests.nvidia.com/gpu for: main"
    assert isinstance(decide(account("nlp gpu=8"), charge, NOW), Granted)
    cpu = update("web", "gpu=1 cpu=2", "gpu=1 cpu=1")
    cpu = structs.replace(cpu, unmodelled=charge.unmodelled, unmodelled_before=charge.unmodelled)
    assert isinstance(
        decide(account("nlp cpu=8 gpu=8 requests.nvidia.com/gpu.A100=4", "gpu=1 cpu=1"), cpu, NOW), Granted
    )


@pytest.mark.parametrize(
    ("missing", "before", "told"),
    [
        ({"limits.cpu": ["c"]}, {}, "limits.cpu for: c"),
        ({"limits.cpu": ["c", "d"]}, {"limits.cpu": ["c"]}, "limits.cpu for: d"),
        ({"limits.cpu": ["c"], "requests.cpu": ["c"]}, {"requests.cpu": ["c"]}, "limits.cpu for: c"),
    ],
    ids=["it goes", "another container", "another name"],
)
def test_an_update_may_not_state_less_than_the_stored_object(
    missing: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]], told: str
) -> None:
    """What the pods use would not be counted. It asks for less, so that nothing else would refuse it."""
    verdict = refused(decide(OVER, stating(update("web", "cpu=4", ""), missing, before), NOW))
    assert (verdict.reason, verdict.message) == (Reason.UNSPECIFIED, f"failed quota: nlp: must specify {told}")


def test_an_update_may_not_take_a_model_away_where_the_group_limits_models() -> None:
    charge = structs.replace(update("web", "gpu=1", "gpu=1"), unmodelled={"requests.nvidia.com/gpu": ("main",)})
    modelled = account("nlp gpu=8 requests.nvidia.com/gpu.A100=4", "gpu=1")
    assert "must specify the model" in refused(decide(modelled, charge, NOW)).message
    assert decide(account("nlp gpu=8", "gpu=1"), charge, NOW) == Granted(None)


def test_writes_that_share_a_claim_do_not_wait_for_each_other() -> None:
    """Two workloads name one claim: together they need as much as the one that needs most."""
    claim = "resourceclaims.resource.k8s.io/team-a/s"
    first = entry(claim, "gpu=4", awaits="pods/team-a/a")
    charge = structs.replace(create(claim, "gpu=4"), pending_write=slot("pods/team-a/b"), is_shared=True)
    group = account("nlp gpu=4", "", [first])
    group.reserve(granted(decide(group, charge, NOW)))
    assert group.reserved == res("gpu=4")
    alone = structs.replace(charge, is_shared=False)
    assert refused(decide(account("nlp gpu=4", "", [first]), alone, NOW)).reason is Reason.BUSY


def test_a_refusal_carries_its_numbers() -> None:
    [violation] = refused(decide(account("nlp cpu=10", "cpu=8"), create("web", "cpu=4"), NOW)).violations
    assert (violation.resource, violation.requested, violation.used, violation.hard, violation.left) == (
        "limits.cpu",
        4 * 10**9,
        8 * 10**9,
        10 * 10**9,
        2 * 10**9,
    )


# -- What is admitted --------------------------------------------------------------------------------------------------

ADMITTED = [
    ("exactly what is left", account("nlp cpu=10", "cpu=6"), create("web", "cpu=4")),
    ("what hard does not name", account("nlp cpu=10", "cpu=10"), create("web", "gpu=100 mem=1Ti")),
    ("nothing at all, in a group that is over", account("nlp cpu=10", "cpu=12"), create("web", "")),
    (
        "another model than the one that is used up",
        account("nlp cpu=10 cpu.A4=4", "cpu=4 cpu.A4=4"),
        create("w", "cpu=6"),
    ),
    (
        "something whose unstated resource hard does not name",
        account("nlp cpu=10"),
        stating(create("w", ""), {"limits.memory": "c"}),
    ),
    (
        "growth of what has no hours, though others are spent",
        account("nlp cpu=10 cash/gpu=1", "cash/gpu=1"),
        create("w", "cpu=1"),
    ),
    ("growth with a second of hours left", account("nlp cpu=10 cash/cpu=1", "cash/cpu=999m"), create("w", "cpu=5")),
    (
        "less of the one and more of the other, while the one is over",
        account("nlp cpu=10 gpu=4", "cpu=12"),
        update("w", "cpu=4", "cpu=2 gpu=1"),
    ),
    (
        "a child of a group whose hours are spent, if it asks for none",
        account("ai cpu=60 cash/cpu=1", "cash/cpu=1"),
        grant("x", "cpu=6 cash/cpu=0"),
    ),
    ("a group in a group without ceilings", account("ai"), grant("x", "cpu=6")),
]


@pytest.mark.parametrize(("why", "group", "charge"), ADMITTED, ids=[row[0] for row in ADMITTED])
def test_a_charge_that_fits_reserves_what_hard_names(why: str, group: Account, charge: Charge) -> None:
    reservation = granted(decide(group, charge, NOW))
    assert reservation.slot == charge.slot
    assert reservation.uid == charge.uid
    assert reservation.resource_version == charge.resource_version
    assert reservation.amount == {name: charge.demand[name] for name in charge.demand if name in group.hard}
    assert reservation.expires == NOW + LIFETIME


def test_decide_leaves_the_account_unchanged_and_reserve_changes_it() -> None:
    group = account("nlp cpu=10", "cpu=2")
    reservation = granted(decide(group, create("web", "cpu=4"), NOW))
    assert group.reservations == []
    assert group.taken("limits.cpu") == 2 * 10**9
    group.reserve(reservation)
    assert group.reservations == [reservation]
    assert group.taken("limits.cpu") == 6 * 10**9


def test_what_is_taken_back_leaves_the_account_as_it_was() -> None:
    other = entry("api", "cpu=2")
    group = account("nlp cpu=30", "cpu=1", [other])
    reservation = granted(decide(group, create("web", "cpu=3"), NOW))
    group.reserve(reservation)
    assert (group.taken("limits.cpu"), len(group.reservations)) == (6 * 10**9, 2)
    assert [group.take_back(reservation.write) for _ in range(2)] == [True, False]
    assert (group.taken("limits.cpu"), group.reservations) == (3 * 10**9, [other])


def test_a_running_copy_of_the_account_rejects_the_charge_that_no_longer_fits() -> None:
    group = account("nlp cpu=10")
    for name in ("a", "b"):
        group.reserve(granted(decide(group, create(name, "cpu=4"), NOW)))
    assert refused(decide(group, create("c", "cpu=4"), NOW)).reason is Reason.EXCEEDED
    assert granted(decide(group, create("d", "cpu=2"), NOW))


@pytest.mark.parametrize(
    "charge",
    [create("web", ""), move("web", ""), grant("nlp", ""), create("web", "gpu=0")],
    ids=["a workload", "a move", "a child group", "a zero"],
)
def test_a_new_object_has_a_reservation_even_if_it_costs_nothing(charge: Charge) -> None:
    assert granted(decide(account("nlp cpu=10"), charge, NOW)).slot == charge.slot


def test_a_child_group_is_charged_in_the_slot_of_its_name() -> None:
    assert str(group_slot("nlp")) == "bizgroupresourcequotas.quota.biz.group//nlp"
    assert grant("nlp", "cpu=1").is_grant
    assert not create("web", "cpu=1").is_grant
    assert group_slot("nlp").kind == GROUP_SLOT_KIND


# -- One entry or another ----------------------------------------------------------------------------------------------


def after(group: Account, *charges: Charge, now: int = NOW) -> list[Reservation]:
    for charge in charges:
        group.reserve(granted(decide(group, charge, now)))
    return group.reservations


def test_a_repeated_create_is_reserved_once() -> None:
    group = account("nlp cpu=10")
    [reservation] = after(group, *[create("web", "cpu=4")] * 582)
    assert reservation.amount == res("cpu=4")
    assert group.taken("limits.cpu") == 4 * 10**9


def test_creates_of_one_name_have_an_entry_each_and_add_up() -> None:
    """The first may be stored and deleted, and its pods still end, when the second is stored."""
    group = account("nlp cpu=10")
    entries = after(
        group, create("web", "cpu=4", of="one"), create("web", "cpu=3", of="two"), create("web", "cpu=2", of="three")
    )
    assert [each.uid for each in entries] == ["one", "three", "two"]
    assert group.taken("limits.cpu") == 9 * 10**9


def test_updates_from_different_generations_add_up() -> None:
    """Between the two the object may have shrunk, and the pods of the first may still end."""
    group = account("nlp cpu=10", "cpu=1")
    entries = after(
        group,
        update("web", "cpu=1", "cpu=4", rv=7, gen=1),
        update("web", "cpu=4", "cpu=5", rv=8, gen=2),
        update("web", "cpu=0", "cpu=4", rv=9, gen=3),
    )
    assert [each.generation for each in entries] == [1, 2, 3]
    assert group.taken("limits.cpu") == 9 * 10**9


def test_reviews_of_one_write_share_whatever_version_a_status_update_made() -> None:
    group = account("nlp cpu=10", "cpu=1")
    charges = (update("web", "cpu=1", "cpu=4", rv=version, gen=1) for version in range(7, 40))
    [promise] = after(group, *charges)
    assert promise.resource_version == 39
    assert group.taken("limits.cpu") == 4 * 10**9


def test_reviews_of_one_write_share_whatever_the_object_costs_in_names_that_the_group_lacks() -> None:
    """The API server repeats the review where a controller has written the object's status meanwhile."""
    group = account("nlp cpu=10", "cpu=1")
    charges = (update("web", "cpu=1 mem=1Gi", "cpu=4 mem=4Gi", rv=version, gen=1) for version in (7, 8))
    [promise] = after(group, *charges)
    assert (promise.resource_version, promise.base) == (8, res("cpu=1"))


def test_the_second_of_two_changes_waits_where_it_would_fit_once_the_first_is_counted() -> None:
    """The first was stored and the object shrunk since, which nobody has counted."""
    group = account("nlp cpu=10", "cpu=2", [entry("web", "cpu=8", "cpu=2", rv=7, gen=1)])
    verdict = refused(decide(group, update("web", "cpu=1", "cpu=4", rv=9, gen=3), NOW))
    assert (verdict.reason, verdict.code) == (Reason.BUSY, 429)
    verdict = refused(decide(group, update("web", "cpu=1", "cpu=12", rv=9, gen=3), NOW))
    assert verdict.reason is Reason.EXCEEDED, "it would not fit without the first"


def test_a_change_waits_for_earlier_ones_where_a_review_of_the_same_write_has_its_entry_already() -> None:
    """The pods of the first changes are in `used` before their entries have gone, so that both hold them."""
    entries = [entry("web", "cpu=6", "cpu=2", rv=7, gen=1), entry("web", "cpu=6", "cpu=5", rv=8, gen=2)]
    group = account("nlp cpu=10", "cpu=6", entries)
    assert group.taken("limits.cpu") == 11 * 10**9
    verdict = refused(decide(group, update("web", "cpu=5", "cpu=6", rv=8, gen=2), NOW))
    assert (verdict.reason, verdict.code) == (Reason.BUSY, 429)


def test_children_add_up_in_the_slot_of_their_payer_and_do_not_wait_for_one_another() -> None:
    """Of a payer of two cores: the first two children are paid for, and the third is not."""
    group = account("nlp cpu=3", "cpu=2")
    for n, paid in enumerate(("cpu=1", "cpu=1", "")):
        child = structs.replace(create("web", "cpu=1", of=f"u-{n}"), before=res(paid), is_child=True)
        after(group, structs.replace(child, pending_write=slot(f"pods/team-a/{n}")))
    assert len(group.reservations) == 3
    assert group.taken("limits.cpu") == 3 * 10**9


def test_updates_of_one_object_share_the_largest_amount_the_smallest_base_and_the_latest_version() -> None:
    group = account("nlp cpu=20 gpu=8", "cpu=5 gpu=2")
    [reservation] = after(
        group,
        update("web", "cpu=5 gpu=2", "cpu=9 gpu=2", rv=8),
        update("web", "cpu=3 gpu=2", "cpu=6 gpu=4", rv=7),
    )
    assert reservation.amount == res("cpu=9 gpu=4")
    assert reservation.base == res("cpu=3 gpu=2")
    assert reservation.resource_version == 8
    assert group.reserved == res("cpu=6 gpu=2")


def test_updates_of_an_earlier_object_of_the_name_do_not_share_a_reservation() -> None:
    group = account("nlp cpu=20", "cpu=5")
    entries = after(group, update("web", "cpu=2", "cpu=3", of="old"), update("web", "cpu=2", "cpu=4", of="new"))
    assert [(each.uid, each.resource_version) for each in entries] == [("new", 7), ("old", 7)]


def shrunk() -> Account:
    """Return an account of cpu=10. A has 6, is being raised to 7, and its stored 1 is not counted yet; B has 3."""
    group = account("nlp cpu=10 gpu=4", "cpu=9")
    group.reserve(granted(decide(group, update("a", "cpu=6", "cpu=7", rv=7), NOW)))
    assert decide(group, update("a", "cpu=6", "cpu=1", rv=7), NOW) == Granted(None)
    assert group.taken("limits.cpu") == 10 * 10**9
    return group


def test_a_change_of_one_resource_does_not_push_another_over_its_ceiling() -> None:
    """The base falls to the stored amount. `used` still has more, which would reserve the difference again."""
    group = shrunk()
    verdict = refused(decide(group, update("a", "cpu=1", "cpu=1 gpu=1", rv=8), NOW))
    assert (verdict.reason, verdict.code) == (Reason.BUSY, 429)
    assert verdict.message == (
        "quota nlp: another change of deployments.apps/team-a/a is under way that needs limits.cpu: try again"
    )
    assert verdict.violations == ()


def test_a_pending_change_is_no_obstacle_once_it_is_counted_or_where_there_is_room() -> None:
    counted = account("nlp cpu=10 gpu=4", "cpu=4", [entry("a", "cpu=7", "cpu=1", rv=7)])
    granted(decide(counted, update("a", "cpu=1", "cpu=1 gpu=1", rv=8), NOW))
    wide = account("nlp cpu=15 gpu=4", "cpu=9", [entry("a", "cpu=7", "cpu=6", rv=7)])
    after(wide, update("a", "cpu=1", "cpu=1 gpu=1", rv=8))
    assert wide.taken("limits.cpu") == 15 * 10**9


def test_a_move_is_repeated_where_it_needs_nothing() -> None:
    """The API server repeats a patch that met a write of the status, and asks again."""
    move = structs.replace(update("web", "", "", rv=7), is_new=True)
    group = account("nlp cpu=10", "cpu=10", [granted(decide(account("nlp cpu=10", "cpu=10"), move, NOW))])
    [entry] = after(group, structs.replace(move, resource_version=8))
    assert (entry.resource_version, entry.amount) == (8, {})
    wide = account("nlp cpu=10", "")
    move = structs.replace(update("web", "", "cpu=1", rv=7), is_new=True)
    after(wide, move)
    verdict = refused(decide(wide, structs.replace(move, resource_version=8), NOW))
    assert verdict.message.endswith("web is under way that needs limits.cpu: try again")


def test_growth_that_does_not_fit_is_a_violation_and_not_an_earlier_change() -> None:
    verdict = refused(decide(shrunk(), update("a", "cpu=1", "cpu=2", rv=8), NOW))
    assert verdict.reason is Reason.EXCEEDED


def test_an_update_never_shares_a_reservation_with_the_create_of_its_object() -> None:
    group = account("nlp cpu=20")
    entries = after(group, create("web", "cpu=4"), update("web", "cpu=4", "cpu=6"))
    assert [each.resource_version for each in entries] == [None, 7]
    assert group.taken("limits.cpu") == 6 * 10**9


ONE, TWO = slot("podtemplates/team-a/one"), slot("podtemplates/team-a/two")


def test_reservations_that_await_different_writes_are_not_merged() -> None:
    """The count of the second includes what the first awaits, because it is stored by now."""
    group = account("nlp cpu=20")
    one = structs.replace(update("web", "", "cpu=2"), pending_write=ONE)
    two = structs.replace(update("web", "", "cpu=2"), pending_write=TWO, read_versions={ONE: (uid("web"), 8)})
    entries = after(group, one, two)
    assert [each.awaited_slot for each in entries] == [ONE, TWO]


@pytest.mark.parametrize(
    "seen",
    [{}, {ONE: (uid("web"), 7)}, {ONE: ("another", 9)}, {TWO: (uid("web"), 9)}],
    ids=["nothing", "the version that it was decided on", "another object of the name", "another object"],
)
def test_a_change_waits_for_a_pending_change_that_its_count_did_not_include(seen: dict[Slot, tuple[str, int]]) -> None:
    """One change adds pods, the other enlarges the template: together they cost more than each alone."""
    group = account("nlp cpu=20")
    after(group, structs.replace(update("web", "cpu=1", "cpu=2"), pending_write=ONE))
    for charge in (
        update("web", "cpu=1", "cpu=4"),
        structs.replace(update("web", "cpu=1", "cpu=2"), pending_write=TWO),
    ):
        verdict = decide(group, structs.replace(charge, read_versions=seen), NOW)
        assert isinstance(verdict, Denied)
        assert (verdict.reason, verdict.code) == (Reason.BUSY, 429)
        assert verdict.message == (
            "quota nlp: a change of podtemplates/team-a/one is under way, by which deployments.apps/team-a/web is "
            "counted: try again"
        )
    assert isinstance(decide(group, update("web", "cpu=2", "cpu=1"), NOW), Granted)


def test_growth_by_another_objects_create_keeps_what_is_charged_already() -> None:
    group = account("nlp cpu=10", used="cpu=8")
    [entry] = after(
        group, structs.replace(create("web", "cpu=10"), before=res("cpu=8"), is_new=False, pending_write=ONE)
    )
    assert (entry.resource_version, entry.base) == (None, res("cpu=8"))


def test_the_expiry_always_moves_so_that_storing_the_reservation_is_a_write() -> None:
    group = account("nlp cpu=10")
    charge = create("web", "cpu=4")
    [first] = after(group, charge)
    [second] = after(group, charge)
    [third] = after(group, charge, now=NOW - 5_000)
    [fourth] = after(group, charge, now=NOW + 9_000)
    assert first.expires < second.expires < third.expires < fourth.expires == NOW + 9_000 + LIFETIME
    lines = {str(each) for each in (first, second, third, fourth)}
    assert len(lines) == 4


# -- The base: never more than used holds ------------------------------------------------------------------------------

BASES = [
    ("a create has none", [], create("web", "cpu=4"), ""),
    (
        "a create has none though used holds its predecessor",
        [entry("web", "cpu=3", "cpu=3", of="old")],
        create("web", "cpu=4"),
        "",
    ),
    ("an update has what the stored object costs", [], update("web", "cpu=3", "cpu=4"), "cpu=3"),
    (
        "an update has the entry's where that is smaller",
        [entry("web", "cpu=3", "cpu=1", rv=7)],
        update("web", "cpu=3", "cpu=4"),
        "cpu=1",
    ),
    (
        "an update has the stored cost where that is smaller",
        [entry("web", "cpu=3", "cpu=3", rv=7)],
        update("web", "cpu=1", "cpu=4"),
        "cpu=1",
    ),
    (
        "an update of what a create promises has what the create holds",
        [entry("web", "cpu=3")],
        update("web", "cpu=3", "cpu=4"),
        "cpu=3",
    ),
    (
        "an update from another generation has what the first one holds",
        [entry("web", "cpu=3", "cpu=1", rv=5, gen=1)],
        update("web", "cpu=3", "cpu=4", gen=2),
        "cpu=3",
    ),
    (
        "a create has what it will adopt",
        [],
        structs.replace(create("web", "cpu=4"), adopts=res("cpu=3 gpu=1")),
        "cpu=3",
    ),
    (
        "a create has what no other create of its name will adopt",
        [entry("web", "cpu=2", "cpu=2", of="another")],
        structs.replace(create("web", "cpu=4"), adopts=res("cpu=3")),
        "cpu=1",
    ),
    (
        "what a create of another name will adopt is not what this one will",
        [entry("api", "cpu=2", "cpu=2")],
        structs.replace(create("web", "cpu=4"), adopts=res("cpu=3")),
        "cpu=3",
    ),
    (
        "each resource has its own",
        [entry("web", "cpu=4 gpu=4", "cpu=1 gpu=3", rv=7)],
        update("web", "cpu=2 gpu=2", "cpu=5 gpu=5"),
        "cpu=1 gpu=2",
    ),
    (
        "a name that one side lacks is 0",
        [entry("web", "cpu=3", "cpu=3", rv=7)],
        update("web", "gpu=2", "cpu=4 gpu=4"),
        "",
    ),
    ("what moves in has none", [], move("web", "cpu=4"), ""),
    (
        "what moves back has none, whatever its entry says",
        [entry("web", "cpu=4", "cpu=4", rv=7)],
        move("web", "cpu=4"),
        "",
    ),
]


@pytest.mark.parametrize(("why", "entries", "charge", "base"), BASES, ids=[row[0] for row in BASES])
def test_the_base_is_never_larger_than_used(why: str, entries: list[Reservation], charge: Charge, base: str) -> None:
    reservation = granted(decide(account("nlp cpu=20 gpu=20", "cpu=5 gpu=5", entries), charge, NOW))
    assert {name: amount for name, amount in reservation.base.items() if amount} == res(base)


# -- How many more replicas would fit ----------------------------------------------------------------------------------

FITS = [
    (
        "none of a role that does not fit once",
        create("j", "cpu=4", roles=[role("w cpu=4", 1)]),
        "fits: 0 more replicas",
    ),
    ("one", create("j", "cpu=4", roles=[role("w cpu=2", 2)]), "fits: 1 more replica"),
    (
        "as many as the scarcest resource allows",
        create("j", "cpu=3 gpu=3", roles=[role("w cpu=1 gpu=1", 3)]),
        "fits: 1 more replica",
    ),
    (
        "the model is scarcer than the base",
        create("j", "cpu=3 cpu.A4=3", roles=[role("w cpu=1 cpu.A4=1", 3)]),
        "fits: 1 more replica",
    ),
    (
        "the one role that grew, next to one that stays",
        update(
            "j",
            "cpu=2",
            "cpu=6",
            roles=[role("w cpu=1", 5), role("m cpu=1", 1)],
            roles_before=[role("w cpu=1", 1), role("m cpu=1", 1)],
        ),
        "fits: 2 more replicas",
    ),
    (
        "the one role that grew, next to one that shrinks",
        update(
            "j",
            "cpu=3",
            "cpu=7",
            roles=[role("w cpu=1", 6), role("m cpu=1", 1)],
            roles_before=[role("w cpu=1", 1), role("m cpu=1", 2)],
        ),
        "fits: 3 more replicas",
    ),
    (
        "a role whose pods become dearer",
        update("j", "cpu=2", "cpu=6", roles=[role("w cpu=3", 2)], roles_before=[role("w cpu=1", 2)]),
        "fits: 0 more replicas",
    ),
    ("unknown where two roles grew", create("j", "cpu=4", roles=[role("w cpu=1", 2), role("m cpu=1", 2)]), None),
    ("unknown without roles", create("j", "cpu=4"), None),
    ("unknown for a child group", grant("x", "cpu=40"), None),
]


@pytest.mark.parametrize(("why", "charge", "expected"), FITS, ids=[row[0] for row in FITS])
def test_a_refusal_says_how_many_more_replicas_would_fit(why: str, charge: Charge, expected: str | None) -> None:
    group = account("nlp cpu=10 cpu.A4=4 gpu=4", "cpu=8 cpu.A4=3 gpu=3")
    message = refused(decide(group, charge, NOW)).message
    assert (expected is None and "fits" not in message) or message.endswith(f"; {expected}")


# -- The bounds --------------------------------------------------------------------------------------------------------


def test_a_full_account_still_admits_a_charge_that_has_its_reservation() -> None:
    entries = [entry(f"web-{n}", "cpu=1", rv=5, expires=NOW + LIFETIME) for n in range(MAX_ENTRIES)]
    group = account("nlp cpu=10k", "", entries)
    assert refused(decide(group, create("other", "cpu=1"), NOW)).code == 429
    assert granted(decide(group, update("web-7", "", "cpu=2", rv=5), NOW)).amount == res("cpu=2")


def test_the_last_place_for_a_reservation_can_be_used() -> None:
    entries = [entry(f"web-{n}", "cpu=1", expires=NOW + LIFETIME) for n in range(MAX_ENTRIES - 1)]
    group = account("nlp cpu=10k", "", entries)
    after(group, create("other", "cpu=1"))
    assert refused(decide(group, create("another", "cpu=1"), NOW)).reason is Reason.FULL


def test_an_account_is_also_full_by_bytes() -> None:
    """The bound is for the written text: JSON strings with quotes and commas."""
    long = [entry(f"{'x' * 200}-{n:04}", "cpu=1") for n in range(1500)]
    size = sum(len(str(each)) + 3 for each in long)
    assert size > MAX_BYTES
    assert account("nlp cpu=10k", "", long).is_full()
    enough = MAX_BYTES * len(long) // size
    assert not account("nlp cpu=10k", "", long[: enough - 1]).is_full()
    assert account("nlp cpu=10k", "", long[: enough + 1]).is_full()


def test_bytes_are_counted_when_a_reservation_is_replaced() -> None:
    names = " ".join(f"requests.example.com/{'x' * 50}-{n}=1" for n in range(100))
    group = account(f"nlp cpu=10k {names.replace('=1', '=1k')}")
    for n in range(40):
        after(group, update(f"web-{n}", "", "cpu=1"))
    assert not group.is_full()
    for n in range(40):
        after(group, update(f"web-{n}", "", names))
    assert group.is_full()


def test_an_object_with_more_resource_names_than_a_reservation_holds_is_rejected() -> None:
    """It could not be stored, nor could any other reservation of the group."""
    names = " ".join(f"requests.example.com/{'x' * 50}-{n}=1" for n in range(300))
    verdict = refused(decide(account(f"nlp {names}"), create("web", names), NOW))
    assert verdict.code == 422
    assert verdict.message == (
        "quota nlp cannot reserve 300 different resources for one object: "
        "their names and amounts come to more than 16 KiB"
    )
    most = " ".join(f"requests.example.com/{'x' * 40}-{n}=1" for n in range(200))
    assert len(str(granted(decide(account(f"nlp {most}"), create("web", most), NOW)))) <= MAX_ENTRY


def test_names_that_the_group_does_not_have_take_no_place() -> None:
    names = " ".join(f"requests.example.com/{'x' * 50}-{n}=1" for n in range(300))
    assert granted(decide(account("nlp cpu=10k"), create("web", f"cpu=1 {names}"), NOW)).amount == res("cpu=1")


def test_the_entries_of_one_slot_share_a_bounded_space() -> None:
    group = account("nlp cpu=10k")
    after(group, *(create("web", "cpu=1", of=f"u-{n}") for n in range(MAX_SLOT_CREATES)))
    verdict = refused(decide(group, create("web", "cpu=1", of="another"), NOW))
    assert (verdict.reason, verdict.code) == (Reason.FULL, 429)
    assert verdict.message == (
        "quota nlp has too many changes of deployments.apps/team-a/web under way: 8 creates or 16 KiB; try again"
    )
    after(group, create("web", "cpu=2", of="u-3"), create("api", "cpu=1"))


def generation(number: int) -> Charge:
    """Who scales all the time is not sent away: each update has another generation, so those before it are stored."""
    return structs.replace(update("web", "cpu=1", "cpu=2"), generation=number)


def child(number: int) -> Charge:
    made = structs.replace(create("web", "cpu=1", of=f"u-{number}"), is_child=True)
    return structs.replace(made, pending_write=slot(f"pods/team-a/{number}"))


@pytest.mark.parametrize("of", [generation, child])
def test_updates_and_children_of_one_object_are_bounded_by_bytes_alone(of: Callable[[int], Charge]) -> None:
    group, known = account("nlp cpu=10k"), 0
    while isinstance(decide(group, of(known), NOW), Granted):
        after(group, of(known))
        known += 1
    assert 60 < known < 200
    after(group, create("api", "cpu=1"))


def theirs(name: str, demand: str) -> Charge:
    return create(f"deployments.apps/team-b/{name}", demand)


def test_a_namespace_takes_half_of_what_is_left_while_a_write_of_it_is_long_under_way() -> None:
    group, later = account("nlp cpu=10"), NOW + SLOW + 1
    after(group, create("taken", "cpu=1"))
    assert granted(decide(group, create("web", "cpu=9"), NOW)), "nothing is unusual yet"
    verdict = refused(decide(group, create("web", "cpu=5"), later))
    assert (verdict.reason, verdict.code) == (Reason.FULL, 429)
    assert verdict.message == (
        "quota nlp: deployments.apps/team-a/taken was admitted a while ago and is not stored: until that is settled, "
        "namespace team-a takes no more than half of what is left of limits.cpu; try again"
    )
    assert granted(decide(group, theirs("web", "cpu=9"), later)), "others may take it all"
    after(group, create("web", "cpu=4"), now=later)
    assert granted(decide(group, create("taken", "cpu=6"), later)), "it is the same write"


@pytest.mark.parametrize("name", ["w", "a" * 200], ids=["by number", "by bytes"])
def test_a_namespace_takes_half_of_the_space_for_entries_while_a_write_of_it_is_long_under_way(name: str) -> None:
    """Creates of a thousandth of a core each, which are rejected elsewhere, and which others would wait for."""
    group, later, known = account("nlp cpu=100k"), NOW + SLOW + 1, 0
    after(group, create("taken", "cpu=1m"))
    while isinstance(verdict := decide(group, create(f"{name}{known}", "cpu=1m"), later), Granted):
        after(group, create(f"{name}{known}", "cpu=1m"), now=later)
        known += 1
    assert verdict.reason is Reason.FULL
    assert verdict.message.endswith(
        "takes no more than half of what is left of the space for admissions under way; try again"
    )
    assert known < 1_000
    for number in range(known // 3):
        after(group, theirs(f"{name}{number}", "cpu=1m"), now=later)


EARLIER = [
    ("an earlier version of it", entry("web", "cpu=1", rv=6, gen=1), True),
    ("its create", entry("web", "cpu=1"), True),
    ("a later version of it", entry("web", "cpu=1", rv=8, gen=3), False),
    ("an earlier object of its name", entry("web", "cpu=1", rv=6, gen=1, of="earlier"), False),
    ("another object", entry("api", "cpu=1", rv=6, gen=1), False),
]


@pytest.mark.parametrize(("why", "before", "expected"), EARLIER, ids=[row[0] for row in EARLIER])
def test_an_earlier_write_of_an_object_does_not_bound_its_next_one(
    why: str, before: Reservation, expected: bool
) -> None:
    """The object would not be at that version if the write could still land."""
    before = replace(before, expires=NOW + LIFETIME)
    group = account("nlp cpu=10", "", [before])
    verdict = decide(group, update("web", "cpu=1", "cpu=9", rv=7, gen=2), NOW + SLOW + 1)
    assert granted(verdict) if expected else refused(verdict).reason is Reason.FULL


MAYBE_TAKEN = [
    ("a quarter of what is free", [], "cpu=10", False),
    ("more than that", [], "cpu=11", True),
    ("a little, and much is promised to its namespace", [entry("api", "cpu=10")], "cpu=1", True),
    ("a little of what others left", [entry("deployments.apps/team-b/api", "cpu=10")], "cpu=1", False),
    ("a second create of its name", [entry("web", "cpu=1", of="another")], "cpu=1", True),
    ("a create that is seen again", [entry("web", "cpu=1")], "cpu=1", False),
    ("what the group does not have", [], "gpu=100", False),
]


@pytest.mark.parametrize(("why", "entries", "demand", "expected"), MAYBE_TAKEN, ids=[row[0] for row in MAYBE_TAKEN])
def test_a_create_must_have_a_free_name_if_it_takes(
    why: str, entries: list[Reservation], demand: str, expected: bool
) -> None:
    assert must_be_free(account("nlp cpu=40", "", entries), entry("web", demand)) is expected


def test_a_thousand_creates_of_one_name_are_decided_as_fast_as_of_many_names() -> None:
    """Count reads of reservations instead of seconds. Quadratic growth would be far above the bound."""
    looks = 0

    class Watched(Reservation):
        @property
        def extra(self) -> dict[str, int]:
            nonlocal looks
            looks += 1
            return super().extra

    group = Account("nlp", res("cpu=10k"), res("cpu=0"), catalog=CATALOG)
    for n in range(1000):
        group.reserve(Watched(slot("web"), f"u-{n}", None, NOW, res("cpu=1")))
    again = Account("nlp", res("cpu=10k"), res("cpu=0"), group.reservations, catalog=CATALOG)
    assert again.reserved == res("cpu=1k")
    assert looks <= 3_000


# -- The text of an entry ----------------------------------------------------------------------------------------------

LINES = [
    (entry("web", "cpu=4"), "v1 deployments.apps/team-a/web uid=u-web until=2023-11-14T22:13:20.000Z limits.cpu=4"),
    (
        entry("web", "cpu=4 mem=8Gi", "cpu=1500m", rv=812),
        "v1 deployments.apps/team-a/web uid=u-web rv=812 until=2023-11-14T22:13:20.000Z limits.cpu=4-1500m "
        "limits.memory=8Gi",
    ),
    (
        entry("group nlp", "", expires=NOW + 7),
        "v1 bizgroupresourcequotas.quota.biz.group//nlp uid=u-group-nlp until=2023-11-14T22:13:20.007Z",
    ),
    (
        entry("web", "gpu.A100=1", awaits="jobs.batch/team-a/web-1", rv=0),
        "v1 deployments.apps/team-a/web awaits=jobs.batch/team-a/web-1 uid=u-web rv=0 "
        "until=2023-11-14T22:13:20.000Z requests.nvidia.com/gpu.A100=1",
    ),
    (
        entry("web", "gpu=0 cash/mem=1Ti"),
        "v1 deployments.apps/team-a/web uid=u-web until=2023-11-14T22:13:20.000Z cash/limits.memory=1Ti "
        "requests.nvidia.com/gpu=0",
    ),
    (
        entry("web", "cpu=1", "cpu=3", rv=5),
        "v1 deployments.apps/team-a/web uid=u-web rv=5 until=2023-11-14T22:13:20.000Z limits.cpu=1-3",
    ),
]


def test_parts_that_a_later_version_adds_are_skipped_and_stay_in_the_line() -> None:
    line = "v1 deployments.apps/team-a/web uid=u-web rv=5 until=2023-11-14T22:13:20.000Z via=a-b=c zone= limits.cpu=1"
    found = parse_reservation(line)
    assert found.amount == {"limits.cpu": 1_000_000_000}
    assert str(found) == line
    assert str(replace(found, base={"limits.cpu": 500_000_000})) == f"{line}-500m"


@pytest.mark.parametrize(("reservation", "line"), LINES, ids=[line for _, line in LINES])
def test_a_reservation_is_one_line_that_reads_back(reservation: Reservation, line: str) -> None:
    assert str(reservation) == line
    assert parse_reservation(line) == reservation


HEAD = "v1 deployments.apps/team-a/web uid=u until=2023-11-14T22:13:20Z"
HOSTILE = [
    ("nothing", "", "is not of format v1"),
    ("another format", HEAD.replace("v1", "v2"), "is not of format v1"),
    ("only the format", "v1", "is no slot"),
    ("no slot", "v1 uid=u until=2023-11-14T22:13:20Z", "is no slot"),
    ("a slot without a name", HEAD.replace("/web", "/"), "is no slot"),
    ("a slot without a namespace's place", HEAD.replace("team-a/", ""), "is no slot"),
    ("a slot without a kind", HEAD.replace("deployments.apps", ""), "is no slot"),
    ("no uid", HEAD.replace("uid=u ", ""), "uid or until is missing"),
    ("an empty uid", HEAD.replace("uid=u", "uid="), "uid or until is missing"),
    ("no expiry", HEAD.partition(" until")[0], "uid or until is missing"),
    ("an expiry that is no time", HEAD.replace("2023-", "later-"), "is no time"),
    ("an expiry without a zone", HEAD.replace("20Z", "20"), "has no time zone"),
    (
        "an expiry before the first year",
        HEAD.replace("2023-11-14T22:13:20Z", "0001-01-01T00:00:00+23:00"),
        "is no time",
    ),
    ("an expiry after the last year", HEAD.replace("2023-11-14T22:13:20Z", "9999-12-31T23:00:00-23:00"), "is no time"),
    ("a version that is no number", HEAD + " rv=x", "is no resourceVersion"),
    ("a version below 0", HEAD + " rv=-1", "is no resourceVersion"),
    ("a version of other digits", HEAD + " rv=٣", "is no resourceVersion"),
    ("a version that is too long", HEAD + " rv=" + "9" * 20, "is no resourceVersion"),
    ("an awaited object that is no slot", HEAD + " awaits=web", "is no slot"),
    ("a word without an amount", HEAD + " limits.cpu", "cannot read"),
    ("an empty word", HEAD + "  limits.cpu=1", "cannot read"),
    ("a nameless amount", HEAD + " =1", "cannot read"),
    ("a name twice", HEAD + " limits.cpu=1 limits.cpu=2", "cannot read"),
    ("a uid twice", HEAD + " uid=v", "cannot read"),
    ("a part of a later version twice", HEAD + " via=a via=b", "cannot read"),
    ("pods that are no amount", HEAD + " pods=many", "pods: "),
    ("an amount that is none", HEAD + " limits.cpu=four", "limits.cpu: "),
    ("an empty amount", HEAD + " limits.cpu=", "limits.cpu: "),
    ("an amount below 0", HEAD + " limits.cpu=-4", "limits.cpu: "),
    ("a base that is none", HEAD + " limits.cpu=4-one", "limits.cpu: "),
    ("an empty base", HEAD + " limits.cpu=4-", "limits.cpu: "),
    ("a base below 0", HEAD + " limits.cpu=4--1", "cannot read"),
    ("an amount beyond all bounds", HEAD + " limits.cpu=1e99999999", "limits.cpu: "),
]


@pytest.mark.parametrize(("why", "line", "expected"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_a_line_that_is_no_reservation_is_rejected_with_the_reason(why: str, line: str, expected: str) -> None:
    with pytest.raises(ReservationError, match=expected):
        parse_reservation(line)


def test_a_reservation_may_have_a_time_in_any_zone() -> None:
    assert parse_timestamp("2023-11-14T23:13:20.5+01:00") == NOW + 500
    assert format_timestamp(NOW + 500) == "2023-11-14T22:13:20.500Z"


def test_the_slot_of_a_cluster_scoped_object_has_an_empty_namespace() -> None:
    assert Slot.parse("nodes//n1") == Slot("nodes", "", "n1")
    assert str(Slot("pods", "team-a", "p")) == "pods/team-a/p"


def test_reservations_are_always_listed_in_the_same_order() -> None:
    entries = [
        entry("web", "cpu=1", rv=9),
        entry("web", "cpu=1", of="b"),
        entry("api", "cpu=1"),
        entry("web", "cpu=1", of="a"),
        entry("group nlp", "cpu=1"),
    ]
    one = account("g cpu=10", "", entries).reservations
    assert one == account("g cpu=10", "", entries[::-1]).reservations
    assert [str(each.slot).rpartition("/")[2] for each in one] == ["nlp", "api", "web", "web", "web"]


ALL = structs.replace(create("web", "cpu=4"), adopts=res("cpu=4"), adopts_admitted=True)
ADOPTED = [
    ("all of it runs already", [], ALL, True),
    ("some of it does not", [], structs.replace(ALL, adopts=res("cpu=3")), False),
    ("nothing of it does", [], structs.replace(ALL, adopts={}), False),
    ("it surges: some was free", [], structs.replace(ALL, adopts_admitted=False), False),
]


@pytest.mark.parametrize(("why", "entries", "charge", "fits"), ADOPTED, ids=[row[0] for row in ADOPTED])
def test_what_a_create_adopts_needs_no_room(why: str, entries: list[Reservation], charge: Charge, fits: bool) -> None:
    """`hard` was lowered below what runs, for example, and a workload is created again for its pods."""
    verdict = decide(account("nlp cpu=2", "cpu=4", entries), charge, NOW)
    if fits:
        assert not any(granted(verdict).extra.values())
    else:
        assert refused(verdict).reason is Reason.EXCEEDED


@pytest.mark.parametrize("adopts_admitted", [True, False])
def test_what_another_create_of_its_name_adopts_may_be_free_again(adopts_admitted: bool) -> None:
    """That one may never be stored. Until that is known, nobody is told that the group is full."""
    other = entry("web", "cpu=4", "cpu=4", of="another")
    charge = structs.replace(ALL, adopts_admitted=adopts_admitted)
    assert refused(decide(account("nlp cpu=4", "cpu=4", [other]), charge, NOW)).reason is Reason.BUSY
    api = structs.replace(create("api", "cpu=4"), adopts=res("cpu=3"))
    assert refused(decide(account("nlp cpu=4", "cpu=4", [other]), api, NOW)).reason is Reason.EXCEEDED
