"""Card-hours in the controller: by the pods' own timestamps, once, across ends, deletions and restarts."""

from __future__ import annotations

from bizrq.api import group as wire
from bizrq.kube.client import NotFound
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import TFJOBS, group, tfjob

HOURS = "cash/requests.nvidia.com/gpu"


async def test_a_running_pod_is_charged_by_the_cluster_clock_from_its_binding(books: Books) -> None:
    """Two cards run for half an hour, then for one hour more."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1, gpu=2))
        await books.pod("train-0", job, gpu=2, since=1800)
        await books.uses("vision", hours="1", gpu="2")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="3")


async def test_the_end_that_the_pod_itself_tells_settles_the_estimate(books: Books) -> None:
    """A pod that was charged up to now had ended half an hour ago: the difference is credited."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="1")
        await books.ends("train-0", ago=1800)
        await books.uses("vision", hours="500m")
        books.box.clock.advance(36_000)
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "500m", 2)


async def test_a_pod_of_ten_seconds_between_two_looks_costs_ten_seconds(books: Books) -> None:
    """A pod that ended and was deleted before a reconciliation is charged by the timestamps of the watch event."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1, gpu=8))
        pod = await books.pod("train-0", job, gpu=8, since=10)
        await books.ends("train-0")
        await books.remove(pod)
        # 80 card-seconds are 0.0222… hours, rounded up to milli.
        await books.uses("vision", hours="23m")


async def test_a_pod_that_is_deleted_while_it_runs_is_charged_up_to_its_deletion(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        pod = await books.pod("train-0", job)
        await books.uses("vision", hours="0", gpu="1")
        books.box.clock.advance(7200)
        await books.remove(pod)
        await books.uses("vision", hours="2")
        books.box.clock.advance(7200)
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "2", 2)


async def test_deleting_the_workload_first_loses_no_hour(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        pod = await books.pod("train-0", job)
        await books.uses("vision", hours="0", gpu="1")
        books.box.clock.advance(3600)
        await books.remove(job)
        await books.until("vision", lambda g: bool(g.status.leftovers))
        await books.uses("vision", gpu="1")
        books.box.clock.advance(3600)
        await books.remove(pod)
        await books.uses("vision", gpu="0")
        await books.uses("vision", hours="2")


async def test_a_pod_that_stays_when_its_workload_moves_is_charged_on(books: Books) -> None:
    """The hours are those of the group that pays for the cards: the new group asks for none of them."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        await books.group("lab", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 2))
        pods = [await books.pod(name, job) for name in ("train-0", "train-1")]
        await books.uses("vision", hours="0", gpu="2")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="2")
        specs = {"Worker": {**job["spec"]["tfReplicaSpecs"]["Worker"], "replicas": 1}}
        change = {"metadata": {"labels": {LABEL: "lab"}}, "spec": {"tfReplicaSpecs": specs}}
        await books.client.patch(TFJOBS, "train", change, namespace="default")
        await books.until("vision", lambda g: bool(g.status.leftovers))
        for group in ("vision", "lab"):
            await books.uses(group, gpu="1")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="3")
        await books.uses("lab", hours="1")
        for pod in pods:
            await books.remove(pod)
        await books.uses("vision", hours="3", gpu="0")
        await books.uses("lab", hours="1", gpu="1")


async def test_a_controller_that_starts_again_charges_nothing_twice_and_loses_nothing(books: Books) -> None:
    """One pod ends by its own timestamp while no controller runs, another goes on running."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 2))
        await books.pod("train-0", job)
        await books.pod("train-1", job)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="2")
    books.box.clock.advance(3600)
    await books.ends("train-0", ago=1800)
    async with books.controller():
        await books.uses("vision", hours="3500m")
    async with books.controller():
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "3500m", 2)


async def test_a_pod_that_vanished_while_nobody_looked_is_charged_up_to_the_last_proof_of_life(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        pod = await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="1")
    books.box.clock.advance(3600)
    await books.remove(pod)
    async with books.controller():
        books.box.clock.advance(3600)
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "1", 2)


async def test_a_model_pays_for_the_base_too(books: Books) -> None:
    hard = {"gpu": "8", "hours": "100", "requests.nvidia.com/gpu.A100": "8", "cash/requests.nvidia.com/gpu.A100": "50"}
    async with books.controller():
        await books.group("vision", **hard)
        job = tfjob("train", "vision", 1)
        job["metadata"]["labels"]["biz.group.resource.quota/gpu-type"] = "A100"
        await books.pod("train-0", await books.create(job), since=3600)
        await books.uses("vision", **{"hours": "1", "cash/requests.nvidia.com/gpu.A100": "1"})


async def test_hours_that_run_out_are_told_and_the_running_pod_is_left_alone(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="2", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3 * 3600)
        found = await books.uses("vision", hours="3")
        assert {c.type: c.status for c in found.status.conditions}["CashExhausted"] == "True"
        assert HOURS in await books.told("CashExhausted")


async def test_a_group_that_spent_hours_leaves_them_to_its_parent_once(books: Books) -> None:
    """The finalizer orders this. Afterwards the child's name is free again, and the hours stay spent."""
    async with books.controller():
        await books.group("corp", hours="100", gpu="16")
        await books.group("vision", "corp", hours="10", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        pod = await books.pod("train-0", job)
        books.box.clock.advance(3 * 3600)
        await books.uses("vision", hours="3")
        await books.until("vision", lambda g: wire.FINALIZER in g.metadata.finalizers)
        await books.uses("corp", hours="10")
        await books.remove(pod)
        await books.remove(job)
        await books.uses("vision", gpu="0")
        await books.remove(group("vision"))

        async def gone() -> bool:
            try:
                await books.client.get(GROUPS, "vision")
            except NotFound:
                return True
            return False

        await eventually(gone, 60, "the child is gone")
        corp = await books.uses("corp", hours="3", gpu="0")
        assert (corp.status.self_used or {})[HOURS] == "3"
        await books.group("vision", "corp", hours="10", gpu="8")
        await books.uses("corp", hours="13")


async def test_time_never_runs_backwards(books: Books) -> None:
    """A pod whose end lies before its start, by some kubelet's clock, costs no hours of any group."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 2))
        await books.pod("train-0", job, since=3600)
        await books.ends("train-0")
        await books.uses("vision", hours="1")
        await books.pod("train-1", job, since=0)
        await books.ends("train-1", ago=7200)
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "1", 2)
