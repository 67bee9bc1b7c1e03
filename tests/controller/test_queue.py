"""The work queue: each key once, never two runs of one key at a time, growing delays after failures."""

from __future__ import annotations

import asyncio

import pytest

from controller.queue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(pace=0.1, clock=clock)


async def ready(queue: WorkQueue) -> list[str]:
    """Return the keys that are due now, finishing each at once."""
    found = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                key = await queue.get()
        except TimeoutError:
            return found
        found.append(key)
        queue.done(key)


async def test_a_key_that_is_added_twice_comes_up_once_and_at_the_earlier_time(queue: WorkQueue, clock: Clock) -> None:
    queue.add("nlp", 5)
    queue.add("nlp", 1)
    queue.add("nlp", 3)
    assert len(queue) == 1
    assert await ready(queue) == []
    clock.now += 1
    assert await ready(queue) == ["nlp"]
    clock.now += 10
    assert await ready(queue) == []


async def test_keys_come_up_in_the_order_they_are_due(queue: WorkQueue, clock: Clock) -> None:
    for key, after in (("c", 3), ("a", 1), ("b", 2)):
        queue.add(key, after)
    clock.now += 3
    assert await ready(queue) == ["a", "b", "c"]


async def test_a_key_added_while_it_is_looked_at_comes_up_again_after_and_never_twice_at_once(
    queue: WorkQueue, clock: Clock
) -> None:
    queue.add("nlp")
    assert await queue.get() == "nlp"
    queue.add("nlp")
    clock.now += 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.get()
    queue.done("nlp")
    assert await ready(queue) == ["nlp"]


async def test_two_looks_at_one_key_are_a_pace_apart(queue: WorkQueue, clock: Clock) -> None:
    queue.add("nlp")
    assert await ready(queue) == ["nlp"]
    queue.add("nlp")
    assert await ready(queue) == []
    clock.now += 0.1
    assert await ready(queue) == ["nlp"]


async def test_a_failed_look_comes_again_later_each_time_and_success_forgets_it(queue: WorkQueue, clock: Clock) -> None:
    waits: list[int] = []
    found = None
    queue.add("nlp")
    for _ in range(20):
        began = clock.now
        while len(queue) and not (found := await _one(queue)):
            clock.now += 0.1 if clock.now - began < 1 else 1
        waits.append(round(clock.now - began))
        queue.done("nlp", failed=True)
    assert waits[0] == 0
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] == 30
    clock.now += 31
    assert await queue.get() == "nlp"
    queue.done("nlp")
    assert len(queue) == 0
    assert found == "nlp"


async def test_whoever_waits_is_woken_by_what_is_added(queue: WorkQueue) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("nlp")
    assert await asyncio.wait_for(waiting, 1) == "nlp"


async def test_many_workers_share_the_keys_and_none_gets_anothers(queue: WorkQueue) -> None:
    keys = {f"g{n}" for n in range(50)}
    looks: list[str] = []

    all_looked_at = asyncio.Event()

    async def work() -> None:
        while True:
            key = await queue.get()
            looks.append(key)
            await asyncio.sleep(0)
            queue.done(key)
            if len(looks) == len(keys):
                all_looked_at.set()

    workers = [asyncio.create_task(work()) for _ in range(5)]
    for key in keys:
        queue.add(key)
    async with asyncio.timeout(2):
        await all_looked_at.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(looks) == sorted(keys)


async def _one(queue: WorkQueue) -> str | None:
    try:
        async with asyncio.timeout(0):
            return await queue.get()
    except TimeoutError:
        return None
