"""What a user may do with groups, as the API server says it about themselves.

This file alone decides which reviews are asked, and how their rules are read. Every user may ask them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bizrq.api.group import API_GROUP, PLURAL
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.access import SelfAccessReviewer, self_may

RULES_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False
)
#: Seconds for one review.
_SECONDS = 10.0
#: Groups have no namespace, and the API server asks for one: rules for the cluster are in each.
_ANY_NAMESPACE = "default"


@dataclass(frozen=True)
class Rules:
    """The groups that rules name. `is_complete` is False where the API server cannot tell all rules."""

    readable: frozenset[str] = frozenset()
    editable: frozenset[str] = frozenset()
    is_complete: bool = True


@dataclass(frozen=True)
class Rights:
    """What one user may see. `lists` is True where they may list and watch all groups."""

    lists: bool
    rules: Rules = field(default_factory=Rules)


async def read_rights(client: KubeClient) -> Rights:
    """Return the rights of the client's user. Raise ApiError or Unreachable."""
    reviewer = SelfAccessReviewer(client)
    lists, watches, rules = await asyncio.gather(
        reviewer.may(None, "list", "", _SECONDS), reviewer.may(None, "watch", "", _SECONDS), _rules(client)
    )
    return Rights(lists and watches, rules)


async def may(client: KubeClient, verb: str, name: str, plural: str = PLURAL) -> bool:
    """Return True if the client's user may do this with a group or another object. Raise ApiError or Unreachable."""
    return await self_may(client, verb, plural, name, _SECONDS)


async def _rules(client: KubeClient) -> Rules:
    review = {
        "apiVersion": RULES_REVIEWS.api_version,
        "kind": RULES_REVIEWS.kind,
        "spec": {"namespace": _ANY_NAMESPACE},
    }
    status = (await client.create(RULES_REVIEWS, review, timeout=_SECONDS)).get("status") or {}
    return rules_of(status.get("resourceRules") or (), is_complete=status.get("incomplete") is not True)


def rules_of(rules: Iterable[dict[str, Any]], *, is_complete: bool = True) -> Rules:
    """Return what rules of RBAC say of single groups."""
    readable: set[str] = set()
    editable: set[str] = set()
    for rule in rules:
        if not (_has(rule, "apiGroups", API_GROUP) and _has(rule, "resources", PLURAL)):
            continue
        names = {str(name) for name in rule.get("resourceNames") or ()}
        if _has(rule, "verbs", "get"):
            readable |= names
        if _has(rule, "verbs", "patch"):
            editable |= names
    return Rules(frozenset(readable), frozenset(editable), is_complete)


def _has(rule: dict[str, Any], key: str, wanted: str) -> bool:
    listed = rule.get(key) or ()
    return "*" in listed or wanted in listed
