"""R11: nine ways round a quota. Each is closed, or what it brings is counted and told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import STRATEGIC
from tests.support.cluster import Cluster, eventually, has_kinds, refusal
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object, deployment, group, template
from tests.support.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: An in-house kind that the API server serves in two versions, of which the configuration declares one. No controller
#: makes its pods, nor takes away what somebody else made for it.
GADGETS = {version: Resource("example.com", version, "gadgets", "Gadget") for version in ("v1", "v1alpha1")}
ADAPTER = {
    "match": {"group": "example.com", "kind": "Gadget", "resource": "gadgets", "versions": ["v1"]},
    "roles": [{"name": "main", "count": [{"path": "spec.replicas", "default": 1}], "template": ["spec.template"]}],
    "creates": ["/Pod"],
}
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
GADGET_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "listKind": "GadgetList", "plural": "gadgets", "singular": "gadget"},
        "versions": [
            {
                "name": name,
                "served": True,
                "storage": name == "v1",
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN}}},
            }
            for name in GADGETS
        ],
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """bizrq with the in-house kind in its configuration."""
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        await has_kinds(client, [GADGET_CRD])
    async with Parts(cluster, tmp_path_factory.mktemp("ways"), adapters=[ADAPTER]) as parts:
        await parts.webhooks()
        await parts.controller(recount_interval=parts.often)
        await parts.register()
        yield parts


class Team:
    """A group of four cores and the namespace in which somebody tries to get more."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self.client = client
        self.name = name

    def deployment(self, replicas: int, *, template_group: str | None = None) -> Object:
        made = deployment("web", self.name, replicas, namespace=self.name)
        if template_group:
            made["spec"]["template"]["metadata"]["labels"][LABEL] = template_group
        return made

    def gadget(self, name: str, replicas: int, version: str = "v1") -> Object:
        made = deployment(name, self.name, replicas, namespace=self.name)
        return {**made, "apiVersion": f"example.com/{version}", "kind": "Gadget"}

    async def owner(self, replicas: int) -> Object:
        """A stored workload whose pods somebody else makes."""
        return await self.client.create(GADGETS["v1"], self.gadget("own", replicas))

    def pod(self, name: str, group: str | None, owner: Object | None = None, cpu: str = "1") -> Object:
        metadata: Object = {"name": name, "namespace": self.name, "labels": {LABEL: group} if group else {}}
        if owner is not None:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(cpu)["spec"]}

    async def pods(self, resource: Resource, obj: Object, count: int) -> list[Object]:
        """The pods of a workload once there are so many."""
        await self.client.create(resource, obj)

        async def made() -> list[Object]:
            found = (await self.client.list(PODS, self.name))[0]
            return found if len(found) >= count else []

        return await eventually(made, 60, "its pods")

    async def read(self) -> GroupObject:
        return wire.from_dict(await self.client.get(GROUPS, self.name))

    async def uses(self, cpu: str) -> GroupObject:
        """The group once so much is used and nothing is promised."""
        last: list[object] = []

        async def settled() -> GroupObject | None:
            found = await self.read()
            last[:] = [found.status]
            return (
                found if (found.status.used or {}).get("limits.cpu") == cpu and not found.status.reservations else None
            )

        found = await eventually(settled, 60, lambda: last)
        assert found is not None
        return found

    async def told(self, kind: str) -> str:
        """What a true condition of this type says."""

        async def said() -> str:
            conditions = (await self.read()).status.conditions
            return next((c.message for c in conditions if c.type == kind and c.status == "True"), "")

        return await eventually(said, 60, f"the condition {kind}")

    async def delete(self, resource: Resource, name: str, policy: str | None) -> None:
        options = {"propagationPolicy": policy} if policy else {}
        await self.client.request("DELETE", resource.path(self.name, name), body=orjson.dumps(options))


@pytest_asyncio.fixture(loop_scope="module")
async def team(parts: Parts, client: KubeClient, namespace: str) -> Team:
    await client.create(GROUPS, group(namespace, cpu="4"))
    team = Team(client, namespace)
    await team.uses("0")
    return team


# Orphaned pods.


async def test_orphans_without_a_label_stay_charged_to_the_group_that_paid(team: Team) -> None:
    await team.pods(DEPLOYMENTS, team.deployment(2), 2)
    await team.uses("2")
    await team.delete(DEPLOYMENTS, "web", "Orphan")
    await team.uses("2")
    [left] = (await team.client.list(REPLICASETS, team.name))[0]
    await team.delete(REPLICASETS, left["metadata"]["name"], "Background")
    await team.uses("0")


