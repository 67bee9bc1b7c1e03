"""Detached objects are charged to the group that paid for them as long as they are stored, by any controller."""

from __future__ import annotations

from tests.controller.conftest import Books
from tests.support.objects import PODS, TFJOBS, tfjob


async def test_another_controller_knows_from_the_status_whose_a_detached_pod_is(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        job = await books.create(tfjob("train", "nlp", 1, gpu=0))
        await books.pod("w", job, gpu=0)
        await books.uses("nlp", cpu="1")
        await books.client.patch(PODS, "w", {"metadata": {"ownerReferences": None}}, namespace="default")
        found = await books.uses("nlp", cpu="2")
    [line] = found.status.detached
    assert line.startswith("pods/default/w uid=")
    await books.rewrite("nlp", {"detached": [line, "deployments.apps/default/gone uid=x", "nonsense"]})
    async with books.controller():
        found = await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "2"})
        assert found.status.detached == [line]
        assert "pods/default/w" in next(c.message for c in found.status.conditions if c.type == "Detached")
        await books.client.delete(PODS, "w", "default")
        found = await books.uses("nlp", cpu="1")
        assert found.status.detached == []


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
        assert [line.split()[0] for line in found.status.detached] == ["pods/default/w"]
        assert "pods/default/w" in next(c.message for c in found.status.conditions if c.type == "Detached")
        books.box.clock.advance(3600)
        await books.uses("nlp", hours="2")
        await books.ends("w")
        await books.uses("nlp", cpu="1", hours="2")


async def test_a_workload_whose_label_was_taken_away_while_nobody_watched_is_let_go(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9", hours="100")
        job = await books.create(tfjob("train", "nlp", 1))
        await books.pod("w", job)
        await books.until_record("nlp", lambda page: bool(page.status.running))
    await books.client.patch(TFJOBS, "train", {"metadata": {"labels": None}}, namespace="default")
    async with books.controller():
        found = await books.uses("nlp", cpu="0")
        books.box.clock.advance(3600)
        found = await books.holds_still("nlp", lambda g: g.status.used["cash/requests.nvidia.com/gpu"] == "0")
        assert found.status.detached == []
