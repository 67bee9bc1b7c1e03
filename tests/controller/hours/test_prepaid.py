"""Prepaid hours: the maximum remaining cost of what runs, by the objects' own timestamps."""

from __future__ import annotations

from typing import Any

from bizrq.api.group import GroupObject
from bizrq.store.groups import GROUPS
from tests.controller.conftest import Books
from tests.support.objects import OF_KIND, PODS, Object, deployment, group, raycluster, rayjob, tfjob

HOURS = "cash/requests.nvidia.com/gpu"


def bounded(name: str, workers: int, hours: int) -> Object:
    job = tfjob(name, "vision", workers)
    job["spec"]["runPolicy"] = {"activeDeadlineSeconds": hours * 3600}
    return job


async def safe(books: Books, **cash: Any) -> None:
    made = group("vision", hours="100", gpu="8")
    made["spec"]["cash"] = {"mode": "safe", **cash}
    await books.create(made)


def lien(amount: str) -> Any:
    def holds(found: GroupObject) -> bool:
        cash = found.status.cash
        return cash is not None and cash.liens == ({HOURS: amount} if amount else {})

    return holds


def is_unbounded(found: GroupObject) -> bool:
    return any(c.type == "Unbounded" and c.status == "True" for c in found.status.conditions)


async def test_what_a_job_may_still_cost_shrinks_as_its_hours_are_spent(books: Books) -> None:
    async with books.controller():
        await safe(books)
        await books.until("vision", lien(""))
        job = await books.create(bounded("train", 2, 10))
        await books.until("vision", lien("20"))
        begun = {**job, "status": {"startTime": books.box.clock.stamp()}}
        await books.client.replace(OF_KIND["TFJob"], begun, subresource="status")
        await books.pod("train-0", job)
        await books.pod("train-1", job)
        books.box.clock.advance(3 * 3600)
        found = await books.until("vision", lambda g: lien("14")(g) and g.status.used[HOURS] == "6")
        assert [c.type for c in found.status.conditions if c.type == "Unbounded"] == []
        books.box.clock.advance(8 * 3600)
        await books.until("vision", lien(""))


async def test_pods_a_moment_before_their_job_says_that_it_began_leave_room_for_what_just_fits(books: Books) -> None:
    """It started two seconds before. Spent and committed hours together are exactly ten hours of two cards."""
    async with books.controller():
        await safe(books)
        job = await books.create(bounded("train", 2, 10))
        await books.until("vision", lien("20"))
        await books.pod("train-0", job, since=2)
        await books.pod("train-1", job, since=1)
        begun = {**job, "status": {"startTime": books.box.clock.stamp()}}
        await books.client.replace(OF_KIND["TFJob"], begun, subresource="status")
        books.box.clock.advance(3598)
        await books.until("vision", lambda g: lien("18")(g) and g.status.used[HOURS] == "2")


async def test_each_try_of_a_ray_job_may_take_all_of_its_time(books: Books) -> None:
    """KubeRay counts the time of a retry anew, and has the start of the last run until then."""
    async with books.controller():
        await safe(books)
        job = rayjob("train", "vision", 1)
        job["spec"] |= {"activeDeadlineSeconds": 10 * 3600, "backoffLimit": 2}
        [worker] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        worker["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}
        job = await books.create(job)
        await books.until("vision", lien("30"))
        status = {"jobDeploymentStatus": "Running", "startTime": books.box.clock.stamp()}
        job = await books.client.replace(OF_KIND["RayJob"], {**job, "status": status}, subresource="status")
        cluster = raycluster("train-a", 1, job)
        cluster = await books.create({**cluster, "spec": job["spec"]["rayClusterSpec"]})
        await books.pod("train-0", cluster)
        books.box.clock.advance(3 * 3600)
        await books.until("vision", lambda g: lien("27")(g) and g.status.used[HOURS] == "3")
        status |= {"jobDeploymentStatus": "Retrying", "failed": 1}
        job = await books.client.replace(OF_KIND["RayJob"], {**job, "status": status}, subresource="status")
        await books.ends("train-0")
        await books.until("vision", lien("20"))
        await books.remove(await books.client.get(PODS, "train-0", "default"))
        status |= {"jobDeploymentStatus": "Running", "startTime": books.box.clock.stamp()}
        await books.client.replace(OF_KIND["RayJob"], {**job, "status": status}, subresource="status")
        await books.pod("train-1", cluster)
        books.box.clock.advance(3600)
        await books.until("vision", lambda g: lien("19")(g) and g.status.used[HOURS] == "4")


async def test_what_nothing_bounds_is_told_and_is_taken_to_run_as_long_as_the_group_says(books: Books) -> None:
    async with books.controller():
        await safe(books)
        web = deployment("web", "vision", 2)
        web["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}
        web = await books.create(web)
        found = await books.until("vision", is_unbounded)
        [told] = [c for c in found.status.conditions if c.type == "Unbounded"]
        assert (
            told.message == "no maximum run time, so their card-hours are not guaranteed: deployments.apps/default/web"
        )
        await books.client.patch(GROUPS, "vision", {"spec": {"cash": {"maxRunTime": "12h"}}})
        await books.until("vision", lambda g: lien("24")(g) and not is_unbounded(g))


async def test_what_outlasts_the_maximum_of_its_group_is_told(books: Books) -> None:
    """Nobody ends it: its hours beyond are nobody's."""
    async with books.controller():
        await safe(books, maxRunTime="12h")
        web = {**deployment("web", "vision", 1), "kind": "ReplicaSet"}
        web["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}
        web = await books.create(web)
        await books.pod("web-0", web)
        books.box.clock.advance(11 * 3600)
        await books.until("vision", lambda g: lien("1")(g) and not is_unbounded(g))
        books.box.clock.advance(2 * 3600)
        await books.until("vision", lambda g: lien("")(g) and is_unbounded(g))
