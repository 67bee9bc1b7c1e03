"""A route through a workload that has ended, and that its operator runs again when its spec changes."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import attempt, for_a_while, may_operate, owned, pod, web
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, Object
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPARK = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")


def application(tenant: Tenant) -> Object:
    role = {"cores": 1, "coreLimit": "1", "memory": "512m"}
    metadata = {"name": "app", "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    spec: Object = {"type": "Scala", "driver": role, "executor": {**role, "instances": 3}}
    return {"apiVersion": SPARK.api_version, "kind": SPARK.kind, "metadata": metadata, "spec": spec}


async def test_an_application_that_completed_gets_another_spec(tenant: Tenant, live: LivePods) -> None:
    """The operator runs it again (spark-operator: any change of the spec makes the state INVALIDATING).

    Its pods are made with an account that nobody listed, within what the application asks for.
    """
    await may_operate(tenant, SPARK)
    stored = await tenant.create(SPARK, application(tenant))

    async def state(value: str) -> None:
        status = {"status": {"applicationState": {"state": value}}}
        await tenant.admin.patch(SPARK, "app", status, namespace=tenant.name, subresource="status")

    await state("COMPLETED")
    await tenant.uses("0")
    await tenant.create(DEPLOYMENTS, web(tenant, 4))
    await tenant.uses("4")
    refused = await attempt(tenant.patch(SPARK, "app", {"spec": {"executor": {"instances": 30}}}))
    if refused is None:
        await state("INVALIDATING")
        await state("PENDING_RERUN")
        await asyncio.sleep(2)
        await state("SUBMITTED")
    pods = [pod(tenant, f"exec-{number}", label=None) for number in range(31)]
    for each in pods:
        child = owned(each, SPARK.kind, "app", stored["metadata"]["uid"], SPARK.api_version)
        await attempt(tenant.admin.create(PODS, child))
    await for_a_while(lambda: _are(tenant, 35), 5)
    await live.settled()


async def _are(tenant: Tenant, count: int) -> bool:
    return await tenant.live() >= count
