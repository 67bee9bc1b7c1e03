"""A group's account: what is used, what is promised, and whether one more promise fits.

This file alone decides whether a change is admitted and which reservation it needs (DESIGN, sections 3 and 5).
It does not know workloads, webhooks or clocks: amounts come in as `Resources`, times as integer milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import NamedTuple

from bizrq.quota import quantity
from bizrq.quota.names import DEFAULT, Catalog, base_and_model, cash, is_cash, uncash
from bizrq.quota.resources import Limits, Resources, growth, larger, restrict, smaller, subtract_floor
from bizrq.quota.terms import possible, span_text
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict, Violation, exceeded, unmodelled, unspecified

GROUPS = "bizgroupresourcequotas.quota.biz.group"
#: How long a promise is kept, in milliseconds. An API write ends within 34 s (DESIGN 5).
LIFETIME = 60_000
MAX_ENTRIES = 2_000
MAX_BYTES = 256 * 1024
#: The longest entry that the CRD takes; one longer line would fail the write of everybody who waits with it.
MAX_ENTRY = 16 * 1024
# Fewer names than this fit in any case: a name has at most 400 characters, two amounts at most 60.
_FEW = 32

_FORMAT = "v1"
_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)


class ReservationError(ValueError):
    """An entry of `status.reservations` that this version cannot read."""


class Slot(NamedTuple):
    """The place that is charged: `plural.group` of a kind, a namespace ("" for none), a name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        kind, _, rest = text.partition("/")
        namespace, slash, name = rest.partition("/")
        if not (kind and slash and name):
            raise ReservationError(f"{text[:80]!r} is no slot: write kind/namespace/name")
        return cls(kind, namespace, name)


def group_slot(name: str) -> Slot:
    """The slot that a child group has in its parent's account."""
    return Slot(GROUPS, "", name)


@dataclass(frozen=True)
class Reservation:
    """This slot may need `amount` in total, of which the account's `used` already holds `base`.

    `resource_version` is the version that the change was decided on, None for a create. `expires` is in
    milliseconds since 1970 and for people: the controller goes by its own clock. `awaits` is the object whose
    write is awaited where that is not the slot itself.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    expires: int
    amount: Resources
    base: Resources = field(default_factory=dict)
    awaits: Slot | None = None

    @property
    def awaited(self) -> Slot:
        return self.awaits or self.slot

    @property
    def extra(self) -> dict[str, int]:
        """What the entry adds to `used`: never less than nothing."""
        return subtract_floor(self.amount, self.base)

    def same_write(self, other: Reservation) -> bool:
        """Whether both stand for the same line of the account (amount, base, version and expiry may differ).

        Updates of one object share one; every create has its own.
        """
        mine, theirs = (self.slot, self.uid, self.awaits), (other.slot, other.uid, other.awaits)
        return mine == theirs and (self.resource_version is None) == (other.resource_version is None)

    @cached_property
    def line(self) -> str:
        """The entry as it stands in `status.reservations`; `read` reads it."""
        return _write(self)

    def __str__(self) -> str:
        return self.line


def _write(entry: Reservation) -> str:
    words = [_FORMAT, str(entry.slot)]
    if entry.awaits is not None:
        words.append(f"awaits={entry.awaits}")
    words.append(f"uid={entry.uid}")
    if entry.resource_version is not None:
        words.append(f"rv={entry.resource_version}")
    words.append(f"until={timestamp(entry.expires)}")
    for name in sorted(set(entry.amount) | set(entry.base)):
        base = entry.base.get(name, 0)
        amount = quantity.text(name, entry.amount.get(name, 0))
        words.append(f"{name}={amount}" + (f"-{quantity.text(name, base)}" if base else ""))
    return " ".join(words)


@lru_cache(maxsize=16_384)
def read(text: str) -> Reservation:
    """One entry of `status.reservations`, as `docs/reservations.md` describes it; raises ReservationError.

    `v1 SLOT [awaits=SLOT] uid=UID [rv=VERSION] until=TIME [RESOURCE=AMOUNT[-BASE]]…`
    """
    version, _, rest = text.partition(" ")
    if version != _FORMAT:
        raise ReservationError(f"reservation {text[:80]!r} is not of format {_FORMAT}")
    words = rest.split(" ")
    slot = Slot.parse(words[0])
    known: dict[str, str] = {}
    amount: dict[str, int] = {}
    base: dict[str, int] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not (name and equals) or name in known or name in amount:
            raise ReservationError(f"reservation of {slot}: cannot read {word[:80]!r}")
        if name in ("awaits", "uid", "rv", "until"):
            known[name] = value
            continue
        # A second "-" would be a base below 0, which used cannot hold.
        total, dash, held = value.partition("-")
        if held.startswith("-"):
            raise ReservationError(f"reservation of {slot}: cannot read {word[:80]!r}")
        try:
            amount[name] = quantity.parse_sum(total)
            if dash:
                base[name] = quantity.parse_sum(held)
        except quantity.QuantityError as error:
            raise ReservationError(f"reservation of {slot}: {name}: {error}") from None
    if not known.get("uid") or "until" not in known:
        raise ReservationError(f"reservation of {slot}: uid or until is missing")
    if "rv" in known and not _INTEGER.fullmatch(known["rv"]):
        raise ReservationError(f"reservation of {slot}: rv {known['rv'][:80]!r} is no resourceVersion")
    found = Reservation(
        slot=slot,
        uid=known["uid"],
        resource_version=int(known["rv"]) if "rv" in known else None,
        expires=milliseconds(known["until"]),
        amount=amount,
        base=base,
        awaits=Slot.parse(known["awaits"]) if "awaits" in known else None,
    )
    # An entry stands as it was written: to write it anew costs as much as to read it.
    vars(found)["line"] = text
    return found


def timestamp(at: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    whole, millis = divmod(at, 1000)
    # Not strftime: it writes the year 999 with three digits, which is no RFC 3339.
    return f"{datetime.fromtimestamp(whole, UTC).replace(tzinfo=None).isoformat()}.{millis:03d}Z"


def milliseconds(text: str) -> int:
    """RFC 3339, with or without a fraction, as milliseconds since 1970; raises ReservationError."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ReservationError(f"{text[:80]!r} has no time zone")
        # Overflows where it would be a year before 1 or after 9999, which no timestamp could say.
        since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, ReservationError):
            raise
        raise ReservationError(f"{text[:80]!r} is no time") from None
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


