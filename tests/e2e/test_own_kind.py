"""A kind of one's own, by configuration alone, and kinds whose definition comes, changes or goes while bizrq runs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.cli import rbac
from bizrq.cli.standalone import Standalone
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.settings import load, settings
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from controller.manager import Controller
from tests.docs.test_docs import blocks, page
from tests.e2e.conftest import station_on
from tests.support.accounts import give_rights, kubeconfig_of
from tests.support.cluster import Cluster, Real, eventually, has_kinds, refusal
from tests.support.objects import CRDS, PODS, Object, group, template
from tests.support.workload_language import usage

pytestmark = pytest.mark.asyncio(loop_scope="module")
#: Seconds within which a kind that comes has to be counted: a look every five, and slow machines.
PICKED_UP = 15.0

#: The example of the page on kinds of one's own, word for word.
CONFIGURATION = yaml.safe_load(blocks(page("docs/adapters.md"), "yaml")[0])
TRAINERS = Resource("ml.example.com", "v1", "trainers", "Trainer")
#: What whoever wrote the kind installs.
DEFINITION = yaml.safe_load("""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trainers.ml.example.com}
spec:
  group: ml.example.com
  scope: Namespaced
  names: {plural: trainers, kind: Trainer}
  versions:
    - name: v1
      served: true
      storage: true
      subresources:
        status: {}
        scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
""")
MPIJOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def station(cluster: Cluster) -> AsyncIterator[Standalone]:
    """bizrq with the configuration; the kind that it names is not installed."""
    async with station_on(cluster, settings(CONFIGURATION)) as running:
        yield running


def trainer(name: str, group: str, replicas: int) -> Object:
    return {
        "apiVersion": "ml.example.com/v1",
        "kind": "Trainer",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: group}},
        "spec": {"replicas": replicas, "template": template()},
    }


async def used(client: KubeClient, group: str, cores: int, count: int | None = None) -> None:
    """Wait until a group uses so much, and nothing is promised any more."""
    last: Object = {}

    async def settled() -> bool:
        last.clear()
        last.update((await client.get(GROUPS, group)).get("status") or {})
        found = last.get("used") or {}
        counts = {amount for name, amount in found.items() if name.startswith("count/")}
        right = found.get("limits.cpu") == str(cores) and (count is None or counts == {str(count)})
        return right and not last.get("reservations")

    await eventually(settled, PICKED_UP, lambda: f"{cores} cores and {count} objects, not {last}")


async def uninstalled(client: KubeClient, name: str) -> None:
    await client.delete(CRDS, name)

    async def gone() -> bool:
        try:
            await client.get(CRDS, name)
        except NotFound:
            return True
        return False

    await eventually(gone, 60, f"{name} is gone")


async def test_a_kind_is_added_by_configuration_alone(
    station: Standalone, cluster: Cluster, client: KubeClient, unique: str
) -> None:
    """Told by `usage`, ruled, given rights, watched, charged, scaled, paused, ended, deleted; gone with its CRD."""
    made = settings(CONFIGURATION)
    [row] = usage([trainer("w", unique, 3)], made.counting, made.registry)
    assert row.usage == {
        "limits.cpu": "3", "requests.cpu": "3", "pods": "3", "count/trainers.ml.example.com": "1"
    }  # fmt: skip
    assert {"apiGroups": ["ml.example.com"], "resources": ["trainers"], "verbs": ["get", "list", "watch"]} in (
        rbac.counting_rules(made.registry)
    )
    registration = await client.get(REGISTRATIONS, "bizrq")
    assert {
        resource
        for webhook in registration["webhooks"]
        for rule in webhook["rules"]
        if "ml.example.com" in rule["apiGroups"]
        for resource in rule["resources"]
    } == {"trainers", "trainers/scale"}

    hard = {"limits.cpu": 4, "count/trainers.ml.example.com": 1}
    await client.create(GROUPS, group(unique, **hard))
    await used(client, unique, 0, 0)
    await has_kinds(client, [DEFINITION])
    owner = await client.create(TRAINERS, trainer("w", unique, 2))
    await used(client, unique, 2, 1)
    reference = {"apiVersion": "ml.example.com/v1", "kind": "Trainer", "name": "w", "controller": True,
                 "uid": owner["metadata"]["uid"]}  # fmt: skip
    pod = {"metadata": {"name": unique, "namespace": "default", "labels": {LABEL: unique},
                        "ownerReferences": [reference]}, "spec": template()["spec"]}  # fmt: skip
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod})
    over = await refusal(client.create(TRAINERS, trainer("second", unique, 1)))
    assert "requested: count/trainers.ml.example.com=1" in over.message
    await scaled(client, 3)
    await used(client, unique, 3, 1)
    over = await refusal(scaled(client, 6))
    assert f"exceeded quota: {unique}, requested: limits.cpu=3, used: limits.cpu=3" in over.message
    assert "fits: 1 more replica" in over.message
    await client.patch(TRAINERS, "w", {"spec": {"paused": True}}, namespace="default")
    await used(client, unique, 1, 1)
    # What runs is charged: nobody stopped the pod.
    await client.delete(PODS, unique, "default")
    await used(client, unique, 0, 1)
    await client.patch(TRAINERS, "w", {"spec": {"paused": False}}, namespace="default")
    await used(client, unique, 3, 1)
    await client.patch(TRAINERS, "w", {"status": {"phase": "Done"}}, namespace="default", subresource="status")
    await used(client, unique, 0, 0)
    await client.delete(TRAINERS, "w", "default")
    await used(client, unique, 0, 0)

    await client.create(TRAINERS, trainer("left", unique, 1))
    await used(client, unique, 1, 1)
    await uninstalled(client, DEFINITION["metadata"]["name"])
    await used(client, unique, 0, 0)
    await has_kinds(client, [DEFINITION])
    await client.create(TRAINERS, trainer("again", unique, 2))
    await used(client, unique, 2, 1)
    await client.delete(TRAINERS, "again", "default")
    await used(client, unique, 0, 0)
    await client.delete(GROUPS, unique)
    await uninstalled(client, DEFINITION["metadata"]["name"])


async def scaled(client: KubeClient, replicas: int) -> None:
    scale = {"spec": {"replicas": replicas}}
    await client.patch(TRAINERS, "w", scale, namespace="default", subresource="scale")


async def test_a_kind_is_followed_in_whichever_of_its_versions_is_served(
    station: Standalone, cluster: Cluster, client: KubeClient, unique: str
) -> None:
    """MPIJobs are v1 of one operator and v2beta1 of another, under one name: the one may come in the other's place."""
    [first] = [crd for crd in crds.stand_ins() if crd["metadata"]["name"] == "mpijobs.kubeflow.org"]
    second = copy.deepcopy(first)
    second["spec"]["versions"][0]["name"] = "v2beta1"
    await uninstalled(client, "mpijobs.kubeflow.org")
    try:
        await has_kinds(client, [second])
        await client.create(GROUPS, group(unique, **{"limits.cpu": 4, "count/mpijobs.kubeflow.org": 1}))
        await used(client, unique, 0, 0)
        role = {"template": template()}
        job = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": "w", "namespace": "default", "labels": {LABEL: unique}},
            "spec": {"mpiReplicaSpecs": {"Launcher": role, "Worker": {**role, "replicas": 2}}},
        }
        owner = await client.create(MPIJOBS, job)
        await used(client, unique, 3, 1)
        # Its launcher is a Job: whoever made it is found in this version, too.
        reference = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "w", "controller": True,
                     "uid": owner["metadata"]["uid"]}  # fmt: skip
        launcher = {"apiVersion": "batch/v1", "kind": "Job",
                    "metadata": {"name": unique, "namespace": "default", "labels": {LABEL: unique},
                                 "ownerReferences": [reference]},
                    "spec": {"suspend": True,
                             "template": {"spec": {**template()["spec"], "restartPolicy": "Never"}}}}  # fmt: skip
        await client.create(Resource("batch", "v1", "jobs", "Job"), launcher)
        error = await refusal(client.delete(GROUPS, unique))
        assert "mpijobs.kubeflow.org/default/w" in error.message
        assert "jobs.batch" not in error.message
        await client.delete(Resource("batch", "v1", "jobs", "Job"), unique, "default")
        await client.delete(MPIJOBS, "w", "default")
        await used(client, unique, 0, 0)
        await client.delete(GROUPS, unique)
    finally:
        with contextlib.suppress(NotFound):
            await uninstalled(client, "mpijobs.kubeflow.org")
        await has_kinds(client, [first])


