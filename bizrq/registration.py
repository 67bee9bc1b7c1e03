"""Build the ValidatingWebhookConfiguration, and declare the endpoints that it sends reviews to.

This file alone decides which requests are reviewed (Kubernetes admissionregistration/v1). Selectors and match
conditions leave out all others. A webhook fails closed unless it says why not. docs/operations.md, "Webhook entries"
has each of them in words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from bizrq.api.corrections import PLURAL as CORRECTIONS_PLURAL
from bizrq.api.enforcement import REGISTRATION
from bizrq.api.group import API_GROUP, PLURAL
from bizrq.api.guards import MAY_MAINTAIN
from bizrq.api.overlap import BUILT_IN
from bizrq.quota import reservation
from bizrq.settings import Settings
from bizrq.workloads.demand import counting
from bizrq.workloads.devices import hami
from bizrq.workloads.kinds.declaration import DEPLOYMENT, POD, REPLICA_SET, TRAIN_JOB, Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, MODEL_LABELS, REQUIRED
from bizrq.workloads.ownership.takeover import NOTES
from bizrq.workloads.pods import podspec
from bizrq.workloads.scope import Scope

Object = dict[str, Any]

NAME = REGISTRATION
#: The label of what is ours.
LABELS = {"app.kubernetes.io/name": NAME}
#: The Service of the webhooks, and its port.
SERVICE, PORT = "bizrq-webhooks", 8443
TIMEOUT_SECONDS = 10
#: The annotation with the format in which reservations are written, which every process that runs reads.
FORMAT = "bizrq.quota.biz.group/format"

#: Returns the clientConfig of a path: {"url": …} or {"service": …}, with the caBundle where it is known.
ClientConfig = Callable[[str], Object]


@dataclass(frozen=True, slots=True)
class ReviewEndpoint:
    """A path of the process, and the reviews that are decided there; `webhooks.routes` binds each to a handler.

    `reads` names in a refusal what could not be read: `{}` is the reviewed object.
    """

    path: str
    operations: tuple[str, ...]
    reads: str
    sub_resources: tuple[str, ...] = ("",)


GROUPS = ReviewEndpoint("/validate/groups", ("CREATE", "UPDATE", "DELETE"), "the family of {}")
WORKLOADS = ReviewEndpoint("/validate/workloads", ("CREATE", "UPDATE"), "what {} refers to", ("", "resize"))
CHILDREN = ReviewEndpoint("/validate/children", ("UPDATE",), "what owns {}")
VERSIONS = ReviewEndpoint("/validate/versions", ("UPDATE", "DELETE"), "what scales {}", ("", "scale"))
SCALE = ReviewEndpoint("/validate/scale", ("UPDATE",), "what {} scales", ("scale",))
REFERENCES = ReviewEndpoint("/validate/references", ("CREATE", "UPDATE", "DELETE"), "what refers to {}")
CLAIMS = ReviewEndpoint("/validate/claims", ("CREATE", "UPDATE"), "what names {}")
NAMESPACES = ReviewEndpoint("/validate/namespaces", ("CREATE", "UPDATE"), "what {} charges")
CORRECTIONS = ReviewEndpoint("/validate/corrections", ("CREATE",), "the quota of {}")
AUTOSCALERS = ReviewEndpoint("/validate/autoscalers", ("CREATE", "UPDATE"), "the target of {}")
INDIRECT = ReviewEndpoint("/validate/indirect", ("CREATE", "UPDATE"), "what {} makes")

_ENDPOINTS: Final = (
    *(GROUPS, WORKLOADS, CHILDREN, VERSIONS, SCALE, REFERENCES),
    *(CLAIMS, NAMESPACES, CORRECTIONS, AUTOSCALERS, INDIRECT),
)
#: The paths of this version.
PATHS: Final = tuple(endpoint.path for endpoint in _ENDPOINTS)

_LABELS = ", ".join(f"'{label}'" for label in (LABEL, *sorted(MODEL_LABELS.values())))


def _of(owner: str, path: str, default: str) -> str:
    return f"(has({owner}.{path}) ? {owner}.{path} : {default})"


def _label(owner: str) -> str:
    labels = f"{owner}.metadata.labels"
    return f"(has({labels}) && k in {labels} ? {labels}[k] : '')"


def _changes(path: str, default: str) -> str:
    return f"{_of('object', path, default)} != {_of('oldObject', path, default)}"


_OWNERS_CHANGE = _changes("metadata.ownerReferences", "[]")
#: Send an update where something that is charged can have changed: spec, labels or owners.
CHARGED = " || ".join(
    [
        "request.operation != 'UPDATE'",
        "!has(object.spec)",
        "!has(oldObject.spec)",
        "object.spec != oldObject.spec",
        f"[{_LABELS}].exists(k, {_label('object')} != {_label('oldObject')})",
        _OWNERS_CHANGE,
    ]
)
#: Send an update by which an object may leave its owner: its labels or owners change. A new label counts, too:
#: a selector may ask that it is absent.
MAY_LEAVE = f"{_OWNERS_CHANGE} || {_changes('metadata.labels', '{}')}"
#: Scaling down is never refused; an absent count is 0.
SCALED_UP = (
    "has(object.spec) && has(object.spec.replicas) && "
    "(!has(oldObject.spec) || !has(oldObject.spec.replicas) || object.spec.replicas > oldObject.spec.replicas)"
)
_IS_SCALE = "request.?subResource.orValue('') == 'scale'"
#: Send a deletion, and an update of a ReplicaSet after which another may take over from it: it asks for fewer pods, has
#: another template, may leave its owner, or its controller would find other notes on it.
GIVES_WAY = (
    f"request.operation == 'DELETE' || ({_IS_SCALE} ? object.?spec.?replicas.orValue(0) < "
    "oldObject.?spec.?replicas.orValue(0) : object.spec.?replicas.orValue(1) < oldObject.spec.?replicas.orValue(1) || "
    f"object.spec.template != oldObject.spec.template || {MAY_LEAVE} || "
    f"{list(NOTES)}.exists(k, object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k]))"
)
#: Send an update by which a controller asks for more pods of a ReplicaSet.
RAISED = f"request.operation == 'UPDATE' && !({_IS_SCALE}) && ({SCALED_UP})"
#: The pod templates of an object and of its stored version, as a list of two.
_TEMPLATES = (
    "[object, oldObject].map(o, has(o.spec) && has(o.spec.template) ? o.spec.template : "
    "has(o.template) ? o.template : {})"
)


def _made_for_pod(claim: str) -> str:
    return f"{_of(claim, 'metadata.ownerReferences', '[]')}.exists(o, o.kind == 'Pod')"


#: Send a new claim, but for those that Kubernetes makes for a pod: they are charged with it, and anybody may write
#: that a pod owns a claim. Send a claim that a person gives other owners, or whose labels change, or that is a pod's no
#: more: its label charges from then.
CLAIMED = (
    f"request.operation != 'UPDATE' ? !({_made_for_pod('object')} && "
    f"({BUILT_IN} || request.userInfo.username == 'system:kube-scheduler')) : !{_made_for_pod('object')} && "
    f"({_made_for_pod('oldObject')} || [{_LABELS}].exists(k, {_label('object')} != {_label('oldObject')})) || "
    f"!{BUILT_IN} && {_OWNERS_CHANGE}"
)
SPEC_CHANGED = "request.operation != 'UPDATE' || object.spec != oldObject.spec"
#: Send a group where its spec changes, or what decides when it ends: its finalizers and owners. Those are also
#: changed by Kubernetes' controllers and by ours, which may not depend on the webhooks for it.
GROUP_CHANGED = (
    f"{SPEC_CHANGED} || ((object.metadata.?finalizers != oldObject.metadata.?finalizers || "
    "object.metadata.?ownerReferences != oldObject.metadata.?ownerReferences) && "
    f"!{BUILT_IN} && !{MAY_MAINTAIN})"
)

_SPEC_CHANGED = {"name": "spec-changed", "expression": SPEC_CHANGED}
_NOT_BY_KUBERNETES = {"name": "not-by-kubernetes", "expression": f"!{BUILT_IN}"}
#: Kubernetes' other controllers delete what has no owner any more, or ReplicaSets of the past, by name.
_DELETED_ALONE = {
    "name": "not-with-namespace",
    "expression": "request.userInfo.username != 'system:serviceaccount:kube-system:namespace-controller'",
}
#: People, and the service accounts of the namespace that they write to, which are theirs.
_PEOPLE = (
    "(!request.userInfo.username.startsWith('system:') || (has(request.userInfo.groups) && "
    "'system:serviceaccounts:' + request.namespace in request.userInfo.groups))"
)
_HAS_CONTROLLER = f"{_of('oldObject', 'metadata.ownerReferences', '[]')}.exists(o, has(o.controller) && o.controller)"
_LABELLED = {"key": LABEL, "operator": "Exists"}
_UNLABELLED = {"key": LABEL, "operator": "DoesNotExist"}
_REQUIRED = {"key": REQUIRED, "operator": "In", "values": ["true"]}
_NOT_REQUIRED = {**_REQUIRED, "operator": "NotIn"}


def charged(settings: Settings) -> str:
    """Return the CEL expression that sends a write after which an object may be charged otherwise."""
    otherwise = asks_otherwise(settings)
    return f"{CHARGED} || (object.kind == 'Pod' && {otherwise})" if otherwise else CHARGED


def asks_otherwise(settings: Settings) -> str:
    """Return the CEL expression for a pod that comes to ask for other devices outside of its spec.

    Empty where the configuration counts nothing there. What schedulers note on a pod is not compared.
    """
    changes: list[str] = []
    if annotations := counting.asking_annotations(settings.counting):
        changes.append(_differ(annotations, ".metadata.?annotations"))
    if settings.counting.hami.enabled:
        changes.append(_differ([hami.IGNORE], ".metadata.?labels"))
    return f"[[object, oldObject]].exists(t, {' || '.join(changes)})" if changes else ""


def referred(settings: Settings) -> str:
    """Return the CEL expression that sends a write of what workloads refer to.

    An update is sent where it changes what counting reads of its pod template: a new image does not. Deletions by
    Kubernetes itself, of a namespace or after an owner, never depend on the webhooks.
    """
    annotations = counting.counted_annotations(settings.counting)
    of_container = ", ".join(f"c.?{field}" for field in podspec.COUNTED_OF_CONTAINER)
    containers = f"t[{{}}].?spec[?k].orValue([]).map(c, [{of_container}])"
    changes = [
        _differ(podspec.COUNTED, ".?spec"),
        f"['containers', 'initContainers'].exists(k, {containers.format(0)} != {containers.format(1)})",
        _differ((*sorted({LABEL, *MODEL_LABELS.values()}), hami.IGNORE), ".?metadata.?labels"),
        *([_differ(annotations, ".?metadata.?annotations")] if annotations else ()),
    ]
    return (
        f"request.operation == 'UPDATE' ? [{_TEMPLATES}].exists(t, {' || '.join(changes)}) : "
        f"request.operation != 'DELETE' || !{BUILT_IN}"
    )


def _differ(keys: Sequence[str], path: str) -> str:
    """Return the CEL expression that is true where two objects `t` differ in one of these keys at a path."""
    return f"{list(keys)!r}.exists(k, t[0]{path}[?k] != t[1]{path}[?k])"


def namespace_changed(scope: Scope) -> str:
    """Return the CEL expression that sends a namespace which comes under management or leaves it.

    Of one that is managed, it sends a change of the default group.
    """
    default = (
        f"['{LABEL}'].exists(k, {_label('object')} != (request.operation == 'CREATE' ? '' : {_label('oldObject')}))"
    )
    if not scope.managed:
        return default
    new, old = (" && ".join(_holds(each, owner) for each in scope.managed) for owner in ("object", "oldObject"))
    return f"(request.operation == 'UPDATE' && ({new}) != ({old})) || ({new} && {default})"


def _holds(expression: Mapping[str, Any], owner: str) -> str:
    """Return the CEL expression that is true where an expression of a label selector holds for an object's labels."""
    labels, key, operator = f"{owner}.metadata.labels", expression["key"], expression["operator"]
    found = f"has({labels}) && {key!r} in {labels}"
    if operator in ("In", "NotIn"):
        found += f" && {labels}[{key!r}] in {list(expression['values'])!r}"
    return f"({found})" if operator in ("In", "Exists") else f"!({found})"


