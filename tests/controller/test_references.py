"""What workloads refer to: a change of it counts its users again, and a write of it may be what a promise awaits."""

from __future__ import annotations

from bizrq.api import group as wire
from tests.controller.conftest import Books
from tests.language import entry
from tests.objects import (
    CLAIM_TEMPLATES,
    POD_TEMPLATES,
    claim_template,
    claiming,
    deployment,
    device_class,
    pod_template,
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
    """The Rollout is written meanwhile: that proves nothing of the template that is still to come."""
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
        assert (str(kept.awaited), kept.base) == (awaits, {"limits.cpu": 10**9})
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
