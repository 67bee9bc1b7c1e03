"""The page of a group's record that each line goes to.

This file alone decides that, and how many lines a page has and a record. A line stays on its page. A new one goes to
the first page with room, so a change costs the pages that it changes, however long the record is. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.runs_on import RunsOn

#: As many lines as a page gets. One of an older version of bizrq may have more: those move to other pages.
MAX_LINES = 500
#: As many pages as a record may have.
MAX_PAGES = 400


@dataclass(frozen=True, slots=True)
class Page:
    """The lines of one page, by uid."""

    payers: Mapping[str, Memory] = field(default_factory=dict)
    runs_on: Mapping[str, RunsOn] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.payers) + len(self.runs_on)


@dataclass(frozen=True, slots=True)
class Layout:
    """The pages that change, by number, in the order in which they are to be stored. `left_out` found no page."""

    pages: Mapping[int, Page]
    left_out: frozenset[str] = frozenset()


def lay_out(
    pages: Mapping[int, Page],
    places: Mapping[str, Collection[int]],
    payers: Mapping[str, Memory],
    dropped: Collection[str],
    runs_on: Mapping[str, RunsOn],
) -> Layout:
    """Return what to store so that a record has these `payers` too, none of those that are dropped, and `runs_on` only.

    `places` has the pages of each payer of the record, that of the line that counts last. A line that moves is stored
    on its new page before it leaves the old one. So is one that several controllers have stored: until then it counts
    once.
    """
    drafts = _Drafts(pages)
    left_out: set[str] = set()
    for uid in dropped:
        for number in places.get(uid, ()):
            drafts.change(number).payers.pop(uid, None)
    for uid, memory in payers.items():
        *others, number = places.get(uid, ()) or (drafts.with_room(),)
        if number is None:
            left_out.add(uid)
            continue
        drafts.change(number).payers[uid] = memory
        for other in others:
            drafts.change(other, last=True).payers.pop(uid, None)
    _replace_runs_on(drafts, pages, runs_on)
    for number, page in pages.items():
        if len(page) > MAX_LINES:
            _thin_out(drafts, number, places)
    return Layout(drafts.in_order(), frozenset(left_out))


class _Draft:
    """A page that changes."""

    def __init__(self, page: Page) -> None:
        self.payers = dict(page.payers)
        self.runs_on = dict(page.runs_on)

    def __len__(self) -> int:
        return len(self.payers) + len(self.runs_on)


class _Drafts:
    """The pages that change. Those `last` lose what another page gets."""

    def __init__(self, pages: Mapping[int, Page]) -> None:
        self._pages = pages
        self._changed: dict[int, _Draft] = {}
        self._last: set[int] = set()
        #: No page before this one has room, as long as nothing is taken away.
        self._first = 0

    def change(self, number: int, *, last: bool = False) -> _Draft:
        if last:
            self._last.add(number)
        if number not in self._changed:
            self._changed[number] = _Draft(self._pages.get(number, Page()))
        return self._changed[number]

    def with_room(self, *, moved: bool = False) -> int | None:
        """Return the first page with room, which may be a new one; None where there is none.

        For a line that is moved it is none of the last ones: it would have left its old page before it is stored.
        """
        for number in range(self._first, MAX_PAGES):
            found = self._changed.get(number, self._pages.get(number, ()))
            if len(found) < MAX_LINES and not (moved and number in self._last):
                self._first = number
                return number
        self._first = MAX_PAGES
        return None

    def in_order(self) -> dict[int, Page]:
        pages = {number: Page(draft.payers, draft.runs_on) for number, draft in self._changed.items()}
        changed = (number for number, page in pages.items() if page != self._pages.get(number, Page()))
        return {number: pages[number] for number in sorted(changed, key=lambda each: (each in self._last, each))}


def _replace_runs_on(drafts: _Drafts, pages: Mapping[int, Page], wanted: Mapping[str, RunsOn]) -> None:
    """Put the pods that vanished since, and take out those that are over. One that finds no page is not recorded."""
    known: set[str] = set()
    for number, page in pages.items():
        over = [uid for uid in page.runs_on if uid not in wanted or uid in known]
        known.update(page.runs_on)
        for uid in over:
            del drafts.change(number).runs_on[uid]
    for uid, pod in wanted.items():
        if uid not in known and (number := drafts.with_room()) is not None:
            drafts.change(number).runs_on[uid] = pod


def _thin_out(drafts: _Drafts, number: int, places: Mapping[str, Collection[int]]) -> None:
    """Move the lines beyond `MAX_LINES` of a page to others: those that no other page has are stored there first."""
    draft = drafts.change(number)
    lines = _last_of(draft.payers, len(draft) - MAX_LINES)
    drafts.change(number, last=bool(lines))
    for uid in lines:
        *_, counts = places.get(uid, ()) or (number,)
        if counts == number:
            target = drafts.with_room(moved=True)
            if target is None:
                return
            drafts.change(target).payers[uid] = draft.payers[uid]
        del draft.payers[uid]


def _last_of(uids: Iterable[str], number: int) -> list[str]:
    return [*uids][-number:] if number > 0 else []