def made_for_payer(registry: Registry) -> str:
    """Return the CEL expression for pods and ReplicaSets that Kubernetes' controllers make for a kind that pays.

    Everything else that they make pays for itself. The owner is not read: one that does not pay was stored before its
    namespace required a group. A person's own reference exempts nothing, since the user of the request is looked at.
    """
    makers = [a for a in registry.charged if a.pays and a.creates & {POD, REPLICA_SET}]
    return f"request.resource.resource in ['pods', 'replicasets'] && {BUILT_IN} && {_owned('object', makers)}"


def _owned(obj: str, makers: Sequence[Adapter]) -> str:
    """Return the CEL expression for an object with a controller of one of these kinds, in any version."""
    kinds: dict[str, list[str]] = {}
    for adapter in makers:
        kinds.setdefault(adapter.group, []).append(adapter.kind)
    owners = " || ".join(f"{_in_group(group)} && o.kind in {sorted(names)}" for group, names in sorted(kinds.items()))
    references = f"{obj}.metadata.ownerReferences"
    return f"has({references}) && {references}.exists(o, has(o.controller) && o.controller && ({owners or 'false'}))"


def _in_group(group: str) -> str:
    return f"o.apiVersion.startsWith('{group}/')" if group else "o.apiVersion == 'v1'"


