"""The table of docs/ownership.md, counted by a running controller: workloads of five pods, one core each.

The cluster has no controllers of its own: each test stores what they would. Bound pods end when the test says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.kube.client import Resource
from bizrq.units.times import format_timestamp
from controller.manager import Controller
from tests.controller.conftest import Books
from tests.controller.usage.test_excess import reference
from tests.support.language import entry
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object, deployment, template

STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
DAY = 86400


class Team:
    """A group of fifty cores, and what its workloads' controllers store."""

    def __init__(self, books: Books) -> None:
        self.books = books

    async def deployment(self, replicas: int = 5, **spec: Any) -> tuple[Object, Object]:
        """Store a Deployment that its controller has observed, and its ReplicaSet."""
        made = deployment("web", "nlp", replicas)
        made["spec"] |= spec
        web = await self.books.create(made)
        below = await self.version("web-1", web)
        return await self.observe(DEPLOYMENTS, "web"), below

    async def version(self, name: str, web: Object, replicas: int = 5, cpu: str = "1") -> Object:
        """Store a ReplicaSet of the Deployment."""
        made = {**deployment(name, None, replicas, cpu=cpu), "kind": "ReplicaSet"}
        made["metadata"] |= {"labels": {"app": "x"}, "ownerReferences": [reference(web)]}
        await self.books.create(made)
        return await self.observe(REPLICASETS, name)

    async def change(self, kind: Resource, name: str, **spec: Any) -> Object:
        return await self.books.client.patch(kind, name, {"spec": spec}, namespace="default")

    async def observe(self, kind: Resource, name: str) -> Object:
        """Write that the object's controller has seen what is stored."""
        stored = await self.books.client.get(kind, name, namespace="default")
        status = {"status": {"observedGeneration": stored["metadata"]["generation"]}}
        return await self.books.client.patch(kind, name, status, namespace="default", subresource="status")

    async def pods(self, prefix: str, owner: Object, number: int, cpu: str = "1", **spec: Any) -> list[str]:
        """Store so many bound pods of an owner and return their names."""
        names = [f"{prefix}-{n}" for n in range(number)]
        for name in names:
            spec = {**template(cpu)["spec"], "nodeName": "n", **spec}
            await self.books.pod(name, owner, **spec)
        return names

    async def delete(self, *names: str) -> None:
        """Delete pods with their grace: their node stops them later."""
        for name in names:
            await self.books.client.delete(PODS, name, "default")

    async def stop(self, *names: str) -> None:
        """End pods that were deleted, as their node does."""
        for name in names:
            await self.books.ends(name)
            await self.books.remove({"kind": "Pod", "metadata": {"name": name, "namespace": "default"}})

    async def uses(self, cpu: str) -> GroupObject:
        return await self.books.uses("nlp", cpu=cpu)

    async def still_uses(self, cpu: str) -> GroupObject:
        await self.uses(cpu)
        return await self.books.holds_still("nlp", lambda g: g.status.used["limits.cpu"] == cpu)


@asynccontextmanager
async def team_of(books: Books) -> AsyncIterator[tuple[Team, Controller]]:
    async with books.controller() as controller:
        await books.group("nlp", cpu="50")
        yield Team(books), controller


def labelled(name: str) -> Object:
    return {**deployment(name, "nlp")["metadata"]}


def overlap(group: GroupObject) -> str:
    return next((c.message for c in group.status.conditions if c.type == "Overlap"), "")


async def test_a_rollout_with_surge_and_the_same_after_ten_minutes(books: Books) -> None:
    async with team_of(books) as (team, controller):
        web, below = await team.deployment()
        await team.pods("old", below, 5)
        books.box.clock.advance(1000)
        newer = await team.version("web-2", web, 2)
        await team.pods("new", newer, 2)
        group = await team.still_uses("5")
        assert (overlap(group), group.status.ending) == ("", [])
        now = int(books.box.clock.now().timestamp() * 1000)
        again = controller._reconciler._usage_cache.of("nlp").again
        assert again is not None
        assert now < again <= now + 600_000
        books.box.clock.advance(600)
        group = await team.uses("7")
        [line] = group.status.ending
        assert line.startswith("deployments.apps/default/web limits.cpu=2 beyond=2 since=20")
        assert "deployments.apps/default/web: pods 2 that a rollout has had for more than ten minutes" in overlap(group)
        assert not [c for c in group.status.conditions if c.type == "Surplus"]


async def test_scaled_to_nothing_and_back_while_the_old_pods_end(books: Books) -> None:
    async with team_of(books) as (team, _):
        _, below = await team.deployment()
        old = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await team.change(kind, name, replicas=0)
        await team.still_uses("5")
        await team.delete(*old)
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await team.observe(kind, name)
        group = await team.still_uses("5")
        end = format_timestamp(int(books.box.clock.now().timestamp() * 1000) + 2 * DAY * 1000)
        [line] = group.status.ending
        assert line.startswith("deployments.apps/default/web limits.cpu=5 ")
        assert " ending=5 since=20" in line
        # `holds_still` moves the clock by milliseconds.
        assert line.rpartition("until=")[2][:-4] == end[:-4]
        assert "pods 5 ending since" in overlap(group)
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await team.change(kind, name, replicas=5)
        await team.pods("new", below, 5)
        await team.uses("10")
        await team.stop(*old)
        group = await team.still_uses("5")
        assert (group.status.ending, overlap(group)) == ([], "")


