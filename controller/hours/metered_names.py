"""The resource names that a record meters.

This file alone decides that, so that a record stays small whatever models the labels name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from bizrq.units.names import Catalog, base_and_model
from bizrq.units.resources import Resources
from controller.hours.record_store import StoredPage

#: Most models that a group's record has although `hard` does not name them, in addition to their base.
MAX_MODELS = 100


class MeteredNames:
    """Selects the names of a cost to record: those that `hard` tracks, and their models as far as there is room.

    A label may name any model. The base's hours are recorded anyway.
    """

    def __init__(self, tracked: Collection[str], stored_pages: Sequence[StoredPage], catalog: Catalog) -> None:
        self._tracked = tracked
        self._stored_pages = stored_pages
        self._catalog = catalog

    def of(self, cost: Resources) -> list[str]:
        """Return the names of a cost to record, sorted."""
        return sorted(name for name in cost if cost[name] and (name in self._tracked or self._has_room(name)))

    def _has_room(self, name: str) -> bool:
        found = base_and_model(name, self._catalog)
        if found is None or found[0] not in self._tracked:
            return False
        if name not in self._models and len(self._models) < MAX_MODELS:
            self._models.add(name)
        return name in self._models

    @cached_property
    def _models(self) -> set[str]:
        """Return the models that the record has."""
        pages = [stored_page.page for stored_page in self._stored_pages]
        rates = {rate for page in pages for rate in (*page.running, *(segment.rate for segment in page.split))}
        found = {name for rate in rates for name, _ in rate.cost}
        found.update(
            name for page in pages for of in page.periods for amounts in of.settled.values() for name in amounts
        )
        return found.difference(self._tracked)
