"""Allowances: what a webhook process may admit by itself, and what becomes of what it has admitted so.

A group's status holds a line for each process, an entry like any other: other admissions count it as taken. What a
process admits within its line stands as a note in its journal before the answer goes out. This file alone decides what
a line may still admit and what becomes of notes (docs/reservations.md, "Allowances"). It knows no API server and no
clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.quota.verdict import Granted
from bizrq.units.resources import Limits, Resources, add, growth, larger, nonzero, scale, subtract_floor, total
from bizrq.units.slot import ReservationError, Slot

#: The kind of the slots of lines. No API server serves it: older versions keep such an entry and count it.
KIND = "processes.quota.biz.group"
_SEEN = "seen="
#: The part of an entry that was a note until a recall: `used` may hold its object already.
NOTED = "noted=1"
#: All lines of a group together are at most this part of what is free.
PART = 4
#: A line is for this many creates of the largest kind that came lately, and for no fewer than the second number.
MOST, FEWEST = 256, 8


class JournalUnreadable(ValueError):
    """A journal that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a process may admit: `amount` in all, in nano-units, for its notes with numbers above `seen`.

    `epoch` is the resourceVersion of the group that the line was first given upon, so later lines have later ones.
    `generation` is the group's at that time. `since` is in milliseconds since 1970, for people.
    """

    holder: str
    epoch: int
    generation: int
    amount: Resources
    seen: int = 0
    since: int = 0

    @property
    def entry(self) -> Reservation:
        """The line as an entry of `status.reservations`."""
        place = Slot(KIND, "", self.holder)
        said = (f"{_SEEN}{self.seen}",)
        return Reservation(
            place, str(self.epoch), None, self.since, dict(self.amount), generation=self.generation, others=said
        )

    @classmethod
    def of(cls, entry: Reservation) -> Line:
        """Return the line that an entry of KIND is; raises ReservationError."""
        numbers = [said.removeprefix(_SEEN) for said in entry.others if said.startswith(_SEEN)]
        if len(numbers) != 1 or not (numbers[0].isdecimal() and entry.uid.isdecimal() and entry.uid.isascii()):
            raise ReservationError(f"allowance of {entry.slot.name}: epoch or number of the last note is missing")
        return cls(entry.slot.name, int(entry.uid), entry.generation or 0, entry.amount, int(numbers[0]), entry.expires)


@dataclass(frozen=True, slots=True)
class Note:
    """A create that a process has admitted by its line of this epoch; `text` is the entry that it would have left."""

    number: int
    group: str
    epoch: int
    text: str

    @property
    def entry(self) -> Reservation:
        return parse_reservation(self.text)


@dataclass(frozen=True, slots=True)
class Journal:
    """The notes of one process, and by group the epoch up to which its lines are recalled. Numbers only grow."""

    last: int = 0
    notes: tuple[Note, ...] = ()
    recalled: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        lines = [f"last {self.last}"]
        lines += [f"note {note.number} {note.epoch} {note.group} {note.text}" for note in self.notes]
        return "\n".join(lines)

    @classmethod
    def parse(cls, text: str, recalled: Iterable[tuple[str, int]] = ()) -> Journal:
        """Return a journal from the text of its notes, and the marks that stand apart; raises JournalUnreadable."""
        last, notes = -1, list[Note]()
        for line in text.split("\n"):
            try:
                match line.split(" ", 4):
                    case ["last", number]:
                        last = int(number)
                    case ["note", number, epoch, group, entry]:
                        parse_reservation(entry)
                        notes.append(Note(int(number), group, int(epoch), entry))
                    case _:
                        raise JournalUnreadable(f"journal: cannot read {line[:80]!r}")
            except ValueError as error:
                raise JournalUnreadable(f"journal: cannot read {line[:80]!r}: {error}") from None
        if last < max((note.number for note in notes), default=0):
            raise JournalUnreadable("journal: the last number is missing")
        journal = cls(last, tuple(notes))
        for group, epoch in recalled:
            journal = journal.recall(group, epoch)
        return journal

    def is_recalled(self, group: str, epoch: int) -> bool:
        return dict(self.recalled).get(group, -1) >= epoch

    def recall(self, group: str, epoch: int) -> Journal:
        """Return the journal after which nothing more is noted of lines of this epoch or an earlier one."""
        if self.is_recalled(group, epoch):
            return self
        return replace(self, recalled=tuple(sorted({**dict(self.recalled), group: epoch}.items())))

    def with_note(self, group: str, epoch: int, entry: Reservation) -> Journal:
        number = self.last + 1
        return replace(self, last=number, notes=(*self.notes, Note(number, group, epoch, str(entry))))

    def after(self, group: str, line: Line) -> tuple[Note, ...]:
        """Return the notes that the line has to hold still."""
        return tuple(n for n in self.notes if n.group == group and n.epoch == line.epoch and n.number > line.seen)

    def of_group(self, group: str) -> tuple[Note, ...]:
        """Return all notes of a group, whatever its status holds of them."""
        return tuple(note for note in self.notes if note.group == group)

    def pruned(self, holder: str, group: str, version: int, entries: Iterable[Reservation]) -> Journal:
        """Return the journal without what a known version of the group needs no more.

        Of a version later than an epoch that does not have its line, no line of that epoch ever comes again.
        """
        line = line_of(entries, holder)

        def is_over(epoch: int) -> bool:
            return version > epoch and (line is None or line.epoch != epoch)

        def is_done(note: Note) -> bool:
            if note.group != group:
                return False
            return is_over(note.epoch) or (line is not None and line.epoch == note.epoch and note.number <= line.seen)

        notes = tuple(note for note in self.notes if not is_done(note))
        recalled = tuple((name, epoch) for name, epoch in self.recalled if name != group or not is_over(epoch))
        return replace(self, notes=notes, recalled=recalled)


def is_line(entry: Reservation) -> bool:
    return entry.slot.kind == KIND


def is_line_text(text: str) -> bool:
    """Return True for an entry's text that is a line, without reading it: other names in it may be anybody's."""
    return _place(text).startswith(f"{KIND}/")


def holder_of(text: str) -> str:
    """Return the journal that the text of a line names, of whatever format; "" where it names none."""
    return _place(text).rpartition("/")[2]


def _place(text: str) -> str:
    """Return the second word: every version of the format has the place there."""
    return [*text.split(" ", 2), ""][1]


def lines_of(entries: Iterable[Reservation]) -> list[Line]:
    """Return the lines among the entries; raises ReservationError, also where a process has two."""
    lines = [Line.of(entry) for entry in entries if is_line(entry)]
    twice = [name for name, count in Counter(line.holder for line in lines).items() if count > 1]
    if twice:
        raise ReservationError(f"{twice[0]} has two allowances")
    return lines


def line_of(entries: Iterable[Reservation], holder: str) -> Line | None:
    """Return the line of this process, None where it has none; raises ReservationError."""
    return next((line for line in lines_of(entries) if line.holder == holder), None)


def without_lines(entries: Iterable[Reservation]) -> list[Reservation]:
    return [entry for entry in entries if not is_line(entry)]


def without_own(account: Account, line: Line, notes: Iterable[Note]) -> Account:
    """Return the account with the notes of a line in place of the line itself."""
    entries, _ = fold(account.entries(), line, notes)
    return _with(account, entries)


def without_lines_of(account: Account) -> Account:
    """Return the account as it were if no process held anything ahead."""
    return _with(account, without_lines(account.entries()))


def is_noted(entry: Reservation) -> bool:
    """Return True for an entry that no count has looked at since it was a note."""
    return NOTED in entry.others


def spent(notes: Iterable[Note]) -> dict[str, int]:
    """Return what the notes take of their line, in nano-units."""
    return total(note.entry.amount for note in notes)


def may_admit(line: Line, taken: Resources, entry: Reservation) -> bool:
    """Return True where the line holds one more create beside what the notes of its journal after `seen` take.

    The line may be an old version of the stored one: that has lost no more than what it has moved `seen` past.
    """
    return not growth(add(taken, entry.amount), line.amount)


def is_plain(charge: Charge) -> bool:
    """Return True for a create that nothing but its own group's room decides, so that a line may admit it."""
    return (
        charge.resource_version is None
        and charge.pending_write is None
        and charge.room is None
        and not (charge.is_grant or charge.is_shared or charge.slot.is_shared or charge.is_child)
        and not (charge.read_versions or charge.adopts or charge.before or charge.templates or charge.leaving)
    )


