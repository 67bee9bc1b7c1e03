"""Looks whether the webhook registration is there, and why not, for the condition `Enforced` of every group.

This file alone decides when the leader looks, and how fast groups learn of a change. A change is no reason to write all
groups at once: they are recounted one after the other, and each writes its status with that recount.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from bizrq.api import enforcement
from bizrq.kube.client import ApiError, KubeClient, Unreachable
from bizrq.store import pause, registered

log = structlog.get_logger(__name__)

#: Seconds between two looks, while the registration is there and while it is missing.
CHECK, CHECK_MISSING = 10.0, 1.0
#: Seconds between two groups that are recounted because of a change: with 10,000 groups that takes longer than the
#: interval of recounts, by which they learn of it anyway.
PACE = 0.05
_TIMEOUT = 5.0


class EnforcementWatch:
    """Knows whether the registration is there; None until the first look, and where it may not be read."""

    def __init__(
        self,
        client: KubeClient,
        groups: Callable[[], Iterable[str]],
        enqueue: Callable[[str], None],
        *,
        namespace: str,
        check: float = CHECK,
        pace: float = PACE,
    ) -> None:
        """`check` and `pace` are in seconds; `enqueue` asks for a recount of a group; `namespace` is that of bizrq."""
        self._client = client
        self._groups = groups
        self._enqueue = enqueue
        self._namespace = namespace
        self._check = check
        self._pace = pace
        self.is_there: bool | None = None
        #: Since when bizrq is paused, by whom and why; "" where the registration is there, or missing without a pause.
        self.pause = ""
        self._is_first = True
        #: The log has a line that it is missing.
        self._is_told = False

    async def look(self) -> bool:
        """Look once. Return whether that changed what is known; without an answer, what was known stays."""
        before = self.is_there, self.pause
        is_first = self._is_first
        try:
            self.is_there = registered.has_entries(await registered.stored(self._client, timeout=_TIMEOUT))
            paused = None if self.is_there else await pause.read(self._client, self._namespace, timeout=_TIMEOUT)
            self.pause = str(paused or "")
        except (ApiError, Unreachable) as error:
            log.warning("the webhook registration could not be read", error=str(error))
        if self.is_there is not None:
            self._is_first = False
        # Whoever starts registers a moment later: only what is missing after that is worth a line.
        if self.is_there is False and not is_first and not self._is_told:
            self._is_told = True
            log.warning("quota is not enforced: the webhook registration is missing", name=enforcement.REGISTRATION)
        elif self.is_there and self._is_told:
            self._is_told = False
            log.info("quota is enforced again: the webhook registration is there", name=enforcement.REGISTRATION)
        return (self.is_there, self.pause) != before

    async def run(self) -> None:
        """Look again and again until cancelled, and have the groups recounted after a change."""
        while True:
            await asyncio.sleep(self._check if self.is_there else min(self._check, CHECK_MISSING))
            if await self.look():
                for name in [*self._groups()]:
                    self._enqueue(name)
                    await asyncio.sleep(self._pace)
