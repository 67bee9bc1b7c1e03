"""Safe mode: the maximum cost of a workload, whether that is left, and what its reservation holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from bizrq.hours.budget import HOUR, format_duration, max_cost, remaining_commitment, run_start
from bizrq.quota.account import Account, AccountHours
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.headroom import replicas_that_fit
from bizrq.quota.recount import CountedObject, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.quota.verdict import Denied, Granted, Reason
from tests.support.catalog import CATALOG
from tests.support.language import NOW, account, create, entry, grant, name, res, role, slot, uid, update

SAFE = AccountHours(safe=True, committed={})
JOB = "jobs.batch/team-a/train"
BY = "spec.activeDeadlineSeconds"


def safe(text: str, used: str = "", *entries: Reservation, **hours: object) -> Account:
    plain = account(text, used, entries)
    return Account(plain.group, plain.hard, plain.used, entries, replace(SAFE, **hours), catalog=CATALOG)  # type: ignore[arg-type]


def running(charge: Charge, run: float | None, before: float | None = None) -> Charge:
    """Return the charge with a run time of `run` hours, and of `before` hours before the change."""
    lengths = [None if each is None else int(each * HOUR) for each in (run, before)]
    return structs.replace(charge, max_run_time=lengths[0], max_run_time_before=lengths[1], run_bound_path=BY)


def job(demand: str, run: float | None) -> Charge:
    return running(create(JOB, demand), run)


def granted(group: Account, charge: Charge) -> Reservation:
    verdict = decide(group, charge, NOW)
    assert isinstance(verdict, Granted), verdict
    assert verdict.reservation is not None
    return verdict.reservation


def refused(group: Account, charge: Charge) -> Denied:
    verdict = decide(group, charge, NOW)
    assert isinstance(verdict, Denied), verdict
    return verdict


NLP = "nlp gpu=8 cash/gpu=100"


def test_a_reservation_holds_the_maximum_cost_of_the_run_for_each_metered_name() -> None:
    found = granted(safe(NLP), job("gpu=4 cpu=2", 24.5))
    assert found.amount == res("gpu=4 cash/gpu=98")
    assert parse_reservation(str(found)) == found


def test_the_maximum_cost_is_exact_and_rounded_up() -> None:
    assert max_cost({"x": 1}, 1) == {"cash/x": 1}
    assert max_cost({"x": 10**9}, 20 * 60_000) == {"cash/x": 333_333_334}
    assert remaining_commitment(res("gpu=2"), 3 * HOUR, HOUR) == exactly("cash/gpu=4")


def test_a_run_starts_with_a_pod_that_was_scheduled_a_moment_earlier() -> None:
    assert run_start(100_000, None) == 100_000
    assert [run_start(100_000, at) for at in (100_500, 99_000, 70_000, 10_000)] == [100_000, 99_000, 70_000, 70_000]
    assert remaining_commitment(res("gpu=2"), 3 * HOUR, 4 * HOUR) == exactly("cash/gpu=0")
    assert remaining_commitment(res("gpu=2"), 3 * HOUR, -HOUR) == exactly("cash/gpu=6")


REFUSED = [
    (
        "a run that costs more than is left",
        safe(NLP, "cash/gpu=40", next_grant="2026-11-23T00:00:00+01:00"),
        structs.replace(job("gpu=4", 20), roles=[role("main gpu=1", 4)]),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=80, used: cash/requests.nvidia.com/gpu=40, "
        "limited: cash/requests.nvidia.com/gpu=100; left: cash/requests.nvidia.com/gpu=60; fits: 3 more replicas; "
        "requested is what it may cost in 20h, used has what others may still cost; "
        "next grant 2026-11-23T00:00:00+01:00",
    ),
    (
        "one that would fit but for what runs",
        safe(NLP, "cash/gpu=40", committed=res("cash/gpu=30")),
        job("gpu=4", 10),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=40, used: cash/requests.nvidia.com/gpu=70, "
        "limited: cash/requests.nvidia.com/gpu=100; left: cash/requests.nvidia.com/gpu=30; "
        "requested is what it may cost in 10h, used has what others may still cost",
    ),
    (
        "one that would fit but for reservations",
        safe(NLP, "cash/gpu=40", entry("jobs.batch/team-a/other", "gpu=1 cash/gpu=30")),
        job("gpu=4", 10),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=40, used: cash/requests.nvidia.com/gpu=70, "
        "limited: cash/requests.nvidia.com/gpu=100; left: cash/requests.nvidia.com/gpu=30; "
        "requested is what it may cost in 10h, used has what others may still cost",
    ),
    (
        "one that is unbounded, of a kind that can say so",
        safe(NLP),
        job("gpu=1", None),
        Reason.UNBOUNDED,
        f"quota nlp admits only runs whose whole cost is sure, and nothing bounds the run of {JOB}: set {BY}, or have "
        "spec.cash.maxRunTime of the group set",
    ),
    (
        "one that is unbounded, of a kind that cannot",
        safe(NLP),
        create("web", "gpu=1"),
        Reason.UNBOUNDED,
        "quota nlp admits only runs whose whole cost is sure, and nothing bounds the run of "
        "deployments.apps/team-a/web: have spec.cash.maxRunTime of the group set",
    ),
    (
        "one that is longer than the group has it",
        safe(NLP, max_run_time=36 * HOUR),
        job("gpu=1", 37),
        Reason.UNBOUNDED,
        f"quota nlp admits only runs whose whole cost is sure, and {JOB} may run for 1d13h: set {BY} to 129600 or less",
    ),
    (
        "a run that is made longer",
        safe(NLP, "gpu=4 cash/gpu=50", committed=res("cash/gpu=40")),
        running(update(JOB, "gpu=4", "gpu=4"), 13, 10),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=12, used: cash/requests.nvidia.com/gpu=90, "
        "limited: cash/requests.nvidia.com/gpu=100; left: cash/requests.nvidia.com/gpu=10; "
        "requested is what it may cost in 13h, used has what others may still cost",
    ),
    (
        "a run whose bound is taken away",
        safe(NLP, "gpu=4"),
        running(update(JOB, "gpu=4", "gpu=4"), None, 10),
        Reason.UNBOUNDED,
        f"quota nlp admits only runs whose whole cost is sure, and nothing bounds the run of {JOB}: set {BY}, or have "
        "spec.cash.maxRunTime of the group set",
    ),
    (
        "anything, before a recount has published the liens",
        safe(NLP, committed=None),
        job("gpu=1", 1),
        Reason.NOT_RECONCILED,
        "quota nlp is not reconciled yet: cash/requests.nvidia.com/gpu not counted",
    ),
    (
        "a child's budget that what runs may still need",
        safe(NLP, "cash/gpu=20", committed=res("cash/gpu=40"), carried=res("cash/gpu=30")),
        grant("ai", "gpu=0 cash/gpu=80"),
        Reason.CASH,
        "exceeded quota: nlp, requested: cash/requests.nvidia.com/gpu=80, used: cash/requests.nvidia.com/gpu=30, "
        "limited: cash/requests.nvidia.com/gpu=100; left: cash/requests.nvidia.com/gpu=70",
    ),
]


@pytest.mark.parametrize(
    ("why", "group", "charge", "reason", "message"), REFUSED, ids=[row[0].replace(" ", "-") for row in REFUSED]
)
def test_refused(why: str, group: Account, charge: Charge, reason: Reason, message: str) -> None:
    denied = refused(group, charge)
    assert (denied.reason, denied.message) == (reason, message)


ADMITTED = [
    ("a run that costs just what is left", safe(NLP, "cash/gpu=60"), job("gpu=4", 10)),
    (
        "one without a bound of its own, for as long as the group has it",
        safe(NLP, max_run_time=HOUR),
        job("gpu=4", None),
    ),
    ("one that is not metered", safe(NLP, "cash/gpu=100"), create("web", "cpu=4")),
    ("one that takes carried hours", safe(NLP, carried=res("cash/gpu=50")), job("gpu=6", 25)),
    ("a child's budget in addition to carried hours", safe(NLP, "cash/gpu=20"), grant("ai", "gpu=0 cash/gpu=80")),
]


@pytest.mark.parametrize(("why", "group", "charge"), ADMITTED, ids=[row[0].replace(" ", "-") for row in ADMITTED])
def test_admitted(why: str, group: Account, charge: Charge) -> None:
    granted(group, charge)


NOTHING_WORSE = [
    ("an update that asks for the same", running(update(JOB, "gpu=4", "gpu=4"), 10, 10)),
    ("one that runs shorter", running(update(JOB, "gpu=4", "gpu=4"), 9, 10)),
    ("one that never was bounded", running(update(JOB, "gpu=4", "gpu=4"), None, None)),
    ("one that is bounded at last", running(update(JOB, "gpu=4", "gpu=4"), None, None)),
]


@pytest.mark.parametrize(("why", "charge"), NOTHING_WORSE, ids=[row[0].replace(" ", "-") for row in NOTHING_WORSE])
def test_a_change_that_needs_no_more_is_admitted_whatever_is_left(why: str, charge: Charge) -> None:
    assert decide(safe(NLP, "gpu=9 cash/gpu=200"), charge, NOW) == Granted(None)


def test_carried_hours_are_spent_once() -> None:
    """Running, reserved and next workloads together get `hard` plus carried hours, and no more."""
    group = safe(NLP, "cash/gpu=0", committed=res("cash/gpu=20"), carried=res("cash/gpu=50"))
    group.reserve(granted(group, job("gpu=1", 100)))
    assert refused(group, running(create("jobs.batch/team-a/b", "gpu=1"), 31)).violations[0].left == 30 * 10**9
    group.reserve(granted(group, running(create("jobs.batch/team-a/b", "gpu=1"), 30)))
    assert refused(group, running(create("jobs.batch/team-a/c", "gpu=1"), 1)).reason is Reason.CASH


def test_fifty_jobs_at_once_never_get_the_same_hours() -> None:
    group, admitted = safe("nlp gpu=100 cash/gpu=100"), 0
    for number in range(50):
        verdict = decide(group, running(create(f"jobs.batch/team-a/j{number}", "gpu=1"), 7), NOW)
        if isinstance(verdict, Granted) and verdict.reservation is not None:
            group.reserve(verdict.reservation)
            admitted += 1
    assert admitted == 14


def test_replicas_fit_only_if_their_hours_fit() -> None:
    group = safe(NLP, "cash/gpu=58")
    charge = structs.replace(job("gpu=8", 6), roles=[role("main gpu=1", 8)])
    assert "fits: 7 more replicas" in refused(group, charge).message
    assert replicas_that_fit(group, charge) == 7


def test_a_smaller_and_longer_run_pays_for_the_rest_of_its_new_run_time() -> None:
    """Two replicas of ten hours have run for nine. One of nineteen hours needs ten more; two were held."""
    charge = running(update(JOB, "gpu=2", "gpu=1"), 19, 10)
    found = granted(safe(NLP, "gpu=2 cash/gpu=18", committed=res("cash/gpu=2")), charge)
    assert found.extra == res("gpu=0 cash/gpu=9")


# -- The recount -------------------------------------------------------------------------------------------------------


def exactly(hours: str) -> dict[str, int]:
    """These hours in nano-units x milliseconds."""
    return {name: amount * HOUR for name, amount in res(hours).items()}


def counted(place: str, cost: str, whole: str, still: str) -> CountedObject:
    return CountedObject(slot(place), uid(place), res(cost), {}, res(whole), exactly(still))


def snapshot(
    *workloads: CountedObject, entries: tuple[Reservation, ...] = (), hard: str = "gpu=8 cash/gpu=100"
) -> Snapshot:
    awaited = [(each, WriteState.PENDING) for each in entries]
    return Snapshot(res(hard), UsageSums(workloads), [], awaited, res("cash/gpu=5"), {}, safe=True)


def test_liens_are_what_all_workloads_may_still_cost() -> None:
    a = counted(JOB, "gpu=1", "cash/gpu=10 cash/cpu=9", "cash/gpu=4 cash/cpu=3")
    b = counted("jobs.batch/team-a/b", "gpu=2", "cash/gpu=20", "cash/gpu=20")
    found = recount(snapshot(a, b))
    assert found.committed == res("cash/gpu=24")
    assert found.used == res("gpu=3 cash/gpu=5")
    assert recount(replace(snapshot(a), safe=False)).committed is None
    assert recount(snapshot()).committed == {}


def test_rounded_hours_and_liens_add_up_to_the_exact_cost() -> None:
    """Nine jobs of ten hours each have run for some seconds. Exactly ten hours are left for the tenth."""
    ran = [4_000_000 * number + 1 for number in range(9)]
    jobs = [
        replace(
            counted(f"jobs.batch/team-a/j{number}", "gpu=1", "cash/gpu=10", ""),
            committed=remaining_commitment(res("gpu=1"), 10 * HOUR, each),
        )
        for number, each in enumerate(ran)
    ]
    exact, cash = {name("cash/gpu"): sum(ran) * 10**9}, res("cash/gpu=40001m")
    found = recount(replace(snapshot(*jobs), cash=cash, exact_cash=exact))
    assert found.committed == res("cash/gpu=49999m")
    group = Account(
        "nlp", res("gpu=10 cash/gpu=100"), found.used, hours=replace(SAFE, committed=found.committed), catalog=CATALOG
    )
    granted(group, job("gpu=1", 10))
    assert refused(group, job("gpu=1", 10.001)).reason is Reason.CASH


def test_a_lien_is_not_held_of_the_parent_and_is_no_overrun() -> None:
    """Its hours are within `hard` plus carried hours, which the parent does not sum; a child's budget is summed."""
    reservations = [entry(JOB, "gpu=1 cash/gpu=140")]
    assert held_by_child(res("gpu=8 cash/gpu=100"), res("gpu=1 cash/gpu=20"), reservations) == res("gpu=8 cash/gpu=100")
    assert held_by_child(res("cash/gpu=100"), res("cash/gpu=20"), [entry("group ai", "cash/gpu=90")]) == res(
        "cash/gpu=110"
    )
    found = recount(snapshot(entries=tuple(reservations)))
    assert not found.over
    assert found.reservations == tuple(reservations)


