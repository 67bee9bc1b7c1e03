"""A pod that is deleted by force is charged to the group that paid until its grace is over, by any controller."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.store.payers import PAYERS
from bizrq.workloads.labels import MODEL_LABELS
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import PODS, Object, claim, deployment, device_class, group, node, template, tfjob

HOUR = 3600


async def vanished(books: Books) -> list[str]:
    return (await books.client.get(PAYERS, "nlp")).get("status", {}).get("vanished", [])


async def bare(books: Books, name: str = "p") -> Object:
    spec: Any = {**template()["spec"], "nodeName": "n", "terminationGracePeriodSeconds": HOUR}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": deployment(name, "nlp")["metadata"], "spec": spec}
    return await books.create(made)


async def of_a_job(books: Books) -> tuple[Object, Object]:
    job = await books.create(tfjob("train", "nlp", 1, gpu=0))
    return job, await books.pod("p", job, gpu=0, nodeName="n", terminationGracePeriodSeconds=HOUR)


async def is_charged_until_its_end(books: Books, cpu: str) -> None:
    """Now, by the next controller, and no longer than its grace."""

    def holds(group: Any) -> bool:
        return group.status.used == {"limits.cpu": cpu}

    async with books.controller():
        found = await books.holds_still("nlp", holds)
        assert any(line.startswith("pods/default/p limits.cpu=1") for line in found.status.ending)
        assert any("deleted by force" in c.message for c in found.status.conditions if c.type == "Overlap")
        books.box.clock.advance(HOUR - 60)
        await books.holds_still("nlp", holds)
        books.box.clock.advance(60)
        await books.uses("nlp", cpu=str(int(cpu) - 1))

        async def forgotten() -> bool:
            return not await vanished(books)

        await eventually(forgotten, 60, "its line is gone")


async def test_a_bare_pod(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        pod = await bare(books)
        await books.uses("nlp", cpu="1")
        await books.remove(pod)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1"})
        [line] = await vanished(books)
        assert "default/p Pod/default/p" in line
        again = await bare(books)
        await books.uses("nlp", cpu="2")
        await books.client.delete(PODS, again["metadata"]["name"], "default")
        await books.ends("p")
        await books.remove(again)
        await books.uses("nlp", cpu="1")
    await is_charged_until_its_end(books, "1")


@pytest.mark.parametrize("first", ["the job", "the pod"])
async def test_a_pod_whose_owner_is_gone_too(books: Books, first: str) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        job, pod = await of_a_job(books)
        await books.uses("nlp", cpu="1")
        for each in (job, pod) if first == "the job" else (pod, job):
            await books.remove(each)
            if each is job and first == "the job":
                await books.until("nlp", lambda g: bool(g.status.leftovers))
        await books.until("nlp", lambda g: bool(g.status.ending) and not g.status.leftovers)
    await is_charged_until_its_end(books, "1")


async def test_a_pod_whose_workload_stands(books: Books) -> None:
    """The same controller counts it with the workload, the next one by the record."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        _, pod = await of_a_job(books)
        await books.uses("nlp", cpu="1")
        await books.remove(pod)
        found = await books.uses("nlp", cpu="2")
        assert [line.split()[0] for line in found.status.ending] == ["tfjobs.kubeflow.org/default/train"]
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
    await is_charged_until_its_end(books, "2")


CARDS = "requests.nvidia.com/gpu"
A100 = f"{CARDS}.A100"
KNOBS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100"]}, "T4": {"aliases": ["Tesla-T4"]}}}


