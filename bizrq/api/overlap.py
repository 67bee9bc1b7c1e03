"""The ConfigMap that lists whose pods Kubernetes' controllers may not replace for now, and the policy that reads it.

While a group is over its quota through pods that are ending, or through a rollout that takes long, a controller's new
pod is rejected as by native quota, and the controller retries. The API server decides that by itself: no webhook is
called for the pods of a cluster (docs/decisions/0019-overlap-by-policy.md). The key is the uid of the object that makes
the pods, such as a ReplicaSet, or the `version_key` of what makes a ReplicaSet for each version; the value is the text
of the rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NAME: Final = "bizrq-overlap"
#: A ConfigMap holds 1 MiB, and a larger one is rejected as a whole. What is not listed is not rejected.
MAX_LISTED, MAX_BYTES = 2_000, 900 * 1024

_API: Final = "admissionregistration.k8s.io/v1"
#: The CEL expression for requests that come from a controller of Kubernetes.
BUILT_IN: Final = (
    "(request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kube-system:'))"
)
#: A Deployment and an Argo Rollout name a ReplicaSet by their own name and the hash that its pods have as a label.
_HASHES: Final = "['pod-template-hash', 'rollouts-pod-template-hash']"
_VERSION_KEY: Final = "(request.namespace + '.' + o.name.substring(0, o.name.lastIndexOf('-')))"
_IS_VERSION: Final = (
    f"o.kind == 'ReplicaSet' && has(object.metadata.labels) && {_HASHES}.exists(k, k in object.metadata.labels && "
    "o.name.endsWith('-' + object.metadata.labels[k]))"
)
_IS_LISTED: Final = (
    f"has(o.controller) && o.controller && (o.uid in params.data || ({_IS_VERSION} && {_VERSION_KEY} in params.data))"
)
#: The API server stores no longer key (kubernetes apimachinery validation, IsConfigMapKey).
_LONGEST_KEY: Final = 253


def version_key(namespace: str, name: str) -> str | None:
    """Return the key of a Deployment or a Rollout, for all its ReplicaSets, those of later versions too.

    None where it would be too long for a key; then ReplicaSets are listed by their uids only.
    """
    key = f"{namespace}.{name}"
    return key if len(key) <= _LONGEST_KEY else None


def config_map(namespace: str, listed: Mapping[str, str]) -> dict[str, Any]:
    """Return the ConfigMap that lists these makers of pods: texts by key. The first that fit are listed."""
    data: dict[str, str] = {}
    room = MAX_BYTES
    for key, text in listed.items():
        room -= len(key) + len(text.encode())
        if room < 0 or len(data) == MAX_LISTED:
            break
        data[key] = text
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/name": "bizrq"}},
        "data": dict(sorted(data.items())),
    }


def policy() -> dict[str, Any]:
    """Return the ValidatingAdmissionPolicy. It fails open: what it lets pass is counted."""
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "bizrq"}},
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
                ]
            },
            "matchConditions": [
                {"name": "made-by-kubernetes", "expression": BUILT_IN},
                {
                    "name": "listed",
                    "expression": "has(params.data) && has(object.metadata.ownerReferences) && "
                    f"object.metadata.ownerReferences.exists(o, {_IS_LISTED})",
                },
            ],
            "validations": [
                {
                    "expression": "false",
                    "message": "exceeded quota: pods of this workload are ending; try again when they are gone",
                    "messageExpression": f"string(object.metadata.ownerReferences.filter(o, {_IS_LISTED})"
                    f".map(o, o.uid in params.data ? params.data[o.uid] : params.data[{_VERSION_KEY}])[0])",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def binding(namespace: str) -> dict[str, Any]:
    """Return the binding of the policy to the ConfigMap in the namespace of bizrq."""
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "bizrq"}},
        "spec": {
            "policyName": NAME,
            "validationActions": ["Deny"],
            "paramRef": {"name": NAME, "namespace": namespace, "parameterNotFoundAction": "Allow"},
        },
    }
