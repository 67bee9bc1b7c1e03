"""Decide now what an object will make or grow to later: the Job of a CronJob, the largest state of an elastic job.

This file alone words the warning. It refuses and reserves nothing: each of these writes is admitted when it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, Unreachable
from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.verdict import RETRYABLE, Denied, Granted, Reason, Verdict
from bizrq.units import quantity
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.later import Later, later
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import charged_group
from bizrq.workloads.ownership.payers import owner_that_pays
from bizrq.workloads.validation import Malformed
from webhooks.charging.charges import charge_of
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: Seconds that a warning is worth.
SECONDS = 1.0
#: Nothing is known of the later write: the group is not counted, or a client only has to try again.
_UNKNOWN = RETRYABLE | {Reason.NOT_RECONCILED}


@dataclass(frozen=True, slots=True)
class Judged:
    """A later write, as it would be decided now; `account` is None where the group does not exist."""

    later: Later
    group: str
    verdict: Verdict
    charge: Charge | None = None
    account: Account | None = None

    @property
    def warning(self) -> str:
        """Return why it would be refused now, without figures of the group; "" where it would be granted."""
        denied = self.verdict
        if not isinstance(denied, Denied):
            return ""
        if not denied.violations:
            return f"{self.later.what} would be refused now: {denied.without_figures().message}"
        asked = ",".join(f"{v.resource}={quantity.text(v.resource, v.requested)}" for v in denied.violations)
        return f"{self.later.what} would be refused now: quota {self.group} has no room for {asked}"


class LaterObjects:
    """Judges what objects make later, for all handlers of one process."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(self, request: Request, adapter: Adapter, deadline: Deadline) -> Sequence[Judged]:
        """Return each later write of a reviewed object that a group pays for. Empty where it cannot be found out."""
        obj = request.object or {}
        # The decision on the object itself comes after this, and is worth more.
        deadline = Deadline(min(deadline.at, deadline.clock() + SECONDS), deadline.clock)
        try:
            found = [await self._judged(request, adapter, each, deadline) for each in later(obj, adapter)]
        except (ApiError, Unreachable, Malformed, GroupUnreadable) as error:
            # The review of each later write says what is wrong.
            log.info("later writes not checked", namespace=request.namespace, name=request.name, error=str(error))
            return ()
        return [each for each in found if each is not None]

    async def _judged(self, request: Request, adapter: Adapter, found: Later, deadline: Deadline) -> Judged | None:
        """Return the decision on one later write; None where nobody is charged for it, or nothing is known yet.

        Raises Malformed, ApiError, Unreachable, GroupUnreadable.
        """
        context, obj = self._context, found.obj
        made = context.registry.of(obj)
        if made is None or not context.registry.is_charged(made):
            return None
        config = replace(context.config, elastic="max") if found.is_growth else context.config
        old = request.old_object if made is adapter else None

        def count(known: Lookup) -> tuple[str | None, Demand, Demand | None]:
            group = charged_group(obj, context.registry, known)
            if group is None or owner_that_pays(obj, context.registry, known) is not None:
                return None, counting.NO_DEMAND, None
            stays = old is not None and charged_group(old, context.registry, known) == group
            before = counting.own_demand(old, made, known, context.config) if old is not None and stays else None
            return group, counting.own_demand(obj, made, known, config), before

        group, demand, before = count(await context.resolver.resolve(count, deadline.seconds_left()))
        if group is None:
            return None
        name = str(obj["metadata"].get("name") or "")
        about = Request(request.uid, "CREATE", request.kind, request.resource, name, request.namespace)
        charge = charge_of(made, about, obj, demand, old if before is not None else None, before)
        stored = context.groups.cached(group) or await context.groups.read(group, deadline.seconds_left())
        if stored is None:
            missing = Denied(Reason.NO_GROUP, f"quota {group} does not exist")
            return Judged(found, group, missing, charge)
        if stored.status.used is None:
            return None
        account = wire.account_of(stored, context.catalog)
        verdict = decide(account, charge, 0)
        if isinstance(verdict, Denied):
            return None if verdict.reason in _UNKNOWN else Judged(found, group, verdict, charge, account)
        return Judged(found, group, Granted(), charge, account)
