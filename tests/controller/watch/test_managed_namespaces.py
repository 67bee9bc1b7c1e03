"""Namespaces that are not managed: labels there charge nobody, and what was charged stays charged until it ends."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.controller.test_ownership_rules import Team
from tests.support.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    OF_KIND,
    Object,
    claim,
    deployment,
    device_class,
    namespace,
    template,
    tfjob,
)

MANAGED: Any = {"managedNamespaces": {"matchLabels": {"quota": "on"}}}


async def managed(books: Books, value: str | None = "on") -> None:
    await books.client.patch(NAMESPACES, "default", {"metadata": {"labels": {"quota": value}}})


async def bare(books: Books) -> Object:
    metadata = {"name": "bare", "namespace": "default", "labels": {LABEL: "nlp"}}
    spec = {**template("1")["spec"], "nodeName": "n"}
    return await books.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.parametrize("knobs", [{"exemptNamespaces": ["default"]}, MANAGED], ids=["exempt", "not selected"])
async def test_a_label_in_an_unmanaged_namespace_charges_nobody_and_is_reported(books: Books, knobs: Any) -> None:
    async with books.controller(knobs):
        await books.client.patch(NAMESPACES, "default", {"metadata": {"labels": {LABEL: "nlp"}}})
        await books.group("nlp", cpu="9")
        web = await books.create(deployment("web", "nlp", 5))
        await books.create(deployment("plain", None, 5))
        alone = await bare(books)
        await books.pod("child", web)
        said = await books.says("nlp", "LabelsIgnored")
        assert said == (
            "bizrq does not manage their namespaces, so the group does not pay for them: "
            "deployments.apps/default/web; pods/default/bare"
        )
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "0"})
        for name in ("web", "plain"):
            await books.client.delete(DEPLOYMENTS, name, "default")
        await books.remove(alone)
        await books.until("nlp", lambda g: not any(c.type == "LabelsIgnored" for c in g.status.conditions))


async def test_a_claim_in_an_unmanaged_namespace_charges_nobody(books: Books) -> None:
    await books.create(device_class("gpu"))
    made = claim("s", 2)
    made["metadata"]["labels"] = {LABEL: "nlp"}
    async with books.controller(MANAGED):
        await books.group("nlp", gpu="9")
        await books.create(made)
        await books.holds_still("nlp", lambda g: set((g.status.used or {}).values()) == {"0"})
        await managed(books)
        await books.until("nlp", lambda g: set((g.status.used or {}).values()) != {"0"})


async def test_what_was_charged_stays_charged_until_it_ends_when_its_namespace_leaves(books: Books) -> None:
    """A Deployment's ReplicaSet, a job's pod, and a pod of its own; what comes later charges nobody."""
    team = Team(books)
    await managed(books)
    async with books.controller(MANAGED):
        await books.group("nlp", cpu="50")
        web, below = await team.deployment(2)
        await books.client.patch(OF_KIND["ReplicaSet"], "web-1", {"spec": {"replicas": 2}}, namespace="default")
        await team.observe(OF_KIND["ReplicaSet"], "web-1")
        pods = await team.pods("web", below, 2)
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        await books.pod("worker", job, gpu=0)
        await bare(books)
        await books.uses("nlp", cpu="4")
        await managed(books, None)
        left = await books.until("nlp", lambda g: len(g.status.leftovers) == 4)
        assert left.status.used == {"limits.cpu": "4"}
        assert [line.split()[:2] for line in left.status.leftovers] == [
            ["pods/default/bare", "Namespace/default/default"],
            *(["pods/default/" + name, "Deployment/default/web"] for name in pods),
            ["pods/default/worker", "TFJob/default/train"],
        ]
        await books.create(tfjob("later", "nlp", 9, gpu=0))
        said = await books.says("nlp", "LabelsIgnored")
        assert "pods/default/bare" not in said
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"})
    async with books.controller(MANAGED):
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"})
        await books.ends("bare")
        await books.uses("nlp", cpu="3")
        await books.ends("worker")
        await books.uses("nlp", cpu="2")
        await books.remove(web)
        await books.remove(below)
        for name in pods:
            await books.ends(name)
        await books.uses("nlp", cpu="0")


@pytest.mark.parametrize("room", [16, 0], ids=["in the status", "in the record"])
async def test_what_was_charged_stays_charged_when_the_configuration_takes_its_namespace_out(
    books: Books, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """A controller that starts anew knows the payer of what a workload made."""
    monkeypatch.setattr("controller.watch.remembered.ROOM", room)
    async with books.controller():
        await books.group("nlp", cpu="9")
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        await books.pod("worker", job, gpu=0)
        await books.uses("nlp", cpu="1")
    async with books.controller({"exemptNamespaces": ["default"]}):
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "1"}
        await books.ends("worker")
        await books.uses("nlp", cpu="0")


async def test_a_namespace_that_comes_in_is_counted_whole_and_again_after_it_left(books: Books) -> None:
    async with books.controller(MANAGED):
        await books.group("nlp", cpu="9")
        await books.create(tfjob("train", "nlp", 2, gpu=0))
        await books.says("nlp", "LabelsIgnored")
        for value, cpu in (("on", "2"), ("off", "0"), ("on", "2")):
            await managed(books, value)
            found = await books.uses("nlp", cpu=cpu)
        assert found.status.leftovers == []
        await books.until("nlp", lambda g: not any(c.type == "LabelsIgnored" for c in g.status.conditions))


async def test_a_namespace_that_is_made_with_the_labels_is_managed(books: Books) -> None:
    async with books.controller(MANAGED):
        await books.group("nlp", cpu="9")
        for name, labels in (("team", {"quota": "on"}), ("other", {})):
            await books.client.create(NAMESPACES, namespace(name, **labels))
            await books.create(deployment("web", "nlp", 3, namespace=name))
        await books.uses("nlp", cpu="3")
        assert (await books.says("nlp", "LabelsIgnored")).endswith(": deployments.apps/other/web")
