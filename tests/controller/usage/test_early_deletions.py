"""A workload that is deleted before it runs is charged for as long as its pods may come, and nobody rejects them."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.api import overlap
from bizrq.store.overlaps import OVERLAPS
from controller.watch.unfinished import WAITS
from tests.controller.conftest import Books
from tests.support.objects import Object, tfjob

pytestmark = pytest.mark.asyncio


def places(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("controller.overlap._MOST", {overlap.LOWERED: 0, overlap.GONE: number})


async def deleted_early(books: Books) -> Object:
    """A TFJob of one core, without a pod."""
    await books.group("nlp", cpu="9")
    job = await books.create(tfjob("early", "nlp", 1, gpu=0))
    await books.uses("nlp", cpu="1")
    await books.remove(job)
    return job


async def is_listed(books: Books, job: Object) -> bool:
    return job["metadata"]["uid"] in (await books.client.get(OVERLAPS, overlap.NAME))["listed"]


async def test_it_is_free_once_the_list_is_stored(books: Books) -> None:
    async with books.controller():
        job = await deleted_early(books)
        group = await books.uses("nlp", cpu="0")
        assert group.status.leftovers == []
        assert await is_listed(books, job)


async def test_it_is_charged_and_shown_while_the_list_has_no_place(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    places(monkeypatch, 0)
    async with books.controller():
        job = await deleted_early(books)
        books.clock.advance(11)
        group = await books.until("nlp", lambda g: bool(g.status.leftovers))
        (line,) = group.status.leftovers
        assert line.startswith("tfjobs.kubeflow.org/default/early TFJob/default/early since=")
        assert line.endswith("limits.cpu=1")
        assert group.status.used == {"limits.cpu": "1"}
        assert not await is_listed(books, job)
        places(monkeypatch, 2)
        await books.uses("nlp", cpu="0")
        assert await is_listed(books, job)


async def test_it_is_charged_until_no_pod_can_come_any_more(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    places(monkeypatch, 0)
    async with books.controller():
        await deleted_early(books)
        # The watch shows that.
        await asyncio.sleep(2)
        books.box.clock.advance(WAITS / 1000 - 5)
        await asyncio.sleep(2)
        assert (await books.read("nlp")).status.used == {"limits.cpu": "1"}
        books.box.clock.advance(5)
        await books.uses("nlp", cpu="0")
