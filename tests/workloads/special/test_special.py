"""Kinds with rules of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.builtin import builtin_registry
from bizrq.units.quantity import NANO
from bizrq.workloads.config import GpuModel
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import check_readable
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from bizrq.workloads.lookup import DocumentLookup, EmptyLookup
from bizrq.workloads.validation import Malformed
from tests.support.workload_language import (
    CONFIG,
    Object,
    costs,
    count,
    deployment,
    refusal,
    rollout,
    template,
    tfjob,
    usage,
    workload,
)

POD = template("cpu=1")


def cronjob(group: str | None = "nlp", job: dict[str, Any] | None = None, pod: dict[str, Any] | None = None) -> Object:
    pods = {**POD, "metadata": {"labels": pod or {}}}
    spec = {"jobTemplate": {"metadata": {"labels": job or {}}, "spec": {"template": pods}}}
    return workload("batch/v1", "CronJob", spec, group=group)


@pytest.mark.parametrize("obj", [
    cronjob(job={LABEL: "nlp"}),
    cronjob(pod={LABEL: "nlp"}),
    cronjob(group=None),
])  # fmt: skip
def test_a_cronjob_costs_no_pods(obj):
    demand = count(obj)
    assert costs(demand, "")
    assert demand.resources == {"count/cronjobs.batch": NANO}


@pytest.mark.parametrize("obj", [
    cronjob(),
    cronjob(job={LABEL: "vision"}),
    cronjob(job={"a": "b"}, pod={LABEL: "nlp"}),
])  # fmt: skip
def test_a_cronjob_whose_jobs_would_escape_is_refused(obj):
    assert f"spec.jobTemplate.metadata.labels.{LABEL}: must be nlp as on the CronJob" in refusal(obj)


CLUSTER = {"headGroupSpec": {"template": POD}}


def rayjob(**spec: Any) -> Object:
    return workload("ray.io/v1", "RayJob", {"rayClusterSpec": CLUSTER, **spec})


SUBMITTER = "mem=200Mi limits.cpu=1 limits.memory=1Gi"
RAYJOBS = [
    ("a pod submits it", rayjob(), f"cpu=1500m {SUBMITTER} pods=2"),
    ("of the user's own", rayjob(submitterPodTemplate=template("cpu=2")), "cpu=3 pods=2"),
    ("or a container in the head", rayjob(submissionMode="SidecarMode"), f"cpu=1500m {SUBMITTER} pods=1"),
    ("or nobody", rayjob(submissionMode="HTTPMode"), "cpu=1 pods=1"),
    ("it may take a cluster that is there", rayjob(clusterSelector={"a": "b"}), f"cpu=500m {SUBMITTER} pods=1"),
    ("suspended", rayjob(suspend=True), ""),
    ("over", {**rayjob(), "status": {"jobDeploymentStatus": "Complete"}}, ""),
]


@pytest.mark.parametrize(("obj", "expected"), [row[1:] for row in RAYJOBS], ids=[row[0] for row in RAYJOBS])
def test_a_rayjob_costs(obj, expected):
    assert costs(count(obj), expected)


def test_a_rayjob_that_is_over_costs_the_cluster_that_it_left():
    job = {**rayjob(), "status": {"jobDeploymentStatus": "Complete"}}

    def below(api_version: str, kind: str, name: str, owner: Object, spec: Any) -> Object:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True,
                     "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}  # fmt: skip
        metadata = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "ownerReferences": [reference]}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}

    cluster = below("ray.io/v1", "RayCluster", "c", job, CLUSTER)
    head = below("v1", "Pod", "h", cluster, POD["spec"])
    rows = {row.kind: row for row in usage([job, cluster, head])}
    assert rows["RayJob"].usage == {"pods": "1", "requests.cpu": "1"}
    assert rows["RayCluster"].usage == rows["Pod"].usage == {}


def test_a_rayjob_of_an_unknown_mode_is_refused():
    assert "spec.submissionMode: must be one of K8sJobMode" in refusal(rayjob(submissionMode="Magic"))
    assert "spec.rayClusterSpec.headGroupSpec.template: is missing" in refusal(rayjob(rayClusterSpec={}))


def runtime(*jobs: Object, kind: str = "ClusterTrainingRuntime", **policy: Any) -> Object:
    metadata = {"name": "r"} if kind.startswith("Cluster") else {"name": "r", "namespace": "team-a"}
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [*jobs]}}}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def step(name: str, pod: Object, trains: bool = False, **spec: Any) -> Object:
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"} if trains else {}
    pod = {"spec": {**pod["spec"], "containers": [{**c, "name": "node"} for c in pod["spec"]["containers"]]}}
    return {"name": name, "template": {"metadata": {"labels": labels}, "spec": {**spec, "template": pod}}}


def trainjob(kind: str | None = None, **trainer: Any) -> Object:
    reference = {"name": "r", **({"kind": kind} if kind else {})}
    return workload("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": reference, "trainer": trainer})


EIGHT = {"limits": {"cpu": "8"}}
TRAINJOBS = [
    ("a node unless somebody says more", trainjob(), runtime(step("node", POD, True)), "cpu=1 pods=1"),
    ("as many as the runtime says", trainjob(), runtime(step("node", POD, True), numNodes=3), "cpu=3 pods=3"),
    ("or the job", trainjob(numNodes=4), runtime(step("node", POD, True), numNodes=3), "cpu=4 pods=4"),
    ("of the job's size", trainjob(numNodes=2, resourcesPerNode=EIGHT),
     runtime(step("node", template("mem=1Gi"), True)), "cpu=16 limits.cpu=16 mem=2Gi pods=2"),
    ("other steps as the runtime says", trainjob(numNodes=2),
     runtime(step("init", POD, parallelism=3), step("node", POD, True)), "cpu=5 pods=5"),
    ("a launcher of MPI beside its nodes", trainjob(numNodes=4), runtime(step("launcher", POD, True), step("node", POD),
     mpi={}), "cpu=5 pods=5"),
    ("or as one of them", trainjob(numNodes=4, resourcesPerNode=EIGHT),
     runtime(step("launcher", POD, True), step("node", POD), mpi={"runLauncherAsNode": True}),
     "cpu=4 limits.cpu=32 pods=4"),
    ("from a runtime of the namespace", trainjob("TrainingRuntime"),
     runtime(step("node", POD, True), kind="TrainingRuntime"), "cpu=1 pods=1"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "there", "expected"), [r[1:] for r in TRAINJOBS], ids=[r[0] for r in TRAINJOBS])
def test_a_trainjob_costs(obj, there, expected):
    assert costs(count(obj, there), expected)


def test_a_trainjob_may_say_of_a_step_where_it_runs_and_which_model_it_has():
    """Patches change no amounts, but their nodes and labels prove models."""
    known = replace(CONFIG, gpu_models={"T4": GpuModel(("Tesla-T4",)), "A100": GpuModel(("NVIDIA-A100",))})
    product = "nvidia.com/gpu.product"
    there = runtime(step("node", template("gpu=/1", nodeSelector={product: "NVIDIA-A100", "zone": "a"}), True))

    def patched(name: str, **template: Any) -> Object:
        job = trainjob(numNodes=2)
        jobs = [{"name": name, "template": {"spec": {"template": template}}}]
        patch = {"manager": "m", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
        job["spec"]["runtimePatches"] = [patch]
        return job

    def model(obj: Object) -> set[str]:
        names = count(obj, there, config=known).resources
        return {name.rpartition(".")[2] for name in names if name.startswith("requests.nvidia.com/gpu.")}

    assert model(patched("node", spec={"nodeSelector": {product: "Tesla-T4"}})) == {"T4"}
    assert model(patched("other", spec={"nodeSelector": {product: "Tesla-T4"}})) == {"A100"}
    labels = {MODEL_LABELS["gpu"]: "A100"}
    assert model(patched("node", metadata={"labels": labels})) == {"A100"}
    contradicting = patched("node", metadata={"labels": labels}, spec={"nodeSelector": {product: "Tesla-T4"}})
    assert "contradicts" in refusal(contradicting, there, config=known)
    where = "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template"
    assert refusal(patched("node", spec=[1]), there).startswith(f"{where}.spec: must be a map, not a list")


def test_a_trainjob_without_its_runtime_is_refused():
    assert "spec.runtimeRef: ClusterTrainingRuntime 'r' was not found" in refusal(trainjob())
    assert "spec.runtimeRef.kind: must be" in refusal(trainjob("Job"))


def spark(driver: Object | None = None, executor: Object | None = None, kind: str = "Scala", **spec: Any) -> Object:
    given = {"type": kind, "driver": driver or {}, "executor": executor or {"instances": 0}, **spec}
    return workload("sparkoperator.k8s.io/v1beta2", "SparkApplication", given)


SPARKS = [
    ("a gigabyte and what Spark adds", spark(), "cpu=1 mem=1408Mi limits.memory=1408Mi pods=1"),
    ("a tenth of much is more", spark({"memory": "8g"}), "cpu=1 mem=9011Mi limits.memory=9011Mi pods=1"),
    ("of Python four tenths", spark({"memory": "8g"}, kind="Python"),
     "cpu=1 mem=11468Mi limits.memory=11468Mi pods=1"),
    ("or what it says", spark({"memory": "512m", "memoryOverhead": "128"}),
     "cpu=1 mem=640Mi limits.memory=640Mi pods=1"),
    ("or a factor of its own", spark({"memory": "4g"}, memoryOverheadFactor="0.5"),
     "cpu=1 mem=6Gi limits.memory=6Gi pods=1"),
    ("cores", spark({"cores": 2, "coreRequest": "500m", "coreLimit": "1200m"}),
     "cpu=500m limits.cpu=1200m mem=1408Mi limits.memory=1408Mi pods=1"),
    ("executors", spark(executor={"instances": 3, "cores": 2}), "cpu=7 mem=5632Mi limits.memory=5632Mi pods=4"),
    ("one of them unless it says more", spark(executor={"cores": 2}), "cpu=3 mem=2816Mi limits.memory=2816Mi pods=2"),
    ("as many as dynamic allocation starts with",
     spark(dynamicAllocation={"enabled": True, "initialExecutors": 2, "minExecutors": 1}),
     "cpu=3 mem=4224Mi limits.memory=4224Mi pods=3"),
    ("GPUs", spark({"gpu": {"name": "nvidia.com/gpu", "quantity": 2}}),
     "cpu=1 mem=1408Mi limits.memory=1408Mi gpu=2 limits.nvidia.com/gpu=2 pods=1"),
    ("a limit of memory in the words of the JVM", spark({"memoryLimit": "3g"}),
     "cpu=1 mem=1408Mi limits.memory=3Gi pods=1"),
    ("or of Kubernetes", spark({"memoryLimit": "3Gi"}), "cpu=1 mem=1408Mi limits.memory=3Gi pods=1"),
    ("memory off the heap in bytes", spark(executor={"memoryOverhead": "0"}, driver={"memoryOverhead": "0"}, sparkConf={
        "spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1073741824"}),
     "cpu=2 mem=3Gi limits.memory=3Gi pods=2"),
    ("Python workers of executors", spark(executor={"instances": 1, "memoryOverhead": "0"}, driver={
        "memoryOverhead": "0"}, kind="Python", sparkConf={"spark.executor.pyspark.memory": "1g"}),
     "cpu=2 mem=3Gi limits.memory=3Gi pods=2"),
    ("over", {**spark(), "status": {"applicationState": {"state": "COMPLETED"}}}, ""),
    ("over, and at once again", {**spark(restartPolicy={"type": "Always"}), "status": {
        "applicationState": {"state": "COMPLETED"}}}, "cpu=1 mem=1408Mi limits.memory=1408Mi pods=1"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "expected"), [row[1:] for row in SPARKS], ids=[row[0] for row in SPARKS])
def test_a_sparkapplication_costs(obj, expected):
    assert costs(count(obj), expected)


def test_a_spark_role_says_its_model_as_a_template_does():
    """The role's labels say it, or the nodes that it or the application asks for."""
    known = replace(CONFIG, gpu_models={"A100": GpuModel(("NVIDIA-A100-SXM4-40GB",))})
    gpu, nodes = {"gpu": {"name": "nvidia.com/gpu", "quantity": 2}}, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    for obj in (
        spark(executor={**gpu, "labels": {MODEL_LABELS["gpu"]: "A100"}}),
        spark(executor={**gpu, "nodeSelector": nodes}),
        spark(executor=gpu, nodeSelector=nodes),
    ):
        assert count(obj, config=known).resources["requests.nvidia.com/gpu.A100"] == 2 * NANO