@dataclass(frozen=True, slots=True)
class Role:
    """One set of equal pods of a workload."""

    name: str
    replicas: int
    per_pod: Resources


@dataclass(frozen=True, slots=True)
class Charge:
    """A change that asks to be admitted, in the terms of the one group that would pay for it.

    `demand` is what the slot needs in all after the change, `before` what the stored object costs this group
    (nothing for a create or for a move from elsewhere). `enters` is true for those two: such a change always
    leaves its mark in the account, even where it costs nothing, so that a deletion of the group sees it.

    `awaits` is the object whose write makes the change, where that is not the slot's own, and `seen` what the demand
    was counted from besides what is written: uid and resourceVersion by place. What `is_shared` several writes charge,
    each for all of it: together they need no more than the one that needs most. `unmodelled` are names of cards of
    which no model is said, where models are `hard`'s.

    `run` is how long it runs at most, in milliseconds, None where nothing bounds it, and `run_before` the stored
    object's; `bounded_by` is the place where the kind says so, "" for one that has none.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    demand: Resources
    before: Resources = field(default_factory=dict)
    enters: bool = True
    awaits: Slot | None = None
    seen: Mapping[Slot, tuple[str, int]] = field(default_factory=dict)
    roles: Sequence[Role] = ()
    roles_before: Sequence[Role] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: int | None = None
    run_before: int | None = None
    bounded_by: str = ""
    unmodelled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def is_grant(self) -> bool:
        """A budget handed to a child group rather than a workload that runs."""
        return self.slot.kind == GROUPS

    @property
    def awaited(self) -> Slot:
        return self.awaits or self.slot

    def has_seen(self, entry: Reservation) -> bool:
        """Whether the write that an entry awaits is among what the demand was counted from, or can never be stored."""
        uid, version = self.seen.get(entry.awaited, ("", 0))
        return uid == entry.uid and (entry.resource_version is None or version > entry.resource_version)

    def worse_in(self) -> dict[str, int]:
        """What the change needs more than before; empty where it makes nothing worse."""
        return growth(self.demand, self.before)

    def may_need_more(self) -> bool:
        """Whether an account may have to give more for it: the demand grows, or the time that it runs."""
        return bool(self.worse_in()) or self.runs_longer()

    def runs_longer(self) -> bool:
        """Whether it may run longer than before, which where hours are safe may need more of them."""
        return self.run_before is not None and (self.run is None or self.run > self.run_before)


@dataclass(frozen=True, slots=True)
class Hours:
    """What an account knows of its hours besides `used`; amounts by `cash/` name, in nano-units x hours.

    `next_grant` is when they are granted anew, as people read it, "" for never. Where they are `safe`, `liens` is what
    the workloads that are counted may still cost, None where no recount has said; one that nothing bounds is taken to
    run for `max_run_time`. `carried` is what is left of what came over from the period before.
    """

    next_grant: str = ""
    safe: bool = False
    max_run_time: int | None = None
    liens: Resources | None = None
    carried: Resources = field(default_factory=dict)

    def run(self, own: int | None) -> int | None:
        """How long a workload is taken to run that has this bound of its own."""
        return self.max_run_time if own is None else own


_NO_HOURS = Hours()


class Account:
    """A running copy of one group's account. `decide` asks it, `reserve` changes it.

    `used` is as published: a name of `hard` that it lacks is unknown, not zero.
    """

    __slots__ = ("_by_slot", "_bytes", "_catalog", "_count", "_extra", "group", "hard", "hours", "reserved", "used")

    def __init__(
        self,
        group: str,
        hard: Limits,
        used: Resources,
        reservations: Iterable[Reservation] = (),
        hours: Hours = _NO_HOURS,
        catalog: Catalog = DEFAULT,
    ) -> None:
        self.group = group
        self._catalog = catalog
        self.hard = hard
        self.hours = hours
        self.used = used
        self.reserved: dict[str, int] = {}
        self._by_slot: dict[Slot, tuple[Reservation, ...]] = {}
        self._extra: dict[Slot, dict[str, int]] = {}
        self._count = 0
        self._bytes = 0
        by_slot: dict[Slot, list[Reservation]] = {}
        for entry in reservations:
            by_slot.setdefault(entry.slot, []).append(entry)
        for slot, entries in by_slot.items():
            self._set(slot, tuple(entries), slot_extra(entries))

    @property
    def reservations(self) -> list[Reservation]:
        return sorted(
            self.entries(),
            key=lambda e: (e.slot, e.awaited, e.uid, e.resource_version is not None, e.resource_version or 0),
        )

    def entries(self) -> Iterator[Reservation]:
        """The same in no order: to sort thousands of slots costs more than to decide."""
        return chain.from_iterable(self._by_slot.values())

    def of(self, slot: Slot) -> tuple[Reservation, ...]:
        return self._by_slot.get(slot, ())

    def unknown(self) -> list[str]:
        """Names that `hard` has and no recount has published yet, or whose liens none has."""
        lacks_liens = self.hours.safe and self.hours.liens is None
        return sorted(n for n in self.hard if n not in self.used or (lacks_liens and is_cash(n)))

    def models_of(self, base: str) -> list[str]:
        """The names in `hard` of single models of what `base` counts."""
        found = ((name, base_and_model(name, self._catalog)) for name in self.hard)
        return [name for name, split in found if split is not None and split[0] == base]

    def taken(self, name: str) -> int:
        """What is used and promised of a resource, in nano-units; what came over pays for liens first."""
        return self.used.get(name, 0) + self.reserved.get(name, 0) + max(0, self._lien(name))

    def ceiling(self, name: str, *, grant: bool = False) -> int:
        """How much may be taken: where hours are safe, a workload may use what came over and nobody else is to."""
        return self.hard[name] + (0 if grant else max(0, -self._lien(name)))

    def _lien(self, name: str) -> int:
        """What is to be paid of liens beside what came over; below 0 what that has left."""
        if not self.hours.safe or self.hours.liens is None:
            return 0
        return self.hours.liens.get(name, 0) - self.hours.carried.get(name, 0)

    def full(self) -> bool:
        return self._count >= MAX_ENTRIES or self._bytes >= MAX_BYTES

    def with_entry(self, entry: Reservation) -> tuple[Reservation, ...]:
        """The slot's entries as they would be with this one among them."""
        return (*(old for old in self.of(entry.slot) if not old.same_write(entry)), entry)

    def added(self, slot: Slot) -> Resources:
        """What the entries of a slot add to `used`."""
        return self._extra.get(slot, {})

    def reserve(self, entry: Reservation) -> None:
        """Enter a reservation that `decide` granted."""
        entries = self.with_entry(entry)
        joins = len(entries) > len(self.of(entry.slot))
        # A thousand creates of one name stand in one slot: one that joins them must not cost a look at all.
        self._set(entry.slot, entries, _joined(self.added(entry.slot), entry) if joins else slot_extra(entries))

    def _set(self, slot: Slot, entries: tuple[Reservation, ...], extra: dict[str, int]) -> None:
        old = self._by_slot.get(slot, ())
        for name, amount in self.added(slot).items():
            self.reserved[name] -= amount
        for name, amount in extra.items():
            self.reserved[name] = self.reserved.get(name, 0) + amount
        before, after = {id(entry) for entry in old}, {id(entry) for entry in entries}
        self._by_slot[slot], self._extra[slot] = entries, extra
        self._count += len(entries) - len(old)
        # Three bytes a line for the quotes and the comma.
        self._bytes += sum(len(entry.line) + 3 for entry in entries if id(entry) not in before)
        self._bytes -= sum(len(entry.line) + 3 for entry in old if id(entry) not in after)