@dataclass(frozen=True, slots=True)
class Webhook:
    """One registered webhook: where its reviews go, and which requests it asks about."""

    name: str
    endpoint: ReviewEndpoint
    rules: Sequence[Object]
    conditions: Sequence[Object] = ()
    namespaces: Sequence[Object] = ()
    objects: Sequence[Object] = ()
    fails_open: bool = False
    side_effects: str = "NoneOnDryRun"
    """A dry run is decided and stores nothing."""

    def registered(self, client_config: ClientConfig) -> Object:
        """Return the webhook as admissionregistration/v1 has it."""
        found: Object = {"name": f"{self.name}.{API_GROUP}", "clientConfig": client_config(self.endpoint.path)}
        if self.namespaces:
            found["namespaceSelector"] = {"matchExpressions": list(self.namespaces)}
        if self.objects:
            found["objectSelector"] = {"matchExpressions": list(self.objects)}
        found["rules"] = list(self.rules)
        if self.conditions:
            found["matchConditions"] = list(self.conditions)
        return found | {
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore" if self.fails_open else "Fail",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "sideEffects": self.side_effects,
        }


def by_service(namespace: str) -> ClientConfig:
    """Return the clientConfigs of webhooks behind their Service in this namespace."""

    def client_config(path: str) -> Object:
        return {"service": {"name": SERVICE, "namespace": namespace, "port": PORT, "path": path}}

    return client_config


