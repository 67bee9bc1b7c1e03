"""Who may charge a group, and who may hand out a budget: what is asked about whoever asks (`docs/rights.md`).

This file alone decides which changes need a right and which right that is. Whether somebody has it is the API server's
answer, by SubjectAccessReview; what cannot be asked is refused with "try again".
"""

from __future__ import annotations

from collections.abc import Mapping
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
from bizrq.units.resources import growth
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import charged_group, owner_chain
from webhooks.charging.deadline import Deadline

#: The resource name that stands above all roots: no group can have it, and RBAC takes it literally.
ROOTS = "*"


class Authorizer:
    """What one process asks about those who ask it."""

    def __init__(self, client: ObjectReader, store: GroupReader, reviewer: AccessReviewer, asked: RightsConfig) -> None:
        self._client = client
        self._store = store
        self._reviewer = reviewer
        self._asked = asked

    async def namespace_labels(self, namespace: str, deadline: Deadline) -> Mapping[str, str] | None:
        """Return the labels of a namespace as it is stored. Raises ApiError, Unreachable."""
        stored = await self._client.get(NAMESPACES, namespace, timeout=deadline.seconds_left())
        return stored_labels(stored)

    async def check_use(self, request: Request, group: str, deadline: Deadline) -> Denied | None:
        """Why they may not bring a workload into the group."""
        if not self._asked.use:
            return None
        try:
            if await self._may(request.user_info, "use", group, deadline):
                return None
        except (ApiError, Unreachable) as error:
            return _unasked(request.user_info, group, error)
        return use_denied(request.user_info, group)

    async def check_grant(
        self, request: Request, verb: str, name: str, parent: str, deadline: Deadline
    ) -> Denied | None:
        """Why they may not create, raise or delete (`verb`) a group below this parent, "" for a root.

        Who may hand out the budget of a group may do so in its whole subtree. Raises ApiError, Unreachable.
        """
        if not self._asked.grant:
            return None
        above, passed = parent, set[str]()
        while above and above not in passed:
            if await self._may(request.user_info, "grant", above, deadline):
                return None
            passed.add(above)
            stored = await self._store.read(above, deadline.seconds_left())
            above = stored.parent if stored is not None else ""
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
    """Whether the change brings into the group what it did not pay for, neither for itself nor for whoever made it.

    What costs nothing brings nothing. What a workload of the group made, paid for or not, was let in with it; so the
    Jobs of a CronJob are. But what leaves its owner for another group joins that: else whoever may charge one group
    could bring a child of it into any other. Raises Malformed.
    """
    if not charge.demand or charge.before:
        return False
    return not any(
        made in adapter.creates and registry.is_charged(adapter) and charged_group(owner, lookup) == group
        for owner, adapter, made in owner_chain(new if old is None else old, registry, lookup)
    )


def expands_budget(new: Group, old: Group | None) -> bool:
    """Whether a group's create (`old` is None) or update takes more of its parent, or lifts or loses a ceiling."""
    if old is None:
        return True
    if any(name not in new.hard or new.hard[name] > hard for name, hard in old.hard.items()):
        return True
    return bool(new.parent) and bool(growth(held_of_parent(new), held_of_parent(old)))


def namespace_not_selected(stored: GroupObject, namespace: str, labels: Mapping[str, str] | None) -> Denied | None:
    """Why a namespace with these labels may not charge the group; labels that are not known are picked by nothing."""
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
        f"use on {PLURAL}.{API_GROUP} {group}, by a ClusterRole that is bound to them or to a group of theirs",
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
        Reason.TIMEOUT, f"whether {_named(user)} may use quota {group} could not be asked, try again: {error}"
    )


def _named(user: UserInfo | None) -> str:
    """The user as one word of a line, whoever issued the name."""
    return " ".join((user.username if user else "").split())[:200] or "whoever asks"


def stored_labels(namespace: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """Return the labels of a stored namespace, None where it is not known."""
    return None if namespace is None else (namespace.get("metadata") or {}).get("labels") or {}


def held_of_parent(group: Group) -> dict[str, int]:
    """Return what the group holds of its parent; a name that it gives as 0 stays, so that the entry carries it."""
    return held_by_child(group.hard, group.used, group.reservations)