def slot_extra(entries: Iterable[Reservation]) -> dict[str, int]:
    """What the entries of one slot add to `used`: per resource the largest, since only one object can stand there.

    But what each may come to spend adds up: one after the other they may all have run.
    """
    extra: dict[str, int] = {}
    for entry in entries:
        extra = _joined(extra, entry) if extra else entry.extra
    return extra


def _joined(extra: Resources, entry: Reservation) -> dict[str, int]:
    more = entry.extra
    joined = larger(extra, more)
    if entry.slot.kind != GROUPS:
        joined.update({name: extra.get(name, 0) + hours for name, hours in more.items() if is_cash(name)})
    return joined


def decide(account: Account, charge: Charge, now: int) -> Verdict:
    """Whether the account can bear the change. Pure: the account is not touched.

    The order is DESIGN 3's: nothing worse, then what is unknown (8), then unstated requests and runs, cash (7) and the
    ceilings (6), all violations at once. What is granted must be stored, as `reserve` leaves it, before the answer
    goes out: an entry that stands there already does not do (DESIGN 5.3).
    """
    charge = priced(account, charge)
    more = charge.worse_in()
    unbounded = _unbounded(account, charge, more)
    if not more and not charge.enters and unbounded is None:
        return Granted()
    unknown = account.unknown()
    if unknown:
        return not_reconciled(account.group, charge, f": {', '.join(unknown)} not counted")
    missing = {name: who for name, who in charge.missing.items() if name in account.hard and who}
    if missing:
        return unspecified(account.group, missing)
    unsaid = {name: who for name, who in charge.unmodelled.items() if name in more and account.models_of(name)}
    if unsaid:
        return unmodelled(account.group, unsaid)
    if unbounded is not None:
        return unbounded

    if _chained(account, charge, more):
        # What the earlier one left to spend is not known before it is seen.
        return Denied(
            Reason.BUSY, f"quota {account.group}: a change of the hours of {charge.slot} is under way: try again"
        )

    crossing = [e.awaited for e in account.of(charge.slot) if e.awaited != charge.awaited and not charge.has_seen(e)]
    if crossing and not charge.is_shared:
        # Together they may need more than each alone, and neither was counted with the other.
        return Denied(
            Reason.BUSY,
            f"quota {account.group}: a change of {min(crossing)} is under way, by which {charge.slot} is counted: "
            "try again",
        )

    entry = _entry(account, charge, now)
    rises = _rises(account, entry)
    ceiling = partial(account.ceiling, grant=charge.is_grant)
    violations = []
    for name, amount in more.items():
        spent = cash(name)
        if not (charge.is_grant or account.hours.safe) and _is_spent(account, spent):
            violations.append(Violation(spent, amount, account.taken(spent), account.hard[spent]))
        if name in account.hard and account.taken(name) + rises.get(name, 0) > ceiling(name):
            violations.append(Violation(name, amount, account.taken(name), ceiling(name)))
    if violations:
        return exceeded(
            account.group, violations, replicas_that_fit(account, charge), _notes(account, charge, violations)
        )
    beside = sorted(n for n in rises if n in account.hard and account.taken(n) + rises[n] > ceiling(n))
    if beside:
        # It does not grow in these, but an earlier change of the object may still land and grow in them.
        return Denied(
            Reason.BUSY,
            f"quota {account.group}: another change of {charge.slot} is under way that needs {', '.join(beside)}: "
            "try again",
        )
    if len(entry.amount) > _FEW and len(str(entry)) > MAX_ENTRY:
        return Denied(
            Reason.MALFORMED,
            f"quota {account.group} cannot reserve {len(entry.amount)} different resources for one object: "
            f"their names and amounts come to more than {MAX_ENTRY >> 10} KiB",
        )
    if account.full() and len(account.with_entry(entry)) > len(account.of(charge.slot)):
        return Denied(
            Reason.FULL,
            f"quota {account.group} has too many admissions under way: "
            f"{MAX_ENTRIES} entries or {MAX_BYTES >> 10} KiB; try again",
        )
    # From here the change is admitted as soon as the entry is stored.
    return Granted(entry)


