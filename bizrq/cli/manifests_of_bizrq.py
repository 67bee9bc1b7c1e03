"""The manifests that `bizrq install` applies, in order.

This file alone decides how the processes run in a cluster. `bizrq.cli.rbac` has the rights, and `crds` the CRDs. The
registration of the webhooks is none of them: the controller's leader keeps it. Nothing here talks to a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import crds
from bizrq.api import guards, overlap, priority
from bizrq.cli import rbac
from bizrq.flags import DRAIN_DELAY, LogFormat, LogLevel
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS, REGISTRATIONS
from bizrq.kube.client import Resource
from bizrq.listener import ANSWERING
from bizrq.registration import PORT, SERVICE
from bizrq.settings import Settings
from bizrq.store import pause, processes
from bizrq.store.overlaps import OVERLAPS
from bizrq.store.processes import CERTS, CONFIG, CONTROLLER, WEB, WEBHOOKS
from webhooks import label_policy

Object = dict[str, Any]

#: The annotation of pods with a digest of their configuration.
CONFIG_DIGEST = "bizrq.quota.biz.group/config"
CLIENT_CA = "bizrq-client-ca"
SECRET = CERTS
#: The Secret with the keys of the web UI. Install makes it once, and never changes it.
WEB_KEYS = "bizrq-web-keys"
MANAGED, INSTALL = "app.kubernetes.io/managed-by", "bizrq-install"
_LABELS = {"app.kubernetes.io/name": "bizrq", MANAGED: INSTALL}
_CERTIFICATES, _SETTINGS, _CLIENTS = "/var/run/bizrq/certificates", "/etc/bizrq", "/etc/bizrq-clients"
#: The memory that a process may take: its caches, and what docs/operations.md, "Bounds of a port" allows strangers.
_MEMORY = {WEBHOOKS: "2Gi", CONTROLLER: "2Gi", CERTS: "256Mi", WEB: "1Gi"}
#: Seconds in which a process ends that has no reviews to answer; the webhooks take so long besides those.
_GRACE = 10
_METRICS = {WEBHOOKS: 9090, CONTROLLER: 9091, CERTS: 9092, WEB: 9093}
#: The web UI stops nothing when it is away: its pods may be evicted for others.
_CRITICAL = frozenset({WEBHOOKS, CONTROLLER, CERTS})

#: The kinds of API priority, which an API server may lack.
PRIORITIES = (
    Resource(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        namespaced=False,
    ),
    Resource("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema", namespaced=False),
)
_KINDS = (
    Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "services", "Service"),
    Resource("", "v1", "secrets", "Secret"),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False),
    REGISTRATIONS,
    POLICIES,
    POLICY_BINDINGS,
    *PRIORITIES,
    OVERLAPS,
)
_BY_KIND: Mapping[str, Resource] = {resource.kind: resource for resource in _KINDS}
#: The kinds of which install deletes outdated objects. Deleting a namespace or a CRD would delete its objects too. Our
#: own objects are none of install's, and the registration is the leader's, also one that an earlier install applied.
PRUNED = tuple(
    r for r in _KINDS if r.kind not in ("Namespace", "CustomResourceDefinition", overlap.KIND, REGISTRATIONS.kind)
)


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """The parameters of an installation: `config` is the text of its configuration, "" for none.

    `client_ca` is the PEM text of the CA of the API server's client certificate, "" for none, and `client_name` its
    common name. `api_servers` are the CIDRs from which the API servers come; without one there is no NetworkPolicy.
    `drain_delay` is the number of seconds that the webhooks serve on after SIGTERM. With `allowances` they admit ahead
    of the write.
    """

    namespace: str
    image: str
    replicas: int
    config: str = ""
    client_ca: str = ""
    client_name: str = ""
    api_servers: tuple[str, ...] = ()
    metrics_anonymous: bool = False
    api_priority: bool = True
    drain_delay: int = DRAIN_DELAY
    allowances: bool = False
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO
    #: Where webhooks are that run outside the cluster: no flag of install says that.
    webhook_url: str = ""


def resource_of(obj: Object) -> Resource:
    return _BY_KIND[obj["kind"]]


def install_objects(settings: Settings, plan: InstallPlan) -> list[Object]:
    """Return all objects in the order to apply them.

    API priority is first, because a cluster may reject it. The controller comes before the webhooks: what is stored is
    counted by a new configuration before it is admitted by it.
    """
    found = [
        *(priority_objects(plan.namespace) if plan.api_priority else []),
        *crds.load(),
        *(manifest.document for manifest in rbac.manifests(settings.registry, plan.namespace)),
        *([_config_map(CONFIG, plan, "config.yaml", plan.config)] if plan.config else []),
        *([_config_map(CLIENT_CA, plan, "ca.crt", plan.client_ca)] if plan.client_ca else []),
        _service(plan),
        _disruption_budget(plan),
        *([_network_policy(plan)] if plan.api_servers else []),
        _certs(plan),
        _controller(plan),
        _webhooks(plan),
        *policy_objects(plan.namespace, settings, plan.webhook_url),
    ]
    return [labelled(obj) for obj in found]


def priority_objects(namespace: str) -> list[Object]:
    """Return the API priority of the processes' accounts."""
    return priority.objects(namespace, (WEBHOOKS, CONTROLLER, CERTS), leader=CONTROLLER)


