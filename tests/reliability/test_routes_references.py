"""Routes by what a workload refers to: its template is elsewhere, and comes again larger.

The tenant has the role `edit`, may write the operators' kinds, and tries to run more than the four cores of a group.
What it refers to has no pods of its own, and is deleted by a person, or by a controller of Kubernetes.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.e2e.rows import JOBSETS
from tests.reliability.routes import (
    attempt,
    changed,
    for_a_while,
    gone,
    has_running,
    image_of,
    may_operate,
    of_deployment,
    of_kind,
    owned,
    owned_by_map,
    replica_set,
    web,
)
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.logged_errors import LoggedErrors
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, REPLICASETS, ROLLOUTS, Object, referring
from tests.support.tenant import JOBS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRAINER = "trainer.kubeflow.org"
RUNTIMES = Resource(TRAINER, "v1alpha1", "trainingruntimes", "TrainingRuntime")
TRAIN_JOBS = Resource(TRAINER, "v1alpha1", "trainjobs", "TrainJob")
LARGE = "4"


def rollout(tenant: Tenant, to: Object, name: str = "own") -> Object:
    return referring(name, tenant.name, to, 4, namespace=tenant.name, selector={"matchLabels": {"app": "x"}})


async def makes_pods(tenant: Tenant, uid: str, name: str = "own") -> None:
    """Make the ReplicaSet that Argo Rollouts would make of what comes again."""
    version = replica_set(tenant, f"{name}-1", 4, label=None, app="x", cpu=LARGE)
    version["metadata"]["labels"] = {"app": "x"}
    await attempt(tenant.create(REPLICASETS, owned(version, "Rollout", name, uid, ROLLOUTS.api_version)))
    await for_a_while(partial(has_running, tenant, 4), 5)


async def one_version(tenant: Tenant) -> bool:
    return len(await of_deployment(tenant, "top")) == 1


@pytest.mark.parametrize("by", ["a person", "the garbage collector", "a person who has held it"])
async def test_a_deployment_comes_again_larger(tenant: Tenant, live: LivePods, by: str) -> None:
    """One that a finalizer holds is deleted before the Rollout names it, and goes once the finalizer does."""
    await may_operate(tenant, ROLLOUTS)
    shape = web(tenant, 0, name="shape", cpu="1m")
    if by == "the garbage collector":
        shape = await owned_by_map(tenant, shape)
    if by == "a person who has held it":
        shape["metadata"]["finalizers"] = ["example.org/held"]
    await tenant.create(DEPLOYMENTS, shape)
    if by == "a person who has held it":
        await tenant.delete(DEPLOYMENTS, "shape")
        await attempt(tenant.create(ROLLOUTS, rollout(tenant, shape)))
        await tenant.patch(DEPLOYMENTS, "shape", {"metadata": {"finalizers": None}})
    else:
        await tenant.create(ROLLOUTS, rollout(tenant, shape))
        await asyncio.sleep(2)
        deleted = (DEPLOYMENTS, "shape") if by == "a person" else (CONFIG_MAPS, "owner")
        await attempt(tenant.delete(*deleted))
    await gone(tenant, DEPLOYMENTS, "shape")
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 0, name="shape", cpu=LARGE)))
    await asyncio.sleep(2)
    for made in (await tenant.admin.list(ROLLOUTS, tenant.name))[0]:
        await makes_pods(tenant, made["metadata"]["uid"])
    await live.settled()


async def test_a_rollout_that_is_being_deleted_loses_what_it_refers_to(
    tenant: Tenant, live: LivePods, logged: LoggedErrors
) -> None:
    """A finalizer holds it. What it refers to may go then, and its demand is that of what comes again: drift."""
    logged.allow(f"drift: group={tenant.name},")
    await may_operate(tenant, ROLLOUTS)
    shape = web(tenant, 0, name="shape", cpu="1m")
    await tenant.create(DEPLOYMENTS, shape)
    made = rollout(tenant, shape)
    made["metadata"]["finalizers"] = ["example.org/held"]
    uid = (await tenant.create(ROLLOUTS, made))["metadata"]["uid"]
    await asyncio.sleep(2)
    await tenant.delete(ROLLOUTS, "own")
    await attempt(tenant.delete(DEPLOYMENTS, "shape"))
    await gone(tenant, DEPLOYMENTS, "shape")
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 0, name="shape", cpu=LARGE)))
    await asyncio.sleep(2)
    await makes_pods(tenant, uid)
    await live.settled()
    await tenant.patch(ROLLOUTS, "own", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("by", ["the garbage collector", "its history"])
async def test_a_replica_set_of_a_deployment_comes_again_larger(tenant: Tenant, live: LivePods, by: str) -> None:
    """The garbage collector deletes it with its Deployment, and that one's controller once it is of the past."""
    await may_operate(tenant, ROLLOUTS)
    await tenant.create(DEPLOYMENTS, web(tenant, 0, name="top", cpu="1m", app="x", revisionHistoryLimit=0))
    await for_a_while(partial(one_version, tenant), 20)
    [to] = await of_deployment(tenant, "top")
    name = to["metadata"]["name"]
    made = rollout(tenant, {**to, "apiVersion": REPLICASETS.api_version, "kind": REPLICASETS.kind})
    uid = (await tenant.create(ROLLOUTS, made))["metadata"]["uid"]
    await asyncio.sleep(2)
    if by == "its history":
        await changed(tenant, DEPLOYMENTS, "top", image_of("other", "1m"))
    else:
        await attempt(tenant.delete(DEPLOYMENTS, "top"))
    await gone(tenant, REPLICASETS, name)
    await attempt(tenant.create(REPLICASETS, replica_set(tenant, name, 0, cpu=LARGE, app="x")))
    await asyncio.sleep(2)
    await makes_pods(tenant, uid)
    await live.settled()


