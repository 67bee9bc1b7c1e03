"""Reservations, the entries of `status.reservations`: their slot, what they add to `used`, and their text.

This file alone decides when two entries are of one write, and what the entries of one slot add
(docs/design.md, "Slots and entries").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

from bizrq.units import quantity
from bizrq.units.names import is_cash
from bizrq.units.resources import Resources, add, larger, subtract_floor, total
from bizrq.units.slot import ReservationError, Slot
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp

#: How long a reservation is kept, in milliseconds. An API write ends within 34 s.
LIFETIME = 60_000

#: The format of entries that this version writes.
WRITTEN = "v1"
#: The formats that it reads, the oldest first. A version with a newer one writes that where the registration says so
#: (docs/reservations.md, "A newer format").
FORMATS = (WRITTEN,)
#: A part of an entry that is no resource: of those that a later version adds, this one knows only that.
_KEY = re.compile(r"(?!pods\b)[a-z]{1,32}", re.ASCII)
#: The part with the templates that an object comes to name: text, and how long that may be.
_TEMPLATES, _TEMPLATES_LENGTH, _ANY = "templates=", 512, "*"
_INTEGER = re.compile(r"[0-9]{1,19}", re.ASCII)
#: What tells one write from another: slot, uid, awaited object, generation, and whether it is a create.
Write: TypeAlias = tuple[Slot, str, Slot | None, int | None, bool]


@dataclass(frozen=True)
class Reservation:
    """This slot may need `amount` in total, of which the account's `used` already holds `base`.

    `resource_version` is the version that the change was decided on, None for a create, and `generation` the
    `metadata.generation` of that version, None for a create and for kinds without one. `expires` is in milliseconds
    since 1970 and for people: the controller goes by its own clock. `pending_write` is the object whose write is
    awaited where that is not the slot itself.
    """

    slot: Slot
    uid: str
    resource_version: int | None
    expires: int
    amount: Resources
    base: Resources = field(default_factory=dict)
    pending_write: Slot | None = None
    generation: int | None = None
    #: The parts of a later version, as text. They stay in the line.
    others: tuple[str, ...] = ()

    @property
    def awaited_slot(self) -> Slot:
        return self.pending_write or self.slot

    @property
    def is_create(self) -> bool:
        """Return True where the entry awaits the creation of what it is charged for."""
        return self.resource_version is None and self.pending_write is None

    def builds_on(self, earlier: Reservation) -> bool:
        """Return True where the base may hold what an earlier entry of the slot adds.

        An object holds nothing of what another one of its name was promised.
        """
        return self.uid == earlier.uid or any((self.pending_write, earlier.pending_write))

    @cached_property
    def extra(self) -> Resources:
        """Return what the entry adds to `used`, never below 0. Do not change it."""
        return subtract_floor(self.amount, self.base)

    def may_name_template(self, name: str) -> bool:
        """Return True where the awaited object may come to name a template of its namespace."""
        return not {name, _ANY}.isdisjoint(_templates_of(self.others))

    def same_write(self, other: Reservation) -> bool:
        """Return True where both are the same line of the account; amount, base, version and expiry may differ.

        Updates of one object from one generation share a line: only one of them can be stored. Every create has its
        own.
        """
        return self.write == other.write

    @property
    def write(self) -> Write:
        """The write that the entry is of."""
        return self.slot, self.uid, self.pending_write, self.generation, self.resource_version is None

    @cached_property
    def line(self) -> str:
        """The entry as text of `status.reservations`; `parse_reservation` reads it."""
        return _write(self)

    def __str__(self) -> str:
        return self.line


def with_templates(others: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the other parts of an entry with these templates beside those that it names. Too many are any."""
    others = tuple(others)
    text = ",".join(sorted({*_templates_of(others), *names}))
    return with_parts(others, [f"{_TEMPLATES}{text if len(text) <= _TEMPLATES_LENGTH else _ANY}"] if text else ())


def with_parts(others: Iterable[str], parts: Iterable[str]) -> tuple[str, ...]:
    """Return the other parts of an entry with these in place of those of the same keys."""
    parts = tuple(parts)
    keys = tuple(f"{part.partition('=')[0]}=" for part in parts)
    return (*(each for each in others if not each.startswith(keys)), *parts)


def _templates_of(others: Iterable[str]) -> set[str]:
    return {name for each in others if each.startswith(_TEMPLATES) for name in each.removeprefix(_TEMPLATES).split(",")}


def _write(entry: Reservation) -> str:
    words = [WRITTEN, str(entry.slot)]
    if entry.pending_write is not None:
        words.append(f"awaits={entry.pending_write}")
    words.append(f"uid={entry.uid}")
    if entry.resource_version is not None:
        words.append(f"rv={entry.resource_version}")
    if entry.generation is not None:
        words.append(f"gen={entry.generation}")
    words.append(f"until={format_timestamp(entry.expires)}")
    words.extend(entry.others)
    for name in sorted(set(entry.amount) | set(entry.base)):
        base = entry.base.get(name, 0)
        amount = quantity.text(name, entry.amount.get(name, 0))
        words.append(f"{name}={amount}" + (f"-{quantity.text(name, base)}" if base else ""))
    return " ".join(words)


