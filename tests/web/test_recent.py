"""For how long an answer is used again."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from web.reading.recent import Recent


class Questions:
    """Answers with the number of the time it is asked, after some seconds of its own clock."""

    def __init__(self, takes: float) -> None:
        self.now = 0.0
        self.recent = Recent(lambda: self.now)
        self._takes = takes
        self._numbers = itertools.count(1)

    async def ask(self, *, follows: bool = False) -> tuple[int, float]:
        async def make() -> int:
            self.now += self._takes
            return next(self._numbers)

        found = await self.recent.get("?", make, 10, follows=follows)
        await asyncio.sleep(0)
        return found.value, found.age


@pytest.mark.parametrize(("takes", "lasts"), [(0.01, 10), (0.5, 25), (60, 120)])
async def test_an_open_page_asks_less_often_for_what_takes_long(takes: float, lasts: float):
    questions = Questions(takes)
    assert await questions.ask() == (1, takes)
    questions.now = lasts - 0.01
    assert (await questions.ask(follows=True))[0] == 1
    questions.now = lasts
    assert (await questions.ask(follows=True))[0] == 2


async def test_a_page_that_is_loaded_again_has_no_answer_of_long_ago():
    questions = Questions(0.5)
    await questions.ask()
    questions.now = 9.9
    assert await questions.ask() == (1, 9.9)
    questions.now = 10
    assert await questions.ask() == (2, 0.5)


async def test_an_answer_that_failed_is_asked_for_again_and_one_that_is_made_is_awaited():
    recent = Recent(lambda: 0.0)
    made = 0

    async def fail() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        raise ValueError

    for expected in (1, 2):
        found = await asyncio.gather(*(recent.get("?", fail, 10) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in found] == [ValueError] * 3
        assert made == expected
