"""Routes by what makes pods under a new name each time, while those of the one before are ending.

In each a tenant with the role `edit` tries to run ever more than the four cores of a group. A group may be over once by
what is ending (docs/ownership.md, law 4): no more pods are made then.
"""

from __future__ import annotations

import asyncio
import copy

import pytest

from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from tests.e2e.rows import JOBSETS
from tests.reliability.routes import (
    attempt,
    counted,
    for_a_while,
    gone,
    has_running,
    of_kind,
    operated,
    owned,
    pod,
    ray_cluster,
    replica_set,
    slowly,
    web,
)
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, RAYCLUSTERS, RAYJOBS, RAYSERVICES, REPLICASETS, Object, group
from tests.support.tenant import JOBS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS = 3
AT_ONCE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "100%"}}
IN_PLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}


def version(tenant: Tenant, name: str, image: str) -> Object:
    """Return a ReplicaSet without pods that the Deployment `web` adopts."""
    made = replica_set(tenant, name, 0, slow=True, app="x")
    made["metadata"]["labels"]["app"] = "x"
    made["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return made


async def test_a_deployment_finds_its_next_version_under_any_name(
    tenant: Tenant, live: LivePods, cluster: Cluster
) -> None:
    if not cluster.is_real:
        pytest.skip("the sandbox's Deployments adopt no ReplicaSets that they find later")
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy=AT_ONCE))
    await tenant.running(4)
    for turn in range(1, TURNS + 1):
        made = version(tenant, f"a{turn}", f"v{turn}")
        await attempt(tenant.create(REPLICASETS, made))
        template = copy.deepcopy(made["spec"]["template"])
        await attempt(tenant.patch(DEPLOYMENTS, "web", {"spec": {"template": template}}))
        await for_a_while(lambda turn=turn: has_running(tenant, 4 * turn + 4), 4)
        await asyncio.sleep(1)
    await live.settled(over=4)


async def test_a_person_raises_one_after_another_below_a_paused_deployment(tenant: Tenant, live: LivePods) -> None:
    made = await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True, strategy=IN_PLACE))
    await tenant.running(4)
    await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
    for turn in range(1, TURNS + 1):
        below = owned(version(tenant, f"a{turn}", "x"), "Deployment", "web", made["metadata"]["uid"])
        await attempt(tenant.create(REPLICASETS, below))
    await asyncio.sleep(1)
    for turn in range(1, TURNS + 1):
        for each in (await tenant.client.list(REPLICASETS, tenant.name))[0]:
            if each["spec"]["replicas"]:
                await attempt(tenant.scale(REPLICASETS, each["metadata"]["name"], 0))
        await attempt(tenant.scale(REPLICASETS, f"a{turn}", 4))
        await for_a_while(lambda turn=turn: has_running(tenant, 4 * turn + 4), 4)
    await live.settled(over=4)


@pytest.mark.parametrize("kind", [RAYSERVICES, RAYJOBS], ids=lambda each: each.kind)
async def test_ray_clusters_come_again_under_new_names(tenant: Tenant, live: LivePods, kind: Resource) -> None:
    """Whoever works on behalf of KubeRay makes each cluster and its pods, which are slow to end."""
    spec = ray_cluster(tenant, "x", 3)["spec"]
    for each in (spec["headGroupSpec"], spec["workerGroupSpecs"][0]):
        each["template"].setdefault("metadata", {})
        slowly(each["template"])
    retries = {"rayClusterSpec": spec, "submissionMode": "HTTPMode", "entrypoint": "x", "backoffLimit": 100}
    uid = await operated(tenant, kind, {"rayClusterConfig": spec} if kind is RAYSERVICES else retries)
    for turn in range(1, TURNS + 1):
        name = f"own-raycluster-{turn}"
        metadata = {"name": name, "namespace": tenant.name}
        made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": copy.deepcopy(spec)}
        stored: list[Object] = []

        async def is_made(made: Object = made, name: str = name, stored: list[Object] = stored) -> bool:
            await attempt(tenant.create(RAYCLUSTERS, owned(made, kind.kind, "own", uid, kind.api_version)))
            found, _ = await tenant.admin.list(RAYCLUSTERS, tenant.name)
            stored[:] = [each for each in found if each["metadata"]["name"] == name]
            return bool(stored)

        if not await for_a_while(is_made, 3):
            continue
        reference = ("RayCluster", name, stored[0]["metadata"]["uid"], "ray.io/v1")
        pods = [owned(pod(tenant, f"{name}-{number}", slow=True, label=None), *reference) for number in range(4)]
        await asyncio.gather(*(attempt(tenant.create(PODS, each)) for each in pods))
        await asyncio.sleep(1)
        await attempt(tenant.delete(RAYCLUSTERS, name))
        await gone(tenant, RAYCLUSTERS, name)
        # As the garbage collector, where there is none.
        there = [each["metadata"] for each in await tenant.pods()]
        ending = [attempt(tenant.delete(PODS, each["name"])) for each in there if "deletionTimestamp" not in each]
        await asyncio.gather(*ending)
        await asyncio.sleep(1.5)
    await live.settled(over=4)


async def test_jobs_by_hand_below_a_job_set_under_new_names(tenant: Tenant, live: LivePods) -> None:
    job = of_kind(JOBS, web(tenant, 4, slow=True))
    template = {"spec": copy.deepcopy(job["spec"])}
    uid = await operated(tenant, JOBSETS, {"replicatedJobs": [{"name": "j", "replicas": 1, "template": template}]})
    for turn in range(1, TURNS + 1):
        made = copy.deepcopy(job)
        made["metadata"] = {"name": f"x{turn}", "namespace": tenant.name}
        await attempt(tenant.create(JOBS, owned(made, "JobSet", "own", uid, JOBSETS.api_version)))
        await for_a_while(lambda turn=turn: has_running(tenant, 4 * turn), 3)
        await attempt(tenant.delete(JOBS, f"x{turn}", "Background"))
        await gone(tenant, JOBS, f"x{turn}")
        await asyncio.sleep(1.5)
    await live.settled(over=4)


async def test_a_listed_deployment_rejects_no_pods_of_another_groups_version(tenant: Tenant) -> None:
    """A ReplicaSet of a Rollout of that name is called as a version of the Deployment would be."""
    other = f"{tenant.name}-other"
    await tenant.admin.create(GROUPS, group(other, cpu="4"))
    await counted(tenant.admin, other)
    await tenant.create(DEPLOYMENTS, web(tenant, 4, slow=True))
    for each in await tenant.running(4):
        await tenant.delete(PODS, each["metadata"]["name"])
    await asyncio.sleep(3)
    theirs = replica_set(tenant, "web-abc", 2, app="b", label=other)
    theirs["spec"]["template"]["metadata"]["labels"]["rollouts-pod-template-hash"] = "abc"
    await tenant.create(REPLICASETS, theirs)

    async def runs() -> bool:
        return len([each for each in await tenant.pods() if each["metadata"]["labels"]["app"] == "b"]) == 2

    await eventually(runs, 10, "the pods of the other group run")