@lru_cache(maxsize=2048)
def parse_reservation(text: str) -> Reservation:
    """Return one entry of `status.reservations` (docs/reservations.md); raises ReservationError.

    `v1 SLOT [awaits=SLOT] uid=UID [rv=VERSION] [gen=GENERATION] until=TIME [KEY=VALUE]… [RESOURCE=AMOUNT[-BASE]]…`

    Among the other parts are `templates=NAME,…` (see `Reservation.may_name_template`), and those of
    `bizrq.workloads.ownership.memory`.
    """
    version, _, rest = text.partition(" ")
    if version not in FORMATS:
        why = "a newer version of bizrq wrote it, or a person"
        raise ReservationError(f"reservation {text[:80]!r} is not of format {' or '.join(FORMATS)}: {why}")
    words = rest.split(" ")
    slot = Slot.parse(words[0])
    known: dict[str, str] = {}
    amount: dict[str, int] = {}
    base: dict[str, int] = {}
    others: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not (name and equals) or name in known or name in amount or name in others:
            raise ReservationError(f"reservation of {slot}: cannot read {word[:80]!r}")
        if name in ("awaits", "uid", "rv", "gen", "until"):
            known[name] = value
            continue
        if _KEY.fullmatch(name):
            others[name] = word
            continue
        # A second "-" would be a base below 0, which used cannot hold.
        total, dash, held = value.partition("-")
        if held.startswith("-"):
            raise ReservationError(f"reservation of {slot}: cannot read {word[:80]!r}")
        try:
            amount[name] = quantity.parse_sum(total)
            if dash and (of_base := quantity.parse_sum(held)):
                base[name] = of_base
        except quantity.QuantityError as error:
            raise ReservationError(f"reservation of {slot}: {name}: {error}") from None
    if not known.get("uid") or "until" not in known:
        raise ReservationError(f"reservation of {slot}: uid or until is missing")
    for name, what in (("rv", "resourceVersion"), ("gen", "generation")):
        if name in known and not _INTEGER.fullmatch(known[name]):
            raise ReservationError(f"reservation of {slot}: {name} {known[name][:80]!r} is no {what}")
    try:
        expires = parse_timestamp(known["until"])
    except TimestampError as error:
        raise ReservationError(f"reservation of {slot}: until: {error}") from None
    found = Reservation(
        slot=slot,
        uid=known["uid"],
        resource_version=int(known["rv"]) if "rv" in known else None,
        expires=expires,
        amount=amount,
        base=base,
        pending_write=Slot.parse(known["awaits"]) if "awaits" in known else None,
        generation=int(known["gen"]) if "gen" in known else None,
        others=tuple(others.values()),
    )
    # Keep the text that was read: to write it again costs as much as to read it.
    vars(found)["line"] = text
    return found


def entries_with(texts: Iterable[str], mark: str) -> Iterator[Reservation]:
    """Yield the entries whose text contains a mark, but for those that cannot be read: such a group grants nothing.

    A status may have thousands of entries, and to read one takes longer than to look for a few characters.
    """
    for text in texts:
        if mark in text:
            with suppress(ReservationError, quantity.QuantityError):
                yield parse_reservation(text)


def is_known_format(text: str) -> bool:
    """Return whether an entry of `status.reservations` is of a format that this version reads."""
    return text.partition(" ")[0] in FORMATS


def newest_common(readers: Iterable[Collection[str]]) -> str:
    """Return the newest format that this version and all of these readers read, the oldest one if there is none."""
    read = [*readers]
    return next((each for each in reversed(FORMATS) if all(each in formats for formats in read)), FORMATS[0])


def is_newer(one: str, other: str) -> bool:
    """Return whether one format is newer than another; one that this version does not know is the newest."""
    return other in FORMATS and (one not in FORMATS or FORMATS.index(one) > FORMATS.index(other))


def slot_extra(entries: Iterable[Reservation]) -> Resources:
    """Return what the entries of one slot add to `used`: their sum.

    One write may follow the other before the pods of the first have ended. The entries of a claim that several
    workloads may name add the largest, since each of them has all of the claim. But their hours add up.
    """
    extra: Resources = {}
    for entry in entries:
        extra = merge_extra(extra, entry) if extra else entry.extra
    return extra


def reserved_total(entries: Iterable[Reservation]) -> dict[str, int]:
    """Return what these entries add to `used` together, over all their slots, in nano-units."""
    by_slot: dict[Slot, list[Reservation]] = {}
    for entry in entries:
        by_slot.setdefault(entry.slot, []).append(entry)
    return total(slot_extra(each) for each in by_slot.values())


def in_order(entries: Iterable[Reservation]) -> list[Reservation]:
    """Return the entries sorted by slot, awaited slot, uid, version and generation."""
    return sorted(entries, key=lambda e: (e.slot, e.awaited_slot, e.uid, *_age(e), e.generation or 0))


def by_age(entries: Iterable[Reservation]) -> list[Reservation]:
    """Return the entries of one slot in the order of their writes: creates first, then updates by version."""
    return sorted(entries, key=_age)


def _age(entry: Reservation) -> tuple[bool, int]:
    return entry.resource_version is not None, entry.resource_version or 0


def merge_extra(extra: Resources, entry: Reservation) -> dict[str, int]:
    """Return what a slot's entries add to `used` with one more entry."""
    more = entry.extra
    if not entry.slot.is_shared:
        return add(extra, more)
    joined = larger(extra, more)
    joined.update({name: extra.get(name, 0) + hours for name, hours in more.items() if is_cash(name)})
    return joined