@pytest.mark.parametrize(("obj", "words"), [
    (spark({"memory": "1x"}), "spec.driver.memory: must be a memory like 512m or 2g, not '1x'"),
    (spark({"cores": -1}), "spec.driver.cores: must not be negative"),
    (spark({"template": POD}), "spec.driver.template: pod templates of Spark cannot be counted"),
    (spark(sparkConf={"spark.executor.instances": "9"}), "spec.sparkConf['spark.executor.instances']: cannot"),
    (spark(sparkConf={"spark.driver.minMemoryOverhead": "9g"}), "spec.sparkConf['spark.driver.minMemoryOverhead']:"),
    (spark(sparkConf={"spark.yarn.executor.memoryOverhead": "9g"}), "spec.sparkConf['spark.yarn.executor.memoryOver"),
    (spark(sparkConf={"spark.kubernetes.namespace": "b"}), "spec.sparkConf[spark.kubernetes.namespace]: must be "),
    (spark(sparkConf={"spark.memory.offHeap.enabled": {"a": "b"}}),
     "spec.sparkConf[spark.memory.offHeap.enabled]: must be a string, not a map"),
    (spark(memoryOverheadFactor="lots"), "spec.memoryOverheadFactor: must be a number"),
])  # fmt: skip
def test_a_sparkapplication_is_refused_for(obj, words):
    assert words in refusal(obj)


