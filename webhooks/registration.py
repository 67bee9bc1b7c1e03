"""What the API server has to know to ask: one ValidatingWebhookConfiguration.

This file alone decides which requests are sent to the webhooks (Kubernetes admissionregistration/v1). Each
webhook fails closed, but for those that say why not; selectors and match conditions keep everything else away from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bizrq.api.corrections import PLURAL as CORRECTIONS
from bizrq.api.group import API_GROUP, PLURAL
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, MODEL_LABELS, REQUIRED

NAME = "bizrq"
TIMEOUT_SECONDS = 10

#: How a webhook of this path is reached: {"url": …} or {"service": …}, with the caBundle where it is known.
ClientConfig = Callable[[str], dict[str, Any]]

_LABELS = ", ".join(f"'{label}'" for label in (LABEL, *sorted(MODEL_LABELS.values())))


def _of(owner: str, path: str, default: str) -> str:
    return f"(has({owner}.{path}) ? {owner}.{path} : {default})"


def _label(owner: str) -> str:
    labels = f"{owner}.metadata.labels"
    return f"(has({labels}) && k in {labels} ? {labels}[k] : '')"


def _finalized(finalizer: str) -> str:
    finalizers = "oldObject.metadata.finalizers"
    return f"(has({finalizers}) && {finalizers}.exists(f, f == '{finalizer}'))"


#: An update is sent unless nothing that is charged can have changed: spec, labels, owners.
CHARGED = " || ".join(
    [
        "request.operation != 'UPDATE'",
        "!has(object.spec)",
        "!has(oldObject.spec)",
        "object.spec != oldObject.spec",
        f"[{_LABELS}].exists(k, {_label('object')} != {_label('oldObject')})",
        f"{_of('object', 'metadata.ownerReferences', '[]')} != {_of('oldObject', 'metadata.ownerReferences', '[]')}",
    ]
)
#: Scaling down is never refused; an absent count is 0.
SCALED_UP = (
    "has(object.spec) && has(object.spec.replicas) && "
    "(!has(oldObject.spec) || !has(oldObject.spec.replicas) || object.spec.replicas > oldObject.spec.replicas)"
)
#: Who Kubernetes' own controllers are.
_BUILT_IN = (
    "(request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kube-system:'))"
)
#: Of what a workload may refer to, only the template counts. Nothing of Kubernetes' own waits for us to delete: a
#: namespace that goes, or what went with its owner.
_TEMPLATE = "(has({0}.spec) && has({0}.spec.template) ? {0}.spec.template : has({0}.template) ? {0}.template : {{}})"
REFERRED = (
    "request.operation == 'UPDATE' ? "
    f"{_TEMPLATE.format('object')} != {_TEMPLATE.format('oldObject')} : "
    f"request.operation != 'DELETE' || !{_BUILT_IN}"
)
#: A deletion that is asked to leave what the object made; where nobody says how to delete, its finalizer does. That the
#: API server leaves the pods of a batch/v1 Job when nobody says anything is no wish: they are counted and told.
ORPHANING = (
    "has(request.options) && ("
    "(has(request.options.propagationPolicy) && request.options.propagationPolicy == 'Orphan') || "
    "(has(request.options.orphanDependents) && request.options.orphanDependents) || "
    "(!has(request.options.propagationPolicy) && !has(request.options.orphanDependents) && "
    f"{_finalized('orphan')}))"
)
#: The default group of a namespace is another than before.
DEFAULT_CHANGED = (
    f"['{LABEL}'].exists(k, {_label('object')} != (request.operation == 'CREATE' ? '' : {_label('oldObject')}))"
)
#: A claim that people made, whose labels say whose it is; a pod's own came in with the pod.
CLAIMED = (
    "!(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'Pod')) && "
    f"(request.operation != 'UPDATE' || [{_LABELS}].exists(k, {_label('object')} != {_label('oldObject')}))"
)
SPEC_CHANGED = "request.operation != 'UPDATE' || object.spec != oldObject.spec"


def exempt_namespaces(namespace: str) -> list[str]:
    """Namespaces whose scaling does not depend on bizrq, which runs in `namespace`: the cluster's own and ours."""
    return sorted({"kube-system", namespace})


