"""What people are told of a group: conditions, events and metrics, in words.

This file alone decides which words, and when a thing is news. The numbers are `bizrq.quota.recount`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from bizrq.api import group as wire
from bizrq.api.group import Condition, GroupObject, GroupUnreadable
from bizrq.hours.alerts import Standing, condition, crossed, words
from bizrq.hours.budget import Terms
from bizrq.kube.events import Recorder
from bizrq.quota.recount import Recount
from bizrq.units import quantity
from bizrq.units.names import Catalog, is_cash, order
from bizrq.units.resources import Resources, nonzero
from bizrq.units.times import timestamp
from controller import metrics
from controller.hours.budget_forecast import Record
from controller.usage.findings import _MISMATCH, Told, _first_two

log = structlog.get_logger(__name__)

#: Resources of a group that its Ready condition tells, and so a column of `kubectl get`.
_SHOWN = 6

#: A condition in the making: type, whether it holds, reason and message.
Finding = tuple[str, bool, str, str]


@dataclass(frozen=True, slots=True)
class HoursTold:
    """What there is to tell of a group's hours."""

    standings: Sequence[Standing]
    terms: Terms
    record: Record

    def spent(self, counted: Recount) -> str:
        """Which are out, and until when that is so."""
        grant = f", next grant {self.record.next_grant}" if self.record.next_grant else ""
        return f"spent: {', '.join(counted.exhausted)}; growth is refused{grant}"

    def low(self) -> tuple[str, bool, str, str]:
        """The condition that tells in time."""
        record = self.record
        return ("CashLow", *condition(self.standings, self.terms.thresholds, record.zone, record.next_grant))


class Teller:
    """Tells people once of what is new."""

    def __init__(self, recorder: Recorder, catalog: Catalog, now: Callable[[], int]) -> None:
        self._recorder = recorder
        self._catalog = catalog
        self._now = now
        #: The budgets of hours of each group that metrics tell of.
        self._metered: dict[str, set[str]] = {}

    def forget(self, name: str) -> None:
        self._measure(name, [])

    def conditions(self, group: GroupObject, found: Sequence[Finding]) -> list[Condition]:
        """Conditions with the time of their last change, as metav1.Condition has it."""
        old = {condition.type: condition for condition in group.status.conditions}
        conditions = []
        for kind, holds, reason, message in found:
            text = "True" if holds else "False"
            before = old.get(kind)
            since = before.last_transition_time if before and before.status == text else timestamp(self._now())
            conditions.append(Condition(kind, text, reason, message, since, group.metadata.generation))
        return conditions

    def report(self, group: GroupObject, counted: Recount, told: Told, hours: HoursTold) -> None:
        """Shout once: drift, a group that goes over, hours that run low and out."""
        reference = {
            "apiVersion": wire.API_VERSION,
            "kind": wire.KIND,
            "name": group.name,
            "uid": group.metadata.uid,
            "resourceVersion": group.metadata.resource_version,
        }
        was = {c.type: c.status == "True" for c in group.status.conditions}
        if counted.drift:
            metrics.DRIFT.labels(group.name).inc()
            listed = _amounts(counted.drift)
            log.error("drift", group=group.name, drift=listed)
            self._recorder.event(reference, "Warning", "Drift", f"stored without being admitted: {listed}")
        if told.drift:
            self._recorder.event(
                reference, "Warning", "Drift", f"kept wrong, and counted anew: {_first_two(told.drift)}"
            )
        over = {name: amount for name, amount in counted.over.items() if not is_cash(name)}
        if over and not was.get("OverQuota"):
            self._recorder.event(reference, "Warning", "OverQuota", f"over quota by {_amounts(over)}")
        if counted.exhausted and not was.get("CashExhausted"):
            self._recorder.event(reference, "Warning", "CashExhausted", hours.spent(counted))
        for standing, reached in crossed(self._told_before(group), hours.standings, hours.terms.thresholds):
            if standing.used < standing.hard or reached > 100:
                message = f"{reached}% is reached: {words(standing, hours.record.zone)}"
                self._recorder.event(reference, "Warning", "CashLow", message)
        self._measure(group.name, hours.standings, hours.record.at)
        metrics.MISMATCHES.labels(group.name).set(len(told.mismatches))
        said = {c.type: c.message for c in group.status.conditions}
        for kind, _, _, message in told.conditions():
            # Another model is news each time that it is another one.
            if said.get(kind) != message if kind == _MISMATCH else not was.get(kind):
                self._recorder.event(reference, "Warning", kind, message)

    def _told_before(self, group: GroupObject) -> dict[str, Standing]:
        """The budgets of hours as the status has them that is stored; none where it cannot be read."""
        status = group.status
        was = msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, hard=status.hard or {}))
        try:
            hard = wire.hard_of(was, self._catalog)
            used, own = (wire.amounts(group, of) for of in (status.used, status.self_used))
        except GroupUnreadable:
            return {}
        return {n: Standing(n, hard[n], used.get(n, 0), own.get(n, 0)) for n in hard if is_cash(n)}

    def _measure(self, group: str, standings: Sequence[Standing], at: int = 0) -> None:
        """Have metrics tell of these budgets of the group, and of no others."""
        gone = self._metered.pop(group, set()) - {each.name for each in standings}
        for name in gone:
            metrics.CASH_USED.remove(group, name)
            metrics.CASH_OUT.remove(group, name)
        if standings:
            self._metered[group] = {each.name for each in standings}
        for each in standings:
            metrics.CASH_USED.labels(group, each.name).set(each.used / each.hard if each.hard else 1)
            out = at if each.used >= each.hard else each.out
            metrics.CASH_OUT.labels(group, each.name).set(math.inf if out is None else out / 1000)


def findings(counted: Recount, hard: Resources, told: Told, hours: HoursTold) -> list[Finding]:
    """Conditions in a person's words."""
    over = counted.over
    found: list[Finding] = [
        ("Ready", True, "Reconciled", _at_a_glance(counted.used, hard)),
        (
            ("OverQuota", True, "Over", f"over quota by {_amounts(over)}; growth is refused, nothing is stopped")
            if over
            else ("OverQuota", False, "Within", "every resource is within its quota")
        ),
    ]
    if any(is_cash(name) for name in hard):
        found.append(
            ("CashExhausted", True, "Spent", hours.spent(counted))
            if counted.exhausted
            else ("CashExhausted", False, "Left", "hours are left of every resource")
        )
        found.append(hours.low())
    return found + told.conditions()


def _at_a_glance(used: Resources, hard: Resources) -> str:
    """The first of what is used, as `kubectl get` shows it."""
    told = [f"{name} {_of(name, used[name], hard[name])}" for name in sorted(hard, key=order)]
    if len(told) > _SHOWN:
        told[_SHOWN:] = [f"and {len(told) - _SHOWN} more"]
    return ", ".join(told) or "no ceilings: whatever is charged here is admitted"


def _of(name: str, used: int, hard: int) -> str:
    return f"{quantity.text(name, used)}/{quantity.text(name, hard)}"


def _amounts(amounts: Resources) -> str:
    return ", ".join(f"{name}={quantity.text(name, amount)}" for name, amount in sorted(nonzero(amounts).items()))
