"""Take back what processes hold ahead of a group, and keep what they have noted by it (docs/reservations.md).

This file alone writes a status without its lines of allowances: for a refusal, an edit of the group, or the end of the
process that holds them. The controller drops those of processes that are gone.
"""

from __future__ import annotations

import asyncio

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.client import ApiError, Conflict, Unreachable
from bizrq.quota.allowance import Journal, JournalUnreadable, Line, fold, is_line_text, lines_of
from bizrq.quota.verdict import Denied, Reason
from bizrq.store.journals import JournalStore
from bizrq.store.ports import GroupWriter
from bizrq.units.names import Catalog
from bizrq.units.slot import ReservationError
from webhooks.charging.deadline import Deadline
from webhooks.charging.measures import Measures, Unmeasured
from webhooks.charging.notes import Notebook

log = structlog.get_logger(__name__)

#: Groups of which marked journals are remembered; those of others are marked again.
_FINAL = 256
#: Groups to which a process that ends hands its allowances back at a time.
_AT_ONCE = 8


class StillHeld(Exception):
    """What processes hold ahead of a group cannot be taken back now."""


class Recaller:
    """Takes the allowances of groups back; one for each process."""

    def __init__(
        self, store: GroupWriter, journals: JournalStore, *, catalog: Catalog, measures: Measures | None = None
    ) -> None:
        """`journals` are those of all processes."""
        self._store = store
        self._journals = journals
        self._catalog = catalog
        self._measures = measures or Unmeasured()
        #: By group: the journals that were marked for lines that are not dropped yet, by holder and epoch.
        self._final: dict[str, dict[tuple[str, int], Journal]] = {}

    async def recall_all(self, stored: GroupObject, deadline: Deadline) -> Denied | None:
        """Take back what processes hold ahead of a group that is to change; returns why that did not succeed."""
        if not has_lines(stored):
            return None
        while not deadline.is_over:
            try:
                known = await self._store.read(stored.name, deadline.seconds_left())
                if known is not None and has_lines(known):
                    known = await self.recall(known, deadline.seconds_left())
                    if has_lines(known):
                        raise StillHeld("the journals of some are gone")
            except Conflict:
                continue
            except (ApiError, Unreachable, StillHeld) as error:
                log.warning("allowances not recalled", group=stored.name, error=str(error))
                break
            else:
                return None
        return Denied(Reason.BUSY, f"quota {stored.name}: what processes hold ahead is not back yet: try again")

    async def hand_back(self, notebook: Notebook, deadline: Deadline) -> None:
        """Admit nothing more by the allowances of a notebook, and drop them, until the deadline.

        What is left then, the controller takes back once this process does not run any more.
        """
        await notebook.close()
        held = [group.name for group in self._store.values() if notebook.holds(group)]
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def of(group: str) -> bool:
            async with at_once:
                return await self._hand_back(notebook, group, deadline)

        done = await asyncio.gather(*map(of, held))
        log.info("allowances handed back", groups=sum(done), left=len(held) - sum(done))

    async def _hand_back(self, notebook: Notebook, group: str, deadline: Deadline) -> bool:
        """Return True once the group has no line of this process."""
        while not deadline.is_over:
            try:
                known = await self._store.read(group, deadline.seconds_left())
                if known is not None and notebook.holds(known):
                    await self.recall(known, deadline.seconds_left(), notebook.name)
            except Conflict:
                continue
            except (ApiError, Unreachable, StillHeld) as error:
                log.warning("allowance not handed back", group=group, error=str(error))
                break
            else:
                return True
        return False

    async def recall(self, stored: GroupObject, timeout: float, holder: str = "") -> GroupObject:
        """Drop all lines of this version of the group, or one holder's, and keep what is noted by them as entries.

        Returns the group as it was written. Raises StillHeld where none can be dropped, besides what writes of a status
        and of a journal raise.
        """
        try:
            entries = list(wire.account_of(stored, self._catalog).entries())
            lines = [line for line in lines_of(entries) if holder in ("", line.holder)]
            final = await self._finals(stored.name, lines)
        except (GroupUnreadable, ReservationError, JournalUnreadable) as error:
            raise StillHeld(str(error)) from None
        if not final:
            raise StillHeld("the journals are gone")
        for line in lines:
            if line.holder in final:
                entries, _ = fold(entries, line, final[line.holder].after(stored.name, line), noted=True)
        with self._measures.writing():
            made = await self._store.write_status(stored.name, wire.with_reservations(stored, entries), timeout)
        self._final.pop(stored.name, None)
        return made

    async def _finals(self, group: str, lines: list[Line]) -> dict[str, Journal]:
        """Mark the journals of these lines and return them by name, but for those that are gone.

        What a marked journal has noted is final. So a write that was too late for its version marks none again.
        """
        known = self._final.pop(group, {})
        final = {line.holder: known[key] for line in lines if (key := (line.holder, line.epoch)) in known}
        marked = await self._journals.recall(group, [line for line in lines if line.holder not in final])
        # Whoever writes the group next drops these lines, the controller among them.
        self._measures.recalled(len(marked))
        final |= marked
        self._final[group] = {(line.holder, line.epoch): final[line.holder] for line in lines if line.holder in final}
        while len(self._final) > _FINAL:
            del self._final[next(iter(self._final))]
        return final


def has_lines(stored: GroupObject) -> bool:
    """Return True where processes hold something ahead of a group."""
    return any(map(is_line_text, stored.status.reservations))