def by_url(url: str) -> ClientConfig:
    """Return the clientConfigs of webhooks at an address, such as https://10.0.0.1:8443."""
    return lambda path: {"url": url.rstrip("/") + path}


def digest(settings: Settings, namespace: str) -> str:
    """Return a digest of what is sent for review, and to which paths: equal ones are served and registered alike."""
    made = configuration(settings, lambda path: {"path": path}, namespace=namespace)
    return hashlib.sha256(repr(made["webhooks"]).encode()).hexdigest()[:16]


def unserved(stored: Object, served: Collection[str]) -> list[Object]:
    """Return the entries of a registration whose path is none of these: another version has it."""
    return [webhook for webhook in stored.get("webhooks") or () if not _path(webhook).endswith(tuple(served))]


def _path(webhook: Object) -> str:
    config = webhook.get("clientConfig") or {}
    return str((config.get("service") or {}).get("path") or urlsplit(config.get("url") or "").path)


def format_of(stored: Object) -> str:
    """Return the format in which reservations are written; the oldest where a registration does not say."""
    return str((stored["metadata"].get("annotations") or {}).get(FORMAT) or reservation.FORMATS[0])


def is_ours(stored: Object) -> bool:
    """Return whether a stored registration has our label."""
    labels = stored["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in LABELS.items())


def configuration(settings: Settings, client_config: ClientConfig, *, namespace: str) -> Object:
    """Return the registration of all webhooks for the charged kinds; `namespace` is where bizrq itself runs."""
    settings = settings.around(namespace)
    registry = settings.registry
    managed = registry.scope.expressions()
    webhooks = [
        Webhook(
            "groups",
            GROUPS,
            [_rule(API_GROUP, ["v1alpha1"], [PLURAL], ["CREATE", "UPDATE", "DELETE"], "Cluster")],
            [{"name": "group-changed", "expression": GROUP_CHANGED}],
        ),
        *_workload_webhooks(settings, managed),
        *_reference_webhooks(settings, managed),
        *_other_webhooks(registry, managed),
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": dict(LABELS)},
        "webhooks": [webhook.registered(client_config) for webhook in webhooks],
    }


def _workload_webhooks(settings: Settings, managed: Sequence[Object]) -> list[Webhook]:
    registry = settings.registry
    for_payer = made_for_payer(registry)
    changed = {"name": "charge-changed", "expression": charged(settings)}
    conditions = [changed, {"name": "not-made-by-kubernetes", "expression": f"!({for_payer})"}]
    pods = [
        _rule("", ["v1"], ["pods"], ["CREATE", "UPDATE"], "Namespaced"),
        _rule("apps", ["v1"], ["replicasets"], ["CREATE", "UPDATE"], "Namespaced"),
    ]
    made = [changed, {"name": "made-by-kubernetes", "expression": for_payer}]
    scales = [
        _rule(a.group, list(a.versions), [f"{a.plural}/scale"], ["UPDATE"], "Namespaced")
        for a in registry.charged
        if a.scale is not None
    ]
    return [
        # Matches an object that has the label or had it, so that removing it is reviewed.
        *_written_and_filtered(registry, Webhook("workloads", WORKLOADS, (), conditions, managed, [_LABELLED])),
        # Fails open: as a rule the owner is charged already. Where no owner pays, the recount finds it.
        Webhook("made", WORKLOADS, pods, made, managed, [_LABELLED], fails_open=True),
        # An object without a label is charged to the default group of its namespace.
        *_written_and_filtered(
            registry, Webhook("defaulted", WORKLOADS, (), conditions, [_LABELLED, *managed], [_UNLABELLED])
        ),
        *_grown(registry, changed, managed),
        *_leaving(registry, managed),
        *_giving_way(registry, managed),
        *_deleted(registry, managed),
        *_edited(registry, managed),
        *_added(registry, managed),
        *_annotated(settings, managed),
        # Where every workload must charge a group, one without a label is refused, unless an owner pays for it.
        *_written_and_filtered(
            registry,
            Webhook("required", WORKLOADS, (), conditions, [_REQUIRED, _UNLABELLED, *managed], [_UNLABELLED]),
        ),
        # A resize changes a pod alone, so that it is reviewed with or without a label.
        Webhook(
            "resize",
            WORKLOADS,
            [_rule("", ["v1"], ["pods/resize"], ["UPDATE"], "Namespaced")],
            [_SPEC_CHANGED],
            managed,
        ),
        # A Scale carries no labels to select by.
        Webhook("scale", SCALE, scales, [{"name": "scaled-up", "expression": SCALED_UP}], managed),
    ]


def _written_and_filtered(registry: Registry, webhook: Webhook) -> list[Webhook]:
    """Return two entries for writes of charged kinds: creates that are all sent, and writes that its conditions filter.

    Conditions cost the API server 0.15 ms a write, since it converts the whole object for them.
    """
    filtered = [each for each in registry.charged if each.group_kind in (POD, REPLICA_SET)]
    created = [each for each in registry.charged if each not in filtered]
    rules = [*(_updated(each) for each in created), *(_written(each) for each in filtered)]
    unfiltered = [replace(webhook, rules=[_created(each) for each in created], conditions=())] if created else []
    return [*unfiltered, replace(webhook, name=f"{webhook.name}-filtered", rules=rules)]


def _grown(registry: Registry, changed: Object, managed: Sequence[Object]) -> list[Webhook]:
    """Review children that may outgrow their payer; not all operators give them its label."""
    makers = [a for a in registry.charged if a.grows]
    grown = _kinds_that_grow(registry)
    children = [a for a in registry.charged if a.group_kind in grown]
    if not children:
        return []
    kinds = ", ".join(f"'{kind}'" for kind in sorted({maker.kind for maker in makers}))
    owned = (
        "has(object.metadata.ownerReferences) && "
        f"object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.kind in [{kinds}])"
    )
    conditions = [changed, {"name": "made-by-what-pays", "expression": owned}]
    rules = [_written(adapter) for adapter in children]
    return [Webhook("grown", WORKLOADS, rules, conditions, [*managed, _UNLABELLED], [_UNLABELLED])]


def _kinds_that_grow(registry: Registry) -> set[tuple[str, str]]:
    """Return the group and kind of each child that may outgrow its payer."""
    return set[tuple[str, str]]().union(*(a.grows for a in registry.charged))


def _leaving(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    """Review children that may leave the owner that pays for them, whatever their labels.

    Fails open for operators: the recount counts what is left to the group that paid.
    """
    if not registry.made:
        return []
    rules = [_updated(each) for each in registry.made]
    conditions = [
        {"name": "may-leave", "expression": MAY_LEAVE},
        {"name": "made-by-what-pays", "expression": _owned("oldObject", registry.makers)},
    ]
    # What a workload has left has no controller, until one of the same name adopts it.
    adopted = [_updated(each) for each in registry.made if each.group_kind in (POD, REPLICA_SET)]
    left = [
        {"name": "may-leave", "expression": MAY_LEAVE},
        {"name": "without-controller", "expression": f"!({_HAS_CONTROLLER})"},
        _NOT_BY_KUBERNETES,
    ]
    webhooks = _closed_for_people(Webhook("children", CHILDREN, rules, conditions, managed, fails_open=True))
    if adopted:
        webhooks += _closed_for_people(Webhook("left", CHILDREN, adopted, left, managed, fails_open=True))
    return webhooks


def _giving_way(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    """Review ReplicaSets of Deployments that people delete or change so that another version may take over.

    Few people do so. The controller of Deployments is asked for what it raises. Fails open: the recount counts it.
    """
    deployments = [a for a in registry.charged if a.group_kind == DEPLOYMENT]
    if not deployments:
        return []
    rules = [
        _rule("apps", ["v1"], ["replicasets"], ["UPDATE", "DELETE"], "Namespaced"),
        _rule("apps", ["v1"], ["replicasets/scale"], ["UPDATE"], "Namespaced"),
    ]
    conditions = [
        {
            "name": "below-a-deployment",
            "expression": f"{_IS_SCALE} || ({_owned('oldObject', deployments)})",
        },
        {"name": "gives-way-or-raised", "expression": f"{BUILT_IN} ? {RAISED} : ({GIVES_WAY})"},
    ]
    return [Webhook("versions", VERSIONS, rules, conditions, managed, fails_open=True)]


def _deleted(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    """Review what people delete of what makes pods below a workload: it may leave these, and others come in its place.

    ReplicaSets of Deployments are reviewed in `versions`. Fails open: the recount counts what is left.
    """
    rules = [
        _rule(each.group, list(each.versions), [each.plural], ["DELETE"], "Namespaced")
        for each in registry.made
        if each.group_kind != POD
    ]
    if not rules:
        return []
    makers = [each for each in (*registry.makers, *registry.passing) if each.group_kind != DEPLOYMENT]
    conditions = [
        _NOT_BY_KUBERNETES,
        {"name": "made-by-what-pays", "expression": _owned("oldObject", makers)},
    ]
    return [Webhook("deleted", VERSIONS, rules, conditions, managed, fails_open=True)]


def _edited(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    """Review what somebody edits of the kinds that workloads make, as for `/scale`.

    A workload may pay for such an object, or one that has left it behind, and nothing in the object says so. Few have a
    label of their own. Fails open for operators: the recount counts what they ask for.
    """
    rules = [_updated(each) for each in registry.made if each.group_kind != POD]
    if not rules:
        return []
    conditions = [_SPEC_CHANGED, _NOT_BY_KUBERNETES]
    namespaces = [*managed, _UNLABELLED]
    webhook = Webhook("edited", WORKLOADS, rules, conditions, namespaces, [_UNLABELLED], fails_open=True)
    makers = (*registry.makers, *registry.passing)
    return _closed_for_people(webhook, {"name": "made-by-what-pays", "expression": _owned("oldObject", makers)})


def _added(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    """Review what is added below a workload that pays: a child that somebody makes, or an object that gets an owner.

    Few of these have a label of their own, and the group of their owner pays for them. Fails open for operators: the
    recount counts what they ask for. In other namespaces, and of the kinds in `grown`, all of them are reviewed anyway.
    """
    grown = _kinds_that_grow(registry)
    rules = [_written(each) for each in registry.made if each.group_kind not in grown]
    if not rules:
        return []
    makers = (*registry.makers, *registry.passing)
    conditions = [
        # Kubernetes' controllers adopt whatever matches, and nobody may have paid for it.
        {"name": "adopted-or-not-by-kubernetes", "expression": f"request.operation == 'UPDATE' || !{BUILT_IN}"},
        {"name": "made-by-what-pays", "expression": _owned("object", makers)},
        {"name": "new-there", "expression": f"request.operation == 'CREATE' || !({_owned('oldObject', makers)})"},
    ]
    namespaces = [*managed, _UNLABELLED, _NOT_REQUIRED]
    return _closed_for_people(
        Webhook("added", WORKLOADS, rules, conditions, namespaces, [_UNLABELLED], fails_open=True)
    )


def _closed_for_people(webhook: Webhook, *more: Object) -> list[Webhook]:
    """Return two entries of a webhook that fails open: for people, where `more` conditions hold, it fails closed.

    They could have the API server and this process so busy that no answer comes in time.
    """
    by_people = [*more, {"name": "by-people", "expression": _PEOPLE}]
    both = " && ".join(f"({each['expression']})" for each in by_people)
    by_others = {"name": "not-by-people", "expression": f"!({both})"}
    return [
        replace(
            webhook, name=f"{webhook.name}-by-people", conditions=[*webhook.conditions, *by_people], fails_open=False
        ),
        replace(webhook, conditions=[*webhook.conditions, by_others]),
    ]


def _annotated(settings: Settings, managed: Sequence[Object]) -> list[Webhook]:
    """Review pods that come to ask for other models, devices or nodes than before, and that no label selects.

    A workload may have made or left such a pod, and nothing in the pod says that a group pays for it. Fails open: the
    recount counts what they ask for.
    """
    rules = [_updated(each) for each in settings.registry.made if each.group_kind == POD]
    if not rules:
        return []
    changes = [_differ(sorted(MODEL_LABELS.values()), ".metadata.?labels")]
    if settings.counting.gpu_models:
        # A pod that waits for a scheduling gate may be given other nodes, and those name a model.
        changes.append(_differ(["affinity", "nodeSelector"], ".?spec"))
    models = f"[[object, oldObject]].exists(t, {' || '.join(changes)})"
    otherwise = " || ".join(filter(None, [models, asks_otherwise(settings)]))
    conditions = [{"name": "asks-otherwise", "expression": otherwise}]
    namespaces = [*managed, _UNLABELLED, _NOT_REQUIRED]
    return [Webhook("annotated", WORKLOADS, rules, conditions, namespaces, [_UNLABELLED], fails_open=True)]


def _reference_webhooks(settings: Settings, managed: Sequence[Object]) -> list[Webhook]:
    resource_api = ("resource.k8s.io", ["v1"])
    kinds = settings.registry.charged
    templates = [("apps", ["deployments", "replicasets"]), ("", ["podtemplates"])]
    templates = templates if any(each.refers for each in kinds) else []
    written = [
        *(_rule(group, ["v1"], plurals, ["UPDATE"], "Namespaced") for group, plurals in templates),
        *([_rule("", ["v1"], ["podtemplates"], ["CREATE"], "Namespaced")] if templates else ()),
        _rule(*resource_api, ["resourceclaimtemplates"], ["CREATE", "DELETE"], "Namespaced"),
        _rule(*resource_api, ["resourceclaims"], ["DELETE"], "Namespaced"),
    ]
    claims = _rule(*resource_api, ["resourceclaims"], ["CREATE", "UPDATE"], "Namespaced")
    runtimes = [("trainer.kubeflow.org", ["v1alpha1"], ["trainingruntimes"])]
    runtimes = runtimes if any(each.group_kind == TRAIN_JOB for each in kinds) else []
    named = [
        *(_rule(group, ["v1"], plurals, ["DELETE"], "Namespaced") for group, plurals in templates),
        *(_rule(*runtime, ["DELETE"], "Namespaced") for runtime in runtimes),
    ]
    written_runtimes = [_rule(*runtime, ["CREATE", "UPDATE"], "Namespaced") for runtime in runtimes]
    return [
        # A referenced object carries no label of ours: the handler lists its users.
        Webhook(
            "references",
            REFERENCES,
            written,
            [{"name": "bears-on-workloads", "expression": referred(settings)}],
            managed,
        ),
        # Few write these, and each has the templates of workloads.
        *([Webhook("runtimes", REFERENCES, written_runtimes, [_SPEC_CHANGED], managed)] if runtimes else ()),
        # What is deleted may come again otherwise. Fails open: many delete these, and few workloads name any.
        *([Webhook("named", REFERENCES, named, [_DELETED_ALONE], managed, fails_open=True)] if named else ()),
        # A claim is charged to the group that it names, or to the groups of its users.
        Webhook("claims", CLAIMS, [claims], [{"name": "claimed", "expression": CLAIMED}], managed),
    ]


def _other_webhooks(registry: Registry, managed: Sequence[Object]) -> list[Webhook]:
    scope = registry.scope
    written = ["CREATE", "UPDATE"]
    autoscalers = [
        _rule("autoscaling", ["v2", "v1"], ["horizontalpodautoscalers"], written, "Namespaced"),
        _rule("keda.sh", ["v1alpha1"], ["scaledobjects"], written, "Namespaced"),
    ]
    estimates = [_written(each) for each in registry.adapters if each.estimate and not registry.is_charged(each)]
    only_warns: dict[str, Any] = {"fails_open": True, "side_effects": "None"}
    return [
        # A selector would look at the new labels alone, and so miss a namespace that leaves.
        Webhook(
            "namespaces",
            NAMESPACES,
            [_rule("", ["v1"], ["namespaces"], ["CREATE", "UPDATE"], "Cluster")],
            [
                {"name": "not-exempt", "expression": f"!(object.metadata.name in {sorted(scope.exempt)!r})"},
                {"name": "payer-changed", "expression": namespace_changed(scope)},
            ],
        ),
        Webhook(
            "corrections",
            CORRECTIONS,
            [_rule(API_GROUP, ["v1alpha1"], [CORRECTIONS_PLURAL], ["CREATE"], "Cluster")],
        ),
        # Fails open: it only warns.
        Webhook(
            "autoscalers",
            AUTOSCALERS,
            autoscalers,
            [_SPEC_CHANGED],
            managed,
            **only_warns,
        ),
        # Fails open, too. What these make carries the label, and is decided when it is made.
        *([Webhook("indirect", INDIRECT, estimates, [_SPEC_CHANGED], managed, **only_warns)] if estimates else ()),
    ]


def _written(adapter: Adapter) -> Object:
    return _rule(adapter.group, list(adapter.versions), [adapter.plural], ["CREATE", "UPDATE"], "Namespaced")


def _created(adapter: Adapter) -> Object:
    return _rule(adapter.group, list(adapter.versions), [adapter.plural], ["CREATE"], "Namespaced")


def _updated(adapter: Adapter) -> Object:
    return _rule(adapter.group, list(adapter.versions), [adapter.plural], ["UPDATE"], "Namespaced")


def _rule(group: str, versions: list[str], resources: list[str], operations: list[str], scope: str) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": versions,
        "resources": resources,
        "operations": operations,
        "scope": scope,
    }
