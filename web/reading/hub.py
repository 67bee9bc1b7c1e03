"""Who is told that a group changed: the open streams.

This file alone decides which stream hears of which group. It carries names only: figures are read with the rights of
whoever looks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class ShownGroups:
    """What a page shows: groups by name and the children of some, or all groups where both are empty."""

    names: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()

    @property
    def is_all(self) -> bool:
        return not self.names and not self.below

    def has(self, name: str, parent: str) -> bool:
        """Return True for a group of this name and parent."""
        return self.is_all or name in self.names or parent in self.below


#: All that a user sees.
ALL = ShownGroups()


class Topic:
    """What one stream listens for. It collects until it is taken."""

    def __init__(self, scope: ShownGroups) -> None:
        self._scope = scope
        self._changed = asyncio.Event()

    def hear(self, name: str, parent: str) -> None:
        if self._scope.has(name, parent):
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

    def tell(self, name: str, parent: str) -> None:
        """Wake the streams that a change of this group, or its coming or going, concerns."""
        self._changes += 1
        for topic in self._topics:
            topic.hear(name, parent)

    def wake(self) -> None:
        for topic in self._topics:
            topic.wake()

    @contextmanager
    def listening(self, scope: ShownGroups) -> Iterator[Topic]:
        topic = Topic(scope)
        self._topics.add(topic)
        try:
            yield topic
        finally:
            self._topics.discard(topic)
