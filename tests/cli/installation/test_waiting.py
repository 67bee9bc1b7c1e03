"""The one loop by which `bizrq install` and `uninstall` wait, on a clock of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bizrq.cli.installation import waiting
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure


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
    monkeypatch.setattr(waiting, "progress", lines.append)
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


async def test_what_comes_too_late_ends_the_verb_and_a_wait_without_words_is_silent(
    clock: Clock, said: list[str]
) -> None:
    with pytest.raises(Failure, match="late") as failure:
        await waiting.until(after(1000), 20, "late", pause=0.5, clock=clock, sleep=clock.sleep)
    assert (failure.value.code, clock.now, said) == (EXIT_CLUSTER, 120.5, [])


async def test_what_is_there_at_the_first_look_takes_no_time(clock: Clock) -> None:
    await waiting.until(after(0), 0, "late", clock=clock, sleep=clock.sleep)
    assert clock.now == 100
