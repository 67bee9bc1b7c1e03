"""The BizGroupResourceQuota on the wire: reads of its spec and status, and bodies of status writes.

This file alone decides how a stored group becomes an account and back. It does not decide anything about quota.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

from bizrq.hours import budget
from bizrq.hours.budget import BudgetTerms
from bizrq.hours.periods import parse_schedule
from bizrq.quota.account import Account, AccountHours
from bizrq.quota.group_validation import Group as TreeGroup
from bizrq.quota.recount import held_by_child
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.quota.verdict import RUNS_ON
from bizrq.units import names, quantity
from bizrq.units.resources import nonzero, text_of
from bizrq.units.slot import ReservationError, Slot
from bizrq.units.text import one_line
from bizrq.units.times import format_timestamp

API_GROUP = "quota.biz.group"
API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "BizGroupResourceQuota"
PLURAL = "bizgroupresourcequotas"
FINALIZER = f"{API_GROUP}/spent-hours"
#: On every page of a group's records: the group's name, to select by.
GROUP_LABEL = f"{API_GROUP}/group"

#: The characters of a line of these: all of them together have to fit into one object.
MAX_LINE: Final = 2_048
#: The words of these lines that are no amounts of resources.
_NO_RESOURCES: Final = frozenset({"since", "until", *RUNS_ON})
#: As many lines of `status.ending`, and of `status.leftovers`, as the CRD takes.
MAX_ENDING, MAX_LEFTOVERS = 200, 100
#: As many characters of `spec.owner`, and of `spec.contact`, as the CRD takes.
MAX_CONTACT = 128

Hard = dict[str, str | int]


class ObjectMeta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: list[str] = []
    labels: dict[str, str] = {}


class RolloverSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    fraction: str = ""
    cap: Hard = {}


class CashSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    """How hours are granted; `terms_of` reads it."""

    period: str = ""
    time_zone: str = ""
    anchor: str = ""
    rollover: RolloverSpec | None = None
    mode: str = ""
    max_run_time: str = ""
    thresholds: list[int] | None = None


class GroupSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    parent_biz_group: str | None = None
    hard: Hard = {}
    cash: CashSpec | None = None
    #: Who answers for the group, and how to reach them: for people, and no rights follow from it.
    owner: str = ""
    contact: str = ""
    #: As `bizrq.api.selector` reads it, which says what is wrong with it where a group as a whole is still readable.
    namespace_selector: dict[str, Any] | None = None


class Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class CashStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What admission needs of the hours, in hours by `cash/` name; their record is `bizrq.api.hours`'s."""

    period_start: str = ""
    period_end: str = ""
    carried: dict[str, str] = {}
    liens: dict[str, str] | None = None


class EditHold(msgspec.Struct, rename="camel"):
    """A spec edit of this generation is in review: writers of the status let it pass."""

    generation: int
    since: str


class GroupStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    hard: Hard | None = None
    used: Hard | None = None
    self_used: Hard | None = None
    #: The resource with the highest share of its ceiling in use, for a column of `kubectl get`.
    scarcest: str = ""
    reservations: list[str] = []
    counted_at: dict[str, str] = {}
    #: Of versions before `bizgrouppayers`; read, and not written any more.
    detached: list[str] = []
    ending: list[str] = []
    leftovers: list[str] = []
    payers_problem: str = ""
    #: Lines of the record of payers that its pages do not have yet, and how many pages it has.
    payers: list[str] = []
    payers_pages: int = 0
    last_reconcile_time: str | None = None
    #: The longest time between two recounts, as the controller is configured.
    recount_seconds: int = 0
    observed_generation: int = 0
    conditions: list[Condition] = []
    cash: CashStatus | None = None
    hold: EditHold | None = None


