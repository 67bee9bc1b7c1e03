"""Corrections of card-hours: each becomes a line of its group's record once, and then is marked as applied.

This file alone decides which corrections a record still lacks. A watch may be behind, and another controller may have
applied one. So a correction that the record lacks is read again after the record, and the record's write decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import structlog

from bizrq.api import corrections as wire
from bizrq.api.corrections import CorrectionObject, CorrectionUnreadable
from bizrq.hours.metering import Correction
from bizrq.kube.client import ApiError, KubeClient, NotFound, Unreachable
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.hours import CORRECTIONS
from bizrq.units.names import Catalog
from bizrq.units.times import format_timestamp

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_READ = 5.0
#: Seconds until marking a correction as applied is retried.
_AGAIN = 5.0


class CorrectionTracker:
    """The corrections of all groups, as the informer has them."""

    def __init__(
        self,
        client: KubeClient,
        enqueue: Callable[[str, float], None],
        *,
        catalog: Catalog,
        now: Callable[[], int],
    ) -> None:
        self._client = client
        self._enqueue = enqueue
        self._catalog = catalog
        self._now = now
        self.informer = Informer(
            client, CORRECTIONS, on_change=self._changed, indexes={"group": _group}, transform=without_managed_fields
        )

    async def pending(self, group: str, applied: Collection[str]) -> list[Correction]:
        """Return the corrections that the informer does not show as applied.

        A correction that the record lacks is read again first, and left out if it is gone or applied by now. `applied`
        are the uids that the record has. Raises ApiError, Unreachable.
        """
        found: list[Correction] = []
        for obj in list(self.informer.store.index("group", group)):
            try:
                correction = wire.from_dict(obj)
                if correction.status.applied or not (
                    correction.metadata.uid in applied or await self._is_due(correction)
                ):
                    continue
                amounts = wire.amounts_of(correction, self._catalog)
            except CorrectionUnreadable as error:
                log.error("correction cannot be read", group=group, name=obj["metadata"]["name"], error=str(error))
                continue
            spec = correction.spec
            found.append(Correction(correction.metadata.uid, amounts, by=spec.by, reason=spec.reason))
        return found

    async def mark_applied(self, group: str, applied: Iterable[Correction]) -> None:
        """Mark corrections as applied once the record with them is stored. A failed write is retried later."""
        for correction in applied:
            obj = self.informer.store.by_uid(correction.uid)
            if obj is None:
                continue
            body = {"metadata": {"uid": correction.uid}, "status": {"applied": format_timestamp(self._now())}}
            try:
                await self._client.patch(CORRECTIONS, obj["metadata"]["name"], body, subresource="status")
            except NotFound:
                log.info("correction deleted after it was applied", uid=correction.uid)
            except (ApiError, Unreachable) as error:
                log.warning("correction not marked as applied, retrying", uid=correction.uid, error=str(error))
                self._enqueue(group, _AGAIN)

    async def _is_due(self, correction: CorrectionObject) -> bool:
        try:
            stored = await self._client.get(CORRECTIONS, correction.metadata.name, timeout=_READ)
        except NotFound:
            return False
        fresh = wire.from_dict(stored)
        return fresh.metadata.uid == correction.metadata.uid and not fresh.status.applied

    def _changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the group: a new correction has to be applied, and an applied or deleted one may be forgotten."""
        for group in _group(new or old or {}):
            self._enqueue(group, 0.0)


def _group(obj: Object) -> Iterable[str]:
    group = (obj.get("spec") or {}).get("group")
    return [group] if isinstance(group, str) else []
