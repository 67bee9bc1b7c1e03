"""The webhooks that review a write, as their registration selects them.

This file alone matches a write with the rules and selectors of the registration. It reads nothing from a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq import registration
from bizrq.api import selector
from bizrq.api.review import Request
from bizrq.kube.client import Resource
from bizrq.settings import Settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from bizrq.store.reference_resolver import CONTEXT, NAMESPACES, resources_of
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.labels import LABEL
from bizrq.workloads.scope import Scope

Object = dict[str, Any]

#: The namespace of bizrq itself. A dry run treats it as a default installation does.
SYSTEM_NAMESPACE = "bizrq-system"
#: What the webhooks review besides workloads and groups, each kind in its versions.
_OTHERS: tuple[tuple[Resource, ...], ...] = (
    (NAMESPACES,),
    (CORRECTIONS,),
    *((resource,) for resource in CONTEXT),
    tuple(
        Resource("autoscaling", version, "horizontalpodautoscalers", "HorizontalPodAutoscaler")
        for version in ("v2", "v1")
    ),
    (Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),),
)
#: The review of a Scale: that of the workload with the new replicas, whatever the selectors say.
_SCALE: Mapping[str, Any] = {
    "clientConfig": {"url": "/validate/workloads"},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "operations": ["CREATE", "UPDATE"]}],
}


@dataclass(frozen=True, slots=True)
class ReviewedKind:
    """A kind that the webhooks review: its versions, its webhooks, and its adapter if it is a workload."""

    resources: tuple[Resource, ...]
    webhooks: tuple[Mapping[str, Any], ...]
    scope: Scope
    adapter: Adapter | None = None

    @property
    def is_group(self) -> bool:
        return self.resources == (GROUPS,)

    def resource_in(self, api_version: object) -> Resource:
        """Return the resource in this version, or in the first version if the kind has no such version."""
        return next((each for each in self.resources if each.api_version == api_version), self.resources[0])

    def _decides_charges(self, request: Request) -> bool:
        """Return True if a namespace has a default group before or after the write, or is managed only then."""
        written = [obj for obj in (request.object, request.old_object) if obj is not None]
        if request.name in self.scope.exempt:
            return False
        return any(LABEL in labels_of(obj) for obj in written) or len({*map(self.scope.manages, written)}) > 1

    def scaled(self) -> ReviewedKind:
        """Return the same kind, reviewed as a Scale of it is."""
        return ReviewedKind(self.resources, (_SCALE,), self.scope, self.adapter)

    def paths(self, request: Request, namespace: Mapping[str, Any] | None) -> list[str]:
        """Return the paths of the webhooks that review this request, each once.

        `namespace` is the Namespace object of the request, None if it is unknown.
        """
        if request.resource.resource == NAMESPACES.plural:
            if not self._decides_charges(request):
                return []
            namespace = request.object
        labels = {**labels_of(namespace), "kubernetes.io/metadata.name": request.namespace or request.name}
        written = [labels_of(obj) for obj in (request.object, request.old_object) if obj is not None]
        selected = (
            webhook["clientConfig"]["url"]
            for webhook in self.webhooks
            if any(_applies(rule, self.resources, request.operation) for rule in webhook["rules"])
            and selector.matches(webhook.get("namespaceSelector"), labels)
            and any(selector.matches(webhook.get("objectSelector"), each) for each in written)
        )
        return list(dict.fromkeys(selected))


def reviewed_kinds(settings: Settings) -> dict[GroupKind, ReviewedKind]:
    """Return every kind that the webhooks review on create or update, by API group and kind."""
    return dict(_reviewed_kinds(settings))


def _reviewed_kinds(settings: Settings) -> Iterator[tuple[GroupKind, ReviewedKind]]:
    settings = settings.around(SYSTEM_NAMESPACE)
    configuration = registration.configuration(settings, lambda path: {"url": path}, namespace=SYSTEM_NAMESPACE)
    adapters = [(resources_of(adapter), adapter) for adapter in settings.registry.charged]
    indirect = [resources_of(a) for a in settings.registry.adapters if a.estimate]
    # An index: to compare every kind with every webhook takes longer than all the rest here.
    about: dict[tuple[str, str], list[int]] = {}
    for number, webhook in enumerate(configuration["webhooks"]):
        for named in _about(webhook):
            about.setdefault(named, []).append(number)
    seen: set[GroupKind] = set()
    for resources, adapter in [((GROUPS,), None), *adapters, *((each, None) for each in (*_OTHERS, *indirect))]:
        kind = resources[0].group, resources[0].kind
        names = {(group, plural) for r in resources for group in (r.group, "*") for plural in (r.plural, "*")}
        webhooks = tuple(
            configuration["webhooks"][n] for n in sorted({n for name in names for n in about.get(name, ())})
        )
        if webhooks and kind not in seen:
            seen.add(kind)
            yield kind, ReviewedKind(resources, webhooks, settings.registry.scope, adapter)


def _about(webhook: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the groups and plurals that a webhook reviews on create or update."""
    rules = [rule for rule in webhook["rules"] if not {"CREATE", "UPDATE", "*"}.isdisjoint(rule["operations"])]
    return {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}


def labels_of(obj: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the readable labels of an object. The object's own webhook rejects the others."""
    metadata = (obj or {}).get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return {k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, dict) else {}


def _applies(rule: Mapping[str, Any], resources: Sequence[Resource], operation: str) -> bool:
    """Match a rule of the registration with this operation on one of these resources."""

    def names(key: str, wanted: str) -> bool:
        return "*" in rule[key] or wanted in rule[key]

    about = any(names("apiGroups", r.group) and names("resources", r.plural) for r in resources)
    return about and names("operations", operation)
