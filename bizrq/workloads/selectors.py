"""The label selectors of stored objects: what one matches, and which label keys it looks at.

This file alone reads such a selector. It does not know whose it is, and reports nothing: the API server has validated
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def keys_of(selector: Object) -> frozenset[str]:
    """Return the label keys that a selector looks at."""
    if not any(key in selector for key in ("matchLabels", "matchExpressions")):
        return frozenset(selector)
    wanted, rules = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    keys = {rule.get("key") for rule in rules if isinstance(rule, dict)} if isinstance(rules, list) else set()
    return frozenset({*(wanted if isinstance(wanted, dict) else ()), *(key for key in keys if isinstance(key, str))})


def selects(selector: Object, labels: Mapping[str, Any]) -> bool:
    """Return True where a label selector matches, or a plain map as a ReplicationController has.

    What cannot be read matches nothing.
    """
    if not any(key in selector for key in ("matchLabels", "matchExpressions")):
        return all(labels.get(key) == value for key, value in selector.items())
    wanted, rules = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not isinstance(wanted, dict) or not isinstance(rules, list):
        return False
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        isinstance(rule, dict) and _holds(rule, labels) for rule in rules
    )


def _holds(rule: Object, labels: Mapping[str, Any]) -> bool:
    key, values = rule.get("key"), rule.get("values") or []
    if not isinstance(key, str) or not isinstance(values, list):
        return False
    match rule.get("operator"):
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False
