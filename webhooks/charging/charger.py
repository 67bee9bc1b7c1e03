"""Charge a counted write: authorize it, decide it, and count it again until nothing new is found.

This file alone decides in which order the charges of one write are made, and how often they are tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from bizrq.api.group import GroupObject
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Resource, Unreachable
from bizrq.quota.verdict import RETRYABLE, Denied, Granted, Reason, Verdict, already_exists
from bizrq.store.ports import ObjectReader
from bizrq.workloads.lookup import Reference
from webhooks.charging.authorization import Authorizer, namespace_not_selected, stored_labels
from webhooks.charging.charges import Charges, Counted, Decided, NothingCharged, PendingCharge
from webhooks.charging.confirmation import Confirmation
from webhooks.charging.deadline import BusyRetries, Deadline
from webhooks.charging.group_commit import Decide, NameCheck, Reserver

#: Seconds in which a write that was answered is stored, as a rule, even where the API server is busy.
LANDS = 1.0


class Charger:
    """Charges groups for writes; one for each process."""

    def __init__(
        self, authorizer: Authorizer, reserver: Reserver, client: ObjectReader, confirmation: Confirmation
    ) -> None:
        self._authorizer = authorizer
        self._client = client
        self._reserver = reserver
        self._confirmation = confirmation

    async def charge(
        self, request: Request, counted: Counted, deadline: Deadline, count_again: Callable[[], Awaitable[Counted]]
    ) -> Verdict:
        """Return the verdict on a counted write; where it is Granted, every reservation is stored.

        Growth is decided on current objects: what was counted from a watch that is behind is counted again.
        `count_again` is also called after the last reservation is stored, until it finds no new charge, and while
        another write has to be seen first. The API server, too, asks again where an update met another write; the first
        try is under way then. A create that is refused, or has to wait, takes back what was reserved for it: of two
        that wait for each other, one goes on. A dry run is decided in the same way and stores nothing. Raises what
        `count_again` raises, ApiError, Unreachable.
        """
        decide = self._reserver.decider(request)
        confirmed: set[Reference] = set()
        counted = await self._current(counted, deadline, count_again, confirmed)
        if isinstance(counted, Charges) and counted.precheck is not None:
            refused = await self._authorize_and_decide(request, counted.precheck, deadline, self._reserver.dry_run)
            if isinstance(refused, Denied):
                return _attributed(refused, counted.precheck)
        granted: dict[tuple[object, ...], PendingCharge] = {}

        async def again() -> Counted:
            # What was current before a reservation was stored may not be any more.
            confirmed.clear()
            return await self._current(await count_again(), deadline, count_again, confirmed)

        retries = BusyRetries(deadline)
        while True:
            try:
                verdict = await self._charge_until_stable(request, counted, deadline, decide, again, granted)
            except Exception:
                # It cannot be counted any more, so it is refused.
                await self._take_back(request, granted, deadline)
                raise
            if not isinstance(verdict, Denied):
                return verdict
            await self._take_back(request, granted, deadline)
            if verdict.reason is not Reason.BUSY or not await retries.again():
                return verdict
            counted = await again()

    async def _take_back(
        self, request: Request, granted: dict[tuple[object, ...], PendingCharge], deadline: Deadline
    ) -> None:
        """Take back what was reserved for a create, if there is time. Other writes may share their reservations."""
        if request.operation != "CREATE" or request.dry_run:
            return
        for key, pending in list(granted.items()):
            if pending.charge.resource_version is None:
                await self._reserver.take_back(pending.group, pending.charge, deadline.at)
                del granted[key]

    async def _current(
        self,
        counted: Counted,
        deadline: Deadline,
        count_again: Callable[[], Awaitable[Counted]],
        confirmed: set[Reference],
    ) -> Counted:
        """Return a count of which all growth is of current objects. Raises what `count_again` raises."""
        while isinstance(counted, Charges):
            growing = [each for each in counted.charges if each.charge.may_need_more() or each.charge.templates]
            if await self._confirmation.is_current(growing, deadline, confirmed):
                break
            counted = await count_again()
        return counted

    async def _charge_until_stable(
        self,
        request: Request,
        counted: Counted,
        deadline: Deadline,
        decide: Decide,
        count_again: Callable[[], Awaitable[Counted]],
        granted: dict[tuple[object, ...], PendingCharge],
    ) -> Verdict:
        """Decide each charge; count again until every charge that is found is in `granted`."""
        while True:
            match counted:
                case NothingCharged():
                    return Granted()
                case Decided():
                    return counted.verdict
                case Charges():
                    due = counted.charges
            if not counted.is_final:
                due = [found for found in due if found.key not in granted]
            if not due:
                return Granted()
            for pending in due:
                verdict = await self._authorize_and_decide(request, pending, deadline, decide)
                # An intent that cannot be stored is no reason to refuse a write that makes nothing worse.
                if isinstance(verdict, Denied) and (verdict.reason in RETRYABLE or not pending.is_intent):
                    return _attributed(verdict, pending)
                if not counted.is_final:
                    granted[pending.key] = pending
            if counted.is_final:
                return Granted()
            if counted.refers_anew:
                await earlier_writes_land(request, deadline)
            counted = await count_again()

    async def _authorize_and_decide(
        self, request: Request, pending: PendingCharge, deadline: Deadline, decide: Decide
    ) -> Verdict:
        """Refuse growth that the namespace or the user may not charge to the group; decide everything else.

        The group's namespaceSelector is checked on the same stored version of the group as the charge. Where it
        refuses by labels from the watch, the namespace is read and the charge is decided once more.
        """
        group, charge, namespace = pending.group, pending.charge, request.namespace
        name_check = self.name_check(request, deadline) if request.operation == "CREATE" else None
        if not charge.growth():
            return await decide(group, charge, deadline.at, None, name_check)
        refused = await self._authorizer.check_use(request, group, deadline) if pending.is_new_in_group else None
        if refused is not None and refused.reason is Reason.TIMEOUT:
            return refused
        labels = stored_labels(pending.lookup.get("", "Namespace", "", namespace))

        def check(stored: GroupObject, labels: Mapping[str, str] | None = labels) -> Denied | None:
            return namespace_not_selected(stored, namespace, labels) or refused

        verdict = await decide(group, charge, deadline.at, check, name_check)
        if not (isinstance(verdict, Denied) and verdict.reason is Reason.NAMESPACE):
            return verdict
        try:
            fresh = await self._authorizer.namespace_labels(namespace, deadline)
        except (ApiError, Unreachable) as error:
            return Denied(Reason.TIMEOUT, f"namespace {namespace} could not be read, try again: {error}")
        return await decide(group, charge, deadline.at, lambda stored: check(stored, fresh), name_check)

    def name_check(self, request: Request, deadline: Deadline) -> NameCheck:
        """Return a function that reads the object of a create, and refuses the create where there is one."""
        of = request.resource
        kind = Resource(of.group, of.version, of.resource, request.kind.kind, bool(request.namespace))
        name = request.name or str(((request.object or {}).get("metadata") or {}).get("name", ""))

        async def check() -> Denied | None:
            if not name:
                return None
            try:
                await self._client.get(kind, name, request.namespace or None, timeout=deadline.seconds_left())
            except NotFound:
                return None
            except (ApiError, Unreachable) as error:
                return Denied(Reason.TIMEOUT, f"{kind.key} {name} could not be read, try again: {error}")
            return already_exists(kind.key, name)

        return check


async def earlier_writes_land(request: Request, deadline: Deadline) -> None:
    """Wait until what was answered just before a reservation was stored is stored, too. A dry run stores none."""
    if not request.dry_run:
        await asyncio.sleep(min(LANDS, deadline.seconds_left()))


def _attributed(refused: Denied, pending: PendingCharge) -> Denied:
    """Return the refusal with the workload that the charge is made for, where another object's write makes it."""
    if not pending.on_behalf_of:
        return refused
    return replace(refused.followed_by(f"charged for {pending.on_behalf_of}"), on_behalf_of=pending.on_behalf_of)
