"""Of which resources a record has hours.

This file alone decides that, so that a record stays small whatever people call their models.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from bizrq.units.names import Catalog, base_and_model
from bizrq.units.resources import Resources
from controller.hours.record_store import Sheet

#: Models that `hard` does not name and that a group's record has all the same, besides the hours of their base.
MOST_MODELS = 100


class Names:
    """Which names of a cost are recorded: what `hard` tracks, and the models of that, as many as there is room for.

    A label may call a model whatever it likes; what it calls one has the base's hours anyway.
    """

    def __init__(self, tracked: Collection[str], sheets: Sequence[Sheet], catalog: Catalog) -> None:
        self._tracked = tracked
        self._sheets = sheets
        self._catalog = catalog

    def of(self, cost: Resources) -> list[str]:
        return sorted(name for name in cost if cost[name] and (name in self._tracked or self._has_room(name)))

    def _has_room(self, name: str) -> bool:
        found = base_and_model(name, self._catalog)
        if found is None or found[0] not in self._tracked:
            return False
        if name not in self._models and len(self._models) < MOST_MODELS:
            self._models.add(name)
        return name in self._models

    @cached_property
    def _models(self) -> set[str]:
        """Those that the record has."""
        pages = [sheet.page for sheet in self._sheets]
        rates = {rate for page in pages for rate in (*page.running, *(part.rate for part in page.split))}
        found = {name for rate in rates for name, _ in rate.cost}
        found.update(
            name for page in pages for of in page.periods for amounts in of.settled.values() for name in amounts
        )
        return found.difference(self._tracked)
