"""Referenced objects: a change counts their users again, and a reservation may await their write."""

from __future__ import annotations

from bizrq.api import group as wire
from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.support.language import entry
from tests.support.objects import (
    CLAIM_TEMPLATES,
    POD_TEMPLATES,
    RAYCLUSTERS,
    claim_template,
    claiming,
    deployment,
    device_class,
    pod_template,
    ray_spec,
    raycluster,
    rayjob,
    referring,
    template,
)

WEB = "rollouts.argoproj.io/default/web"


async def test_a_template_that_changes_counts_the_rollouts_again_that_refer_to_it(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        shape = await books.create(pod_template("shape"))
        await books.create(referring("web", "nlp", shape, 2))
        await books.uses("nlp", cpu="2")
        await books.client.patch(POD_TEMPLATES, "shape", {"template": template("3")}, namespace="default")
        await books.uses("nlp", cpu="6")


async def test_a_claim_template_that_is_made_anew_counts_its_users_again(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", gpu="10")
        await books.create(device_class("gpu"))
        small = await books.create(claim_template("devices", 1))
        await books.create(claiming(deployment("web", "nlp", 2), "devices"))
        await books.uses("nlp", gpu="2")
        await books.remove(small)
        await books.create(claim_template("devices", 3))
        await books.uses("nlp", gpu="6")


async def test_a_promise_ends_with_the_write_that_it_awaits_not_with_one_of_what_is_charged(books: Books) -> None:
    """A write of the Rollout meanwhile proves nothing about the awaited template."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        shape = await books.create(pod_template("shape"))
        web = await books.create(referring("web", "nlp", shape, 2))
        await books.uses("nlp", cpu="2")
        awaits, version = "podtemplates/default/shape", int(shape["metadata"]["resourceVersion"])
        await books.promise("nlp", entry(WEB, "cpu=6", "cpu=2", of=shape["metadata"]["uid"], rv=version, awaits=awaits))
        await books.client.patch(books.kind(web), "web", {"spec": {"replicas": 1}}, namespace="default")
        found = await books.uses("nlp", cpu="1")
        [kept] = wire.reservations_of(found)
        assert (str(kept.awaited_slot), kept.base) == (awaits, {"limits.cpu": 10**9})
        await books.client.patch(POD_TEMPLATES, "shape", {"template": template("3")}, namespace="default")
        found = await books.uses("nlp", cpu="3")
        assert found.status.reservations == []
        assert {"podtemplates", CLAIM_TEMPLATES.key, "deployments.apps"} <= set(found.status.counted_at)


async def test_a_write_that_never_came_is_awaited_for_a_minute_and_looked_up(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", gpu="10")
        await books.create(device_class("gpu"))
        await books.create(claim_template("devices", 1))
        await books.create(claiming(deployment("web", "nlp", 2), "devices"))
        await books.uses("nlp", gpu="2")
        awaits = f"{CLAIM_TEMPLATES.key}/default/another"
        promise = entry("deployments.apps/default/web", "gpu=8", "gpu=2", of="never", awaits=awaits)
        await books.promise("nlp", promise)
        await books.holds_still("nlp", lambda g: len(g.status.reservations) == 1)
        books.clock.advance(61)
        await books.until("nlp", lambda g: not g.status.reservations)


# -- Children that outgrow whoever pays --------------------------------------------------------------------------------


async def test_a_payer_is_counted_with_a_child_that_outgrew_it_and_with_a_second_one(books: Books) -> None:
    """Head, workers and submitter count; never less than the RayJob declares. It creates no second cluster."""
    async with books.controller():
        await books.group("nlp", cpu="20")
        job = await books.create(rayjob("train", "nlp", 2))
        await books.uses("nlp", cpu="4")
        made = await books.create(raycluster("train-abc", 5, job))
        await books.uses("nlp", cpu="7")
        other = await books.create(raycluster("train-def", 6, job, labels={LABEL: "nlp"}))
        await books.uses("nlp", cpu="13")
        found = await books.until(
            "nlp", lambda g: any(c.type == "Surplus" and c.status == "True" for c in g.status.conditions)
        )
        assert "train-def" in next(c.message for c in found.status.conditions if c.type == "Surplus")
        await books.remove(other)
        await books.uses("nlp", cpu="7")
        await books.client.patch(RAYCLUSTERS, "train-abc", {"spec": ray_spec(1)}, namespace="default")
        await books.uses("nlp", cpu="4")
        await books.remove(made)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"})


async def test_a_childs_promise_ends_with_its_write_and_never_before_it_is_counted(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="20")
        job = await books.create(rayjob("train", "nlp", 2))
        made = await books.create(raycluster("train-abc", 2, job))
        await books.uses("nlp", cpu="4")
        awaits, version = "rayclusters.ray.io/default/train-abc", int(made["metadata"]["resourceVersion"])
        of = made["metadata"]["uid"]
        promise = entry("rayjobs.ray.io/default/train", "cpu=9", "cpu=4", of=of, rv=version, awaits=awaits)
        await books.promise("nlp", promise)
        await books.holds_still("nlp", lambda g: len(g.status.reservations) == 1)
        await books.client.patch(RAYCLUSTERS, "train-abc", {"spec": ray_spec(7)}, namespace="default")
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert found.status.used == {"limits.cpu": "9"}


# -- What cannot be counted --------------------------------------------------------------------------------------------


async def test_what_cannot_be_counted_any_more_is_held_at_what_it_was_and_told_of(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        shape = await books.create(pod_template("shape"))
        web = await books.create(referring("web", "nlp", shape, 3))
        await books.uses("nlp", cpu="3")
        await books.remove(shape)
        assert "PodTemplate 'shape' was not found" in await books.says("nlp", "Uncountable")
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "3"})
        await books.create(pod_template("shape", "2"))
        await books.uses("nlp", cpu="6")
        await books.remove(web)
        await books.uses("nlp", cpu="0")


async def test_a_controller_that_never_could_count_something_holds_what_the_status_held_for_it(books: Books) -> None:
    """Deleted objects are still given back, and new ones added."""
    async with books.controller():
        await books.group("nlp", cpu="20")
        shape = await books.create(pod_template("shape"))
        web = await books.create(referring("web", "nlp", shape, 3))
        api = await books.create(deployment("api", "nlp", 4))
        await books.uses("nlp", cpu="7")
    await books.remove(shape)
    later = await books.create(deployment("later", "nlp", 2))
    await books.promise("nlp", entry("deployments.apps/default/later", "cpu=2", of=later["metadata"]["uid"]))
    async with books.controller():
        found = await books.until("nlp", lambda g: not g.status.reservations)
        assert found.status.used == {"limits.cpu": "9"}
        await books.remove(api)
        await books.uses("nlp", cpu="5")
        await books.create(deployment("more", "nlp", 1))
        await books.uses("nlp", cpu="6")
        await books.create(pod_template("shape", "2"))
        await books.uses("nlp", cpu="9")
        await books.remove(web)
        await books.uses("nlp", cpu="3")
