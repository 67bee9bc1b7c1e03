"""Objects as people write them, for tests that send them."""

from __future__ import annotations

from typing import Any

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from bizrq.workloads.labels import LABEL

Object = dict[str, Any]

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAYSERVICES = Resource("ray.io", "v1", "rayservices", "RayService")
MPIJOBS = Resource("kubeflow.org", "v1", "mpijobs", "MPIJob")
TFJOBS = Resource("kubeflow.org", "v1", "tfjobs", "TFJob")
PODS = Resource("", "v1", "pods", "Pod")
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
INFERENCE_SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
#: A label selector with every operator.
SELECTOR = {
    "matchLabels": {"quota": "on"},
    "matchExpressions": [
        {"key": "stage", "operator": "In", "values": ["a", "b"]},
        {"key": "stage", "operator": "NotIn", "values": ["b"]},
        {"key": "owner", "operator": "Exists"},
        {"key": "example.com/old", "operator": "DoesNotExist"},
    ],
}
#: The charged kinds that tests make objects of.
CHARGED = (DEPLOYMENTS, ROLLOUTS, TFJOBS, RAYJOBS, RAYSERVICES, RAYCLUSTERS, PODS)
#: What workloads refer to, and what tells where they run.
AROUND = (POD_TEMPLATES, CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, SLICES, NODES, CONFIG_MAPS)
OF_KIND = {r.kind: r for r in (*CHARGED, REPLICASETS, *AROUND, GROUPS, CORRECTIONS)}


def group(name: str, parent: str = "", /, **hard: Any) -> Object:
    """`group("nlp", "ai", cpu="10")`: the amounts by the short names of SHORT or whole ones."""
    spec: Object = {"hard": named(hard)}
    if parent:
        spec["parentBizGroup"] = parent
    return {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "metadata": {"name": name}, "spec": spec}


def correction(name: str, group: str, hours: dict[str, str], *, by: str = "alice", reason: str = "mended") -> Object:
    spec = {"group": group, "hours": hours, "reason": reason, "by": by}
    return {"apiVersion": wire.API_VERSION, "kind": CORRECTIONS.kind, "metadata": {"name": name}, "spec": spec}


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


def referring(
    name: str, group: str | None, to: Object, replicas: int = 1, *, namespace: str = "default", **spec: Any
) -> Object:
    """A Rollout whose template is that of another object."""
    reference = {"apiVersion": to["apiVersion"], "kind": to["kind"], "name": to["metadata"]["name"]}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: group} if group else {}},
        "spec": {"replicas": replicas, "workloadRef": reference, **spec},
    }


def pod_template(name: str, cpu: Any = "1", *, namespace: str = "default") -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template(cpu)}


def device_class(name: str, resource: str = "nvidia.com/gpu") -> Object:
    spec = {"extendedResourceName": resource}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def claim_template(name: str, count: int, of_class: str = "gpu", *, namespace: str = "default") -> Object:
    """Claims for so many devices of a class."""
    requests = [{"name": "r", "exactly": {"deviceClassName": of_class, "allocationMode": "ExactCount", "count": count}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def claim(name: str, count: int = 1, of_class: str = "gpu", *, namespace: str = "default") -> Object:
    """A claim for so many devices of a class, for whoever names it."""
    spec = claim_template(name, count, of_class)["spec"]["spec"]
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def allocation(*devices: str, at: str | None = None, pool: str = "n1") -> Object:
    """What a scheduler writes into a claim's status that got these devices for its request r."""
    results = [{"request": "r", "driver": "gpu.example.com", "pool": pool, "device": device} for device in devices]
    return {"devices": {"results": results}, **({"allocationTimestamp": at} if at else {})}


def node(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def slice_of(pool: str, generation: int = 1, **models: str) -> Object:
    """A ResourceSlice of a node's pool: devices by name, each with its model."""
    devices = [{"name": name, "attributes": {"productName": {"string": model}}} for name, model in models.items()]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{generation}"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": pool,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def claiming(obj: Object, template: str) -> Object:
    """The workload with pods that each have a claim of this template."""
    claims = [{"name": "devices", "resourceClaimTemplateName": template}]
    obj["spec"]["template"]["spec"]["resourceClaims"] = claims
    return obj


def sharing(obj: Object, name: str) -> Object:
    """The workload with pods that all use this claim."""
    obj["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimName": name}]
    return obj


def ray_spec(workers: int) -> Object:
    """A head and so many workers, one cpu each."""
    group = {"groupName": "w", "replicas": workers, "minReplicas": 0, "maxReplicas": 100, "template": template()}
    return {"headGroupSpec": {"rayStartParams": {}, "template": template()}, "workerGroupSpecs": [group]}


def rayjob(name: str, group: str | None, workers: int, *, namespace: str = "default") -> Object:
    """A cluster of its own, and a pod of one cpu that submits the job."""
    submitter = template()
    submitter["spec"]["restartPolicy"] = "Never"
    spec = {"entrypoint": "x", "rayClusterSpec": ray_spec(workers), "submitterPodTemplate": submitter}
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL: group} if group else {}}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}


def rayservice(name: str, group: str | None, workers: int, *, namespace: str = "default") -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL: group} if group else {}}
    spec = {"rayClusterConfig": ray_spec(workers)}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": spec}


def raycluster(name: str, workers: int, owner: Object, *, labels: Object | None = None) -> Object:
    """What the operator makes of a RayJob or RayService."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    namespace = owner["metadata"]["namespace"]
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}, "ownerReferences": [reference]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": ray_spec(workers)}


def tfjob(name: str, group: str, workers: Any = 1, *, namespace: str = "default", gpu: int = 1) -> Object:
    pods = template("1", **{"nvidia.com/gpu": gpu})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: group}},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": "Never", "template": pods}}},
    }


def cronjob(name: str, group: str | None, *, cpu: Any = "1", namespace: str = "default") -> Object:
    """A CronJob whose Jobs have one pod of so much cpu."""
    labels = {LABEL: group} if group else {}
    pods = changed_spec(template(cpu), restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"metadata": {"labels": labels}, "spec": {"template": pods}}},
    }


def scaled_job(name: str, group: str | None, *, cpu: Any = "1", **spec: Any) -> Object:
    """A ScaledJob of KEDA whose Jobs have one pod of so much cpu."""
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledJob",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: group} if group else {}},
        "spec": {"jobTargetRef": {"template": changed_spec(template(cpu), restartPolicy="Never")}, **spec},
    }


def changed_spec(pods: Object, **spec: Any) -> Object:
    return {**pods, "spec": {**pods["spec"], **spec}}


def inference_service(name: str, group: str | None, *, cpu: Any = "1", least: int = 1, most: int = 0) -> Object:
    """An InferenceService of one model server, of which an autoscaler runs so many; 0 is no bound."""
    server = {"name": "kserve-container", "image": "x", "resources": {"limits": {"cpu": cpu}}}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: group} if group else {}},
        "spec": {"predictor": {"minReplicas": least, "maxReplicas": most, "containers": [server]}},
    }


def elastic(name: str, group: str, workers: int, most: int, *, cpu: Any = "1") -> Object:
    """A PyTorchJob of so many workers that may grow to `most`."""
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: group}},
        "spec": {
            "elasticPolicy": {"maxReplicas": most},
            "pytorchReplicaSpecs": {"Worker": {"replicas": workers, "template": template(cpu)}},
        },
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
