"""One watch of one kind: an optional streamed list first, then events, until the watch ends.

This file alone decides when a watch hangs, when its list is complete, and when to cut it. It does not know what an
event means for a snapshot. The protocol: KEP-956 (bookmarks) and KEP-3157 (streamed lists).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

from bizrq.kube.client import KubeClient, Resource, Unreachable, revision_of
from bizrq.kube.store import Kept, Object, uid_of

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True)
class WatchTimings:
    """The waiting times of a watch, in seconds."""

    #: The range of timeoutSeconds, from which each watch draws.
    watch: tuple[float, float] = (120.0, 240.0)
    #: The longest silence. Bookmarks come about once a minute; two missing ones are suspicious.
    silence: float = 130.0
    #: The longest silence before the end of a streamed list, and the timeout of one page of a list.
    initial: float = 60.0


class WatchEnd(Enum):
    """Why a watch ended without an error."""

    CUT = "cut by the caller"
    SILENT = "silent for too long"
    ENDED = "ended by the server"


class WatchStream:
    """One watch. `run` delivers what it brings; `cut` ends it early."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        timings: WatchTimings,
        *,
        label_selector: str | None,
        field_selector: str | None,
        transform: Callable[[Object], Kept],
        on_list: Callable[[Collection[Kept], int], None],
        on_event: Callable[[str, Object], None],
    ) -> None:
        """`on_list` gets the objects of a streamed list, transformed, and its revision; `on_event` each later event."""
        self._client = client
        self._resource = resource
        self._timings = timings
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._transform = transform
        self._on_list = on_list
        self._on_event = on_event
        self._scope: asyncio.Timeout | None = None
        self._is_cut = False
        #: True once anything came.
        self.heard = False
        #: Seconds that the watch took.
        self.seconds = 0.0

    def cut(self) -> None:
        """End the watch after the event at hand, or now if it waits. A streamed list comes to its end first."""
        self._is_cut = True
        scope, self._scope = self._scope, None
        if scope is not None and not scope.expired():
            scope.reschedule(asyncio.get_running_loop().time())

    async def run(self, since: int | None) -> WatchEnd:
        """Watch from a revision, or from a streamed list if `since` is None.

        Raise Unreachable for a streamed list that does not end well, and what `KubeClient.watch` and the callbacks
        raise.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        initial: dict[str, Kept] | None = {} if since is None else None
        events = self._client.watch(
            self._resource,
            resource_version="" if since is None else str(since),
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=max(1, round(random.uniform(*self._timings.watch))),  # noqa: S311 (jitter)
            send_initial_events=initial is not None,
        )
        silence = self._timings.silence if initial is None else self._timings.initial
        try:
            async with asyncio.timeout(silence) as scope, aclosing(events):
                if initial is None:
                    self._scope = scope
                async for kind, obj in events:
                    self.heard = True
                    if initial is None:
                        self._on_event(kind, obj)
                    elif self._is_list_complete(initial, kind, obj):
                        self._on_list(initial.values(), revision_of(obj))
                        initial, silence, self._scope = None, self._timings.silence, scope
                    if initial is None and self._is_cut:
                        return WatchEnd.CUT
                    scope.reschedule(loop.time() + silence)
        except TimeoutError:
            if initial is not None:
                raise Unreachable(f"{self._client.server} fell silent within a streamed list", sent=True) from None
            return WatchEnd.CUT if self._is_cut else WatchEnd.SILENT
        finally:
            self._scope = None
            self.seconds = loop.time() - began
        if initial is not None:
            raise Unreachable(f"{self._client.server} ended a streamed list early", sent=True)
        return WatchEnd.ENDED

    def _is_list_complete(self, initial: dict[str, Kept], kind: str, obj: Object) -> bool:
        """Add an event to a streamed list; return True at the bookmark that ends it."""
        if kind == "BOOKMARK":
            annotations = (obj.get("metadata") or {}).get("annotations") or {}
            return annotations.get(INITIAL_EVENTS_END) == "true"
        if kind == "DELETED":
            initial.pop(uid_of(obj), None)
        else:
            initial[uid_of(obj)] = self._transform(obj)
        return False
