"""The journals of webhook processes: what each has admitted by itself (docs/reservations.md, "Allowances").

This file alone knows how a journal is stored: in an annotation of a Lease of its own, which is written only from the
version that was read. It does not decide what is noted, nor what becomes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bizrq.api.guards import JOURNALS
from bizrq.kube.client import KubeClient, NotFound
from bizrq.kube.lease import LEASES
from bizrq.quota.allowance import Journal, JournalUnreadable, Line

#: The label that tells a journal from other Leases.
JOURNAL: Final = "quota.biz.group/journal"
_TEXT: Final = "bizrq.quota.biz.group/journal"
_NAME: Final = re.compile(re.escape(JOURNALS) + "[0-9a-z]{1,64}")
_RECALLED: Final = ".recalled.quota.biz.group"


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A journal as it is stored. `name` is that of its lines, `identity` that of its process."""

    name: str
    identity: str
    metadata: dict[str, Any]
    journal: Journal


@dataclass(frozen=True, slots=True)
class StoredJournals:
    """All journals at one revision of the API server, by name; `unreadable` are the names of the others."""

    revision: int
    by_name: dict[str, StoredJournal]
    unreadable: frozenset[str] = frozenset()


class JournalStore:
    """Reads and writes journals. Every method raises ApiError or Unreachable as the client does."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, identity: str) -> StoredJournal:
        """Store an empty journal under a name that no other process ever has."""
        name = JOURNALS + secrets.token_hex(8)
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {"app.kubernetes.io/name": "bizrq", JOURNAL: "true"},
        }
        return stored(await self._client.create(LEASES, _lease(metadata, identity, Journal())))

    async def read(self, name: str) -> StoredJournal | None:
        """Return a journal as it is stored now, None if it is gone. Raises JournalUnreadable."""
        try:
            return stored(await self._client.get(LEASES, name, self._namespace))
        except NotFound:
            return None

    async def list(self) -> StoredJournals:
        """Return all journals as they are stored now."""
        items, revision = await self._client.list(LEASES, self._namespace, label_selector=JOURNAL)
        found: dict[str, StoredJournal] = {}
        for item in items:
            with contextlib.suppress(JournalUnreadable):
                found[item["metadata"]["name"]] = stored(item)
        names = {item["metadata"]["name"] for item in items}
        return StoredJournals(int(revision), found, frozenset(names - found.keys()))

    async def write(self, old: StoredJournal, journal: Journal) -> StoredJournal:
        """Store a journal in place of the version that was read; raises Conflict where that is not the stored one.

        One that is gone is not created again: the write names its uid. After Unreachable the outcome is unknown.
        """
        return stored(await self._client.replace(LEASES, _lease(old.metadata, old.identity, journal)))

    async def delete(self, old: StoredJournal) -> None:
        """Delete a journal if it still is as it was read; raises Conflict otherwise."""
        metadata = old.metadata
        await self._client.delete(
            LEASES, old.name, self._namespace, uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )

    async def recall(self, group: str, lines: Iterable[Line]) -> dict[str, Journal]:
        """Mark the journals of these lines and return them by name: what they have noted of them is final.

        A journal that is gone is left out, as is a name that no journal has. Raises JournalUnreadable once the mark is
        there. The mark is a patch: the API server itself repeats that after a conflict, so it passes between the writes
        of a busy process.
        """

        async def mark(line: Line) -> StoredJournal | None:
            patch = {"metadata": {"annotations": _marks([(group, line.epoch)])}}
            try:
                return stored(await self._client.patch(LEASES, line.holder, patch, namespace=self._namespace))
            except NotFound:
                return None

        marked = await asyncio.gather(*(mark(line) for line in lines if _NAME.fullmatch(line.holder)))
        return {each.name: each.journal for each in marked if each is not None}


def stored(lease: dict[str, Any]) -> StoredJournal:
    """Return the journal that a Lease holds; raises JournalUnreadable."""
    metadata = lease["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in metadata}
    annotations = metadata.get("annotations") or {}
    if _TEXT not in annotations:
        raise JournalUnreadable(f"{metadata['name']} has no journal")
    marks: list[tuple[str, int]] = []
    for key in annotations:
        kind, _, group = key.partition("/")
        epoch = kind.removesuffix(_RECALLED).removeprefix("e")
        if kind.endswith(_RECALLED) and epoch.isascii() and epoch.isdecimal():
            marks.append((group, int(epoch)))
    identity = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return StoredJournal(metadata["name"], identity, kept, Journal.parse(annotations[_TEXT], marks))


def _marks(recalled: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return marks as annotations. The epoch is in the key: so a late patch never takes the place of a later mark."""
    return {f"e{epoch}{_RECALLED}/{group}": "" for group, epoch in recalled}


def _lease(metadata: dict[str, Any], identity: str, journal: Journal) -> dict[str, Any]:
    metadata = {**metadata, "annotations": {_TEXT: str(journal), **_marks(journal.recalled)}}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": metadata,
        "spec": {"holderIdentity": identity},
    }