def fold(
    entries: Iterable[Reservation], line: Line, notes: Iterable[Note], *, noted: bool = False
) -> tuple[list[Reservation], Line]:
    """Move the notes after `seen` out of the line: return the other entries with theirs, and the line without them.

    The sum stays as it is. `noted` marks what no count has looked at. Entries of one write stay one.
    """
    kept = [entry for entry in entries if not (is_line(entry) and entry.slot.name == line.holder)]
    moved = [note for note in notes if note.number > line.seen]
    for note in moved:
        entry = replace(note.entry, others=(*note.entry.others, NOTED)) if noted else note.entry
        same = next((old for old in kept if old.same_write(entry)), None)
        if same is not None:
            kept = [old for old in kept if old is not same]
            entry = replace(entry, amount=larger(same.amount, entry.amount), expires=max(same.expires, entry.expires))
        kept.append(entry)
    seen = max((note.number for note in moved), default=line.seen)
    return kept, replace(line, seen=seen, amount=subtract_floor(line.amount, spent(moved)))


def looked_at(entries: Iterable[Reservation]) -> list[Reservation]:
    """Return the entries that a count keeps, without the mark of a recall: `used` does not hold their objects."""
    return [
        replace(entry, others=tuple(said for said in entry.others if said != NOTED)) if is_noted(entry) else entry
        for entry in entries
    ]


def needs_recall(account: Account, charge: Charge, now: int) -> bool:
    """Return True where a charge that was refused would be granted if no process held anything ahead."""
    if not any(map(is_line, account.entries())):
        return False
    return isinstance(decide(without_lines_of(account), charge, now), Granted)


def needs_count(account: Account, charge: Charge, now: int) -> bool:
    """Return True where a charge that was refused might be granted once a count has looked at recalled notes."""
    if not any(map(is_noted, account.entries())):
        return False
    rest = [entry for entry in account.entries() if not is_noted(entry)]
    return isinstance(decide(_with(account, rest), charge, now), Granted)


def sized(free: Limits, holders: int, largest: Resources) -> dict[str, int]:
    """Return what a line may hold, in nano-units: of `free` the share of one of so many `holders`.

    Empty where a name that lately came with at most `largest` has too little room to be worth it.
    """
    amounts = {
        name: min(free.get(name, 0) // (PART * holders), MOST * amount) for name, amount in nonzero(largest).items()
    }
    enough = scale(nonzero(largest), FEWEST)
    return {} if growth(enough, amounts) else amounts


def _with(account: Account, entries: Iterable[Reservation]) -> Account:
    return Account(
        account.group,
        account.hard,
        account.used,
        entries,
        account.hours,
        catalog=account.catalog,
        problem=account.problem,
    )