def service(**components: Any) -> Object:
    return workload("serving.kserve.io/v1beta1", "InferenceService", components)


def test_an_inferenceservice_is_estimated():
    predictor = {"minReplicas": 2, "model": {"resources": {"limits": {"cpu": "2"}}}}
    transformer = {"containers": [{"name": "t", "resources": {"requests": {"cpu": "1"}}}]}
    assert costs(count(service(predictor=predictor, transformer=transformer)), "cpu=5 limits.cpu=4 pods=3")
    labelled = count(service(predictor={**predictor, "labels": {MODEL_LABELS["cpu"]: "A4"}}))
    assert labelled.resources["limits.cpu.A4"] == 4 * NANO
    stopped = service(predictor=predictor)
    stopped["metadata"]["annotations"] = {"serving.kserve.io/stop": "true"}
    assert costs(count(stopped), "")
    assert "workerSpec" in refusal(service(predictor={**predictor, "workerSpec": {}}))


def test_a_knative_service_is_estimated_by_what_it_starts_with():
    def knative(**scales: str) -> Object:
        annotations = {f"autoscaling.knative.dev/{k.replace('_', '-')}": v for k, v in scales.items()}
        return workload(
            "serving.knative.dev/v1", "Service", {"template": {"metadata": {"annotations": annotations}, **POD}}
        )

    assert costs(count(knative()), "cpu=1025m pods=1")
    assert costs(count(knative(min_scale="3")), "cpu=3075m pods=3")
    assert costs(count(knative(minScale="3")), "cpu=3075m pods=3")
    assert costs(count(knative(min_scale="0", initial_scale="0")), "")
    assert "autoscaling.knative.dev/min-scale: must be a whole number" in refusal(knative(min_scale="-1"))


