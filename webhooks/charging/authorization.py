"""Check who may charge a group, take a namespace out of it, and hand out its budget (docs/rights.md).

This file alone decides which changes need a right, and which one. The API server answers by SubjectAccessReview whether
a user has it. Where it cannot be asked, the change is refused with "try again".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bizrq.api import selector
from bizrq.api.config import RightsConfig
from bizrq.api.group import API_GROUP, PLURAL, GroupObject
from bizrq.api.review import Request, UserInfo
from bizrq.api.selector import SelectorError
from bizrq.kube.client import ApiError, Unreachable
from bizrq.quota.change import Charge
from bizrq.quota.group_validation import Group
from bizrq.quota.recount import held_by_child
from bizrq.quota.verdict import Denied, Reason
from bizrq.store.ports import AccessReviewer, GroupReader, ObjectReader
from bizrq.store.reference_resolver import NAMESPACES
from bizrq.units.hierarchy import read_lineage
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import charged_group, owner_chain
from webhooks.charging.deadline import Deadline

#: The resource name of the right above all roots: no group can have it, and RBAC takes it literally.
ROOTS = "*"


class Authorizer:
    """Checks the rights of users on groups."""

    def __init__(
        self, client: ObjectReader, groups: GroupReader, reviewer: AccessReviewer, asked: RightsConfig
    ) -> None:
        """`asked` says which rights are asked for."""
        self._client = client
        self._groups = groups
        self._reviewer = reviewer
        self._asked = asked

    async def namespace_labels(self, namespace: str, deadline: Deadline) -> Mapping[str, str] | None:
        """Return the labels of a namespace as it is stored. Raises ApiError, Unreachable."""
        stored = await self._client.get(NAMESPACES, namespace, timeout=deadline.seconds_left())
        return stored_labels(stored)

    async def check_use(self, request: Request, group: str, deadline: Deadline) -> Denied | None:
        """Refuse a user who may not bring a workload into the group."""
        if not self._asked.use:
            return None
        try:
            if await self._may(request.user_info, "use", group, deadline):
                return None
        except (ApiError, Unreachable) as error:
            return _unasked(request.user_info, group, error)
        return use_denied(request.user_info, group)

    async def check_manage(self, request: Request, groups: Iterable[str], deadline: Deadline) -> Denied | None:
        """Refuse a user who may not take a namespace out of these groups, or bring it in past their admission.

        Asked whatever the configuration says. Raises ApiError, Unreachable.
        """
        for group in sorted(groups):
            if not await self._may(request.user_info, "manage", group, deadline):
                return manage_denied(request.user_info, request.name, group)
        return None

    async def check_grant(
        self, request: Request, verb: str, name: str, parent: str, deadline: Deadline
    ) -> Denied | None:
        """Refuse a user who may not create, change or delete (`verb`) a group below this parent, "" for a root.

        The right on a group holds for everything below it, and not for the group itself: that belongs to those above.
        So a change in either direction needs it. Raises ApiError, Unreachable.
        """
        if not self._asked.grant:
            return None

        async def parent_of(group: str) -> str:
            stored = await self._groups.read(group, deadline.seconds_left())
            return stored.parent if stored is not None else ""

        async for above in read_lineage(parent, parent_of):
            if await self._may(request.user_info, "grant", above, deadline):
                return None
        if await self._may(request.user_info, "grant", ROOTS, deadline):
            return None
        return grant_denied(request.user_info, verb, name, parent)

    async def _may(self, user: UserInfo | None, verb: str, group: str, deadline: Deadline) -> bool:
        return await self._reviewer.may(user, verb, group, deadline.seconds_left())


def is_new_in_group(
    group: str,
    charge: Charge,
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    registry: Registry,
    lookup: Lookup,
) -> bool:
    """Return whether the change brings cost into the group that neither the object nor an owner brought before.

    A child of a workload of the group was let in with it, paid for or not: the Jobs of a CronJob, for example. A child
    that leaves its owner for another group is new there. Otherwise a user of one group could bring a child of it into
    any other. Raises Malformed.
    """
    if not charge.demand or charge.before:
        return False
    return not any(
        made in adapter.creates and registry.is_charged(adapter) and charged_group(owner, registry, lookup) == group
        for owner, adapter, made in owner_chain(new if old is None else old, registry, lookup)
    )


def namespace_not_selected(stored: GroupObject, namespace: str, labels: Mapping[str, str] | None) -> Denied | None:
    """Refuse a namespace that the group's namespaceSelector does not select; no selector selects unknown labels."""
    wanted = stored.spec.namespace_selector
    if wanted is None:
        return None
    try:
        if labels is not None and selector.matches(wanted, labels):
            return None
        asks = selector.format_selector(wanted)
    except SelectorError as error:
        return Denied(Reason.NOT_RECONCILED, f"quota {stored.name} cannot be read: spec.namespaceSelector: {error}")
    return Denied(
        Reason.NAMESPACE,
        f"namespace {namespace} may not charge quota {stored.name}: its spec.namespaceSelector picks namespaces with "
        f"{asks}; use another namespace or group, or have the namespace labelled so",
    )


def use_denied(user: UserInfo | None, group: str) -> Denied:
    return Denied(
        Reason.MAY_NOT_USE,
        f"{_named(user)} may not charge quota {group}: creating a workload in it or moving one there needs the verb "
        f"use on {PLURAL}.{API_GROUP} {group}, by a ClusterRole that is bound to them or to a group of theirs; "
        f"ask an administrator to run: bizrq allow USER {group}",
    )


def manage_denied(user: UserInfo | None, namespace: str, group: str) -> Denied:
    return Denied(
        Reason.MAY_NOT_MANAGE,
        f"{_named(user)} may not change what namespace {namespace} charges quota {group}: it needs the verb manage on "
        f"{PLURAL}.{API_GROUP} {group}, by a ClusterRole that is bound to them or to a group of theirs",
    )


def grant_denied(user: UserInfo | None, verb: str, name: str, parent: str) -> Denied:
    where = f"{parent} or on a group above it" if parent else f"'{ROOTS}', since it is a root"
    return Denied(
        Reason.MAY_NOT_GRANT,
        f"{_named(user)} may not {verb} group {name}: it needs the verb grant on {PLURAL}.{API_GROUP} {where}, "
        "by a ClusterRole that is bound to them or to a group of theirs",
    )


def _unasked(user: UserInfo | None, group: str, error: Exception) -> Denied:
    return Denied(
        Reason.TIMEOUT, f"the right of {_named(user)} to use quota {group} could not be checked, try again: {error}"
    )


def _named(user: UserInfo | None) -> str:
    """Return the user's name as one line of at most 200 characters."""
    return " ".join((user.username if user else "").split())[:200] or "an unnamed user"


def stored_labels(namespace: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """Return the labels of a stored namespace, None where it is not known."""
    return None if namespace is None else (namespace.get("metadata") or {}).get("labels") or {}


def held_of_parent(group: Group) -> dict[str, int]:
    """Return what the group holds of its parent; a name that it gives as 0 stays, so that the entry carries it."""
    return held_by_child(group.hard, group.used, group.reservations)
