"""Which versions of the stored objects a status was counted from, and whether the informers have caught up with them.

This file alone decides when the informers are too old to count a group.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

import structlog

from bizrq.api.group import GroupObject
from bizrq.kube.client import NotFound
from bizrq.store.hours import CARD_HOURS
from bizrq.store.payers import PAYERS
from controller.hours.record_store import RecordStore
from controller.watch.cluster import CATCH_UP, Cluster

log = structlog.get_logger(__name__)


class Freshness(Enum):
    """How the informers compare with the versions that a status was counted from."""

    CURRENT = "current"
    #: A watch is still behind: count later.
    BEHIND = "behind"
    #: The API server itself is older than the status: its store was restored.
    RESTORED = "restored"


class VersionTracker:
    """Compares the informers with the versions in `status.countedAt`."""

    def __init__(self, cluster: Cluster, record_store: RecordStore) -> None:
        self._cluster = cluster
        self._record_store = record_store

    def behind(self, group: GroupObject) -> dict[str, int]:
        """Return the kinds whose store is older than the group's status or payers, with the revision to reach."""
        stated = {kind: int(text) for kind, text in group.status.counted_at.items() if text.isdecimal()}
        for kind, counted in self._cluster.payers.recorded(group.name).counted_at.items():
            stated[kind] = max(counted, stated.get(kind, 0))
        return {
            kind: counted
            for kind, counted in stated.items()
            if (informer := self._cluster.informers.get(kind)) is not None
            and informer.store.resource_version < counted
            and informer.installed
        }

    async def catch_up(self, group: GroupObject) -> tuple[Freshness, str]:
        """Wait for the informers, and return how they compare with the group's status and for which kind.

        Raises ApiError, Unreachable.
        """
        for kind, counted in self.behind(group).items():
            informer = self._cluster.informers.get(kind)
            if informer is None:
                continue
            # Ask the API server first: to wait for a revision that never comes would block a worker for each group.
            with suppress(NotFound):
                if await self._cluster.client.revision(self._cluster.informers.resource(kind)) < counted:
                    log.error(
                        "the API server is older than the status",
                        group=group.name,
                        kind=kind,
                    )
                    return Freshness.RESTORED, kind
            if not await informer.catch_up(counted, CATCH_UP):
                return Freshness.BEHIND, kind
        return Freshness.CURRENT, ""

    def counted_at(self, name: str) -> dict[str, str]:
        """Return the revisions that a status is counted from now, by `plural.group`."""
        counted = {
            kind: str(informer.store.resource_version)
            for kind, informer in self._cluster.informers.counted_from.items()
            if informer.installed
        }
        # The watch may not have brought our own writes of the records yet.
        if (revision := self._cluster.payers.recorded(name).revision) > int(counted.get(PAYERS.key, revision)):
            counted[PAYERS.key] = str(revision)
        if self._record_store.has(name):
            counted[CARD_HOURS.key] = str(self._record_store.revision(name))
        return counted
