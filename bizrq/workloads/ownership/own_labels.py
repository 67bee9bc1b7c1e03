"""Labels that a controller itself sets on what it makes, whatever the template says.

A selector that names one matches nothing that is made: the controller lets go each child and makes another, for ever.
The API server stores such a workload. This file alone knows these labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bizrq.workloads.kinds.declaration import DAEMON_SET, DEPLOYMENT, JOB, ROLLOUT, STATEFUL_SET, GroupKind
from bizrq.workloads.validation import malformed, map_at

_REVISION: Final = "controller-revision-hash"
#: The labels in which Deployments and Argo Rollouts give a ReplicaSet and its pods the hash of the version.
DEPLOYMENT_HASH: Final = "pod-template-hash"
ROLLOUT_HASH: Final = "rollouts-pod-template-hash"
VERSION_LABELS: Final = (DEPLOYMENT_HASH, ROLLOUT_HASH)
#: By kind. Source: kubernetes pkg/controller (deployment/sync.go, daemon/util, statefulset/stateful_set_utils.go,
#: job/indexed_job_utils.go), and argo-rollouts rollout/sync.go.
OWN_LABELS: Final[Mapping[GroupKind, frozenset[str]]] = {
    DEPLOYMENT: frozenset({DEPLOYMENT_HASH}),
    ROLLOUT: frozenset({ROLLOUT_HASH}),
    DAEMON_SET: frozenset({_REVISION, "pod-template-generation"}),
    STATEFUL_SET: frozenset({_REVISION, "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}),
    JOB: frozenset({"batch.kubernetes.io/job-completion-index"}),
}


def version_labels(kind: GroupKind) -> Sequence[str]:
    """Return by which labels a kind that makes a ReplicaSet for each version may tell these apart."""
    return [label for label in VERSION_LABELS if label in OWN_LABELS.get(kind, VERSION_LABELS)]


def workload_of_version(name: str, labels: Mapping[str, Any] | None) -> str:
    """Return the name of the workload whose version a ReplicaSet is by its own name and these labels; "" for others."""
    hashes = ((labels or {}).get(label) for label in VERSION_LABELS)
    return next((name.removesuffix(f"-{each}") for each in hashes if each and name.endswith(f"-{each}")), "")


def without_own_labels(selector: dict[str, Any], kind: GroupKind) -> dict[str, Any]:
    """Return a selector without what it says of the labels that its kind's controller sets. Raises nothing."""
    own, labels, rules = OWN_LABELS[kind], selector.get("matchLabels"), selector.get("matchExpressions")
    if not rules and isinstance(labels, dict) and own.isdisjoint(labels):
        return selector
    found = dict(selector)
    if isinstance(labels, dict):
        found["matchLabels"] = {key: value for key, value in labels.items() if key not in own}
    if isinstance(rules, list):
        found["matchExpressions"] = [each for each in rules if not (isinstance(each, dict) and _key(each) in own)]
    return found


def check_selector(obj: dict[str, Any], kind: GroupKind) -> None:
    """Raise Malformed for a selector that what the controller makes cannot match."""
    selector = map_at(obj, "spec", "selector")
    if kind not in OWN_LABELS or without_own_labels(selector, kind) == selector:
        return
    named = {*map_at(selector, "matchLabels"), *map(_key, _rules(selector))} & OWN_LABELS[kind]
    label = min(named)
    why = f"{label} is set by the controller itself, so that nothing it makes would match: select by other labels"
    raise malformed("spec.selector", why)


def _rules(selector: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = selector.get("matchExpressions")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _key(rule: Mapping[str, Any]) -> str:
    return str(rule.get("key"))
