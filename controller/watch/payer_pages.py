"""The stored pages of the records of payers: the newest known of each group, and guarded writes of them.

This file alone decides which version of a page is the newest known, which line counts where several pages have one of a
payer, and what is wrong with a record. `bizrq.workloads.ownership.pages` decides which page a line goes to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from bizrq.api import payers as wire
from bizrq.api.group import GroupObject
from bizrq.api.payers import PayersRecordUnreadable, PayersStatus
from bizrq.kube.client import AlreadyExists, Conflict, KubeClient, NotFound
from bizrq.store.payers import PAYERS
from bizrq.workloads.ownership.memory import (
    NO_LINES,
    KnownLines,
    Memory,
    PayersUnreadable,
    is_later,
    parse_payer,
    parse_payers,
    payer_lines,
)
from bizrq.workloads.ownership.pages import MAX_LINES, Page
from bizrq.workloads.ownership.runs_on import RunsOn, problem_of, readable, runs_on_lines

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class StoredPayersPage:
    """One page as it is stored. `problem` says why it cannot be trusted as a whole; "" if it can."""

    name: str
    uid: str
    revision: int
    number: int
    group_uid: str
    page: Page
    counted_at: Mapping[str, str]
    problem: str = ""
    #: The lines of the page's payers; none if there is a problem.
    known: KnownLines = NO_LINES


class GroupPages:
    """The pages of the record of one group, and what they say together."""

    def __init__(self, group_uid: str = "") -> None:
        self.group_uid = group_uid
        self._stored: dict[int, StoredPayersPage] = {}
        self.payers: dict[str, Memory] = {}
        #: The numbers of the pages that have a line of each payer, that of the line that counts last.
        self.places: dict[str, tuple[int, ...]] = {}
        self.runs_on: dict[str, RunsOn] = {}
        #: By kind: the newest revision that any of the pages was counted from.
        self.counted_at: dict[str, int] = {}
        self.revision = 0
        self.problem = ""
        #: True where a page has more lines than it gets, as that of an older version of bizrq.
        self.is_long = False

    def __bool__(self) -> bool:
        return bool(self._stored)

    @property
    def by_number(self) -> Mapping[int, StoredPayersPage]:
        return self._stored

    def put(self, page: StoredPayersPage) -> Collection[str]:
        """Replace a page, and return the uids of which the record says something else now."""
        before = self._stored.get(page.number)
        self._stored[page.number] = page
        self.revision = max(self.revision, page.revision)
        for kind, text in page.counted_at.items():
            self.counted_at[kind] = max(self.counted_at.get(kind, 0), int(text) if text.isdecimal() else 0)
        return self._merge(before, page)

    def drop(self, number: int) -> Collection[str]:
        """Remove a page, and return the uids of which the record says something else now."""
        return self._merge(self._stored.pop(number, None), None)

    def _merge(self, before: StoredPayersPage | None, after: StoredPayersPage | None) -> Collection[str]:
        old, new = (page.page if page is not None else Page() for page in (before, after))
        changed = {uid for uid, memory in new.payers.items() if old.payers.get(uid) is not memory}
        changed.update(uid for uid in old.payers if uid not in new.payers)
        numbers = {page.number for page in (before, after) if page is not None}
        found = {uid for uid in changed if self._count(uid, {*self.places.get(uid, ()), *numbers})}
        if old.runs_on != new.runs_on:
            self.runs_on = {uid: pod for page in self._stored.values() for uid, pod in page.page.runs_on.items()}
        self.is_long = any(len(page.page) > MAX_LINES for page in self._stored.values())
        problems = (page.problem for page in self._stored.values() if page.problem)
        self.problem = next(problems, "")
        return found

    def _count(self, uid: str, numbers: Iterable[int]) -> bool:
        """Find the line that counts for a payer. Return True if that says something else than before."""
        known, counts = self.payers.get(uid), None
        places: list[int] = []
        for number in sorted(numbers):
            page = self._stored.get(number)
            memory = page.page.payers.get(uid) if page is not None else None
            if memory is None:
                continue
            if counts is None or not is_later(counts, memory):
                counts = memory
                places.append(number)
            else:
                places.insert(0, number)
        if counts is None:
            self.payers.pop(uid, None)
            self.places.pop(uid, None)
        else:
            self.payers[uid] = counts
            self.places[uid] = _single(places[0]) if len(places) == 1 else tuple(places)
        return known != counts


#: The tuples of one number, of which a record has as many as lines.
_SINGLE: dict[int, tuple[int, ...]] = {}


def _single(number: int) -> tuple[int, ...]:
    return _SINGLE.setdefault(number, (number,))


#: The record of a group that has none.
NO_PAGES = GroupPages()


class PayerPages:
    """All pages, by group. Own writes are known before the watch brings them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._groups: dict[str, GroupPages] = {}

    def of(self, group: str) -> GroupPages:
        """Return what is stored of a group. Do not change it."""
        return self._groups.get(group, NO_PAGES)

    def clear(self) -> None:
        self._groups.clear()

    def learn(self, obj: Object) -> Collection[str]:
        """Take over a page as the API server has it, unless a newer one is known. Return the uids that changed."""
        group = wire.group_of(obj)
        known = self.of(group)
        found = _stored(obj, known.by_number)
        before = known.by_number.get(found.number)
        if found.problem:
            log.error("record of payers cannot be read", group=group, page=found.name, error=found.problem)
        if known is NO_PAGES or (found.group_uid and found.group_uid != known.group_uid):
            # Another group had the name before.
            if known.revision > found.revision:
                return ()
            former, known = known, GroupPages(found.group_uid)
            self._groups[group] = known
            return {*former.payers, *known.put(found)}
        if before is not None and before.uid == found.uid and before.revision >= found.revision:
            return ()
        return known.put(found)

    def forget(self, group: str, uid: str) -> Collection[str]:
        """Drop the page with this uid, which is gone. Return the uids that changed."""
        pages = self.of(group)
        number = next((page.number for page in pages.by_number.values() if page.uid == uid), None)
        if number is None:
            return ()
        changed = pages.drop(number)
        if not pages:
            del self._groups[group]
        return changed

    async def create(self, group: GroupObject, number: int) -> Collection[str]:
        """Create an empty page. Return the uids that changed.

        Raise Conflict after reading a page that another controller created, other ApiErrors, and Unreachable.
        """
        page = wire.new_page(group.name, group.metadata.uid, number)
        changed = await self._remove_former(group)
        try:
            made = await self._client.create(PAYERS, wire.to_json(page), timeout=_TIMEOUT)
        except AlreadyExists:
            await self._read(group.name, page.metadata.name)
            raise Conflict(409, "AlreadyExists", f"{page.metadata.name} was made by another") from None
        return {*changed, *self.learn(made)}

    async def write(
        self, group: GroupObject, stored: StoredPayersPage, page: Page, counted_at: Mapping[str, str]
    ) -> Collection[str]:
        """Replace the lines of a page on the version that is known of it. Return the uids that changed.

        Raise Conflict after reading the stored page, other ApiErrors, and Unreachable.
        """
        obj = wire.new_page(group.name, group.metadata.uid, stored.number)
        obj.metadata.uid, obj.metadata.resource_version = stored.uid, str(stored.revision)
        lines, vanished = payer_lines(page.payers, stored.known), runs_on_lines(page.runs_on)
        obj.status = PayersStatus(lines, vanished, dict(counted_at))
        try:
            written = await self._client.replace(PAYERS, wire.to_json(obj), subresource="status")
        except Conflict:
            await self._read(group.name, stored.name)
            raise
        except NotFound:
            self.forget(group.name, stored.uid)
            raise
        return self.learn(written)

    async def _remove_former(self, group: GroupObject) -> Collection[str]:
        """Delete the first page of a group that had the name before. Return the uids that changed."""
        known = self.of(group.name)
        first = known.by_number.get(0)
        if first is None or known.group_uid == group.metadata.uid:
            return ()
        try:
            await self._client.delete(PAYERS, first.name, resource_version=str(first.revision))
        except NotFound:
            pass
        except Conflict:
            await self._read(group.name, first.name)
            raise
        return self.forget(group.name, first.uid)

    async def _read(self, group: str, name: str) -> None:
        try:
            self.learn(await self._client.get(PAYERS, name))
        except NotFound:
            known = (page.uid for page in self.of(group).by_number.values() if page.name == name)
            self.forget(group, next(known, ""))