def priced(account: Account, charge: Charge) -> Charge:
    """The change with what it may cost at most, where hours are safe; nothing where nothing bounds its run.

    What the stored object had counts for no more than what the new one could cost in as long a run: it may have run
    already, and that much of its lien is gone.
    """
    if not account.hours.safe or charge.is_grant:
        return charge
    run = account.hours.run(charge.run) or 0
    names = [name for name in account.hard if is_cash(name)]

    def cost(demand: Resources, length: int) -> dict[str, int]:
        return restrict(possible(demand, length), names)

    was = account.hours.run(charge.run_before) or 0
    before = smaller(cost(charge.before, was), cost(charge.demand, min(run, was)))
    return replace(
        charge,
        demand={**charge.demand, **cost(charge.demand, run)},
        before={**charge.before, **before},
        roles=[replace(role, per_pod={**role.per_pod, **cost(role.per_pod, run)}) for role in charge.roles],
        roles_before=[
            replace(role, per_pod={**role.per_pod, **cost(role.per_pod, was)}) for role in charge.roles_before
        ],
    )


def _unbounded(account: Account, charge: Charge, more: Resources) -> Denied | None:
    """Why nobody can say what the change may cost, where hours are safe and it may need more of them."""
    hours = account.hours
    longest, own = hours.max_run_time, charge.run
    metered = any(charge.demand.get(uncash(name), 0) for name in account.hard if is_cash(name))
    grows = charge.runs_longer() or any(cash(name) in account.hard for name in more)
    if not hours.safe or charge.is_grant or not metered or not grows:
        return None
    if own is None and longest is None:
        own_way = f"set {charge.bounded_by}, or have" if charge.bounded_by else "have"
        what = f"nothing bounds the run of {charge.slot}: {own_way} spec.cash.maxRunTime of the group set"
    elif own is not None and longest is not None and own > longest:
        what = f"{charge.slot} may run for {span_text(own)}: set {charge.bounded_by} to {longest // 1000} or less"
    else:
        return None
    return Denied(Reason.UNBOUNDED, f"quota {account.group} admits only runs whose whole cost is sure, and {what}")


