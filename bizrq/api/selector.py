"""The label selector in a group's spec: which fields it may have, what it matches, and its text.

This file alone decides which labels a metav1.LabelSelector matches (apimachinery `labels/selector.go`). It does not
know whose labels they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: A selector's expressions and an expression's values have a bound, as in the CRD.
MAX_EXPRESSIONS = 32
MAX_VALUES = 64
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")


class SelectorError(ValueError):
    """An invalid selector. One line: where, what is wrong, what to write."""


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return True where these labels are selected; absent and empty selectors select all. Raises SelectorError."""
    if selector is None:
        return True
    validate(selector)
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def format_selector(selector: Mapping[str, Any]) -> str:
    """Return the selector as `kubectl --selector` takes it, sorted. Raises SelectorError."""
    validate(selector)
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], ",".join(sorted(expression.get("values") or ()))
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(words.get(expression["operator"], f"!{key}"))
    return ",".join(sorted(parts))


def validate(selector: object) -> None:
    """Raise SelectorError for the first invalid field of a selector, with its path."""
    if not isinstance(selector, Mapping):
        raise SelectorError("must be a map with matchLabels or matchExpressions")
    if unknown := sorted(set(map(str, selector)) - {"matchLabels", "matchExpressions"}):
        raise SelectorError(f"{unknown[0][:64]}: no such field: write matchLabels or matchExpressions")
    labels = selector.get("matchLabels")
    if labels is not None and not isinstance(labels, Mapping):
        raise SelectorError("matchLabels: must be a map of labels to values")
    for key, value in (labels or {}).items():
        _check_key("matchLabels", key)
        _check_value(f"matchLabels.{key}", value)
    expressions = selector.get("matchExpressions")
    if expressions is not None and not isinstance(expressions, list):
        raise SelectorError("matchExpressions: must be a list")
    if max(len(labels or ()), len(expressions or ())) > MAX_EXPRESSIONS:
        raise SelectorError(f"write at most {MAX_EXPRESSIONS} matchLabels and {MAX_EXPRESSIONS} matchExpressions")
    for index, expression in enumerate(expressions or ()):
        _check_expression(f"matchExpressions[{index}]", expression)


def _check_expression(path: str, expression: object) -> None:
    if not isinstance(expression, Mapping):
        raise SelectorError(f"{path}: must be a map with key and operator")
    _check_key(f"{path}.key", expression.get("key"))
    operator, values = expression.get("operator"), expression.get("values")
    if operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
        known = ", ".join((*_WITH_VALUES, *_WITHOUT_VALUES))
        raise SelectorError(f"{path}.operator: {str(operator)[:64]!r} is none of {known}")
    if values is not None and not isinstance(values, list):
        raise SelectorError(f"{path}.values: must be a list")
    if operator in _WITH_VALUES and not values:
        raise SelectorError(f"{path}.values: {operator} needs at least one value")
    if operator in _WITHOUT_VALUES and values:
        raise SelectorError(f"{path}.values: {operator} takes no values: leave them out")
    if len(values or ()) > MAX_VALUES:
        raise SelectorError(f"{path}.values: write at most {MAX_VALUES}")
    for number, value in enumerate(values or ()):
        _check_value(f"{path}.values[{number}]", value)


def _check_key(path: str, key: object) -> None:
    prefix, slash, name = key.rpartition("/") if isinstance(key, str) else ("", "", "")
    if not _NAME.fullmatch(name) or (slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix))):
        raise SelectorError(
            f"{path}: {str(key)[:64]!r} is no label: write NAME or DOMAIN/NAME, like team or example.com/team"
        )


def _check_value(path: str, value: object) -> None:
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        raise SelectorError(
            f"{path}: {str(value)[:64]!r} is no label value: write at most 63 letters, digits, '-', '_' or '.', with a "
            "letter or digit at both ends, in quotes where YAML would read a number or true"
        )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a valid expression matches. An absent label is in no set, so NotIn matches."""
    key = expression["key"]
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in expression["values"]
        case "NotIn":
            return key not in labels or labels[key] not in expression["values"]
        case "Exists":
            return key in labels
        case _:
            return key not in labels
