"""The remembered payers as admission reads them, by uid, fed by a watch.

This file alone decides which lines of the records admission keeps: those of payers that are gone, and those of a payer
with what it made besides pods, which it may let go. The controller reads whole records and writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog

from bizrq.api import payers as wire
from bizrq.api.group import API_GROUP
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.kube.informer import Informer
from bizrq.workloads.ownership.memory import GONE_MARK, Memory, PayersUnreadable, parse_payer

log = structlog.get_logger(__name__)

PAYERS = Resource(API_GROUP, "v1alpha1", wire.PLURAL, wire.KIND, namespaced=False)


class KnownPayers:
    """A PayerMemory of the payers that are gone or released an object, or may release what makes pods for them."""

    def __init__(self) -> None:
        #: By uid, then by group: a workload that moved before it was deleted has a line in each.
        self._known: dict[str, dict[str, Memory]] = {}
        #: How many of those that are gone there are, by namespace.
        self._in: Counter[str] = Counter()

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for an object. Of several groups the last one paid."""
        found = self._known.get(uid)
        return max(found.values(), key=lambda memory: (memory.since, memory.group)) if found else None

    def left_in(self, namespace: str) -> bool:
        """Return True where a payer of a namespace is gone and something of it is left."""
        return namespace in self._in

    def replace(self, group: str, old: Iterable[str], new: Iterable[str]) -> None:
        """Replace the lines of a group's record. A line that cannot be read is logged, and remembers nobody."""
        before, after = set(old), set(new)
        for line in before - after:
            if (entry := _entry(group, line)) is not None:
                self._forget(*entry)
        for line in after - before:
            if (entry := _entry(group, line)) is not None:
                self._forget(*entry)
                self._known.setdefault(entry[0], {})[group] = entry[1]
                if entry[1].gone is not None:
                    self._in[_namespace(entry[1])] += 1

    def _forget(self, uid: str, memory: Memory) -> None:
        found = self._known.get(uid, {})
        known = found.pop(memory.group, None)
        if known is not None and known.gone is not None:
            self._in[_namespace(known)] -= 1
            if not self._in[_namespace(known)]:
                del self._in[_namespace(known)]
        if not found:
            self._known.pop(uid, None)


class PayerStore(KnownPayers):
    """The same, kept current by a watch."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__()
        self.informer = Informer(client, PAYERS, on_change=self._on_change, transform=without_others)

    def _on_change(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        self.replace(name, kept_lines(old), kept_lines(new))


async def read_payers(client: KubeClient) -> KnownPayers:
    """Return the payers that admission keeps, read now. Raise ApiError or Unreachable."""
    found = KnownPayers()
    try:
        records, _ = await client.list(PAYERS)
    except NotFound:
        # The cluster runs a bizrq that does not remember payers.
        return found
    for record in records:
        found.replace(record["metadata"]["name"], (), kept_lines(record))
    return found


def without_others(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the lines that admission keeps alone."""
    metadata = record["metadata"]
    return {
        "apiVersion": record.get("apiVersion"),
        "kind": record.get("kind"),
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata},
        "status": {"payers": kept_lines(record)},
    }


def kept_lines(record: dict[str, Any] | None) -> list[str]:
    """Return the lines of a stored record whose payers are gone, or share their place with what they made.

    Most workloads make pods and nothing else, so they are alone in their place.
    """
    lines = ((record or {}).get("status") or {}).get("payers")
    if not isinstance(lines, list):
        return []
    lines = [line for line in lines if isinstance(line, str)]
    places = Counter(map(_place, lines))
    return [line for line in lines if GONE_MARK in line or places[_place(line)] > 1]


def _place(line: str) -> str:
    return line.rpartition(" ")[2]


def _namespace(memory: Memory) -> str:
    return memory.place.split("/")[1]


def _entry(group: str, line: str) -> tuple[str, Memory] | None:
    try:
        return parse_payer(group, line)
    except PayersUnreadable as error:
        # The status of the group says so too, and refuses growth until somebody mends the record.
        log.warning("a line of remembered payers cannot be read", group=group, error=str(error))
        return None
