"""The remembered payers as the controller has them: what is stored, and what is to be stored next.

A line is stored with the status that counts its payer. A status has some lines only: then the pages of the record take
over all of these. This file alone decides which line counts, when lines move on, and what is lost of a record.
`payer_pages` stores pages; `releases` decides who is remembered because of a change, and
`controller.usage.payer_lines` who is because of a count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from bizrq.api import payers as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient, NotFound
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.payers import PAYERS
from bizrq.workloads.ownership.memory import (
    NO_LINES,
    KnownLines,
    Memory,
    PayersUnreadable,
    parse_payer,
    parse_payers,
    payer_line,
)
from bizrq.workloads.ownership.pages import MAX_LINES, MAX_PAGES, lay_out
from bizrq.workloads.ownership.runs_on import RunsOn
from bizrq.workloads.ownership.runs_on import latest as latest_runs_on
from controller.watch.payer_pages import NO_PAGES, GroupPages, PayerPages

Object = dict[str, Any]

#: As many lines as a status gets, and characters of them: each costs every write of the status 13 µs.
ROOM, ROOM_LENGTH = 32, 8192
#: As many times that where others have just moved on to pages: for a few more, a page would be written again in whole.
_BURST = 4
#: As many changes of one group are remembered before they are stored. A standby controller stores none.
_MOST_PENDING = MAX_PAGES * MAX_LINES


@dataclass(frozen=True, slots=True)
class Said:
    """What the status of a group says of payers: lines, and how many pages the record has."""

    revision: int = -1
    group_uid: str = ""
    lines: list[str] = field(default_factory=list)
    payers: Mapping[str, Memory] = field(default_factory=dict)
    pages: int = 0
    problem: str = ""
    #: True for lines that this process has written.
    is_own: bool = False

    @property
    def known(self) -> KnownLines:
        """The lines of its payers; none if there is a problem."""
        if self.problem:
            return NO_LINES
        return KnownLines(dict(zip(self.payers, self.lines, strict=True)), self.payers)


class DueLines(NamedTuple):
    """The uids of which something has to be stored before or with the next status, and of lines that go."""

    put: Collection[str] = ()
    dropped: Collection[str] = ()


class StatusLines(NamedTuple):
    """What a status says of payers from now on, and why not all that is remembered could be stored."""

    payers: list[str]
    pages: int
    problem: str = ""


_NOTHING = Said()


class RememberedPayers:
    """All remembered payers by uid, stored or not."""

    def __init__(self, client: KubeClient, on_change: Callable[[str, Collection[str]], None]) -> None:
        """`on_change` is called with a group and the uids of which it remembers what another writer has stored."""
        self._on_change = on_change
        self._pages = PayerPages(client)
        #: Why the statuses that this process writes do not keep their lines; "" if they do.
        self._unstored = ""
        self._said: dict[str, Said] = {}
        #: What is to be stored, by group and uid.
        self._pending: dict[str, dict[str, Memory]] = {}
        #: The uids of these that nobody has set aside, by group.
        self._undecided: dict[str, dict[str, None]] = {}
        #: All of these, by uid and group.
        self._known: dict[str, dict[str, Memory]] = {}
        #: The uids of which a group remembers something else since that was asked for, by group.
        self._changes: dict[str, set[str]] = {}
        #: The uids of what payers that are gone left, by the place of the payer, and by group.
        self._left: dict[str, set[str]] = {}
        self._gone: dict[str, set[str]] = {}
        self._all_gone: set[str] = set()
        #: The uids of which a group has given up what it remembers, and that may still be stored, by group.
        self._given_up: dict[str, set[str]] = {}
        self.informer = Informer(
            client, PAYERS, on_change=self._changed, on_rollback=self._start_over, transform=without_managed_fields
        )

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for an object. Of several groups the last one paid."""
        found = self._known.get(uid)
        if not found:
            return None
        if len(found) == 1:
            return next(iter(found.values()))
        return max(found.values(), key=lambda memory: (memory.since, memory.group))

    def left_of(self, place: str) -> Collection[str]:
        """Return the uids of payers and objects that are remembered as gone with the payer of this place."""
        return tuple(self._left.get(place, ()))

    @property
    def gone(self) -> Set[str]:
        """Return the uids of payers and objects that any group remembers as gone. Do not change it."""
        return self._all_gone

    def left_in(self, group: str) -> Collection[str]:
        """Return the uids of payers and objects that the group remembers as gone."""
        return tuple(self._gone.get(group, ()))

    def __iter__(self) -> Iterator[str]:
        """Yield the uids of all remembered payers."""
        yield from tuple(self._known)

    def of(self, group: str) -> Collection[str]:
        """Return the uids of all that is remembered of a group."""
        return {*self._pages.of(group).payers, *self.said(group).payers, *self.pending(group)}

    def in_group(self, group: str, uid: str) -> Memory | None:
        """Return what one group remembers of a uid."""
        return self._known.get(uid, {}).get(group)

    def said(self, group: str) -> Said:
        """Return what the status of the group says of payers, in the newest version that is known."""
        return self._said.get(group, _NOTHING)

    def recorded(self, group: str) -> GroupPages:
        """Return the pages of the group's record. Do not change them.

        A group that had the name before may have left some: they are no part of it.
        """
        pages, uid = self._pages.of(group), self.said(group).group_uid
        return pages if pages.group_uid in ("", uid) else NO_PAGES

    def pending(self, group: str) -> Mapping[str, Memory]:
        """Return what is remembered of a group and not stored yet."""
        return self._pending.get(group, {})

    def undecided(self, group: str) -> Collection[str]:
        """Return the uids of what is not stored yet and of which nobody knows whether it has to be."""
        return tuple(self._undecided.get(group, ()))

    def set_aside(self, group: str, uid: str) -> None:
        """Record that a payer need not be stored until it or what refers to it changes."""
        waiting = self._undecided.get(group, {})
        waiting.pop(uid, None)
        if not waiting:
            self._undecided.pop(group, None)

    def note_reference(self, uid: str) -> None:
        """Record that an object changed that has this uid, or that names it as its controller."""
        for group in self._known.get(uid, ()):
            if uid in self.pending(group):
                self._undecided.setdefault(group, {})[uid] = None

    def is_stored(self, group: str, uid: str) -> bool:
        """Return True if the status or the record of the group has a line of this uid."""
        return uid in self.said(group).payers or uid in self._pages.of(group).payers

    def has_room(self, group: str, put: Collection[str], *, burst: bool) -> bool:
        """Return True if the status of the group has room for these lines beside those that it has."""
        return len(self.said(group).payers.keys() | put) <= _times(burst) * ROOM

    def problem(self, group: str) -> str:
        """Return why what is stored of a group cannot be trusted; "" if it can."""
        said, pages = self.said(group), self.recorded(group)
        if problem := said.problem or pages.problem or self._unstored:
            return problem
        if said.pages <= len(pages.by_number):
            return ""
        lost = next(number for number in range(said.pages) if number not in pages.by_number)
        return f"page {lost} of {said.pages} of its record is missing"

    def take_changes(self, group: str) -> Collection[str] | None:
        """Return the uids of which the group remembers something else since the last call. None for all."""
        found, self._changes[group] = self._changes.get(group), set()
        return found

    def remember(self, uid: str, memory: Memory) -> None:
        """Remember a payer, in place of what its group remembers of this uid. The next recount stores it."""
        if self.in_group(memory.group, uid) == memory:
            return
        _discard(self._given_up, memory.group, uid)
        self._wait(memory.group, uid, memory)
        self._refresh(memory.group, uid)
        waiting = self._pending[memory.group]
        while len(waiting) > _MOST_PENDING:
            self._drop_pending(memory.group, next(iter(waiting)))

    def give_up(self, group: str, uid: str) -> None:
        """Forget at once what a group remembers of a uid. The next recount takes the line away."""
        self._given_up.setdefault(group, set()).add(uid)
        self._drop_pending(group, uid)

    def given_up(self, group: str) -> Collection[str]:
        """Return the uids of lines that the group has given up and that may still be stored."""
        return self._given_up.get(group, ())

    def forget(self, group: str) -> None:
        """Forget the status and what is not stored of a group that is gone."""
        self._changes.pop(group, None)
        self._given_up.pop(group, None)
        said = self._said.pop(group, _NOTHING)
        for uid in (*self.pending(group), *said.payers):
            self._drop_pending(group, uid)

    # The status.

    def read_own(self, group: GroupObject, written: list[str]) -> None:
        """Take over what this process has written: the stored group, and the lines that its status was to have."""
        is_stored = group.status.payers == written
        self._unstored = "" if is_stored else "status.payers is not stored: apply the CRDs of this version of bizrq"
        self.read_status(group, is_own=True)

    def read_status(self, group: GroupObject, *, is_own: bool = False) -> None:
        """Take over what the newest known version of a group says. `is_own` if this process has just written it."""
        before, status = self.said(group.name), group.status
        if before.revision == group.resource_version:
            return
        is_same = status.payers == before.lines
        payers, problem = (before.payers, before.problem) if is_same else _read(group.name, status.payers, before)
        self._said[group.name] = Said(
            group.resource_version,
            group.metadata.uid,
            status.payers,
            payers,
            status.payers_pages,
            problem,
            is_own or (is_same and before.is_own),
        )
        changed = _changed(before.payers, payers) if not is_same else ()
        remembered = self._remembered(group.name, changed)
        for uid in changed:
            if uid not in payers and not is_own:
                self._taken_out(group, uid, before)
            self._refresh(group.name, uid)
            self._settle(group.name, uid)
        if not is_own:
            self._tell(group.name, remembered)

    def _taken_out(self, group: GroupObject, uid: str, before: Said) -> None:
        """Decide what another writer meant that has taken a line out of a status."""
        if before.is_own and before.revision < group.resource_version:
            # It may not know the field: the line is stored again if it is needed.
            if uid not in self.pending(group.name):
                self._wait(group.name, uid, before.payers[uid])
        elif uid not in self._pages.of(group.name).payers:
            # Another controller found that nothing refers to it.
            self._drop_pending(group.name, uid)

    # The record.

    def _lines_for(self, group: str, due: DueLines, *, burst: bool) -> tuple[StatusLines, Mapping[str, Memory]]:
        """Return what the next status says of payers, and what the record has to take over first."""
        said, pages = self.said(group), self.recorded(group)
        number = len(pages.by_number)
        is_whole = all(each in pages.by_number for each in range(number))
        pages_said = max(said.pages, number) if is_whole else said.pages
        changed = {uid: memory for uid in due.put if (memory := self.pending(group).get(uid)) is not None}
        kept = {
            uid: memory
            for uid, memory in said.payers.items()
            if uid not in due.dropped and uid not in changed and pages.payers.get(uid) != memory
        }
        if len(wanted := kept | changed) <= _times(burst) * ROOM:
            lines = [payer_line(uid, memory) for uid, memory in wanted.items()]
            if sum(map(len, lines)) <= _times(burst) * ROOM_LENGTH:
                return StatusLines(sorted(lines), pages_said), {}
        # A line of the status that changes stays there: until the status is written, its old one would count.
        stays = {uid: memory for uid, memory in changed.items() if uid in said.payers}
        lines = [payer_line(uid, memory) for uid, memory in stays.items()]
        moves = {uid: memory for uid, memory in wanted.items() if uid not in stays}
        return StatusLines(sorted(lines), pages_said), moves

    async def store(
        self,
        group: GroupObject,
        due: DueLines,
        counted_at: Mapping[str, str],
        runs_on: Mapping[str, RunsOn],
    ) -> StatusLines:
        """Bring the record up to what is remembered of a group, and return what its status has to say beside it.

        Raise Conflict after reading the stored page, other ApiErrors, and Unreachable.
        """
        pages, problem = self.recorded(group.name), self.problem(group.name)
        lines, moves = self._lines_for(group.name, due._replace(dropped=()) if problem else due, burst=True)
        if problem:
            # What is stored stays as it is until somebody has mended it.
            return self._within_status(group.name, lines, moves, problem)
        wanted = latest_runs_on(runs_on)
        dropped = [uid for uid in due.dropped if uid in pages.places]
        if moves or dropped or pages.is_long or wanted.keys() != pages.runs_on.keys():
            left_out = await self._write(group, moves, dropped, wanted, counted_at)
            lines = lines._replace(pages=len(self.recorded(group.name).by_number))
            if left_out:
                others = {uid: moves[uid] for uid in left_out}
                return self._within_status(group.name, lines, others, "the record is full")
        return lines

    async def store_ahead(
        self,
        group: GroupObject,
        put: Collection[str],
        counted_at: Mapping[str, str],
        runs_on: Mapping[str, RunsOn],
        *,
        burst: bool,
    ) -> bool:
        """Store what the next status would have no room for, before that is made. Return False if it has room.

        With `burst` it has as much as for what comes while other lines move on to pages. Raise as `store` does.
        """
        _, moves = self._lines_for(group.name, DueLines(put), burst=burst)
        if not moves or self.problem(group.name):
            return False
        await self._write(group, moves, (), latest_runs_on(runs_on), counted_at)
        return True

    async def _write(
        self,
        group: GroupObject,
        moves: Mapping[str, Memory],
        dropped: Collection[str],
        runs_on: Mapping[str, RunsOn],
        counted_at: Mapping[str, str],
    ) -> Collection[str]:
        """Store lines on the pages of the record. Return the uids of those for which there is no room."""
        pages = self.recorded(group.name)
        found = lay_out(
            {number: page.page for number, page in pages.by_number.items()}, pages.places, moves, dropped, runs_on
        )
        # Beside new ones: who took the number of pages out of the status has given up those that are missing.
        for number in range(max((*pages.by_number, *found.pages), default=-1) + 1):
            if number not in pages.by_number:
                self._learned(group.name, await self._pages.create(group, number))
        for number, page in found.pages.items():
            stored = self.recorded(group.name).by_number.get(number)
            if stored is None:
                # The group may be deleted meanwhile, and its pages with it.
                raise NotFound(HTTPStatus.NOT_FOUND, "NotFound", f"page {number} of the payers of {group.name} is gone")
            self._learned(group.name, await self._pages.write(group, stored, page, counted_at))
        return found.left_out

    def _within_status(self, group: str, lines: StatusLines, others: Mapping[str, Memory], problem: str) -> StatusLines:
        """Return the lines of a status with as many others as it has room for: first those that it has already."""
        said = self.said(group)
        if said.problem:
            return StatusLines(said.lines, lines.pages, problem)
        kept, more = list(lines.payers), sorted(others, key=lambda uid: uid not in said.payers)
        for uid in more:
            line = payer_line(uid, others[uid])
            if len(kept) < ROOM and sum(map(len, kept)) + len(line) <= ROOM_LENGTH:
                kept.append(line)
        return StatusLines(sorted(kept), lines.pages, problem)

    def _learned(self, group: str, changed: Iterable[str]) -> None:
        """Bring what is known in line with pages that this process has written."""
        for uid in changed:
            self._refresh(group, uid)
            self._settle(group, uid)

    def _settle(self, group: str, uid: str) -> None:
        """Drop what waits to be stored where that has happened."""
        if uid in self.pending(group) and self._stored_memory(group, uid) == self.pending(group)[uid]:
            self._drop_pending(group, uid)

    def settle_dropped(self, group: str, dropped: Iterable[str]) -> None:
        """Drop what waits to be stored of lines that were dropped, where nothing is stored of them any more."""
        for uid in dropped:
            if not self.is_stored(group, uid):
                _discard(self._given_up, group, uid)
                self._drop_pending(group, uid)

    # The watch.

    def _changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old or {}
        group = wire.group_of(obj)
        changed = self._pages.learn(new) if new is not None else self._pages.forget(group, obj["metadata"]["uid"])
        recorded = self._pages.of(group).payers
        remembered = self._remembered(group, changed)
        for uid in changed:
            self._refresh(group, uid)
            if new is not None and uid not in recorded:
                # Another controller found that nothing refers to it.
                self._drop_pending(group, uid)
            self._settle(group, uid)
        self._tell(group, remembered)

    def _remembered(self, group: str, uids: Iterable[str]) -> dict[str, Memory | None]:
        return {uid: self.in_group(group, uid) for uid in uids}

    def _tell(self, group: str, before: Mapping[str, Memory | None]) -> None:
        """Report what a group remembered otherwise before: the watch may bring this process its own write first."""
        changed = [uid for uid, memory in before.items() if self.in_group(group, uid) != memory]
        if changed:
            self._on_change(group, changed)

    def _start_over(self, before: int, now: int) -> None:
        """Drop everything and read the informer's: the API server's store was restored to an older revision."""
        by_group = self._pending, self._undecided, self._changes, self._left, self._gone, self._given_up
        for kept in (*by_group, self._known, self._all_gone):
            kept.clear()
        self._pages.clear()
        for obj in self.informer.store.values():
            self._pages.learn(obj)
        groups = {wire.group_of(obj) for obj in self.informer.store.values()} | self._said.keys()
        for group in groups:
            uids = self.of(group)
            for uid in uids:
                self._refresh(group, uid)
            # Some may have gone meanwhile: of what happened in between, no watch tells.
            self._on_change(group, uids)

    def _stored_memory(self, group: str, uid: str) -> Memory | None:
        """Return the line that counts of those that are stored: the record's is never newer than the status'."""
        return self.said(group).payers.get(uid) or self._pages.of(group).payers.get(uid)

    def _wait(self, group: str, uid: str, memory: Memory) -> None:
        self._pending.setdefault(group, {})[uid] = memory
        self._undecided.setdefault(group, {})[uid] = None

    def _drop_pending(self, group: str, uid: str) -> None:
        self.set_aside(group, uid)
        waiting = self._pending.get(group, {})
        waiting.pop(uid, None)
        if not waiting:
            self._pending.pop(group, None)
        self._refresh(group, uid)

    def _refresh(self, group: str, uid: str) -> None:
        """Bring what is known of a uid in line with what is stored and pending."""
        memory = self.pending(group).get(uid) or self._stored_memory(group, uid)
        if uid in self.given_up(group):
            memory = None
        found = self._known.setdefault(uid, {})
        if memory is not None and found.get(group) == memory:
            # What waited to be stored is.
            return
        if group in self._changes:
            self._changes[group].add(uid)
        for known in found.values():
            _discard(self._left, known.place, uid)
        if memory is not None:
            found[group] = memory
        else:
            found.pop(group, None)
        for known in found.values():
            if known.gone is not None:
                self._left.setdefault(known.place, set()).add(uid)
        if memory is not None and memory.gone is not None:
            self._gone.setdefault(group, set()).add(uid)
        else:
            _discard(self._gone, group, uid)
        if any(known.gone is not None for known in found.values()):
            self._all_gone.add(uid)
        else:
            self._all_gone.discard(uid)
        if not found:
            del self._known[uid]


def _times(burst: bool) -> int:
    return _BURST if burst else 1


def _discard(sets: dict[str, set[str]], key: str, uid: str) -> None:
    found = sets.get(key)
    if found is not None:
        found.discard(uid)
        if not found:
            del sets[key]


def _changed(before: Mapping[str, Memory], after: Mapping[str, Memory]) -> set[str]:
    """Return the uids of which one remembers something else than the other."""
    found = {uid for uid, memory in after.items() if before.get(uid) != memory}
    return found | (before.keys() - after.keys())


def _read(group: str, lines: Collection[str], before: Said) -> tuple[dict[str, Memory], str]:
    """Return the payers of the lines of a status, those that can be read, and what is wrong with the others."""
    try:
        return parse_payers(group, lines, before.known), ""
    except PayersUnreadable as error:
        problem = f"status.payers: {error}"
    found: dict[str, Memory] = {}
    for line in lines:
        try:
            uid, memory = parse_payer(group, line)
        except PayersUnreadable:
            continue  # The problem names it.
        found.setdefault(uid, memory)
    return found, problem
