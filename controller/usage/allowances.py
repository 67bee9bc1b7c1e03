"""What webhook processes hold ahead of a group, as a count sees it (docs/reservations.md, "Allowances").

This file alone decides who is given an allowance and when, and when one is taken back without anybody asking.
`bizrq.quota.allowance` decides how much, and what becomes of notes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError, Conflict, KubeClient, Unreachable
from bizrq.kube.lease import LEASES
from bizrq.quota.allowance import (
    MOST,
    Journal,
    JournalUnreadable,
    Line,
    Note,
    fold,
    holder_of,
    is_line,
    is_line_text,
    lines_of,
    sized,
)
from bizrq.quota.recount import Recount
from bizrq.quota.reservation import LIFETIME, Reservation, parse_reservation, reserved_total
from bizrq.store import processes
from bizrq.store.journals import JournalStore, StoredJournals
from bizrq.units.names import is_cash
from bizrq.units.quantity import QuantityError
from bizrq.units.resources import Limits, Resources, add, growth, larger, subtract_floor, total
from bizrq.units.slot import GROUP_SLOT_KIND, ReservationError
from controller.watch.cluster import Cluster
from controller.watch.shown import ShownWrites

log = structlog.get_logger(__name__)

#: Seconds between two looks at the processes that run.
_LOOK = 10.0
#: Seconds after a recall within which a group is given nothing: who needed the room may need more.
_CALM = 30.0
#: Seconds for which one read of the journals serves several groups.
_SHARED = 0.1
#: A line is raised once it is below this part of what it may be.
_LOW = 2
#: Seconds that the count of a group waits for which nobody waits, and the number of changes that end it. Notes stay in
#: their journal until then, and each of its writes carries them all: five seconds cost more than they saved.
_PATIENCE = 1.0
_CHANGES = MOST // 8


#: A line by its holder and epoch; one that cannot be used by its group and text.
_Key = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class Ahead:
    """The readable entries of a group without lines, those that were notes among them, and its lines without those.

    `amount` is what all lines hold, in nano-units. `texts` stay as they are: what cannot be read, and lines that nobody
    of this version can use. `moved` are the notes that became entries.
    """

    entries: list[Reservation]
    lines: list[Line]
    amount: Resources
    texts: list[str]
    moved: list[Note]


@dataclass(frozen=True, slots=True)
class _Held:
    """The lines of a status: those that can be used, and the others as they would be written.

    A line is of no use that cannot be read, and so are two of one process.
    """

    lines: list[Line]
    others: list[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> _Held:
        by_holder: dict[str, list[tuple[str, Line]]] = {}
        others: list[str] = []
        for text in filter(is_line_text, texts):
            written = text
            try:
                written = str(entry := parse_reservation(text))
                [line] = lines_of([entry])
            except (ReservationError, QuantityError):
                others.append(written)
            else:
                by_holder.setdefault(line.holder, []).append((written, line))
        lines = [each[0][1] for each in by_holder.values() if len(each) == 1]
        others += [text for each in by_holder.values() if len(each) > 1 for text, _ in each]
        return cls(lines, others)

    def __bool__(self) -> bool:
        return bool(self.lines or self.others)

    def keys(self, group: str) -> dict[_Key, str]:
        """Return the journal of each line by its key."""
        found: dict[_Key, str] = {(line.holder, line.epoch): line.holder for line in self.lines}
        return {**found, **{(group, text): holder_of(text) for text in self.others}}


class Allowances:
    """Gives, folds and takes back the lines of groups."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the time of day in milliseconds, `clock` the controller's own in seconds."""
        client: KubeClient = cluster.client
        self._cluster = cluster
        self._client = client
        self._namespace = namespace
        self._enqueue = enqueue
        self._now = now
        self._clock = clock
        self._journals = JournalStore(client, namespace)
        self._watched = processes.Watched(clock)
        self._shown = ShownWrites(clock)
        #: The journals of processes that run, while every one of those has one; empty otherwise.
        self._holders: tuple[str, ...] = ()
        #: Set while groups are given allowances.
        self.in_use = asyncio.Event()
        self._read: tuple[float, StoredJournals] | None = None
        self._reading: asyncio.Lock = asyncio.Lock()
        #: The lines of each group that this process published, and since when none of some is there any more.
        self._published: dict[str, frozenset[_Key]] = {}
        self._recalled: dict[str, float] = {}
        #: The changes of each group that wait for its next count, and the entries of the notes that the last one moved.
        self._changes: Counter[str] = Counter()
        self._moved: dict[str, frozenset[str]] = {}
        #: Since when the journal of a line is gone, and which of them may admit no write any more.
        self._lost: dict[_Key, float] = {}
        self._over: set[_Key] = set()
        #: The version of its group that a line of no use was first fenced at: its journal is marked up to there.
        self._fenced: dict[_Key, int] = {}
        #: Since when a journal has no process, and the notes that the last look has found.
        self._idle: dict[str, float] = {}
        self._found: frozenset[tuple[str, int]] = frozenset()

    def forget(self, name: str) -> None:
        """Forget a group that is gone."""
        self._published.pop(name, None)
        self._recalled.pop(name, None)
        self._changes.pop(name, None)
        self._moved.pop(name, None)

    def due_after(self, name: str, after: float) -> float:
        """Return the seconds after which a group is to be counted in which something changed, `after` at the least.

        Nobody waits for the room of a group whose status promises nothing but the lines of all processes that run, and
        what was noted by those: who needs more takes the lines back. So one count serves many changes.
        """
        group = self._cluster.groups.cached(name)
        if group is None or not self._is_open(group):
            return after
        self._changes[name] += 1
        return max(after, _PATIENCE) if self._changes[name] < _CHANGES else after

    def _is_open(self, group: GroupObject) -> bool:
        """Return True where the status is of the group's spec, and has each process's line and notes, nothing else."""
        if not self._holders or group.metadata.deletion_timestamp is not None:
            return False
        if group.status.observed_generation != group.metadata.generation:
            return False
        moved = self._moved.get(group.name, frozenset())
        others = [text for text in group.status.reservations if text not in moved]
        return sorted(map(holder_of, others)) == list(self._holders) and all(map(is_line_text, others))

    async def run(self) -> None:
        """See which processes run, until cancelled."""
        while True:
            try:
                await self._look()
            except (ApiError, Unreachable) as error:
                log.warning("journals not read", error=str(error))
            await asyncio.sleep(_LOOK)

    async def _look(self) -> None:
        running = {
            each.identity
            for each in self._watched.running(await processes.read(self._client, self._namespace))
            if each.process == processes.WEBHOOKS
        }
        found = await self._journals.list()
        mine = {stored.identity: name for name, stored in found.by_name.items()}
        self._holders = tuple(sorted(mine[each] for each in running)) if running <= mine.keys() else ()
        if self._holders:
            self.in_use.set()
        else:
            self.in_use.clear()
        held: set[str] = set()
        for group in self._cluster.groups.values():
            lines = _Held.of(group.status.reservations)
            holders = set(lines.keys(group.name).values())
            held |= holders
            if lines.others or not holders.issubset(self._holders):
                self._enqueue(group.name, 0.0)
        notes = {(note.group, note.number) for stored in found.by_name.values() for note in stored.journal.notes}
        for group in {group for group, _ in notes & self._found}:
            # Its object has not come, so nothing else makes a count due.
            self._enqueue(group, 0.0)
        self._found = frozenset(notes)
        await self._delete_idle(found, running, held)

    async def _delete_idle(self, found: StoredJournals, running: set[str], held: set[str]) -> None:
        """Delete the journals of processes that are gone and hold nothing."""
        idle = {name for name, each in found.by_name.items() if each.identity not in running and name not in held}
        now = self._clock()
        self._idle = {name: self._idle.get(name, now) for name in idle}
        for name, since in self._idle.items():
            if now - since > LIFETIME / 1000:
                try:
                    await self._journals.delete(found.by_name[name])
                except Conflict:
                    log.info("journal is in use", name=name)

    # Before the snapshot.

    async def prepare(self, group: GroupObject) -> bool:
        """Read what a count of this version of the group needs; False where the group is to be looked at anew.

        Raises ApiError, Unreachable.
        """
        self._changes.pop(group.name, None)
        held = _Held.of(group.status.reservations)
        if not held:
            self._note_published(group, held)
            return True
        journals = await self._journals_after(group.resource_version)
        if journals is None:
            return False
        self._note_published(group, held)
        await self._recall_foreign(group, held, journals)
        await self._find_lost(group.name, held)
        return True

    def has_read(self, group: GroupObject) -> bool:
        """Return True where the journals were read after this version of the group was written."""
        if self._read is not None and self._read[1].revision >= group.resource_version:
            return True
        return not any(map(is_line_text, group.status.reservations))

    async def _journals_after(self, version: int) -> StoredJournals | None:
        asked = self._clock()
        async with self._reading:
            read = self._read
            # One that began while others were waited for serves this group, too.
            if read is None or read[0] < asked - _SHARED or read[1].revision < version:
                began = self._clock()
                read = self._read = began, await self._journals.list()
        return read[1] if read[1].revision >= version else None

    async def _recall_foreign(self, group: GroupObject, held: _Held, journals: StoredJournals) -> None:
        """Mark the journals of lines that nobody should use any more.

        These are the lines of processes that do not run, or do not all know lines, those of an older generation, and
        those of no use. A line of no use may be of any epoch so far, and of any process where it names none.
        """
        due = [
            line
            for line in held.lines
            if line.holder not in self._holders or line.generation != group.metadata.generation
        ]
        everybody = sorted({*journals.by_name, *journals.unreadable})
        for text in held.others:
            log.error("allowance of no use", group=group.name, text=text[:200])
            self._fenced.setdefault((group.name, text), group.resource_version)
            names = [holder] if (holder := holder_of(text)) else everybody
            due += [Line(name, group.resource_version, 0, {}) for name in names]
        for line in due:
            try:
                marked = await self._journals.recall(group.name, [line])
            except JournalUnreadable as error:
                log.error("notes of an allowance cannot be read", group=group.name, error=str(error))
                continue
            self._note_marked(marked)

    def _note_marked(self, marked: dict[str, Journal]) -> None:
        """Remember journals as they are since they were marked."""
        if self._read is None:
            return
        by_name = dict(self._read[1].by_name)
        for name, journal in marked.items():
            if name in by_name:
                by_name[name] = replace(by_name[name], journal=journal)
        self._read = self._read[0], replace(self._read[1], by_name=by_name)

    async def _find_lost(self, group: str, held: _Held) -> None:
        """Find lines whose notes nobody can read for so long that no write that they admitted may still come."""
        known = self._read[1].by_name if self._read is not None else {}
        for key, holder in held.keys(group).items():
            if holder in known:
                self._lost.pop(key, None)
                continue
            since = self._lost.setdefault(key, self._clock())
            if key in self._over or self._clock() - since < LIFETIME / 1000:
                continue
            over, revision = since + LIFETIME / 1000, partial(self._client.revision, LEASES, self._namespace)
            upto = await self._shown.until("all", self._cluster.informers.all, revision, over)
            if upto is not None and over <= upto:
                log.warning("allowance dropped whose notes cannot be read", group=group, journal=holder)
                self._over.add(key)

    def _note_published(self, group: GroupObject, held: _Held) -> None:
        keys = frozenset(held.keys(group.name))
        if gone := self._published.get(group.name, frozenset()) - keys:
            self._recalled[group.name] = self._clock()
            for key in gone:
                self._lost.pop(key, None)
                self._fenced.pop(key, None)
            self._over -= gone
        self._published[group.name] = keys

    # In the snapshot.

    def ahead(self, name: str, entries: Iterable[Reservation], texts: Iterable[str]) -> Ahead:
        """Return the entries of a group with what its lines have noted, and the lines that stay.

        `texts` are those of the status that cannot be read.
        """
        kept, unread = list(entries), list(texts)
        journals = self._read[1].by_name if self._read is not None else {}
        held = _Held.of([*(str(entry) for entry in kept if is_line(entry)), *unread])
        lines: list[Line] = []
        moved: list[Note] = []
        for line in held.lines:
            stored = journals.get(line.holder)
            journal = stored.journal if stored is not None else Journal()
            notes = journal.after(name, line)
            moved += notes
            kept, left = fold(kept, line, notes)
            is_over = (line.holder, line.epoch) in self._over
            if not is_over and not (stored is not None and journal.is_recalled(name, line.epoch)):
                lines.append(left)
        for text in held.others:
            holder = holder_of(text)
            if self._is_fenced(name, text):
                notes = journals[holder].journal.of_group(name) if holder in journals else ()
                kept, _ = fold(kept, Line(holder, 0, 0, {}), notes)
                unread = [each for each in unread if each != text]
        foreign = [entry for entry in kept if is_line(entry)]
        amount = total(each.amount for each in (*lines, *foreign))
        rest = [entry for entry in kept if not is_line(entry)]
        return Ahead(rest, lines, amount, [*unread, *map(str, foreign)], moved)

    def _is_fenced(self, name: str, text: str) -> bool:
        """Return True where nobody admits anything by a line of no use any more, and what it admitted is known."""
        since = self._fenced.get((name, text))
        stored = self._read[1].by_name.get(holder_of(text)) if self._read is not None else None
        is_final = stored is not None and since is not None and stored.journal.is_recalled(name, since)
        return is_final or (name, text) in self._over

    def given(
        self, group: GroupObject, hard: Limits, counted: Recount, ahead: Ahead, entries: Iterable[Reservation]
    ) -> list[Line]:
        """Return the lines after a count: raised or new ones where creates came lately and there is plenty of room."""
        self._note_moved(group.name, ahead, counted)
        lines = {line.holder: line for line in ahead.lines}
        calm = self._clock() - self._recalled.get(group.name, float("-inf")) >= _CALM
        is_open = bool(self._holders) and calm and not any(map(is_cash, hard)) and counted.used.keys() >= hard.keys()
        is_open = is_open and not any(map(is_line_text, ahead.texts))
        if not is_open or group.metadata.deletion_timestamp is not None or counted.over:
            return ahead.lines
        largest: dict[str, int] = {}
        for entry in entries:
            if entry.is_create and entry.slot.kind != GROUP_SLOT_KIND:
                largest = larger(largest, entry.amount)
        free = subtract_floor(hard, add(counted.used, reserved_total(counted.reservations)))
        amount = sized(free, len(self._holders), {name: most for name, most in largest.items() if name in hard})
        if not any(amount.values()):
            return ahead.lines
        for holder in self._holders:
            fresh = Line(holder, group.resource_version, group.metadata.generation or 0, {}, since=self._now())
            line = lines.get(holder, fresh)
            low = {name: most // _LOW for name, most in amount.items()}
            taken = total(each.amount for each in lines.values())
            more = growth(amount, line.amount)
            if growth(low, line.amount) and not growth(add(taken, more), free):
                lines[holder] = replace(line, amount=add(line.amount, more))
        return list(lines.values())

    def _note_moved(self, name: str, ahead: Ahead, counted: Recount) -> None:
        slots = {note.entry.slot for note in ahead.moved}
        if moved := frozenset(entry.line for entry in counted.reservations if slots and entry.slot in slots):
            self._moved[name] = moved
        else:
            self._moved.pop(name, None)
