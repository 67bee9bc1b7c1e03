"""What the controller shows a scraper: the figures of groups while it leads, its queue, its lead."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from bizrq.store.groups import GROUPS
from controller.metrics import OF_GROUPS
from controller.queue import NAME, QueueState, WorkQueue
from tests.controller.conftest import Books
from tests.controller.test_queue import Clock
from tests.controller.test_unreadable import WILD, unknown
from tests.support.cluster import eventually
from tests.support.language import entry
from tests.support.objects import deployment
from tests.support.scraped import of_group, sample

MEMORY = {"limits.memory": "64Gi"}
FIGURES = ("group_hard", "group_used", "group_self_used", "group_reserved")


async def figures(group: str) -> dict[str, dict[str, float]]:
    found = await of_group(group)
    return {name: found[name] for name in FIGURES if name in found}


async def until_figures(group: str, wanted: dict[str, dict[str, float]]) -> None:
    async def found() -> bool:
        return await figures(group) == wanted

    await eventually(found, 60, f"the figures {wanted} of {group}")


async def test_the_figures_of_a_group_are_in_base_units_and_end_with_the_group(books: Books) -> None:
    """Cores and bytes, whatever suffix they are written with. A parent has what its children hold as used."""
    async with books.controller():
        await books.group("corp", cpu="20", **MEMORY)
        await books.group("nlp", "corp", cpu="2500m", **{"limits.memory": "4Gi"})
        await books.create(deployment("web", "nlp", 2, cpu="250m"))
        await books.uses("nlp", cpu="500m")
        await until_figures("nlp", {
            "group_hard": {"limits.cpu": 2.5, "limits.memory": 4 * 2**30},
            "group_used": {"limits.cpu": 0.5, "limits.memory": 0},
            "group_self_used": {"limits.cpu": 0.5, "limits.memory": 0},
            "group_reserved": {"limits.cpu": 0, "limits.memory": 0},
        })  # fmt: skip
        await until_figures("corp", {
            "group_hard": {"limits.cpu": 20, "limits.memory": 64 * 2**30},
            "group_used": {"limits.cpu": 2.5, "limits.memory": 4 * 2**30},
            "group_self_used": {"limits.cpu": 0, "limits.memory": 0},
            "group_reserved": {"limits.cpu": 0, "limits.memory": 0},
        })  # fmt: skip
        assert (await of_group("nlp"))["device_mismatches"] == {"": 0}
        await books.promise("nlp", entry("later", "cpu=1"))
        await until_figures("nlp", {
            "group_hard": {"limits.cpu": 2.5, "limits.memory": 4 * 2**30},
            "group_used": {"limits.cpu": 0.5, "limits.memory": 0},
            "group_self_used": {"limits.cpu": 0.5, "limits.memory": 0},
            "group_reserved": {"limits.cpu": 1, "limits.memory": 0},
        })  # fmt: skip
        await books.group("spare", cpu="1")
        await books.client.delete(GROUPS, "spare")

        async def ended() -> bool:
            return not await of_group("spare")

        await eventually(ended, 60, "no series of a deleted group")
        assert await figures("nlp")


async def test_a_group_that_cannot_be_counted_has_no_figures(books: Books) -> None:
    """The last ones would look as if they were true now."""
    async with books.controller():
        await books.group("corp", cpu="20")
        await books.group("nlp", "corp", cpu="10")
        await books.uses("corp", cpu="10")
        await books.rewrite("nlp", {"reservations": [WILD]})
        await books.until("corp", unknown)
        await until_figures("corp", {})


async def test_a_controller_that_no_longer_leads_shows_no_group(books: Books) -> None:
    """Its successor does; two figures of one group would add up to twice as much in a dashboard."""
    async with books.controller() as controller:
        collectors = controller.collectors()
        await books.group("nlp", cpu="10")
        await eventually(lambda: of_group("nlp"), 60, "figures")
        assert await sample("leader_election_master_status", name="bizrq-controller") == 1
        assert await sample("bizrq_watch_age_seconds", collectors=collectors, resource=GROUPS.key) is not None
    assert await of_group("nlp") == {}
    assert all(len(family.snapshot()) == 1 for family in OF_GROUPS), "nothing but the heads"
    assert await sample("leader_election_master_status", name="bizrq-controller") == 0


def measured(queue: WorkQueue, name: str, served: bool = True) -> float:
    found = {family.name: family for family in QueueState(queue, lambda: served).collect()}
    [value] = [s.value for s in found[name].samples if s.labels == {"name": NAME}]
    return value


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(name, {"name": NAME}) or 0.0


async def test_the_depth_of_the_queue_is_what_is_due_now_and_not_at_work() -> None:
    """As client-go counts it. A group that is due in five minutes does not wait."""
    clock = Clock()
    queue = WorkQueue(pace=0.1, clock=clock)
    adds, waits = counted("workqueue_adds_total"), counted("workqueue_queue_duration_seconds_sum")
    queue.add("now")
    queue.add("too")
    queue.add("later", 300)
    queue.add("later", 200)
    assert counted("workqueue_adds_total") - adds == 3
    assert measured(queue, "workqueue_depth") == 2
    clock.now += 3
    assert await queue.get() == "now"
    assert counted("workqueue_queue_duration_seconds_sum") - waits == 3
    assert measured(queue, "workqueue_depth") == 1
    queue.add("now")
    clock.now += 1
    assert measured(queue, "workqueue_depth") == 1, "what is at work does not wait as well"
    assert await queue.get() == "too"
    clock.now += 4
    assert measured(queue, "workqueue_unfinished_work_seconds") == 5 + 4
    assert measured(queue, "workqueue_longest_running_processor_seconds") == 5
    assert measured(queue, "workqueue_depth", served=False) == 0, "nobody takes any: nothing is late"
    works, retries = counted("workqueue_work_duration_seconds_sum"), counted("workqueue_retries_total")
    queue.done("now", failed=True)
    queue.done("too")
    assert counted("workqueue_work_duration_seconds_sum") - works == 9
    assert counted("workqueue_retries_total") - retries == 1
    assert measured(queue, "workqueue_longest_running_processor_seconds") == 0


async def test_the_time_before_anybody_took_keys_is_no_waiting_time() -> None:
    """A controller that waits for the lead for a week would show a week."""
    clock = Clock()
    queue = WorkQueue(pace=0.1, clock=clock)
    queue.add("nlp")
    clock.now += 604_800
    queue.begin()
    clock.now += 2
    before = counted("workqueue_queue_duration_seconds_sum")
    assert await asyncio.wait_for(queue.get(), 5) == "nlp"
    assert counted("workqueue_queue_duration_seconds_sum") - before == 2
