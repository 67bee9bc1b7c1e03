"""Each correction becomes a line of the record once, also if a controller stops in between."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from bizrq.store.hours import CARD_HOURS, CORRECTIONS
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import Object, correction, tfjob

HOURS = "cash/requests.nvidia.com/gpu"
GPU = "requests.nvidia.com/gpu"


async def applied(books: Books, name: str) -> Object:
    async def told() -> Object | None:
        found = await books.client.get(CORRECTIONS, name)
        return found if found.get("status", {}).get("applied") else None

    found = await eventually(told, 60, f"{name} is applied")
    assert found is not None
    return found


async def lines(books: Books, group: str) -> list[Any]:
    record = await books.client.get(CARD_HOURS, group)
    return record.get("status", {}).get("open", {}).get("corrections", [])


async def _lines_are(books: Books, number: int) -> bool:
    return len(await lines(books, "vision")) == number


async def _true(holds: bool) -> bool:
    return holds


async def test_a_credit_and_a_debit_are_lines_of_the_record_and_say_so(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1, gpu=2))
        await books.pod("train-0", job, gpu=2, since=7200)
        await books.uses("vision", hours="4")
        await books.create(correction("credit", "vision", {GPU: "-2500m"}, by="ann", reason="a node was broken"))
        await books.uses("vision", hours="1500m")
        await applied(books, "credit")
        await books.create(correction("debit", "vision", {GPU: "10"}, by="bob"))
        await books.uses("vision", hours="11500m")
        await applied(books, "debit")
        told = await lines(books, "vision")
        assert [(each["by"], each["reason"]) for each in told] == [("ann", "a node was broken"), ("bob", "mended")]
        # The pod runs on, by some milliseconds.
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] in ("11500m", "11501m"), 3)
        assert await lines(books, "vision") == told


async def test_a_credit_beyond_what_was_spent_shows_as_nothing_and_counts(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(correction("credit", "vision", {GPU: "-5"}))
        await applied(books, "credit")
        await books.uses("vision", hours="0")
        await books.create(correction("debit", "vision", {GPU: "8"}))
        await books.uses("vision", hours="3")


async def test_a_correction_whose_word_is_lost_is_applied_once(books: Books) -> None:
    """The record is written but the correction is not marked; then another controller starts."""
    lost = 0

    async def gone(line: str) -> web.Response | None:
        nonlocal lost
        if not (line.startswith("PATCH ") and "bizgroupcorrections" in line):
            return None
        lost += 1
        return web.Response(status=503)

    books.proxy.before.append(gone)
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(correction("debit", "vision", {GPU: "8"}))
        await eventually(lambda: _lines_are(books, 1), 60, "a line of the record")
        await eventually(lambda: _true(lost > 0), 60, "the word is lost")
    books.proxy.before.clear()
    async with books.controller():
        await applied(books, "debit")
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "8", 3)
        assert len(await lines(books, "vision")) == 1


async def test_what_is_deleted_after_it_was_applied_stays_a_line(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100")
        await books.create(correction("debit", "vision", {GPU: "8"}))
        await applied(books, "debit")
        await books.client.delete(CORRECTIONS, "debit")
        await books.holds_still("vision", lambda g: (g.status.used or {})[HOURS] == "8", 3)
        await books.create(correction("debit", "vision", {GPU: "8"}))
        await books.uses("vision", hours="16")