async def test_a_group_that_is_a_namespaces_default_is_deleted_though_kinds_are_not_installed(
    station: Standalone, client: KubeClient, unique: str
) -> None:
    """To ask a kind that nobody installed for its workloads is no error."""
    await client.create(GROUPS, group(unique, cpu="4"))
    await used(client, unique, 0)
    labels = {"name": unique, "labels": {LABEL: unique}}
    namespaces = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
    await client.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": labels})
    await client.delete(GROUPS, unique)


@pytest.mark.real
async def test_a_missing_right_is_said_by_name(real_cluster: Real, tmp_path: Path) -> None:
    """A controller without the right to a kind that its configuration names is not ready, and says why."""
    async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as admin:
        await has_kinds(admin, [*crds.load(), DEFINITION])
        await give_rights(admin, load(None).registry)
        cluster = Cluster(real_cluster.version, real_cluster.kubeconfig)
        config = await kubeconfig_of(admin, cluster, rbac.CONTROLLER, tmp_path)
        made = settings(CONFIGURATION)
        async with KubeClient.from_kubeconfig(config) as client:
            controller = Controller(client, made, identity="without")
            running = asyncio.create_task(controller.run())
            try:
                lack = ("trainers.ml.example.com is not synced yet: ", "is forbidden: User ")

                async def told() -> bool:
                    return controller.unready.count("not synced") == 1 and all(w in controller.unready for w in lack)

                await eventually(told, 60, lambda: controller.unready)
                assert not controller.leading.is_set()
                await give_rights(admin, made.registry)

                async def ready() -> bool:
                    return not controller.unready

                await eventually(ready, 60, lambda: controller.unready)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await uninstalled(admin, DEFINITION["metadata"]["name"])
