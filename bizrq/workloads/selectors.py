"""The label selectors of stored objects: what one matches, and which label keys it looks at.

This file alone reads such a selector. It does not know whose it is, and reports nothing: the API server has validated
it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Object = Mapping[str, Any]

#: A selector with more rules, or values in one, is sorted before it is asked: it may have a megabyte.
_FEW: Final = 32
#: So many of these are kept: each may take 25 MB.
_KEPT: Final = 4


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
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    if len(rules) > _FEW or any(map(_is_long, rules)):
        return _sorted(rules).hold(labels)
    return all(isinstance(rule, dict) and _holds(rule, labels) for rule in rules)


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


def _is_long(rule: object) -> bool:
    values = rule.get("values") if isinstance(rule, dict) else None
    return isinstance(values, list) and len(values) > _FEW


def _is_among(value: object, texts: Collection[str]) -> bool:
    """Return True for a text that is one of these. A label that is none matches nothing."""
    return isinstance(value, str) and value in texts


@dataclass(slots=True)
class _Rules:
    """Many rules by key: the values of which a label has to have one, or may have none, and keys that may not exist."""

    wanted: dict[str, set[str]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)
    excluded: dict[str, set[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    is_readable: bool = True

    def add(self, rule: object) -> None:
        key, values = (rule.get("key"), rule.get("values") or []) if isinstance(rule, dict) else (None, [])
        operator = rule.get("operator") if isinstance(rule, dict) else None
        if not isinstance(key, str) or not isinstance(values, list):
            self.is_readable = False
            return
        texts = {value for value in values if isinstance(value, str)}
        match operator:
            case "In":
                self.wanted[key] = self.wanted[key] & texts if key in self.wanted else texts
            case "NotIn":
                self.excluded.setdefault(key, set()).update(texts)
            case "Exists":
                self.needed.add(key)
            case "DoesNotExist":
                self.absent.add(key)
            case _:
                self.is_readable = False

    def hold(self, labels: Mapping[str, Any]) -> bool:
        if not self.is_readable or max(len(self.wanted), len(self.needed)) > len(labels):
            return False
        return (
            all(key in labels for key in self.needed)
            and all(_is_among(labels.get(key), texts) for key, texts in self.wanted.items())
            and not any(
                key in self.absent or _is_among(value, self.excluded.get(key, ())) for key, value in labels.items()
            )
        )


#: The rules of the selectors that were asked last, by identity, with the list itself so that nothing else has that.
_known: OrderedDict[int, tuple[Sequence[Any], _Rules]] = OrderedDict()


def _sorted(rules: Sequence[Any]) -> _Rules:
    known = _known.get(id(rules))
    if known is not None and known[0] is rules:
        return known[1]
    found = _Rules()
    for rule in rules:
        found.add(rule)
    _known[id(rules)] = rules, found
    if len(_known) > _KEPT:
        _known.popitem(last=False)
    return found
