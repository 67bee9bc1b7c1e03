"""Admission by allowance: notes in the journal of this process, in place of a write of each group's status.

This file alone decides when a note is written and when its answer may go out (docs/reservations.md, "Allowances").
`bizrq.quota.allowance` decides what an allowance holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.client import ApiError, Conflict, Unreachable
from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.allowance import Journal, JournalUnreadable, Line, is_plain, line_of, may_admit, spent, without_own
from bizrq.quota.change import Charge
from bizrq.quota.fair_share import must_be_free
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied, Granted
from bizrq.store.journals import JournalStore, StoredJournal
from bizrq.store.ports import GroupReader
from bizrq.units.names import Catalog, is_cash
from bizrq.units.resources import Resources, add
from bizrq.units.slot import ReservationError

log = structlog.get_logger(__name__)

#: The characters of a journal beyond which nothing more is noted until a count has moved notes to the statuses.
MAX_JOURNAL = 100_000
#: Seconds between two attempts to store a journal that is not there, or to read it after a write failed.
_AGAIN = 1.0

Check = Callable[[GroupObject], Denied | None]


class NoteMeasures(Protocol):
    """Is told of what is noted and written."""

    def noted(self, creates: int) -> None:
        """So many creates were admitted by allowances."""
        ...

    def writing_journal(self) -> AbstractContextManager[None]:
        """Return a context in which the journal is written once."""
        ...


class _Unmeasured:
    def noted(self, creates: int) -> None: ...

    def writing_journal(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(eq=False, slots=True)
class _Pending:
    group: str
    charge: Charge
    deadline: float
    check: Check | None
    answer: asyncio.Future[Granted | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False, slots=True)
class _Room:
    """A line and what its notes have taken of it, by the version of the group and the journal that it was read from."""

    stored: GroupObject
    line: Line
    taken: Resources
    account: Account


class Notebook:
    """Admits creates by the allowances of this process. It never refuses: what it does not admit is decided exactly."""

    def __init__(
        self,
        journals: JournalStore,
        groups: GroupReader,
        *,
        identity: str,
        catalog: Catalog,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
        measures: NoteMeasures | None = None,
    ) -> None:
        """`now` is the time of day in milliseconds, `clock` what deadlines are in, in seconds."""
        self._journals = journals
        self._groups = groups
        self._identity = identity
        self._catalog = catalog
        self._now = now
        self._clock = clock
        self._measures = measures or _Unmeasured()
        #: The journal as it is stored, None while that is not known or none is there.
        self._stored: StoredJournal | None = None
        self._name = ""
        #: The highest number that a write of ours may have stored.
        self._tried = 0
        self._rooms: dict[str, _Room] = {}
        #: The version of each group that the journal was pruned by.
        self._pruned: dict[str, GroupObject] = {}
        self._waiting: list[_Pending] = []
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self.notes = 0
        self.writes = 0

    @property
    def name(self) -> str:
        """The name of the journal, "" while there is none."""
        return self._name

    async def run(self) -> None:
        """Keep a journal for this process until closed: the controller gives allowances to those that have one."""
        while not self._closed:
            if self._name == "":
                try:
                    self._stored = await self._journals.create(self._identity)
                    self._name, self._tried = self._stored.name, 0
                    log.info("journal of allowances", name=self._name)
                except (ApiError, Unreachable) as error:
                    log.warning("journal of allowances not stored", error=str(error))
            await asyncio.sleep(_AGAIN)

    async def close(self) -> None:
        """Admit nothing more, and return once no write of the journal is under way."""
        self._closed = True
        if self._worker is not None:
            await asyncio.wait([self._worker])

    def holds(self, stored: GroupObject) -> bool:
        """Return True where this version of the group has a line of this process."""
        # Cheaper than to read the entries, and most groups have none.
        return bool(self._name) and any(f"/{self._name} " in text for text in stored.status.reservations)

    async def admit(self, group: str, charge: Charge, deadline: float, check: Check | None) -> Granted | None:
        """Return Granted once a note of the charge is stored; None where that has to be decided by the group itself."""
        if not self._may_hold(group, charge):
            return None
        pending = _Pending(group, charge, deadline, check)
        self._waiting.append(pending)
        if self._worker is None:
            self._worker = asyncio.create_task(self._serve(), name="notes")
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                return await pending.answer
        except TimeoutError:
            return None

    def _may_hold(self, group: str, charge: Charge) -> bool:
        stored = self._groups.cached(group)
        return not self._closed and stored is not None and is_plain(charge) and self.holds(stored)

    async def _serve(self) -> None:
        batch: list[_Pending] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._commit([each for each in batch if not each.answer.done()])
        except Exception:
            log.exception("notes failed")
            raise
        finally:
            self._worker = None
            # Who is left without an answer has it from the group, in the time that is left.
            for pending in (*batch, *self._waiting):
                _answer(pending, None)
            self._waiting = []

    async def _commit(self, batch: list[_Pending]) -> None:
        """Note what fits by one write, and answer; after a lost race all are decided again."""
        while batch := [each for each in batch if not each.answer.done() and each.deadline > self._clock()]:
            old = self._stored or await self._read()
            if old is None:
                break
            journal, noted = self._decide(old.journal, batch)
            for pending in batch:
                if pending not in noted:
                    _answer(pending, None)
            if not noted:
                self._pruned.clear()
                return
            self._tried = max(self._tried, journal.last)
            try:
                with self._measures.writing_journal():
                    self._stored = await self._journals.write(old, journal)
            except (ApiError, Unreachable, JournalUnreadable) as error:
                # It may be stored for all that: a note that stands there without an answer costs its room for a while.
                self._stored = None
                self._rooms.clear()
                if not isinstance(error, Conflict):
                    log.warning("journal not written", error=str(error))
                continue
            self.writes += 1
            self.notes += len(noted)
            self._measures.noted(len(noted))
            for pending, granted in noted.items():
                _answer(pending, granted)
            return
        for pending in batch:
            _answer(pending, None)

    async def _read(self) -> StoredJournal | None:
        """Return the journal as it is stored, None where it cannot be read or is not ours any more."""
        self._rooms.clear()
        self._pruned.clear()
        try:
            found = await self._journals.read(self._name)
        except (ApiError, Unreachable) as error:
            log.warning("journal not read", error=str(error))
            await asyncio.sleep(min(_AGAIN, 0.1))
            return None
        except JournalUnreadable as error:
            log.error("journal cannot be read", error=str(error))
            found = None
        if found is None or found.journal.last > self._tried:
            # Somebody deleted it, or wrote what we never did: nothing is held by this name any more.
            log.error("journal lost", name=self._name)
            self._name = ""
            return None
        self._stored = found
        return found

    def _decide(self, journal: Journal, batch: list[_Pending]) -> tuple[Journal, dict[_Pending, Granted]]:
        """Return the journal with notes of those that fit, and what they are answered."""
        journal = self._prune(journal)
        noted: dict[_Pending, Granted] = {}
        size = len(str(journal))
        for pending in batch:
            room = self._room(pending.group, journal)
            if room is None or size > MAX_JOURNAL:
                continue
            entry = self._entry(room, pending)
            if entry is None:
                continue
            journal = journal.with_note(pending.group, room.line.epoch, entry)
            room.taken = add(room.taken, entry.amount)
            room.account.reserve(entry)
            size += len(entry.line)
            noted[pending] = Granted(entry)
        return journal, noted

    def _entry(self, room: _Room, pending: _Pending) -> Reservation | None:
        """Return the entry to note, None where something else decides than the room of the line."""
        if pending.check is not None and pending.check(room.stored) is not None:
            return None
        verdict = decide(room.account, pending.charge, self._now())
        if not isinstance(verdict, Granted) or verdict.reservation is None:
            return None
        entry = verdict.reservation
        if must_be_free(room.account, entry) or not may_admit(room.line, room.taken, entry):
            return None
        return entry

    def _room(self, group: str, journal: Journal) -> _Room | None:
        """Return what our line of the newest known version of the group holds, None where it may not be used."""
        stored, known = self._groups.cached(group), self._rooms.get(group)
        if stored is None:
            return None
        if known is not None and known.stored is stored:
            return known
        self._rooms.pop(group, None)
        if stored.metadata.deletion_timestamp is not None or stored.status.used is None:
            return None
        try:
            account = wire.account_of(stored, self._catalog)
            line = line_of(account.entries(), self._name)
        except (GroupUnreadable, ReservationError):
            return None
        if line is None or line.generation != stored.metadata.generation or any(map(is_cash, account.hard)):
            return None
        if journal.is_recalled(group, line.epoch):
            return None
        notes = journal.after(group, line)
        room = self._rooms[group] = _Room(stored, line, spent(notes), without_own(account, line, notes))
        return room

    def _prune(self, journal: Journal) -> Journal:
        """Return the journal without what the newest known versions of its groups need no more."""
        for name in {*(note.group for note in journal.notes), *(group for group, _ in journal.recalled)}:
            stored = self._groups.cached(name)
            if stored is None or self._pruned.get(name) is stored:
                continue
            try:
                entries = wire.reservations_of(stored)
                journal = journal.pruned(self._name, name, stored.resource_version, entries)
            except (GroupUnreadable, ReservationError):
                continue
            self._pruned[name] = stored
        return journal


def _answer(pending: _Pending, verdict: Granted | None) -> None:
    if not pending.answer.done():
        pending.answer.set_result(verdict)
