"""The status of a group: counted from what is stored, with drift reported, and unknown where it must be."""

from __future__ import annotations

import asyncio

from aiohttp import web
from structlog.testing import capture_logs

from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient
from bizrq.kube.packed import PackedObject
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.support.objects import DEPLOYMENTS, deployment, group, rollout, tfjob

WATCH_OF_DEPLOYMENTS = "/apis/apps/v1/deployments"


def over(group: GroupObject) -> str:
    return {c.type: c.status for c in group.status.conditions}.get("OverQuota", "Unknown")


async def test_used_is_selfused_and_what_the_children_hold(books: Books) -> None:
    """Usage is counted at every level, and again after every change."""
    async with books.controller():
        await books.group("corp", cpu="100")
        await books.group("ai", "corp", cpu="60")
        await books.group("nlp", "ai", cpu="10")
        await books.create(deployment("web", "ai", 5))
        await books.create(rollout("web", "nlp", 3))
        await books.uses("nlp", cpu="3")
        ai = await books.uses("ai", cpu="15")
        assert ai.status.self_used == {"limits.cpu": "5"}
        await books.uses("corp", cpu="60")
        await books.client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": "20"}}})
        await books.uses("ai", cpu="25")
        await books.remove(group("nlp"))
        await books.uses("ai", cpu="5")


async def test_what_was_stored_without_being_admitted_is_counted_and_told(books: Books) -> None:
    """Objects stored while the webhook was not registered give drift, an event, and a correct status.

    The log names those that have grown.
    """
    with capture_logs() as lines:
        await _stores_unadmitted(books)
    [drift] = [line for line in lines if line["event"] == "drift"]
    uid = (await books.client.get(DEPLOYMENTS, "web", "default"))["metadata"]["uid"]
    assert drift["changes"] == [f"deployments.apps/default/web {uid}: nothing to limits.cpu=12"]


async def _stores_unadmitted(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 12))
        found = await books.uses("nlp", cpu="12")
        assert over(found) == "True"
        assert await books.told("Drift") == "stored without being admitted: limits.cpu; the controller's log says more"
        assert "limits.cpu=2" in await books.says("nlp", "OverQuota")
        assert (await books.told("OverQuota")).startswith("over quota: limits.cpu; ")


async def test_large_workloads_are_counted_and_move_as_others_do(books: Books) -> None:
    """They are packed in memory (`bizrq.kube.packed`)."""
    large = deployment("web", "nlp", 4)
    large["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": f"A{i}"} for i in range(20_000)]
    async with books.controller() as controller:
        await books.group("nlp", cpu="10")
        await books.group("vision", cpu="10")
        stored = await books.create(large)
        await books.uses("nlp", cpu="4")
        held = [each.store.kept(stored["metadata"]["uid"]) for each in controller.cluster.informers.kinds.values()]
        assert [type(each) for each in held if each is not None] == [PackedObject]
        await books.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 6}}, namespace="default")
        await books.uses("nlp", cpu="6")
        await books.client.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
        await books.uses("vision", cpu="6")
        await books.uses("nlp", cpu="0")
        await books.remove(large)
        await books.uses("vision", cpu="0")


async def test_a_status_that_somebody_deleted_is_counted_again(books: Books) -> None:
    """R20: a deleted status comes back with the same `used`."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        await books.rewrite("nlp", {})
        found = await books.uses("nlp", cpu="4")
        assert found.status.counted_at["deployments.apps"]


async def test_a_status_that_cannot_be_read_is_counted_from_nothing(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        await books.rewrite("nlp", {"used": {"limits.cpu": "lots"}})
        await books.uses("nlp", cpu="4")


async def test_a_status_from_a_later_revision_than_the_servers_is_unknown_first(books: Books) -> None:
    """After etcd is restored, what was counted may never have existed. `used` is removed, then recounted."""
    seen = []
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")

        async def watch() -> None:
            version = (await books.read("nlp")).metadata.resource_version
            async for kind, obj in books.client.watch(GROUPS, resource_version=version):
                if kind == "MODIFIED":
                    seen.append(obj.get("status", {}))

        watching = asyncio.create_task(watch())
        try:
            await books.rewrite("nlp", {"countedAt": {"deployments.apps": "999999999"}})
            await books.until("nlp", lambda g: "999999999" not in g.status.counted_at.values() and g.status.used)
            restored = [status for status in seen if "used" not in status]
            assert restored, "was never unknown"
            assert any(c["reason"] == "Restored" for c in restored[0]["conditions"])
            await books.uses("nlp", cpu="4")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_a_restored_store_is_told_of_where_the_watch_does_not_show_what_is_stored(books: Books) -> None:
    """Another writer comes first, and the watch shows nothing of that."""
    written = []

    async def write_before(request: web.Request) -> None:
        if not written and request.method == "PUT" and b'"Restored"' in await request.read():
            written.append(True)
            books.proxy.freeze(GROUPS.path())
            await books.rewrite("nlp", {"observedGeneration": 7})

    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        books.box.faults.append(write_before)
        await books.rewrite("nlp", {"countedAt": {"deployments.apps": "999999999"}})
        await books.until("nlp", lambda g: "999999999" not in g.status.counted_at.values() and g.status.used)
    assert written, "nobody came first"


async def test_a_count_newer_than_our_watch_is_not_overwritten_by_an_older_one(books: Books) -> None:
    """A controller catches up with a status that another one counted from newer versions, without watch events."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        books.proxy.freeze(WATCH_OF_DEPLOYMENTS)
        web = await books.create(deployment("web", "nlp", 4))
        version = web["metadata"]["resourceVersion"]
        before = await books.read("nlp")
        counted = {**before.status.counted_at, "deployments.apps": version}
        await books.rewrite("nlp", {"used": {"limits.cpu": "4"}, "selfUsed": {"limits.cpu": "4"}, "countedAt": counted})
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"}, 2)