@pytest.mark.parametrize("stands", [True, False])
async def test_a_pod_keeps_the_model_that_its_node_showed(books: Books, stands: bool) -> None:
    """Its own label names another. The node may go, too."""
    shown = await books.create(node("n", **{"nvidia.com/gpu.product": "NVIDIA-A100"}))
    async with books.controller(KNOBS):
        await books.create(group("nlp", **{CARDS: 9, A100: 9, f"{CARDS}.T4": 9}))
        made = tfjob("train", "nlp", 1, gpu=1)
        made["metadata"]["labels"][MODEL_LABELS["gpu"]] = "T4"
        job = await books.create(made)
        pod = await books.pod("p", job, gpu=1, nodeName="n", terminationGracePeriodSeconds=HOUR)
        await books.until("nlp", lambda g: (g.status.used or {}).get(A100) == "1")
        if not stands:
            await books.remove(job)
        await books.remove(pod)
        await books.remove(shown)
        await books.until("nlp", lambda g: bool(g.status.ending) and not g.status.leftovers)
        wanted = {CARDS: "2" if stands else "1", A100: "1", f"{CARDS}.T4": "2" if stands else "1"}
        await books.holds_still("nlp", lambda g: g.status.used == wanted)
    async with books.controller(KNOBS):
        await books.holds_still("nlp", lambda g: g.status.used == wanted)
        books.box.clock.advance(HOUR)
        await books.until("nlp", lambda g: (g.status.used or {}).get(A100) == "0")


async def test_a_claim_that_a_pod_shared_is_charged_once_and_outlives_its_object(books: Books) -> None:
    """A claim that comes in its place under its name is another one."""
    await books.create(device_class("gpu"))
    shared = await books.create(claim("c", 4))
    async with books.controller():
        await books.create(group("nlp", **{CARDS: 9}))
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        claims = [{"name": "d", "resourceClaimName": "c"}]
        pods = [
            await books.pod(name, job, gpu=0, nodeName="n", terminationGracePeriodSeconds=HOUR, resourceClaims=claims)
            for name in ("p", "q")
        ]

        async def holds(cards: str) -> None:
            await books.until("nlp", lambda g: (g.status.used or {}).get(CARDS) == cards)
            await books.holds_still("nlp", lambda g: (g.status.used or {}).get(CARDS) == cards)

        await holds("4")
        await books.remove(pods[0])
        await holds("4")
        await books.remove(job)
        await books.remove(pods[1])
        await holds("4")
        await books.remove(shared)
        await holds("4")
        await books.create(claim("c", 4))
        await holds("4")
        again = tfjob("again", "nlp", 1, gpu=0)
        again["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["resourceClaims"] = claims
        await books.create(again)
        await holds("8")
        books.box.clock.advance(HOUR)
        await holds("4")


async def wide_pod(books: Books, job: Object) -> Object:
    """A pod that asks for ninety names that no group limits, of some two hundred characters each."""
    domain = ".".join(["x" * 60] * 3)
    wide = {f"{domain}.example.com/{number}": "1" for number in range(90)}
    containers = [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1", **wide}}}]
    return await books.pod("p", job, gpu=0, nodeName="n", terminationGracePeriodSeconds=HOUR, containers=containers)


async def test_a_pod_that_asks_for_very_many_names_is_told_by_what_the_group_limits(books: Books) -> None:
    """A name may have 284 characters. A longer line would have the API server reject the whole status."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        pod = await wide_pod(books, job)
        await books.uses("nlp", cpu="1")
        await books.remove(job)
        left = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert [len(line) < 300 for line in left.status.leftovers] == [True]
        assert all(len(condition.message) < 500 for condition in left.status.conditions)
        await books.remove(pod)
        found = await books.until("nlp", lambda g: bool(g.status.ending))
        [line] = found.status.ending
        assert " limits.cpu=1 " in line
        assert [len(each) < 300 for each in (line, *await vanished(books))] == [True, True]
        books.box.clock.advance(HOUR)
        await books.uses("nlp", cpu="0")


async def test_pods_that_end_are_told_by_what_the_group_limits(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        await wide_pod(books, job)
        await books.uses("nlp", cpu="1")
        await books.client.delete(PODS, "p", "default")
        found = await books.uses("nlp", cpu="2")
        [line] = found.status.ending
        assert " limits.cpu=1 " in line
        assert len(line) < 300


async def test_a_record_of_vanished_pods_that_was_edited_by_hand_is_named(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.remove(await bare(books))
        await books.until("nlp", lambda g: bool(g.status.ending))
    stored = await books.client.get(PAYERS, "nlp")
    stored["status"]["vanished"] += ["nonsense"]
    await books.client.replace(PAYERS, stored, subresource="status")
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert "'nonsense' is no line" in found.status.payers_problem
        assert found.status.used == {"limits.cpu": "1"}
