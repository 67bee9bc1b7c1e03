"""Workloads that are gone, until the watches below them have reached their deletion.

The watches of different kinds are not in step, so a workload may be seen to go before its pods are seen. This file
alone remembers from which revision on all is seen that it has made, and only while the process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bizrq.kube.informer import Informer
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from controller.watch.informers import Informers

Object = dict[str, Any]

#: More than a cluster deletes while a watch is late. Beyond this the first ones are forgotten.
MOST = 20_000


class _Deletion(NamedTuple):
    """What was deleted, and the revision that its watch had reached then."""

    adapter: Adapter
    revision: int


class Deletions:
    """The workloads whose pods may not be seen yet though they are gone, by uid."""

    def __init__(self, informers: Informers, registry: Registry) -> None:
        self._informers = informers
        self._registry = registry
        self._known: dict[str, _Deletion] = {}

    def note(self, obj: Object) -> None:
        """Note that a watch has shown the deletion of an object."""
        adapter = self._registry.of(obj)
        if adapter is None or not adapter.creates:
            return
        stores = [each.store for each in self._informers.kinds.values() if each.installed]
        reached = min((store.resource_version for store in stores), default=0)
        while self._known:
            first = next(iter(self._known))
            if self._known[first].revision > reached and len(self._known) < MOST:
                break
            del self._known[first]
        revision = self._informers.kinds[adapter.group_kind].store.resource_version
        self._known[obj["metadata"]["uid"]] = _Deletion(adapter, revision)

    def late(self, uid: str, below: Callable[[Adapter], Iterable[Informer]]) -> list[tuple[Informer, int]]:
        """Return the watches that have not shown all that an object has made, with the revision to reach.

        `below` returns the informers of the installed kinds below a kind.
        """
        found = self._known.get(uid)
        if found is None:
            return []
        late = [each for each in below(found.adapter) if each.store.resource_version < found.revision]
        if not late:
            del self._known[uid]
        return [(each, found.revision) for each in late]

    def is_before(self, uid: str, revision: int) -> bool:
        """Return True where an object that is gone was deleted before this revision of another kind.

        The watches below it have all shown more than its deletion once it is not known any more.
        """
        found = self._known.get(uid)
        return found is None or found.revision < revision

    def restored(self) -> None:
        """Forget all: revisions count anew."""
        self._known.clear()