def test_an_estimate_is_charged_only_where_somebody_asks_for_it():
    services = builtin_registry().by_kind("serving.kserve.io", "InferenceService")
    assert services is not None
    assert not builtin_registry().is_charged(services)
    assert builtin_registry().with_all_charged().is_charged(services)


SURGE = replace(CONFIG, surge="count")


def updating(strategy: Any, replicas: int = 5, make: Any = deployment) -> Object:
    obj = make(replicas, "cpu=1")
    obj["spec"]["strategy"] = strategy
    return obj


def daemonset(strategy: Any) -> Object:
    """On five nodes."""
    spec = {"updateStrategy": strategy, "template": POD}
    return {**workload("apps/v1", "DaemonSet", spec), "status": {"desiredNumberScheduled": 5}}


SURGES = [
    ("a quarter more, rounded up", updating(None), 7),
    ("as it says", updating({"rollingUpdate": {"maxSurge": 3}}), 8),
    ("all over again", updating({"rollingUpdate": {"maxSurge": "100%"}}), 10),
    ("one after the other", updating({"type": "Recreate"}), 5),
    ("of nothing nothing", updating(None, 0), 0),
    ("a canary", updating({"canary": {"maxSurge": "50%"}}, make=rollout), 8),
    ("a canary with its own traffic", updating({"canary": {"trafficRouting": {}}}, make=rollout), 10),
    ("blue and green", updating({"blueGreen": {}}, make=rollout), 10),
    ("groups", workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {
        "replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": POD},
        "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1}}}), 9),
    ("a second pod on some nodes", daemonset({"rollingUpdate": {"maxSurge": 2}}), 7),
    ("on a part of the nodes, rounded up", daemonset({"rollingUpdate": {"maxSurge": "30%"}}), 7),
    ("no more than one on each node", daemonset({"rollingUpdate": {"maxSurge": 200}}), 10),
    ("none by default", daemonset({"rollingUpdate": {"maxUnavailable": 3}}), 5),
    ("none where somebody deletes the pods", daemonset({"type": "OnDelete"}), 5),
    ("two clusters", workload("ray.io/v1", "RayService", {"rayClusterConfig": CLUSTER}), 2),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "pods"), [row[1:] for row in SURGES], ids=[row[0] for row in SURGES])
