"""The loop on which most tests run: its time passes while everything waits, and hardly while anything works."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.support.patience import SPEED, PatientLoop


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        runner.run(test)


def test_an_hours_wait_is_an_hour_of_the_loop_and_of_monotonic() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        began, told = loop.time(), time.monotonic()
        await asyncio.sleep(3600)
        assert loop.time() - began == pytest.approx(3600, abs=1)
        assert time.monotonic() - told == loop.time() - began

    before = time.monotonic
    run(test())
    assert time.monotonic is before


def test_work_misses_no_deadline() -> None:
    async def test() -> None:
        async with asyncio.timeout(0.1):
            began = time.thread_time()
            while time.thread_time() - began < 0.2:  # noqa: ASYNC110
                await asyncio.sleep(0)

    run(test())


def test_what_comes_over_a_socket_comes_before_any_timer() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            other.setblocking(False)
            for _ in range(100):
                await loop.sock_sendall(one, b"x")
                async with asyncio.timeout(0.05):
                    assert await loop.sock_recv(other, 1) == b"x"

    run(test())


def test_a_timer_comes_up_where_something_is_always_going_on() -> None:
    async def test() -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1 / SPEED, over.set)
        while not over.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(test())


def test_work_in_a_thread_is_waited_for() -> None:
    async def test() -> None:
        async with asyncio.timeout(0.1):
            await asyncio.to_thread(lambda: sum(range(10_000_000)))

    run(test())


def test_a_process_is_refused() -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match="ordinary event loop"):
            await asyncio.create_subprocess_exec("true")

    run(test())
