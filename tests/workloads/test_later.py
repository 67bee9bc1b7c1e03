"""What an object makes or grows to after its admission, as objects that can be counted."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from bizrq.builtin import builtin_registry
from bizrq.settings import settings
from bizrq.workloads.demand.counting import own_demand
from bizrq.workloads.labels import LABEL, group_of
from bizrq.workloads.later import Later, later, scaling
from bizrq.workloads.lookup import EmptyLookup
from bizrq.workloads.validation import MAX_COUNT, Malformed
from tests.support.hostile import mutated
from tests.support.objects import (
    Object,
    cronjob,
    deployment,
    elastic,
    inference_service,
    ray_spec,
    rayjob,
    scaled_job,
    template,
)

REGISTRY, COUNTING = builtin_registry(), settings({}).counting


def of(obj: Object) -> list[Later]:
    adapter = REGISTRY.of(obj)
    assert adapter is not None
    return later(obj, adapter)


def cores(found: Later) -> float:
    adapter = REGISTRY.of(found.obj)
    assert adapter is not None
    config = replace(COUNTING, elastic="max") if found.is_growth else COUNTING
    return own_demand(found.obj, adapter, EmptyLookup(), config).resources["limits.cpu"] / 1e9


def ray(kind: str, key: str | None, **cluster: Any) -> Object:
    spec = {**ray_spec(2), **cluster}
    made = rayjob("r", "nlp", 1)
    return {**made, "kind": kind, "spec": {**made["spec"], key: spec} if key else spec}


def scaled_ray(kind: str = "RayCluster", key: str | None = None, most: Any = 9) -> Object:
    found = ray(kind, key, enableInTreeAutoscaling=True)
    spec = found["spec"][key] if key else found["spec"]
    spec["workerGroupSpecs"] = [{**each, "maxReplicas": most} for each in spec["workerGroupSpecs"]]
    return found


def spark(**dynamic: Any) -> Object:
    sized = {"cores": 1, "coreLimit": "1", "memory": "1g"}
    spec = {"driver": sized, "executor": {**sized, "instances": 1}, "dynamicAllocation": dynamic}
    metadata = {"name": "s", "namespace": "team", "labels": {LABEL: "nlp"}}
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": metadata, "spec": spec
    }  # fmt: skip


def scheduled(suspend: Any = None) -> Object:
    app = spark()
    spec = {"schedule": "@daily", "template": app["spec"], "suspend": suspend}
    return {**app, "kind": "ScheduledSparkApplication", "spec": spec}


def knative(**annotations: str) -> Object:
    metadata = {
        "labels": {LABEL: "nlp"},
        "annotations": {f"autoscaling.knative.dev/{k}": v for k, v in annotations.items()},
    }
    spec = {"template": {**template("2"), "metadata": metadata}}
    return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "k"}, "spec": spec}


OF_RAY = "maxReplicas of its workers"


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (cronjob("c", "nlp", cpu=50, namespace="team"), [("each Job of CronJob team/c", 50)]),
        (
            scaled_job("j", "nlp", cpu=2, maxReplicaCount=5),
            [("each Job of ScaledJob default/j", 2), ("ScaledJob default/j in its largest state (5 Jobs)", 10)],
        ),
        (scaled_job("j", "nlp", cpu=2, maxReplicaCount=1), [("each Job of ScaledJob default/j", 2)]),
        (
            scaled_job("j", "nlp"),
            [("each Job of ScaledJob default/j", 1), ("ScaledJob default/j in its largest state (100 Jobs)", 100)],
        ),
        (scheduled(), [("each SparkApplication of ScheduledSparkApplication team/s", 2)]),
        (inference_service("i", "nlp", cpu=4), [("Deployment i-predictor of InferenceService default/i", 4)]),
        (
            inference_service("i", "nlp", cpu=4, least=2, most=2),
            [("Deployment i-predictor of InferenceService default/i", 8)],
        ),
        (inference_service("i", "nlp", cpu=4, least=0), []),
        (
            inference_service("i", "nlp", cpu=4, most=5),
            [
                ("Deployment i-predictor of InferenceService default/i", 4),
                ("Deployment i-predictor of InferenceService default/i in its largest state (5 replicas)", 20),
            ],
        ),
        (
            knative(**{"min-scale": "2", "max-scale": "3"}),
            [
                ("the Deployment of Service default/k", 4),
                ("the Deployment of Service default/k in its largest state (3 replicas)", 6),
            ],
        ),
        (
            elastic("e", "nlp", 2, 8),
            [("PyTorchJob default/e in its largest state (spec.elasticPolicy.maxReplicas 8)", 8)],
        ),
        (spark(enabled=True, maxExecutors=7), [("SparkApplication team/s in its largest state (maxExecutors 7)", 8)]),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_will_be_made_is_counted_by_its_own_kind(obj: Object, expected: list[tuple[str, float]]) -> None:
    untouched = copy.deepcopy(obj)
    found = of(obj)
    assert [(each.what, cores(each)) for each in found] == expected
    assert [each.is_growth for each in found] == ["largest state" in what for what, _ in expected]
    assert all(group_of(each.obj) == "nlp" for each in found)
    assert obj == untouched


@pytest.mark.parametrize(
    ("kind", "key"), [("RayCluster", None), ("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")]
)
def test_ray_grows_to_the_bounds_of_its_workers(kind: str, key: str | None) -> None:
    [found] = of(scaled_ray(kind, key))
    assert (found.what, found.is_growth) == (f"{kind} default/r in its largest state ({OF_RAY})", True)
    smaller = copy.deepcopy(found.obj)
    spec = smaller["spec"][key] if key else smaller["spec"]
    spec["workerGroupSpecs"][0]["replicas"] = 1
    assert cores(found) - cores(Later("", smaller)) == 8


@pytest.mark.parametrize(
    "obj",
    [
        deployment("web", "nlp", 3),
        elastic("e", "nlp", 2, MAX_COUNT),
        spark(enabled=False, maxExecutors=7),
        spark(enabled=True),
        spark(enabled=True, maxExecutors=MAX_COUNT),
        ray("RayCluster", None),
        scaled_ray(most=MAX_COUNT),
        scheduled(suspend=True),
        scaled_job("j", "nlp", maxReplicaCount=0),
        {**cronjob("c", "nlp"), "spec": {**cronjob("c", "nlp")["spec"], "suspend": True}},
        inference_service("i", "nlp", least=0, most=MAX_COUNT),
    ],
    ids=lambda obj: obj["kind"],
)
def test_nothing_is_made_of_what_is_suspended_and_no_bound_is_no_largest_state(obj: Object) -> None:
    assert of(obj) == []


@pytest.mark.parametrize(
    "obj",
    [
        elastic("e", "nlp", 2, -1),
        scaled_job("j", "nlp", maxReplicaCount="5"),
        scaled_job("j", "nlp", jobTargetRef=5),
        scaled_ray(most="9"),
        {**cronjob("c", "nlp"), "spec": {"jobTemplate": 5}},
        {**cronjob("c", "nlp"), "spec": {"jobTemplate": {"metadata": {"labels": []}}}},
        inference_service("i", "nlp", most=-5),
        knative(**{"max-scale": "many"}),
        {**cronjob("c", "nlp"), "metadata": {"name": 5}},
        ray("RayCluster", None, enableInTreeAutoscaling=True, workerGroupSpecs=[{}] * 101),
    ],
)
def test_what_cannot_be_read_is_malformed(obj: Object) -> None:
    with pytest.raises(Malformed):
        of(obj)


def test_hostile_objects_raise_nothing_else_and_make_no_long_name() -> None:
    whole = [
        cronjob("c", "nlp"),
        scaled_job("j", "nlp", maxReplicaCount=5),
        inference_service("i", "nlp", most=5),
        scaled_ray(),
        elastic("e", "nlp", 1, 2),
        scheduled(),
    ]
    rng, found = random.Random(20260101), 0
    for number in range(3000):
        obj = dict(rng.choice(whole))
        part = rng.choice(("spec", "spec", "metadata"))
        try:
            for each in of({**obj, part: mutated(rng, obj[part])}):
                assert len(each.what) < 900, number
                found += 1
        except Malformed:
            continue
    assert found > 300


HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
A_ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "w"}
A_DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}


@pytest.mark.parametrize(
    ("kind", "target", "most", "expected"),
    [
        (HPA, A_DEPLOYMENT, {"maxReplicas": 5}, ("apps", "Deployment", "w", 5, "maxReplicas")),
        (SCALED_OBJECT, {"name": "w"}, {}, ("apps", "Deployment", "w", 100, "maxReplicaCount")),
        (SCALED_OBJECT, A_ROLLOUT, {"maxReplicaCount": 7}, ("argoproj.io", "Rollout", "w", 7, "maxReplicaCount")),
        (SCALED_OBJECT, None, {}, None),
        (HPA, {"name": "w"}, {"maxReplicas": 5}, None),
    ],
)
def test_an_autoscaler_names_its_target_and_its_most(
    kind: str, target: Object | None, most: Object, expected: tuple[Any, ...] | None
) -> None:
    found = scaling({"kind": kind, "spec": {"scaleTargetRef": target, **most}})
    assert (None if found is None else tuple(found)) == expected