def _rises(account: Account, entry: Reservation) -> dict[str, int]:
    """What the entry adds to what its slot has been promised: see `slot_extra`."""
    rises = growth(entry.extra, account.added(entry.slot))
    if entry.slot.kind != GROUPS and any(map(is_cash, entry.amount)):
        before = _stood(account, entry.slot, entry.uid, entry.awaits, entry.resource_version is None)
        rises = {name: amount for name, amount in rises.items() if not is_cash(name)}
        rises |= {name: more for name, more in growth(entry.extra, before).items() if is_cash(name)}
    return rises


def _stood(account: Account, slot: Slot, uid: str, awaits: Slot | None, is_create: bool) -> Resources:
    """What the entry of the same write adds that stands there already."""
    for entry in account.of(slot):
        if (entry.uid, entry.awaits, entry.resource_version is None) == (uid, awaits, is_create):
            return entry.extra
    return {}


def _chained(account: Account, charge: Charge, more: Resources) -> bool:
    """Whether an update needs more hours after another one that did, and that has not been seen yet."""
    return charge.resource_version is not None and any(
        entry.uid == charge.uid
        and entry.resource_version not in (None, charge.resource_version)
        and any(map(is_cash, growth(entry.amount, entry.base)))
        for entry in (account.of(charge.slot) if not charge.is_grant and any(map(is_cash, more)) else ())
    )


def _is_spent(account: Account, name: str) -> bool:
    return name in account.hard and account.taken(name) >= account.hard[name]


