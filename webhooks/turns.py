"""Answers go out no faster than the API server can keep the connections that they came on.

This file alone decides when a finished answer may go; it does not know what it says.

An API server speaks HTTP/1.1 to webhooks and keeps 25 idle connections to one (client-go, transport/cache.go). A group
commit finishes all that waited at once: the API server would close most of their connections, and it and we would
pay for as many TLS handshakes with the next requests. That was more than the decisions cost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque

#: What an API server keeps.
IDLE = 25
#: Seconds without a request after which nobody is coming for the connections.
QUIET = 0.05
#: The longest that an answer waits for its turn, in seconds.
PATIENCE = 1.0


class Turns:
    """Idle connections by who made them, as far as requests and answers tell: never more than are kept."""

    def __init__(self) -> None:
        self._idle: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)

    def came(self, peer: str) -> None:
        """A request came, on an idle connection if there was one: the next answer may go."""
        self._idle[peer] = max(0, self._idle[peer] - 1)
        self._last[peer] = time.monotonic()
        waiting = self._waiting[peer]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def turn(self, peer: str, deadline: float) -> None:
        """Return when an answer to this peer may go, by the `time.monotonic` of `deadline` at the latest."""
        if self._idle[peer] >= IDLE:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[peer].append(turn)
            until = min(deadline, time.monotonic() + PATIENCE)
            while (left := min(until, self._last[peer] + QUIET) - time.monotonic()) > 0 and not turn.done():
                await asyncio.wait((turn,), timeout=left)
            turn.cancel()
        self._idle[peer] = min(IDLE, self._idle[peer] + 1)
