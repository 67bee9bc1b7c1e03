"""How many statements stay: of each group those of its last periods.

This file alone decides which go, and when somebody looks. What a record has not closed itself is never among them: its
statement may be all that is left of it where its writer died. The totals of what goes stay in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog

from bizrq.api import hours as wire
from bizrq.hours.metering import Page
from bizrq.kube.client import KubeClient, NotFound
from bizrq.store.hours import STATEMENTS
from bizrq.units.times import milliseconds

log = structlog.get_logger(__name__)


class Retention:
    """Counts the periods of each group that have statements, so that few of them have to be listed."""

    def __init__(self, client: KubeClient, keep: int) -> None:
        """`keep` is a number of periods, 0 for all."""
        self._client = client
        self._keep = keep
        self._counts: dict[str, int] = {}

    def forget(self, group: str) -> None:
        self._counts.pop(group, None)

    async def moved(self, group: str, before: Page, after: Sequence[Page]) -> None:
        """Delete what is too many, now that the group's record has closed a period. Raises ApiError, Unreachable."""
        if not self._keep or before.periods[0].period.start == after[0].periods[0].period.start:
            return
        known = self._counts.get(group)
        if known is not None and known < self._keep + self._keep // 10:
            self._counts[group] = known + 1
            return
        found, _ = await self._client.list(
            STATEMENTS, label_selector=f"{wire.GROUP_LABEL}={group}", transform=_name_and_end
        )
        closed = min(page.periods[0].period.start or 0 for page in after)
        ends = sorted({each["end"] for each in found}, reverse=True)
        going = {end for end in ends[self._keep :] if end <= closed}
        for each in found:
            if each["end"] in going:
                # Another controller may have deleted it, or a person.
                with suppress(NotFound):
                    await self._client.delete(STATEMENTS, each["name"])
        self._counts[group] = len(ends) - len(going)
        if going:
            log.info("old statements deleted", group=group, periods=len(going), kept=self._counts[group])


def _name_and_end(obj: dict[str, Any]) -> dict[str, Any]:
    return {"name": obj["metadata"]["name"], "end": milliseconds(obj["spec"]["end"])}