async def test_the_pods_of_a_job_that_is_deleted_by_saying_nothing_are_counted_and_told(team: Team) -> None:
    """The API server leaves the pods of a batch/v1 Job behind unless somebody says otherwise."""
    jobs = Resource("batch", "v1", "jobs", "Job")
    pods = template("1")["spec"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": team.name, "labels": {LABEL: team.name}},
        "spec": {
            "parallelism": 2,
            "template": {"metadata": {"labels": {}}, "spec": {**pods, "restartPolicy": "Never"}},
        },
    }
    made = await team.pods(jobs, job, 2)
    await team.uses("2")
    await team.delete(jobs, "job", None)
    assert f"pods/{team.name}/" in await team.told("Leftovers")
    await team.uses("2")
    for pod in made:
        await team.delete(PODS, pod["metadata"]["name"], None)
    await team.uses("0")


async def test_orphans_that_have_the_label_pay_for_themselves(team: Team) -> None:
    """The garbage collector is not refused though both would not fit beside each other."""
    await team.pods(DEPLOYMENTS, team.deployment(3, template_group=team.name), 3)
    await team.delete(DEPLOYMENTS, "web", "Orphan")
    await team.uses("3")

    async def gone() -> bool:
        return not (await team.client.list(DEPLOYMENTS, team.name))[0]

    await eventually(gone, 60, "the Deployment is gone")
    await team.uses("3")
    [left] = (await team.client.list(REPLICASETS, team.name))[0]
    assert "ownerReferences" not in left["metadata"]


# A detached pod.


async def test_a_pod_that_is_detached_is_counted_and_told_though_nothing_names_its_group(team: Team) -> None:
    owner = await team.owner(2)
    await team.client.create(PODS, team.pod("w", None, owner))
    await team.uses("2")
    await detach(team, "w")
    await team.uses("3")
    assert f"pods/{team.name}/w" in await team.told("Leftovers")
    await team.delete(PODS, "w", None)
    await team.uses("2")


async def test_a_pod_that_is_detached_with_its_label_is_a_workload_that_has_to_fit(team: Team) -> None:
    owner = await team.owner(4)
    await team.client.create(PODS, team.pod("w", team.name, owner))
    await team.uses("4")
    assert "exceeded quota" in (await refusal(detach(team, "w"))).message


async def detach(team: Team, name: str) -> None:
    """As a controller does whose selector matches no more."""
    change = {"metadata": {"ownerReferences": None, "labels": {"app": "mine"}}}
    await team.client.patch(PODS, name, change, namespace=team.name)


# A large surge.


def of_surge(most: int) -> Object:
    return {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": most}}}}


async def test_a_surge_beyond_the_replicas_is_charged_before_a_paused_rollout_can_use_it(team: Team) -> None:
    """A paused rollout is scaled up to its replicas and its surge together."""

    async def patch(change: Object) -> None:
        await team.client.patch(DEPLOYMENTS, "web", change, namespace=team.name)

    async def live() -> int:
        found = (await team.client.list(PODS, team.name))[0]
        return sum(1 for pod in found if "deletionTimestamp" not in pod["metadata"])

    await team.pods(DEPLOYMENTS, team.deployment(1), 1)
    assert "199 of the 200 pods of main are surge" in (await refusal(patch(of_surge(200)))).message
    await patch(of_surge(3))
    await team.uses("3")
    container = {"name": "main", "image": "other", "resources": template("1")["spec"]["containers"][0]["resources"]}
    await patch({"spec": {"template": {"spec": {"containers": [container]}}}})
    await patch({"spec": {"paused": True}})
    assert "exceeded quota" in (await refusal(patch({"spec": {"replicas": 5}}))).message
    await patch({"spec": {"replicas": 2}})
    await team.uses("3")
    # Two pods may be free.
    assert await live() <= 5
    await patch({"spec": {"paused": False, **of_surge(1)["spec"]}})
    await team.uses("2")


# A bare pod, a forged owner, /scale, no limits given.


async def test_a_bare_pod_is_a_workload(team: Team) -> None:
    assert "exceeded quota" in (await refusal(team.client.create(PODS, team.pod("p", team.name, cpu="5")))).message
    await team.client.create(PODS, team.pod("p", team.name, cpu="4"))
    await team.uses("4")


async def test_a_forged_owner_pays_no_more_than_it_is_charged_for(team: Team) -> None:
    owner = await team.owner(1)
    await team.uses("1")
    forged = team.pod("forged", team.name, owner, cpu="5")
    assert "exceeded quota" in (await refusal(team.client.create(PODS, forged))).message
    await team.client.create(PODS, team.pod("small", team.name, owner, cpu="3"))
    await team.uses("3")
    assert "asks for more than it does" in await team.told("Surplus")


async def test_a_forged_owner_of_a_pod_without_a_label_is_reviewed_counted_and_told(team: Team) -> None:
    """The group of the owner pays for what its owner is not charged for, as far as that fits."""
    owner = await team.owner(1)
    await team.client.create(PODS, team.pod("w", None, owner, cpu="3"))
    await team.uses("3")
    assert f"gadgets.example.com/{team.name}/own" in await team.told("Surplus")
    refused = await refusal(team.client.create(PODS, team.pod("forged", None, owner, cpu="3")))
    assert "exceeded quota" in refused.message
    await team.delete(PODS, "w", None)
    await team.uses("1")


async def test_scaling_is_charged_and_the_largest_count_that_fits_is_named(team: Team) -> None:
    await team.client.create(DEPLOYMENTS, team.deployment(1))
    await team.uses("1")
    scaled = team.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 9}}, namespace=team.name, subresource="scale")
    assert "; left: limits.cpu=3; fits: 3 more replicas; run: kubectl bizrq " in (await refusal(scaled)).message