def test_pods_that_replace_others_are_charged_where_the_policy_says_so(obj, pods):
    assert count(obj, config=SURGE).resources.get("pods", 0) == pods * NANO
    assert count(obj).resources.get("pods", 0) <= pods * NANO


def canary(replicas: int = 2, **strategy: Any) -> Object:
    return updating({"canary": strategy}, replicas, make=rollout)


BEYOND = [
    ("more than the replicas", updating({"rollingUpdate": {"maxSurge": 200}}, 2), 200),
    ("as many as the replicas", updating({"rollingUpdate": {"maxSurge": 5}}), 5),
    ("a percentage of the replicas", updating({"rollingUpdate": {"maxSurge": "250%"}}, 2), 5),
    ("one after the other", updating({"type": "Recreate", "rollingUpdate": {"maxSurge": 200}}), 5),
    ("of nothing nothing", updating({"rollingUpdate": {"maxSurge": 200}}, 0), 0),
    ("a canary", canary(maxSurge=200), 200),
    ("a step of a canary with its own traffic", canary(trafficRouting={}, steps=[
        {"setWeight": 5}, {"setCanaryScale": {"replicas": 50}}, {"setCanaryScale": {"weight": 5000}}]), 100),
    ("a step without traffic", canary(steps=[{"setCanaryScale": {"replicas": 50}}]), 2),
    ("a preview", updating({"blueGreen": {"previewReplicaCount": 9}}, 2, make=rollout), 9),
    ("groups", workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {
        "replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": POD},
        "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 5}}}), 15),
    ("two clusters", workload("ray.io/v1", "RayService", {"rayClusterConfig": CLUSTER}), 1),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "pods"), [row[1:] for row in BEYOND], ids=[row[0] for row in BEYOND])
def test_surge_beyond_the_declared_pods_is_charged_while_any_are_declared(obj, pods):
    found = count(obj)
    assert found.resources.get("pods", 0) == pods * NANO
    assert sum(role.replicas for role in found.roles) == pods
    assert (
        sum(role.replicas - role.surge for role in found.roles)
        == count(without_strategy(obj)).resources.get("pods", 0) // NANO
    )


def without_strategy(obj: Object) -> Object:
    return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k not in ("strategy", "rolloutStrategy")}}


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_fewer_replicas_never_ask_for_more_while_any_are_left(surge, some, others):
    def pods(replicas: int) -> int:
        return count(updating({"rollingUpdate": {"maxSurge": surge}}, replicas)).resources.get("pods", 0) // NANO

    fewer, more = sorted((some, others))
    assert pods(fewer) <= pods(more)


