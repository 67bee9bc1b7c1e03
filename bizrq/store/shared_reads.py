"""Reads that all who wait for the same thing share.

This file alone decides that: one read of a key is under way at a time, and every caller gets the result of one that
began after it asked. So a burst of equal questions costs two reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedReads(Generic[K, V]):
    """Reads keys by `read`, each at most once at a time."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._running: dict[K, asyncio.Task[V]] = {}
        #: Reads that have not begun: everybody may join them.
        self._next: dict[K, asyncio.Task[V]] = {}

    async def of(self, key: K) -> V:
        """Return the result of a read that begins after this call. Raises what the read raises."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._turn(key))
            # A caller may be gone when the read fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _turn(self, key: K) -> V:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait([before])
        task = self._running[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            if self._running.get(key) is task:
                del self._running[key]
