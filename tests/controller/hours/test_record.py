"""The record of card-hours: periods, statements, pages, and what remains of a deleted group."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bizrq.api import hours as wire
from bizrq.hours.metering import HOUR, group_total, period_total
from bizrq.hours.periods import ALL_TIME
from bizrq.kube.client import Invalid, NotFound
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, STATEMENTS, statements
from bizrq.units.times import parse_timestamp
from controller.hours import page_placement
from tests.controller.conftest import Books
from tests.support import objects
from tests.support.cluster import eventually
from tests.support.objects import NAMESPACES, tfjob

GPU = "requests.nvidia.com/gpu"
HOURS = f"cash/{GPU}"
DAY = 86_400


def card_hours(count: float) -> dict[str, int]:
    return {GPU: int(count * HOUR) * 10**9}


async def granted(books: Books, name: str, parent: str = "", cash: object = None, **hard: str) -> None:
    made = objects.group(name, parent, **hard)
    if cash is not None:
        made["spec"]["cash"] = cash
    await books.create(made)
    await books.until(name, lambda g: g.status.used is not None)


async def gone(books: Books, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await books.client.get(GROUPS, name)
        except NotFound:
            return True
        return False

    await eventually(is_gone, 60, f"{name} is gone")


async def test_hours_are_granted_anew_to_a_whole_tree_at_one_moment_and_split_there(books: Books) -> None:
    """From midnight on, a day later, the pod has run for 26 hours, of which 2 are of the new day."""
    async with books.controller():
        await granted(books, "corp", cash={"period": "daily"}, hours="100", gpu="8")
        await granted(books, "vision", "corp", hours="50", gpu="4")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        vision = await books.uses("vision", hours="1")
        assert vision.status.cash is not None
        assert parse_timestamp(vision.status.cash.period_end) == parse_timestamp("2026-01-02T00:00:00Z")
        books.box.clock.advance(25 * 3600)
        vision = await books.uses("vision", hours="2")
        assert vision.status.cash is not None
        assert parse_timestamp(vision.status.cash.period_start) == parse_timestamp("2026-01-02T00:00:00Z")

        async def stated() -> list[wire.Statement]:
            return await statements(books.client, "vision")

        [statement] = await eventually(stated, 60, "a statement")
        assert wire.parse_amounts(statement.spec.total) == card_hours(24)
        assert statement.metadata.name.startswith("vision.0.")
        page = wire.page_of(await books.until_record("vision", lambda page: bool(page.status.periods)))
        assert [each.amounts for each in page.closed] == [card_hours(24)]
        assert period_total(page) == card_hours(2)


async def test_statements_of_the_last_periods_are_kept(books: Books) -> None:
    """Three statements are kept and older ones deleted. The record still has the totals."""
    async with books.controller(keep_statements=3):
        await granted(books, "corp", cash={"period": "daily"}, hours="100", gpu="8")
        job = await books.create(tfjob("train", "corp", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(660)
        for day in range(1, 6):
            books.box.clock.advance(DAY)
            await books.until_record("corp", lambda page, day=day: len(page.status.periods) == day)

        async def stated() -> bool:
            return [each.spec.start for each in await statements(books.client, "corp")] == [
                f"2026-01-0{day}T00:00:00.000Z" for day in (3, 4, 5)
            ]

        await eventually(stated, 60, "three statements")
        record = wire.page_of((await books.pages("corp"))[0])
        assert sum(each.amounts[GPU] for each in record.closed) == card_hours(5 * 24)[GPU]


async def test_a_statement_cannot_be_edited(books: Books) -> None:
    spec = wire.StatementSpec("vision", "u", "2026-01-02T00:00:00Z", total={GPU: "1"})
    stored = await books.client.create(
        STATEMENTS, wire.to_json(wire.Statement(wire.ObjectMeta(name="vision.0.u"), spec))
    )
    stored["spec"]["total"] = {GPU: "2"}
    with pytest.raises(Invalid, match="a statement is never edited"):
        await books.client.replace(STATEMENTS, stored)


async def test_a_group_that_spent_nothing_carries_over_what_was_left(books: Books) -> None:
    async with books.controller():
        rollover = {"fraction": "50%", "cap": {GPU: "20"}}
        await granted(books, "corp", cash={"period": "daily", "rollover": rollover}, hours="100", gpu="8")
        books.box.clock.advance(DAY + 60)
        first = await books.until_record("corp", lambda page: bool(page.status.open.carried))
        assert first.status.open.carried == {HOURS: "20"}
        job = await books.create(tfjob("train", "corp", 1))
        await books.pod("train-0", job, gpu=8)
        books.box.clock.advance(3 * 3600)
        # Of 24 card-hours the rollover pays 20.
        await books.uses("corp", hours="4")
        books.box.clock.advance(DAY)
        await books.until_record("corp", lambda page: page.status.open.carried == {HOURS: "20"})


async def test_a_root_that_goes_leaves_its_statement(books: Books) -> None:
    async with books.controller():
        await books.group("corp", hours="100", gpu="8")
        job = await books.create(tfjob("train", "corp", 1))
        pod = await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("corp", hours="1")
        await books.remove(pod)
        await books.remove(job)
        await books.uses("corp", gpu="0")
        await books.remove(objects.group("corp"))
        await gone(books, "corp")
        [statement] = await statements(books.client, "corp")
        assert wire.parse_amounts(statement.spec.total) == card_hours(1)
        with pytest.raises(NotFound):
            await books.client.get(CARD_HOURS, "corp")


async def test_a_record_of_several_pages_is_the_sum_of_them_whoever_goes_on_with_it(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two intervals a page, five pods need three pages. Two leaders at once reuse freed room."""
    monkeypatch.setattr(page_placement, "MAX_INTERVALS", 2)
    monkeypatch.setattr(page_placement, "MAX_TEXT", 800)
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 5))
        pods = [await books.pod(f"train-{n}", job) for n in range(5)]
        books.box.clock.advance(3600)
        await books.uses("vision", hours="5")
        pages = await books.pages("vision")
        assert [page.spec.page for page in pages] == [0, 1, 2]
        assert sorted(page.status.count for page in pages) == [1, 2, 2]
        assert pages[1].metadata.name == f"vision.1.{pages[0].spec.uid[:8]}"
    # The namespace of a controller is none that it manages: the pods are in another.
    await books.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    async with books.controller(), books.controller(namespace="other"):
        for pod in pods[:2]:
            await books.remove(pod)
        await books.pod("train-5", job)
        await books.uses("vision", hours="5")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="9")
        pages = await books.pages("vision")
        assert len(pages) == 3
        assert group_total(map(wire.page_of, pages), ALL_TIME) == card_hours(9)