async def test_a_template_shrunk_under_a_pod_that_is_replaced(books: Books) -> None:
    async with team_of(books) as (team, _):
        web, below = await team.deployment()
        old = await team.pods("old", below, 5)
        await team.uses("5")
        # Its controller adds no pods to what there is.
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
        await team.change(DEPLOYMENTS, "web", template=template("1m"), paused=True, strategy=strategy)
        await team.observe(DEPLOYMENTS, "web")
        newer = await team.version("web-2", web, 1, "1m")
        await team.change(REPLICASETS, "web-1", replicas=4)
        await team.observe(REPLICASETS, "web-1")
        await team.delete(old[0])
        await team.uses("5001m")
        await team.pods("new", newer, 1, "1m")
        await team.still_uses("5001m")
        await team.stop(old[0])
        [line] = (await team.uses("4001m")).status.ending
        assert line.startswith("deployments.apps/default/web limits.cpu=3996m ")
        assert " older=4 since=20" in line


async def test_a_pod_of_a_stateful_set_is_deleted(books: Books) -> None:
    async with team_of(books) as (team, _):
        db = await books.client.create(STATEFULSETS, {**deployment("db", "nlp", 5), "kind": "StatefulSet"})
        await team.observe(STATEFULSETS, "db")
        await team.pods("db", db, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await team.delete("db-0")
        assert (await team.still_uses("5")).status.ending == []


async def test_delete_loops_over_all_pods(books: Books) -> None:
    async with team_of(books) as (team, _):
        _, below = await team.deployment()
        for loop in range(3):
            await team.delete(*await team.pods(f"loop-{loop}", below, 5))
        await team.pods("last", below, 5)
        await team.uses("20")


async def test_a_pod_on_a_lost_node_past_its_grace(books: Books) -> None:
    async with team_of(books) as (team, _):
        _, below = await team.deployment()
        lost, *_ = await team.pods("old", below, 5)
        await team.delete(lost)
        await team.pods("new", below, 1)
        await team.uses("6")
        books.box.clock.advance(3600)
        await team.still_uses("5")


async def test_a_pod_deleted_by_force_is_charged_until_its_node_has_stopped_it(books: Books) -> None:
    async with team_of(books) as (team, _):
        _, below = await team.deployment()
        await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await books.remove({"kind": "Pod", "metadata": {"name": "old-0", "namespace": "default"}})
        await team.uses("6")
        await team.pods("new", below, 1)
        group = await team.still_uses("6")
        assert "pods 1 ending since" in overlap(group)
        books.box.clock.advance(DAY)
        await team.uses("5")


async def test_a_pod_past_its_grace_is_not_charged_again_when_it_is_deleted_by_force(books: Books) -> None:
    """The API server writes the present as its `deletionTimestamp`: the room that a lost node left stays free."""
    async with books.controller():
        spec = {**template()["spec"], "nodeName": "n", "terminationGracePeriodSeconds": 60}
        await books.create({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": labelled("single")})
        await books.group("nlp", cpu="1")
        await books.uses("nlp", cpu="1")
        await books.client.delete(PODS, "single", "default")
        books.box.clock.advance(3600)
        await books.uses("nlp", cpu="0")
        await books.remove({"kind": "Pod", "metadata": {"name": "single", "namespace": "default"}})
        group = await books.holds_still("nlp", lambda group: group.status.used["limits.cpu"] == "0")
        assert not overlap(group)
        assert not await books.events("Drift")


async def test_a_job_is_suspended_and_resumed(books: Books) -> None:
    async with team_of(books) as (team, _):
        spec = {"parallelism": 5, "suspend": False, "template": template()}
        spec["template"]["spec"]["restartPolicy"] = "Never"
        made = {**deployment("train", "nlp"), "apiVersion": "batch/v1", "kind": "Job", "spec": spec}
        train = await books.client.create(JOBS, made)
        old = await team.pods("old", train, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await team.change(JOBS, "train", suspend=True)
        await team.delete(*old)
        await team.still_uses("5")
        await books.until("nlp", lambda g: "pods 5 ending" in overlap(g))
        await team.change(JOBS, "train", suspend=False)
        await team.uses("10")
        await team.stop(*old)
        await team.still_uses("5")


async def test_under_recreate_the_old_pods_are_awaited(books: Books) -> None:
    async with team_of(books) as (team, _):
        web, below = await team.deployment(strategy={"type": "Recreate"})
        old = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.change(DEPLOYMENTS, "web", template={"metadata": {"annotations": {"again": "1"}}})
        await team.observe(DEPLOYMENTS, "web")
        await team.change(REPLICASETS, "web-1", replicas=0)
        await team.observe(REPLICASETS, "web-1")
        await team.delete(*old)
        await team.still_uses("5")
        await team.stop(*old)
        newer = await team.version("web-2", web)
        await team.pods("new", newer, 5)
        await team.still_uses("5")


async def test_a_scale_down_frees_its_room_once_its_pods_have_ended(books: Books) -> None:
    async with team_of(books) as (team, _):
        _, below = await team.deployment()
        old = await team.pods("old", below, 5)
        await team.uses("5")
        await team.change(DEPLOYMENTS, "web", replicas=2)
        # Without the word of the Deployment's controller, nothing is free.
        await team.still_uses("5")
        await team.change(REPLICASETS, "web-1", replicas=2)
        await team.observe(DEPLOYMENTS, "web")
        await team.still_uses("5")
        await team.observe(REPLICASETS, "web-1")
        await team.delete(*old[2:])
        await team.still_uses("5")
        await team.stop(*old[2:])
        await team.uses("2")


async def test_a_bare_pod_and_the_pods_of_a_finished_job_are_charged_while_they_are_live(books: Books) -> None:
    async with team_of(books) as (team, _):
        bare = {"apiVersion": "v1", "kind": "Pod", "spec": {**template()["spec"], "nodeName": "n"}}
        await books.create({**bare, "metadata": labelled("bare")})
        await team.delete("bare")
        await team.still_uses("1")
        books.box.clock.advance(3600)
        await team.uses("0")
        spec = {"parallelism": 1, "template": template()}
        spec["template"]["spec"]["restartPolicy"] = "Never"
        made = {**deployment("train", "nlp"), "apiVersion": "batch/v1", "kind": "Job", "spec": spec}
        train = await books.client.create(JOBS, made)
        [name] = await team.pods("train", train, 1)
        failed = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
        await books.client.patch(JOBS, "train", failed, namespace="default", subresource="status")
        await team.delete(name)
        await team.still_uses("1")
        await team.stop(name)
        await team.uses("0")


async def test_a_replicaset_with_a_label_of_its_own_that_a_smaller_deployment_adopts(books: Books) -> None:
    """Both are charged until it is adopted; then the Deployment is, for all pods that run."""
    async with team_of(books) as (team, _):
        bare = {**deployment("bare", "nlp", 5), "kind": "ReplicaSet"}
        bare["metadata"]["labels"]["app"] = "x"
        await books.create(bare)
        below = await team.observe(REPLICASETS, "bare")
        pods = await team.pods("p", below, 5)
        await team.uses("5")
        web = await books.create(deployment("web", "nlp", 2))
        await team.uses("7")
        adopted = {"metadata": {"ownerReferences": [reference(web)]}}
        await books.client.patch(REPLICASETS, "bare", adopted, namespace="default")
        await team.still_uses("5")
        await team.change(REPLICASETS, "bare", replicas=2)
        await team.observe(REPLICASETS, "bare")
        await team.still_uses("5")
        await team.delete(*pods[2:])
        await team.still_uses("5")
        await team.stop(*pods[2:])
        group = await team.still_uses("2")
        assert (group.status.leftovers, group.status.ending) == ([], [])


async def test_a_replicaset_with_a_label_of_its_own_is_charged_when_its_deployment_goes(books: Books) -> None:
    """It was the Deployment's: it is a leftover, whatever its label says."""
    async with team_of(books) as (team, _):
        web = await books.create(deployment("web", "nlp", 2))
        bare = {**deployment("bare", "vision", 5), "kind": "ReplicaSet"}
        bare["metadata"] |= {"labels": {**bare["metadata"]["labels"], "app": "x"}, "ownerReferences": [reference(web)]}
        await team.pods("p", await books.create(bare), 5)
        await team.uses("5")
        await books.client.patch(REPLICASETS, "bare", {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove(web)
        group = await team.still_uses("5")
        assert [line.split()[0] for line in group.status.leftovers] == ["replicasets.apps/default/bare"]


async def test_what_was_asked_for_before_anybody_counted_it_is_held_until_its_pods_are_seen(books: Books) -> None:
    """A workload is scaled up and to 0 again. Its pods end slowly, and the watch of pods stands still."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        team = Team(books)
        web, below = await team.deployment(0)
        await team.change(REPLICASETS, "web-1", replicas=0)
        await team.observe(REPLICASETS, "web-1")
        await team.uses("0")
        paths = ("/api/v1/pods", "/apis/apps/v1/deployments", "/apis/apps/v1/replicasets")
        for path in paths:
            books.proxy.freeze(path)
        at = web["metadata"]
        promise = entry("deployments.apps/default/web", "cpu=2", of=at["uid"], rv=int(at["resourceVersion"]), gen=1)
        await books.promise("nlp", promise)
        for replicas in (2, 0):
            for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
                await team.change(kind, name, replicas=replicas)
                await team.observe(kind, name)
            if replicas:
                pods = await team.pods("old", below, 2, terminationGracePeriodSeconds=DAY)
        await team.delete(*pods)
        for path in paths[1:]:
            books.proxy.thaw(path)
        found = await team.uses("2")
        assert not found.status.reservations
