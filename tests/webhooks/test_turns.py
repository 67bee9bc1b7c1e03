"""When a finished answer may go: no more connections fall idle at once than the API server keeps."""

from __future__ import annotations

import asyncio
import time

from webhooks.turns import IDLE, PATIENCE, QUIET, Turns


def _later(seconds: float) -> float:
    return time.monotonic() + seconds


async def _gone(tasks: list[asyncio.Task[None]]) -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return sum(task.done() for task in tasks)


async def _burst(turns: Turns, count: int, deadline: float, peer: str = "api") -> list[asyncio.Task[None]]:
    for _ in range(count):
        turns.came(peer)
    return [asyncio.create_task(turns.turn(peer, deadline)) for _ in range(count)]


async def test_answers_beyond_what_is_kept_go_one_for_each_request_that_comes() -> None:
    turns = Turns()
    tasks = await _burst(turns, IDLE + 5, _later(10))
    assert await _gone(tasks) == IDLE
    for came in (1, 2, 3):
        turns.came("api")
        assert await _gone(tasks) == IDLE + came
    await asyncio.gather(*tasks)


async def test_where_nobody_comes_any_more_they_go_soon() -> None:
    turns = Turns()
    began = time.monotonic()
    await asyncio.gather(*await _burst(turns, 4 * IDLE, _later(10)))
    assert QUIET <= time.monotonic() - began < PATIENCE


async def test_no_answer_waits_past_its_deadline_nor_forever() -> None:
    turns = Turns()
    tasks = await _burst(turns, IDLE + 1, _later(0.0))
    assert await _gone(tasks) == IDLE + 1

    turns = Turns()
    began = time.monotonic()
    tasks = await _burst(turns, 10 * IDLE, _later(10))
    while not all(task.done() for task in tasks):
        # Requests keep coming, but slower than it would take.
        turns.came("api")
        await asyncio.sleep(QUIET / 2)
    assert time.monotonic() - began < PATIENCE + 4 * QUIET


async def test_one_api_server_does_not_wait_for_another() -> None:
    turns = Turns()
    await _gone(await _burst(turns, IDLE, _later(10), "first"))
    tasks = await _burst(turns, IDLE, _later(10), "second")
    assert await _gone(tasks) == IDLE


async def test_a_lone_request_never_waits() -> None:
    turns = Turns()
    for _ in range(3 * IDLE):
        turns.came("api")
        task = asyncio.create_task(turns.turn("api", _later(10)))
        assert await _gone([task]) == 1