def _stored(obj: Object, known: Mapping[int, StoredPayersPage]) -> StoredPayersPage:
    """Return a page as it is stored. Of one that cannot be read, the lines that can be."""
    metadata = obj["metadata"]
    name, uid, revision = metadata["name"], metadata["uid"], int(metadata["resourceVersion"])
    try:
        page = wire.from_dict(obj)
    except PayersRecordUnreadable as error:
        return StoredPayersPage(name, uid, revision, _number(obj), "", Page(), {}, f"{name}: {error}")
    group, lines, vanished = wire.group_of(obj), page.status.payers, page.status.vanished
    before = known.get(page.spec.page)
    problem = problem_of(vanished)
    try:
        payers = parse_payers(group, lines, before.known if before is not None else NO_LINES)
        as_known = KnownLines(dict(zip(payers, lines, strict=True)), payers)
    except PayersUnreadable as error:
        problem, payers, as_known = str(error), _readable(group, lines), NO_LINES
    if not page.group_uid:
        problem = f"it names no {group} as its owner"
    return StoredPayersPage(
        name,
        uid,
        revision,
        page.spec.page,
        page.group_uid,
        Page(payers, readable(vanished)),
        page.status.counted_at,
        problem and f"{name}: {problem}",
        as_known,
    )


def _number(obj: Object) -> int:
    spec = obj.get("spec")
    number = spec.get("page") if isinstance(spec, dict) else 0
    return number if isinstance(number, int) else 0


def _readable(group: str, lines: Collection[str]) -> dict[str, Memory]:
    """Return the lines that can be read, the first of each uid."""
    found: dict[str, Memory] = {}
    for line in lines:
        try:
            uid, memory = parse_payer(group, line)
        except PayersUnreadable:
            continue  # The page's problem names it.
        found.setdefault(uid, memory)
    return found
