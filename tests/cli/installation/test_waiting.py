"""The loop by which `bizrq install` and `uninstall` wait, and what every wait says, on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bizrq.cli.installation import waiting
from bizrq.cli.output import waits
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure
from bizrq.cli.output.waits import Wait


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(waits, "progress", lines.append)
    return lines


def after(looks: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition that is met after so many looks in vain."""
    left = [looks]

    async def reached() -> bool:
        left[0] -= 1
        return left[0] < 0

    return reached


async def test_a_long_wait_says_what_it_waits_for_and_how_long_it_has_waited(clock: Clock, said: list[str]) -> None:
    await waiting.until(after(40), 60, "late", what="for a pod", more=" of it", clock=clock, sleep=clock.sleep)
    assert clock.now == 140
    assert said == [
        "waiting up to 60 s for a pod of it",
        "still waiting for a pod: 15 of 60 s",
        "still waiting for a pod: 30 of 60 s",
    ]


async def test_what_comes_too_late_ends_the_verb(clock: Clock, said: list[str]) -> None:
    with pytest.raises(Failure, match="late") as failure:
        await waiting.until(after(1000), 20, "late", what="for it", pause=0.5, clock=clock, sleep=clock.sleep)
    assert (failure.value.code, clock.now) == (EXIT_CLUSTER, 120.5)
    assert said == ["waiting up to 20 s for it", "still waiting for it: 15 of 20 s"]


@pytest.mark.parametrize(("looks", "told"), [(15, []), (25, ["waiting up to 60 s for it"])])
async def test_a_wait_that_is_short_as_a_rule_is_told_when_it_is_not(
    clock: Clock, said: list[str], looks: int, told: list[str]
) -> None:
    wait = {"quiet": 2.0, "pause": 0.1, "clock": clock, "sleep": clock.sleep}
    await waiting.until(after(looks), 60, "late", what="for it", **wait)
    assert said == told


async def test_what_is_there_at_the_first_look_takes_no_time(clock: Clock) -> None:
    await waiting.until(after(0), 0, "late", what="for it", clock=clock, sleep=clock.sleep)
    assert clock.now == 100


async def test_a_block_that_waits_says_so_until_it_ends(
    clock: Clock, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_LOOK", 0.0)
    async with waits.said(Wait("for the Lease", 60, clock=clock)):
        assert said == ["waiting up to 60 s for the Lease"]
        clock.now += 20
        await _turns()
        clock.now += 20
    await _turns()
    assert said[1:] == ["still waiting for the Lease: 20 of 60 s"]


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
