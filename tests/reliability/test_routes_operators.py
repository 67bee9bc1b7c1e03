"""Routes of the children of an operator's workload that a person makes, covered by what the workload is charged.

In each a tenant with the role `edit`, who may write the operator's kinds, tries to run more than the four cores of a
group. No operator runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson
import pytest

from bizrq.kube.client import Resource
from tests.e2e.rows import JOBSETS
from tests.reliability.routes import (
    attempt,
    for_a_while,
    has_running,
    may_operate,
    of_kind,
    operated,
    owned,
    pod,
    ray_cluster,
    web,
)
from tests.support.live_pods import LivePods
from tests.support.objects import (
    DEPLOYMENTS,
    MPIJOBS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    RAYSERVICES,
    Object,
    raycluster,
    rayjob,
)
from tests.support.tenant import JOBS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS = 3


async def test_jobs_of_a_job_set_are_held_and_others_made(tenant: Tenant, live: LivePods) -> None:
    """A finalizer keeps each Job that is deleted, and its pods run on."""
    template = {"spec": _indexed(tenant, "j")["spec"]}
    uid = await operated(tenant, JOBSETS, {"replicatedJobs": [{"name": "j", "template": template}]})
    for number in range(TURNS):
        made = owned(_indexed(tenant, f"j{number}"), "JobSet", "own", uid, JOBSETS.api_version)
        made["metadata"]["finalizers"] = ["example.com/held"]
        await attempt(tenant.create(JOBS, made))
        await for_a_while(lambda number=number: has_running(tenant, 4 * number + 4), 3)
        await attempt(tenant.delete(JOBS, f"j{number}"))
    try:
        await live.settled()
    finally:
        for number in range(TURNS):
            await attempt(tenant.patch(JOBS, f"j{number}", {"metadata": {"finalizers": None}}))


async def _by_default(tenant: Tenant, name: str) -> None:
    await attempt(tenant.client.request("DELETE", JOBS.path(tenant.name, name), body=orjson.dumps({})))


async def _by_option(tenant: Tenant, name: str) -> None:
    await attempt(tenant.delete(JOBS, name, "Orphan"))


@pytest.mark.parametrize("leaves", [_by_default, _by_option])
async def test_jobs_of_a_job_set_leave_their_pods_and_others_are_made(
    tenant: Tenant, live: LivePods, leaves: Callable[[Tenant, str], Awaitable[None]]
) -> None:
    template = {"spec": _indexed(tenant, "j")["spec"]}
    uid = await operated(tenant, JOBSETS, {"replicatedJobs": [{"name": "j", "template": template}]})
    for number in range(TURNS):
        made = owned(_indexed(tenant, f"j{number}"), "JobSet", "own", uid, JOBSETS.api_version)
        await attempt(tenant.create(JOBS, made))
        await for_a_while(lambda number=number: has_running(tenant, 4 * number + 4), 3)
        await leaves(tenant, f"j{number}")
        await asyncio.sleep(1)
    await live.settled()


@pytest.mark.parametrize("kind", [MPIJOBS, RAYCLUSTERS, RAYJOBS], ids=lambda each: each.kind)
async def test_pods_and_a_job_below_one_workload(tenant: Tenant, live: LivePods, kind: Resource) -> None:
    """Children of each kind would ask for all that the workload is charged."""
    template = web(tenant, 1, app="w")["spec"]["template"]
    roles = {"Launcher": {"replicas": 1, "template": template}, "Worker": {"replicas": 3, "template": template}}
    cluster = ray_cluster(tenant, "made", 2 if kind is RAYJOBS else 3)
    specs = {"MPIJob": {"mpiReplicaSpecs": roles}, "RayCluster": cluster["spec"]}
    specs["RayJob"] = {"rayClusterSpec": cluster["spec"], "entrypoint": "x"}
    uid = await operated(tenant, kind, specs[kind.kind])
    above = (kind.kind, "own", uid, kind.api_version)
    if kind is RAYJOBS:
        await may_operate(tenant, RAYCLUSTERS)
        cluster["metadata"]["labels"] = {}
        found = await tenant.create(RAYCLUSTERS, owned(cluster, *above))
        makes_pods = ("RayCluster", "made", found["metadata"]["uid"], RAYCLUSTERS.api_version)
    else:
        makes_pods = above
    for number in range(4):
        await attempt(tenant.create(PODS, owned(pod(tenant, f"x{number}", label=None), *makes_pods)))
    job = of_kind(JOBS, web(tenant, 4, label=None, name="j", app="j"))
    await attempt(tenant.create(JOBS, owned(job, *above)))
    await for_a_while(lambda: has_running(tenant, 8), 6)
    await live.settled()


async def test_many_clusters_below_one_service(tenant: Tenant) -> None:
    """A second one replaces the first, and is free meanwhile. Further ones replace nothing."""
    await may_operate(tenant, RAYCLUSTERS)
    uid = await operated(tenant, RAYSERVICES, {"rayClusterConfig": ray_cluster(tenant, "own", 2)["spec"]})
    for number in range(4):
        made = ray_cluster(tenant, f"c{number}", 2)
        made["metadata"]["labels"] = {}
        if await attempt(tenant.create(RAYCLUSTERS, owned(made, "RayService", "own", uid, RAYSERVICES.api_version))):
            continue
        found = await tenant.admin.get(RAYCLUSTERS, f"c{number}", tenant.name)
        of = ("RayCluster", f"c{number}", found["metadata"]["uid"], RAYCLUSTERS.api_version)
        for each in range(3):
            await attempt(tenant.create(PODS, owned(pod(tenant, f"x{number}-{each}", label=None), *of)))
        await asyncio.sleep(2)
    assert await tenant.live() <= 6


@pytest.mark.parametrize("how", ["ended", "suspended", "another cluster"])
async def test_a_cluster_grows_below_a_job_that_asks_for_nothing(tenant: Tenant, live: LivePods, how: str) -> None:
    """KubeRay keeps the cluster of a job that has ended, unless the job says otherwise."""
    await may_operate(tenant, RAYJOBS)
    made = rayjob("job", tenant.name, 1, namespace=tenant.name)
    made["spec"] |= {"submissionMode": "HTTPMode"}
    job = await tenant.create(RAYJOBS, made)
    cluster = raycluster("c", 1, job)
    cluster["metadata"]["namespace"] = tenant.name
    stored = await tenant.admin.create(RAYCLUSTERS, cluster)
    await asyncio.sleep(1)
    if how == "ended":
        status = {"status": {"jobDeploymentStatus": "Complete"}}
        await tenant.admin.patch(RAYJOBS, "job", status, namespace=tenant.name, subresource="status")
    elif how == "suspended":
        await tenant.patch(RAYJOBS, "job", {"spec": {"suspend": True}})
    else:
        await tenant.patch(RAYJOBS, "job", {"spec": {"clusterSelector": {"ray.io/cluster": "c"}}})
    await asyncio.sleep(2)
    groups = stored["spec"]["workerGroupSpecs"]
    groups[0]["replicas"] = 12
    assert await attempt(tenant.patch(RAYCLUSTERS, "c", {"spec": {"workerGroupSpecs": groups}}))
    of = ("RayCluster", "c", stored["metadata"]["uid"], RAYCLUSTERS.api_version)
    for number in range(12):
        await attempt(tenant.create(PODS, owned(pod(tenant, f"w{number}", label=None), *of)))
    await for_a_while(lambda: has_running(tenant, 12), 5)
    await live.settled()


def _indexed(tenant: Tenant, name: str) -> Object:
    made = of_kind(JOBS, web(tenant, 4, name=name, app=name, label=None))
    made["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    return made


@pytest.mark.parametrize("how", ["drained", "scaled"])
async def test_a_worker_of_a_kept_cluster_comes_again_once_its_room_is_taken(
    tenant: Tenant, live: LivePods, how: str
) -> None:
    """A RayJob that has ended costs what its live pods do, and its cluster stands."""
    for kind in (RAYJOBS, RAYCLUSTERS):
        await may_operate(tenant, kind)
    made = rayjob("job", tenant.name, 3, namespace=tenant.name)
    made["spec"]["submissionMode"] = "HTTPMode"
    cluster = raycluster("c", 3, await tenant.create(RAYJOBS, made))
    cluster["metadata"]["namespace"] = tenant.name
    stored = await tenant.admin.create(RAYCLUSTERS, cluster)
    below = ("RayCluster", "c", stored["metadata"]["uid"], RAYCLUSTERS.api_version)
    for number in range(4):
        await tenant.admin.create(PODS, owned(pod(tenant, f"w{number}", label=None), *below))
    await tenant.running(4)
    ended = {"status": {"jobDeploymentStatus": "Complete"}}
    await tenant.admin.patch(RAYJOBS, "job", ended, namespace=tenant.name, subresource="status")
    workers = stored["spec"]["workerGroupSpecs"]
    if how == "scaled":
        await tenant.patch(RAYCLUSTERS, "c", {"spec": {"workerGroupSpecs": [{**workers[0], "replicas": 2}]}})
    await tenant.delete(PODS, "w3")
    await tenant.uses("3")
    if how == "scaled":
        await tenant.patch(RAYCLUSTERS, "c", {"spec": {"workerGroupSpecs": workers}})
        await asyncio.sleep(4)
    await attempt(tenant.create(DEPLOYMENTS, web(tenant, 1)))
    await asyncio.sleep(1)
    await attempt(tenant.admin.create(PODS, owned(pod(tenant, "w3", label=None), *below)))
    await live.settled()
