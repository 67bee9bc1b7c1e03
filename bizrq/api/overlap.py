"""The BizGroupOverlap on the wire: whose pods nobody may replace for now, and the policy on it.

While a group is over its quota through pods that are ending, or through a rollout that takes long, a new pod in their
place is rejected as by native quota, whoever makes it. A controller retries. The API server decides that by itself: no
webhook is called for the pods of a cluster (docs/decisions/0019-overlap-by-policy.md). The key is the uid of a workload
or of an object below it, such as a ReplicaSet, the `version_key` of what makes a ReplicaSet for each version, or the
`maker_key` of what a workload makes again under one name, such as a Job of a JobSet; the value is the text of the
rejection. What a listed object makes and no key finds again, such as a RayCluster of a RayService, is rejected itself:
the pods of one that is new would pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bizrq.api import policies
from bizrq.api.group import API_VERSION

KIND, PLURAL = "BizGroupOverlap", "bizgroupoverlaps"
#: The name of the one list, of the policy and of its binding.
NAME: Final = "bizrq-overlap"
#: The schema and the store reject a larger list as a whole. What is not listed is not rejected.
MAX_LISTED, MAX_BYTES = 2_000, 900 * 1024
#: The characters of a text that the schema allows.
MAX_TEXT: Final = 1_024
#: The texts for what is gone, and for what asks for fewer pods: its controller may be late with some that nobody is
#: charged for any more.
GONE: Final = "what these pods are made for is gone"
LOWERED: Final = "what these pods are made for asks for fewer now, and its controller has not acted on that; try again"
_TIME: Final = len("2026-01-01T00:00:00.000Z")

#: The CEL expression for requests that come from a controller of Kubernetes.
BUILT_IN: Final = (
    "(request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kube-system:'))"
)
#: A Deployment and an Argo Rollout name a ReplicaSet by their own name and the hash that its pods have as this label.
VERSION_LABELS: Final = ("pod-template-hash", "rollouts-pod-template-hash")
_LABELS: Final = f"{list(VERSION_LABELS)}"


def _rejects(key: str) -> str:
    """Return the CEL expression for a key that is listed, and whose rejection has not ended yet."""
    ended = f"timestamp(params.ends[{key}]) <= timestamp(object.metadata.creationTimestamp)"
    return f"({key} in params.listed && !({key} in params.?ends.orValue({{}}) && {ended}))"


#: Of a version: the key of what it is a version of, by its label k.
_VERSION_KEY: Final = "(request.namespace + '.' + o.name.substring(0, o.name.lastIndexOf('-')) + '/' + k)"
_IS_VERSION: Final = f"o.name.endsWith('-' + object.metadata.labels[k]) && {_rejects(_VERSION_KEY)}"
_IS_OF_VERSION: Final = (
    "o.kind == 'ReplicaSet' && has(object.metadata.labels) && "
    f"{_LABELS}.exists(k, k in object.metadata.labels && {_IS_VERSION})"
)
_MAKER_KEY: Final = "(request.namespace + '/' + o.kind + '/' + o.name)"
_IS_LISTED: Final = (
    f"has(o.controller) && o.controller && ({_rejects('o.uid')} || {_rejects(_MAKER_KEY)} || ({_IS_OF_VERSION}))"
)
#: The text of a listed maker.
_TEXT: Final = (
    f"{_rejects('o.uid')} ? params.listed[o.uid] : {_rejects(_MAKER_KEY)} ? "
    f"params.listed[{_MAKER_KEY}] : params.listed[{_LABELS}.filter(k, k in object.metadata.labels && {_IS_VERSION})"
    f".map(k, {_VERSION_KEY})[0]]"
)
#: The pods of a maker that is written are found by its own key, those of a ReplicaSet as those of a version of its
#: owner: its own key is listed while nobody owns it, and no longer once a Deployment has adopted it.
_ITS_LABELS: Final = "object.spec.template.metadata.labels"
_IS_FOUND_AGAIN: Final = (
    f"(request.kind.kind == 'ReplicaSet' ? has({_ITS_LABELS}) && {_LABELS}.exists(k, k in {_ITS_LABELS} && "
    f"object.metadata.name == o.name + '-' + {_ITS_LABELS}[k] && "
    "(request.namespace + '.' + o.name + '/' + k) in params.listed) : "
    "(request.namespace + '/' + request.kind.kind + '/' + object.metadata.name) in params.listed)"
)


def version_key(namespace: str, name: str, label: str) -> str:
    """Return the key of a Deployment or a Rollout, for all its ReplicaSets, those of later versions too.

    `label` is the one by which its kind tells versions apart: another kind may have an object of that name.
    """
    return f"{namespace}.{name}/{label}"


def maker_key(namespace: str, kind: str, name: str) -> str:
    """Return the key of what makes pods and is made again under one name, whatever its uid."""
    return f"{namespace}/{kind}/{name}"


def overlap_list(listed: Mapping[str, str], ends: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the object that lists these makers of pods: texts by key. The first that fit are listed, long ones cut.

    `ends` are the times (RFC 3339) from which a key rejects nothing, by key. They are the API server's own, as it gives
    each object its time of creation, so nobody has to take the key out of the list in time.
    """
    fitting: dict[str, str] = {}
    room = MAX_BYTES
    for key, text in listed.items():
        short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
        room -= 2 * len(key) + len(short.encode()) + _TIME
        if room < 0 or len(fitting) == MAX_LISTED:
            break
        fitting[key] = short
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "bizrq"}},
        "listed": dict(sorted(fitting.items())),
        "ends": {key: end for key, end in sorted((ends or {}).items()) if key in fitting},
    }


def policy(makers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the ValidatingAdmissionPolicy. It fails open: what it lets pass is counted.

    `makers` are the kinds that workloads make and that make pods, by API group and plural.
    """
    by_group: dict[str, list[str]] = {}
    for group, plural in sorted(makers):
        by_group.setdefault(group, []).append(plural)
    raised = "(request.operation == 'CREATE' || object.spec.replicas > oldObject.spec.replicas)"
    listed = (
        "has(params.listed) && has(object.metadata.ownerReferences) && (request.resource.resource == 'pods' ? "
        f"object.metadata.ownerReferences.exists(o, {_IS_LISTED}) : {raised} && "
        "object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && "
        f"{_rejects('o.uid')} && !{_IS_FOUND_AGAIN}))"
    )
    rejected = {
        "expression": "false",
        "message": "exceeded quota: pods of this workload are ending; try again when they are gone",
        "messageExpression": f"string(object.metadata.ownerReferences.filter(o, {_IS_LISTED}).map(o, {_TEXT})[0])",
        "reason": "Forbidden",
    }
    return policies.policy(
        NAME,
        [
            policies.rule("", ["pods"], "CREATE", versions=["v1"]),
            *(policies.rule(group, plurals, "CREATE") for group, plurals in by_group.items()),
            # What a Deployment adopts may have any name.
            policies.rule("apps", ["replicasets"], "UPDATE"),
        ],
        [rejected],
        conditions={"listed": listed},
        param_kind={"apiVersion": API_VERSION, "kind": KIND},
        fails_open=True,
    )


def binding() -> dict[str, Any]:
    """Return the binding of the policy to the list. While there is no list, nothing is rejected."""
    return policies.binding(NAME, params={"name": NAME, "parameterNotFoundAction": "Allow"})