def policy_objects(namespace: str, settings: Settings, webhook_url: str = "") -> list[Object]:
    """Return the policies that the API server applies itself, each followed by its binding.

    `webhook_url` is where the webhooks are, if not only behind their Service.
    """
    controller, certs, webhooks = (rbac.user_of(each, namespace) for each in (CONTROLLER, CERTS, WEBHOOKS))
    return [
        overlap.policy(settings.registry.made_makers),
        overlap.binding(),
        *guards.guards(controller, certs, webhooks, service=(SERVICE, namespace), webhook_url=webhook_url),
        *label_policy.objects(settings, namespace),
    ]


def outdated(namespace: str) -> list[Object]:
    """Return what the processes of earlier versions stored and these no longer use."""
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": overlap.NAME, "namespace": namespace}}]


def stored_by_processes(namespace: str) -> list[Object]:
    """Return what is stored once for the processes, besides the records of groups: uninstall deletes it."""
    secrets = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        for name in (SECRET, WEB_KEYS)
    ]
    return [*secrets, overlap.overlap_list({}), *outdated(namespace), pause.marker(namespace)]


def labelled(obj: Object) -> Object:
    """Return an object with the labels of what install applies."""
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "labels": {**_LABELS, **metadata.get("labels", {})}}}


def metadata_of(name: str, plan: InstallPlan) -> Object:
    return {"name": name, "namespace": plan.namespace}


def selector(process: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "bizrq", "app.kubernetes.io/component": process.removeprefix("bizrq-")}


def _config_map(name: str, plan: InstallPlan, file: str, text: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata_of(name, plan), "data": {file: text}}


def _service(plan: InstallPlan) -> Object:
    port = {"name": "webhooks", "port": PORT, "targetPort": "webhooks", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(WEBHOOKS, plan),
        "spec": {"selector": selector(WEBHOOKS), "ports": [port]},
    }


