"""HorizontalPodAutoscalers: never refused, warned of where their group could not bear what they may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.support.objects import DEPLOYMENTS, Object, deployment
from tests.webhooks.conftest import Api, Hooks, changed


def autoscaler(most: Any, version: str = "v2", kind: str = "Deployment", name: str = "web") -> Object:
    target = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    return {
        "apiVersion": f"autoscaling/{version}",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": most},
    }


async def warned(hooks: Hooks, obj: Object, operation: str = "CREATE") -> list[str]:
    version = obj["apiVersion"].partition("/")[2]
    of = Resource("autoscaling", version, "horizontalpodautoscalers", "HorizontalPodAutoscaler")
    response = await hooks.review("autoscalers", operation, obj, resource=of)
    assert response["allowed"]
    return response.get("warnings", [])


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_more_replicas_than_fit_are_warned_of(api: Api, hooks: Hooks, version: str) -> None:
    await api.group("nlp", cpu="8", used={"cpu": "4"})
    await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 2))
    assert await warned(hooks, autoscaler(20, version)) == [
        "maxReplicas 20 of Deployment default/web does not fit quota nlp: 6 would fit now"
    ]
    assert await warned(hooks, autoscaler(6, version), "UPDATE") == []
    assert await api.entries("nlp") == []


async def test_a_group_that_is_not_there_is_warned_of(api: Api, hooks: Hooks) -> None:
    await api.client.create(DEPLOYMENTS, deployment("web", "nobody", 2))
    [warning] = await warned(hooks, autoscaler(3))
    assert warning == "maxReplicas 3 of Deployment default/web cannot be reached: quota nobody does not exist"


async def test_what_no_replica_helps_is_said_in_its_own_words(api: Api, hooks: Hooks) -> None:
    """Its containers do not state a resource that `hard` limits."""
    await api.group("nlp", cpu="8")
    silent = deployment("web", "nlp", 2)
    del silent["spec"]["template"]["spec"]["containers"][0]["resources"]
    await api.client.create(DEPLOYMENTS, silent)
    [warning] = await warned(hooks, autoscaler(3))
    assert "cannot be reached now: failed quota: nlp: must specify limits.cpu for: c" in warning


@pytest.mark.parametrize(
    "obj",
    [
        autoscaler(50, name="nobody"),
        autoscaler(50, kind="ConfigMap"),
        autoscaler("many"),
        autoscaler(50, name="free"),
        changed(autoscaler(50), lambda o: o["spec"].pop("scaleTargetRef")),
        changed(autoscaler(50), lambda o: o.update(spec=[1])),
    ],
    ids=["no target", "no workload", "no number", "nobody pays", "no reference", "no spec"],
)
async def test_what_says_nothing_is_let_be(api: Api, hooks: Hooks, obj: Object) -> None:
    await api.group("nlp", cpu="1")
    await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1))
    free = changed(deployment("free", "nlp", 1), lambda o: o["metadata"]["labels"].pop(LABEL))
    await api.client.create(DEPLOYMENTS, free)
    assert await warned(hooks, obj) == []
