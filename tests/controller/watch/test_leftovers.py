"""What a workload leaves behind is charged to the group that paid, by any controller, until it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from bizrq.api import payers as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import Conflict, NotFound, Resource
from bizrq.store.payers import PAYERS
from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership import pages
from bizrq.workloads.ownership.memory import Memory, leaving_parts, parse_payers
from controller.watch import remembered
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.language import entry
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, TFJOBS, Object, deployment, tfjob

STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")


@pytest.fixture(params=[remembered.ROOM, 0], ids=["in the status", "in the record"], autouse=True)
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many lines a status has room for: with none, each goes to a page of the record."""
    monkeypatch.setattr(remembered, "ROOM", request.param)
    return request.param


async def stored_lines(books: Books, room: int, group: str = "nlp") -> list[str]:
    """Return the lines of the group's status, or of the first page of its record."""
    if room:
        return (await books.read(group)).status.payers
    try:
        return wire.from_dict(await books.client.get(PAYERS, group)).status.payers
    except NotFound:
        return []


async def payers(books: Books, room: int, group: str = "nlp") -> dict[str, Memory]:
    """Return what the group remembers in its status, or on the first page of its record, by uid."""
    return parse_payers(group, await stored_lines(books, room, group))


async def rewrite_payers(books: Books, room: int, lines: list[str]) -> None:
    if room:
        await books.rewrite("nlp", {"payers": lines})
        return
    while True:
        stored = await books.client.get(PAYERS, "nlp")
        stored["status"]["payers"] = lines
        try:
            await books.client.replace(PAYERS, stored, subresource="status")
        except Conflict:
            continue
        return


def condition(group: GroupObject, kind: str) -> str:
    return next((c.message for c in group.status.conditions if c.type == kind), "")


async def team(books: Books, **hard: Any) -> Object:
    """A group with a TFJob of one worker, and its pod."""
    await books.group("nlp", **{"cpu": "9", **hard})
    job = await books.create(tfjob("train", "nlp", 1, gpu=0))
    await books.pod("w", job, gpu=0)
    await books.uses("nlp", cpu="1")
    return job


async def test_a_payer_is_stored_with_its_group_as_the_owner(books: Books, room: int) -> None:
    async with books.controller():
        job = await team(books)
        [(uid, line)] = (await payers(books, room)).items()
        assert (uid, line.place, line.gone) == (job["metadata"]["uid"], "TFJob/default/train", None)
    group = await books.read("nlp")
    if room:
        assert group.status.payers_pages == 0
        return
    stored = wire.from_dict(await books.client.get(PAYERS, "nlp"))
    assert stored.group_uid == group.metadata.uid
    assert [owner.uid for owner in stored.metadata.owner_references] == [group.metadata.uid]
    assert group.status.payers_pages == 1


async def test_a_status_counts_nothing_whose_payer_could_not_be_stored(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "ROOM", 0)
    async with books.controller():
        await books.group("nlp", cpu="9")
        denied = []

        async def deny(request: Any) -> Any:
            if request.path.startswith("/apis/quota.biz.group/v1alpha1/bizgrouppayers") and request.method in (
                "POST",
                "PUT",
            ):
                denied.append(request.path)
                return web.json_response({"kind": "Status", "code": 500, "reason": "InternalError"}, status=500)
            return None

        books.box.faults.append(deny)
        await books.create(tfjob("train", "nlp", 1, gpu=0))
        await eventually(lambda: _true(len(denied) >= 3), 60, "three attempts")
        assert (await books.read("nlp")).status.used == {"limits.cpu": "0"}
        books.box.faults.remove(deny)
        await books.uses("nlp", cpu="1")


async def _true(value: bool) -> bool:
    return value


async def test_the_pods_of_a_deleted_workload_are_charged_until_they_end(books: Books) -> None:
    async with books.controller():
        job = await team(books)
        await books.remove(job)
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "1"}
        [line] = found.status.leftovers
        assert line.startswith("pods/default/w TFJob/default/train since=2026-01-01T00:00:00.000Z ")
        assert "limits.cpu=1" in line
        assert line in condition(found, "Leftovers")
        assert line in await books.says("nlp", "Leftovers")
        await books.ends("w")
        found = await books.uses("nlp", cpu="0")