class GroupObject(msgspec.Struct, rename="camel"):
    """One BizGroupResourceQuota; always written with its kind, which the API server asks for."""

    metadata: ObjectMeta
    spec: GroupSpec = msgspec.field(default_factory=GroupSpec)
    status: GroupStatus = msgspec.field(default_factory=GroupStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def parent(self) -> str:
        return self.spec.parent_biz_group or ""

    @property
    def resource_version(self) -> int:
        return int(self.metadata.resource_version or 0)

    @property
    def contact(self) -> str:
        """Return who to ask; "" where the group does not say it. One printable line."""
        words = [one_line(each)[:MAX_CONTACT].strip() for each in (self.spec.owner, self.spec.contact)]
        return ", ".join(word for word in words if word)


class GroupUnreadable(ValueError):
    """A stored group that cannot be counted with; says which field and why."""


_decoder = msgspec.json.Decoder(GroupObject)
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> GroupObject:
    """Return one group from JSON; raises GroupUnreadable."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GroupUnreadable(f"not a {KIND}: {error}") from None


def from_dict(obj: Mapping[str, Any]) -> GroupObject:
    """Return one group from parsed JSON; raises GroupUnreadable."""
    try:
        return msgspec.convert(obj, GroupObject)
    except msgspec.MsgspecError as error:
        raise GroupUnreadable(f"not a {KIND}: {error}") from None


def encode(group: GroupObject) -> bytes:
    return _encoder.encode(group)


def hard_of(group: GroupObject, catalog: names.Catalog) -> dict[str, int]:
    """Return `spec.hard` by canonical name, in nano-units; raises GroupUnreadable."""
    try:
        return dict(_hard(tuple(sorted(group.spec.hard.items())), catalog))
    except ValueError as error:
        raise GroupUnreadable(f"group {group.name}: spec.hard: {error}") from None


@lru_cache(maxsize=4096)
def _hard(items: tuple[tuple[str, str | int], ...], catalog: names.Catalog) -> dict[str, int]:
    return names.parse_hard(dict(items), catalog)


def has_schedule(group: GroupObject) -> bool:
    """Return True where the group sets a schedule of grants, as only a root may."""
    asked = group.spec.cash
    return asked is not None and bool(asked.period or asked.time_zone or asked.anchor)


def terms_of(group: GroupObject, catalog: names.Catalog) -> BudgetTerms:
    """Return the terms that `spec.cash` states. Raises GroupUnreadable."""
    asked = group.spec.cash
    if asked is None:
        return budget.DEFAULT_TERMS
    rollover = asked.rollover
    try:
        return budget.parse_terms(
            schedule=parse_schedule(asked.period, asked.time_zone, asked.anchor),
            fraction=None if rollover is None else rollover.fraction,
            cap={} if rollover is None else _cap(rollover, catalog),
            mode=asked.mode,
            max_run_time=asked.max_run_time,
            thresholds=asked.thresholds,
        )
    except ValueError as error:
        raise GroupUnreadable(f"group {group.name}: spec.cash.{error}") from None


def _cap(rollover: RolloverSpec, catalog: names.Catalog) -> dict[str, int]:
    try:
        return names.parse_hard({names.cash_name(name): amount for name, amount in rollover.cap.items()}, catalog)
    except names.InvalidHard as error:
        raise ValueError(f"rollover.cap: {error}") from None


def parse_amounts(group: GroupObject, stored: Mapping[str, str | int] | None) -> dict[str, int]:
    """Return a map of the status in nano-units; raises GroupUnreadable."""
    try:
        return {name: quantity.parse_sum(value) for name, value in (stored or {}).items()}
    except quantity.QuantityError as error:
        raise GroupUnreadable(f"group {group.name}: status: {error}") from None


def reservations_of(group: GroupObject) -> tuple[Reservation, ...]:
    """Return the entries of the status; raises GroupUnreadable."""
    try:
        return tuple(parse_reservation(text) for text in group.status.reservations)
    except ValueError as error:
        raise GroupUnreadable(f"group {group.name}: status.reservations: {error}") from None


def account_of(group: GroupObject, catalog: names.Catalog) -> Account:
    """Return the account to decide on; raises GroupUnreadable."""
    used = parse_amounts(group, group.status.used)
    hard, hours = hard_of(group, catalog), hours_of(group, catalog)
    return Account(
        group.name, hard, used, reservations_of(group), hours, catalog=catalog, problem=group.status.payers_problem
    )


def hours_of(group: GroupObject, catalog: names.Catalog) -> AccountHours:
    """Return an account's hours without `used`; raises GroupUnreadable."""
    said, stored = terms_of(group, catalog), group.status.cash or CashStatus()
    if not (said.safe or stored.period_end):
        return AccountHours()
    return AccountHours(
        next_grant=stored.period_end,
        safe=said.safe,
        max_run_time=said.max_run_time,
        committed=None if stored.liens is None else parse_amounts(group, stored.liens),
        carried=parse_amounts(group, stored.carried),
    )


def is_counted(group: GroupObject, catalog: names.Catalog) -> bool:
    """Return True once the status has all that an account needs; raises GroupUnreadable."""
    used, cash = group.status.used, group.status.cash
    if used is None or any(name not in used for name in hard_of(group, catalog)):
        return False
    is_safe = group.spec.cash is not None and group.spec.cash.mode == "safe"
    return not is_safe or (cash is not None and cash.liens is not None) or not any(map(names.is_cash, used))


def held_of_parent(group: GroupObject, catalog: names.Catalog) -> dict[str, int]:
    """Return what this version of the group holds of its parent; raises GroupUnreadable."""
    return held_by_child(hard_of(group, catalog), parse_amounts(group, group.status.used), reservations_of(group))


def group_state(group: GroupObject, catalog: names.Catalog) -> TreeGroup:
    """Return the group as input of the tree's rules; raises GroupUnreadable."""
    return TreeGroup(
        name=group.name,
        parent=group.parent,
        hard=hard_of(group, catalog),
        used=parse_amounts(group, group.status.used),
        reservations=reservations_of(group),
        deleting=group.metadata.deletion_timestamp is not None,
        has_schedule=has_schedule(group),
    )


def with_reservations(group: GroupObject, entries: Iterable[Reservation]) -> bytes:
    """Return the body of admission's status write: new reservations and nothing else.

    Sorted as text, as a recount sorts them: one order, or each would undo the other's.
    """
    status = msgspec.structs.replace(group.status, reservations=sorted(map(str, entries)))
    return encode(msgspec.structs.replace(group, status=status))


def leftover_line(slot: Slot, place: str, since: int, amounts: Mapping[str, int]) -> str:
    """Return a line of `status.leftovers`: what is left, of which payer, since when, and what it costs.

    It is for people: `SLOT PLACE since=TIME RESOURCE=AMOUNT…`.
    """
    costs = [f"{name}={amount}" for name, amount in text_of(amounts).items() if amounts[name]]
    return " ".join([str(slot), place, f"since={format_timestamp(since)}", *costs])


def detached_of(group: GroupObject) -> list[tuple[Slot, str]]:
    """Return the slots and uids of `status.detached`; unreadable lines are left out, as nothing else has them."""
    found: list[tuple[Slot, str]] = []
    for line in group.status.detached:
        place, _, uid = line.partition(" uid=")
        with suppress(ReservationError):
            found.append((Slot.parse(place), uid))
    return found


def ending_line(
    slot: Slot,
    amounts: Mapping[str, int],
    until: int | None,
    *,
    since: int | None = None,
    pods: Mapping[str, int],
) -> str:
    """Return a line of `status.ending`: what the pods of a slot take besides those that it asks for.

    `pods` says how many of them are of which sort (`RUNS_ON` in `bizrq.quota.verdict`). `since` is the first moment of
    that, and `until` that at which the last of them has ended, None where the clock does not end it; in milliseconds.
    """
    words = [f"{name}={amount}" for name, amount in text_of(nonzero(amounts)).items()]
    words += [f"{sort}={number}" for sort, number in pods.items() if number]
    times = [f"{word}={format_timestamp(at)}" for word, at in (("since", since), ("until", until)) if at is not None]
    return " ".join((str(slot), *words, *times))


def within(line: str, names: Collection[str]) -> str:
    """Return a line of `status.ending` or `status.leftovers` with the amounts of these names alone.

    A pod may ask for very many names, and of 284 characters each: with a longer line the API server would reject the
    status as a whole. Amounts for which `MAX_LINE` characters have no room are left out.
    """
    words = line.split(" ")
    amounts = [word for word in words if "=" in word and word.partition("=")[0] not in _NO_RESOURCES]
    room = MAX_LINE - len(line) + sum(len(word) + 1 for word in amounts)
    kept: set[str] = set()
    for word in amounts:
        if word.partition("=")[0] in names and (room := room - len(word) - 1) >= 0:
            kept.add(word)
    dropped = set(amounts) - kept
    return " ".join(word for word in words if word not in dropped)


def hold_patch(group: GroupObject, now: int) -> bytes:
    """Return the merge patch of the status that asks writers to let an edit of this generation pass."""
    return _encoder.encode({"status": {"hold": EditHold(group.metadata.generation, format_timestamp(now))}})


def format_amounts(values: Mapping[str, int]) -> Hard:
    return dict(text_of(values))


def with_committed(cash: CashStatus | None, liens: Mapping[str, int] | None) -> CashStatus | None:
    """Return the published hours, with what workloads may still cost where hours are safe."""
    if liens is None:
        return cash
    return msgspec.structs.replace(cash or CashStatus(), liens=text_of(liens))