async def test_hard_lowered_below_used_is_told_and_the_parent_goes_on_holding(books: Books) -> None:
    async with books.controller():
        await books.group("corp", cpu="100")
        await books.group("ai", "corp", cpu="60")
        await books.create(deployment("web", "ai", 40))
        # Its controller acts at once.
        acted = {"status": {"observedGeneration": 99}}
        await books.client.patch(DEPLOYMENTS, "web", acted, namespace="default", subresource="status")
        await books.uses("ai", cpu="40")
        await books.uses("corp", cpu="60")
        await books.client.patch(GROUPS, "ai", {"spec": {"hard": {"limits.cpu": "30"}}})
        found = await books.until(
            "ai", lambda g: any(c.type == "OverQuota" and c.status == "True" for c in g.status.conditions)
        )
        assert (found.status.hard, found.status.used) == ({"limits.cpu": "30"}, {"limits.cpu": "40"})
        assert "limits.cpu=10" in await books.says("ai", "OverQuota")
        await books.uses("corp", cpu="40")
        await books.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 20}}, namespace="default")
        await books.uses("corp", cpu="30")
        await books.until(
            "ai", lambda g: any(c.type == "OverQuota" and c.status == "False" for c in g.status.conditions)
        )
        assert len(await books.events("OverQuota")) == 1


async def test_a_name_that_is_added_to_hard_is_counted_with_what_is_there(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(tfjob("train", "nlp", 3))
        await books.uses("nlp", cpu="3")
        await books.client.patch(GROUPS, "nlp", {"spec": {"hard": {"requests.nvidia.com/gpu": "8"}}})
        await books.uses("nlp", cpu="3", gpu="3")


async def test_what_cannot_be_counted_is_told_and_does_not_hold_up_the_rest(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(rollout("bad", "nlp", 1, cpu="abc"))
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        assert "rollouts.argoproj.io/default/bad" in await books.says("nlp", "Uncountable")


async def test_a_surge_that_cannot_be_read_is_counted_at_its_largest_and_told(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="100")
        bad = rollout("bad", "nlp", 2)
        bad["spec"]["strategy"] = {"canary": {"maxSurge": "at most 30"}}
        await books.create(bad)
        await books.uses("nlp", cpu="30")
        told = await books.says("nlp", "CountedAtMost")
        assert "rollouts.argoproj.io/default/bad: spec.strategy.canary.maxSurge: must be a whole number" in told


async def test_a_hard_that_cannot_be_read_makes_the_group_not_ready_and_nothing_crashes(books: Books) -> None:
    """An unreadable group was stored while the webhook was away; CEL does not know our resource names."""
    async with books.controller():
        await books.create(group("bad", **{"requests.nvidia.com/gpux": "1"}))
        found = await books.until("bad", lambda g: g.status.conditions)
        ready, enforced = found.status.conditions
        assert (enforced.type, enforced.status) == ("Enforced", "False"), "no webhook is registered here"
        assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "Unreadable")
        assert "did you mean requests.nvidia.com/gpu" in ready.message
        await books.group("good", cpu="1")


async def test_workloads_come_and_go_while_nobody_counts_and_are_right_at_the_next_start(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="100")
        web = await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
    await books.remove(web)
    for number in range(5):
        await books.create(deployment(f"new{number}", "nlp", 3))
    async with books.controller():
        await books.uses("nlp", cpu="15")


async def test_a_status_write_that_meets_a_conflict_is_counted_again_on_what_is_there(books: Books) -> None:
    """Each change is counted soon although another writer updates the status as often as admission may."""
    stop = asyncio.Event()

    async def busy(client: KubeClient) -> int:
        number = 0
        while not stop.is_set():
            number += 1
            await books.rewrite("nlp", {"observedGeneration": number})
            await asyncio.sleep(0.05)
        return number

    async with books.controller():
        await books.group("nlp", cpu="100")
        writing = asyncio.create_task(busy(books.client))
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        stop.set()
        assert await writing


async def test_a_status_is_written_upon_what_is_stored_where_the_watch_does_not_show_that(books: Books) -> None:
    """Otherwise each write upon the version that the watch shows meets a conflict."""
    async with books.controller():
        await books.group("nlp", cpu="100")
        books.proxy.freeze(GROUPS.path())
        await books.rewrite("nlp", {"observedGeneration": 7})
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")


async def test_one_of_two_controllers_works_and_the_other_takes_over(books: Books) -> None:
    """The controller releases the Lease when it stops, so that the next need not wait for its expiry."""
    async with books.controller() as first:
        await books.group("nlp", cpu="10")
        assert first.leading.is_set()
    async with books.controller():
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
