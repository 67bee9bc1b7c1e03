"""Confirm that a charge was counted from current objects.

This file alone decides which watched objects a charge depends on. A watch may be behind: growth is granted only on
objects that were read after the review came, or that cannot change it (docs/counting.md, "Current objects").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

from bizrq.store.ports import GroupReader, ReferenceReader
from bizrq.store.reference_resolver import ResolvedLookup
from bizrq.units.names import Catalog, UnknownResource, base_and_model, metered_resource, normalize
from bizrq.workloads.lookup import Lookup, OverlayLookup, Reference
from webhooks.charging.charges import PendingCharge
from webhooks.charging.deadline import Deadline

_LIMIT_RANGE = ("", "LimitRange")


class Confirmation:
    """Confirms the watched objects that charges were counted from."""

    def __init__(self, resolver: ReferenceReader, groups: GroupReader, catalog: Catalog) -> None:
        self._resolver = resolver
        self._groups = groups
        self._catalog = catalog

    async def is_current(
        self, charges: Iterable[PendingCharge], deadline: Deadline, confirmed: set[Reference] | None = None
    ) -> bool:
        """Return True if the charges were counted from what is stored now. Raises ApiError, Unreachable.

        Otherwise the next count has newer objects. References in `confirmed` are known to be current; the others are
        added to it.
        """
        known = confirmed if confirmed is not None else set[Reference]()
        current = True
        for pending in charges:
            due = [reference for reference in self._decisive(pending) if reference not in known]
            if due:
                known.update(due)
                current &= await self._resolver.is_current(pending.lookup, due, deadline.seconds_left())
        return current

    async def is_namespace_current(self, lookup: Lookup, namespace: str, deadline: Deadline) -> bool:
        """Return True if the lookup answered with the stored Namespace. Raises ApiError, Unreachable."""
        reference = ("", "Namespace", "", namespace)
        return await self._resolver.is_current(lookup, [reference], deadline.seconds_left())

    def _decisive(self, pending: PendingCharge) -> Iterable[Reference]:
        """Yield the watched references that may change what the charge grows by."""
        references = _watched(pending.lookup)
        if not references:
            return
        open_to_defaults = self._takes_defaults(pending)
        for reference in references:
            if open_to_defaults or reference[:2] != _LIMIT_RANGE:
                yield reference

    def _takes_defaults(self, pending: PendingCharge) -> bool:
        """Return True where a LimitRange may default what the group limits."""
        stated = pending.charge.stated
        if stated is None:
            return False
        group = self._groups.cached(pending.group)
        return group is None or not _to_state(tuple(group.spec.hard), self._catalog) <= stated


def _watched(lookup: Lookup) -> Collection[Reference]:
    while isinstance(lookup, OverlayLookup):
        lookup = lookup.beneath
    return lookup.watched if isinstance(lookup, ResolvedLookup) else ()


@lru_cache(maxsize=4096)
def _to_state(hard: tuple[str, ...], catalog: Catalog) -> frozenset[str]:
    """Return the requests and limits that these names of `hard` follow from. An unknown name follows from itself."""
    found: set[str] = set()
    for given in hard:
        try:
            name = metered_resource(normalize(given, catalog))
        except UnknownResource:
            name = given
        base, _ = base_and_model(name, catalog) or (name, "")
        if base != "pods" and not base.startswith("count/"):
            found.add(base)
    return frozenset(found)
