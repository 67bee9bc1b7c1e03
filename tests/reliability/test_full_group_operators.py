"""What operators do keeps working in a group that is exactly full: no child is rejected for good.

A stand-in makes and deletes children as the operator of each kind does, by an account that nobody has listed. What is
rejected while pods are ending is admitted on a retry, within seconds after they have gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from sandbox.kubelet import STOP_SECONDS
from tests.e2e.rows import CLUSTER_RUNTIMES, JOBSETS, NEVER, RUNTIME
from tests.reliability.full_group import STOPS, admitted, rests, stops_briefly
from tests.reliability.routes import may_operate
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    LEADER_WORKER_SETS,
    PODS,
    PYTORCHJOBS,
    RAYCLUSTERS,
    RAYJOBS,
    RAYSERVICES,
    REPLICASETS,
    ROLLOUTS,
    Object,
    ray_spec,
    template,
)
from tests.support.proxy import Proxy
from tests.support.serving import Parts
from tests.support.tenant import JOBS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
SPARK_APPLICATIONS = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
NAME, ACCOUNT = "some-operator", "system:serviceaccount:operators:some-operator"
#: What operators may do: their children and the status of their kinds.
RULES = [{"apiGroups": ["", "apps", "batch", "jobset.x-k8s.io", "ray.io"], "resources": ["*"], "verbs": ["*"]}]
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Operator:
    """Makes children in a tenant's namespace."""

    tenant: Tenant
    client: KubeClient
    is_sandbox: bool

    async def make(self, resource: Resource, owner: Object, name: str, **obj: Any) -> Object:
        """Create a child, again and again until it is admitted."""
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {**obj.pop("metadata", {}), "name": name, "namespace": self.tenant.name}
        child = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {**metadata, "ownerReferences": [reference]},
            **obj,
        }
        made: list[Object] = []

        async def create() -> None:
            made.append(await self.client.create(resource, child))

        await admitted(create, self.tenant)
        return made[0]

    async def pods(self, owner: Object, *names: str) -> None:
        for name in names:
            await self.make(PODS, owner, name, **slow())

    async def change(self, resource: Resource, name: str, **spec: Any) -> None:
        def patch() -> Any:
            return self.client.patch(resource, name, {"spec": spec}, namespace=self.tenant.name)

        await admitted(patch, self.tenant)

    async def delete(self, resource: Resource, *names: str, policy: str = "Background") -> None:
        """Delete children and wait until they have gone: a garbage collector that learns of new kinds pauses."""
        body = orjson.dumps({"propagationPolicy": policy})
        for name in names:
            await self.client.request("DELETE", resource.path(self.tenant.name, name), body=body)
        for name in names:
            stored: list[Object] = []
            await eventually(
                lambda name=name, stored=stored: self._is_gone(resource, name, stored),
                180,
                lambda name=name, stored=stored: f"{resource.kind} {name} is gone, not {stored[-1]}",
            )

    async def _is_gone(self, resource: Resource, name: str, stored: list[Object]) -> bool:
        try:
            stored[:] = [await self.client.get(resource, name, self.tenant.name)]
        except NotFound:
            return True
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def account(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubeClient]:
    """The operator's client."""
    role = {"apiVersion": CLUSTER_ROLES.api_version, "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": RULES}
    binding = {
        "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
        "kind": CLUSTER_ROLE_BINDINGS.kind,
        "metadata": {"name": NAME},
        "roleRef": {"kind": "ClusterRole", "apiGroup": RBAC, "name": NAME},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": ACCOUNT}],
    }
    await parts.client.create(CLUSTER_ROLES, role)
    await parts.client.create(CLUSTER_ROLE_BINDINGS, binding)
    path = tmp_path_factory.mktemp("operator") / "kubeconfig"
    async with (
        Proxy(parts.cluster.kubeconfig, {"Impersonate-User": ACCOUNT}) as proxy,
        KubeClient.from_kubeconfig(proxy.write_kubeconfig(path)) as client,
    ):
        yield client
    await parts.client.delete(CLUSTER_ROLE_BINDINGS, NAME)
    await parts.client.delete(CLUSTER_ROLES, NAME)


