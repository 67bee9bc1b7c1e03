"""One collection of a group's intervals: what the record has, what is collected, and what is left to look at.

This file alone decides which interval a group must wait for because another group's record still has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bizrq.hours.metering import Interval, RecordPage
from bizrq.units.slot import Slot
from controller.hours.allocations import ClaimUser
from controller.hours.metered_names import MeteredNames
from controller.hours.record_store import RecordStore, StoredPage
from controller.watch.time_slice import Yielder


@dataclass(slots=True)
class CollectedIntervals:
    """One consistent snapshot of the intervals that a group pays for, at the time `at` in milliseconds.

    `seen` has the revisions of pods and claims that it shows, `finished` the keys of finished intervals in it.
    """

    intervals: dict[str, Interval] = field(default_factory=dict)
    at: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    #: Groups whose records still have intervals that run for this one.
    awaited: set[str] = field(default_factory=set)
    #: Pods that are charged though their workload is gone, as text.
    unowned: list[str] = field(default_factory=list)
    #: Slots and uids of objects that were released while no controller watched. The record says whose they were.
    released: list[tuple[Slot, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The intervals of a group's record by uid or allocation, with their page."""

    stored_pages: Sequence[StoredPage]
    pages: Mapping[str, StoredPage]
    allocations: Sequence[str]
    #: Uids of intervals of which the record has a segment. They may have come back since.
    split: frozenset[str]

    @classmethod
    async def of(cls, stored_pages: Sequence[StoredPage], yielder: Yielder) -> RecordIndex:
        """Index all pages of a record."""
        pages: dict[str, StoredPage] = {}
        for stored_page in stored_pages:
            pages.update(dict.fromkeys(uids_of(stored_page.page), stored_page))
            await yielder.yield_if_due()
        allocations = [key for key in pages if "@" in key]
        split = frozenset(segment.uid for stored_page in stored_pages for segment in stored_page.page.split)
        await yielder.yield_if_due()
        return cls(stored_pages, pages, allocations, split)

    @property
    def seen(self) -> Mapping[str, int]:
        """Return the revisions of pods and claims that the record has seen, by `plural.group`."""
        return next((stored_page.seen for stored_page in self.stored_pages if not stored_page.spec.page), None) or {}


@dataclass(slots=True)
class Collection:
    """A collection in progress."""

    group: str
    record: RecordIndex
    names: MeteredNames
    found: CollectedIntervals = field(default_factory=CollectedIntervals)
    #: The pods of the group that may have claims, by uid.
    with_claims: dict[str, ClaimUser] = field(default_factory=dict)


class HandOver:
    """Decides when an interval that another group's record still has begins in this group."""

    def __init__(self, record_store: RecordStore) -> None:
        self._record_store = record_store

    def start_in(self, collection: Collection, key: str, start: int) -> int | None:
        """Return when an interval begins in the group. None while another group's record still runs it.

        That group is added to `awaited` then.
        """
        stored_page = self._record_store.page_elsewhere(key, collection.group)
        if stored_page is None:
            return start
        until = [segment.until for segment in stored_page.page.split if segment.uid == key]
        if not until or any(key in since for since in stored_page.page.running.values()):
            collection.found.awaited.add(stored_page.spec.group)
            return None
        return max(start, *until)

    def is_awaited(self, key: str, payer: str | None, group: str) -> bool:
        """Return True if the payer's record has yet to take over an interval that left the group."""
        if payer is None or payer == group:
            return False
        return self._record_store.page_elsewhere(key, group) is None and self._record_store.has(payer)


def uids_of(page: RecordPage) -> Iterable[str]:
    """Yield the keys of all intervals that a page knows: running, split off, and finished."""
    for since in page.running.values():
        yield from since
    yield from (segment.uid for segment in page.split)
    yield from page.finished
