"""The remembered payers as admission reads them, by uid, fed by watches of the records and of the groups.

This file alone decides which lines admission keeps: those of payers that are gone, those in the statuses of groups, and
those of workloads of kinds that make more than pods, which they may let go. The controller reads all and writes them.
What a reservation says of an object that leaves its owner counts as a line, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import structlog

from bizrq.api import payers as wire
from bizrq.api.group import API_GROUP, GroupObject
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.kube.informer import Informer
from bizrq.quota.reservation import entries_with
from bizrq.workloads.kinds.declaration import POD
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.ownership.memory import (
    GONE_MARK,
    LEFT_MARK,
    Memory,
    PayersUnreadable,
    leaving_line,
    parse_payer,
)

log = structlog.get_logger(__name__)

PAYERS = Resource(API_GROUP, "v1alpha1", wire.PLURAL, wire.KIND, namespaced=False)


class KnownPayers:
    """A PayerMemory of the payers that are gone or released an object, or may release what makes pods for them."""

    def __init__(self) -> None:
        #: By uid, then by the object that has the line: a workload that moved before it was deleted has several, and so
        #: has one whose line the record is taking over.
        self._known: dict[str, dict[str, Memory]] = {}
        #: The lines of each object.
        self._lines: dict[str, dict[str, str]] = {}
        #: How many lines of payers that are gone there are, by namespace.
        self._in: Counter[str] = Counter()

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for an object. Of several groups the last one paid."""
        found = self._known.get(uid)
        if not found:
            return None
        return max(found.values(), key=lambda memory: (memory.since, memory.gone or 0, memory.group))

    def left_in(self, namespace: str) -> bool:
        """Return True where a payer of a namespace is gone and something of it is left."""
        return namespace in self._in

    def on_group(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        """Take over what the status of a group says: a change that the watch of groups brings."""
        name, status = (new or old or {})["metadata"]["name"], (new or {}).get("status") or {}
        self.replace(_status_of(name), name, _lines_of(new))
        self.replace(_reservations_of(name), name, _leaving(_texts(status.get("reservations"))))

    def replace(self, source: str, group: str, lines: Iterable[str]) -> None:
        """Replace the lines of one stored object. A line that cannot be read is logged, and remembers nobody."""
        before, after = self._lines.get(source, {}), dict[str, str]()
        for line in lines:
            known = before.get(line)
            uid = known if known is not None else self._add(source, group, line)
            if uid is not None:
                after[line] = uid
        for uid in {before[line] for line in before.keys() - after.keys()}.difference(after.values()):
            self._forget(source, uid)
        if after:
            self._lines[source] = after
        else:
            self._lines.pop(source, None)

    def _add(self, source: str, group: str, line: str) -> str | None:
        try:
            uid, memory = parse_payer(group, line)
        except PayersUnreadable as error:
            # The status of the group says so too, and refuses growth until somebody mends the record.
            log.warning("a line of remembered payers cannot be read", group=group, error=str(error))
            return None
        self._forget(source, uid)
        self._known.setdefault(uid, {})[source] = memory
        if memory.gone is not None:
            self._in[_namespace(memory)] += 1
        return uid

    def _forget(self, source: str, uid: str) -> None:
        found = self._known.get(uid, {})
        known = found.pop(source, None)
        if known is not None and known.gone is not None:
            self._in[_namespace(known)] -= 1
            if not self._in[_namespace(known)]:
                del self._in[_namespace(known)]
        if not found:
            self._known.pop(uid, None)


class PayerStore(KnownPayers):
    """The same, kept current by the watches."""

    def __init__(self, client: KubeClient, registry: Registry) -> None:
        super().__init__()
        makers = kinds_of_makers(registry)
        self.informer = Informer(
            client, PAYERS, on_change=self._on_change, transform=lambda page: without_others(page, makers)
        )

    def _on_change(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        obj = new or old or {}
        self.replace(_page(obj), wire.group_of(obj), _lines_of(new))


async def read_payers(client: KubeClient, registry: Registry, groups: Iterable[GroupObject]) -> KnownPayers:
    """Return the payers that admission keeps, the records read now. Raise ApiError or Unreachable."""
    found, makers = KnownPayers(), kinds_of_makers(registry)
    for group in groups:
        found.replace(_status_of(group.name), group.name, group.status.payers)
        found.replace(_reservations_of(group.name), group.name, _leaving(group.status.reservations))
    try:
        pages, _ = await client.list(PAYERS)
    except NotFound:
        # The cluster runs a bizrq that does not remember payers.
        return found
    for page in pages:
        found.replace(_page(page), wire.group_of(page), kept_lines(page, makers))
    return found


def kinds_of_makers(registry: Registry) -> frozenset[str]:
    """Return the kinds of workloads that make others than pods, or pods that make others."""
    others = {adapter.group_kind for adapter in registry.adapters} - {POD}
    makers = (a for a in registry.adapters if others & {*a.creates, *a.passes} or a.has_pods_below_pods)
    return frozenset(adapter.kind for adapter in makers)


def without_others(page: dict[str, Any], makers: Collection[str]) -> dict[str, Any]:
    """Return the page with the lines that admission keeps alone."""
    metadata = page["metadata"]
    return {
        "apiVersion": page.get("apiVersion"),
        "kind": page.get("kind"),
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata},
        "spec": {"group": wire.group_of(page)},
        "status": {"payers": kept_lines(page, makers)},
    }


def kept_lines(page: Mapping[str, Any] | None, makers: Collection[str]) -> list[str]:
    """Return the lines of a stored page whose payers are gone, or are of such kinds.

    Most other workloads make pods and nothing else, so they let go nothing that makes pods.
    """
    return [line for line in _lines_of(page) if GONE_MARK in line or _kind(line) in makers]


def _lines_of(obj: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a page, or of the status of a group."""
    return _texts(((obj or {}).get("status") or {}).get("payers"))


def _texts(found: object) -> list[str]:
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _leaving(reservations: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the payers that reservations state."""
    return filter(None, map(leaving_line, entries_with(reservations, LEFT_MARK)))


def _page(obj: Mapping[str, Any]) -> str:
    return f"page {obj['metadata']['name']}"


def _status_of(group: str) -> str:
    return f"status of {group}"


def _reservations_of(group: str) -> str:
    return f"reservations of {group}"


def _kind(line: str) -> str:
    return line.rpartition(" ")[2].partition("/")[0]


def _namespace(memory: Memory) -> str:
    return memory.place.split("/")[1]