@pytest_asyncio.fixture(loop_scope="module")
async def operator(tenant: Tenant, cluster: Cluster, live: LivePods, account: KubeClient) -> AsyncIterator[Operator]:
    """An operator beside a group of four cores; at the end the group is settled."""
    yield Operator(tenant, account, not cluster.is_real)
    await rests(live)


async def is_full(tenant: Tenant) -> None:
    """Wait until four pods run, as much is used, and nothing is promised.

    Pods of a Job that is gone may stay for a minute that never had a node: its controller has a finalizer on them.
    """
    await tenant.running(4)

    async def used() -> bool:
        status = wire.from_dict(await tenant.admin.get(GROUPS, tenant.name)).status
        return not status.reservations and (status.used or {}).get("limits.cpu") == "4"

    await eventually(used, 60, "the group is full")


def slow(spec: Object | None = None, **labels: str) -> Object:
    """A pod, or its template, of one core that takes a moment to stop."""
    made = template()
    made["metadata"]["labels"] |= labels
    made["spec"] |= spec or {}
    stops_briefly(made)
    return made


async def create(tenant: Tenant, resource: Resource, **spec: Any) -> Object:
    """Create a workload of the tenant's group."""
    await may_operate(tenant, resource)
    metadata = {"name": "web", "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    made = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return await tenant.create(resource, made)


# -- Argo Rollouts -----------------------------------------------------------------------------------------------------


def version(replicas: int, number: int) -> Mapping[str, Any]:
    """The ReplicaSet of one version of a Rollout."""
    labels = {"app": "x", "rollouts-pod-template-hash": f"v{number}"}
    pods = slow(**labels)
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pods}
    return {"metadata": {"labels": labels}, "spec": spec}


async def rolled_out(operator: Operator, strategy: Object) -> Object:
    """Return a Rollout of four pods, whose template changes."""
    if operator.is_sandbox:
        pytest.skip("the sandbox has a controller of Rollouts itself")
    tenant = operator.tenant
    selector = {"matchLabels": {"app": "x"}}
    stored = await create(tenant, ROLLOUTS, replicas=4, selector=selector, strategy=strategy, template=slow())
    await operator.make(REPLICASETS, stored, "web-1", **version(4, 1))
    await tenant.running(4)
    await is_full(tenant)
    await tenant.patch(ROLLOUTS, "web", {"spec": {"template": {"metadata": {"labels": {"of": "two"}}}}})
    return stored


async def test_a_canary_is_aborted_tried_again_and_promoted(operator: Operator) -> None:
    stored = await rolled_out(operator, {"canary": {"maxSurge": 1, "maxUnavailable": 0, "steps": [{"setWeight": 25}]}})
    await operator.make(REPLICASETS, stored, "web-2", **version(1, 2))
    await operator.tenant.running(5)
    await operator.change(REPLICASETS, "web-2", replicas=0)
    await operator.tenant.running(4)
    for number in (1, 2, 3, 4):
        await operator.change(REPLICASETS, "web-2", replicas=number)
        await operator.tenant.running(5)
        await operator.change(REPLICASETS, "web-1", replicas=4 - number)
        await operator.tenant.running(4)
    await is_full(operator.tenant)


async def test_a_preview_takes_the_place_of_what_is_active(operator: Operator) -> None:
    """Blue and green stand side by side for a while."""
    stored = await rolled_out(operator, {"blueGreen": {"activeService": "a", "previewService": "b"}})
    await operator.make(REPLICASETS, stored, "web-2", **version(4, 2))
    await operator.tenant.running(8)
    await operator.change(REPLICASETS, "web-1", replicas=0)
    await operator.tenant.running(4)
    await is_full(operator.tenant)


# -- Jobs and sets -----------------------------------------------------------------------------------------------------


