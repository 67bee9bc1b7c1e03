"""The state of a group's card-hour budgets: rollover, next grant, and when and by which workloads one is exhausted.

This file alone reads that from records. `bizrq.hours.forecast` computes it, `bizrq.hours.alerts` words it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.hours import HoursUnreadable
from bizrq.hours import forecast, metering, periods
from bizrq.hours.alerts import BudgetLevel
from bizrq.hours.forecast import Budget
from bizrq.hours.metering import HOUR, RecordPage
from bizrq.hours.periods import ALL_TIME, Period
from bizrq.units import hierarchy, names
from bizrq.units.names import Catalog, is_cash, metered_resource
from bizrq.units.resources import Limits, Resources
from controller.hours.record import RecordReconciler
from controller.watch.cluster import Cluster


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The open period of a group's record, up to `at`, in milliseconds.

    `spent` is what was spent beyond the rollover, in nano-units x milliseconds by resource. `rollover_left` is what is
    left of the rollover, in hours by `cash/` name.
    """

    at: int = 0
    period: Period = ALL_TIME
    zone: str = "UTC"
    spent: Resources = field(default_factory=dict)
    rollover_left: Resources = field(default_factory=dict)

    @property
    def exact(self) -> dict[str, int]:
        """Return what is spent beyond the rollover, in nano-units x milliseconds by `cash/` name."""
        return {names.cash_name(name): amount for name, amount in self.spent.items()}

    @property
    def next_grant(self) -> str:
        """Return when hours are granted next, as text; "" for never."""
        return "" if self.period.end is None else periods.format_time(self.period.end, self.zone)

    def cash_status(self) -> wire.CashStatus:
        """Return the period and rollover for the group's status."""
        start = self.period.start
        return wire.CashStatus(
            period_start="" if start is None else periods.format_time(start, self.zone),
            period_end=self.next_grant,
            carried={
                name: str(text)
                for name, text in wire.format_amounts(self.rollover_left).items()
                if self.rollover_left[name]
            },
        )


Burns: TypeAlias = Mapping[str, Mapping[str, int]]
"""The current rates by resource and workload, in nano-units."""


class BudgetForecaster:
    """Reads the records of groups and of the groups below them."""

    def __init__(self, cluster: Cluster, record_reconciler: RecordReconciler, catalog: Catalog) -> None:
        self._cluster = cluster
        self._record_reconciler = record_reconciler
        self._catalog = catalog

    def budget_state(self, group: GroupObject, pages: Sequence[RecordPage]) -> BudgetState | None:
        """Return the state of the group's open period. None without pages. Raises GroupUnreadable."""
        if not pages:
            return None
        period = metering.open_period(pages)
        return BudgetState(
            at=max(page.watermark for page in pages),
            period=period,
            zone=self._zone(group),
            spent=metering.spent_beyond_carried(pages, period),
            rollover_left={
                name: -(-amount // HOUR) for name, amount in _left_over(pages, period).items() if amount > 0
            },
        )

    def budget_levels(
        self, group: GroupObject, hard: Limits, used: Resources, own: Resources, record: BudgetState | None
    ) -> list[BudgetLevel]:
        """Return the group's card-hour budgets. The forecast names its own workloads only; children have their own."""
        burns_of = cache(self._burns)
        levels = [BudgetLevel(n, hard[n], used.get(n, 0), own.get(n, 0)) for n in sorted(hard) if is_cash(n)]
        return [self._foreseen(group, each, record, burns_of) for each in levels]

    def _foreseen(
        self, group: GroupObject, level: BudgetLevel, record: BudgetState | None, burns_of: Callable[[str], Burns]
    ) -> BudgetLevel:
        try:
            burns = burns_of(group.name).get(metered_resource(level.name), {})
            if record is None or not burns or level.used >= level.hard:
                return level
            within = forecast.HORIZON if record.period.end is None else record.period.end - record.at
            out = forecast.time_to_exhaustion(self._budget(group, level.name, record.period, burns_of), max(1, within))
        except (GroupUnreadable, HoursUnreadable):
            return level
        at = None if out is None else record.at + out
        return replace(level, exhausted_at=at, top_consumers=forecast.top_consumers(burns))

    def _budget(self, top: GroupObject, name: str, period: Period, burns_of: Callable[[str], Burns]) -> Budget:
        """Return the group's budget of a resource with its children's. Raises GroupUnreadable, HoursUnreadable."""
        resource, groups, budgets = metered_resource(name), self._cluster.groups, dict[str, Budget]()
        # Children come before their parents here.
        for each in reversed(hierarchy.subtree(top.name, groups.child_names)):
            group = top if each == top.name else groups.cached(each)
            if group is None:
                continue
            pages = self._record_reconciler.pages(each)
            budgets[each] = Budget(
                hard=wire.hard_of(group, self._catalog).get(name, 0) * HOUR,
                spent=metering.group_total(pages, period).get(resource, 0)
                - metering.carried_into(pages, period).get(resource, 0),
                burn=sum(burns_of(each).get(resource, {}).values()),
                children=[budgets[child] for child in groups.child_names(each) if child in budgets],
            )
        return budgets[top.name]

    def _burns(self, group: str) -> Burns:
        """Return the current rates by resource and workload, in nano-units. Raises HoursUnreadable."""
        burns: dict[str, dict[str, int]] = {}
        for page in self._record_reconciler.pages(group):
            for rate, since in page.running.items():
                for name, amount in rate.cost:
                    of = burns.setdefault(name, {})
                    of[rate.workload] = of.get(rate.workload, 0) + amount * len(since)
        return burns

    def _zone(self, group: GroupObject) -> str:
        root = self._record_reconciler.root(group)
        return wire.terms_of(root, self._catalog).schedule.zone if root is not None else "UTC"


def _left_over(pages: Sequence[RecordPage], period: Period) -> dict[str, int]:
    """Return what is left of the rollover, by `cash/` name. Negative amounts were spent beyond it."""
    spent = metering.group_total(pages, period)
    return {
        names.cash_name(name): amount - spent.get(name, 0)
        for name, amount in metering.carried_into(pages, period).items()
    }
