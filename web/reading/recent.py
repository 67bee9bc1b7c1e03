"""Answers of a few seconds ago, of one user: pages follow changes faster than some questions may be asked.

This file alone decides how long an answer is used again. Answers are never shared between users.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: The most answers that are kept of one user.
_MOST = 50
#: A page that follows changes takes an answer for this many times as long as it took to make, at most so many seconds.
_TIMES, _LONGEST = 50, 120.0


@dataclass(frozen=True, slots=True)
class RecentAnswer(Generic[T]):
    """An answer, and the seconds since it was asked for."""

    value: T
    age: float


@dataclass(eq=False, slots=True)
class _Asked:
    made: asyncio.Future[Any]
    at: float
    #: Seconds that it took to make.
    took: float = 0.0


class Recent:
    """The answers of one user by question. Who asks while an answer is made waits for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, _Asked] = OrderedDict()

    async def get(
        self, question: str, make: Callable[[], Awaitable[T]], seconds: float, *, follows: bool = False
    ) -> RecentAnswer[T]:
        """Return an answer that is at most so many seconds old. Raise what `make` raises.

        A page that follows changes asks again and again: it gets older answers to what takes long.
        """
        known = self._answers.get(question)
        if known is None or self._is_old(known, seconds, follows):
            known = self._answers[question] = _Asked(asyncio.ensure_future(make()), self._clock())
            known.made.add_done_callback(lambda _, asked=known: self._note(asked))
            self._answers.move_to_end(question)
            if len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        return RecentAnswer(await asyncio.shield(known.made), self._clock() - known.at)

    def _note(self, asked: _Asked) -> None:
        asked.took = self._clock() - asked.at

    def _is_old(self, asked: _Asked, seconds: float, follows: bool) -> bool:
        if asked.made.done() and asked.made.exception():
            return True
        most = max(seconds, min(_TIMES * asked.took, _LONGEST)) if follows else seconds
        return self._clock() - asked.at >= most