def test_no_liens_are_published_while_a_reservation_lacks_its_maximum_cost() -> None:
    """It was made before the mode was safe, or before the name was metered."""
    assert recount(snapshot(entries=(entry(JOB, "gpu=1"),))).committed is None
    assert recount(snapshot(entries=(entry(JOB, "gpu=1 cash/gpu=0"),))).committed == {}
    assert recount(snapshot(entries=(entry(JOB, "cpu=1"),))).committed == {}
    assert recount(snapshot(entries=(entry("group ai", "gpu=1"),))).committed == {}


def test_the_base_of_reserved_hours_is_never_raised() -> None:
    """A counted workload has run for some time, so that part of its cost is no lien any more."""
    runs = counted(JOB, "gpu=2", "cash/gpu=20", "cash/gpu=2")
    [kept] = recount(snapshot(runs, entries=(entry(JOB, "gpu=1 cash/gpu=19", "gpu=1 cash/gpu=10", rv=7),))).reservations
    assert kept.base == res("gpu=1 cash/gpu=10")
    less = counted(JOB, "gpu=1", "cash/gpu=5", "cash/gpu=2")
    [kept] = recount(snapshot(less, entries=(entry(JOB, "gpu=1 cash/gpu=19", "gpu=1 cash/gpu=10", rv=7),))).reservations
    assert kept.base == res("gpu=1 cash/gpu=5")
    [kept] = recount(snapshot(less, entries=(entry(JOB, "gpu=1 cash/gpu=19", "gpu=2"),))).reservations
    assert kept.base == {}, "a create has none"


