"""The end of a record: its last statements, the transfer of its hours to the parent, and the finalizer of its group.

This file alone decides the order of these steps: statements, transfer, removal, finalizer. So a controller that stops
between any two of them neither loses nor repeats an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.hours import metering
from bizrq.hours.metering import ClosedPeriod, RecordPage
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS, GroupStore
from controller.hours.page_writer import PageWriter
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.tree_calendar import TreeCalendar

log = structlog.get_logger(__name__)

_READ = 5.0


class RecordTransfer:
    """Ends records of deleted groups, and keeps a group with a record until its record is ended."""

    def __init__(
        self,
        client: KubeClient,
        groups: GroupStore,
        record_store: RecordStore,
        calendar: TreeCalendar,
        writer: PageWriter,
        enqueue: Callable[[str, float], None],
    ) -> None:
        self._client = client
        self._groups = groups
        self._record_store = record_store
        self._calendar = calendar
        self._writer = writer
        self._enqueue = enqueue

    async def transfer_to_parent(self, group: GroupObject) -> None:
        """Write a deleted group's last statements, transfer its hours to its parent once, and remove the finalizer."""
        stored_pages = self._record_store.of(group.name)
        own = [stored_page for stored_page in stored_pages if stored_page.spec.uid == group.metadata.uid]
        await self._writer.write_final_statements(own, group.parent)
        if own and group.parent:
            await self._add_to_parent(group, [stored_page.page for stored_page in own])
        for stored_page in sorted(own, key=lambda each: -each.spec.page):
            await self._record_store.remove(stored_page)
        await self._set_finalizers(group, [f for f in group.metadata.finalizers if f != wire.FINALIZER])

    async def close_orphaned(self, stored_pages: Sequence[StoredPage]) -> None:
        """Close a record whose group was deleted by force and whose name another group has now."""
        await self._writer.write_final_statements(stored_pages)
        for stored_page in stored_pages:
            log.warning("record of a deleted group removed", group=stored_page.spec.group, page=stored_page.name)
            await self._record_store.remove(stored_page)

    async def add_finalizer(self, group: GroupObject) -> None:
        """Keep a group with a record until its statements are written and its hours are transferred."""
        await self._set_finalizers(group, [*group.metadata.finalizers, wire.FINALIZER])
        await self._groups.read(group.name, _READ)

    async def _add_to_parent(self, group: GroupObject, pages: Sequence[RecordPage]) -> None:
        parent = await self._groups.read(group.parent, _READ)
        if parent is None:
            return
        periods = {period.start: period for page in pages for period in page.calendar}
        totals = [ClosedPeriod(period, metering.spent_beyond_carried(pages, period)) for period in periods.values()]
        totals = [total for total in totals if any(total.amounts.values())]
        stored_pages = self._record_store.of(parent.name)
        if not totals or any(group.metadata.uid in stored_page.page.inherited for stored_page in stored_pages):
            return
        if stored_pages:
            first, page = stored_pages[0], stored_pages[0].page
        else:
            if wire.FINALIZER not in parent.metadata.finalizers:
                await self.add_finalizer(parent)
            first = await self._record_store.create(parent, 0)
            page = self._calendar.first_page(parent)
        await self._record_store.write(first, metering.inherit(page, group.metadata.uid, group.name, totals))
        self._enqueue(parent.name, 0.0)

    async def _set_finalizers(self, group: GroupObject, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": group.metadata.resource_version, "finalizers": finalizers}
        await self._client.patch(GROUPS, group.name, {"metadata": metadata})
