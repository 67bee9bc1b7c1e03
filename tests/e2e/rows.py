"""One of each kind of workload, as its users write it: what it costs at each size, how it is suspended and ended.

Each pod has one core. A size is how often the kind's own number says so; what it comes to is `pods`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.support.objects import DEPLOYMENTS, PODS, Object

REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout")
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
CLUSTER_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)

SELECTED = {"matchLabels": {"app": "x"}}
ANY = [{"operator": "Exists"}]


@dataclass(frozen=True)
class Row:
    """One kind. `sized` gives what of the spec says a size (a merge patch), `spec` the rest of it."""

    resource: Resource
    spec: Object
    sized: Callable[[int], Object]
    #: The pods of a size, and the cores of all of them; cores are the pods unless it says otherwise.
    pods: Callable[[int], int] = lambda size: size
    cores: Callable[[int], int] | None = None
    #: What a refusal of too large a size says last: how many more pods fit, where one role grew.
    fits: int | None = 1
    #: The cores that the group has beside a size of three.
    room: int = 1
    scale: bool = False
    suspend: Object | None = None
    resume: Object | None = None
    #: What it makes, each made by the one before; {} is a pod that the cluster's own controllers make.
    makes: Sequence[tuple[Resource, Object]] = ()
    #: The status that says it has ended.
    ended: Object | None = None
    #: Its size can be edited, and its creation in too large a size is refused.
    edited: bool = True
    refused: bool = True
    context: Sequence[tuple[Resource, Object]] = field(default=())

    @property
    def name(self) -> str:
        return self.resource.key

    def cost(self, size: int) -> dict[str, str]:
        cores = (self.cores or self.pods)(size)
        return {"limits.cpu": str(cores), "pods": str(self.pods(size))}


def template(cpu: Any = "1", **spec: Any) -> Object:
    containers = [{"name": "c", "image": "x", "resources": {"limits": {"cpu": cpu}}}]
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers, **spec}}


def labelled(pods: Object, group: str) -> Object:
    """A copy in which every pod template carries the group's label, as people copy labels down."""
    if isinstance(pods, list):
        return [labelled(each, group) for each in pods]  # type: ignore[return-value]
    if not isinstance(pods, dict):
        return pods
    copy = {key: labelled(value, group) for key, value in pods.items()}
    if isinstance(copy.get("spec"), dict) and "containers" in copy["spec"] and isinstance(copy.get("metadata"), dict):
        copy["metadata"] = {**copy["metadata"], "labels": {**copy["metadata"].get("labels", {}), LABEL: group}}
    return copy


ONE = template()
NEVER = template(restartPolicy="Never")
POD = (PODS, {"spec": ONE["spec"]})
REPLICAS = {"replicas": 1, "selector": SELECTED, "template": ONE}
CONDITION = {"lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
             "reason": "Test", "message": "ended"}  # fmt: skip


def condition(kind: str) -> Object:
    return {"conditions": [{"type": kind, "status": "True", **CONDITION}]}


def kubeflow(kind: str, field_: str, first: str = "", *, version: str = "v1", scale: bool = False) -> Row:
    """Workers beside one `first`; after its end what runs is charged."""
    role = {"replicas": 1, "restartPolicy": "Never", "template": ONE}
    roles = {"Worker": role, **({first: role} if first else {})}
    return Row(
        Resource("kubeflow.org", version, f"{kind.lower()}s", kind),
        {field_: roles},
        lambda size: {field_: {"Worker": {"replicas": size}}},
        pods=lambda size: size + bool(first),
        scale=scale,
        suspend={"runPolicy": {"suspend": True}},
        resume={"runPolicy": {"suspend": False}},
        makes=[POD],
        ended=condition("Succeeded"),
    )


RAY = {
    "headGroupSpec": {"rayStartParams": {}, "template": ONE},
    "workerGroupSpecs": [],
}


def workers(size: int) -> Object:
    """Hosts of one core each, in a group of so many replicas."""
    group = {"groupName": "w", "replicas": size, "minReplicas": 0, "maxReplicas": 100, "rayStartParams": {}}
    return {"workerGroupSpecs": [{**group, "template": ONE}]}


def executors(size: int) -> Object:
    return {"executor": {"instances": size}}


SPARK_POD = {"cores": 1, "coreLimit": "1", "memory": "512m"}
SUBMITTER = template(restartPolicy="Never")
TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step"
RUNTIME = {
    "metadata": {"name": "kinds-runtime"},
    "spec": {
        "mlPolicy": {"numNodes": 1},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {TRAINER: "trainer"}},
                            "spec": {
                                "template": {"spec": {"containers": [{**ONE["spec"]["containers"][0], "name": "node"}]}}
                            },
                        },
                    }
                ]
            }
        },
    },
}

