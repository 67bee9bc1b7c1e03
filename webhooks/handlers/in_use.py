"""Admission of the deletion of what charged workloads refer to: without it they could not be counted.

This file alone decides when such a deletion is refused, and the creation of what only their older versions refer to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.kube.client import NotFound
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.reference_resolver import NAMESPACES
from bizrq.workloads.lookup import Reference
from bizrq.workloads.validation import Malformed
from webhooks.charging.charges import display_name
from webhooks.charging.context import Context
from webhooks.charging.deadline import BusyRetries, Deadline
from webhooks.charging.reference_users import ReferenceUser, ReferenceUsers, is_of_claims
from webhooks.charging.shared_claims import SharedClaims, claim_busy
from webhooks.charging.stored import is_going
from webhooks.handlers.answer import MAX_NAMED

Object = dict[str, Any]


class InUseCheck:
    """Refuses to delete what is in use, unless its namespace is deleted with it."""

    def __init__(self, context: Context, users: ReferenceUsers, claims: SharedClaims) -> None:
        self._context = context
        self._users = users
        self._claims = claims

    async def admit(self, reference: Reference, stored: Object, deadline: Deadline) -> Verdict:
        """Return the verdict on a DELETE. Raises ApiError, Unreachable."""
        if not is_of_claims(reference) and await self._is_known_unused(reference, stored, deadline):
            return Granted()
        retries = BusyRetries(deadline)
        while True:
            # Before and after the users: what is promised before may be stored, and its promise gone, after they are
            # listed; what is promised meanwhile is not among them. Many pod templates are deleted, and few are named:
            # theirs are read after the users alone.
            before = await self._claims.pending_write(reference, deadline) if is_of_claims(reference) else None
            found = await self._users.find(reference, (stored,), deadline, made=True)
            users = self._users.need(reference, stored, found)
            awaited = None if users else before or await self._claims.pending_write(reference, deadline)
            if awaited is None or not await retries.again():
                break
        if (not users and awaited is None) or await self._is_namespace_going(reference[2], deadline):
            return Granted()
        where = f"{reference[1]} {reference[2]}/{reference[3]}"
        if awaited is not None:
            return claim_busy(where, awaited)
        return Denied(
            Reason.IN_USE, f"{where} is used by {_named(users)}: delete those first, or have them use another"
        )

    async def _is_known_unused(self, reference: Reference, stored: Object, deadline: Deadline) -> bool:
        """Return True where nothing needs a template by what the API server's cache and our watches have.

        A current list waits until the cache has what was written before, 0.1 s with each of many deletions. Either way
        a workload may come to name the template until the deletion is stored. Without the template nothing more of it
        is admitted, and what comes in its place is charged by current lists.
        """
        try:
            listed = await self._users.may_use(reference, deadline, current=False)
        except Malformed:
            # Too large for one answer: it is read by pages.
            return False
        found = await self._users.find(reference, (stored,), deadline, listed, made=True)
        return not self._users.need(reference, stored, found) and self._claims.known_write(reference) is None

    async def _is_namespace_going(self, name: str, deadline: Deadline) -> bool:
        try:
            namespace = await self._context.client.get(NAMESPACES, name, timeout=deadline.seconds_left())
        except NotFound:
            return True
        return bool(namespace["metadata"].get("deletionTimestamp"))


def used_by_earlier(reference: Reference, found: Sequence[ReferenceUser]) -> Denied | None:
    """Refuse to create what older versions of workloads, or what they left, would make their pods with.

    `found` are all users of the name. The garbage collector may delete what is in use, and what comes in its place may
    ask for any amount. Who names it now is charged for it; nobody is for these.
    """
    charged = {user.payer for user in found if not user.is_made}
    users = [user for user in found if user.is_made and user.payer not in charged and not is_going(user.obj)]
    if not users:
        return None
    where = f"{reference[1]} {reference[2]}/{reference[3]}"
    return Denied(Reason.IN_USE, f"{where} would be used by {_named(users)}: delete those first, or use another name")


def _named(users: Sequence[ReferenceUser]) -> str:
    names = sorted(display_name(user.obj) for user in users)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{' and '.join(names[:MAX_NAMED])}{more}"
