"""The stored records of card-hours: the newest known pages of each group, and guarded writes of them.

This file alone decides which version of a page is the newest known, and how a conflicting write is handled.
`bizrq.hours.metering` decides what a page contains, `bizrq.api.hours` how it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from bizrq.api import hours as wire
from bizrq.api.group import GroupObject, ObjectMeta
from bizrq.api.hours import CardHours, CardHoursSpec, CardHoursStatus, HoursUnreadable, Statement
from bizrq.hours.metering import RecordPage
from bizrq.kube.client import AlreadyExists, Conflict, KubeClient, NotFound
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.hours import CARD_HOURS, STATEMENTS

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_TIMEOUT = 10.0
_encoder = msgspec.json.Encoder()


class _Written(msgspec.Struct):
    """The part of a write's response that is decoded."""

    metadata: ObjectMeta


@dataclass(frozen=True, slots=True)
class StoredPage:
    """One stored page of a group: its identity and version, and its content in `page`."""

    name: str
    revision: int
    spec: CardHoursSpec
    page: RecordPage
    pages: int = 1
    writer: str = ""
    #: The revisions of pods and claims that the page includes, by `plural.group`.
    seen: Mapping[str, int] | None = None
    uid: str = ""


class RecordStore:
    """All pages, by group. Own writes are known before the watch brings them."""

    def __init__(self, client: KubeClient, on_change: Callable[[str], None]) -> None:
        """`on_change` is called with the group of a page that another writer changed."""
        self._client = client
        self._on_change = on_change
        self._stored_pages: dict[str, dict[str, StoredPage]] = {}
        #: The problems of pages that cannot be read, by group and name.
        self._unreadable: dict[str, dict[str, str]] = {}
        #: The page in which each uid last ran. May have entries of finished intervals.
        self._places: dict[str, tuple[str, str]] = {}
        self._most_places = 10_000
        self.informer = Informer(
            client,
            CARD_HOURS,
            on_change=self.on_change,
            on_rollback=self._start_over,
            transform=without_managed_fields,
        )

    def of(self, group: str) -> list[StoredPage]:
        """Return the pages of a group's record in order. Raises HoursUnreadable."""
        for problem in self._unreadable.get(group, {}).values():
            raise HoursUnreadable(problem)
        return sorted(self._stored_pages.get(group, {}).values(), key=lambda each: each.spec.page)

    def pages(self, group: str) -> list[RecordPage]:
        """Return the content of the pages in order. Raises HoursUnreadable."""
        return [stored_page.page for stored_page in self.of(group)]

    def has(self, group: str) -> bool:
        """Return True if the group has a record, readable or not."""
        return group in self._stored_pages or group in self._unreadable

    def revision(self, group: str) -> int:
        """Return the newest known revision of the group's pages; 0 without pages."""
        return max((stored_page.revision for stored_page in self._stored_pages.get(group, {}).values()), default=0)

    def page_elsewhere(self, uid: str, group: str) -> StoredPage | None:
        """Return the page of another group in which an interval runs, or that has a segment of it."""
        place = self._places.get(uid)
        if place is None or place[0] == group:
            return None
        stored_page = self._stored_pages.get(place[0], {}).get(place[1])
        return stored_page if stored_page is not None and _has(stored_page.page, uid) else None

    async def read(self, group: str, name: str) -> None:
        """Read a page from the API server. Raises ApiError, Unreachable."""
        try:
            self._learn(await self._client.get(CARD_HOURS, name))
        except NotFound:
            self._forget(group, name)

    async def create(self, group: GroupObject, number: int, writer: str = "") -> StoredPage:
        """Create an empty page of a group's record. Raises ApiError, Unreachable; Conflict if it exists."""
        name = wire.page_name(group.name, group.metadata.uid, number)
        spec = CardHoursSpec(group.name, group.metadata.uid, number)
        metadata = ObjectMeta(name=name, labels={wire.GROUP_LABEL: group.name})
        try:
            made = await self._client.create(CARD_HOURS, wire.to_json(CardHours(metadata, spec)), timeout=_TIMEOUT)
        except AlreadyExists:
            await self.read(group.name, name)
            raise Conflict(409, "AlreadyExists", f"{name} was made by another") from None
        metadata = made["metadata"]
        stored_page = StoredPage(
            name, int(metadata["resourceVersion"]), spec, RecordPage(), writer=writer, uid=metadata["uid"]
        )
        return self._know(stored_page)

    async def write(self, stored_page: StoredPage, page: RecordPage, **shell: Any) -> StoredPage:
        """Write a page on the version that it was computed from, and return it. `shell` replaces fields of StoredPage.

        Raises Conflict after reading the stored version, other ApiErrors, and Unreachable. After Unreachable the write
        may have happened: the next write then conflicts and reads.
        """
        after = replace(stored_page, page=page, **shell)
        path = CARD_HOURS.path(name=stored_page.name, subresource="status")
        try:
            body = await self._client.request("PUT", path, body=_encoder.encode(_object(after)), timeout=_TIMEOUT)
        except Conflict:
            await self.read(stored_page.spec.group, stored_page.name)
            raise
        except NotFound:
            self._forget(stored_page.spec.group, stored_page.name)
            raise
        return self._know(
            replace(after, revision=int(msgspec.json.decode(body, type=_Written).metadata.resource_version))
        )

    async def remove(self, stored_page: StoredPage) -> None:
        """Delete a page. Raises Conflict if it has changed, other ApiErrors, Unreachable."""
        try:
            await self._client.delete(CARD_HOURS, stored_page.name, resource_version=str(stored_page.revision))
        except NotFound:
            pass
        except Conflict:
            await self.read(stored_page.spec.group, stored_page.name)
            raise
        self._forget(stored_page.spec.group, stored_page.name)

    async def find_statement(self, name: str) -> Statement | None:
        """Return the statement of this name if it is stored. Raises ApiError, Unreachable, HoursUnreadable."""
        try:
            return wire.statement_of(await self._client.get(STATEMENTS, name))
        except NotFound:
            return None

    async def write_statement(self, statement: Statement) -> None:
        """Create a statement. Raises Conflict if another controller created it, other ApiErrors, Unreachable."""
        try:
            await self._client.create(STATEMENTS, wire.to_json(statement), timeout=_TIMEOUT)
        except AlreadyExists:
            raise Conflict(409, "AlreadyExists", f"{statement.metadata.name} was written by another") from None

    def on_change(self, old: Object | None, new: Object | None) -> None:
        """Handle a change from the watch. Own writes are known already and cause no call of `on_change`."""
        changed = new or old
        if changed is None:
            return
        name, group = changed["metadata"]["name"], (changed.get("spec") or {}).get("group", "")
        known = self._stored_pages.get(group, {}).get(name)
        if new is None:
            if known is None or known.uid not in ("", changed["metadata"]["uid"]):
                return
            self._forget(group, name)
        elif known is not None and known.revision >= int(new["metadata"]["resourceVersion"]):
            return
        else:
            self._learn(new)
        self._on_change(group)

    def _start_over(self, before: int, now: int) -> None:
        """Drop all pages and read the informer's: the API server's store was restored to an older revision."""
        self._stored_pages.clear()
        self._unreadable.clear()
        self._places.clear()
        for obj in self.informer.store.values():
            self._learn(obj)

    def _learn(self, obj: Object) -> None:
        group, name = (obj.get("spec") or {}).get("group", ""), obj["metadata"]["name"]
        try:
            record = wire.record_of(obj)
            status = record.status
            seen = {kind: wire.parse_integer(text) for kind, text in status.seen.items()}
            stored_page = StoredPage(
                name,
                int(record.metadata.resource_version),
                record.spec,
                wire.page_of(record),
                status.pages,
                status.writer,
                seen,
                record.metadata.uid,
            )
        except HoursUnreadable as error:
            log.error("record cannot be read", group=group, error=str(error))
            self._stored_pages.get(group, {}).pop(name, None)
            self._unreadable.setdefault(group, {})[name] = str(error)
            return
        known = self._stored_pages.get(group, {}).get(name)
        if known is None or known.revision <= stored_page.revision:
            self._know(stored_page)

    def _know(self, stored_page: StoredPage) -> StoredPage:
        group = stored_page.spec.group
        unreadable = self._unreadable.get(group, {})
        unreadable.pop(stored_page.name, None)
        if not unreadable:
            self._unreadable.pop(group, None)
        known = self._stored_pages.setdefault(group, {}).get(stored_page.name)
        place = group, stored_page.name
        for rate, since in stored_page.page.running.items():
            if known is None or known.page.running.get(rate) is not since:
                self._places.update(dict.fromkeys(since, place))
        self._stored_pages[group][stored_page.name] = stored_page
        if len(self._places) > self._most_places:
            self._places = {uid: at for uid, at in self._places.items() if self._still(uid, at)}
            self._most_places = 2 * len(self._places) + 10_000
        return stored_page

    def _still(self, uid: str, place: tuple[str, str]) -> bool:
        stored_page = self._stored_pages.get(place[0], {}).get(place[1])
        return stored_page is not None and _has(stored_page.page, uid)

    def _forget(self, group: str, name: str) -> None:
        for kept in (self._stored_pages, self._unreadable):
            found = kept.get(group, {})
            found.pop(name, None)
            if not found:
                kept.pop(group, None)


def _has(page: RecordPage, uid: str) -> bool:
    return any(uid in since for since in page.running.values()) or any(segment.uid == uid for segment in page.split)


def _object(stored_page: StoredPage) -> CardHours:
    status: CardHoursStatus = wire.status_of(stored_page.page)
    status.pages, status.writer = stored_page.pages, stored_page.writer
    status.seen = {kind: str(revision) for kind, revision in sorted((stored_page.seen or {}).items())}
    labels = {wire.GROUP_LABEL: stored_page.spec.group}
    metadata = ObjectMeta(
        name=stored_page.name, uid=stored_page.uid, resource_version=str(stored_page.revision), labels=labels
    )
    return CardHours(metadata, stored_page.spec, status)
