"""Laws of every kind: numbers, templates and flags of the wrong type are refused.

Each kind has one row here with its paths; a declared kind without a row fails a test.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bizrq.builtin import builtin_registry
from bizrq.units.quantity import NANO
from bizrq.workloads.demand import counting
from tests.support.workload_language import Object, costs, count, refusal, template, workload

POD = template("cpu=1")
KUBEFLOW = {
    "TFJob": "tfReplicaSpecs",
    "PyTorchJob": "pytorchReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
}
RAY = {
    "headGroupSpec": {"template": POD},
    "workerGroupSpecs": [
        {"replicas": 2, "minReplicas": 1, "maxReplicas": 3, "numOfHosts": 1, "template": POD, "suspend": False}
    ],
}
GROUP = "workerGroupSpecs.0"


def ray(root: str) -> dict[str, Any]:
    return {
        "counts": [f"{root}.{GROUP}.{n}" for n in ("replicas", "minReplicas", "maxReplicas", "numOfHosts")],
        "templates": [f"{root}.headGroupSpec.template", f"{root}.{GROUP}.template"],
        "flags": [f"{root}.suspend", f"{root}.{GROUP}.suspend"],
    }


RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "r"},
    "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": POD}}}]}}},
}  # fmt: skip

#: API version, kind, spec; places of its counts, its pod templates and its flags; what else there has to be.
EACH: list[tuple[str, str, Object, dict[str, Any], list[Object]]] = [
    *(
        ("apps/v1", kind, {"replicas": 2, "template": POD},
         {"counts": ["spec.replicas"], "templates": ["spec.template"]}, [])
        for kind in ("Deployment", "ReplicaSet", "StatefulSet")
    ),
    ("v1", "ReplicationController", {"replicas": 2, "template": POD},
     {"counts": ["spec.replicas"], "templates": ["spec.template"]}, []),
    ("apps/v1", "DaemonSet", {"template": POD}, {"templates": ["spec.template"]}, []),
    ("batch/v1", "Job", {"parallelism": 2, "completions": 5, "suspend": False, "template": POD},
     {"counts": ["spec.parallelism", "spec.completions"], "templates": ["spec.template"], "flags": ["spec.suspend"]},
     []),
    ("batch/v1", "CronJob", {"jobTemplate": {"metadata": {"labels": {"biz.group.resource.quota": "nlp"}}}}, {}, []),
    ("v1", "Pod", POD["spec"], {}, []),
    ("argoproj.io/v1alpha1", "Rollout", {"replicas": 2, "template": POD},
     {"counts": ["spec.replicas"], "templates": ["spec.template"]}, []),
    *(
        ("kubeflow.org/v1", kind,
         {field: {"Worker": {"replicas": 2, "template": POD}}, "runPolicy": {"suspend": False}},
         {"counts": [f"spec.{field}.Worker.replicas"], "templates": [f"spec.{field}.Worker.template"],
          "flags": ["spec.runPolicy.suspend"]}, [])
        for kind, field in KUBEFLOW.items()
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", {"suspend": False, "replicatedJobs": [
        {"name": "j", "replicas": 2, "template": {"spec": {"parallelism": 1, "completions": 1, "template": POD}}}]},
     {"counts": [f"spec.replicatedJobs.0.{n}" for n in (
         "replicas", "template.spec.parallelism", "template.spec.completions")],
      "templates": ["spec.replicatedJobs.0.template.spec.template"], "flags": ["spec.suspend"]}, []),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
     {"replicas": 2, "leaderWorkerTemplate": {"size": 1, "workerTemplate": POD}},
     {"counts": ["spec.replicas", "spec.leaderWorkerTemplate.size"],
      "templates": ["spec.leaderWorkerTemplate.workerTemplate"]}, []),
    ("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "t", "replicas": 2, "template": POD}]},
     {"counts": ["spec.tasks.0.replicas"], "templates": ["spec.tasks.0.template"]}, []),
    ("ray.io/v1", "RayCluster", {**RAY, "suspend": False}, ray("spec"), []),
    ("ray.io/v1", "RayService", {"rayClusterConfig": {**RAY, "suspend": False}}, ray("spec.rayClusterConfig"), []),
    ("ray.io/v1", "RayJob", {"rayClusterSpec": RAY, "suspend": False},
     {**ray("spec.rayClusterSpec"), "flags": ["spec.suspend", f"spec.rayClusterSpec.{GROUP}.suspend"]}, []),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "r"}, "trainer": {"numNodes": 2},
                                                  "suspend": False},
     {"counts": ["spec.trainer.numNodes"], "flags": ["spec.suspend"]}, [RUNTIME]),
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication", {
        "type": "Scala", "driver": {"cores": 1}, "executor": {"instances": 1, "cores": 1}, "suspend": False,
        "dynamicAllocation": {"enabled": False}},
     {"counts": ["spec.driver.cores", "spec.executor.cores", "spec.executor.instances"],
      "flags": ["spec.suspend", "spec.dynamicAllocation.enabled"]}, []),
    ("sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication", {
        "template": {"type": "Scala", "driver": {"cores": 1}, "executor": {"instances": 1}}}, {}, []),
    ("keda.sh/v1alpha1", "ScaledJob", {
        "minReplicaCount": 2, "jobTargetRef": {"parallelism": 2, "completions": 4, "template": POD}},
     {"counts": ["spec.minReplicaCount", "spec.jobTargetRef.parallelism", "spec.jobTargetRef.completions"],
      "templates": ["spec.jobTargetRef.template"]}, []),
    ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 2, "model": {
        "resources": {"limits": {"cpu": "1"}}}}}, {"counts": ["spec.predictor.minReplicas"]}, []),
    ("serving.knative.dev/v1", "Service", {"template": POD}, {"templates": ["spec.template"]}, []),
]  # fmt: skip

NO_COUNTS = (-1, -(2**31), 1.5, 2.0, True, "3", "", [1], {"n": 1}, 2**31, 10**30)
NO_FLAGS = (1, 0, "true", "", [True], {"a": 1})
NO_TEMPLATES = ("x", 7, True, [], ["x"], {}, {"spec": "x"}, {"spec": []}, {"spec": {"containers": {"a": 1}}},
                {"spec": {"containers": ["x"]}})  # fmt: skip
NO_AMOUNTS = (-1, "-1", "-4Gi", "abc", "1x", [1], {"a": 1}, True, float("nan"), float("inf"), "1e400", 10**30, "９")


def named(row: tuple[str, str, Object, dict[str, Any], list[Object]]) -> str:
    return f"{row[0].partition('/')[0]}-{row[1]}"


def put(obj: Object, path: str, value: Any) -> Object:
    """Return a copy with this value at a path."""
    made = copy.deepcopy(obj)
    place: Any = made
    *above, last = path.split(".")
    for key in above:
        place = place[int(key)] if key.isdigit() else place.setdefault(key, {})
    place[last] = value
    return made


def said(path: str) -> str:
    """Return a path as messages show it: `spec.tasks[0].replicas`."""
    parts = path.split(".")
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts).lstrip(".")


def places(what: str) -> list[Any]:
    return [
        pytest.param(workload(api, kind, spec), path, related, id=f"{api.partition('/')[0]}-{kind}-{path}")
        for api, kind, spec, where, related in EACH
        for path in where.get(what, ())
    ]


def test_every_kind_stands_here() -> None:
    """A new kind needs its paths in this table."""
    found = {(api.partition("/")[0] if "/" in api else "", kind) for api, kind, *_ in EACH}
    assert found == {(adapter.group, adapter.kind) for adapter in builtin_registry().adapters}


@pytest.mark.parametrize("row", EACH, ids=named)
def test_as_it_stands_here_it_is_counted(row: Any) -> None:
    """The original is countable, so the refusals below follow from the changed value."""
    api, kind, spec, _, related = row
    assert count(workload(api, kind, spec), *related).resources


@pytest.mark.parametrize(("obj", "path", "related"), places("counts"))
def test_what_is_no_count_is_refused(obj: Object, path: str, related: list[Object]) -> None:
    """A negative number, a fraction, a boolean and a string are refused with their path."""
    for value in NO_COUNTS:
        assert f"{said(path)}: must " in refusal(put(obj, path, value), *related), value


@pytest.mark.parametrize(("obj", "path", "related"), places("flags"))
def test_what_is_no_flag_is_refused(obj: Object, path: str, related: list[Object]) -> None:
    """The string "true" must not suspend what the operator runs."""
    for value in NO_FLAGS:
        assert f"{said(path)}: must be true or false" in refusal(put(obj, path, value), *related), value


@pytest.mark.parametrize(("obj", "path", "related"), places("flags"))
def test_an_absent_flag_is_false(obj: Object, path: str, related: list[Object]) -> None:
    assert count(put(obj, path, None), *related).resources == count(obj, *related).resources


@pytest.mark.parametrize(("obj", "path", "related"), places("templates"))
def test_what_is_no_template_is_refused(obj: Object, path: str, related: list[Object]) -> None:
    """Unknown pods do not count as none."""
    for value in NO_TEMPLATES:
        assert said(path) in refusal(put(obj, path, value), *related), value


@pytest.mark.parametrize(("obj", "path", "related"), places("templates"))
def test_what_is_no_amount_is_refused(obj: Object, path: str, related: list[Object]) -> None:
    """This holds for requests and limits of every template of every kind."""
    for kind in ("requests", "limits"):
        for value in NO_AMOUNTS:
            pods = {"spec": {"containers": [{"name": "c", "resources": {kind: {"cpu": value}}}]}}
            where = f"{said(path)}.spec.containers[0].resources.{kind}.cpu"
            assert where in refusal(put(obj, path, pods), *related), value


@pytest.mark.parametrize(("obj", "path", "related"), places("templates"))
def test_numbers_of_custom_resources_are_read_as_they_arrive(obj: Object, path: str, related: list[Object]) -> None:
    """`cpu: 2` and `cpu: 0.5` arrive as numbers and cost the same as strings."""
    for number, text in ((2, "2"), (0.5, "500m"), (0, "0")):
        pods = [
            {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": n}}}]}} for n in (number, text)
        ]
        assert count(put(obj, path, pods[0]), *related).resources == count(put(obj, path, pods[1]), *related).resources


SCALABLE = [adapter for adapter in builtin_registry().adapters if adapter.scale is not None]


@pytest.mark.parametrize("adapter", SCALABLE, ids=lambda adapter: adapter.resource)
def test_a_scale_changes_what_the_kind_costs(adapter: Any) -> None:
    """Scale to five and to zero; the given object does not change."""
    [(api, kind, spec, _, related)] = [
        row for row in EACH if row[0].startswith(adapter.group) and row[1] == adapter.kind
    ]
    obj = workload(api, kind, spec)
    before = copy.deepcopy(obj)
    for replicas in (5, 0):
        found = count(counting.with_scale(obj, adapter, replicas), *related).resources
        assert (found.get("pods", 0), found.get("requests.cpu", 0)) == (replicas * NANO, replicas * NANO)
    assert obj == before


def test_which_kinds_have_a_scale() -> None:
    """Only kinds whose CRD has /scale: no other kind can receive one."""
    assert {adapter.resource for adapter in SCALABLE} == {
        "deployments.apps", "replicasets.apps", "replicationcontrollers", "statefulsets.apps", "rollouts.argoproj.io",
        "pytorchjobs.kubeflow.org", "paddlejobs.kubeflow.org", "jaxjobs.kubeflow.org",
        "leaderworkersets.leaderworkerset.x-k8s.io",
    }  # fmt: skip


def ray_group(**group: Any) -> Object:
    return workload("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": POD},
                                                "workerGroupSpecs": [{"template": POD, **group}]})  # fmt: skip


CLAMPS = [
    ("none unless it says more", {}, 0),
    ("no fewer than the least", {"minReplicas": 3}, 3),
    ("no more than the most", {"replicas": 9, "maxReplicas": 4}, 4),
    ("of a least above the most the least", {"replicas": 1, "minReplicas": 5, "maxReplicas": 3}, 5),
    ("times its hosts", {"replicas": 2, "numOfHosts": 4}, 8),
    ("at least one host", {"replicas": 2, "numOfHosts": 0}, 2),
    ("none of a suspended group", {"replicas": 2, "minReplicas": 2, "suspend": True}, 0),
    ("none where the most is none", {"replicas": 2, "maxReplicas": 0}, 0),
]


@pytest.mark.parametrize(("group", "workers"), [row[1:] for row in CLAMPS], ids=[row[0] for row in CLAMPS])
def test_a_group_of_ray_workers_has(group: Object, workers: int) -> None:
    """KubeRay reads it so (utils/util.go, GetWorkerGroupDesiredReplicas)."""
    assert count(ray_group(**group)).resources["pods"] == (1 + workers) * NANO


def jobset(namespace: str = "team-a", uid: str = "uid-w", pods: Object = POD, **job: Any) -> Object:
    """Return the JobSet that the operator made of the TrainJob named w."""
    reference = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "w", "uid": uid,
                 "controller": True}  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "w", "namespace": namespace, "uid": "uid-j", "ownerReferences": [reference]},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {**job, "template": pods}}}]},
    }


TRAIN = workload("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "r"}, "trainer": {"numNodes": 2}})
MADE = [
    ("the same as its runtime says", [RUNTIME, jobset(parallelism=2, completions=2)], "cpu=2 pods=2"),
    ("no less where the runtime was made smaller since",
     [RUNTIME, jobset(parallelism=2, completions=2, pods=template("cpu=3"))], "cpu=6 pods=2"),
    ("no less where it has more pods", [RUNTIME, jobset(parallelism=4, completions=4)], "cpu=4 pods=4"),
    ("no less than it asks for", [RUNTIME, jobset(parallelism=1)], "cpu=2 pods=2"),
    ("what was made where its runtime is gone", [jobset(parallelism=2, completions=2)], "cpu=2 pods=2"),
    ("nothing of another's JobSet", [RUNTIME, jobset(parallelism=9, completions=9, uid="other")], "cpu=2 pods=2"),
    ("nothing of one elsewhere", [RUNTIME, jobset("b", parallelism=9, completions=9)], "cpu=2 pods=2"),
    ("what its runtime says where the JobSet is nonsense", [RUNTIME, jobset(parallelism="x")], "cpu=2 pods=2"),
]  # fmt: skip


@pytest.mark.parametrize(("related", "expected"), [row[1:] for row in MADE], ids=[row[0] for row in MADE])
def test_a_trainjob_costs(related: list[Object], expected: str) -> None:
    """The operator reads the runtime once, so the JobSet that it made counts, too."""
    assert costs(count(TRAIN, *related), expected)


def test_a_trainjob_of_neither_is_refused() -> None:
    assert "spec.runtimeRef: ClusterTrainingRuntime 'r' was not found" in refusal(TRAIN)
    assert "spec.runtimeRef: ClusterTrainingRuntime 'r' was not found" in refusal(TRAIN, jobset(uid="other"))


def test_a_schedule_of_spark_applications_costs_nothing_but_must_be_countable() -> None:
    """Each application has its label and pays."""
    api, kind = "sparkoperator.k8s.io/v1beta2", "ScheduledSparkApplication"
    good = workload(api, kind, {"template": {"driver": {}, "executor": {"instances": 2}}})
    assert count(good).resources == {"count/scheduledsparkapplications.sparkoperator.k8s.io": NANO}
    bad = put(good, "spec.template.executor.instances", -1)
    assert "spec.template -> spec.executor.instances: must not be negative" in refusal(bad)