async def test_a_job_set_begins_again_and_is_suspended_and_resumed(operator: Operator) -> None:
    """After a failure all its Jobs are deleted, and made again under the same names."""
    tenant, job = operator.tenant, {"parallelism": 2, "completions": 2, "template": slow(NEVER["spec"])}
    replicated = [{"name": "j", "replicas": 2, "template": {"spec": job}}]
    stored = await create(tenant, JOBSETS, replicatedJobs=replicated)
    names = ("web-j-0", "web-j-1")
    for _ in range(3):
        for name in names:
            await operator.make(JOBS, stored, name, spec=job)
        await tenant.running(4)
        await operator.delete(JOBS, *names, policy="Foreground")
    for name in names:
        await operator.make(JOBS, stored, name, spec=job)
    await tenant.running(4)
    for _ in range(2):
        for suspend in (True, False):
            await admitted(lambda suspend=suspend: tenant.patch(JOBSETS, "web", {"spec": {"suspend": suspend}}), tenant)
            for name in names:
                await operator.change(JOBS, name, suspend=suspend)
            await tenant.running(0 if suspend else 4)
    await is_full(tenant)


async def test_a_train_job_begins_again_and_is_suspended_and_resumed(operator: Operator) -> None:
    """Its JobSet and the Job of that are made by two operators."""
    tenant, job = operator.tenant, {"parallelism": 4, "completions": 4, "template": slow(NEVER["spec"])}
    kind = {"apiVersion": CLUSTER_RUNTIMES.api_version, "kind": CLUSTER_RUNTIMES.kind}
    await tenant.admin.create(CLUSTER_RUNTIMES, {**RUNTIME, **kind, "metadata": {"name": tenant.name}})
    runs = {"runtimeRef": {"name": tenant.name}, "trainer": {"numNodes": 4}}
    stored = await create(tenant, TRAIN_JOBS, **runs)
    replicated = [{"name": "node", "template": {"spec": job}}]
    below = await operator.make(JOBSETS, stored, "web", spec={"replicatedJobs": replicated})
    for _ in range(2):
        await operator.make(JOBS, below, "web-node-0", spec=job)
        await tenant.running(4)
        await operator.delete(JOBS, "web-node-0", policy="Foreground")
    await operator.make(JOBS, below, "web-node-0", spec=job)
    await tenant.running(4)
    for suspend in (True, False):
        await admitted(lambda suspend=suspend: tenant.patch(TRAIN_JOBS, "web", {"spec": {"suspend": suspend}}), tenant)
        await operator.change(JOBSETS, "web", suspend=suspend)
        await operator.change(JOBS, "web-node-0", suspend=suspend)
        await tenant.running(0 if suspend else 4)
    await is_full(tenant)
    await tenant.admin.delete(CLUSTER_RUNTIMES, tenant.name)


async def test_a_group_of_a_leader_and_its_workers_begins_again_and_is_scaled(operator: Operator) -> None:
    """Its leaders are a StatefulSet, and the workers of each leader are one."""
    tenant = operator.tenant
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": slow()}}
    stored = await create(tenant, LEADER_WORKER_SETS, **spec)

    def stateful(replicas: int, role: str) -> Mapping[str, Any]:
        selector = {"matchLabels": {"app": "x", "role": role}}
        parallel = {"serviceName": "web", "podManagementPolicy": "Parallel"}
        return {"spec": {"replicas": replicas, "selector": selector, "template": slow(role=role), **parallel}}

    async def workers(of: str) -> None:
        leader = await eventually(lambda: found(tenant, of), 60, f"leader {of} is made")
        await operator.make(STATEFULSETS, leader, of, **stateful(1, of))

    await operator.make(STATEFULSETS, stored, "web", **stateful(2, "leader"))
    for name in ("web-0", "web-1"):
        await workers(name)
    await tenant.running(4)
    await is_full(tenant)
    for _ in range(2):
        await operator.delete(STATEFULSETS, "web-0", policy="Foreground")
        await operator.client.delete(PODS, "web-0", tenant.name)
        await asyncio.sleep(STOPS)
        await workers("web-0")
        await tenant.running(4)
    for size in (1, 2):
        await admitted(lambda size=size: tenant.scale(LEADER_WORKER_SETS, "web", size), tenant)
        await operator.change(STATEFULSETS, "web", replicas=size)
        if size == 1:
            await operator.delete(STATEFULSETS, "web-1")
        else:
            await workers("web-1")
        await tenant.running(2 * size)
    await is_full(tenant)


