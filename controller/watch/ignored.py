"""The labels that name a group and are ignored: those of objects in namespaces that are not managed.

This file alone finds them, for people who expect the group to pay. It decides no charge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bizrq.kube.store import Kept, place_of, plain, uid_of
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.owners import controller_of
from controller.watch.indexes import labelled_group
from controller.watch.informers import Informers

Object = dict[str, Any]


class IgnoredLabels:
    """The objects by group whose label is ignored, each with its slot. What a controller made is left out."""

    def __init__(self, informers: Informers, registry: Registry, changed: Callable[[str], None]) -> None:
        """`changed` is called with each group of which such an object comes or goes."""
        self._informers = informers
        self._registry = registry
        self._changed = changed
        self._found: dict[str, dict[str, Slot]] = {}

    def of(self, group: str) -> Mapping[str, Slot]:
        """Return the objects by uid whose label names the group and is ignored. Some may be leftovers of the group."""
        return self._found.get(group, {})

    def record(self, old: Object | None, new: Object | None) -> None:
        """Take over a change of an object of a charged kind."""
        before = {group for obj in (old,) if obj is not None for group in self._drop(obj)}
        for group in before | ({new_group} if new is not None and (new_group := self._add(new)) else set()):
            self._changed(group)

    def find_all(self) -> None:
        """Look through all objects: a namespace has come under management or left it."""
        before, self._found = self._found.keys(), {}
        for informer in self._informers.workloads.values():
            for group in tuple(informer.store.keys("group")):
                for kept in informer.store.kept_index("group", group):
                    if not self._manages(kept):
                        self._add(plain(kept))
        for group in {*before, *self._found}:
            self._changed(group)

    def _add(self, obj: Object) -> str | None:
        """Add an object whose label is ignored, and return the group that it names."""
        if self._manages(obj):
            return None
        adapter, names = self._registry.of(obj), labelled_group(obj)
        if adapter is None or not names or controller_of(obj["metadata"]) is not None:
            return None
        metadata = obj["metadata"]
        self._found.setdefault(names[0], {})[metadata["uid"]] = Slot(
            adapter.resource, metadata["namespace"], metadata["name"]
        )
        return names[0]

    def _drop(self, obj: Object) -> list[str]:
        """Drop an object, and return the group that it was found for, as a list of one or none."""
        groups = [group for group in labelled_group(obj) if uid_of(obj) in self._found.get(group, {})]
        for group in groups:
            del self._found[group][uid_of(obj)]
            if not self._found[group]:
                del self._found[group]
        return groups

    def _manages(self, kept: Kept) -> bool:
        lookup = self._informers.resolver.cached_lookup
        return self._registry.scope.manages_named(place_of(kept)[0], lookup)
