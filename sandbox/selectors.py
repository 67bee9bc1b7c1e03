"""Compile label and field selectors into predicates.

It decides matching and which selectors are malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.status import bad_request

Json = dict[str, Any]
Labels = Mapping[str, str]
Matcher = Callable[[Labels], bool]
ObjectMatcher = Callable[[Json], bool]

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*", re.ASCII)


def label_key_problem(key: str) -> str | None:
    """Return the error of a label key, in Kubernetes' words (validation.IsQualifiedName), or None."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not dns_subdomain(prefix)):
        return "prefix part " + DNS_SUBDOMAIN_TEXT
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    if not _NAME.fullmatch(name):
        return (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )
    return None


def label_value_problem(value: str) -> str | None:
    if len(value) > 63:
        return "must be no more than 63 bytes"
    if value and not _NAME.fullmatch(value):
        return (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
            "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )
    return None


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
DNS_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
DNS_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def dns_subdomain(name: str) -> bool:
    return len(name) <= 253 and _DNS_SUBDOMAIN.fullmatch(name) is not None


def dns_label(name: str) -> bool:
    return len(name) <= 63 and _DNS_LABEL.fullmatch(name) is not None


def _requirement(key: str, operator: str, values: frozenset[str]) -> Matcher:
    if problem := label_key_problem(key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {problem}')
    for value in values:
        if problem := label_value_problem(value):
            raise bad_request(f"unable to parse requirement: values[0][{key}]: Invalid value: {value!r}: {problem}")
    match operator:
        case "exists":
            return lambda labels: key in labels
        case "!":
            return lambda labels: key not in labels
        case "in":
            return lambda labels: labels.get(key) in values
        case _:
            return lambda labels: labels.get(key) not in values


def _pieces(text: str) -> list[str]:
    """Split at commas that are not inside parentheses."""
    return [piece for piece in re.split(r",(?![^(]*\))", text) if piece.strip()]


def parse_labels(text: str) -> Matcher | None:
    """Compile a labelSelector parameter; None selects everything. 400 if malformed."""
    if not text.strip():
        return None
    matchers: list[Matcher] = []
    for piece in _pieces(text):
        if found := _SET.fullmatch(piece):
            values = frozenset(value.strip() for value in found["values"].split(","))
            matchers.append(_requirement(found["key"], found["op"], values))
            continue
        for mark, operator in (("!=", "notin"), ("==", "in"), ("=", "in")):
            key, sign, value = piece.partition(mark)
            if sign:
                matchers.append(_requirement(key.strip(), operator, frozenset({value.strip()})))
                break
        else:
            key = piece.strip()
            operator = "!" if key.startswith("!") else "exists"
            matchers.append(_requirement(key.removeprefix("!").strip(), operator, frozenset()))
    if len(matchers) == 1:
        return matchers[0]
    return lambda labels: all(matcher(labels) for matcher in matchers)


def compile_selector(selector: Json | None) -> Matcher | None:
    """Compile a metav1.LabelSelector; None selects everything ({} or absent)."""
    if not selector:
        return None
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
    matchers = [
        _requirement(key, "in", frozenset({value})) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for wanted in selector.get("matchExpressions") or ():
        operator = operators.get(wanted.get("operator", ""))
        if operator is None:
            raise bad_request(f'"{wanted.get("operator")}" is not a valid label selector operator')
        matchers.append(_requirement(wanted.get("key", ""), operator, frozenset(wanted.get("values") or ())))
    return lambda labels: all(matcher(labels) for matcher in matchers)


def selector_text(selector: Json | None) -> str:
    """Return a LabelSelector as a labelSelector parameter, sorted by key."""
    parts: list[tuple[str, str]] = [
        (key, f"{key}={value}") for key, value in ((selector or {}).get("matchLabels") or {}).items()
    ]
    for wanted in (selector or {}).get("matchExpressions") or ():
        key, values = wanted.get("key", ""), ",".join(sorted(wanted.get("values") or ()))
        match wanted.get("operator"):
            case "In":
                parts.append((key, f"{key} in ({values})"))
            case "NotIn":
                parts.append((key, f"{key} notin ({values})"))
            case "Exists":
                parts.append((key, key))
            case _:
                parts.append((key, f"!{key}"))
    return ",".join(text for _, text in sorted(parts))


_COMMON_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS: dict[tuple[str, str], frozenset[str]] = {
    ("", "pods"): frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    ("", "events"): frozenset(
        {
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    ),
    ("", "nodes"): frozenset({"spec.unschedulable"}),
    ("", "namespaces"): frozenset({"status.phase"}),
    ("", "secrets"): frozenset({"type"}),
    ("batch", "jobs"): frozenset({"status.successful"}),
    ("apps", "replicasets"): frozenset({"status.replicas"}),
}


def _field(obj: Json, path: str) -> str:
    value: Any = obj
    if path == "source":
        value = (obj.get("source") or {}).get("component", "")
    else:
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return "false" if path == "spec.unschedulable" else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_fields(kind: tuple[str, str], text: str, selectable: frozenset[str]) -> ObjectMatcher | None:
    """Compile a fieldSelector parameter; None selects everything.

    400 for a field that the kind does not index; an API server indexes few fields of each kind. `selectable` has the
    fields that a CustomResourceDefinition adds.
    """
    if not text.strip():
        return None
    terms: list[tuple[str, str, bool]] = []
    known = _COMMON_FIELDS | _FIELDS.get(kind, frozenset()) | selectable
    for piece in text.split(","):
        if not piece:
            continue
        for mark in ("!=", "==", "="):
            path, sign, value = piece.partition(mark)
            if sign:
                break
        else:
            raise bad_request(f"invalid selector: '{piece}'; can't understand '{piece}'")
        if path not in known:
            if kind in _FIELDS:
                raise bad_request(f"field label not supported: {path}")
            raise bad_request(f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"')
        terms.append((path, value, mark != "!="))
    return lambda obj: all((_field(obj, path) == value) is wanted for path, value, wanted in terms)