async def test_limits_that_hard_has_to_know_must_be_given(team: Team) -> None:
    silent = team.deployment(1)
    del silent["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert "must specify limits.cpu for: c" in (await refusal(team.client.create(DEPLOYMENTS, silent))).message


# pods/resize.


@pytest.mark.parametrize("label", [True, False], ids=["labelled", "unlabelled"])
async def test_a_pod_that_is_resized_is_charged_whoever_pays_for_it(team: Team, label: bool) -> None:
    """The workload's own object says nothing of it."""
    group = team.name if label else None
    pods = await team.pods(DEPLOYMENTS, team.deployment(2, template_group=group), 2)
    await team.uses("2")
    name = pods[0]["metadata"]["name"]
    assert "exceeded quota" in (await refusal(resize(team, name, "5"))).message
    await resize(team, name, "3")
    await team.uses("4")
    assert "asks for more than it does: limits.cpu=2" in await team.told("Surplus")
    await resize(team, name, "1")
    await team.uses("2")


async def resize(team: Team, name: str, cpu: str) -> None:
    change = {"spec": {"containers": [{"name": "c", "resources": {k: {"cpu": cpu} for k in ("limits", "requests")}}]}}
    await team.client.patch(PODS, name, change, namespace=team.name, subresource="resize", content_type=STRATEGIC)


# Another group's label, another API version.


async def test_a_label_of_a_group_that_is_not_there_is_refused(team: Team) -> None:
    stranger = deployment("web", "nobody", 1, namespace=team.name)
    assert "quota nobody does not exist" in (await refusal(team.client.create(DEPLOYMENTS, stranger))).message


async def test_a_template_names_no_other_group_than_its_workload(team: Team) -> None:
    """What it makes would be read as another's."""
    error = await refusal(team.client.create(DEPLOYMENTS, team.deployment(1, template_group="other")))
    assert "names the group 'other', but the Deployment is charged to" in error.message


async def test_a_move_to_another_group_has_to_fit_there(team: Team, client: KubeClient, unique: str) -> None:
    other = f"{team.name}-{unique}"
    await client.create(GROUPS, group(other, cpu="1"))
    await client.create(DEPLOYMENTS, team.deployment(2))
    await team.uses("2")
    moved: Any = {"metadata": {"labels": {LABEL: other}}}
    assert (
        f"exceeded quota: {other}"
        in (await refusal(client.patch(DEPLOYMENTS, "web", moved, namespace=team.name))).message
    )


@pytest.mark.parametrize("version", list(GADGETS))
async def test_every_version_that_is_served_is_charged(team: Team, version: str) -> None:
    """matchPolicy Equivalent: the API server converts what it asks about."""
    assert (
        "exceeded quota"
        in (await refusal(team.client.create(GADGETS[version], team.gadget("big", 5, version)))).message
    )
    await team.client.create(GADGETS[version], team.gadget("fits", 4, version))
    await team.uses("4")
