"""The pods that each kind makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.builtin import builtin_registry
from bizrq.units.quantity import NANO
from bizrq.workloads.demand import counting
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.validation import Malformed
from tests.support.workload_language import (
    CONFIG,
    costs,
    count,
    deployment,
    refusal,
    rollout,
    template,
    tfjob,
    workload,
)

POD = template("cpu=1")
TWO = template("cpu=2")


def condition(kind: str, status: str = "True") -> dict:
    return {"status": {"conditions": [{"type": kind, "status": status}]}}


def make(api_version: str, kind: str, spec: dict, **more) -> dict:
    return {**workload(api_version, kind, spec), **more}


KINDS = [
    ("a Deployment has one pod unless it says more", make("apps/v1", "Deployment", {"template": POD}),
     "cpu=1 pods=1"),
    ("a paused Deployment costs the same",
     make("apps/v1", "Deployment", {"paused": True, "replicas": 2, "template": POD}), "cpu=2 pods=2"),
    ("a ReplicaSet", make("apps/v1", "ReplicaSet", {"replicas": 4, "template": POD}), "cpu=4 pods=4"),
    ("a ReplicationController has one pod unless it says more",
     make("v1", "ReplicationController", {"template": POD}), "cpu=1 pods=1"),
    ("a ReplicationController", make("v1", "ReplicationController", {"replicas": 4, "template": POD}), "cpu=4 pods=4"),
    ("a StatefulSet", make("apps/v1", "StatefulSet", {"replicas": 4, "template": POD}), "cpu=4 pods=4"),
    ("a DaemonSet that nobody has placed yet", make("apps/v1", "DaemonSet", {"template": POD}), ""),
    ("a DaemonSet costs the nodes that it is to run on",
     make("apps/v1", "DaemonSet", {"template": POD}, status={"desiredNumberScheduled": 7}), "cpu=7 pods=7"),
    ("a Job of nothing more", make("batch/v1", "Job", {"template": POD}), "cpu=1 pods=1"),
    ("a Job never runs more than is left to do",
     make("batch/v1", "Job", {"parallelism": 5, "completions": 8, "template": POD}, status={"succeeded": 6}),
     "cpu=2 pods=2"),
    ("a Job that has done more than it should",
     make("batch/v1", "Job", {"completions": 1, "template": POD}, status={"succeeded": 6}), ""),
    ("an indexed Job that shrinks below what has completed",
     make("batch/v1", "Job", {"parallelism": 5, "completions": 4, "template": POD},
          status={"succeeded": 5, "completedIndexes": "0,4-6,8"}), "cpu=3 pods=3"),
    ("an indexed Job that has shrunk into a range that has completed",
     make("batch/v1", "Job", {"parallelism": 9, "completions": 6, "template": POD},
          status={"succeeded": 5, "completedIndexes": "1,3-9"}), "cpu=2 pods=2"),
    ("an indexed Job of which cannot be read what has completed",
     make("batch/v1", "Job", {"parallelism": 9, "completions": 6, "template": POD},
          status={"succeeded": 5, "completedIndexes": "1,"}), "cpu=6 pods=6"),
    ("an indexed Job of which indexes have failed for good",
     make("batch/v1", "Job", {"parallelism": 9, "completions": 6, "template": POD},
          status={"succeeded": 1, "completedIndexes": "1", "failedIndexes": "0,2-3"}), "cpu=2 pods=2"),
    ("an indexed Job that has shrunk below some that have failed for good",
     make("batch/v1", "Job", {"parallelism": 9, "completions": 3, "template": POD},
          status={"succeeded": 1, "completedIndexes": "1", "failedIndexes": "2-8"}), "cpu=1 pods=1"),
    ("an indexed Job of which cannot be read what has failed",
     make("batch/v1", "Job", {"parallelism": 9, "completions": 6, "template": POD},
          status={"succeeded": 1, "completedIndexes": "1", "failedIndexes": "2-"}), "cpu=5 pods=5"),
    ("a suspended Job", make("batch/v1", "Job", {"suspend": True, "template": POD}), ""),
    ("a completed Job", make("batch/v1", "Job", {"template": POD}, **condition("Complete")), ""),
    ("a Job whose end is not true", make("batch/v1", "Job", {"template": POD}, **condition("Failed", "False")),
     "cpu=1 pods=1"),
    ("a bare Pod", make("v1", "Pod", POD["spec"]), "cpu=1 pods=1"),
    ("a Pod that is over", make("v1", "Pod", POD["spec"], status={"phase": "Failed"}), ""),
    ("a Rollout has one pod unless it says more", make("argoproj.io/v1alpha1", "Rollout", {"template": POD}),
     "cpu=1 pods=1"),
    ("every key of a TFJob makes pods", tfjob(Chief=(1, "cpu=4"), ps=(2, "cpu=1"), WORKER=(3, "cpu=2")),
     "cpu=12 pods=6"),
    ("keys that differ in case only are both counted", tfjob(Worker=(1, "cpu=1"), worker=(1, "cpu=1")),
     "cpu=2 pods=2"),
    ("a TFJob of nothing", make("kubeflow.org/v1", "TFJob", {}), ""),
    ("an MPIJob launches once whatever it says",
     make("kubeflow.org/v1", "MPIJob", {"mpiReplicaSpecs": {
         "Launcher": {"replicas": 9, "template": POD}, "worker": {"replicas": 2, "template": TWO}}}),
     "cpu=5 pods=3"),
    ("an MPIJob of mpi-operator", make("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {
        "Worker": {"replicas": 2, "template": TWO}}}), "cpu=4 pods=2"),
    ("an XGBoostJob", make("kubeflow.org/v1", "XGBoostJob", {"xgbReplicaSpecs": {"Master": {"template": POD}}}),
     "cpu=1 pods=1"),
    ("a JAXJob", make("kubeflow.org/v1", "JAXJob", {"jaxReplicaSpecs": {"Worker": {"replicas": 3, "template": POD}}}),
     "cpu=3 pods=3"),
    ("a LeaderWorkerSet of lone leaders",
     make("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
          {"replicas": 3, "leaderWorkerTemplate": {"workerTemplate": POD}}), "cpu=3 pods=3"),
    ("a LeaderWorkerSet whose size is nonsense",
     make("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
          {"replicas": 3, "leaderWorkerTemplate": {"size": 0, "workerTemplate": POD}}), "cpu=3 pods=3"),
    ("a Volcano Job that was aborted may come back",
     make("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "a", "replicas": 2, "template": POD}]},
          status={"state": {"phase": "Aborted"}}), "cpu=2 pods=2"),
    ("a Volcano Job that is over",
     make("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "a", "replicas": 2, "template": POD}]},
          status={"state": {"phase": "Terminated"}}), ""),
    ("a RayCluster keeps its groups between least and most",
     make("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [
         {"groupName": "a", "replicas": 1, "minReplicas": 2, "template": POD},
         {"groupName": "b", "replicas": 9, "maxReplicas": 3, "template": POD},
         {"groupName": "c", "template": POD},
         {"groupName": "d", "suspend": True, "replicas": 9, "template": POD}]}),
     "cpu=6 mem=1280Mi limits.cpu=1 limits.memory=1280Mi pods=6"),
    ("the containers that KubeRay adds",
     make("ray.io/v1", "RayCluster", {"enableInTreeAutoscaling": True, "headGroupSpec": {"template": POD},
         "workerGroupSpecs": [{"groupName": "a", "replicas": 1, "template": template("cpu=100m")}]}),
     "cpu=1700m mem=768Mi limits.cpu=700m limits.memory=768Mi pods=2"),
    ("a RayService", make("ray.io/v1", "RayService", {"rayClusterConfig": {"headGroupSpec": {"template": POD}}}),
     "cpu=1 pods=1"),
    ("a suspended RayService",
     make("ray.io/v1", "RayService", {"rayClusterConfig": {"suspend": True, "headGroupSpec": {"template": POD}}}), ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("obj", "expected"), [row[1:] for row in KINDS], ids=[row[0].replace(" ", "-") for row in KINDS]
)
def test_a_kind_costs(obj, expected):
    assert costs(count(obj), expected)


STORED = [
    ("a live one is 1", deployment(3, "cpu=1"), "deployments.apps"),
    ("one without replicas is 1", deployment(0, "cpu=1"), "deployments.apps"),
    ("a suspended one is 1", make("batch/v1", "Job", {"suspend": True, "template": POD}), "jobs.batch"),
    ("a core kind has no group", make("v1", "Pod", POD["spec"]), "pods"),
]


@pytest.mark.parametrize(("obj", "kind"), [row[1:] for row in STORED], ids=[row[0] for row in STORED])
def test_objects_are_counted(obj, kind):
    assert count(obj).resources[f"count/{kind}"] == NANO


def test_an_ended_object_is_not_counted():
    assert count({**tfjob(Worker=(1, "cpu=1")), **condition("Failed")}).resources == {}


def test_suspended_may_be_held_to_its_whole_cost():
    obj = tfjob(Worker=(2, "cpu=1"))
    obj["spec"]["runPolicy"] = {"suspend": True}
    assert costs(count(obj), "")
    assert costs(count(obj, config=replace(CONFIG, suspended="reserve")), "cpu=2 pods=2")


def referring(kind: str, api_version: str = "apps/v1", **spec) -> dict:
    reference = {"apiVersion": api_version, "kind": kind, "name": "target"}
    return workload("argoproj.io/v1alpha1", "Rollout", {"replicas": 2, "workloadRef": reference, **spec})


def target(kind: str, api_version: str = "apps/v1", namespace: str = "team-a", **content) -> dict:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "target", "namespace": namespace},
        **(content or {"spec": {"replicas": 9, "template": POD}}),
    }


def test_a_rollout_takes_the_template_that_it_refers_to_and_its_own_count():
    assert costs(count(referring("Deployment"), target("Deployment")), "cpu=2 pods=2")
    assert costs(count(referring("ReplicaSet"), target("ReplicaSet")), "cpu=2 pods=2")
    assert costs(count(referring("PodTemplate", "v1"), target("PodTemplate", "v1", template=POD)), "cpu=2 pods=2")


def test_an_empty_template_beside_a_reference_is_what_clients_write():
    empty = {"metadata": {"creationTimestamp": None}, "spec": {"containers": None}}
    assert costs(count(referring("Deployment", template=empty), target("Deployment")), "cpu=2 pods=2")


UNREFERABLE = [
    ("nothing there", referring("Deployment"), [], "Deployment 'target' was not found in namespace 'team-a'"),
    ("only in another namespace", referring("Deployment"), [target("Deployment", namespace="b")], "was not found"),
    ("another kind", referring("StatefulSet"), [target("StatefulSet")], "cannot be referred to, only apps/Deployment"),
    ("another group", referring("Deployment", "v1"), [target("Deployment", "v1")], "cannot be referred to"),
    ("a target without template", referring("Deployment"), [target("Deployment", spec={"replicas": 1})],
     "spec.workloadRef -> Deployment 'target': spec.template: is missing"),
    ("a target that is wrong inside", referring("Deployment"),
     [target("Deployment", spec={"template": template("cpu=x")})],
     "spec.workloadRef -> Deployment 'target': spec.template.spec.containers[0].resources.requests.cpu"),
    ("both", referring("Deployment", template=POD), [target("Deployment")], "has both template and workloadRef"),
    ("a reference that is no map", workload("argoproj.io/v1alpha1", "Rollout", {"workloadRef": "x"}), [],
     "spec.workloadRef: must be a map"),
    ("neither", workload("argoproj.io/v1alpha1", "Rollout", {"replicas": 1}), [],
     "has neither template nor workloadRef"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "related", "words"), [r[1:] for r in UNREFERABLE], ids=[r[0] for r in UNREFERABLE])
def test_a_rollout_is_refused_where_its_pods_cannot_be_known(obj, related, words):
    assert words in refusal(obj, *related)


def test_what_a_demand_depends_on_is_told():
    registry = builtin_registry()
    rollouts = registry.by_resource("argoproj.io", "rollouts")
    assert rollouts is not None
    everywhere = ("", "LimitRange", "team-a", "")
    there = ("apps", "Deployment", "team-a", "target")
    assert counting.references(referring("Deployment"), rollouts, None, CONFIG) == [there]
    sandboxed = target("Deployment", spec={"template": template("cpu=1", runtimeClassName="kata")})
    assert counting.references(referring("Deployment"), rollouts, DocumentLookup([sandboxed]), CONFIG) == [
        there, everywhere, ("node.k8s.io", "RuntimeClass", "", "kata"),
    ]  # fmt: skip


def test_a_scale_writes_where_the_kind_has_its_replicas():
    registry = builtin_registry()
    deployments = registry.by_resource("apps", "deployments")
    pytorch = registry.by_resource("kubeflow.org", "pytorchjobs")
    tfjobs = registry.by_resource("kubeflow.org", "tfjobs")
    assert deployments is not None
    assert pytorch is not None
    assert tfjobs is not None
    obj = deployment(3, "cpu=1")
    assert costs(count(counting.with_scale(obj, deployments, 5)), "cpu=5 pods=5")
    assert obj["spec"]["replicas"] == 3
    job = workload("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": POD}}})
    assert costs(count(counting.with_scale(job, pytorch, 4)), "cpu=4 pods=4")
    assert "replicas" not in job["spec"]["pytorchReplicaSpecs"]["Worker"]
    with pytest.raises(Malformed, match="TFJob cannot be scaled"):
        counting.with_scale(tfjob(), tfjobs, 1)
    for wrong in (-1, True, 2.0, "3", 2**31):
        with pytest.raises(Malformed, match=r"spec\.replicas"):
            counting.with_scale(obj, deployments, wrong)  # type: ignore[arg-type]


def test_a_scale_that_says_nothing_is_to_zero():
    assert counting.scale_replicas({"spec": {}}) == 0
    assert counting.scale_replicas({}) == 0
    assert counting.scale_replicas({"spec": {"replicas": 4}}) == 4
    for wrong in ({"spec": []}, {"spec": {"replicas": -1}}, {"spec": {"replicas": "2"}}):
        with pytest.raises(Malformed):
            counting.scale_replicas(wrong)


def test_two_kinds_of_one_name_are_told_apart_by_group():
    batch, volcano = builtin_registry().by_kind("batch", "Job"), builtin_registry().by_kind("batch.volcano.sh", "Job")
    assert batch is not None
    assert volcano is not None
    assert (batch.resource, volcano.resource) == ("jobs.batch", "jobs.batch.volcano.sh")


def test_some_kinds_can_be_charged_alone():
    registry = builtin_registry().with_charged(["deployments.apps", "pods"])
    assert {a.resource for a in registry.charged} == {"deployments.apps", "pods"}
    assert registry.by_kind("apps", "ReplicaSet") is not None


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "kind: 'ConfigMap' of 'v1' is not a kind"),
        ({"apiVersion": "apps/v1beta1", "kind": "Deployment"}, "apiVersion: 'apps/v1beta1' is not supported"),
        ({}, "kind: null of null"),
        ({"apiVersion": 1, "kind": ["x"]}, "kind: a list of 1"),
    ],
)
def test_what_is_no_workload_is_refused(obj, words):
    assert words in refusal(obj)


def test_a_rollout_is_counted_as_a_deployment_is():
    assert count(rollout(3, "cpu=1/2")).roles == count(deployment(3, "cpu=1/2")).roles


def node(name: str, **labels: str) -> dict:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


NODES = [node("a", disk="ssd"), node("b", disk="ssd"), node("c")]
ON_SSD = {"spec": {**POD["spec"], "nodeSelector": {"disk": "ssd"}}}
PER_NODE = [
    ("on the nodes that it fits, before anybody has placed it", ON_SSD, 0, NODES, "cpu=2 pods=2"),
    ("on every node", POD, 0, NODES, "cpu=3 pods=3"),
    ("on as many as its controller has counted, if that is more", ON_SSD, 5, NODES, "cpu=5 pods=5"),
    ("on the nodes that it fits, if those are more", POD, 2, NODES, "cpu=3 pods=3"),
    ("on as many as its controller has counted, where no node is known", POD, 7, [], "cpu=7 pods=7"),
]


@pytest.mark.parametrize(
    ("pods", "counted", "nodes", "expected"), [row[1:] for row in PER_NODE], ids=[row[0] for row in PER_NODE]
)
def test_a_daemonset_has_a_pod(pods: dict, counted: int, nodes: list, expected: str) -> None:
    obj = make("apps/v1", "DaemonSet", {"template": pods}, status={"desiredNumberScheduled": counted})
    assert costs(count(obj, *nodes), expected)


def daemonset(pods: dict) -> dict:
    return make("apps/v1", "DaemonSet", {"template": pods})


GROWTH = [
    ("nothing more", POD, POD, False),
    ("smaller pods", TWO, POD, False),
    ("larger pods", POD, TWO, True),
    ("other nodes", POD, ON_SSD, True),
    ("a pod of which nothing is known before", {}, POD, True),
]


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in GROWTH], ids=[row[0] for row in GROWTH])
def test_whatever_nodes_there_are_a_daemonset_may_grow_by(old: dict, new: dict, expected: bool) -> None:
    adapter = builtin_registry().by_kind("apps", "DaemonSet")
    assert adapter is not None
    assert (
        counting.may_grow_on_nodes(daemonset(new), daemonset(old), adapter, DocumentLookup(NODES), CONFIG) is expected
    )
