"""Admission of corrections, which credit or debit a group's hours.

This file alone decides which corrections may be made. The CRD makes them immutable (CEL), and the controller enters
them into the record.
"""

from __future__ import annotations

from bizrq.api import corrections as wire
from bizrq.api import group as groups
from bizrq.api.corrections import CorrectionObject, CorrectionUnreadable
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict, unreadable
from bizrq.units.names import base_and_model, cash_name, metered_resource
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline


class CorrectionHandler:
    """The webhook for BizGroupCorrection."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def admit(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on a CREATE of a correction."""
        try:
            correction = wire.from_dict(request.object or {})
            amounts = wire.amounts_of(correction, self._context.catalog)
        except CorrectionUnreadable as error:
            return _bad(request, str(error))
        if not correction.spec.reason.strip():
            return _bad(request, "spec.reason: say why")
        user = request.user_info.username if request.user_info else ""
        if correction.spec.by != user:
            return _bad(request, f"spec.by: is {correction.spec.by[:80]!r}, but {user or 'an unnamed user'} asks")
        try:
            group = await self._context.groups.read(correction.spec.group, deadline.seconds_left())
            if group is None:
                name = correction.spec.group[:80]
                return Denied(Reason.NO_GROUP, f"quota {name} does not exist: correct spec.group")
            if group.metadata.deletion_timestamp is not None:
                return Denied(Reason.DELETING, f"quota {group.name} is being deleted")
            authorizer = self._context.authorizer
            denied = await authorizer.check_grant(request, "correct", group.name, group.parent, deadline)
            return denied or self._of(request, correction, group, set(amounts)) or Granted()
        except GroupUnreadable as error:
            subject = f"quota {correction.spec.group} cannot be read"
            return unreadable(Reason.NOT_RECONCILED, correction.spec.group, subject, str(error))

    def _of(self, request: Request, correction: CorrectionObject, group: GroupObject, given: set[str]) -> Denied | None:
        """Refuse hours that the group does not meter, and a model's hours without those of its resource."""
        hard = groups.hard_of(group, self._context.catalog)
        if unmetered := sorted(name for name in given if cash_name(name) not in hard):
            metered = (
                ", ".join(metered_resource(name) for name in sorted(hard) if name.startswith("cash/")) or "nothing"
            )
            return _bad(request, f"spec.hours: quota {group.name} has no hours of {unmetered[0]}: it has {metered}")
        for name in sorted(given):
            split = base_and_model(name, self._context.catalog)
            if split is not None and split[0] not in given and cash_name(split[0]) in hard:
                return _bad(request, f"spec.hours: {name} is part of {split[0]}: give that, too")
        return None


def _bad(request: Request, why: str) -> Denied:
    name = request.name or str(((request.object or {}).get("metadata") or {}).get("name", ""))
    return Denied(Reason.BAD_CORRECTION, f"correction {name[:80]}: {why}")
