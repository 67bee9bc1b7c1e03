"""Hostile input is refused in one line, without other effects."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bizrq.units import quantity
from bizrq.units.quantity import MAX
from bizrq.workloads.config import GpuModel
from bizrq.workloads.labels import LABEL, group_of
from bizrq.workloads.validation import Malformed, child_path, describe_value, expect_metadata
from tests.support.workload_language import (
    CONFIG,
    count,
    deployment,
    refusal,
    rollout,
    served_by_hami,
    template,
    tfjob,
    usage,
    workload,
)

POD = template("cpu=1")
ROOT = "spec.template.spec.containers[0].resources"

COUNTS = [
    (-1, "spec.replicas: must not be negative, but is -1"),
    (True, "spec.replicas: must be a whole number, not true"),
    (2.0, "spec.replicas: must be a whole number, not 2.0"),
    ("3", "spec.replicas: must be a whole number, not '3'"),
    ([1], "spec.replicas: must be a whole number, not a list"),
    (2**31, "spec.replicas: must be at most 2147483647, but is 2147483648"),
    (10**5000, "spec.replicas: must be at most 2147483647, but is a huge number"),
    (float("nan"), "spec.replicas: must be a whole number, not nan"),
]


@pytest.mark.parametrize(("replicas", "message"), COUNTS, ids=[message[:60] for _, message in COUNTS])
def test_a_count_is_refused(replicas, message):
    assert refusal(rollout(replicas, "cpu=1")) == message


RESOURCES: list[tuple[str, Any, str]] = [
    ("no map", "plenty", f"{ROOT}: must be a map, not 'plenty'"),
    ("a list", [1], f"{ROOT}: must be a map, not a list"),
    ("limits of text", {"limits": "plenty"}, f"{ROOT}.limits: must be a map"),
    ("requests of a list", {"requests": [1, {"x": 2}]}, f"{ROOT}.requests: must be a map"),
    ("a quantity of null", {"limits": {"cpu": None}}, f"{ROOT}.limits.cpu: a null is not a quantity"),
    ("a quantity of true", {"limits": {"cpu": True}}, f"{ROOT}.limits.cpu: a bool is not a quantity"),
    ("a quantity of a map", {"limits": {"cpu": {}}}, f"{ROOT}.limits.cpu: a dict is not a quantity"),
    ("not a number", {"limits": {"cpu": float("inf")}}, f"{ROOT}.limits.cpu: "),
    ("a number of a million digits", {"limits": {"cpu": "9" * 10**6}}, f"{ROOT}.limits.cpu: "),
    ("an exponent of nine digits", {"limits": {"cpu": "1e999999999"}}, f"{ROOT}.limits.cpu: "),
    ("lines in a quantity", {"limits": {"cpu": "1\nadmitted: true"}}, "'1\\nadmitted: true'"),
    ("lines in a name", {"limits": {"x\n.com/y": 1}}, "limits['x\\n.com/y']: no container can ask for this"),
    ("a name of a mile", {"limits": {"x" * 10**6: 1}}, "no container can ask for this"),
    ("a name that is no text", {"limits": {1: 1}}, f"{ROOT}.limits[1]: is not a resource name"),
    ("a name of odd letters", {"limits": {"ｎvidia.com/gpu": 1}}, "no container can ask for this"),
]


@pytest.mark.parametrize(("resources", "words"), [r[1:] for r in RESOURCES], ids=[r[0] for r in RESOURCES])
def test_resources_are_refused(resources, words):
    obj = rollout(1, "")
    obj["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    assert words in refusal(obj)


SHAPES: list[tuple[str, dict, str]] = [
    ("a spec of text", workload("apps/v1", "Deployment", "x"), "spec: must be a map, not 'x'"),
    ("no spec", workload("apps/v1", "Deployment", None), "spec.template: is missing"),
    ("no template", workload("apps/v1", "Deployment", {"replicas": 1}), "spec.template: is missing"),
    ("an empty template", deployment(1, {}), "spec.template.spec: is missing"),
    ("a template of a list", deployment(1, {"spec": [1]}), "spec.template.spec: must be a map, not a list"),
    ("no containers", deployment(1, {"spec": {}}), "spec.template.spec.containers: is missing"),
    ("containers of a map", deployment(1, {"spec": {"containers": {}}}), "containers: must be a list, not a map"),
    ("a container of null", deployment(1, {"spec": {"containers": [None]}}), "containers[0]: must be a map, not null"),
    ("a map as name", deployment(1, {"spec": {"containers": [{"name": {}}]}}), "containers[0].name: must be a string"),
    ("init containers of text", deployment(1, template("cpu=1", initContainers="x")), "initContainers: must be a list"),
    ("an overhead below nothing", deployment(1, template("", overhead={"cpu": "-1"})), "spec.overhead.cpu: must not"),
    ("metadata of text", {**deployment(1, "cpu=1"), "metadata": "x"}, "metadata: must be a map, not 'x'"),
    ("labels of text", {**deployment(1, "cpu=1"), "metadata": {"labels": "x"}}, "metadata.labels: must be a map"),
    ("a role of nothing", tfjob(Worker=(1, {})), "spec.tfReplicaSpecs.Worker.template.spec: is missing"),
    ("an empty role", workload("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": {"PS": {}}}),
     "spec.tfReplicaSpecs.PS.template: is missing"),
    ("a role of null", workload("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": {"PS": None}}),
     "spec.tfReplicaSpecs.PS: must be a map, not null"),
    ("roles of text", workload("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": "x"}),
     "spec.tfReplicaSpecs: must be a map or a list, not 'x'"),
    ("a role that lowers the sum", tfjob(Worker=(10, "cpu=1"), PS=(-10, "cpu=1")),
     "spec.tfReplicaSpecs.PS.replicas: must not be negative"),
    ("a role's name of lines", tfjob(**{"a\nb": (-1, "cpu=1")}), "spec.tfReplicaSpecs['a\\nb'].replicas: must not"),
    ("a flag of text", workload("kubeflow.org/v1", "TFJob", {"runPolicy": {"suspend": "no"}}),
     "spec.runPolicy.suspend: must be true or false, not 'no'"),
    ("hosts below nothing",
     workload("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [
         {"replicas": 1, "numOfHosts": -4, "template": POD}]}),
     "spec.workerGroupSpecs[0].numOfHosts: must not be negative"),
    ("counts that multiply beyond all bounds",
     workload("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [
         {"name": "a", "replicas": 2**31 - 1,
          "template": {"spec": {"parallelism": 2, "completions": 2, "template": POD}}}]}),
     "spec.replicatedJobs[0]: asks for more than 2147483647 pods"),
    ("a total beyond all bounds", rollout(2**31 - 1, "mem=1Ei"), "the pods together ask for more than"),
    ("a model that is no label", deployment(1, "cpu=1", cpu="a b"), "labels.biz.group.resource.quota/cpu-type: 'a b'"),
    ("a model that is a list", {**deployment(1, "cpu=1"), "metadata": {"labels": {
        "biz.group.resource.quota/cpu-type": ["a"]}}}, "cpu-type: must be a string, not a list"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "words"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_an_object_is_refused(obj, words):
    assert words in refusal(obj)


def test_status_that_is_no_status_says_nothing():
    for status in ("x", [], {"conditions": "x"}, {"conditions": [None, {"type": ["Failed"], "status": "True"}]}):
        assert count({**tfjob(Worker=(1, "cpu=1")), "status": status}).resources["pods"]


def test_what_is_deep_or_refers_to_itself_is_not_followed():
    deep: Any = "x"
    for _ in range(50_000):
        deep = {"a": deep}
    loop: list[Any] = []
    loop.append(loop)
    for value in (deep, loop):
        obj = rollout(1, "")
        obj["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": value}}
        assert "is not a quantity" in refusal(obj)
        obj["spec"]["template"] = value
        assert "spec.template" in refusal(obj)


def test_many_containers_cost_no_more_time_than_they_are_many():
    inits = [{"name": f"i{n}", "resources": {"limits": {f"x.com/r{n}": 1}}} for n in range(8_000)]
    for n in range(0, 8_000, 2):
        inits[n]["restartPolicy"] = "Always"
    obj = rollout(1, template("cpu=1", initContainers=inits))
    took = []
    while not took or (min(took) > 2 and len(took) < 3):
        began = time.thread_time()
        assert count(obj).resources["requests.x.com/r7999"]
        took.append(time.thread_time() - began)
    assert min(took) < 2


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"containers": [{"name": "c", "resources": {"limits": {f"x.com/r{n}": 1 for n in range(12_500)}}}]}, "25002"),
        ({"containers": [{"name": "c"}], "resourceClaims": [{"name": f"r{n}"} for n in range(250)]}, "25002"),
        ({"containers": [{"name": "c"}] * 25_000}, "25001"),
    ],
    ids=["resource names", "claims", "containers"],
)
def test_more_than_can_be_counted_while_others_wait_is_refused(pod, words):
    obj = rollout(1, "cpu=1")
    obj["spec"]["template"]["spec"] = pod
    assert f"its pods have {words}" in refusal(obj)


def test_more_roles_than_can_be_counted_while_others_wait_are_refused():
    roles = {f"W{n}": {"replicas": 1, "template": template("cpu=1")} for n in range(25_001)}
    assert "has 25001 entries" in refusal(workload("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": roles}))


def test_no_total_is_more_than_kubernetes_can_hold():
    obj = rollout(2**31 - 1, "cpu=4294967298")
    assert count(obj).resources["requests.cpu"] <= MAX
    obj["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4294967299"
    assert "more than 9223372036854775807 of requests.cpu" in refusal(obj)


def test_hostile_values_are_shown_in_one_short_line():
    for value in ("x" * 10**6, "a\nb", "\u202e", 10**5000, {"a": 1}, [1], b"x" * 1000, 1.5, None, True):
        assert describe_value(value).isascii()
        assert "\n" not in describe_value(value)
        assert len(describe_value(value)) <= 64
    assert child_path("a", "b\n") == "a['b\\n']"
    assert child_path("a", "x.com/y") == "a.x.com/y"
    assert child_path("", "a") == "a"


def test_a_group_is_a_label_value_or_none():
    assert group_of({}) is None
    assert group_of({"metadata": {"labels": {"biz.group.resource.quota": ""}}}) is None
    assert group_of(deployment(1, "")) == "nlp"
    for wrong in ("a b", "-a", "x" * 64, 7, ["a"]):
        with pytest.raises(Malformed, match=r"biz\.group\.resource\.quota"):
            group_of({"metadata": {"labels": {"biz.group.resource.quota": wrong}}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1", "-1", "5Gi"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)

CLAIMS = template("gpu=/1", resourceClaims=[{"name": "a", "resourceClaimTemplateName": "t"},
                                          {"name": "b", "resourceClaimName": "s"}])  # fmt: skip
REQUESTS = [{"name": "r", "exactly": {"deviceClassName": "c", "count": 2}},
            {"name": "f", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}]  # fmt: skip
HAMI = template("nvidia.com/gpu=/1 nvidia.com/gpumem=/100", nodeSelector={"nvidia.com/gpu.product": "T4"})
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["T4"]}]}]}}}  # fmt: skip
EVERYTHING = replace(
    CONFIG,
    surge="count",
    elastic="max",
    hami=served_by_hami("nvidia", "ascend"),
    gpu_models={"T4": GpuModel((), 100)},
)


def other(api_version: str, kind: str, name: str, spec: Any, **more: Any) -> dict:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": spec,
        **more,
    }


#: Every kind, each with what it may refer to: one place of one of them is overwritten with anything at all.
SEEDS: list[list[dict]] = [
    [rollout(2, "init cpu=1 | cpu=1/2 gpu=/1", cpu="A4", gpu="A100")],
    [deployment(2, {**HAMI, "metadata": {"annotations": {"nvidia.com/use-gputype": "T4"}, "labels": {}}}, gpu="T4")],
    [deployment(2, template("gpu=/1 | huawei.com/Ascend910C=/1", affinity=AFFINITY))],
    [deployment(1, CLAIMS),
     other("resource.k8s.io/v1", "ResourceClaimTemplate", "t", {"spec": {"devices": {"requests": REQUESTS}}}),
     other("resource.k8s.io/v1", "ResourceClaim", "s", {"devices": {"requests": REQUESTS}}),
     other("resource.k8s.io/v1", "DeviceClass", "c", {"extendedResourceName": "nvidia.com/gpu"})],
    [deployment(1, template("cpu=1", runtimeClassName="k")),
     other("node.k8s.io/v1", "RuntimeClass", "k", None, overhead={"podFixed": {"cpu": "1"}}),
     other("v1", "LimitRange", "l", {"limits": [{"type": "Container", "default": {"cpu": "1"}, "max": {"cpu": 2}}]})],
    [workload("argoproj.io/v1alpha1", "Rollout", {"strategy": {"canary": {"maxSurge": 1}}, "workloadRef": {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}),
     other("apps/v1", "Deployment", "d", {"template": POD})],
    [tfjob(Worker=(2, "cpu=1"), PS=(1, "mem=1Gi"))],
    [{**tfjob(Worker=(2, "cpu=1")), "status": {"conditions": [{"type": "Failed", "status": "True"}]}},
     {**other("v1", "Pod", "p", POD["spec"]), "status": {"phase": "Running"}, "metadata": {
         "name": "p", "namespace": "team-a", "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "TFJob",
                                                                  "name": "w", "uid": "uid-w", "controller": True}]}}],
    [workload("kubeflow.org/v1", "PyTorchJob", {"elasticPolicy": {"maxReplicas": 3},
                                               "pytorchReplicaSpecs": {"Worker": {"template": POD}}})],
    [workload("batch/v1", "Job", {"parallelism": 2, "completions": 3, "template": POD})],
    [workload("batch/v1", "CronJob", {"jobTemplate": {"metadata": {"labels": {LABEL: "nlp"}},
                                                     "spec": {"template": POD}}})],
    [workload("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": POD},
                                         "workerGroupSpecs": [{"template": POD}]})],
    [workload("ray.io/v1", "RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": POD}}, "submissionMode": "",
                                      "submitterPodTemplate": POD, "clusterSelector": {}})],
    [workload("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "r", "kind": "TrainingRuntime"},
                                                            "trainer": {"numNodes": 1, "resourcesPerNode": {}}}),
     other("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "r", {
         "mlPolicy": {"numNodes": 1, "mpi": {"runLauncherAsNode": True}}, "template": {"spec": {"replicatedJobs": [
             {"name": "node", "template": {"metadata": {"labels": {}}, "spec": {"template": POD}}}]}}})],
    [workload("sparkoperator.k8s.io/v1beta2", "SparkApplication", {
        "type": "Python", "driver": {"memory": "1g", "cores": 1, "gpu": {"name": "nvidia.com/gpu", "quantity": 1}},
        "executor": {"instances": 1, "sidecars": []}, "sparkConf": {"spark.memory.offHeap.enabled": "true",
                                                                     "spark.memory.offHeap.size": "1g"}})],
    [workload("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 1, "model": {
        "resources": {"limits": {"cpu": "1"}}}}})],
    [workload("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": 1, "leaderWorkerTemplate": {
        "size": 2, "workerTemplate": POD}, "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1}}})],
    [deployment(1, "cpu=1"), {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {
        "name": "w", "namespace": "team-a"}, "spec": {"replicas": 3}}],
]  # fmt: skip


def places(value: Any, at: tuple = ()) -> list[tuple]:
    found = [at]
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*at, key))
    return found


@settings(max_examples=1000)
@given(st.data())
def test_whatever_stands_anywhere_is_counted_or_malformed(data):
    documents = copy.deepcopy(data.draw(st.sampled_from(SEEDS)))
    place = data.draw(st.sampled_from([p for p in places(documents) if len(p) > 1]))
    inner: Any = documents
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = data.draw(JSON)
    for row in usage(documents, data.draw(st.sampled_from([CONFIG, EVERYTHING]))):
        assert (row.error is None) != (row.usage is None)
        assert "\n" not in (row.error or "")
        assert (row.error or "").isascii()
        assert all(0 < quantity.parse(amount) <= MAX for amount in (row.usage or {}).values())


@pytest.mark.parametrize("documents", SEEDS, ids=lambda documents: documents[0]["kind"])
def test_what_is_overwritten_above_is_right_before(documents):
    assert [row.error for row in usage(documents, EVERYTHING) if row.error] == []


@settings(max_examples=200)
@given(JSON)
def test_whatever_a_file_holds_is_rows(document):
    assert isinstance(usage([document, {"kind": "Deployment", "apiVersion": "apps/v1", "spec": document}]), list)


METADATA: list[tuple[Any, str]] = [
    ({}, "metadata: is missing"),
    (None, "metadata: is missing"),
    ("x", "metadata: must be a map, not 'x'"),
    ([], "metadata: must be a map, not a list"),
    ({"name": 7}, "metadata.name: must be a string, not 7"),
    ({"name": "a/b"}, "metadata.name: 'a/b' is no name of an object"),
    ({"name": "w", "namespace": ".."}, "metadata.namespace: '..' is no name of an object"),
    ({"generateName": "a%2f"}, "metadata.generateName: 'a%2f' is no name of an object"),
    ({"name": "w", "uid": {}}, "metadata.uid: must be a string, not a map"),
    ({"name": "w", "resourceVersion": 7}, "metadata.resourceVersion: must be a string, not 7"),
    ({"name": "w", "resourceVersion": "\x1b[31m"}, r"metadata.resourceVersion: '\x1b[31m' is no version of a stored"),
    ({"name": "w", "resourceVersion": "9" * 20}, "is no version of a stored object"),
    ({"name": "w", "resourceVersion": "٣"}, r"metadata.resourceVersion: '\u0663' is no version of a stored object"),
    ({"name": "w", "deletionTimestamp": True}, "metadata.deletionTimestamp: must be a string, not true"),
    ({"name": "w", "labels": ["a"]}, "metadata.labels: must be a map, not a list"),
    ({"name": "w", "labels": {"a": 1}}, "metadata.labels.a: must be a string, not 1"),
    ({"name": "w", "annotations": {"a\nb": []}}, r"metadata.annotations['a\nb']: must be a string, not a list"),
    ({"name": "w", "ownerReferences": {}}, "metadata.ownerReferences: must be a list, not a map"),
    ({"name": "w", "ownerReferences": ["a"]}, "metadata.ownerReferences[0]: must be a map, not 'a'"),
    ({"name": "w", "ownerReferences": [{"uid": 1}]}, "metadata.ownerReferences[0].uid: must be a string, not 1"),
    ({"name": "w", "ownerReferences": [{"controller": "yes"}]}, "[0].controller: must be true or false, not 'yes'"),
    ({"name": "w", "finalizers": [1]}, "metadata.finalizers[0]: must be a string, not 1"),
]


@pytest.mark.parametrize(("metadata", "words"), METADATA, ids=[words for _, words in METADATA])
def test_metadata_that_no_api_server_stores_is_refused(metadata: Any, words: str) -> None:
    with pytest.raises(Malformed) as refused:
        expect_metadata({"metadata": metadata})
    assert words in str(refused.value)
    assert str(refused.value).isascii()


def test_metadata_as_an_api_server_sends_it_is_read() -> None:
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}
    stored = {"name": "w", "uid": "u", "resourceVersion": "7", "labels": {"a": ""}, "ownerReferences": [reference]}
    new = {"generateName": "w-", "namespace": "team-a", "labels": None, "creationTimestamp": None, "generation": 1}
    for metadata in (stored, new, {"name": "system:node:a", "managedFields": [{}], "finalizers": ["a/b"]}):
        expect_metadata({"metadata": metadata})
