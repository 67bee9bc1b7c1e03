"""Laws of the account: what is granted fits, what is written can be read, what is counted adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import structs

from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge, Role
from bizrq.quota.recount import CountedObject, Snapshot, UsageSums, WriteState, held_by_child, recount
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation, slot_extra
from bizrq.quota.verdict import Denied, Granted, Reason
from bizrq.units.names import is_cash
from bizrq.units.quantity import MAX, NANO
from bizrq.units.resources import Resources, growth, larger, restrict, scale
from bizrq.units.slot import ReservationError, Slot
from tests.support.catalog import CATALOG
from tests.support.language import NOW

CPU, GPU = "limits.cpu", "requests.nvidia.com/gpu"
NAMES: list[str] = [
    "limits.cpu",
    "limits.memory",
    "requests.nvidia.com/gpu",
    "requests.nvidia.com/gpu.A100",
    "cash/limits.cpu",
]
TRACKED: st.SearchStrategy[str] = st.sampled_from(NAMES)
SMALL = st.integers(0, 12).map(lambda units: units * NANO)
AMOUNTS = st.dictionaries(TRACKED, SMALL, max_size=4)
PLACES = st.builds(Slot, st.just("deployments.apps"), st.sampled_from(["", "team-a"]), st.sampled_from("abc"))
WORDS = st.text("abcxyz0189-.", min_size=1, max_size=20)
SLOTS = st.builds(Slot, WORDS, st.just("") | WORDS, WORDS)
VERSIONS = st.none() | st.integers(0, 10**19 - 1)
ANY_AMOUNTS = st.dictionaries(TRACKED, st.integers(0, MAX), max_size=5)
#: Moments that a timestamp can say, in milliseconds.
MOMENTS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


def entries(
    slots: st.SearchStrategy[Slot], amounts: st.SearchStrategy[dict[str, int]]
) -> st.SearchStrategy[Reservation]:
    awaited = st.none() | slots
    return st.builds(Reservation, slots, WORDS, VERSIONS, MOMENTS, amounts, amounts, awaited)


def known(entry: Reservation) -> Reservation:
    """An entry as it is read: a resource that is only in the base has an amount of 0, and a base of 0 is none."""
    amount = {**dict.fromkeys(entry.base, 0), **entry.amount}
    return replace(entry, amount=amount, base={name: held for name, held in entry.base.items() if held})


def without_hours(entry: Reservation) -> Reservation:
    """What a workload may come to spend is promised in its group, and neither an overrun nor held of the parent."""
    return replace(entry, amount={name: n for name, n in entry.amount.items() if not name.startswith("cash/")})


@given(entries(SLOTS, ANY_AMOUNTS))
def test_an_entry_is_itself_after_it_was_written_and_read(entry: Reservation) -> None:
    assert parse_reservation(str(entry)) == known(entry)
    assert str(parse_reservation(str(entry))) == str(known(entry))


def attempt(line: str) -> None:
    try:
        entry = parse_reservation(line)
    except ReservationError:
        return
    assert parse_reservation(str(entry)) == known(entry)


@given(st.text(max_size=300))
@example("v1 a/b/c uid=u until=0001-01-01T00:00:00+01:00")
@example("v1 a/b/c uid=u until=0999-01-01T00:00:00Z")
@example("v1 a/b/c uid=u until=2023-11-14T22:13:20Z x=1--1")
@example("v1 a/b/c uid=u until=2023-11-14T22:13:20Z x=0-n")
def test_no_text_is_worse_than_unreadable(text: str) -> None:
    attempt(text)
    attempt(f"v1 a/b/c uid=u until=2023-11-14T22:13:20Z {text}")
    attempt(f"v1 a/b/c uid=u until={text} limits.cpu=1")


@given(entries(SLOTS, ANY_AMOUNTS), st.integers(0, 200), st.text(max_size=3), st.integers(0, 3))
def test_no_garbled_entry_is_worse_than_unreadable(entry: Reservation, at: int, text: str, cut: int) -> None:
    line = str(entry)
    attempt(line[:at] + text + line[at + cut :])


@st.composite
def charges(draw: st.DrawFn) -> Charge:
    before, enters = draw(AMOUNTS), draw(st.booleans())
    version = draw(st.none() | st.integers(1, 5)) if enters else draw(st.integers(1, 5))
    return Charge(
        draw(PLACES), draw(st.sampled_from("uv")), version, draw(AMOUNTS), {} if enters else before, is_new=enters
    )


@st.composite
def accounts(draw: st.DrawFn) -> Account:
    hard = draw(st.dictionaries(TRACKED, SMALL, max_size=4))
    used = {name: draw(SMALL) for name in hard}
    made = st.builds(Reservation, PLACES, st.sampled_from("uv"), st.none(), st.just(NOW), AMOUNTS)
    promised = draw(st.lists(made, unique_by=lambda entry: (entry.slot, entry.uid)))
    return Account("g", hard, used, promised, catalog=CATALOG)


@given(accounts(), st.lists(charges(), max_size=6))
def test_what_is_granted_fits_is_promised_in_full_and_can_be_read(account: Account, asked: list[Charge]) -> None:
    for charge in asked:
        verdict = decide(account, charge, NOW)
        if not isinstance(verdict, Granted):
            continue
        entry = verdict.reservation
        if entry is None:
            assert not charge.is_new
            assert not charge.growth()
            continue
        kept = restrict(charge.demand, account.stored_names)
        assert larger(entry.amount, kept) == larger(entry.amount, {})
        assert parse_reservation(str(entry)) == known(entry)
        assert entry.expires >= NOW + LIFETIME
        was = {name: account.taken(name) for name in account.hard}
        account.reserve(entry)
        assert entry in account.reservations_of(charge.slot)
        # In every name, whether the change grows in it or not: over its ceiling nothing rises.
        for name, ceiling in account.hard.items():
            assert account.taken(name) <= max(ceiling, was[name])
        for name in charge.growth():
            assert account.taken(name) <= account.hard.get(name, account.taken(name))
        for name, amount in kept.items():
            assert entry.base.get(name, 0) + slot_extra(account.reservations_of(charge.slot)).get(name, 0) >= amount


UPDATES = st.builds(
    Charge, st.just(Slot("deployments.apps", "team-a", "a")), st.just("u"), st.integers(1, 3), AMOUNTS, AMOUNTS
).map(lambda charge: structs.replace(charge, is_new=False))


@given(accounts(), st.lists(UPDATES, max_size=6))
@example(
    Account("g", {CPU: 10 * NANO, GPU: 4 * NANO}, {CPU: 9 * NANO, GPU: 0}, catalog=CATALOG),
    [
        Charge(Slot("a", "b", "c"), "u", 7, {CPU: 7 * NANO}, {CPU: 6 * NANO}, is_new=False),
        Charge(Slot("a", "b", "c"), "u", 8, {CPU: NANO, GPU: NANO}, {CPU: NANO}, is_new=False),
    ],
)
def test_used_and_reserved_never_pass_hard_in_any_name_whatever_was_granted_to_one_object(
    account: Account, asked: list[Charge]
) -> None:
    """Its updates share an entry whose base only falls: what one of them gives up, an earlier one may still need."""
    for charge in asked:
        was = {name: account.taken(name) for name in account.hard}
        verdict = decide(account, charge, NOW)
        if isinstance(verdict, Granted) and verdict.reservation is not None:
            account.reserve(verdict.reservation)
        for name, ceiling in account.hard.items():
            assert account.taken(name) <= max(ceiling, was[name])
        if isinstance(verdict, Denied) and verdict.reason is Reason.BUSY:
            assert verdict.code == 429
            assert account.reservations_of(charge.slot)


@given(accounts(), st.lists(charges(), max_size=8))
def test_a_running_account_is_the_account_of_its_entries(account: Account, asked: list[Charge]) -> None:
    for charge in asked:
        verdict = decide(account, charge, NOW)
        if isinstance(verdict, Granted) and verdict.reservation is not None:
            account.reserve(verdict.reservation)
    again = Account("g", account.hard, account.used, reversed(account.reservations), catalog=CATALOG)
    assert again.reservations == account.reservations
    names = {*account.reserved, *again.reserved}
    assert {name: account.reserved.get(name, 0) for name in names} == {
        name: again.reserved.get(name, 0) for name in names
    }


@given(accounts(), charges())
def test_the_same_charge_twice_costs_nothing_more(account: Account, charge: Charge) -> None:
    # A workload asks for hours where they are promised as a whole, and only there.
    assume(account.hours.safe or not any(map(is_cash, charge.demand)))
    verdict = decide(account, charge, NOW)
    if isinstance(verdict, Denied) or verdict.reservation is None:
        return
    account.reserve(verdict.reservation)
    reserved = dict(account.reserved)
    again = decide(account, charge, NOW)
    assert isinstance(again, Granted)
    assert again.reservation is not None
    assert again.reservation.expires > verdict.reservation.expires
    account.reserve(again.reservation)
    assert account.reserved == reserved


@given(accounts(), charges(), st.dictionaries(TRACKED, SMALL))
def test_less_used_never_refuses_what_more_used_grants(account: Account, charge: Charge, less: Resources) -> None:
    used = {name: max(0, amount - less.get(name, 0)) for name, amount in account.used.items()}
    freer = Account("g", account.hard, used, account.reservations, catalog=CATALOG)
    assert isinstance(decide(account, charge, NOW), Denied) or isinstance(decide(freer, charge, NOW), Granted)


UNITS: st.SearchStrategy[str] = st.sampled_from(NAMES[:4])
PODS = st.dictionaries(UNITS, st.integers(0, 4).map(lambda units: units * NANO), max_size=3)


@given(accounts(), PODS, st.integers(0, 5), st.integers(1, 8), st.booleans())
def test_as_many_more_replicas_fit_as_a_refusal_says_and_no_more(
    account: Account, per_pod: Resources, was: int, more: int, is_counted: bool
) -> None:
    """Of an object that is counted, and of one whose create is still only promised."""
    slot = Slot("deployments.apps", "team-a", "web")
    created = Reservation(slot, "u", None, NOW, scale(per_pod, was))
    account = Account("g", account.hard, account.used, [] if is_counted else [created], catalog=CATALOG)

    def of(replicas: int) -> Charge:
        return Charge(
            slot,
            "u",
            7,
            scale(per_pod, replicas),
            scale(per_pod, was),
            is_new=False,
            roles=[Role("pods", replicas, per_pod)],
            roles_before=[Role("pods", was, per_pod)],
        )

    verdict = decide(account, of(was + more), NOW)
    if isinstance(verdict, Granted) or verdict.reason in (Reason.BUSY, Reason.FULL):
        return
    fits = int(verdict.message.rpartition("fits: ")[2].partition(" ")[0])
    assert fits < more
    fitting = decide(account, of(was + fits), NOW)
    assert isinstance(fitting, Granted) or fitting.reason is Reason.FULL
    refused = decide(account, of(was + fits + 1), NOW)
    assert isinstance(refused, Denied)
    assert refused.reason in (Reason.EXCEEDED, Reason.CASH, Reason.BUSY)


COUNTED = st.lists(
    st.builds(CountedObject, PLACES, st.sampled_from("uv"), AMOUNTS), max_size=4, unique_by=lambda c: c.slot
)


@given(
    AMOUNTS,
    COUNTED,
    st.lists(
        st.builds(CountedObject, st.builds(Slot, st.just("g"), st.just(""), st.sampled_from("xy")), WORDS, AMOUNTS)
    ),
    st.lists(st.tuples(entries(PLACES, AMOUNTS), st.sampled_from(WriteState)), max_size=5),
    AMOUNTS,
)
def test_a_recount_adds_up_and_raises_no_base(
    hard: Resources,
    workloads: list[CountedObject],
    children: list[CountedObject],
    promised: list[tuple[Reservation, WriteState]],
    published: Resources,
) -> None:
    found = recount(Snapshot(hard, UsageSums(workloads), children, promised, published=published))
    unknown = {name for name in hard if published and name not in published}
    assert set(hard) - unknown <= set(found.used) == set(found.self_used) <= set(hard)
    if not found.reservations:
        assert set(found.used) == set(hard)
    for name in found.used:
        assert found.self_used[name] == sum(each.cost.get(name, 0) for each in workloads)
        assert found.used[name] == found.self_used[name] + sum(each.cost.get(name, 0) for each in children)
    others = [replace(entry, base={}) for entry, sighting in promised if sighting.is_over]
    awaited = {str(entry): entry for entry, _ in promised if replace(entry, base={}) not in others}
    for entry in found.reservations:
        assert not growth(entry.base, entry.amount)
        was = [each for each in awaited.values() if replace(each, base=entry.base) == entry]
        assert not was or any(not growth(entry.base, each.base) for each in was)
    open_ = {entry.slot for entry, sighting in promised if sighting is WriteState.PENDING}
    alone = [slot for slot in open_ if len({entry.awaited_slot for entry, _ in promised if entry.slot == slot}) == 1]
    for entry, sighting in promised:
        if not sighting.is_over or entry.slot not in open_:
            assert any(each is entry for each in found.dropped) is sighting.is_over
        elif entry.slot in alone:
            assert any(each is entry for each in found.dropped)
    assert len(found.reservations) + len(found.dropped) == len(promised)
    account = Account("g", hard, found.used, map(without_hours, found.reservations), catalog=CATALOG)
    over = {n: account.taken(n) - hard[n] for n in found.used if account.taken(n) > hard[n]}
    assert restrict(found.over, found.used) == over


@given(accounts())
def test_a_child_holds_at_least_its_hard_and_at_least_what_is_taken(account: Account) -> None:
    held = held_by_child(account.hard, account.used, account.reservations)
    account = Account("g", account.hard, account.used, map(without_hours, account.reservations), catalog=CATALOG)
    assert set(held) == set(account.hard)
    for name, amount in held.items():
        assert amount == max(account.hard[name], account.taken(name))


def test_the_names_of_these_laws_are_names_of_hard() -> None:
    """Or a law might hold for nothing that exists."""
    names = pytest.importorskip("bizrq.units.names")
    assert dict.fromkeys(sorted(NAMES), NANO) == names.parse_hard(dict.fromkeys(NAMES, 1), CATALOG)