async def found(tenant: Tenant, name: str) -> Object | None:
    """Return a pod that is not being deleted."""
    pods = (pod for pod in await tenant.pods() if pod["metadata"]["name"] == name)
    return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)


async def test_a_training_job_replaces_a_worker_and_is_suspended_and_resumed(operator: Operator) -> None:
    """A pod that failed comes again under its name."""
    tenant = operator.tenant
    roles = {
        name: {"replicas": count, "restartPolicy": "ExitCode", "template": slow()}
        for name, count in (("Master", 1), ("Worker", 3))
    }
    stored = await create(tenant, PYTORCHJOBS, pytorchReplicaSpecs=roles)
    names = ("web-master-0", "web-worker-0", "web-worker-1", "web-worker-2")
    await operator.pods(stored, *names)
    for name in (names[3], names[0]):
        await operator.delete(PODS, name)
        await operator.pods(stored, name)
    await tenant.running(4)
    for suspend in (True, False):

        def patch(suspend: bool = suspend) -> Any:
            return tenant.patch(PYTORCHJOBS, "web", {"spec": {"runPolicy": {"suspend": suspend}}})

        await admitted(patch, tenant)
        await (operator.delete(PODS, *names) if suspend else operator.pods(stored, *names))
    await tenant.running(4)
    await is_full(tenant)


# -- Ray ---------------------------------------------------------------------------------------------------------------


def ray(workers: int) -> Object:
    spec = ray_spec(workers)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        group["template"] = slow()
    return spec


async def ray_pods(operator: Operator, cluster: Object, workers: int) -> list[str]:
    """Make a cluster's pods; return their names, the head first."""
    name = cluster["metadata"]["name"]
    names = [f"{name}-head", *(f"{name}-w{number}" for number in range(workers))]
    await operator.pods(cluster, *names)
    return names


async def test_a_ray_cluster_replaces_a_worker_and_its_head_and_is_autoscaled(operator: Operator) -> None:
    tenant = operator.tenant
    stored = await create(tenant, RAYCLUSTERS, **ray(3))
    names = await ray_pods(operator, stored, 3)
    for name in (names[1], names[0]):
        await operator.delete(PODS, name)
        await operator.pods(stored, name)
    for workers in (1, 3):
        groups = ray(workers)["workerGroupSpecs"]
        await operator.change(RAYCLUSTERS, "web", workerGroupSpecs=groups)
        await (operator.delete(PODS, *names[2:]) if workers == 1 else operator.pods(stored, *names[2:]))
    await tenant.running(4)
    await is_full(tenant)


async def test_a_ray_job_is_tried_again_with_another_cluster(operator: Operator) -> None:
    tenant, submitter = operator.tenant, slow(NEVER["spec"])
    stored = await create(tenant, RAYJOBS, entrypoint="x", rayClusterSpec=ray(2), submitterPodTemplate=submitter)
    for attempt in ("a", "b", "c"):
        cluster = await operator.make(RAYCLUSTERS, stored, f"web-{attempt}", spec=ray(2))
        await ray_pods(operator, cluster, 2)
        await operator.make(JOBS, stored, "web", spec={"template": submitter})
        await tenant.running(4)
        if attempt != "c":
            await operator.delete(JOBS, "web")
            await operator.delete(RAYCLUSTERS, f"web-{attempt}", policy="Foreground")
    await is_full(tenant)


async def test_a_ray_service_is_upgraded_without_a_gap(operator: Operator) -> None:
    """The new cluster is ready before the old one goes."""
    tenant = operator.tenant
    stored = await create(tenant, RAYSERVICES, rayClusterConfig=ray(3))
    await ray_pods(operator, await operator.make(RAYCLUSTERS, stored, "web-a", spec=ray(3)), 3)
    await tenant.running(4)
    await is_full(tenant)
    await tenant.patch(RAYSERVICES, "web", {"spec": {"rayClusterConfig": {"rayVersion": "2.9.0"}}})
    await ray_pods(operator, await operator.make(RAYCLUSTERS, stored, "web-b", spec=ray(3)), 3)
    await tenant.running(8)
    await operator.delete(RAYCLUSTERS, "web-a", policy="Foreground")
    await tenant.running(4)
    await is_full(tenant)


