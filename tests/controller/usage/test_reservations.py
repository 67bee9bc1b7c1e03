"""A reservation is dropped if its object was seen, or if it expired and a later read proved the state. Never else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

import pytest

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.kube.informer import Informer
from bizrq.store.groups import GROUPS
from controller.usage.reservations import ReservationTracker
from controller.watch.cluster import Cluster
from tests.controller.conftest import Books, Monotonic
from tests.support.at_rest import at_rest
from tests.support.language import entry, slot
from tests.support.objects import (
    DEPLOYMENTS,
    OF_KIND,
    PODS,
    REPLICASETS,
    ROLLOUTS,
    Object,
    claim_template,
    deployment,
    group,
    rollout,
    tfjob,
)
from tests.support.tenant import JOBS

WEB = "deployments.apps/default/web"
WATCH_OF_DEPLOYMENTS = "/apis/apps/v1/deployments"


def slots(found: wire.GroupObject) -> list[str]:
    return [str(each.slot) for each in wire.reservations_of(found)]


async def test_a_create_that_was_seen_is_counted_and_no_longer_promised(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(deployment("web", "nlp", 4))
        await books.promise("nlp", entry(WEB, "cpu=4", of=web["metadata"]["uid"]))
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert (found.status.used, found.status.self_used) == ({"limits.cpu": "4"}, {"limits.cpu": "4"})


@pytest.mark.parametrize("kind", [JOBS, DEPLOYMENTS], ids=lambda each: each.kind)
async def test_what_is_made_smaller_at_once_stays_promised_until_its_controller_has_acted(
    books: Books, kind: Resource
) -> None:
    """It may be making the pods of the spec that was created, and it has no status yet."""
    number = "parallelism" if kind is JOBS else "replicas"
    made = deployment("web", "nlp", 4)
    if kind is JOBS:
        made = {**made, "apiVersion": "batch/v1", "kind": "Job", "spec": {**made["spec"], number: 4}}
        made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
        del made["spec"]["replicas"], made["spec"]["selector"]
    uid = (await books.client.create(kind, made))["metadata"]["uid"]
    await books.client.patch(kind, "web", {"spec": {number: 1}}, namespace="default")
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.uses("nlp", cpu="1")
        await books.promise("nlp", entry(f"{kind.key}/default/web", "cpu=4", of=uid))
        await books.holds_still("nlp", lambda g: len(g.status.reservations) == 1)
        acted = {"observedGeneration": 99} if kind is DEPLOYMENTS else {"active": 1}
        await books.client.patch(kind, "web", {"status": acted}, namespace="default", subresource="status")
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_a_create_that_was_not_seen_stays_promised_beside_another_object_of_its_name(books: Books) -> None:
    """Another uid in the slot is no proof: the awaited create may still be stored after this one is deleted."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.promise("nlp", entry(WEB, "cpu=4", of="still-under-way"))
        await books.create(deployment("web", "nlp", 1))
        await books.uses("nlp", cpu="1")
        found = await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        [kept] = wire.reservations_of(found)
        assert (kept.base, kept.extra) == ({}, {"limits.cpu": 4 * 10**9})


async def test_an_update_is_awaited_until_a_later_version_is_seen(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(deployment("web", "nlp", 1))
        await books.uses("nlp", cpu="1")
        version = int(web["metadata"]["resourceVersion"])
        await books.promise("nlp", entry(WEB, "cpu=4", "cpu=1", of=web["metadata"]["uid"], rv=version))
        await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        await books.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}}, namespace="default")
        found = await books.uses("nlp", cpu="4")
        assert found.status.reservations == []