def _disruption_budget(plan: InstallPlan) -> Object:
    """Keep one webhook running while nodes are drained, because nothing is admitted without one."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata_of(WEBHOOKS, plan),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector(WEBHOOKS)}},
    }


def _network_policy(plan: InstallPlan) -> Object:
    """Return the policy that lets API servers alone reach the webhooks' port; probes and scrapers reach the other."""
    reviews = {
        "from": [{"ipBlock": {"cidr": cidr}} for cidr in plan.api_servers],
        "ports": [{"port": PORT, "protocol": "TCP"}],
    }
    metrics = {"ports": [{"port": _METRICS[WEBHOOKS], "protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(WEBHOOKS, plan),
        "spec": {
            "podSelector": {"matchLabels": selector(WEBHOOKS)},
            "policyTypes": ["Ingress"],
            "ingress": [reviews, metrics],
        },
    }


def _webhooks(plan: InstallPlan) -> Object:
    # Leave out the CA's key, which only bizrq-certs needs.
    served = {"secretName": SECRET, "items": [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]}
    mounts = {
        _CERTIFICATES: {"name": "certificates", "secret": served},
        # The root file system is read-only, and OpenSSL reads keys only from files.
        "/tmp": {"name": "tmp", "emptyDir": {"medium": "Memory"}},  # noqa: S108 a volume of the pod's own
    }
    arguments = ["--cert-dir", _CERTIFICATES, "--port", str(PORT), "--drain-delay", str(plan.drain_delay)]
    if plan.client_ca:
        # The process reads it again when it changes, so a new CA starts no new pods.
        mounts[_CLIENTS] = {"name": "client-ca", "configMap": {"name": CLIENT_CA}}
        arguments += ["--client-ca", f"{_CLIENTS}/ca.crt", "--client-name", plan.client_name]
    if plan.allowances:
        arguments.append("--allowances")
    return deployment(
        WEBHOOKS,
        plan,
        plan.replicas,
        _of_cluster(plan, arguments),
        ports={"webhooks": PORT},
        mounts=mounts,
        grace=grace_of(plan),
    )


def _controller(plan: InstallPlan) -> Object:
    return deployment(CONTROLLER, plan, plan.replicas, _of_cluster(plan, []))


def _certs(plan: InstallPlan) -> Object:
    """Return the Deployment of bizrq-certs; one replica is enough, because the Secret keeps the certificates."""
    mounts = {_CERTIFICATES: {"name": "certificates", "emptyDir": {"medium": "Memory"}}}
    arguments = _of_cluster(plan, ["--cert-dir", _CERTIFICATES, "--secret", SECRET])
    return deployment(CERTS, plan, 1, arguments, mounts=mounts, counts=False)


def grace_of(plan: InstallPlan) -> int:
    """Return the seconds in which a process ends that drains, answers what is under way, and closes."""
    return plan.drain_delay + int(ANSWERING) + _GRACE


def _of_cluster(plan: InstallPlan, arguments: list[str]) -> list[str]:
    """Return the arguments of a process that has an account with rights."""
    anonymous = ["--metrics-anonymous"] if plan.metrics_anonymous else []
    return ["--namespace", plan.namespace, *arguments, *anonymous]


def deployment(
    process: str,
    plan: InstallPlan,
    replicas: int,
    arguments: list[str],
    *,
    ports: Mapping[str, int] | None = None,
    mounts: Mapping[str, Object] | None = None,
    counts: bool = True,
    grace: int = _GRACE,
) -> Object:
    """Return the Deployment of a process, with probes and without rights on its node.

    `mounts` are volumes by mount path; `counts` is False for a process that takes no configuration; `grace` is its
    terminationGracePeriodSeconds.
    """
    logs = ["--log-format", plan.log_format.value, "--log-level", plan.log_level.value]
    volumes, command = dict(mounts or {}), [process, *logs, *arguments]
    annotations: dict[str, str] = {}
    if plan.config and counts:
        volumes[_SETTINGS] = {"name": "config", "configMap": {"name": CONFIG}}
        command += ["--config", f"{_SETTINGS}/config.yaml"]
        # A process reads its configuration once, so a new text has to start new pods.
        annotations[CONFIG_DIGEST] = processes.digest(plan.config)
    template: Object = {
        "metadata": {"labels": selector(process), **({"annotations": annotations} if annotations else {})},
        "spec": {
            "serviceAccountName": process,
            **({"priorityClassName": "system-cluster-critical"} if process in _CRITICAL else {}),
            "terminationGracePeriodSeconds": grace,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "affinity": _on_different_nodes(process),
            "containers": [_container(process, plan.image, command, ports or {}, volumes)],
            "volumes": list(volumes.values()),
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata_of(process, plan),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(process)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        },
    }


def _container(
    process: str, image: str, command: list[str], ports: Mapping[str, int], volumes: Mapping[str, Object]
) -> Object:
    return {
        "name": process.removeprefix("bizrq-"),
        "image": image,
        "command": command,
        "env": [{"name": processes.POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in {**ports, "metrics": _METRICS[process]}.items()
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "periodSeconds": 20,
            "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": _MEMORY[process]}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": volume["name"], "mountPath": path} for path, volume in volumes.items()],
    }


def _on_different_nodes(process: str) -> Object:
    """Return an affinity that prefers nodes without another pod of the process."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector(process)}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
