"""What Kubernetes' own controllers leave of a deleted workload stays charged to the group that paid for it.

Nothing is admitted here: the controller counts whatever is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import orjson
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object, deployment, group, template
from tests.support.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS = Resource("batch", "v1", "jobs", "Job")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    async with Parts(cluster, tmp_path_factory.mktemp("leftovers")) as parts:
        await parts.controller(recount_interval=0.5)
        yield parts


class Team:
    """A group of the name of its namespace, and one that others may be tempted to charge."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self.client = client
        self.name = name
        self.other = f"{name}-other"

    async def group(self, name: str = "") -> GroupObject:
        return wire.from_dict(await self.client.get(GROUPS, name or self.name))

    async def shows(self, holds: Callable[[GroupObject], bool]) -> GroupObject:
        last: list[object] = []

        async def shown() -> GroupObject | None:
            found = await self.group()
            last[:] = [found.status]
            return found if holds(found) else None

        found = await eventually(shown, 60, lambda: last)
        assert found is not None
        return found

    async def uses(self, cpu: str) -> GroupObject:
        return await self.shows(lambda g: (g.status.used or {}).get("limits.cpu") == cpu)

    async def leaves(self, cpu: str, *kinds: str) -> None:
        """Wait until so much is used, by leftovers of these kinds alone."""
        found = await self.shows(
            lambda g: (
                [line.partition("/")[0] for line in g.status.leftovers] == [*kinds]
                and (g.status.used or {}).get("limits.cpu") == cpu
            )
        )
        assert (await self.group(self.other)).status.used == {"limits.cpu": "0"}
        said = {c.type: c.message for c in found.status.conditions}
        assert ("Leftovers" in said) == bool(kinds)

    async def all_of(self, resource: Resource, count: int) -> list[Object]:
        async def there() -> list[Object] | None:
            found = (await self.client.list(resource, self.name))[0]
            return found if len(found) == count else None

        found = await eventually(there, 60, f"{count} {resource.plural}")
        assert found is not None
        return found

    async def delete(self, resource: Resource, name: str, policy: str | None) -> None:
        options = {"propagationPolicy": policy} if policy else {}
        await self.client.request("DELETE", resource.path(self.name, name), body=orjson.dumps(options))

    async def ends(self) -> None:
        """Delete all pods."""
        for pod in (await self.client.list(PODS, self.name))[0]:
            await self.client.request(
                "DELETE", PODS.path(self.name, pod["metadata"]["name"]), body=orjson.dumps({"gracePeriodSeconds": 0})
            )
        await self.leaves("0")

    async def web(self) -> Object:
        """Create a Deployment of two pods, and return its ReplicaSet."""
        made = deployment("web", self.name, 2, namespace=self.name)
        # For so long a pod that is deleted by force stays charged.
        made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        await self.client.create(DEPLOYMENTS, made)
        await self.all_of(PODS, 2)
        await self.uses("2")
        return (await self.all_of(REPLICASETS, 1))[0]


@pytest_asyncio.fixture(loop_scope="module")
async def team(parts: Parts, client: KubeClient, namespace: str) -> Team:
    team = Team(client, namespace)
    for name in (team.name, team.other):
        await client.create(GROUPS, group(name, cpu="9"))
    await team.uses("0")
    return team


async def test_an_orphaned_replicaset_and_then_its_orphaned_pods(team: Team) -> None:
    made = await team.web()
    await team.delete(DEPLOYMENTS, "web", "Orphan")
    await team.leaves("2", "replicasets.apps")
    await team.delete(REPLICASETS, made["metadata"]["name"], "Orphan")
    await team.leaves("2", "pods", "pods")
    await team.ends()


async def test_a_replicaset_that_was_labelled_for_another_group_before_it_was_orphaned(team: Team) -> None:
    made = await team.web()
    change = {"metadata": {"labels": {LABEL: team.other}}}
    await team.client.patch(REPLICASETS, made["metadata"]["name"], change, namespace=team.name)
    await team.delete(DEPLOYMENTS, "web", "Orphan")
    await team.leaves("2", "replicasets.apps")
    await team.delete(REPLICASETS, made["metadata"]["name"], "Background")
    await team.leaves("0")


async def test_the_pods_of_a_job_that_is_deleted_without_a_policy(team: Team) -> None:
    spec = {**template("1")["spec"], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    metadata = {"name": "job", "namespace": team.name, "labels": {LABEL: team.name}}
    await team.client.create(
        JOBS,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"parallelism": 2, "template": {"metadata": {"labels": {}}, "spec": spec}},
        },
    )
    await team.all_of(PODS, 2)
    await team.uses("2")
    await team.delete(JOBS, "job", None)
    await team.leaves("2", "pods", "pods")
    await team.ends()


async def test_a_pod_that_is_detached_by_its_labels_and_given_those_of_another_group(team: Team) -> None:
    await team.web()
    pod = (await team.all_of(PODS, 2))[0]["metadata"]["name"]
    change = {"metadata": {"labels": {"app": "mine", LABEL: team.other}, "ownerReferences": None}}
    await team.client.patch(PODS, pod, change, namespace=team.name)
    await team.leaves("3", "pods")
    await team.delete(DEPLOYMENTS, "web", "Background")
    await team.leaves("1", "pods")
    await team.ends()


async def test_pods_that_end_slowly_after_their_workload_is_deleted(team: Team, cluster: Cluster) -> None:
    if cluster.is_real:
        pytest.skip("no kubelet runs there, so a pod has no node and ends at once")
    made = deployment("web", team.name, 2, namespace=team.name)
    made["spec"]["template"]["metadata"]["annotations"] = {"sandbox.bizrq/stop-seconds": "3600"}
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
    await team.client.create(DEPLOYMENTS, made)
    for pod in await team.all_of(PODS, 2):
        await eventually(lambda pod=pod: _is_bound(team, pod), 60, "the pod is bound")
    await team.uses("2")
    await team.delete(DEPLOYMENTS, "web", "Background")
    await team.leaves("2", "pods", "pods")
    for pod in (await team.client.list(PODS, team.name))[0]:
        assert pod["metadata"]["deletionTimestamp"]


async def _is_bound(team: Team, pod: Object) -> bool:
    return "nodeName" in (await team.client.get(PODS, pod["metadata"]["name"], team.name))["spec"]