async def test_every_later_controller_knows_what_is_left(books: Books, room: int) -> None:
    async with books.controller():
        job = await team(books)
        await books.remove(job)
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        await eventually(lambda: _gone(books, room, job), 60, "the record says that the payer is gone")
    for _ in range(2):
        async with books.controller():
            found = await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
            assert [each.split()[0] for each in found.status.leftovers] == ["pods/default/w"]


async def _gone(books: Books, room: int, payer: Object) -> bool:
    line = (await payers(books, room)).get(payer["metadata"]["uid"])
    return line is not None and line.gone is not None


async def test_a_workload_that_is_deleted_while_no_controller_runs_leaves_its_pods_to_its_group(books: Books) -> None:
    async with books.controller():
        job = await team(books)
    await books.remove(job)
    async with books.controller():
        found = await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
        assert [each.split()[0] for each in found.status.leftovers] == ["pods/default/w"]


async def test_a_released_pod_stays_charged_whatever_its_label_says(books: Books) -> None:
    async with books.controller():
        await books.group("vision", cpu="9")
        await team(books)
        change = {"metadata": {"ownerReferences": None, "labels": {LABEL: "vision"}}}
        await books.client.patch(PODS, "w", change, namespace="default")
        await books.uses("nlp", cpu="2")
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await books.holds_still("vision", lambda g: g.status.used == {"limits.cpu": "0"})
        await books.client.delete(PODS, "w", "default")
        await books.uses("nlp", cpu="1")


