"""On which nodes a DaemonSet's pods run.

This file alone answers that, as Kubernetes' controller does (kubernetes pkg/controller/daemon/daemon_controller.go,
NodeShouldRunDaemonPod; component-helpers scheduling/corev1/nodeaffinity). It does not know where nodes come from.

One rule is wider: taints whose key starts with `node.kubernetes.io/` follow the state of a node and pass by themselves,
so they exclude no node. The tolerations that the controller adds to its pods are all of such taints. And a placement
that would take too long to evaluate excludes no node either: a tenant may write a megabyte of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from bizrq.workloads.validation import child_path, expect_list, expect_map

Object: TypeAlias = Mapping[str, Any]
_Fits: TypeAlias = Callable[[Object, str], bool]
"""Labels and name of a node."""

#: A placement with more rules or values, or more tests over all nodes that differ, is not evaluated.
_MOST_RULES: Final = 5_000
_MOST_STEPS: Final = 100_000
#: The lists of rules in a term.
_PARTS: Final = ("matchExpressions", "matchFields")
_STATE_TAINTS: Final = "node.kubernetes.io/"
_EVICTING: Final = frozenset({"NoExecute"})
_REPELLING: Final = _EVICTING | {"NoSchedule"}
_NAME_FIELD: Final = "metadata.name"
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def eligible_nodes(spec: Object, path: str, nodes: Iterable[Object], *, made: bool = True) -> list[str]:
    """Return the names of the nodes that a pod with this PodSpec is made on, without `made` of those where it may stay.

    A taint with the effect NoSchedule keeps no pod from staying. `path` is where the spec stands, for errors. Raises
    Malformed where the spec is not of the form that Kubernetes takes.
    """
    name, selector, terms, tolerations = placement(spec, path)
    asked = [node for node in nodes if name in ("", _name(node))]
    rules = [rule for term in terms or () for part in _PARTS for rule in term.get(part) or ()]
    keys = sorted({*map(str, selector), *(str(rule.get("key")) for rule in rules)})
    values, cost = sum(len(rule.get("values") or ()) for rule in rules), len(rules) + len(tolerations)
    if max(cost, values) > _MOST_RULES or len(keys) * len(asked) > _MOST_STEPS:
        return [_name(node) for node in asked]
    fits, tolerates, by_name = (
        _affinity(selector, terms),
        _Tolerations(tolerations, _REPELLING if made else _EVICTING),
        any(map(_has_fields, terms or ())),
    )
    found: list[str] = []
    verdicts: dict[object, bool] = {}
    for node in asked:
        like = _likeness(node, keys, by_name=by_name)
        if like not in verdicts:
            if (len(verdicts) + 1) * cost > _MOST_STEPS:
                return [_name(node) for node in asked]
            verdicts[like] = fits(_labels(node), _name(node)) and tolerates.all(_taints(node))
        if verdicts[like]:
            found.append(_name(node))
    return found


def _likeness(node: Object, keys: Sequence[str], *, by_name: bool) -> object:
    """Return a value that is equal for nodes that a placement cannot tell apart."""
    labels, taints = _labels(node), _taints(node)
    marks = [str((taint.get("key"), taint.get("value"), taint.get("effect"))) for taint in taints]
    return (*(repr(labels.get(key)) for key in keys), *marks, _name(node) if by_name else "")


def _has_fields(term: Object) -> bool:
    return bool(term.get("matchFields"))


def placement(spec: Object, path: str) -> tuple[str, Object, Sequence[Object] | None, Sequence[Object]]:
    """Return what of a PodSpec says where its pods run; equal specs of it run on the same nodes. Raises Malformed.

    A node's name ("" for any), the node selector, the terms of the required node affinity (None for any node), and the
    tolerations.
    """
    affinity_path = child_path(path, "affinity.nodeAffinity")
    affinity = expect_map(spec.get("affinity"), child_path(path, "affinity"))
    required = expect_map(affinity.get("nodeAffinity"), affinity_path).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms: list[Object] | None = None
    if required is not None:
        required_path = f"{affinity_path}.requiredDuringSchedulingIgnoredDuringExecution"
        terms_path = f"{required_path}.nodeSelectorTerms"
        terms = _maps(expect_map(required, required_path).get("nodeSelectorTerms"), terms_path)
        for number, term in enumerate(terms):
            for key in filter(term.__contains__, _PARTS):
                rules_path = f"{terms_path}[{number}].{key}"
                for place, rule in enumerate(_maps(term.get(key), rules_path)):
                    expect_list(rule.get("values"), f"{rules_path}[{place}].values")
    return (
        str(spec.get("nodeName") or ""),
        expect_map(spec.get("nodeSelector"), child_path(path, "nodeSelector")),
        terms,
        _maps(spec.get("tolerations"), child_path(path, "tolerations")),
    )


def _maps(value: object, path: str) -> list[Object]:
    return [
        each if isinstance(each, dict) else expect_map(each, f"{path}[{number}]")
        for number, each in enumerate(expect_list(value, path))
    ]


def _affinity(selector: Object, terms: Sequence[Object] | None) -> _Fits:
    """Return the test of a node selector and of a required node affinity.

    Terms are alternatives. One that is empty, or cannot be read, matches no node.
    """
    wanted = selector.items()
    if terms is None:
        return lambda labels, _name: wanted <= labels.items()
    tests = [test for term in terms if (test := _term(term)) is not None]
    return lambda labels, name: wanted <= labels.items() and any(test(labels, name) for test in tests)


def _term(term: Object) -> _Fits | None:
    """Return the test of one term, all of whose rules must hold; None where it matches no node."""
    rules = [_label_rule(rule) for rule in term.get("matchExpressions") or ()]
    rules += [_field_rule(rule) for rule in term.get("matchFields") or ()]
    known = [rule for rule in rules if rule is not None]
    if not rules or len(known) < len(rules):
        return None
    return lambda labels, name: all(rule(labels, name) for rule in known)


def _label_rule(rule: Object) -> _Fits | None:
    """Return the test of a rule on labels, None where it cannot be read (apimachinery pkg/labels, NewRequirement)."""
    key = str(rule.get("key"))
    values: Collection[Any] = rule.get("values") or []
    if not all(isinstance(value, str) and _LABEL_VALUE.fullmatch(value) for value in values):
        return None
    if len(values) > 1:
        values = frozenset(values)
    match rule.get("operator"):
        case "In" if values:
            return lambda labels, _name: key in labels and labels[key] in values
        case "NotIn" if values:
            return lambda labels, _name: key not in labels or labels[key] not in values
        case "Exists" if not values:
            return lambda labels, _name: key in labels
        case "DoesNotExist" if not values:
            return lambda labels, _name: key not in labels
        case "Gt" if (bound := _only_whole(values)) is not None:
            return lambda labels, _name: (found := _whole(labels.get(key))) is not None and found > bound
        case "Lt" if (bound := _only_whole(values)) is not None:
            return lambda labels, _name: (found := _whole(labels.get(key))) is not None and found < bound
        case _:
            return None


def _field_rule(rule: Object) -> _Fits | None:
    """Return the test of a rule on fields, None where it cannot be read. A node has one field, its name."""
    key, values = rule.get("key"), rule.get("values") or []
    if len(values) != 1 or rule.get("operator") not in ("In", "NotIn"):
        return None
    wanted, is_equal = values[0], rule["operator"] == "In"
    return lambda _labels, name: ((name if key == _NAME_FIELD else "") == wanted) is is_equal


class _Tolerations:
    """Tolerations of a pod for taints with some effects (kubernetes core/v1 toleration.go, ToleratesTaint)."""

    def __init__(self, tolerations: Sequence[Object], effects: Collection[str]) -> None:
        self._tolerations = tolerations
        self._effects = effects

    def all(self, taints: Iterable[Object]) -> bool:
        """Return True where each taint with such an effect is tolerated."""
        return all(
            any(_tolerates(toleration, taint) for toleration in self._tolerations)
            for taint in taints
            if taint.get("effect") in self._effects and not str(taint.get("key")).startswith(_STATE_TAINTS)
        )


def _tolerates(toleration: Object, taint: Object) -> bool:
    for field in ("effect", "key"):
        if toleration.get(field) and toleration[field] != taint.get(field):
            return False
    wanted, value = toleration.get("value") or "", taint.get("value") or ""
    match toleration.get("operator") or "Equal":
        case "Equal":
            return wanted == value
        case "Exists":
            return True
        case "Gt" | "Lt" as operator:
            # API servers take these two with the feature TaintTolerationComparisonOperators only (KEP-5471).
            bound, found = _whole(wanted), _whole(value)
            if bound is None or found is None:
                return False
            return found > bound if operator == "Gt" else found < bound
        case _:
            return False


def _only_whole(values: Collection[str]) -> int | None:
    return _whole(*values) if len(values) == 1 else None


def _whole(text: object) -> int | None:
    """Return a whole number of 64 bits, None for anything else (Go: strconv.ParseInt)."""
    if not isinstance(text, str) or len(text) > 63 or not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _name(node: Object) -> str:
    return str(expect_map(node.get("metadata"), "metadata").get("name") or "")


def _labels(node: Object) -> Object:
    return expect_map(expect_map(node.get("metadata"), "metadata").get("labels"), "metadata.labels")


def _taints(node: Object) -> Sequence[Object]:
    return _maps(expect_map(node.get("spec"), "spec").get("taints"), "spec.taints")
