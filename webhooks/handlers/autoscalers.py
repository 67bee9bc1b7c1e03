"""Warn of an autoscaler that may ask for more than its group has left.

This file alone decides the warning. It refuses and reserves nothing: an autoscaler costs nothing until it scales, and
each of its steps is admitted like any other (`WorkloadHandler.scale`).
"""

from __future__ import annotations

from typing import Any

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.admission import decide
from bizrq.quota.headroom import replicas_that_fit
from bizrq.quota.verdict import Denied, Figures, Granted
from bizrq.store.reference_resolver import resource_of
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.labels import group_of, with_models
from bizrq.workloads.later import scaling
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.ownership.payers import Paid, anywhere, paid_by
from bizrq.workloads.validation import Malformed, get_path
from webhooks.charging.charges import charge_of
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.handlers.answer import Answer

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_SILENT = Answer(Granted())


class AutoscalerHandler:
    """The webhook for HorizontalPodAutoscalers, and KEDA's ScaledObjects."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Answer:
        """Grant the write, with a warning where its most replicas do not fit."""
        try:
            return await self._answer(request, deadline)
        except (ApiError, Unreachable, Malformed, GroupUnreadable) as error:
            # The review of a later scale says what is wrong.
            log.info("autoscaler not checked", namespace=request.namespace, name=request.name, error=str(error))
            return _SILENT

    async def _answer(self, request: Request, deadline: Deadline) -> Answer:
        """Return the answer with its warning, if any. Raises ApiError, Unreachable, Malformed, GroupUnreadable."""
        registry, config = self._context.registry, self._context.config
        found = scaling(request.object or {})
        adapter = self._context.registry.by_kind(found.group, found.kind) if found is not None else None
        if found is None or adapter is None or adapter.scale is None or not registry.is_charged(adapter):
            return _SILENT
        name, most = found.name, found.most
        try:
            target = await self._context.client.get(
                resource_of(adapter), name, request.namespace, timeout=deadline.seconds_left()
            )
        except NotFound:
            return _SILENT
        grown = counting.with_scale(target, adapter, most)

        def paid(known: Lookup) -> Paid | None:
            return paid_by(target, registry, known, self._context.payers, anywhere)

        def count(known: Lookup) -> tuple[Demand, Demand]:
            found = paid(known)
            counted = (with_models(each, found.models if found is not None else ()) for each in (target, grown))
            before, after = (counting.own_demand(each, adapter, known, config) for each in counted)
            return before, after

        lookup = await self._context.resolver.resolve(count, deadline.seconds_left())
        payer = paid(lookup)
        # What an owner pays for, its controller scales.
        if payer is None or payer.payer != target["metadata"]["uid"]:
            return _SILENT
        group_of(target)
        group, (before, demand) = payer.group, count(lookup)
        about = Request(request.uid, "UPDATE", request.kind, request.resource, name, request.namespace)
        charge = charge_of(adapter, about, grown, demand, target, before)
        stored = await self._context.groups.read(group, deadline.seconds_left())
        whose = f"{found.field} {most} of {adapter.kind} {request.namespace}/{name}"
        if stored is None:
            return Answer(Granted(), [f"{whose} cannot be reached: quota {group} does not exist"])
        if stored.status.used is None:
            return _SILENT
        account = wire.account_of(stored, self._context.catalog)
        verdict = decide(account, charge, 0)
        if not isinstance(verdict, Denied):
            return _SILENT
        more = replicas_that_fit(account, charge)
        now = get_path(target, adapter.scale or ())
        if more is None:
            hidden = f"{whose} cannot be reached now: {verdict.without_figures().message}"
            return Answer(Granted(), [f"{whose} cannot be reached now: {verdict.message}"], Figures(group, hidden))
        no_fit = f"{whose} does not fit quota {group}"
        fits = (now if isinstance(now, int) else 1) + more
        return Answer(Granted(), [f"{no_fit}: {fits} would fit now"], Figures(group, f"{no_fit} now"))