UNREADABLE = [
    ("lots", updating({"rollingUpdate": {"maxSurge": "lots"}}), "rollingUpdate.maxSurge: must be a whole number or", 5),
    ("negative", updating({"rollingUpdate": {"maxSurge": -3}}), "rollingUpdate.maxSurge: must not be negative", 5),
    ("a number as text", updating({"rollingUpdate": {"maxSurge": "200"}}), "not '200'", 200),
    ("text with a number", updating({"rollingUpdate": {"maxSurge": "about 70 %"}}), "not 'about 70 %'", 70),
    ("the strategy", updating("fast"), "spec.strategy: must be a map, not 'fast'", 5),
    ("the type", updating({"type": 3, "rollingUpdate": {"maxSurge": 9}}), "spec.strategy.type: must be a string", 9),
    ("one of two steps", canary(trafficRouting={}, steps=[{"setCanaryScale": {"replicas": "x"}}, {"setCanaryScale": {
        "replicas": 30}}]), "canary.steps[0].setCanaryScale.replicas: must be a whole number", 30),
    ("the grace period", deployment(2, template("cpu=1", terminationGracePeriodSeconds=-1)),
     "spec.template.spec.terminationGracePeriodSeconds: must be a whole number of seconds from 0, not -1", 2),
    ("a grace that wraps around", deployment(2, template("cpu=1", terminationGracePeriodSeconds=9_223_372_037)),
     "spec.template.spec.terminationGracePeriodSeconds: must be at most 9223372036 seconds, not 9223372037", 2),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "why", "pods"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
def test_what_cannot_be_read_of_an_update_counts_as_the_largest_that_it_can_mean(obj, why, pods):
    found = count(obj)
    assert found.resources.get("pods", 0) == pods * NANO
    assert len(found.unreadable) == 1
    assert why in found.unreadable[0]
    with pytest.raises(Malformed):
        check_readable(found, count(without_strategy(deployment(2, "cpu=1"))))
    check_readable(found, found)


def test_an_elastic_job_may_be_charged_the_most_it_grows_to():
    spec = {"elasticPolicy": {"maxReplicas": 4}, "pytorchReplicaSpecs": {
        "Master": {"template": POD}, "Worker": {"replicas": 2, "template": POD}}}  # fmt: skip
    job = workload("kubeflow.org/v1", "PyTorchJob", spec)
    assert costs(count(job), "cpu=3 pods=3")
    assert costs(count(job, config=replace(CONFIG, elastic="max")), "cpu=5 pods=5")


NAMED = {**POD, "metadata": {"labels": {LABEL: "vision"}}}
OF_ANOTHER = [
    ("of the one template", deployment(1, NAMED), "spec.template"),
    ("of a role", tfjob(Worker=(0, NAMED)), "spec.tfReplicaSpecs.Worker.template"),
    ("of a cluster that a job makes", rayjob(rayClusterSpec={"headGroupSpec": {"template": NAMED}}),
     "spec.rayClusterSpec.headGroupSpec.template"),
    ("of what submits it", rayjob(submitterPodTemplate=NAMED), "spec.submitterPodTemplate"),
    ("of an executor", spark(executor={"labels": {LABEL: "vision"}}), "spec.executor"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "place"), [row[1:] for row in OF_ANOTHER], ids=[row[0] for row in OF_ANOTHER])
def test_a_template_that_names_another_group_is_told(obj, place):
    adapter = builtin_registry().of(obj)
    assert adapter is not None
    told = f"^{place}: its label {LABEL} names the group 'vision', but the {adapter.kind} is charged to nlp$"
    own = counting.own_demand(obj, adapter, EmptyLookup(), CONFIG)
    assert own.roles
    for demand in (own, counting.NO_DEMAND):
        with pytest.raises(Malformed, match=told.replace(".", "[.]")):
            counting.check_template_labels(obj, adapter, demand, "nlp", EmptyLookup())
        counting.check_template_labels(obj, adapter, demand, "vision", EmptyLookup())


def test_a_template_with_a_label_that_is_no_text_is_told():
    obj = tfjob(Worker=(1, {**NAMED, "metadata": {"labels": {LABEL: ["nlp"]}}}))
    adapter = builtin_registry().of(obj)
    assert adapter is not None
    demand = counting.own_demand(obj, adapter, EmptyLookup(), CONFIG)
    with pytest.raises(Malformed, match=r"names the group a list, but the TFJob is charged to nlp$"):
        counting.check_template_labels(obj, adapter, demand, "nlp", EmptyLookup())


def test_a_template_that_stands_elsewhere_is_not_asked_for_its_label():
    elsewhere = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t", "namespace": "team-a"},
                 "template": NAMED}  # fmt: skip
    reference = {"apiVersion": "v1", "kind": "PodTemplate", "name": "t"}
    for obj in (
        workload("argoproj.io/v1alpha1", "Rollout", {"workloadRef": reference}),
        workload("trainer.kubeflow.org/v1alpha1", "TrainJob", {"suspend": True, "runtimeRef": {"name": "not there"}}),
        rayjob(rayClusterSpec=None, clusterSelector={"ray.io/cluster": "c"}),
    ):
        adapter = builtin_registry().of(obj)
        assert adapter is not None
        counting.check_template_labels(obj, adapter, counting.NO_DEMAND, "nlp", DocumentLookup([elsewhere]))
