"""Answers of a few seconds ago, of one user: pages follow changes faster than some questions may be asked.

This file alone decides how long an answer is used again. Answers are never shared between users.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: The most answers that are kept of one user.
_MOST = 50


class Recent:
    """The answers of one user by question. Who asks while an answer is made waits for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, tuple[float, asyncio.Future[Any]]] = OrderedDict()

    async def get(self, question: str, make: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Return an answer that is at most so many seconds old. Raise what `make` raises."""
        known = self._answers.get(question)
        if known is None or self._clock() - known[0] >= seconds or (known[1].done() and known[1].exception()):
            made = asyncio.ensure_future(make())
            known = self._answers[question] = self._clock(), made
            self._answers.move_to_end(question)
            if len(self._answers) > _MOST:
                self._answers.popitem(last=False)
        return await asyncio.shield(known[1])