async def test_an_update_ends_where_a_controller_that_starts_finds_its_object_gone(books: Books) -> None:
    """A list does not say what was deleted: what was stored at an earlier version, and is not there, has been."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(deployment("web", "nlp", 1))
        await books.uses("nlp", cpu="1")
    await books.client.delete(DEPLOYMENTS, "web", "default")
    version = int(web["metadata"]["resourceVersion"])
    ended = entry(WEB, "cpu=4", "cpu=1", of=web["metadata"]["uid"], rv=version)
    later = entry("deployments.apps/default/later", "cpu=1", of="of-a-later-version", rv=version + 1_000_000)
    await books.promise("nlp", ended, later)
    async with books.controller():
        found = await books.until("nlp", lambda g: slots(g) == [str(later.slot)])
        assert found.status.used == {"limits.cpu": "0"}


@pytest.mark.parametrize("kind", ["a workload", "a pod", "a claim template"])
async def test_an_update_that_lost_to_any_other_write_ends_at_once_and_not_when_it_expires(
    books: Books, kind: str
) -> None:
    """A status was written between review and write. Nothing is counted from it, so no cost would queue the group."""
    web = deployment("web", "nlp", 1)
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "default"}}
    written: Object = {
        "a workload": web,
        "a pod": {**alone, "spec": web["spec"]["template"]["spec"]},
        "a claim template": claim_template("four", 4),
    }[kind]
    resource = OF_KIND[written["kind"]]
    async with books.controller(recount_interval=300.0, cash_interval=60.0):
        await books.group("nlp", cpu="10")
        stored = await books.create(written)
        slot_of = f"{resource.key}/default/{stored['metadata']['name']}"
        version = int(stored["metadata"]["resourceVersion"])
        waits = entry(slot_of, "cpu=4", "cpu=1", of=stored["metadata"]["uid"], rv=version, gen=1)
        if kind == "a claim template":
            waits = replace(waits, slot=slot(WEB), pending_write=waits.slot)
        await books.promise("nlp", waits)
        await at_rest()
        assert slots(await books.read("nlp")) == [str(waits.slot)]
        began = time.monotonic()
        note = {"metadata": {"annotations": {"seen": "by its controller"}}}
        await books.client.patch(resource, stored["metadata"]["name"], note, namespace="default")
        await books.until("nlp", lambda g: not g.status.reservations)
        assert time.monotonic() - began < 5


#: What a Rollout's controller has acted on, as its status says it, and whether that is the stored spec.
ACTS_ON = [("2", True), (2, True), ("1", False), (1, False)]


@pytest.mark.parametrize(("observed", "is_stored"), ACTS_ON)
async def test_a_rollouts_text_says_as_much_as_a_number_what_its_controller_acts_on(
    books: Books, observed: object, is_stored: bool
) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(rollout("web", "nlp", 1))
        await books.uses("nlp", cpu="1")
        slot_of, version = "rollouts.argoproj.io/default/web", int(web["metadata"]["resourceVersion"])
        await acts_on(books, observed)
        grown = entry(slot_of, "cpu=4", "cpu=1", of=web["metadata"]["uid"], rv=version, gen=1)
        await books.client.patch(ROLLOUTS, "web", {"spec": {"replicas": 4}}, namespace="default")
        await books.promise("nlp", grown)
        if is_stored:
            assert (await books.uses("nlp", cpu="4")).status.reservations == []
            return
        await books.uses("nlp", cpu="1")
        await books.holds_still("nlp", lambda g: slots(g) == [slot_of])
        books.clock.advance(61)
        await books.holds_still("nlp", lambda g: slots(g) == [slot_of])
        await acts_on(books, "2")
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_a_controller_that_does_not_say_readably_what_it_acts_on_is_awaited_until_the_reservation_expires(
    books: Books,
) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(rollout("web", "nlp", 1))
        await acts_on(books, "6d9bf77d9c")
        slot_of, version = "rollouts.argoproj.io/default/web", int(web["metadata"]["resourceVersion"])
        await books.promise("nlp", entry(slot_of, "cpu=4", "cpu=1", of=web["metadata"]["uid"], rv=version, gen=1))
        await books.client.patch(ROLLOUTS, "web", {"spec": {"replicas": 4}}, namespace="default")
        await books.holds_still("nlp", lambda g: slots(g) == [slot_of])
        books.clock.advance(61)
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert found.status.used == {"limits.cpu": "4"}


async def acts_on(books: Books, generation: object) -> None:
    """Write what the controller of the Rollout has acted on."""
    status = {"status": {"observedGeneration": generation}}
    await books.client.patch(ROLLOUTS, "web", status, namespace="default", subresource="status")


async def test_a_deletion_that_was_seen_ends_every_promise_to_that_object(books: Books) -> None:
    """A deletion that came before the reservation was read is proof, too."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        web = await books.create(deployment("web", "nlp", 1))
        await books.uses("nlp", cpu="1")
        await books.remove(web)
        await books.uses("nlp", cpu="0")
        uid, version = web["metadata"]["uid"], int(web["metadata"]["resourceVersion"])
        await books.promise("nlp", entry(WEB, "cpu=4", of=uid, rv=version), entry(WEB, "cpu=4", of=uid))
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_a_move_that_was_seen_ends_the_promise_in_the_new_group_and_frees_the_old_one(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.group("vision", cpu="10")
        web = await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        version = int(web["metadata"]["resourceVersion"])
        await books.promise("vision", entry(WEB, "cpu=4", of=web["metadata"]["uid"], rv=version))
        label = {"metadata": {"labels": {"biz.group.resource.quota": "vision"}}}
        await books.client.patch(DEPLOYMENTS, "web", label, namespace="default")
        assert (await books.uses("vision", cpu="4")).status.reservations == []
        await books.uses("nlp", cpu="0")


async def test_a_promise_expires_by_the_controllers_own_clock_not_by_the_written_time(books: Books) -> None:
    """The written expiry is long past from the start: it is informative only."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.promise("nlp", entry(WEB, "cpu=4", of="never", expires=0))
        await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        books.clock.advance(50)
        await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        books.clock.advance(11)
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_whoever_moves_the_expiry_makes_the_promise_young_again(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        first = entry(WEB, "cpu=4", of="never", expires=1_000)
        await books.promise("nlp", first)
        await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        books.clock.advance(50)
        stored = await books.client.get(GROUPS, "nlp")
        await books.rewrite("nlp", {"reservations": [str(entry(WEB, "cpu=4", of="never", expires=2_000))]})
        assert stored["status"]["reservations"] == [str(first)]
        await books.holds_still("nlp", lambda g: slots(g) == [WEB], 1)
        books.clock.advance(50)
        await books.holds_still("nlp", lambda g: slots(g) == [WEB])
        books.clock.advance(11)
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_an_expired_promise_whose_object_the_watch_withholds_is_looked_up_before_it_goes(books: Books) -> None:
    """With a frozen watch the object is stored but unseen. At every moment it is reserved or used."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        books.proxy.freeze(WATCH_OF_DEPLOYMENTS)
        web = await books.create(deployment("web", "nlp", 4))
        await books.promise("nlp", entry(WEB, "cpu=4", of=web["metadata"]["uid"]))
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "0"} and slots(g) == [WEB], 2)
        books.clock.advance(61)
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert found.status.used == {"limits.cpu": "4"}