# -- Spark -------------------------------------------------------------------------------------------------------------


async def test_a_spark_driver_replaces_an_executor_and_comes_again_itself(operator: Operator) -> None:
    """The executors are the driver's, which makes them by an account of the tenant's namespace."""
    tenant, pod = operator.tenant, {"cores": 1, "coreLimit": "1", "memory": "512m"}
    spec = {"type": "Scala", "mainApplicationFile": "x", "sparkVersion": "3.5.0", "restartPolicy": {"type": "Always"}}
    stored = await create(tenant, SPARK_APPLICATIONS, **spec, driver=pod, executor={**pod, "instances": 3})
    by_driver = replace(operator, client=tenant.client)
    for _ in range(2):
        await operator.pods(stored, "web-driver")
        driver = await tenant.admin.get(PODS, "web-driver", tenant.name)
        await by_driver.pods(driver, "web-exec-1", "web-exec-2", "web-exec-3")
        await by_driver.delete(PODS, "web-exec-2")
        await by_driver.pods(driver, "web-exec-4")
        await tenant.running(4)
        await operator.delete(PODS, "web-driver", policy="Foreground")
    await tenant.running(0)
    await operator.pods(stored, "web-driver")
    driver = await tenant.admin.get(PODS, "web-driver", tenant.name)
    await by_driver.pods(driver, "web-exec-1", "web-exec-2", "web-exec-3")
    await tenant.running(4)
    await is_full(tenant)


async def test_the_jobs_of_a_job_set_are_made_again_and_again(operator: Operator) -> None:
    """Each is a new Job under the same name. The pods of one turn at most run beside those that are ending."""
    tenant, made = operator.tenant, slow(NEVER["spec"])
    made["metadata"]["annotations"][STOP_SECONDS] = "8"
    made["spec"]["terminationGracePeriodSeconds"] = 10
    job = {"parallelism": 2, "completions": 2, "template": made}
    stored = await create(tenant, JOBSETS, replicatedJobs=[{"name": "j", "replicas": 2, "template": {"spec": job}}])
    names = ("web-j-0", "web-j-1")
    for turn in range(3):
        for name in names:
            await operator.make(JOBS, stored, name, spec=job)
        # Until what is ending is counted and listed.
        await asyncio.sleep(2.5)
        if turn < 2:
            await operator.delete(JOBS, *names)
    await tenant.running(4)
    await is_full(tenant)


async def test_a_leader_worker_set_of_single_pods_rolls_with_a_surge(operator: Operator) -> None:
    """Its operator adds the surge to the one StatefulSet, and takes it away in the end."""
    tenant = operator.tenant
    roll = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}}
    single = {"size": 1, "workerTemplate": slow()}
    stored = await create(tenant, LEADER_WORKER_SETS, replicas=4, leaderWorkerTemplate=single, rolloutStrategy=roll)
    leaders = {
        "serviceName": "web",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "x", "role": "leader"}},
    }
    await operator.make(STATEFULSETS, stored, "web", spec={**leaders, "replicas": 4, "template": slow(role="leader")})
    await tenant.running(4)
    await is_full(tenant)
    change = {"spec": {"leaderWorkerTemplate": {"workerTemplate": slow(of="two")}}}
    await admitted(lambda: tenant.patch(LEADER_WORKER_SETS, "web", change), tenant)

    async def above(partition: int, **spec: object) -> None:
        strategy = {"updateStrategy": {"rollingUpdate": {"partition": partition}}}
        await operator.change(STATEFULSETS, "web", **spec, **strategy)

    await above(4, replicas=5, template=slow(role="leader", of="two"))
    await tenant.running(5)
    for partition in (3, 2, 1, 0):
        await above(partition)
        await asyncio.sleep(STOPS + 1)
    await operator.change(STATEFULSETS, "web", replicas=4)
    await tenant.running(4)
    await is_full(tenant)
