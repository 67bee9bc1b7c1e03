"""When a finished answer may go: no more connections fall idle at once than the API server keeps."""

from __future__ import annotations

import asyncio

from webhooks.keepalive import IDLE, MOST_QUIET, PATIENCE, QUIET, ConnectionPacer


class _Connection(asyncio.BaseTransport):
    """One that a request came on; `closed` by the other side or not."""

    closed = False

    def is_closing(self) -> bool:
        return self.closed


def _turns() -> ConnectionPacer:
    return ConnectionPacer(asyncio.get_running_loop().time)


def _later(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def _gone(tasks: list[asyncio.Task[None]]) -> int:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return sum(task.done() for task in tasks)


async def _burst(
    turns: ConnectionPacer, connections: list[_Connection], seconds: float = 10, peer: str = "api"
) -> list[asyncio.Task[None]]:
    for connection in connections:
        turns.received(peer, connection)
    return [asyncio.create_task(turns.wait(peer, connection, _later(seconds))) for connection in connections]


def _connections(count: int) -> list[_Connection]:
    return [_Connection() for _ in range(count)]


async def test_answers_beyond_what_is_kept_go_one_for_each_request_that_comes() -> None:
    turns, connections = _turns(), _connections(IDLE + 5)
    tasks = await _burst(turns, connections)
    assert await _gone(tasks) == IDLE
    for came in (1, 2, 3):
        turns.received("api", connections[came])
        assert await _gone(tasks) == IDLE + came
    await asyncio.gather(*tasks)


async def test_a_request_on_a_new_connection_makes_no_room() -> None:
    turns = _turns()
    tasks = await _burst(turns, _connections(IDLE + 5))
    turns.received("api", _Connection())
    assert await _gone(tasks) == IDLE
    await asyncio.gather(*tasks)


async def test_a_connection_that_the_other_side_closed_makes_room() -> None:
    turns, connections = _turns(), _connections(IDLE)
    assert await _gone(await _burst(turns, connections)) == IDLE
    connections[3].closed = True
    tasks = await _burst(turns, _connections(2))
    assert await _gone(tasks) == 1
    await asyncio.gather(*tasks)


async def test_answers_go_soon_where_no_request_comes_any_more() -> None:
    turns = _turns()
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*await _burst(turns, _connections(4 * IDLE)))
    assert QUIET <= round(asyncio.get_running_loop().time() - began, 6) < MOST_QUIET


async def test_they_wait_longer_for_those_who_took_longer_before() -> None:
    turns, connections = _turns(), _connections(IDLE + 1)
    await asyncio.gather(*await _burst(turns, connections[:IDLE]))
    await asyncio.sleep(1.5 * QUIET)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*await _burst(turns, connections))
    assert asyncio.get_running_loop().time() - began > 3 * QUIET


async def test_no_answer_waits_past_its_deadline_nor_forever() -> None:
    turns = _turns()
    tasks = await _burst(turns, _connections(IDLE + 1), PATIENCE / 2)
    assert await _gone(tasks) == IDLE + 1

    turns, connections = _turns(), _connections(10 * IDLE)
    began = asyncio.get_running_loop().time()
    tasks = await _burst(turns, connections)
    for connection in connections:
        if all(task.done() for task in tasks):
            break
        # Requests keep coming, but slower than it would take.
        turns.received("api", connection)
        await asyncio.sleep(QUIET / 2)
    assert asyncio.get_running_loop().time() - began < PATIENCE + 4 * QUIET


async def test_one_api_server_does_not_wait_for_another() -> None:
    turns = _turns()
    await _gone(await _burst(turns, _connections(IDLE), peer="first"))
    tasks = await _burst(turns, _connections(IDLE), peer="second")
    assert await _gone(tasks) == IDLE


async def test_a_lone_request_never_waits() -> None:
    turns = _turns()
    for connection in _connections(1) * (3 * IDLE):
        turns.received("api", connection)
        task = asyncio.create_task(turns.wait("api", connection, _later(10)))
        assert await _gone([task]) == 1


async def test_an_answered_client_has_time_for_its_next_request_however_long_the_answers_took() -> None:
    turns, connections = _turns(), _connections(IDLE + 1)
    for connection in connections:
        turns.received("api", connection)
    await asyncio.sleep(1.5 * QUIET)
    tasks = [asyncio.create_task(turns.wait("api", connection, _later(10))) for connection in connections]
    await asyncio.sleep(QUIET / 3)
    assert await _gone(tasks) == IDLE
    await asyncio.gather(*tasks)
