"""Conditions, events and metrics of a group.

This file alone words them and decides when an event is due. `bizrq.quota.recount` computes the numbers.

Who may read a group reads its conditions. Its events are in the namespace `default`, for whoever may read that: they
say what happened, and have no figures (docs/rights.md, "Who sees figures").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from bizrq.api import group as wire
from bizrq.api.group import Condition, GroupObject, GroupUnreadable
from bizrq.hours.alerts import BudgetLevel, crossed, low_condition
from bizrq.hours.budget import BudgetTerms
from bizrq.kube.events import EventRecorder
from bizrq.quota.allowance import Line
from bizrq.quota.recount import Recount
from bizrq.quota.reservation import reserved_total
from bizrq.units import quantity
from bizrq.units.names import Catalog, is_cash, sort_key
from bizrq.units.quantity import NANO
from bizrq.units.resources import Limits, Resources, nonzero, percent_of, restrict, total
from bizrq.units.times import format_timestamp
from controller import metrics
from controller.hours.budget_forecast import BudgetState
from controller.usage.findings import _MISMATCH, OVERLAP, Findings

log = structlog.get_logger(__name__)

#: Number of resources in the message of condition Ready, which is also a column of `kubectl get`.
_SHOWN = 6
#: The workloads that a log line names as what drift may come from.
_MAX_CHANGES = 20

#: A condition without its times: type, status, reason and message.
ConditionDraft = tuple[str, bool, str, str]


@dataclass(frozen=True, slots=True)
class HoursReport:
    """The card-hours of a group, for conditions and events."""

    levels: Sequence[BudgetLevel]
    terms: BudgetTerms
    budget: BudgetState

    def spent_message(self, counted: Recount) -> str:
        """Return which budgets are exhausted, and when the next grant is."""
        grant = f", next grant {self.budget.next_grant}" if self.budget.next_grant else ""
        return f"spent: {', '.join(counted.exhausted)}; growth is refused{grant}"

    def low_condition(self) -> tuple[str, bool, str, str]:
        """Return the condition that warns before a budget is exhausted."""
        record = self.budget
        return ("CashLow", *low_condition(self.levels, self.terms.thresholds, record.zone, record.next_grant))


class StatusReporter:
    """Sets conditions and metrics, and emits an event once for each news."""

    def __init__(self, recorder: EventRecorder, catalog: Catalog, now: Callable[[], int]) -> None:
        self._recorder = recorder
        self._catalog = catalog
        self._now = now

    def forget(self, name: str) -> None:
        """End the metrics of a group that is gone."""
        for family in metrics.OF_GROUPS:
            family.forget(name)

    def forget_counted(self, name: str) -> None:
        """End the figures of a group that cannot be counted: they are unknown, not what they were."""
        for family in metrics.COUNTED:
            family.forget(name)

    def conditions(self, group: GroupObject, found: Sequence[ConditionDraft]) -> list[Condition]:
        """Return conditions with the time of their last change, as in metav1.Condition."""
        old = {condition.type: condition for condition in group.status.conditions}
        conditions = []
        for kind, holds, reason, message in found:
            text = "True" if holds else "False"
            before = old.get(kind)
            since = before.last_transition_time if before and before.status == text else format_timestamp(self._now())
            conditions.append(Condition(kind, text, reason, message, since, group.metadata.generation))
        return conditions

    def report(
        self,
        group: GroupObject,
        hard: Limits,
        counted: Recount,
        findings: Findings,
        hours: HoursReport,
        changes: Sequence[str],
    ) -> None:
        """Set metrics, and emit events: drift, a group over quota, card-hours that run low or out, new findings.

        `changes` are the workloads that drift may come from.
        """
        reference = {
            "apiVersion": wire.API_VERSION,
            "kind": wire.KIND,
            "name": group.name,
            "uid": group.metadata.uid,
            "resourceVersion": group.metadata.resource_version,
        }
        was = {c.type: c.status == "True" for c in group.status.conditions}
        if counted.drift:
            metrics.DRIFT.inc(group.name)
            listed = quantity.texts(counted.drift)
            log.error("drift", group=group.name, drift=listed, changes=list(changes[:_MAX_CHANGES]))
            names = ", ".join(sorted(nonzero(counted.drift)))
            self._recorder.event(
                reference, "Warning", "Drift", f"stored without being admitted: {names}; the controller's log says more"
            )
        if findings.drift:
            self._recorder.event(
                reference, "Warning", "Drift", "cached usage was wrong and is corrected; the controller's log says more"
            )
        over = {name: amount for name, amount in counted.over.items() if not is_cash(name)}
        if over and not was.get("OverQuota"):
            message = f"over quota: {', '.join(sorted(over))}; the condition OverQuota says more"
            self._recorder.event(reference, "Warning", "OverQuota", message)
        if counted.exhausted and not was.get("CashExhausted"):
            self._recorder.event(reference, "Warning", "CashExhausted", hours.spent_message(counted))
        for level, reached in crossed(self._previous_levels(group), hours.levels, hours.terms.thresholds):
            if level.used < level.hard or reached > 100:
                message = f"a threshold is reached: {level.name}; the condition CashLow says more"
                self._recorder.event(reference, "Warning", "CashLow", message)
        _measure(group.name, hard, counted)
        _measure_hours(group.name, hours)
        metrics.MISMATCHES.set(group.name, {"": len(findings.mismatches)})
        said, events = {c.type: c.message for c in group.status.conditions}, findings.events()
        for kind, _, _, message in findings.conditions():
            if kind == OVERLAP:
                continue
            # A mismatch with other models is news, although the condition is true already.
            if said.get(kind) != message if kind == _MISMATCH else not was.get(kind):
                self._recorder.event(reference, "Warning", kind, events[kind])

    def _previous_levels(self, group: GroupObject) -> dict[str, BudgetLevel]:
        """Return the card-hour budgets of the stored status by name. Empty where it cannot be read."""
        status = group.status
        was = msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, hard=status.hard or {}))
        try:
            hard = wire.hard_of(was, self._catalog)
            used, own = (wire.parse_amounts(group, of) for of in (status.used, status.self_used))
        except GroupUnreadable:
            return {}
        return {n: BudgetLevel(n, hard[n], used.get(n, 0), own.get(n, 0)) for n in hard if is_cash(n)}


def _measure(group: str, hard: Limits, counted: Recount) -> None:
    """Set the metrics of a group's figures, in base units."""
    reserved = restrict(reserved_total(counted.reservations), hard)
    for family, amounts in (
        (metrics.HARD, hard),
        (metrics.USED, counted.used),
        (metrics.SELF_USED, counted.self_used),
        (metrics.RESERVED, {name: reserved.get(name, 0) for name in hard}),
    ):
        family.set(group, {name: amount / NANO for name, amount in amounts.items()})


