"""Objects as people write them, for tests that send them."""

from __future__ import annotations

from typing import Any

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.kube.groups import GROUPS
from bizrq.workloads.labels import LABEL

Object = dict[str, Any]

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")
TFJOBS = Resource("kubeflow.org", "v1", "tfjobs", "TFJob")
PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
REGISTRATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
#: The charged kinds that tests make objects of.
CHARGED = (DEPLOYMENTS, ROLLOUTS, TFJOBS, PODS)
OF_KIND = {r.kind: r for r in (DEPLOYMENTS, ROLLOUTS, TFJOBS, PODS, CONFIG_MAPS, GROUPS)}


def group(name: str, parent: str = "", /, **hard: Any) -> Object:
    """`group("nlp", "ai", cpu="10")`: the amounts by the short names of SHORT or whole ones."""
    spec: Object = {"hard": named(hard)}
    if parent:
        spec["parentBizGroup"] = parent
    return {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "metadata": {"name": name}, "spec": spec}


SHORT = {
    "cpu": "limits.cpu",
    "gpu": "requests.nvidia.com/gpu",
    "hours": "cash/requests.nvidia.com/gpu",
    "count": "count/deployments.apps",
}


def named(amounts: dict[str, Any]) -> dict[str, Any]:
    return {SHORT.get(name, name): amount for name, amount in amounts.items()}


def template(cpu: Any = "1", **limits: Any) -> Object:
    """A pod template of one container with these limits."""
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": cpu, **limits}}}]},
    }


def deployment(
    name: str, group: str | None, replicas: int = 1, *, namespace: str = "default", cpu: Any = "1"
) -> Object:
    """So many replicas of so much cpu, charged to the group; None is no label."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: group} if group else {}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template(cpu)},
    }


def rollout(name: str, group: str, replicas: int = 1, *, namespace: str = "default", cpu: Any = "1") -> Object:
    made = deployment(name, group, replicas, namespace=namespace, cpu=cpu)
    return {**made, "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}


def tfjob(name: str, group: str, workers: Any = 1, *, namespace: str = "default", gpu: int = 1) -> Object:
    pods = template("1", **{"nvidia.com/gpu": gpu})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: group}},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": "Never", "template": pods}}},
    }


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def cluster_role(name: str, *verbs: str, names: list[str] | None = None) -> Object:
    """These verbs on groups; on those of these names only, where some are given."""
    rule: Object = {"apiGroups": [wire.API_GROUP], "resources": [wire.PLURAL], "verbs": list(verbs)}
    if names is not None:
        rule["resourceNames"] = names
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule],
    }


def bound(role: str, user: str, kind: str = "User") -> Object:
    """A binding of the ClusterRole to one user, or to a group of users."""
    api = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role}-of-{user.replace(':', '-')}"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": kind, "name": user}],
    }