def runtime(tenant: Tenant, cpu: str) -> Object:
    """A runtime of one node."""
    template = of_kind(JOBS, web(tenant, 1, label=None, cpu=cpu))["spec"]["template"]
    step = {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}}
    job = {"name": "node", "template": {"metadata": step, "spec": {"template": template}}}
    return {
        "apiVersion": RUNTIMES.api_version,
        "kind": RUNTIMES.kind,
        "metadata": {"name": "shape", "namespace": tenant.name},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def indexed_job(tenant: Tenant, cpu: str) -> Object:
    job = of_kind(JOBS, web(tenant, 4, label=None, cpu=cpu))
    return {**job, "spec": {**job["spec"], "completions": 4, "completionMode": "Indexed"}}


def job_set(tenant: Tenant, uid: str, cpu: str) -> Object:
    """The JobSet of the TrainJob `own`."""
    jobs = [{"name": "node", "template": {"spec": indexed_job(tenant, cpu)["spec"]}}]
    made = {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "metadata": {"name": "own", "namespace": tenant.name},
        "spec": {"replicatedJobs": jobs},
    }
    return owned(made, TRAIN_JOBS.kind, "own", uid, TRAIN_JOBS.api_version)


@pytest.mark.parametrize("how", ["deleted", "changed below a JobSet that goes"])
async def test_a_training_runtime_comes_again_larger(tenant: Tenant, live: LivePods, how: str) -> None:
    """The JobSet and its Job are what the operators would make. A TrainJob that has one is counted by that."""
    for kind in (TRAIN_JOBS, JOBSETS):
        await may_operate(tenant, kind)
    await tenant.create(RUNTIMES, await owned_by_map(tenant, runtime(tenant, "1m")))
    own = {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {"name": "own", "namespace": tenant.name, "labels": {LABEL: tenant.name}},
        "spec": {
            "runtimeRef": {"apiGroup": TRAINER, "kind": RUNTIMES.kind, "name": "shape"},
            "trainer": {"numNodes": 4},
        },
    }
    uid = (await tenant.create(TRAIN_JOBS, own))["metadata"]["uid"]
    await asyncio.sleep(2)
    if how == "deleted":
        await attempt(tenant.delete(CONFIG_MAPS, "owner"))
        await gone(tenant, RUNTIMES, "shape")
        await attempt(tenant.create(RUNTIMES, runtime(tenant, LARGE)))
    else:
        await tenant.create(JOBSETS, job_set(tenant, uid, "1m"))
        await attempt(tenant.patch(RUNTIMES, "shape", {"spec": runtime(tenant, LARGE)["spec"]}))
        await attempt(tenant.delete(JOBSETS, "own"))
        await gone(tenant, JOBSETS, "own")
    await asyncio.sleep(2)
    job = indexed_job(tenant, LARGE)
    if await attempt(tenant.create(JOBSETS, job_set(tenant, uid, LARGE))) is None:
        uid = (await tenant.admin.get(JOBSETS, "own", tenant.name))["metadata"]["uid"]
        await attempt(tenant.create(JOBS, owned(job, JOBSETS.kind, "own", uid, JOBSETS.api_version)))
        await for_a_while(partial(has_running, tenant, 4), 5)
    await live.settled()
    # With its namespace the JobSet may go first, and the TrainJob asks for what the larger runtime says until it goes.
    await tenant.delete(TRAIN_JOBS, "own")
    await gone(tenant, TRAIN_JOBS, "own")


@pytest.mark.parametrize("by", ["deleted", "changed"])
@pytest.mark.parametrize("how", ["created", "updated", "scaled"])
async def test_a_deployment_is_larger_at_the_moment_of_a_write_that_names_it(
    tenant: Tenant, live: LivePods, cluster: Cluster, how: str, by: str
) -> None:
    """The Rollout is not stored yet, or not with that name, or has no pods."""
    if not cluster.is_real:
        pytest.skip("a busy sandbox takes longer to store what was answered than admission waits")
    await may_operate(tenant, ROLLOUTS)
    other = web(tenant, 0, name="other", cpu="1m")
    await tenant.create(DEPLOYMENTS, other)
    for number in range(10):
        name, own = f"shape{number}", f"own{number}"
        shape = web(tenant, 0, name=name, cpu="1m")
        await tenant.create(DEPLOYMENTS, shape)
        made = rollout(tenant, shape, own)
        if how == "updated":
            await tenant.create(ROLLOUTS, rollout(tenant, other, own))
        elif how == "scaled":
            await tenant.create(ROLLOUTS, {**made, "spec": {**made["spec"], "replicas": 0}})

        async def written(made: Object = made, own: str = own) -> None:
            spec = made["spec"]
            change = {"spec": {"workloadRef": spec["workloadRef"], "replicas": spec["replicas"]}}
            created = how == "created"
            await attempt(tenant.create(ROLLOUTS, made) if created else tenant.patch(ROLLOUTS, own, change))

        async def larger(name: str = name, number: int = number) -> None:
            await asyncio.sleep(number * 0.003)
            if by == "deleted":
                await attempt(tenant.delete(DEPLOYMENTS, name, "Background"))
                await attempt(tenant.create(DEPLOYMENTS, web(tenant, 0, name=name, cpu=LARGE)))
            else:
                await changed(tenant, DEPLOYMENTS, name, image_of("x", LARGE))

        await asyncio.gather(written(), larger())
        shape = await tenant.admin.get(DEPLOYMENTS, name, tenant.name)
        is_large = shape["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == LARGE
        for made in (await tenant.admin.list(ROLLOUTS, tenant.name))[0]:
            if is_large and made["spec"]["workloadRef"]["name"] == name:
                await makes_pods(tenant, made["metadata"]["uid"], own)
                await live.settled()
            await attempt(tenant.delete(ROLLOUTS, own))
            await gone(tenant, ROLLOUTS, own)
    await live.settled()