async def test_a_record_of_a_group_that_was_taken_away_by_force_is_not_its_namesakes(books: Books) -> None:
    """If the finalizer was removed, the record is closed with a statement, and the new group starts at 0."""
    async with books.controller():
        await books.group("corp", hours="100", gpu="8")
        job = await books.create(tfjob("train", "corp", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("corp", hours="1")
    await books.client.patch(GROUPS, "corp", {"metadata": {"finalizers": None}})
    await books.remove(objects.group("corp"))
    await books.remove(await books.client.get(objects.PODS, "train-0", "default"))
    async with books.controller():
        await books.group("corp", hours="100", gpu="8")
        await books.uses("corp", hours="0")
        [statement] = await statements(books.client, "corp")
        assert wire.parse_amounts(statement.spec.total) == card_hours(1)
        assert datetime.fromisoformat(statement.spec.end) <= datetime(2026, 1, 1, 1, tzinfo=UTC)


async def test_pods_that_outlive_their_workload_and_the_record_of_payers_are_charged_and_told(books: Books) -> None:
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        await books.uses("vision", gpu="1")
    await books.remove(job)
    await books.rewrite("vision", {"payers": []})
    async with books.controller():
        await books.uses("vision", gpu="0")
        books.box.clock.advance(3600)
        found = await books.until("vision", lambda g: any(c.type == "Unowned" for c in g.status.conditions))
        [told] = [c.message for c in found.status.conditions if c.type == "Unowned"]
        assert told == "card-hours are charged although the workload is gone: Pod default/train-0"
        await books.uses("vision", hours="1")
