"""The one store of all groups, for the users who may list and watch all of them.

This file alone decides whose credentials fill it. It holds none of its own: users lend theirs while they are signed in
and have proven that right, and without a lender the store is emptied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from bizrq.kube.client import ConfigError, KubeClient
from bizrq.kube.config import Credentials, Endpoint, Identity
from bizrq.metrics import observed
from bizrq.store.groups import GroupStore

log = structlog.get_logger(__name__)


class _Lent:
    """The credentials of whoever lends theirs first; the next lender's when the API server rejects them."""

    def __init__(self) -> None:
        self.lenders: dict[str, Credentials] = {}
        self._last: Identity | None = None

    async def identity(self, *, rejected: bool = False) -> Identity:
        if rejected and self.lenders:
            who, lender = next(iter(self.lenders.items()))
            renewed = await lender.identity(rejected=True)
            if renewed != self._last:
                self._last = renewed
                return renewed
            # The lender learns of it at their own next request.
            del self.lenders[who]
        for lender in self.lenders.values():
            self._last = await lender.identity()
            return self._last
        raise ConfigError("nobody who may list groups is signed in")


class SharedGroups:
    """All groups, current while somebody lends their credentials. `on_change` gets name and parent of a changed one."""

    def __init__(
        self, endpoint: Endpoint, *, on_change: Callable[[str, str], None], clock: Callable[[], float] = time.time
    ) -> None:
        """The credentials of `endpoint` are not used. `clock` is Unix time in seconds."""
        self._endpoint = endpoint
        self._on_change = on_change
        self._clock = clock
        self._lent = _Lent()
        self._client: KubeClient | None = None
        self._task: asyncio.Task[None] | None = None
        self.store: GroupStore | None = None

    def lend(self, who: str, credentials: Credentials) -> GroupStore:
        """Return the store, filled with these credentials if nobody else lends theirs. Call it for each proof."""
        self._lent.lenders.setdefault(who, credentials)
        if self.store is None:
            self._client = observed(KubeClient(replace(self._endpoint, credentials=self._lent, headers=())))
            self.store = GroupStore(self._client, on_change=self._changed)
            self._task = asyncio.create_task(self.store.informer.run(), name="groups of all")
        return self.store

    async def withdraw(self, who: str) -> None:
        """Use these credentials no more. The last lender takes the store with them."""
        used = next(iter(self._lent.lenders), "") == who
        self._lent.lenders.pop(who, None)
        if not self._lent.lenders:
            await self.close()
        elif used and self.store is not None:
            self.store.informer.relist()

    @property
    def away_since(self) -> float | None:
        """Return the Unix time since which the store may be behind, None while it is current."""
        if self.store is None or not self.store.informer.problem:
            return None
        return self._clock() - self.store.informer.age

    async def close(self) -> None:
        task, client = self._task, self._client
        self._task = self._client = self.store = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if client is not None:
            await client.close()

    def _changed(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        obj = new or old
        if obj is not None:
            self._on_change(obj["metadata"]["name"], (obj.get("spec") or {}).get("parentBizGroup") or "")
