"""Admission warns of what an object makes later, and never refuses it for that."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.support.objects import (
    CRONJOBS,
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    NAMESPACES,
    PYTORCHJOBS,
    Object,
    cronjob,
    deployment,
    elastic,
    inference_service,
    namespace,
)
from tests.webhooks.conftest import Api, Hooks, changed, message, stored

SCALED_OBJECTS = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")


async def warned(hooks: Hooks, obj: Object, resource: Resource, path: str = "workloads", old: Any = None) -> list[str]:
    operation = "CREATE" if old is None else "UPDATE"
    response = await hooks.review(path, operation, stored(obj), old, resource=resource)
    assert response["allowed"], response
    return response.get("warnings", [])


async def test_a_cron_job_whose_jobs_do_not_fit_is_admitted_with_a_warning(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "9"})
    [warning] = await warned(hooks, cronjob("nightly", "nlp", cpu=50), CRONJOBS)
    assert (
        warning == "each Job of CronJob default/nightly would be refused now: quota nlp has no room for limits.cpu=50"
    )
    assert await warned(hooks, cronjob("nightly", "nlp", cpu=1), CRONJOBS) == []
    # Nothing is reserved for a Job.
    assert {entry.slot.kind for entry in await api.entries("nlp")} <= {"cronjobs.batch"}
    # An update that changes nothing else is warned of, too.
    old = stored(cronjob("nightly", "nlp", cpu=50))
    assert await warned(hooks, cronjob("nightly", "nlp", cpu=50), CRONJOBS, old=old) == [warning]


async def test_the_jobs_of_a_namespaces_default_group_are_judged(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="1")
    await api.client.create(NAMESPACES, namespace("team", **{LABEL: "nlp"}))
    [warning] = await warned(hooks, cronjob("nightly", None, cpu=2, namespace="team"), CRONJOBS)
    assert warning.endswith("quota nlp has no room for limits.cpu=2")


async def test_a_job_that_states_nothing_is_warned_of_in_the_words_of_its_refusal(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    silent = cronjob("nightly", "nlp")
    del silent["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    [warning] = await warned(hooks, silent, CRONJOBS)
    assert warning.endswith("would be refused now: failed quota: nlp: must specify limits.cpu for: c")


async def test_an_elastic_job_is_admitted_at_its_size_and_warned_of_its_largest(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "4"})
    [warning] = await warned(hooks, elastic("train", "nlp", 2, 8), PYTORCHJOBS)
    assert warning == (
        "PyTorchJob default/train in its largest state (spec.elasticPolicy.maxReplicas 8) would be refused now: "
        "quota nlp has no room for limits.cpu=8"
    )
    assert len(await api.entries("nlp")) == 1
    # What the stored job has is not asked for again.
    old = stored(elastic("more", "nlp", 2, 2))
    assert await warned(hooks, elastic("more", "nlp", 2, 6), PYTORCHJOBS, old=old) == []
    refused = await hooks.create(elastic("train", "nlp", 20, 40), resource=PYTORCHJOBS)
    assert message(refused).startswith("exceeded quota: nlp, requested: limits.cpu=20,")
    assert "warnings" not in refused


async def test_an_inference_service_is_warned_of_its_deployments(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    asked = inference_service("chat", "nlp", cpu=4, least=3)
    [warning] = await warned(hooks, asked, INFERENCE_SERVICES, "indirect")
    assert warning == (
        "Deployment chat-predictor of InferenceService default/chat would be refused now: "
        "quota nlp has no room for limits.cpu=12"
    )
    assert await warned(hooks, inference_service("chat", None, cpu=40), INFERENCE_SERVICES, "indirect") == []
    [missing] = await warned(hooks, inference_service("chat", "nobody"), INFERENCE_SERVICES, "indirect")
    assert missing.endswith("would be refused now: quota nobody does not exist")


async def test_a_scaled_object_is_warned_of_like_an_autoscaler(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="8", used={"cpu": "4"})
    await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 2))
    metadata, target = {"name": "web", "namespace": "default"}, {"name": "web"}
    keda = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": metadata}
    asked = {**keda, "spec": {"scaleTargetRef": target, "maxReplicaCount": 20}}
    assert await warned(hooks, asked, SCALED_OBJECTS, "autoscalers") == [
        "maxReplicaCount 20 of Deployment default/web does not fit quota nlp: 6 would fit now"
    ]
    unsaid = {**keda, "spec": {"scaleTargetRef": target}}
    [default] = await warned(hooks, unsaid, SCALED_OBJECTS, "autoscalers")
    assert default.startswith("maxReplicaCount 100 of ")


async def test_a_warning_has_no_figures_of_the_group(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="7919", used={"cpu": "7907"})
    [warning] = await warned(hooks, cronjob("nightly", "nlp", cpu=13), CRONJOBS)
    assert "79" not in warning


@pytest.mark.parametrize("broken", [{"suspend": "yes"}, {"suspend": True}])
async def test_what_cannot_be_judged_is_decided_as_without(api: Api, hooks: Hooks, broken: Object) -> None:
    await api.group("nlp", cpu="1")
    odd = changed(cronjob("nightly", "nlp", cpu=50), lambda o: o["spec"].update(broken))
    assert await warned(hooks, odd, CRONJOBS) == []