ROWS = [
    Row(DEPLOYMENTS, REPLICAS, lambda size: {"replicas": size}, scale=True),
    Row(REPLICASETS, REPLICAS, lambda size: {"replicas": size}, scale=True),
    Row(
        REPLICATION_CONTROLLERS,
        {**REPLICAS, "selector": SELECTED["matchLabels"]},
        lambda size: {"replicas": size},
        scale=True,
    ),
    Row(STATEFULSETS, {**REPLICAS, "serviceName": "x"}, lambda size: {"replicas": size}, scale=True),
    # On two nodes; what grows is the size of its pods.
    Row(
        DAEMONSETS,
        {"selector": SELECTED, "template": template(nodeSelector={"kinds": "two"}, tolerations=ANY)},
        lambda size: {"template": {"spec": {"containers": [{**ONE["spec"]["containers"][0],
                                                             "resources": {"limits": {"cpu": str(size)}}}]}}},
        pods=lambda _: 2,
        cores=lambda size: 2 * size,
        fits=0,
    ),
    Row(
        JOBS,
        {"completions": 100, "template": NEVER},
        lambda size: {"parallelism": size},
        suspend={"suspend": True},
        resume={"suspend": False},
    ),
    Row(
        CRONJOBS,
        {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": NEVER}}},
        lambda _: {},
        pods=lambda _: 0,
        edited=False,
        refused=False,
    ),
    Row(PODS, ONE["spec"], lambda _: {}, pods=lambda _: 1, edited=False, refused=False),
    Row(
        ROLLOUTS,
        {**REPLICAS, "strategy": {"canary": {}}},
        lambda size: {"replicas": size},
        scale=True,
        # It keeps what its selector matches.
        makes=[(REPLICASETS, {"metadata": {"labels": ONE["metadata"]["labels"]}, "spec": REPLICAS})],
    ),
    kubeflow("TFJob", "tfReplicaSpecs", "PS"),
    kubeflow("PyTorchJob", "pytorchReplicaSpecs", "Master", scale=True),
    kubeflow("PaddleJob", "paddleReplicaSpecs", scale=True),
    kubeflow("JAXJob", "jaxReplicaSpecs", scale=True),
    kubeflow("XGBoostJob", "xgbReplicaSpecs", "Master"),
    kubeflow("MPIJob", "mpiReplicaSpecs", "Launcher"),
    Row(
        JOBSETS,
        {},
        lambda size: {"replicatedJobs": [{"name": "j", "replicas": size, "template": {
            "spec": {"parallelism": 2, "completions": 2, "template": NEVER}}}]},
        pods=lambda size: 2 * size,
        fits=2,
        room=2,
        suspend={"suspend": True},
        resume={"suspend": False},
        makes=[(JOBS, {"spec": {"template": NEVER}})],
        ended=condition("Completed"),
    ),
    # A group is a leader and two workers: two roles grow at once.
    Row(
        Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
        {"leaderWorkerTemplate": {"size": 3, "workerTemplate": ONE}},
        lambda size: {"replicas": size},
        pods=lambda size: 3 * size,
        fits=None,
        scale=True,
        makes=[(STATEFULSETS, {"spec": {**REPLICAS, "serviceName": "x"}}), (PODS, {}),
               (STATEFULSETS, {"spec": {**REPLICAS, "serviceName": "x"}})],
    ),
    Row(
        Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job"),
        {},
        lambda size: {"tasks": [{"name": "t", "replicas": size, "template": NEVER}]},
        makes=[POD],
        ended={"state": {"phase": "Completed"}},
    ),
    Row(
        RAYCLUSTERS,
        RAY,
        workers,
        pods=lambda size: size + 1,
        suspend={"suspend": True},
        resume={"suspend": False},
        makes=[POD],
    ),
    Row(
        Resource("ray.io", "v1", "rayjobs", "RayJob"),
        {"entrypoint": "x", "rayClusterSpec": RAY, "submitterPodTemplate": SUBMITTER},
        lambda size: {"rayClusterSpec": workers(size)},
        pods=lambda size: size + 2,
        suspend={"suspend": True},
        resume={"suspend": False},
        makes=[(RAYCLUSTERS, {"spec": {**RAY, **workers(1)}}), POD],
        ended={"jobDeploymentStatus": "Complete"},
    ),
    Row(
        Resource("ray.io", "v1", "rayservices", "RayService"),
        {"rayClusterConfig": RAY},
        lambda size: {"rayClusterConfig": workers(size)},
        pods=lambda size: size + 1,
        makes=[(RAYCLUSTERS, {"spec": {**RAY, **workers(1)}}), POD],
    ),
    Row(
        Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
        {"runtimeRef": {"name": "kinds-runtime"}},
        lambda size: {"trainer": {"numNodes": size}},
        edited=False,
        suspend={"suspend": True},
        resume={"suspend": False},
        makes=[(JOBSETS, {"spec": {"replicatedJobs": [
            {"name": "node", "template": {"spec": {"parallelism": 2, "completions": 2, "template": NEVER}}}]}}),
               (JOBS, {"spec": {"template": NEVER}})],
        ended=condition("Complete"),
        context=[(CLUSTER_RUNTIMES, RUNTIME)],
    ),
    # The driver's executors are its own.
    Row(
        Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication"),
        {"type": "Scala", "mainApplicationFile": "x", "sparkVersion": "3.5.0", "driver": SPARK_POD,
         "executor": SPARK_POD},
        executors,
        pods=lambda size: size + 1,
        suspend={"suspend": True},
        resume={"suspend": False},
        makes=[POD, POD],
        ended={"applicationState": {"state": "COMPLETED"}, "driverInfo": {}},
    ),
    Row(
        Resource("sparkoperator.k8s.io", "v1beta2", "scheduledsparkapplications", "ScheduledSparkApplication"),
        {"schedule": "@yearly", "template": {"type": "Scala", "mainApplicationFile": "x", "sparkVersion": "3.5.0",
                                             "driver": SPARK_POD, "executor": SPARK_POD}},
        lambda _: {},
        pods=lambda _: 0,
        edited=False,
        refused=False,
    ),
]  # fmt: skip
