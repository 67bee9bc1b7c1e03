"""Who is told that a group changed: the open streams.

This file alone decides which stream hears of which group. It carries names only: figures are read with the rights of
whoever looks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Topic:
    """What one stream listens for: some groups, or all where `names` is None. It collects until it is taken."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(names)
        self._changed = asyncio.Event()

    def hear(self, name: str) -> None:
        if self._names is None or name in self._names:
            self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Return True when something changed since the last call, False after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def wake(self) -> None:
        """End a wait at once."""
        self._changed.set()


class Hub:
    """All open streams of one audience: everybody who shares a store, or one user."""

    def __init__(self) -> None:
        self._topics: set[Topic] = set()
        self._process = secrets.token_hex(4)
        self._changes = 0

    @property
    def version(self) -> str:
        """Return a word that differs after every change, and in every process."""
        return f"{self._process}-{self._changes}"

    def __len__(self) -> int:
        return len(self._topics)

    def tell(self, name: str) -> None:
        self._changes += 1
        for topic in self._topics:
            topic.hear(name)

    def wake(self) -> None:
        for topic in self._topics:
            topic.wake()

    @contextmanager
    def listening(self, names: Collection[str] | None) -> Iterator[Topic]:
        topic = Topic(names)
        self._topics.add(topic)
        try:
            yield topic
        finally:
            self._topics.discard(topic)