def _notes(account: Account, charge: Charge, violations: Iterable[Violation]) -> list[str]:
    """What a refusal says of hours besides the numbers."""
    if charge.is_grant or not any(is_cash(violation.resource) for violation in violations):
        return []
    hours, notes = account.hours, []
    run = hours.run(charge.run)
    if hours.safe and run is not None:
        notes.append(f"requested is what it may cost in {span_text(run)}, used has what others may still cost")
    if hours.next_grant:
        notes.append(f"next grant {hours.next_grant}")
    return notes


def not_reconciled(group: str, charge: Charge, why: str = "") -> Denied:
    """The refusal while nothing is known of a group: a child may come again at once, a workload is told."""
    if charge.is_grant:
        return Denied(Reason.PARENT_NOT_RECONCILED, f"quota {group} is not reconciled yet{why}: try again")
    return Denied(Reason.NOT_RECONCILED, f"quota {group} is not reconciled yet{why}")


def _held(account: Account, charge: Charge) -> Resources:
    """What `used` holds for the slot, and never more: nothing for the create of what is charged, and for any other
    write no more than any entry of the slot says and than the stored object costs.
    """
    base: Resources = {}
    if charge.resource_version is not None or charge.awaits is not None:
        base = charge.before
        for entry in account.of(charge.slot):
            base = smaller(base, entry.base)
        if not charge.is_grant and any(map(is_cash, charge.before)):
            # What a create may spend, its own entry holds, beside what this one may spend more.
            base = {**base, **_hours_base(charge, account.of(charge.slot))}
    return base


def _entry(account: Account, charge: Charge, now: int) -> Reservation:
    """The reservation that the change needs, merged with the one it shares."""
    base = _held(account, charge)
    fresh = Reservation(
        charge.slot, charge.uid, charge.resource_version, now + LIFETIME, charge.demand, base, charge.awaits
    )
    for entry in account.of(charge.slot):
        if entry.same_write(fresh):
            # The expiry has to move, or storing the entry would be no write at all.
            fresh = replace(
                fresh,
                amount=larger(entry.amount, fresh.amount),
                expires=max(fresh.expires, entry.expires + 1),
                resource_version=None
                if fresh.resource_version is None
                else max(fresh.resource_version, entry.resource_version or 0),
            )
    return fresh


def _hours_base(charge: Charge, entries: Iterable[Reservation]) -> dict[str, int]:
    base = {name: amount for name, amount in charge.before.items() if is_cash(name)}
    for entry in entries:
        if entry.uid == charge.uid and entry.resource_version is not None:
            base = smaller(base, restrict(entry.base, base))
    return base


def role_that_grew(charge: Charge) -> tuple[Role, int] | None:
    """The one role that needs more than before, and how many replicas it had; None where several do or none does."""
    old = {role.name: role for role in charge.roles_before}
    nothing = Role("", 0, {})
    grown = [role for role in charge.roles if growth(_cost(role), _cost(old.get(role.name, nothing)))]
    if len(grown) != 1:
        return None
    [role] = grown
    return role, old.get(role.name, nothing).replicas


def replicas_that_fit(account: Account, charge: Charge) -> int | None:
    """How many more replicas of the one role that grew would fit; None where several grew or none did."""
    charge = priced(account, charge)
    grown = role_that_grew(charge)
    if grown is None:
        return None
    role, was = grown
    held, most = _held(account, charge), None
    stood = _stood(account, charge.slot, charge.uid, charge.awaits, charge.resource_version is None)
    for name in account.hard:
        # What the slot itself has been promised is not in its way, unless that may be spent besides.
        own = account.added(charge.slot) if not is_cash(name) else stood
        left = max(0, account.ceiling(name) - account.taken(name) + own.get(name, 0))
        each = role.per_pod.get(name, 0)
        if is_cash(name) and not account.hours.safe:
            if left == 0 and role.per_pod.get(name.removeprefix("cash/"), 0):
                return 0
            continue
        rest = charge.demand.get(name, 0) - role.replicas * each
        room = held.get(name, 0) + left - rest
        if each > 0:
            fits = max(0, room // each - was)
            most = fits if most is None else min(most, fits)
        elif room < 0:
            return 0
    return most


def _cost(role: Role) -> dict[str, int]:
    return {name: amount * role.replicas for name, amount in role.per_pod.items()}
