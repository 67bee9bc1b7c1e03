"""Answer SubjectAccessReviews, and `authorizer` in CEL, by the stored Roles and bindings, as RBAC reads them.

It decides which rules apply to a subject and whether one allows the request. The sandbox has none of the cluster roles
that a real cluster starts with and does not aggregate roles.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from sandbox.status import FieldError, bad_request, invalid, invalid_value, required
from sandbox.storage import Store

Json = dict[str, Any]
T = TypeVar("T")

_GROUP = "rbac.authorization.k8s.io"
_ACCOUNT = "system:serviceaccount:"
#: Its members may do everything: no authorizer is asked about them.
MASTERS = "system:masters"


def review(spec: Json | None, store: Store) -> Json:
    """Return the status of a review with this spec."""
    spec = spec or {}
    user, groups = spec.get("user") or "", spec.get("groups") or []
    asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    errors: list[FieldError] = []
    if not asked and not path:
        errors.append(required("spec.resourceAttributes", "exactly one of nonResourceAttributes or resourceAttributes"))
    if asked and path:
        errors.append(
            invalid_value(
                "spec.nonResourceAttributes", path, "cannot be specified in combination with resourceAttributes"
            )
        )
    if not user and not groups:
        errors.append(required("spec.user", "at least one of user or group must be specified"))
    if errors:
        raise invalid("authorization.k8s.io", "SubjectAccessReview", "", errors)
    if MASTERS in groups:
        return {"allowed": True}
    for rule, why in _rules(user, groups, (asked or {}).get("namespace") or "", store):
        if _allows_path(rule, path) if path else _allows(rule, asked or {}):
            return {"allowed": True, "reason": f"RBAC: allowed by {why}"}
    return {"allowed": False}


def token_review(spec: Json | None, users: Mapping[str, Json]) -> Json:
    """Return the status of a TokenReview; `users` are those that there are, by their tokens."""
    given = (spec or {}).get("token") or ""
    if not given:
        raise bad_request("token is required for TokenReview in authentication")
    user = owner(given, users)
    return {"user": {}, "error": "invalid bearer token"} if user is None else {"authenticated": True, "user": user}


def owner(given: str, users: Mapping[str, T]) -> T | None:
    """Return the user whose token this is."""
    said = given.encode("utf-8", "surrogateescape")
    return next((user for token, user in users.items() if hmac.compare_digest(said, token.encode())), None)


def bearer(header: str, users: Mapping[str, T]) -> T | None:
    """Return the user of an Authorization header."""
    scheme, _, token = header.partition(" ")
    return owner(token, users) if scheme == "Bearer" else None


def allows(user: str, groups: Collection[str], asked: Json, store: Store) -> bool:
    """Return True if the stored RBAC allows the user a request with these attributes."""
    found = _rules(user, groups, asked.get("namespace") or "", store)
    return MASTERS in groups or any(_allows(rule, asked) for rule, _ in found)


def rules_review(spec: Json | None, user: str, groups: Collection[str], store: Store) -> Json:
    """Return the status of a SelfSubjectRulesReview."""
    namespace = (spec or {}).get("namespace") or ""
    if not namespace:
        raise bad_request("no namespace on request")
    everything: list[Json] = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    bound = [rule for rule, _ in _rules(user, groups, namespace, store) if rule.get("resources")]
    resources = everything if MASTERS in groups else bound
    return {"resourceRules": resources, "nonResourceRules": [], "incomplete": False}


def _rules(user: str, groups: Collection[str], namespace: str, store: Store) -> Iterator[tuple[Json, str]]:
    """Return the rules that are bound to the subject, in the cluster and in the namespace of the review."""
    bindings = [("ClusterRoleBinding", item.obj) for item in store.items((_GROUP, "clusterrolebindings"), None)]
    if namespace:
        bindings += [("RoleBinding", item.obj) for item in store.items((_GROUP, "rolebindings"), namespace)]
    for kind, binding in bindings:
        of = binding["metadata"].get("namespace", "")
        if not any(_is(subject, user, groups, of) for subject in binding.get("subjects") or ()):
            continue
        reference = binding.get("roleRef") or {}
        role = (
            store.get((_GROUP, "clusterroles"), "", reference.get("name", ""))
            if reference.get("kind") == "ClusterRole"
            else store.get((_GROUP, "roles"), of, reference.get("name", ""))
        )
        for rule in (role.obj.get("rules") or ()) if role is not None else ():
            name = reference.get("name", "")
            yield rule, f'{kind} "{binding["metadata"]["name"]}" of {reference.get("kind")} "{name}"'


def _is(subject: Json, user: str, groups: Collection[str], namespace: str) -> bool:
    match subject.get("kind"):
        case "User":
            return subject.get("name") == user
        case "Group":
            return subject.get("name") in groups
        case "ServiceAccount":
            of = subject.get("namespace") or namespace
            return bool(of) and user == f"{_ACCOUNT}{of}:{subject.get('name')}"
    return False


def _allows(rule: Json, asked: Json) -> bool:
    """Return whether a rule covers the request (pkg/apis/rbac/v1 evaluation_helpers.go); names have no wildcard."""
    resource, sub = asked.get("resource") or "", asked.get("subresource") or ""
    whole = f"{resource}/{sub}" if sub else resource
    resources = rule.get("resources") or ()
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs") or (), asked.get("verb") or "")
        and _has(rule.get("apiGroups") or (), asked.get("group") or "")
        and (_has(resources, whole) or bool(sub and f"*/{sub}" in resources))
        and (not names or (asked.get("name") or "") in names)
    )


def _allows_path(rule: Json, asked: Json) -> bool:
    """Return whether a rule covers a request of no resource; a `*` at the end of a path stands for anything."""
    path = asked.get("path") or ""
    return _has(rule.get("verbs") or (), asked.get("verb") or "") and any(
        each == path or (each.endswith("*") and path.startswith(each.rstrip("*")))
        for each in rule.get("nonResourceURLs") or ()
    )


def _has(listed: Collection[str], wanted: str) -> bool:
    return "*" in listed or wanted in listed
