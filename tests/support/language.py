"""The small language of these tests, so that a row reads as a sentence.

`res("cpu=4 mem=8Gi gpu.A100=1")` is an amount, `account("nlp cpu=10", used="cpu=8")` an account, and
`create("web", "cpu=4")` a change that asks for it. `tree("corp > ai > nlp vision")` is a tree of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bizrq.quota.account import Account
from bizrq.quota.change import Charge, Role
from bizrq.quota.group_validation import Group
from bizrq.quota.reservation import Reservation
from bizrq.units import quantity
from bizrq.units.slot import Slot, group_slot
from bizrq.units.times import parse_timestamp
from tests.support.catalog import CATALOG

#: The short names of tests, for what the story of every demo uses.
SHORT = {"cpu": "limits.cpu", "mem": "limits.memory", "gpu": "requests.nvidia.com/gpu"}
NOW = 1_700_000_000_000


def at(text: str) -> int:
    """Return a time such as `2026-11-23T00:00Z` in milliseconds since 1970."""
    return parse_timestamp(text)


def name(word: str) -> str:
    """Expand `gpu.A100` to `requests.nvidia.com/gpu.A100` and `cash/cpu` to `cash/limits.cpu`; keep other names."""
    prefix, rest = ("cash/", word[5:]) if word.startswith("cash/") else ("", word)
    base, dot, model = rest.partition(".")
    return prefix + (SHORT[base] + dot + model if base in SHORT else rest)


def res(text: str) -> dict[str, int]:
    """Parse `cpu=4 mem=8Gi` to nano-units by full name."""
    pairs = [word.partition("=") for word in text.split()]
    return {name(key): quantity.parse(amount) for key, _, amount in pairs}


def slot(text: str) -> Slot:
    """Return a slot: `web` is a Deployment of team-a, `group nlp` a child group, `a/b/c` any other."""
    if text.startswith("group "):
        return group_slot(text.removeprefix("group "))
    return Slot.parse(text) if "/" in text else Slot("deployments.apps", "team-a", text)


def uid(text: str) -> str:
    return "u-" + text.replace(" ", "-").replace("/", "-")


def entry(
    place: str,
    amount: str,
    base: str = "",
    *,
    of: str = "",
    rv: int | None = None,
    gen: int | None = None,
    awaits: str = "",
    expires: int = NOW,
) -> Reservation:
    """Return a reservation of a slot. `of` is the uid if it is not the slot's usual one; `rv` makes it an update's."""
    return Reservation(
        slot(place), of or uid(place), rv, expires, res(amount), res(base), slot(awaits) if awaits else None, gen
    )


def account(text: str, used: str = "", entries: Iterable[Reservation] = ()) -> Account:
    """Return the account of `nlp cpu=10 gpu=4`, a group with its `hard`.

    Names that `used` omits are 0; `used="?"` is unknown.
    """
    group, _, hard = text.partition(" ")
    ceilings = res(hard)
    known: Mapping[str, int] = {} if used == "?" else {**dict.fromkeys(ceilings, 0), **res(used)}
    return Account(group, ceilings, known, entries, catalog=CATALOG)


def create(place: str, demand: str, *, of: str = "", roles: Iterable[Role] = ()) -> Charge:
    return Charge(slot(place), of or uid(place), None, res(demand), roles=tuple(roles))


def update(
    place: str,
    before: str,
    demand: str,
    *,
    rv: int = 7,
    gen: int | None = None,
    of: str = "",
    roles: Iterable[Role] = (),
    roles_before: Iterable[Role] = (),
) -> Charge:
    return Charge(
        slot(place),
        of or uid(place),
        rv,
        res(demand),
        res(before),
        is_new=False,
        roles=tuple(roles),
        roles_before=tuple(roles_before),
        generation=gen,
    )


def move(place: str, demand: str, *, rv: int = 7, of: str = "") -> Charge:
    """Return the charge for a stored object whose label now names this group."""
    return Charge(slot(place), of or uid(place), rv, res(demand))


def grant(group: str, hard: str, before: str | None = None, *, rv: int = 7) -> Charge:
    """Return the charge for a child group that is created with this `hard`, or changed to it."""
    if before is None:
        return create(f"group {group}", hard)
    return update(f"group {group}", before, hard, rv=rv)


def role(text: str, replicas: int) -> Role:
    """Return a role, for example of `role("worker cpu=1 gpu=1", 8)`."""
    title, _, per_pod = text.partition(" ")
    return Role(title, replicas, res(per_pod))


def without_expiry(entries: Iterable[Reservation]) -> list[Reservation]:
    return [replace(each, expires=NOW) for each in entries]


def tree(text: str, hard: str = "") -> dict[str, Group]:
    """Return the groups of `corp > ai > nlp vision` by name: `nlp` and `vision` are siblings, with the same `hard`."""
    groups: dict[str, Group] = {}
    parent = ""
    for generation in text.split(">"):
        names = generation.split()
        for each in names:
            groups[each] = Group(each, parent, res(hard))
        parent = names[0]
    return groups