async def test_a_job_that_asked_for_less_is_counted_once_its_time_is_over(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Job does not say what its controller has seen. The watch of pods had that time, and gets no second one."""
    lags: list[float | None] = []
    catch_up = Informer.catch_up

    async def noted(self: Informer, revision: int, timeout: float, *, lag: float | None = None) -> bool:
        if self.resource == PODS:
            lags.append(lag)
        return await catch_up(self, revision, timeout, lag=lag)

    monkeypatch.setattr(Informer, "catch_up", noted)
    made = {**deployment("train", "nlp"), "apiVersion": "batch/v1", "kind": "Job"}
    made["spec"] = {"parallelism": 4, "template": made["spec"]["template"]}
    made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.client.create(JOBS, made)
        # Its controller has no more to say of a smaller number.
        acted = {"status": {"active": 1}}
        await books.client.patch(JOBS, "train", acted, namespace="default", subresource="status")
        await books.uses("nlp", cpu="4")
        books.proxy.freeze("/api/v1/pods")
        await books.client.patch(JOBS, "train", {"spec": {"parallelism": 1}}, namespace="default")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"})
        lags.clear()
        books.clock.advance(3)
        await books.uses("nlp", cpu="1")
    assert lags[0] == 0.0


def test_the_next_look_is_due_when_the_oldest_promise_expires_and_soon_where_nothing_is_known_of_it_then() -> None:
    """A reservation without a write is dropped in time, also if the group is reconciled for other reasons."""
    clock = Monotonic()
    entries = ReservationTracker(cast(Cluster, None), clock)
    old, young = str(entry(WEB, "cpu=4", of="old")), str(entry(WEB, "cpu=4", of="young"))
    assert entries.next_expiry("nlp", [old]) == pytest.approx(61, abs=2)
    clock.advance(40)
    assert entries.next_expiry("nlp", [old, young]) == pytest.approx(21, abs=2)
    clock.advance(30)
    assert entries.next_expiry("nlp", [old, young]) == 5
    assert entries.next_expiry("nlp", [young]) == pytest.approx(31, abs=2)


async def test_a_line_that_cannot_be_read_is_kept_while_it_is_young(books: Books) -> None:
    """An unreadable line, perhaps of a newer version, is dropped when it expires."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.rewrite("nlp", {"reservations": ["v9 something of tomorrow"]})
        await books.holds_still("nlp", lambda g: g.status.reservations == ["v9 something of tomorrow"])
        books.clock.advance(61)
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_a_child_groups_promise_ends_when_the_child_is_seen(books: Books) -> None:
    async with books.controller():
        await books.group("corp", cpu="100")
        await books.promise("corp", entry("group ai", "cpu=60", of="not-this-one"))
        ai = await books.create(group("ai", "corp", cpu="60"))
        await books.promise("corp", entry("group ai", "cpu=60", of=ai["metadata"]["uid"]))
        found = await books.uses("corp", cpu="60")
        assert found.status.self_used == {"limits.cpu": "0"}
        await books.until("corp", lambda g: [e.uid for e in wire.reservations_of(g)] == ["not-this-one"])


async def test_a_detached_pod_is_counted_in_the_status_that_drops_its_promise(books: Books) -> None:
    """Its owner's controller has not taken the reference away yet, and has not made another pod."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        made = {**deployment("web", "nlp", 2), "kind": "ReplicaSet"}
        web = await books.client.create(REPLICASETS, made)
        for name in ("web-1", "web-2"):
            pod = await books.pod(name, web)
        await books.uses("nlp", cpu="2")
        uid, version = pod["metadata"]["uid"], int(pod["metadata"]["resourceVersion"])
        await books.promise("nlp", entry("pods/default/web-2", "cpu=1", of=uid, rv=version))
        before = (await books.read("nlp")).metadata.resource_version
        await books.client.patch(PODS, "web-2", {"metadata": {"labels": {"app": "mine"}}}, namespace="default")
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert (found.status.used, before != found.metadata.resource_version) == ({"limits.cpu": "3"}, True)
        assert [line.split()[0] for line in found.status.leftovers] == ["pods/default/web-2"]
        assert "limits.cpu=1" in found.status.leftovers[0]
        await books.pod("web-3", web)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "3"})
        await books.client.patch(PODS, "web-2", {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "3"})


async def test_what_was_created_and_deleted_while_nobody_watched_stays_promised_until_its_pods_count(
    books: Books,
) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
    job = await books.create(tfjob("train", "nlp", 2, gpu=0))
    slot, uid = "tfjobs.kubeflow.org/default/train", job["metadata"]["uid"]
    await books.promise("nlp", entry(slot, "cpu=2", of=uid))
    await books.pod("w", job, gpu=0)
    await books.remove(job)
    async with books.controller():
        await books.holds_still("nlp", lambda g: slots(g) == [slot])
        books.clock.advance(61)
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert found.status.used == {"limits.cpu": "1"}
        [line] = found.status.leftovers
        assert line.split()[:2] == ["pods/default/w", "TFJob/default/train"]
    async with books.controller():
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
