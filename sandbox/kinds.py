"""List the resources that the sandbox serves: the built-in kinds and those of CustomResourceDefinitions.

It decides names, scopes, subresources and which fields count as status; it does not know any object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.schema import Node
from sandbox.storage import Kind

Json = dict[str, Any]


@dataclass(frozen=True)
class ScalePaths:
    """The fields of a kind that /scale shows; the selector's path may be ""."""

    replicas: tuple[str, ...]
    status: tuple[str, ...]
    selector: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A printer column of a CRD version."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""


@dataclass(frozen=True)
class Custom:
    """The schema, printer columns and selectable fields of a custom resource."""

    schema: Node
    openapi: Json
    columns: tuple[Column, ...]
    selectable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Resource:
    """One served version of a resource. Objects of all versions are stored under `store`."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    generation: bool = False
    scale: ScalePaths | None = None
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )
    stored_as: str = ""  # the storage version, where it is another one
    custom: Custom | None = field(default=None, compare=False)

    @property
    def store(self) -> Kind:
        return (self.group, self.plural)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return self.kind + "List"

    @property
    def storage_version(self) -> str:
        version = self.stored_as or self.version
        return f"{self.group}/{version}" if self.group else version


_WORKLOAD_SCALE = ScalePaths(("spec", "replicas"), ("status", "replicas"), ())
_REVIEW = ("create",)


def _builtin(
    group: str, version: str, kind: str, plural: str, short: str = "", *, all_: bool = False, **more: Any
) -> Resource:
    return Resource(
        group,
        version,
        plural,
        kind,
        singular=kind.lower(),
        short=tuple(short.split()),
        categories=("all",) if all_ else (),
        **more,
    )


_RBAC = "rbac.authorization.k8s.io"

BUILTINS: tuple[Resource, ...] = (
    _builtin("", "v1", "Namespace", "namespaces", "ns", namespaced=False, status=True, subresources=("finalize",),
             verbs=("create", "delete", "get", "list", "patch", "update", "watch")),
    _builtin("", "v1", "Node", "nodes", "no", namespaced=False, status=True),
    _builtin("", "v1", "Pod", "pods", "po", all_=True, status=True, generation=True,
             subresources=("binding", "eviction", "resize")),
    _builtin("", "v1", "Service", "services", "svc", all_=True, status=True),
    _builtin("", "v1", "ConfigMap", "configmaps", "cm"),
    _builtin("", "v1", "Secret", "secrets"),
    _builtin("", "v1", "ServiceAccount", "serviceaccounts", "sa"),
    _builtin("", "v1", "Event", "events", "ev"),
    _builtin("", "v1", "LimitRange", "limitranges", "limits"),
    _builtin("", "v1", "ResourceQuota", "resourcequotas", "quota", status=True),
    _builtin("", "v1", "PodTemplate", "podtemplates"),
    _builtin("", "v1", "ReplicationController", "replicationcontrollers", "rc", all_=True, status=True,
             generation=True, scale=_WORKLOAD_SCALE),
    _builtin("apps", "v1", "Deployment", "deployments", "deploy", all_=True, status=True, generation=True,
             scale=_WORKLOAD_SCALE),
    _builtin("apps", "v1", "ReplicaSet", "replicasets", "rs", all_=True, status=True, generation=True,
             scale=_WORKLOAD_SCALE),
    _builtin("apps", "v1", "StatefulSet", "statefulsets", "sts", all_=True, status=True, generation=True,
             scale=_WORKLOAD_SCALE),
    _builtin("apps", "v1", "DaemonSet", "daemonsets", "ds", all_=True, status=True, generation=True),
    _builtin("apps", "v1", "ControllerRevision", "controllerrevisions"),
    _builtin("batch", "v1", "Job", "jobs", all_=True, status=True, generation=True),
    _builtin("batch", "v1", "CronJob", "cronjobs", "cj", all_=True, status=True, generation=True),
    _builtin("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", all_=True,
             status=True),
    _builtin("coordination.k8s.io", "v1", "Lease", "leases"),
    _builtin("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", status=True, generation=True),
    _builtin("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", generation=True),
    _builtin(_RBAC, "v1", "Role", "roles"),
    _builtin(_RBAC, "v1", "RoleBinding", "rolebindings"),
    _builtin(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
    _builtin(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _builtin("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False),
    _builtin("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False, generation=True),
    _builtin("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", status=True),
    _builtin("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    _builtin("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False, generation=True),
    _builtin("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds",
             namespaced=False, status=True, generation=True),
    _builtin("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration",
             "validatingwebhookconfigurations", namespaced=False, generation=True),
    _builtin("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies",
             namespaced=False, status=True, generation=True),
    _builtin("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding",
             "validatingadmissionpolicybindings", namespaced=False),
    _builtin("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations",
             namespaced=False, status=True, generation=True),
    _builtin("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", namespaced=False, status=True,
             generation=True),
    _builtin("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False,
             verbs=_REVIEW),
    _builtin("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False, verbs=_REVIEW),
    _builtin("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews",
             namespaced=False, verbs=_REVIEW),
    _builtin("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews",
             namespaced=False, verbs=_REVIEW),
    _builtin("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False,
             verbs=_REVIEW),
)  # fmt: skip

CRD_GROUP = "apiextensions.k8s.io"
CRDS: Kind = (CRD_GROUP, "customresourcedefinitions")
WEBHOOKS: Kind = ("admissionregistration.k8s.io", "validatingwebhookconfigurations")
POLICIES: Kind = ("admissionregistration.k8s.io", "validatingadmissionpolicies")
BINDINGS: Kind = ("admissionregistration.k8s.io", "validatingadmissionpolicybindings")
NAMESPACES: Kind = ("", "namespaces")
PODS: Kind = ("", "pods")


class Kinds:
    """The resources that are served now."""

    def __init__(self) -> None:
        self._served: dict[tuple[str, str, str], Resource] = {}
        self._of_crd: dict[str, list[Resource]] = {}
        #: The answers of `groups` and `versions_of`, until another CRD is served.
        self._groups: Mapping[str, Sequence[str]] | None = None
        self._versions: dict[Kind, Sequence[Resource]] = {}
        for resource in BUILTINS:
            self._served[resource.group, resource.version, resource.plural] = resource

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._served.values()))

    def get(self, group: str, version: str, plural: str) -> Resource | None:
        return self._served.get((group, version, plural))

    def find(self, group: str, plural: str) -> Resource | None:
        """Return the first declared of the served versions, or None."""
        return next(iter(self.versions_of((group, plural))), None)

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        return next((r for r in self._served.values() if r.api_version == api_version and r.kind == kind), None)

    def versions_of(self, store: Kind) -> Sequence[Resource]:
        """Return all served versions of the resource that is stored under this name, as they were declared."""
        if store not in self._versions:
            self._versions[store] = [each for each in self._served.values() if each.store == store]
        return self._versions[store]

    def groups(self) -> Mapping[str, Sequence[str]]:
        """Return each group's versions, in order of preference; the core group is ""."""
        if self._groups is not None:
            return self._groups
        groups: dict[str, list[str]] = {}
        for resource in self._served.values():
            versions = groups.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        self._groups = {group: sorted(versions, key=version_order) for group, versions in groups.items()}
        return self._groups

    def serve(self, crd: str, resources: list[Resource]) -> None:
        """Serve these resources for a CRD (by its name), in place of its earlier ones."""
        self._groups = None
        self._versions.clear()
        for old in self._of_crd.pop(crd, ()):
            self._served.pop((old.group, old.version, old.plural), None)
        self._of_crd[crd] = resources
        for resource in resources:
            self._served[resource.group, resource.version, resource.plural] = resource

    def withdraw(self, crd: str) -> list[Resource]:
        """Serve nothing for a CRD any more; return its earlier resources."""
        served = self._of_crd.get(crd, [])
        self.serve(crd, [])
        return served

    def serves(self, resource: Resource) -> bool:
        """Return whether a resource of this name is served."""
        return (resource.group, resource.version, resource.plural) in self._served


def version_order(version: str) -> tuple[int, int, int, str]:
    """Return a sort key: GA before beta before alpha, newer before older (version.CompareKubeAwareVersionStrings)."""
    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not found:
        return (9, 0, 0, version)
    stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
    return (stage, -int(found[1]), -int(found[3] or 0), version)