@pytest.mark.parametrize(("length", "text"), [(0, "0s"), (1, "1s"), (90_061_000, "1d1h1m1s"), (36 * HOUR, "1d12h")])
def test_durations_are_formatted(length: int, text: str) -> None:
    assert format_duration(length) == text


# -- Several reservations of one slot --------------------------------------------------------------------------------


def test_runs_of_several_objects_of_one_name_add_up() -> None:
    """The first may run and be deleted, unseen, before the second is created."""
    group = safe(NLP)
    group.reserve(granted(group, job("gpu=1", 60)))
    again = structs.replace(job("gpu=1", 50), uid="another")
    assert refused(group, again).reason is Reason.BUSY
    group.reserve(granted(group, structs.replace(again, max_run_time=40 * HOUR)))
    assert group.taken("cash/requests.nvidia.com/gpu") == 100 * 10**9
    assert group.taken("requests.nvidia.com/gpu") == 2 * 10**9


def test_an_update_of_a_new_object_reserves_its_additional_cost() -> None:
    group = safe(NLP)
    group.reserve(granted(group, job("gpu=2", 30)))
    longer = running(update(JOB, "gpu=2", "gpu=1"), 60, 30)
    group.reserve(granted(group, longer))
    assert group.taken("cash/requests.nvidia.com/gpu") == 90 * 10**9


def test_a_repeated_update_is_charged_once_and_the_next_update_waits_for_its_count() -> None:
    group = safe(NLP, "gpu=4", committed=res("cash/gpu=40"))
    longer = running(update(JOB, "gpu=4", "gpu=4", rv=7), 15, 10)
    for _ in range(3):
        group.reserve(granted(group, longer))
        assert group.taken("cash/requests.nvidia.com/gpu") == 60 * 10**9
    upon = running(update(JOB, "gpu=4", "gpu=4", rv=8), 16, 15)
    denied = refused(group, upon)
    assert (denied.reason, denied.message) == (
        Reason.BUSY,
        f"quota nlp: a change of the hours of {JOB} is under way: try again",
    )
    assert decide(group, running(update(JOB, "gpu=4", "gpu=1", rv=8), 15, 15), NOW) == Granted(None)
