"""Unreadable is unknown, not zero: a group with an unreadable record or child has no `used` until it is repaired.

And what is moved is split, through the watches of a whole controller.
"""

from __future__ import annotations

from bizrq.api.group import GroupObject
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS
from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import TFJOBS, deployment, tfjob

WILD = "v9 of a version that is to come"


def unknown(group: GroupObject) -> bool:
    ready = {c.type: (c.status, c.reason) for c in group.status.conditions}.get("Ready")
    return group.status.used is None and ready == ("False", "Unreadable")


async def test_a_child_that_cannot_be_read_leaves_its_parent_unknown_until_it_can(books: Books) -> None:
    async with books.controller():
        await books.group("corp", cpu="20")
        await books.group("nlp", "corp", cpu="10")
        await books.uses("corp", cpu="10")
        await books.rewrite("nlp", {"reservations": [WILD]})
        corp = await books.until("corp", unknown)
        ready, _ = corp.status.conditions
        assert ready.message == "child nlp cannot be read; the controller's log says more"

        async def is_counted() -> bool:
            # The minute of the line starts when nlp is looked at, which may be after corp was.
            books.clock.advance(61)
            return ((await books.read("corp")).status.used or {}).get("limits.cpu") == "10"

        await eventually(is_counted)


async def test_a_controller_that_starts_while_a_child_cannot_be_read_does_not_count_it_as_nothing(books: Books) -> None:
    async with books.controller():
        await books.group("corp", cpu="20")
        await books.group("nlp", "corp", cpu="10")
        await books.uses("corp", cpu="10")
    await books.rewrite("nlp", {"reservations": [WILD]})
    async with books.controller():
        await books.until("corp", unknown)
        await books.holds_still("corp", unknown, 2)


async def test_a_record_that_cannot_be_read_is_kept_as_it_stands_and_the_group_is_unknown(books: Books) -> None:
    """A broken line of the record does not lose spent hours: once repaired, the count goes on."""
    async with books.controller():
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="1")
    good = (await books.client.get(CARD_HOURS, "vision"))["status"]
    broken = {"open": {"settled": ["jobs.batch/default/train requests.nvidia.com/gpu=many"]}}
    await books.rewrite_record("vision", broken)
    async with books.controller():
        vision = await books.until("vision", unknown)
        [page] = await books.pages("vision")
        assert page.status.open.settled == broken["open"]["settled"]
        assert page.status.running == good["running"]
        assert "card-hours vision: 'many' is no amount" in vision.status.conditions[0].message
        await books.rewrite_record("vision", good)
        books.box.clock.advance(3600)
        await books.uses("vision", hours="2", gpu="1")


async def test_promises_of_an_unreadable_group_are_kept(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="10")
        await books.create(deployment("web", "nlp", 2))
        await books.uses("nlp", cpu="2")
        await books.rewrite("nlp", {"reservations": [WILD], "used": {"limits.cpu": "2"}})
        await books.client.patch(GROUPS, "nlp", {"spec": {"hard": {"no/such.name": "1"}}})
        found = await books.until("nlp", unknown)
        assert found.status.reservations == [WILD]


async def test_a_label_that_is_moved_splits_the_hours_between_the_groups(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", hours="100", gpu="8")
        await books.group("vision", hours="100", gpu="8")
        job = await books.create(tfjob("train", "nlp", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        await books.uses("nlp", hours="1")
        await books.client.patch(TFJOBS, "train", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
        await books.uses("vision", gpu="1")
        await books.uses("nlp", gpu="0")
        books.box.clock.advance(2 * 3600)
        await books.uses("vision", hours="2")
        await books.uses("nlp", hours="1")