async def test_a_replicaset_that_is_orphaned_while_no_controller_runs_is_a_leftover(books: Books, room: int) -> None:
    """And its pods are too, once it is gone itself."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        web = await books.create(deployment("web", "nlp", 2))
        made = {**deployment("web-1", None, 2), "kind": "ReplicaSet"}
        made["metadata"]["labels"] = {"app": "x"}
        made["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": "web",
                "uid": web["metadata"]["uid"],
                "controller": True,
            }
        ]
        replicas = await books.client.create(REPLICASETS, made)
        await _labelled_pod(books, "p", replicas)
        await eventually(lambda: _knows(books, room, replicas), 60, "the ReplicaSet is remembered")
    await books.client.patch(REPLICASETS, "web-1", {"metadata": {"ownerReferences": None}}, namespace="default")
    await books.remove(web)
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert [each.split()[:2] for each in found.status.leftovers] == [
            ["replicasets.apps/default/web-1", "Deployment/default/web"]
        ]
        assert found.status.used == {"limits.cpu": "2"}, "it counts what it asks for"
        await books.remove(replicas)
        found = await books.uses("nlp", cpu="1")
        assert [each.split()[0] for each in found.status.leftovers] == ["pods/default/p"]


async def _labelled_pod(books: Books, name: str, owner: Object) -> None:
    await books.pod(name, owner, gpu=0)
    await books.client.patch(PODS, name, {"metadata": {"labels": {"app": "x"}}}, namespace="default")


async def _knows(books: Books, room: int, payer: Object) -> bool:
    return payer["metadata"]["uid"] in await payers(books, room)


@pytest.mark.parametrize("late", [0, 5], ids=["at once", "late"])
async def test_what_a_new_workload_of_the_same_name_will_adopt_counts_once(books: Books, late: int) -> None:
    """As where a Deployment is deleted with its ReplicaSet left, and created anew. The controller may see that late."""

    def now() -> int:
        return int((books.box.clock.now().timestamp() + late) * 1000)

    async with books.controller(now=now):
        await books.group("nlp", cpu="2")
        web = await books.create(deployment("web", "nlp", 2))
        made = {**deployment("web-1", None, 2), "kind": "ReplicaSet"}
        made["metadata"] |= {"labels": {"app": "x"}}
        made["metadata"]["ownerReferences"] = [_controller(web)]
        await books.client.create(REPLICASETS, made)
        await books.uses("nlp", cpu="2")
        await books.client.patch(REPLICASETS, "web-1", {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove(web)
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        again = await books.create(deployment("web", "nlp", 2))
        await books.until("nlp", lambda g: not g.status.leftovers)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        assert not await books.events("OverQuota")
        await books.remove(again)
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "2"}


async def test_what_a_workload_may_adopt_is_left_as_soon_as_the_workload_is_being_deleted(
    books: Books, room: int
) -> None:
    """Only the deletion is seen: no look from scratch comes in time."""
    async with books.controller(recount_interval=300):
        await books.group("nlp", cpu="9")
        made = {**deployment("web", "nlp", 1), "kind": "ReplicaSet"}
        made["metadata"]["finalizers"] = ["example.com/mine"]
        web = await books.create(made)
        pod = await books.pod("w", web, gpu=0)
        await books.uses("nlp", cpu="1")
        await books.client.patch(PODS, "w", {"metadata": {"ownerReferences": None}}, namespace="default")

        async def is_released() -> bool:
            return pod["metadata"]["uid"] in await payers(books, room)

        await eventually(is_released, 60, "the record has the pod")
        assert not (await books.read("nlp")).status.leftovers
        await books.client.delete(REPLICASETS, "web", "default")
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "2"}
        await books.client.patch(REPLICASETS, "web", {"metadata": {"finalizers": None}}, namespace="default")
        await books.uses("nlp", cpu="1")


def _controller(owner: Object) -> Object:
    metadata = owner["metadata"]
    named = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**named, "controller": True}


async def long_gone(books: Books) -> Object:
    """A Job of nlp that went a minute ago and left a pod, and another group."""
    await books.group("vision", cpu="9")
    job = await team(books)
    await books.remove(job)
    await books.until("nlp", lambda g: bool(g.status.leftovers))
    books.box.clock.advance(60)
    return job


async def test_what_is_made_below_an_owner_that_is_long_gone_pays_for_itself(books: Books) -> None:
    async with books.controller():
        job = await long_gone(books)
        job["spec"].setdefault("template", {})["metadata"] = {"labels": {LABEL: "vision"}}
        await books.pod("late", job, gpu=0)
        await books.uses("vision", cpu="1")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})


async def test_what_a_controller_makes_long_after_its_owner_went_is_left(books: Books) -> None:
    async with books.controller():
        job = await long_gone(books)
        await books.pod("late", job, gpu=0)
        await books.uses("nlp", cpu="2")
        await books.client.patch(PODS, "late", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await books.uses("vision", cpu="0")


async def test_what_its_owner_would_not_keep_pays_for_itself_until_it_would(books: Books) -> None:
    """A Deployment's controller adopts what its selector matches, and releases the rest."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.group("vision", cpu="9")
        owner = await books.create(deployment("web", "nlp", 2))
        child = deployment("other", "vision", 1)
        child["metadata"]["ownerReferences"] = [_controller(owner)]
        await books.create({**child, "kind": "ReplicaSet"})
        await books.uses("nlp", cpu="2")
        await books.uses("vision", cpu="1")
        await books.client.patch(REPLICASETS, "other", {"metadata": {"labels": {"app": "x"}}}, namespace="default")
        await books.uses("vision", cpu="0")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_what_names_an_owner_that_never_was_pays_for_itself_by_its_namespace(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.client.patch(NAMESPACES, "default", {"metadata": {"labels": {LABEL: "nlp"}}})
        invented = {**tfjob("never", "nlp", 1, gpu=0), "apiVersion": "apps/v1", "kind": "ReplicaSet"}
        invented["metadata"]["uid"] = "b6cf1b2e-0000-4000-8000-000000000000"
        await books.pod("w", invented, gpu=0)
        await books.uses("nlp", cpu="1")


async def test_what_left_nothing_is_looked_at_again_once_a_pod_names_it(books: Books, room: int) -> None:
    """A busy group deletes thousands of workloads that had no pods yet: no recount asks for each of them again."""
    async with books.controller(recount_interval=60) as controller:
        await books.group("nlp", cpu="9")
        known, uid = controller.cluster.payers, "b6cf1b2e-0000-4000-8000-000000000000"
        job = tfjob("train", "nlp", 1, gpu=0)
        job["metadata"]["uid"] = uid
        now = int(books.box.clock.now().timestamp() * 1000)
        known.remember(uid, Memory("nlp", "TFJob/default/train", now, now))
        assert uid in known.undecided("nlp")
        controller.queue.add("nlp")

        async def is_set_aside() -> bool:
            return not known.undecided("nlp")

        await eventually(is_set_aside, 60, "the line is set aside")
        assert uid in known.pending("nlp")
        await books.pod("w", job, gpu=0)
        await books.uses("nlp", cpu="1")
        assert uid in await payers(books, room)


async def test_a_line_goes_once_nothing_refers_to_it(books: Books, room: int) -> None:
    async with books.controller():
        job = await team(books)
        await books.remove(job)
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        await books.client.delete(PODS, "w", "default")
        await books.uses("nlp", cpu="0")
        books.box.clock.advance(61)
        books.clock.advance(61)

        async def empty() -> bool:
            return not await payers(books, room)

        await eventually(empty, 60, "the line is gone")


async def test_a_record_that_was_edited_by_hand_refuses_growth_until_it_is_mended(books: Books, room: int) -> None:
    async with books.controller():
        job = await team(books)
        await books.remove(job)
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        await eventually(lambda: _gone(books, room, job), 60, "the record says that the payer is gone")
    lines = await stored_lines(books, room)
    await rewrite_payers(books, room, [*lines, "nonsense"])
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert "'nonsense' is no line" in found.status.payers_problem
        assert found.status.payers_problem in condition(found, "PayersUnknown")
        assert found.status.used == {"limits.cpu": "1"}, "the lines that can be read count"
        await books.create(tfjob("more", "nlp", 1, gpu=0))
        await books.uses("nlp", cpu="2")
        assert await stored_lines(books, room) == [*lines, "nonsense"]
        await rewrite_payers(books, room, lines)
        await books.until("nlp", lambda g: not g.status.payers_problem and not condition(g, "PayersUnknown"))
        await eventually(lambda: _has(books, room, 2), 60, "the new payer is stored")


async def _has(books: Books, room: int, lines: int) -> bool:
    return len(await payers(books, room)) == lines


async def test_a_record_that_is_full_keeps_its_lines_and_refuses_growth(
    books: Books, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "ROOM", min(room, 1))
    monkeypatch.setattr(remembered, "_BURST", 1)
    monkeypatch.setattr(pages, "MAX_LINES", 1)
    monkeypatch.setattr(pages, "MAX_PAGES", 1 - min(room, 1))
    async with books.controller():
        await team(books)
        before = await payers(books, room)
        more = await books.create(tfjob("more", "nlp", 1, gpu=0))
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert "full" in found.status.payers_problem
        assert found.status.used == {"limits.cpu": "2"}
        assert await payers(books, room) == before
        await books.remove(more)
        await books.until("nlp", lambda g: not g.status.payers_problem)


async def test_a_status_of_an_older_version_is_taken_over_once(books: Books) -> None:
    async with books.controller():
        await team(books)
    uid = (await books.client.get(PODS, "w", "default"))["metadata"]["uid"]
    await books.client.patch(PODS, "w", {"metadata": {"ownerReferences": None}}, namespace="default")
    await books.rewrite("nlp", {"detached": [f"pods/default/w uid={uid}", "pods/default/gone uid=x", "nonsense"]})
    async with books.controller():
        found = await books.uses("nlp", cpu="2")
        assert found.status.detached == []
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_a_status_takes_over_nothing_that_somebody_else_pays_for(books: Books) -> None:
    """It adopts neither an object of another owner nor one that was labelled since."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.group("vision", cpu="9")
        theirs = await books.create(tfjob("theirs", "vision", 1, gpu=0))
        await books.uses("vision", cpu="1")
    await books.rewrite("nlp", {"detached": [f"tfjobs.kubeflow.org/default/theirs uid={theirs['metadata']['uid']}"]})
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "0"})


async def test_what_was_let_go_of_while_nobody_watched_is_the_groups_whose_record_has_it(books: Books) -> None:
    """Both `used` and hours follow the record, which has the group by uid."""
    async with books.controller():
        await books.group("nlp", cpu="9", hours="100")
        job = await books.create(tfjob("train", "nlp", 1))
        await books.pod("w", job)
        await books.until_record("nlp", lambda page: bool(page.status.running))
    books.box.clock.advance(3600)
    await books.client.patch(PODS, "w", {"metadata": {"ownerReferences": None}}, namespace="default")
    async with books.controller():
        found = await books.uses("nlp", cpu="2", hours="1")
        assert [line.split()[0] for line in found.status.leftovers] == ["pods/default/w"]
        assert "pods/default/w" in condition(found, "Leftovers")
        books.box.clock.advance(3600)
        await books.uses("nlp", hours="2")
        await books.ends("w")
        await books.uses("nlp", cpu="1", hours="2")


async def test_hours_go_on_of_a_workload_whose_label_was_taken_away_while_nobody_watched(books: Books) -> None:
    """Its pods are leftovers: the group pays for them as long as they run."""
    async with books.controller():
        await books.group("nlp", cpu="9", hours="100")
        job = await books.create(tfjob("train", "nlp", 1))
        await books.pod("w", job)
        await books.until_record("nlp", lambda page: bool(page.status.running))
        await books.uses("nlp", cpu="1")
    await books.client.patch(TFJOBS, "train", {"metadata": {"labels": None}}, namespace="default")
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert (found.status.used or {})["limits.cpu"] == "1"
        books.box.clock.advance(3600)
        await books.uses("nlp", cpu="1", hours="1")
        await books.ends("w")
        await books.uses("nlp", cpu="0", hours="1")


async def test_the_promise_of_a_create_that_adopts_leftovers_does_not_count_them_twice(books: Books, room: int) -> None:
    """A StatefulSet is deleted without its pods and created again in a group that is full."""
    async with books.controller():
        await books.group("nlp", cpu="2")
        made = {**deployment("db", "nlp", 2), "kind": "StatefulSet"}
        old = await books.client.create(STATEFULSETS, made)
        for name in ("db-0", "db-1"):
            await books.pod(name, old, gpu=0)
        await books.uses("nlp", cpu="2")
        await eventually(lambda: _knows(books, room, old), 60, "the StatefulSet is remembered")
        for name in ("db-0", "db-1"):
            await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.client.delete(STATEFULSETS, "db", "default")
        await books.until("nlp", lambda g: len(g.status.leftovers) == 2)
        slot = "statefulsets.apps/default/db"
        await books.promise("nlp", entry(slot, "cpu=2", "cpu=2", of="under-way"))
        found = await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        [kept] = found.status.reservations
        assert "limits.cpu=2-2" in kept
        await books.remove({"kind": "Pod", "metadata": {"name": "db-1", "namespace": "default"}})
        found = await books.until("nlp", lambda g: len(g.status.leftovers) == 1)
        assert "limits.cpu=2-1" in found.status.reservations[0]
        again = await books.client.create(STATEFULSETS, made)
        await books.promise("nlp", entry(slot, "cpu=2", "cpu=1", of=again["metadata"]["uid"]))
        found = await books.until("nlp", lambda g: len(g.status.reservations) == 1)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"} and not g.status.leftovers)


@pytest.mark.parametrize("expression", [{"operator": "NotIn", "values": ["a"]}, {"operator": "DoesNotExist"}])
async def test_a_label_that_is_added_may_let_a_pod_go(books: Books, expression: Object) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = {**deployment("web", "nlp", 1), "kind": "ReplicaSet"}
        made["spec"]["selector"]["matchExpressions"] = [{"key": "mine", **expression}]
        web = await books.client.create(REPLICASETS, made)
        await books.pod("p", web, gpu=0)
        await books.uses("nlp", cpu="1")
        await books.client.patch(PODS, "p", {"metadata": {"labels": {"mine": "a"}}}, namespace="default")
        found = await books.uses("nlp", cpu="2")
        assert [line.split()[:2] for line in found.status.leftovers] == [["pods/default/p", "ReplicaSet/default/web"]]


async def test_what_an_owner_with_another_selector_lets_go_is_left(books: Books) -> None:
    """A ReplicationController's selector can be changed."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = {**deployment("web", "nlp", 2), "apiVersion": "v1", "kind": "ReplicationController"}
        made["spec"]["selector"] = {"app": "x"}
        web = await books.client.create(REPLICATION_CONTROLLERS, made)
        for name in ("p", "q"):
            await books.pod(name, web, gpu=0)
        await books.uses("nlp", cpu="2")
        labels = {"metadata": {"labels": {"app": "y"}}}
        change = {"spec": {"selector": {"app": "y"}, "template": labels}}
        await books.client.patch(REPLICATION_CONTROLLERS, "web", change, namespace="default")
        found = await books.uses("nlp", cpu="4")
        assert [line.split()[0] for line in found.status.leftovers] == ["pods/default/p", "pods/default/q"]
        for name in ("p", "q"):
            await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"})


# ReplicaSets that came and went while no controller ran.


async def _version(books: Books, owner: Object, pods: int = 2) -> Object:
    """Store a ReplicaSet of a workload and its pods as controllers name them. They take a day to stop."""
    name = f"{owner['metadata']['name']}-5d9f"
    made = {**deployment(name, None, pods), "kind": "ReplicaSet"}
    made["metadata"] |= {"labels": {"app": "x", "pod-template-hash": "5d9f"}, "ownerReferences": [_controller(owner)]}
    made["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] = "5d9f"
    below = await books.client.create(REPLICASETS, made)
    for number in range(pods):
        await books.pod(f"{name}-{number}", below, gpu=0, nodeName="n", terminationGracePeriodSeconds=86400)
    return below


async def _is_deleted(books: Books, *objects: Object, pods: int = 2) -> None:
    """Delete objects and what they made, as in the background."""
    for obj in objects:
        await books.remove(obj)
    name = objects[0]["metadata"]["name"]
    for number in range(pods):
        await books.client.delete(PODS, f"{name}-{number}", "default")


async def test_the_pods_of_a_version_that_nobody_saw_are_charged_to_its_workload(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        web = await books.create(deployment("web", "nlp", 2))
        await books.uses("nlp", cpu="2")
    await _is_deleted(books, await _version(books, web))
    for _ in range(2):
        async with books.controller():
            found = await books.until("nlp", lambda g: len(g.status.leftovers) == 2)
            assert found.status.used == {"limits.cpu": "4"}
            assert [each.split()[:2] for each in found.status.leftovers] == [
                [f"pods/default/web-5d9f-{number}", "Deployment/default/web"] for number in range(2)
            ]
    async with books.controller():
        for number in range(2):
            await books.ends(f"web-5d9f-{number}")
        await books.uses("nlp", cpu="2")


async def test_the_pods_of_a_version_that_nobody_saw_are_charged_though_its_workload_went_with_it(
    books: Books, room: int
) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        web = await books.create(deployment("web", "nlp", 2))
        await books.uses("nlp", cpu="2")
        await eventually(lambda: _knows(books, room, web), 60, "the Deployment is remembered")
    await _is_deleted(books, await _version(books, web), web)
    async with books.controller():
        await books.uses("nlp", cpu="2")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"} and len(g.status.leftovers) == 2)


async def test_the_pods_of_a_workload_that_nobody_saw_are_charged_to_the_group_that_promised(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
    web = await books.create(deployment("web", "nlp", 2))
    await books.promise("nlp", entry("deployments.apps/default/web", "cpu=2", of=web["metadata"]["uid"]))
    await _is_deleted(books, await _version(books, web), web)
    async with books.controller():
        await books.holds_still("nlp", lambda g: bool(g.status.reservations) or g.status.used == {"limits.cpu": "2"})
        books.clock.advance(61)
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert (found.status.used, len(found.status.leftovers)) == ({"limits.cpu": "2"}, 2)


@pytest.mark.parametrize("label", [None, "vision"])
async def test_pods_that_left_their_owner_are_the_groups_whose_reservation_says_so(
    books: Books, label: str | None
) -> None:
    """Nobody saw their workload, nor that they left it. The label of another group decides nothing."""
    async with books.controller():
        for group in ("nlp", "vision"):
            await books.group(group, cpu="9")
    made = {**deployment("db", "nlp", 2), "kind": "StatefulSet"}
    old = await books.client.create(STATEFULSETS, made)
    promises = [entry("statefulsets.apps/default/db", "cpu=2", of=old["metadata"]["uid"])]
    for name in ("db-0", "db-1"):
        pod = await books.pod(name, old, gpu=0)
        change = {"metadata": {"ownerReferences": None, "labels": {LABEL: label}}}
        version = int(pod["metadata"]["resourceVersion"])
        await books.client.patch(PODS, name, change, namespace="default")
        says = entry(f"pods/default/{name}", "cpu=1", "cpu=1", of=pod["metadata"]["uid"], rv=version)
        promises.append(replace(says, others=leaving_parts("StatefulSet/default/db", ())))
    await books.promise("nlp", *promises)
    await books.client.delete(STATEFULSETS, "db", "default")
    for _ in range(2):
        async with books.controller():
            found = await books.until("nlp", lambda g: len(g.status.leftovers) == 2 and len(g.status.reservations) < 2)
            assert (found.status.used, len(found.status.leftovers)) == ({"limits.cpu": "2"}, 2)
            await books.uses("vision", cpu="0")
            books.clock.advance(61)
            await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_pods_that_only_look_like_those_of_a_workload_pay_for_themselves(books: Books) -> None:
    """Their labels do not match its selector, they do not have the hash, or they name no ReplicaSet."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.create(deployment("web", "nlp", 2))
        await books.uses("nlp", cpu="2")
    hashed = {"app": "x", "pod-template-hash": "5d9f"}
    for number, (kind, name, labels) in enumerate(
        [
            ("ReplicaSet", "web-5d9f", {**hashed, "app": "y"}),
            ("ReplicaSet", "web-5d9f", {"app": "x"}),
            ("ReplicaSet", "other-5d9f", hashed),
            ("StatefulSet", "web-5d9f", hashed),
        ]
    ):
        never = {**deployment(name, None), "kind": kind}
        never["metadata"]["uid"] = f"b6cf1b2e-0000-4000-8000-00000000000{number}"
        never["spec"]["template"]["metadata"]["labels"] = labels
        await books.pod(f"p{number}", never, gpu=0)
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"} and not g.status.leftovers)


async def test_pods_below_what_never_was_pay_for_themselves_while_a_controller_runs(books: Books) -> None:
    """Anybody may write such an owner: it does not charge the group of a workload in the same namespace."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.create(deployment("web", "nlp", 2))
        await books.uses("nlp", cpu="2")
        never = {**deployment("web-5d9f", None), "kind": "ReplicaSet"}
        never["metadata"]["uid"] = "b6cf1b2e-0000-4000-8000-000000000000"
        never["spec"]["template"]["metadata"]["labels"] = {"app": "x", "pod-template-hash": "5d9f"}
        await books.pod("p", never, gpu=0)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"} and not g.status.leftovers)


# Workloads that stand and name no group any more.


async def _without_label(books: Books, kind: Resource, name: str) -> None:
    await books.client.patch(kind, name, {"metadata": {"labels": {LABEL: None}}}, namespace="default")


async def _deployed(books: Books) -> tuple[Object, Object]:
    """Store a Deployment of two pods and its ReplicaSet, wait until the group is charged, and return both."""
    await books.group("nlp", cpu="9")
    web = await books.create(deployment("web", "nlp", 2))
    below = await _version(books, web)
    await books.uses("nlp", cpu="2")
    return web, below


async def _raise(books: Books, below: Object) -> None:
    """Raise the replicas of a ReplicaSet to nine, and make one of the pods."""
    name = below["metadata"]["name"]
    await books.client.patch(REPLICASETS, name, {"spec": {"replicas": 9}}, namespace="default")
    await books.pod(f"{name}-9", below, gpu=0)


async def _is_orphaned(books: Books, below: Object, owner: Object) -> None:
    """Delete an owner as with `--cascade=orphan`."""
    name = below["metadata"]["name"]
    await books.client.patch(REPLICASETS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
    await books.remove(owner)


def _left(group: GroupObject) -> list[str]:
    return sorted(line.split()[0] for line in group.status.leftovers)


async def test_what_a_workload_made_stays_charged_when_its_label_goes(books: Books) -> None:
    """What it makes later costs nothing, as that of any workload without a group."""
    async with books.controller():
        await team(books)
        await _without_label(books, TFJOBS, "train")
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert [line.split()[:2] for line in found.status.leftovers] == [["pods/default/w", "TFJob/default/train"]]
        await books.pod("later", await books.client.get(TFJOBS, "train", "default"), gpu=0)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
        await books.ends("w")
        await books.uses("nlp", cpu="0")


async def test_what_a_workload_made_stays_charged_when_its_label_goes_while_no_controller_runs(books: Books) -> None:
    async with books.controller():
        await team(books)
    await _without_label(books, TFJOBS, "train")
    async with books.controller():
        await books.until("nlp", lambda g: len(g.status.leftovers) == 1)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})


async def test_the_pods_of_a_deployment_stay_charged_when_its_label_goes_and_are_its_again(books: Books) -> None:
    async with books.controller():
        await _deployed(books)
        await _without_label(books, DEPLOYMENTS, "web")
        await books.until("nlp", lambda g: _left(g) == ["pods/default/web-5d9f-0", "pods/default/web-5d9f-1"])
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await books.client.patch(DEPLOYMENTS, "web", {"metadata": {"labels": {LABEL: "nlp"}}}, namespace="default")
        await books.until("nlp", lambda g: not g.status.leftovers)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_a_deployment_without_a_group_raises_no_charge_by_what_it_had_before(books: Books) -> None:
    """Its replicas are raised, and then it is deleted without what it has made."""
    async with books.controller():
        web, below = await _deployed(books)
        await _without_label(books, DEPLOYMENTS, "web")
        await books.until("nlp", lambda g: len(g.status.leftovers) == 2)
        await _raise(books, below)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await _is_orphaned(books, below, web)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await books.ends("web-5d9f-0")
        await books.uses("nlp", cpu="1")
        await books.ends("web-5d9f-1")
        await books.uses("nlp", cpu="0")


async def test_a_deployment_without_a_group_that_adopts_what_is_left_raises_no_charge(books: Books) -> None:
    """The same if it lets that go again, for the group that paid before asks for no more of it."""
    async with books.controller():
        web, below = await _deployed(books)
        await _is_orphaned(books, below, web)
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert _left(found) == ["replicasets.apps/default/web-5d9f"]
        books.box.clock.advance(11)
        # What replaces a pod of a ReplicaSet that is left is charged like the first.
        await books.pod("web-5d9f-2", below, gpu=0)
        await books.remove(await books.ends("web-5d9f-0"))
        await books.uses("nlp", cpu="2")
        free = await books.create(deployment("free", None, 2))
        await books.client.patch(
            REPLICASETS, "web-5d9f", {"metadata": {"ownerReferences": [_controller(free)]}}, namespace="default"
        )
        await books.until("nlp", lambda g: _left(g) == ["pods/default/web-5d9f-1", "pods/default/web-5d9f-2"])
        await _raise(books, below)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        await _is_orphaned(books, below, free)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_a_deployment_without_a_group_adopts_what_is_left_while_no_controller_runs(books: Books) -> None:
    async with books.controller():
        web, below = await _deployed(books)
        await _is_orphaned(books, below, web)
        await books.until("nlp", lambda g: bool(g.status.leftovers))
    free = await books.create(deployment("free", None, 9))
    found = {"metadata": {"ownerReferences": [_controller(free)]}, "spec": {"replicas": 9}}
    await books.client.patch(REPLICASETS, "web-5d9f", found, namespace="default")
    async with books.controller():
        await books.until("nlp", lambda g: _left(g) == ["pods/default/web-5d9f-0", "pods/default/web-5d9f-1"])
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_what_a_workload_without_a_group_made_is_not_left_when_it_goes(books: Books) -> None:
    """It was raised after its label went: what it has made since was never the group's."""
    async with books.controller():
        await team(books)
        await _without_label(books, TFJOBS, "train")
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        train = await books.client.get(TFJOBS, "train", "default")
        await books.pod("later", train, gpu=0)
        await books.remove(train)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
        await books.ends("w")
        await books.uses("nlp", cpu="0")


async def test_pods_are_let_go_before_it_is_counted_that_their_workload_names_no_group(books: Books) -> None:
    """One of them was never the group's: it was made after the label went."""
    async with books.controller():
        await team(books)
        await _without_label(books, TFJOBS, "train")
        books.box.clock.advance(1)
        train = await books.client.get(TFJOBS, "train", "default")
        await books.pod("later", train, gpu=0)
        for name in ("w", "later"):
            await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove(train)
        await books.until("nlp", lambda g: _left(g) == ["pods/default/w"])
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})


async def test_a_version_is_let_go_before_it_is_counted_that_its_deployment_names_no_group(books: Books) -> None:
    async with books.controller():
        web, below = await _deployed(books)
        await _without_label(books, DEPLOYMENTS, "web")
        books.box.clock.advance(1)
        await _raise(books, below)
        await _is_orphaned(books, below, web)
        await books.until("nlp", lambda g: _left(g) == ["pods/default/web-5d9f-0", "pods/default/web-5d9f-1"])
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})


async def test_a_replicaset_that_names_the_group_itself_pays_for_what_it_asks_for(books: Books) -> None:
    """As a workload of its own: its growth is decided at admission, unlike that of one without a label."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        web = await books.create(deployment("web", "nlp", 2))
        below = await _version(books, web)
        await books.client.patch(REPLICASETS, "web-5d9f", {"metadata": {"labels": {LABEL: "nlp"}}}, namespace="default")
        await books.uses("nlp", cpu="2")
        await _without_label(books, DEPLOYMENTS, "web")
        await books.until("nlp", lambda g: _left(g) == ["replicasets.apps/default/web-5d9f"])
        await _raise(books, below)
        await books.uses("nlp", cpu="9")


async def test_pods_that_name_a_group_themselves_are_its_own_when_the_label_of_their_workload_goes(
    books: Books,
) -> None:
    async with books.controller():
        await books.group("vision", cpu="9")
        await team(books)
        await books.client.patch(PODS, "w", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
        await _without_label(books, TFJOBS, "train")
        await books.uses("vision", cpu="1")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "0"} and not g.status.leftovers)
