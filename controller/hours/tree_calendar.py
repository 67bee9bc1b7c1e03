"""The periods of a group's tree, and the hours that are carried from one period into the next.

This file alone decides which periods a group's record takes over: its root sets the schedule, and the root's record
publishes the periods. `bizrq.hours.periods` computes them, `bizrq.hours.budget` the rollover.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.hours import budget, metering, periods
from bizrq.hours.metering import RecordPage
from bizrq.hours.periods import Period
from bizrq.store.groups import GroupStore
from bizrq.units import hierarchy
from bizrq.units.names import Catalog, is_cash
from bizrq.units.resources import Limits, larger, restrict
from bizrq.units.resources import total as sum_of
from controller.hours.record_store import RecordStore


class TreeCalendar:
    """Reads the periods of trees from their roots' schedules and records."""

    def __init__(
        self,
        groups: GroupStore,
        record_store: RecordStore,
        enqueue: Callable[[str, float], None],
        *,
        catalog: Catalog,
        now: Callable[[], int],
    ) -> None:
        """`now` returns milliseconds since 1970."""
        self._groups = groups
        self._record_store = record_store
        self._enqueue = enqueue
        self._catalog = catalog
        self._now = now

    def root(self, group: GroupObject) -> GroupObject | None:
        """Return the root of a group's tree. None while an ancestor is missing."""
        if not group.parent:
            return group
        return self._groups.cached(hierarchy.root(group.parent, self._groups.parent_of))

    def sets_periods(self, group: GroupObject) -> bool:
        """Return True for a root that sets periods for its tree. Raises GroupUnreadable."""
        return not group.parent and bool(wire.terms_of(group, self._catalog).schedule.period)

    def periods(self, group: GroupObject, page: RecordPage) -> Sequence[Period] | None:
        """Return the periods of the group's tree, oldest first. None until the record of its root has them.

        Raises HoursUnreadable; GroupUnreadable where the root cannot be read.
        """
        root = self.root(group)
        if root is None:
            return page.calendar
        schedule = wire.terms_of(root, self._catalog).schedule
        if root.name != group.name:
            pages = self._record_store.pages(root.name)
            if pages:
                return [*(total.period for total in pages[0].closed), *pages[0].calendar]
            if not schedule.period:
                return [periods.ALL_TIME]
            self._enqueue(root.name, 0.0)
            return None
        now = max(self._now(), page.watermark)
        calendar = [periods.first_period(schedule, now)] if page.is_new else page.calendar
        last = calendar[-1]
        if last.end is None or now < last.end:
            calendar[-1] = last = periods.rescheduled(schedule, last, now)
        while last.end is not None and last.end <= now:
            last = periods.next_period(schedule, last)
            calendar.append(last)
        return calendar

    def first_page(self, group: GroupObject) -> RecordPage:
        """Return the content of a new record's first page. Raises HoursUnreadable, GroupUnreadable."""
        page = RecordPage()
        return metering.adopt_periods(page, self.periods(group, page) or (), self._now())

    def with_rollover(self, group: GroupObject, hard: Limits, pages: Sequence[RecordPage]) -> RecordPage:
        """Return the first page with the rollover into each period, while the period before may still change."""
        page, asked = pages[0], wire.terms_of(group, self._catalog)
        totals = list(page.periods)
        for index in range(1, len(totals)):
            used = self._used(group, pages, totals[index - 1].period)
            totals[index] = replace(totals[index], carried=budget.carried_over(asked, hard, used))
        return replace(page, periods=tuple(totals)) if totals != list(page.periods) else page

    def _used(self, group: GroupObject, pages: Sequence[RecordPage], period: Period) -> dict[str, int]:
        """Return what a group and its children used in a period, by `cash/` name, as in the status's `used`."""
        used: dict[str, dict[str, int]] = {}
        # Children come before their parents here.
        for name in reversed(hierarchy.subtree(group.name, self._groups.child_names)):
            own = pages if name == group.name else self._record_store.pages(name)
            held = [metering.to_hours(metering.spent_beyond_carried(own, period))]
            for child in self._groups.known_children(name):
                if child.name in used:
                    hard = {each: most for each, most in wire.hard_of(child, self._catalog).items() if is_cash(each)}
                    held.append(larger(hard, restrict(used[child.name], hard)))
            used[name] = sum_of(held)
        return used[group.name]