def measure_ahead(group: str, lines: Sequence[Line]) -> None:
    """Set the metrics of what processes hold ahead of a group; a group without lines has none."""
    ahead = total(line.amount for line in lines)
    metrics.AHEAD.set(group, {name: amount / NANO for name, amount in ahead.items()})
    metrics.ALLOWANCES.set(group, {"": len(lines)} if lines else {})


def _measure_hours(group: str, hours: HoursReport) -> None:
    """Set the metrics of a group's card-hour budgets."""
    ratios: dict[str, float] = {}
    ends: dict[str, float] = {}
    for each in hours.levels:
        ratios[each.name] = each.used / each.hard if each.hard else 1
        end = hours.budget.at if each.used >= each.hard else each.exhausted_at
        ends[each.name] = math.inf if end is None else end / 1000
    metrics.CASH_USED.set(group, ratios)
    metrics.CASH_EXHAUSTION.set(group, ends)


def conditions(
    counted: Recount, hard: Resources, findings: Findings, hours: HoursReport, catalog: Catalog
) -> list[ConditionDraft]:
    """Conditions in a person's words."""
    over = counted.over
    lacking = f"over quota by {quantity.texts(nonzero(over))}; growth is refused, nothing is stopped"
    found: list[ConditionDraft] = [
        ("Ready", True, "Reconciled", _at_a_glance(counted.used, hard, catalog)),
        (
            ("OverQuota", True, "Over", lacking)
            if over
            else ("OverQuota", False, "Within", "every resource is within its quota")
        ),
    ]
    if any(is_cash(name) for name in hard):
        found.append(
            ("CashExhausted", True, "Spent", hours.spent_message(counted))
            if counted.exhausted
            else ("CashExhausted", False, "Left", "every card-hour budget has hours left")
        )
        found.append(hours.low_condition())
    return found + findings.conditions()


def scarcest(used: Resources, hard: Limits, catalog: Catalog) -> str:
    """Return the resource with the highest share of its ceiling in use, like `limits.cpu 6/10 (60%)`.

    It follows from `used` and `hard` alone, so it causes no write of its own.
    """
    shares = {name: percent_of(used[name], hard[name]) for name in hard if name in used}
    if not shares:
        return "" if hard else "unlimited"
    first = min(shares, key=lambda name: (-shares[name], sort_key(name, catalog)))
    return f"{first} {_of(first, used[first], hard[first])} ({shares[first]}%)"


def _at_a_glance(used: Resources, hard: Resources, catalog: Catalog) -> str:
    """Return the first of the used and hard amounts, for the columns of `kubectl get`."""
    ordered = sorted(hard.keys() & used.keys(), key=lambda name: sort_key(name, catalog))
    shown = [f"{name} {_of(name, used[name], hard[name])}" for name in ordered]
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"and {len(shown) - _SHOWN} more"]
    return ", ".join(shown) or "no hard limits: everything that is charged here is admitted"


def _of(name: str, used: int, hard: int) -> str:
    return f"{quantity.text(name, used)}/{quantity.text(name, hard)}"
