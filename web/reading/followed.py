"""Groups that a user without the right to list them follows, each by its name.

This file alone decides how one group is kept current: read it, watch it, and where it may not be watched, read it
again from time to time. Every request has the user's own credentials.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.backoff import Backoff
from bizrq.kube.client import (
    ApiError,
    ConfigError,
    Forbidden,
    Gone,
    KubeClient,
    NotFound,
    Unauthorized,
    Unreachable,
)
from bizrq.store.groups import GROUPS

log = structlog.get_logger(__name__)

#: The most groups that one user follows by watches; more are read when a page asks for them.
MOST = 50
#: Seconds between two reads of a group that may not be watched.
_POLL = 15.0
#: Seconds of one watch, and of silence after which it counts as broken.
_WATCH, _SILENCE = 240, 300.0


class Followed:
    """The groups of one user, by name. `on_change` gets name and parent of one that changed, came or went."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_change: Callable[[str, str], None],
        on_rejected: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_rejected` is called when the API server does not know the user any more. `clock` is Unix time."""
        self._client = client
        self._on_change = on_change
        self._on_rejected = on_rejected
        self._clock = clock
        self._groups: dict[str, GroupObject] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._first: dict[str, asyncio.Event] = {}
        #: Since when a group is not current, in Unix time.
        self._away: dict[str, float] = {}

    @property
    def by_name(self) -> Mapping[str, GroupObject]:
        """Return the groups that were read, as a view that follows changes."""
        return MappingProxyType(self._groups)

    @property
    def away_since(self) -> float | None:
        """Return the time since which some group may have changed unseen, None where all are current."""
        return min(self._away.values(), default=None)

    async def follow(self, names: Collection[str], timeout: float) -> None:
        """Follow these groups too, and wait until each was read once, or for `timeout` seconds."""
        for name in sorted(names):
            if name not in self._tasks and len(self._tasks) < MOST:
                self._first[name] = asyncio.Event()
                self._tasks[name] = asyncio.create_task(self._follow(name), name=f"follow {name}")
        waiting = [self._first[name].wait() for name in names if name in self._first]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*waiting)
        except TimeoutError:
            log.debug("groups are not read yet", groups=len(waiting))

    async def leave(self, names: Collection[str]) -> None:
        """Follow these groups no more."""
        tasks = [self._tasks.pop(name) for name in names if name in self._tasks]
        for name in names:
            self._forget(name)
            self._away.pop(name, None)
            self._first.pop(name, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def names(self) -> Collection[str]:
        return tuple(self._tasks)

    async def close(self) -> None:
        await self.leave(self.names)

    async def _follow(self, name: str) -> None:
        backoff = Backoff(0.5, 15.0, 30.0, asyncio.get_running_loop().time)
        while True:
            try:
                await self._once(name)
                continue
            except (NotFound, Forbidden):
                self._forget(name)
                self._away.pop(name, None)
                pause = _POLL
            except Unauthorized:
                self._on_rejected()
                return
            except (ApiError, Unreachable, ConfigError) as error:
                self._away.setdefault(name, self._clock())
                log.info("a group is not current", group=name, error=str(error))
                pause = backoff.after_failure()
            except GroupUnreadable as error:
                log.warning("a group cannot be read", group=name, error=str(error))
                self._forget(name)
                pause = _POLL
            finally:
                if first := self._first.get(name):
                    first.set()
            await asyncio.sleep(pause)

    async def _once(self, name: str) -> None:
        """Read the group, then watch it until the watch ends."""
        stored = await self._client.get(GROUPS, name)
        self._take(name, stored)
        self._away.pop(name, None)
        self._first[name].set()
        events = self._client.watch(
            GROUPS,
            resource_version=stored["metadata"]["resourceVersion"],
            field_selector=f"metadata.name={name}",
            timeout_seconds=_WATCH,
        )
        try:
            async with aclosing(events), asyncio.timeout(_SILENCE) as scope:
                async for kind, obj in events:
                    scope.reschedule(asyncio.get_running_loop().time() + _SILENCE)
                    if kind == "DELETED":
                        self._forget(name)
                    elif kind in ("ADDED", "MODIFIED"):
                        self._take(name, obj)
        except Forbidden:
            await asyncio.sleep(_POLL)
        except (Gone, TimeoutError):
            return

    def _take(self, name: str, obj: dict[str, Any]) -> None:
        before, now = self._groups.get(name), wire.from_dict(obj)
        self._groups[name] = now
        if before is None or before.resource_version != now.resource_version:
            self._on_change(name, now.parent)

    def _forget(self, name: str) -> None:
        if (gone := self._groups.pop(name, None)) is not None:
            self._on_change(name, gone.parent)
