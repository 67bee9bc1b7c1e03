"""How a ValidatingAdmissionPolicy and its binding are written (Kubernetes admissionregistration/v1).

This file alone knows that. It does not know what any policy rejects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

Object = dict[str, Any]

_API: Final = "admissionregistration.k8s.io/v1"
_LABELS: Final = {"app.kubernetes.io/name": "bizrq"}


def rule(group: str, resources: Sequence[str], *operations: str, versions: Sequence[str] = ("*",)) -> Object:
    """Return a rule that matches these operations on resources of an API group, in any version by default."""
    return {
        "apiGroups": [group],
        "apiVersions": list(versions),
        "resources": list(resources),
        "operations": list(operations),
    }


def policy(
    name: str,
    rules: Sequence[Object],
    validations: Sequence[Object],
    *,
    excluded: Sequence[Object] = (),
    conditions: Mapping[str, str] | None = None,
    param_kind: Object | None = None,
    variables: Mapping[str, str] | None = None,
    namespaces: Sequence[Object] = (),
    fails_open: bool = False,
) -> Object:
    """Return a policy that rejects a write where a validation is false.

    It applies to what the rules match but the `excluded` ones do not, in namespaces whose labels match the expressions
    `namespaces`, where all `conditions`, CEL by name, are true. `variables`, CEL by name, are those of validations.
    """
    matched: Object = {"resourceRules": list(rules)}
    if excluded:
        matched["excludeResourceRules"] = list(excluded)
    spec: Object = {"failurePolicy": "Ignore" if fails_open else "Fail"}
    if param_kind is not None:
        spec["paramKind"] = dict(param_kind)
    if namespaces:
        matched["namespaceSelector"] = {"matchExpressions": list(namespaces)}
    spec["matchConstraints"] = matched
    if conditions:
        spec["matchConditions"] = [{"name": each, "expression": text} for each, text in conditions.items()]
    if variables:
        spec["variables"] = [{"name": each, "expression": text} for each, text in variables.items()]
    spec["validations"] = list(validations)
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": dict(_LABELS)},
        "spec": spec,
    }


def binding(name: str, *, params: Object | None = None, action: Literal["Deny", "Warn"] = "Deny") -> Object:
    """Return the binding by which the policy of this name rejects writes, or warns, with the `params` (a paramRef)."""
    spec: Object = {"policyName": name, "validationActions": [action]}
    if params is not None:
        spec["paramRef"] = dict(params)
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": dict(_LABELS)},
        "spec": spec,
    }
