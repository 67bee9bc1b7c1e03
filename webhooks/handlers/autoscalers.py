"""Warn of a HorizontalPodAutoscaler that may ask for more than its group has left.

This file alone decides the warning. It refuses and reserves nothing: an autoscaler costs nothing until it scales, and
each of its steps is admitted like any other (`WorkloadHandler.scale`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import group_of, with_models
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.ownership.payers import Paid, anywhere, paid_by
from bizrq.workloads.validation import Malformed, expect_count, expect_map, get_path
from webhooks.charging.charges import charge_of
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.handlers.answer import Answer

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_SILENT = Answer(Granted())


class AutoscalerHandler:
    """The webhook for HorizontalPodAutoscalers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Answer:
        """Grant the write, with a warning where maxReplicas does not fit."""
        try:
            return await self._answer(request, deadline)
        except (ApiError, Unreachable, Malformed, GroupUnreadable) as error:
            # The review of a later scale says what is wrong.
            log.info("autoscaler not checked", namespace=request.namespace, name=request.name, error=str(error))
            return _SILENT

    async def _answer(self, request: Request, deadline: Deadline) -> Answer:
        """Return the answer with its warning, if any. Raises ApiError, Unreachable, Malformed, GroupUnreadable."""
        registry, config = self._context.registry, self._context.config
        spec = expect_map((request.object or {}).get("spec"), "spec")
        found = self._target(spec)
        if found is None:
            return _SILENT
        adapter, name = found
        most = expect_count(spec.get("maxReplicas"), "spec.maxReplicas")
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
        whose = f"maxReplicas {most} of {adapter.kind} {request.namespace}/{name}"
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

    def _target(self, spec: Mapping[str, Any]) -> tuple[Adapter, str] | None:
        """Return kind and name of the target, None where the target is not charged."""
        reference = expect_map(spec.get("scaleTargetRef"), "spec.scaleTargetRef")
        group, _ = group_and_version(reference.get("apiVersion"))
        kind, name = reference.get("kind"), reference.get("name")
        if not isinstance(kind, str) or not isinstance(name, str):
            return None
        adapter = self._context.registry.by_kind(group, kind)
        if adapter is None or adapter.scale is None or not self._context.registry.is_charged(adapter):
            return None
        return adapter, name
