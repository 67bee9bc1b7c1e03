"""Writes of a record's pages and of the statements of its closed periods.

This file alone decides when a page is written, that several pages are signed before any of them changes, and that the
statement of a period is stored before the period is dropped from its page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bizrq.api import hours as wire
from bizrq.api.group import GroupObject
from bizrq.hours import metering
from bizrq.hours.metering import RecordPage
from controller.hours.collected import CollectedIntervals
from controller.hours.record_store import RecordStore, StoredPage
from controller.watch.time_slice import Yielder


class PageWriter:
    """Writes pages that changed, and pages with running intervals every `interval` milliseconds."""

    def __init__(self, record_store: RecordStore, *, identity: str, cash_interval: float = 60.0) -> None:
        """`identity` names this controller in pages that it signs. `cash_interval` is in seconds."""
        self._record_store = record_store
        self._identity = identity
        self.interval = int(cash_interval * 1000)

    async def sign(self, group: GroupObject, stored_pages: Sequence[StoredPage]) -> list[StoredPage]:
        """Return the pages. Of several, each is first written with our identity: another controller's writes then fail.

        Creates a page that was announced and not created. Raises ApiError, Unreachable.
        """
        if stored_pages[0].pages == 1:
            return list(stored_pages)
        numbers = {stored_page.spec.page: stored_page for stored_page in stored_pages}
        signed: list[StoredPage] = []
        for number in range(stored_pages[0].pages):
            stored_page = numbers.get(number) or await self._record_store.create(group, number)
            if stored_page.writer != self._identity:
                stored_page = await self._record_store.write(stored_page, stored_page.page, writer=self._identity)
            signed.append(stored_page)
        return signed

    async def add_page(self, group: GroupObject, stored_pages: Sequence[StoredPage]) -> None:
        """Announce one more page, then create it. Raises ApiError, Unreachable."""
        await self._record_store.write(
            stored_pages[0], stored_pages[0].page, pages=len(stored_pages) + 1, writer=self._identity
        )
        await self._record_store.create(group, len(stored_pages))

    async def write(
        self, stored_pages: Sequence[StoredPage], moved: list[RecordPage], collected: CollectedIntervals
    ) -> None:
        """Write what has changed or is due: statements first, the first page last. Replaces pages in `moved`.

        The first page says which deletions are known, so it is written whenever any other page changed. Raises
        ApiError, Unreachable, HoursUnreadable.
        """
        changed, yielder = False, Yielder()
        for index in reversed(range(len(stored_pages))):
            await yielder.yield_if_due()
            stored_page = stored_pages[index]
            page = moved[index] = await self._close_periods(stored_page, moved[index], collected.at)
            runs = bool(page.running or page.split)
            due = runs and collected.at - stored_page.page.watermark >= self.interval
            # A period that has begun is written though nothing runs.
            differs = (
                replace(page, watermark=stored_page.page.watermark) != stored_page.page
                or page.open.period != stored_page.page.open.period
            )
            changed = changed or differs
            if due or (changed if index == 0 else differs):
                await self._record_store.write(stored_page, page, seen=collected.seen)

    async def _close_periods(self, stored_page: StoredPage, page: RecordPage, now: int) -> RecordPage:
        """Return the page without the periods that may be closed. Their statements are stored first."""
        while metering.may_close(page, now):
            totals = page.periods[0]
            statement = wire.statement(
                stored_page.spec, page, metering.with_running(page, totals), totals.period.end or 0
            )
            stated = await self._record_store.find_statement(statement.metadata.name)
            if stated is None:
                await self._record_store.write_statement(statement)
            page, _ = metering.close_period(page, wire.period_totals(stated.spec) if stated is not None else None)
        return page

    async def write_final_statements(self, stored_pages: Iterable[StoredPage], parent: str = "") -> None:
        """Write a statement of each open period with hours, up to the page's watermark.

        `parent` is the group that takes over the hours. Raises ApiError, Unreachable, HoursUnreadable.
        """
        for stored_page in stored_pages:
            for totals in stored_page.page.periods:
                found = metering.with_running(stored_page.page, totals)
                end = min(totals.period.end or stored_page.page.watermark, stored_page.page.watermark)
                statement = wire.statement(stored_page.spec, stored_page.page, found, end, parent)
                if not any(found.total().values()) or await self._record_store.find_statement(statement.metadata.name):
                    continue
                await self._record_store.write_statement(statement)
