"""The rate at which a pod consumes card-hours: its cost, reduced to the names that the record meters.

This file alone decides that a pod which cannot be counted is not metered. Amounts are integer nano-units.
"""

from __future__ import annotations

from typing import Any

import structlog

from bizrq.hours.metering import UsageRate
from bizrq.units.resources import Resources
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.validation import Malformed
from controller.hours.allocations import workload_name
from controller.hours.metered_names import MeteredNames
from controller.usage.observed_usage import ObservedUsage
from controller.watch.pods import Pod

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: Distinct rates that are shared. The memory starts over beyond this.
_MAX_RATES = 100_000


class PodRates:
    """Computes rates. Equal rates are one object."""

    def __init__(self, observed: ObservedUsage) -> None:
        self._observed = observed
        self._rates: dict[UsageRate, UsageRate] = {}

    def cost(self, pod: Pod, payer: Object | None) -> Resources | None:
        """Return what a pod occupies without its claims. None where it cannot be counted."""
        try:
            return self._observed.cost(pod, payer)
        except Malformed as error:
            log.warning("pod not metered", pod=pod.uid, error=str(error))
            return None

    def of_pod(self, pod: Pod, adapter: Adapter, workload: Object, names: MeteredNames) -> UsageRate | None:
        """Return the rate of a pod of the workload. None where it cannot be counted."""
        cost = self.cost(pod, workload)
        return None if cost is None else self.of_cost(workload_name(adapter, workload), cost, names)

    def of_cost(self, workload: str, cost: Resources, names: MeteredNames) -> UsageRate:
        """Return the rate of a cost, with the names that the record meters."""
        rate = UsageRate(workload, tuple((name, cost[name]) for name in names.of(cost)))
        if len(self._rates) > _MAX_RATES:
            self._rates.clear()
        return self._rates.setdefault(rate, rate)
