"""Retention of statements: each group keeps those of its last periods.

This file alone decides which statements are deleted, and when they are listed. A period that the record has not closed
keeps its statement: if the writer stopped, it may be all that is left. Totals of deleted ones stay in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog

from bizrq.api import hours as wire
from bizrq.hours.metering import RecordPage
from bizrq.kube.client import KubeClient, NotFound
from bizrq.store.hours import STATEMENTS
from bizrq.units.times import parse_timestamp

log = structlog.get_logger(__name__)


class StatementRetention:
    """Counts the periods with statements of each group, so that statements are listed rarely."""

    def __init__(self, client: KubeClient, keep: int) -> None:
        """`keep` is a number of periods, 0 for all."""
        self._client = client
        self._keep = keep
        self._counts: dict[str, int] = {}

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        self._counts.pop(group, None)

    async def prune(self, group: str, before: RecordPage, after: Sequence[RecordPage]) -> None:
        """Delete the oldest statements after the group's record closed a period. Raises ApiError, Unreachable."""
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
    return {"name": obj["metadata"]["name"], "end": parse_timestamp(obj["spec"]["end"])}