def made_for_payer(registry: Registry) -> str:
    """Return the CEL expression for pods and ReplicaSets that Kubernetes' controllers make for a kind that pays.

    Whatever else they make pays for itself. The owner is not read: where one of such a kind does not pay, it was there
    before its namespace required a group.
    """
    kinds: dict[str, list[str]] = {}
    for adapter in registry.charged:
        if adapter.pays and adapter.creates & {("", "Pod"), ("apps", "ReplicaSet")}:
            kinds.setdefault(adapter.group, []).append(adapter.kind)
    owners = " || ".join(f"{_of_group(group)} && o.kind in {sorted(names)}" for group, names in sorted(kinds.items()))
    return (
        "request.resource.resource in ['pods', 'replicasets'] && "
        f"{_BUILT_IN} && has(object.metadata.ownerReferences) && "
        f"object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && ({owners or 'false'}))"
    )


def _of_group(group: str) -> str:
    return f"o.apiVersion.startsWith('{group}/')" if group else "o.apiVersion == 'v1'"


def configuration(registry: Registry, client_config: ClientConfig, *, namespace: str) -> dict[str, Any]:
    """The registration of all webhooks for the charged kinds; `namespace` is where bizrq itself runs."""
    common = {
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": TIMEOUT_SECONDS,
        # A dry run is decided and writes nothing.
        "sideEffects": "NoneOnDryRun",
    }
    elsewhere = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt_namespaces(namespace)}
    labelled, unlabelled = {"key": LABEL, "operator": "Exists"}, {"key": LABEL, "operator": "DoesNotExist"}
    charged = [
        _rule(a.group, list(a.versions), [a.plural], ["CREATE", "UPDATE"], "Namespaced") for a in registry.charged
    ]
    makers = [a for a in registry.charged if a.creates and a.pays]
    changed = {"name": "charge-changed", "expression": CHARGED}
    grown = _grown(registry, client_config, [elsewhere, unlabelled], unlabelled, changed, common)
    made = made_for_payer(registry)
    not_made = {"name": "not-made-by-kubernetes", "expression": f"!({made})"}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": [
            {
                "name": f"groups.{API_GROUP}",
                "clientConfig": client_config("/validate/groups"),
                "rules": [_rule(API_GROUP, ["v1alpha1"], [PLURAL], ["CREATE", "UPDATE", "DELETE"], "Cluster")],
                "matchConditions": [{"name": "spec-changed", "expression": SPEC_CHANGED}],
                **common,
            },
            {
                "name": f"workloads.{API_GROUP}",
                "clientConfig": client_config("/validate/workloads"),
                # Matches an object that has the label or had it: removing it is seen.
                "objectSelector": {"matchExpressions": [labelled]},
                "rules": charged,
                "matchConditions": [changed, not_made],
                **common,
            },
            {
                # What stands above it is charged already, as a rule. So it must not wait for us to be there: if nothing
                # above pays, the recount finds it.
                "name": f"made.{API_GROUP}",
                "clientConfig": client_config("/validate/workloads"),
                "objectSelector": {"matchExpressions": [labelled]},
                "rules": [
                    _rule("", ["v1"], ["pods"], ["CREATE", "UPDATE"], "Namespaced"),
                    _rule("apps", ["v1"], ["replicasets"], ["CREATE", "UPDATE"], "Namespaced"),
                ],
                "matchConditions": [changed, {"name": "made-by-kubernetes", "expression": made}],
                **common,
                "failurePolicy": "Ignore",
            },
            {
                # Without a label of its own an object is charged to the default of its namespace.
                "name": f"defaulted.{API_GROUP}",
                "clientConfig": client_config("/validate/workloads"),
                "namespaceSelector": {"matchExpressions": [labelled, elsewhere]},
                "objectSelector": {"matchExpressions": [unlabelled]},
                "rules": charged,
                "matchConditions": [changed, not_made],
                **common,
            },
            *grown,
            {
                # What workloads refer to carries no label of theirs: the webhook looks for them.
                "name": f"references.{API_GROUP}",
                "clientConfig": client_config("/validate/references"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [
                    *(_template_rules() if any(a.refers for a in registry.charged) else ()),
                    _rule("resource.k8s.io", ["v1"], ["resourceclaimtemplates"], ["CREATE", "DELETE"], "Namespaced"),
                    _rule("resource.k8s.io", ["v1"], ["resourceclaims"], ["DELETE"], "Namespaced"),
                ],
                "matchConditions": [{"name": "bears-on-workloads", "expression": REFERRED}],
                **common,
            },
            {
                # One that names a group is charged to it, and one that is made anew to those that name it.
                "name": f"claims.{API_GROUP}",
                "clientConfig": client_config("/validate/claims"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [_rule("resource.k8s.io", ["v1"], ["resourceclaims"], ["CREATE", "UPDATE"], "Namespaced")],
                "matchConditions": [{"name": "claimed", "expression": CLAIMED}],
                **common,
            },
            {
                # Where every workload has to charge a group, one that names none is refused, and so is taking the label
                # away; what a workload there made is let be if that one pays.
                "name": f"required.{API_GROUP}",
                "clientConfig": client_config("/validate/workloads"),
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": REQUIRED, "operator": "In", "values": ["true"]},
                        unlabelled,
                        elsewhere,
                    ]
                },
                "objectSelector": {"matchExpressions": [unlabelled]},
                "rules": charged,
                "matchConditions": [changed, not_made],
                **common,
            },
            {
                # A pod may be resized whoever pays for it, labelled or not: nothing else of the workload changes.
                "name": f"resize.{API_GROUP}",
                "clientConfig": client_config("/validate/workloads"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [_rule("", ["v1"], ["pods/resize"], ["UPDATE"], "Namespaced")],
                "matchConditions": [{"name": "spec-changed", "expression": SPEC_CHANGED}],
                **common,
            },
            {
                "name": f"orphans.{API_GROUP}",
                "clientConfig": client_config("/validate/orphans"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [_rule(a.group, list(a.versions), [a.plural], ["DELETE"], "Namespaced") for a in makers],
                "matchConditions": [{"name": "orphaning", "expression": ORPHANING}],
                **common,
            },
            {
                # The selector of a webhook on namespaces looks at the labels of the namespace itself.
                "name": f"namespaces.{API_GROUP}",
                "clientConfig": client_config("/validate/namespaces"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [_rule("", ["v1"], ["namespaces"], ["CREATE", "UPDATE"], "Cluster")],
                "matchConditions": [{"name": "default-changed", "expression": DEFAULT_CHANGED}],
                **common,
            },
            {
                "name": f"corrections.{API_GROUP}",
                "clientConfig": client_config("/validate/corrections"),
                "rules": [_rule(API_GROUP, ["v1alpha1"], [CORRECTIONS], ["CREATE"], "Cluster")],
                **common,
            },
            {
                # It only warns, so nobody has to wait for it.
                "name": f"autoscalers.{API_GROUP}",
                "clientConfig": client_config("/validate/autoscalers"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [
                    _rule("autoscaling", ["v2", "v1"], ["horizontalpodautoscalers"], ["CREATE", "UPDATE"], "Namespaced")
                ],
                "matchConditions": [{"name": "spec-changed", "expression": SPEC_CHANGED}],
                **common,
                "failurePolicy": "Ignore",
                "sideEffects": "None",
            },
            {
                # A Scale carries no labels, so there is nothing to select by.
                "name": f"scale.{API_GROUP}",
                "clientConfig": client_config("/validate/scale"),
                "namespaceSelector": {"matchExpressions": [elsewhere]},
                "rules": [
                    _rule(a.group, list(a.versions), [f"{a.plural}/scale"], ["UPDATE"], "Namespaced")
                    for a in registry.charged
                    if a.scale is not None
                ],
                "matchConditions": [{"name": "scaled-up", "expression": SCALED_UP}],
                **common,
            },
        ],
    }


def _template_rules() -> list[dict[str, Any]]:
    return [
        _rule("apps", ["v1"], ["deployments", "replicasets"], ["UPDATE"], "Namespaced"),
        _rule("", ["v1"], ["podtemplates"], ["UPDATE"], "Namespaced"),
    ]


def _grown(
    registry: Registry,
    client_config: ClientConfig,
    namespaces: list[dict[str, Any]],
    unlabelled: dict[str, Any],
    changed: dict[str, str],
    common: dict[str, Any],
) -> list[dict[str, Any]]:
    """Children that may outgrow whoever pays for them: not all operators hand the label down to them."""
    makers = [a for a in registry.charged if a.grows]
    children = [a for a in registry.charged if any((a.group, a.kind) in maker.grows for maker in makers)]
    if not children:
        return []
    kinds = ", ".join(f"'{kind}'" for kind in sorted({maker.kind for maker in makers}))
    owned = (
        "has(object.metadata.ownerReferences) && "
        f"object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.kind in [{kinds}])"
    )
    return [
        {
            "name": f"grown.{API_GROUP}",
            "clientConfig": client_config("/validate/workloads"),
            "namespaceSelector": {"matchExpressions": namespaces},
            "objectSelector": {"matchExpressions": [unlabelled]},
            "rules": [
                _rule(a.group, list(a.versions), [a.plural], ["CREATE", "UPDATE"], "Namespaced") for a in children
            ],
            "matchConditions": [changed, {"name": "made-by-what-pays", "expression": owned}],
            **common,
        }
    ]


def _rule(group: str, versions: list[str], resources: list[str], operations: list[str], scope: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": versions,
        "resources": resources,
        "operations": operations,
        "scope": scope,
    }
