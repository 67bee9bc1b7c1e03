"""The records of card-hours as they are stored: pages by group, newest known first-hand, and guarded writes of them.

This file alone decides which version of a page counts as the newest known, and what becomes of a write that meets
another's. What stands in a page is `bizrq.hours.metering`'s, how it reads `bizrq.api.hours`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from bizrq.api import hours as wire
from bizrq.api.group import GroupObject, Metadata
from bizrq.api.hours import CardHours, CardHoursSpec, CardHoursStatus, HoursUnreadable, Statement
from bizrq.hours.metering import Page
from bizrq.kube.client import AlreadyExists, Conflict, KubeClient, NotFound
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.hours import CARD_HOURS, STATEMENTS

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_TIMEOUT = 10.0
_encoder = msgspec.json.Encoder()


class _Written(msgspec.Struct):
    """What is read of the answer to a write: we know what we wrote."""

    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Sheet:
    """One stored page of a group: what only the shell knows of it, and what it says."""

    name: str
    revision: int
    spec: CardHoursSpec
    page: Page
    pages: int = 1
    writer: str = ""
    #: The revisions of pods and claims that it knows of, by `plural.group`.
    seen: Mapping[str, int] | None = None
    uid: str = ""


class Books:
    """All pages, by group. Writes teach it newer versions than the watch has brought."""

    def __init__(self, client: KubeClient, on_change: Callable[[str], None]) -> None:
        """`on_change` is told the group of a page that somebody else has changed."""
        self._client = client
        self._told = on_change
        self._sheets: dict[str, dict[str, Sheet]] = {}
        #: Pages that cannot be read, by group: what is wrong with each, by name.
        self._unreadable: dict[str, dict[str, str]] = {}
        #: In which page each uid was last seen to run. What is over is looked up in vain.
        self._places: dict[str, tuple[str, str]] = {}
        self._most_places = 10_000
        self.informer = Informer(
            client,
            CARD_HOURS,
            on_change=self.changed,
            on_time_travel=self._start_over,
            transform=without_managed_fields,
        )

    def of(self, group: str) -> list[Sheet]:
        """The pages of a group's record, in their order. Raises HoursUnreadable."""
        for problem in self._unreadable.get(group, {}).values():
            raise HoursUnreadable(problem)
        return sorted(self._sheets.get(group, {}).values(), key=lambda sheet: sheet.spec.page)

    def has(self, group: str) -> bool:
        return group in self._sheets or group in self._unreadable

    def revision(self, group: str) -> int:
        """The newest revision that a page of this group is known at."""
        return max((sheet.revision for sheet in self._sheets.get(group, {}).values()), default=0)

    def elsewhere(self, uid: str, group: str) -> Sheet | None:
        """The page of another group in which a stay runs, or of which a part of it was split off."""
        place = self._places.get(uid)
        if place is None or place[0] == group:
            return None
        sheet = self._sheets.get(place[0], {}).get(place[1])
        return sheet if sheet is not None and _has(sheet.page, uid) else None

    async def read(self, group: str, name: str) -> None:
        """Have the page at hand as it is stored now. Raises ApiError, Unreachable."""
        try:
            self._learn(await self._client.get(CARD_HOURS, name))
        except NotFound:
            self._forget(group, name)

    async def create(self, group: GroupObject, number: int, writer: str = "") -> Sheet:
        """A page of a group's record that says nothing yet. Raises ApiError, Unreachable; Conflict if it is there."""
        name = f"{group.name}.{number}.{group.metadata.uid[:8]}" if number else group.name
        spec = CardHoursSpec(group.name, group.metadata.uid, number)
        metadata = Metadata(name=name, labels={wire.GROUP_LABEL: group.name})
        try:
            made = await self._client.create(CARD_HOURS, wire.plain(CardHours(metadata, spec)), timeout=_TIMEOUT)
        except AlreadyExists:
            await self.read(group.name, name)
            raise Conflict(409, "AlreadyExists", f"{name} was made by another") from None
        metadata = made["metadata"]
        sheet = Sheet(name, int(metadata["resourceVersion"]), spec, Page(), writer=writer, uid=metadata["uid"])
        return self._know(sheet)

    async def write(self, sheet: Sheet, page: Page, **shell: Any) -> Sheet:
        """The page after a write that succeeds only on the version that was decided on.

        Raises Conflict, having read what is there, besides the other ApiErrors, and Unreachable, after which nobody
        knows whether it was written: then it is read before the next write.
        """
        after = replace(sheet, page=page, **shell)
        path = CARD_HOURS.path(name=sheet.name, subresource="status")
        try:
            body = await self._client.request("PUT", path, body=_encoder.encode(_object(after)), timeout=_TIMEOUT)
        except Conflict:
            await self.read(sheet.spec.group, sheet.name)
            raise
        except NotFound:
            self._forget(sheet.spec.group, sheet.name)
            raise
        return self._know(
            replace(after, revision=int(msgspec.json.decode(body, type=_Written).metadata.resource_version))
        )

    async def remove(self, sheet: Sheet) -> None:
        """Raises Conflict if it has changed, besides the other ApiErrors, and Unreachable."""
        try:
            await self._client.delete(CARD_HOURS, sheet.name, resource_version=str(sheet.revision))
        except NotFound:
            pass
        except Conflict:
            await self.read(sheet.spec.group, sheet.name)
            raise
        self._forget(sheet.spec.group, sheet.name)

    async def stated(self, name: str) -> Statement | None:
        """The statement of this name, where it is written already. Raises ApiError, Unreachable, HoursUnreadable."""
        try:
            return wire.statement_of(await self._client.get(STATEMENTS, name))
        except NotFound:
            return None

    async def state(self, statement: Statement) -> None:
        """Write a statement; Conflict where another wrote it meanwhile. Raises the other ApiErrors, Unreachable."""
        try:
            await self._client.create(STATEMENTS, wire.plain(statement), timeout=_TIMEOUT)
        except AlreadyExists:
            raise Conflict(409, "AlreadyExists", f"{statement.metadata.name} was written by another") from None

    def changed(self, old: Object | None, new: Object | None) -> None:
        """What the watch brought; what we wrote ourselves is no news."""
        changed = new or old
        if changed is None:
            return
        name, group = changed["metadata"]["name"], (changed.get("spec") or {}).get("group", "")
        known = self._sheets.get(group, {}).get(name)
        if new is None:
            if known is None or known.uid not in ("", changed["metadata"]["uid"]):
                return
            self._forget(group, name)
        elif known is not None and known.revision >= int(new["metadata"]["resourceVersion"]):
            return
        else:
            self._learn(new)
        self._told(group)

    def _start_over(self, before: int, now: int) -> None:
        """The API server's store was restored to an older state: what was newer than that never was."""
        self._sheets.clear()
        self._unreadable.clear()
        self._places.clear()
        for obj in self.informer.store.values():
            self._learn(obj)

    def _learn(self, obj: Object) -> None:
        group, name = (obj.get("spec") or {}).get("group", ""), obj["metadata"]["name"]
        try:
            record = wire.record_of(obj)
            status = record.status
            seen = {kind: wire.integer(text) for kind, text in status.seen.items()}
            sheet = Sheet(
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
            self._sheets.get(group, {}).pop(name, None)
            self._unreadable.setdefault(group, {})[name] = str(error)
            return
        known = self._sheets.get(group, {}).get(name)
        if known is None or known.revision <= sheet.revision:
            self._know(sheet)

    def _know(self, sheet: Sheet) -> Sheet:
        group = sheet.spec.group
        unreadable = self._unreadable.get(group, {})
        unreadable.pop(sheet.name, None)
        if not unreadable:
            self._unreadable.pop(group, None)
        known = self._sheets.setdefault(group, {}).get(sheet.name)
        place = group, sheet.name
        for rate, since in sheet.page.running.items():
            if known is None or known.page.running.get(rate) is not since:
                self._places.update(dict.fromkeys(since, place))
        self._sheets[group][sheet.name] = sheet
        if len(self._places) > self._most_places:
            self._places = {uid: at for uid, at in self._places.items() if self._still(uid, at)}
            self._most_places = 2 * len(self._places) + 10_000
        return sheet

    def _still(self, uid: str, place: tuple[str, str]) -> bool:
        sheet = self._sheets.get(place[0], {}).get(place[1])
        return sheet is not None and _has(sheet.page, uid)

    def _forget(self, group: str, name: str) -> None:
        for kept in (self._sheets, self._unreadable):
            found = kept.get(group, {})
            found.pop(name, None)
            if not found:
                kept.pop(group, None)


def _has(page: Page, uid: str) -> bool:
    return any(uid in since for since in page.running.values()) or any(part.uid == uid for part in page.split)


def _object(sheet: Sheet) -> CardHours:
    status: CardHoursStatus = wire.status_of(sheet.page)
    status.pages, status.writer = sheet.pages, sheet.writer
    status.seen = {kind: str(revision) for kind, revision in sorted((sheet.seen or {}).items())}
    labels = {wire.GROUP_LABEL: sheet.spec.group}
    metadata = Metadata(name=sheet.name, uid=sheet.uid, resource_version=str(sheet.revision), labels=labels)
    return CardHours(metadata, sheet.spec, status)
