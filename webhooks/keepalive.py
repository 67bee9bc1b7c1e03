"""Answers go out no faster than the API server can keep the connections that they came on.

This file alone decides when a finished answer may go; it does not know what it says.

An API server speaks HTTP/1.1 to webhooks and keeps 25 idle connections to one (client-go, transport/cache.go). A group
commit finishes all that waited at once: the API server would close most of their connections, and it and we would
pay for as many TLS handshakes with the next requests. That was more than the decisions cost.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: What an API server keeps.
IDLE = 25
#: Seconds without a request after which nobody is coming for the connections, where they came sooner before.
QUIET = 0.05
#: So many times as long as they took before: whoever was answered has the object stored first, and then asks anew.
LONGER = 3
#: The longest that an answer waits for its turn, in seconds.
PATIENCE = 1.0
#: The longest that nobody comes while answers wait, in seconds.
MOST_QUIET = 0.5


@dataclass(slots=True)
class _Peer:
    """What is known of one API server."""

    #: Connections that were answered on, no request came on since, and the other side has not closed.
    idle: set[asyncio.BaseTransport] = field(default_factory=set)
    #: When the last request came or the last answer went.
    moved: float = 0.0
    #: Since when answers are out that no request has followed; None where one has.
    out: float | None = None
    #: How long it took lately until one did.
    back: float = 0.0
    waiting: deque[tuple[float, asyncio.Future[None]]] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None

    def is_full(self) -> bool:
        """Whether one more would be closed."""
        if len(self.idle) >= IDLE:
            self.idle = {connection for connection in self.idle if not connection.is_closing()}
        return len(self.idle) >= IDLE

    def due(self) -> float:
        """When nobody is coming any more, or the first has waited for long enough."""
        quiet = min(MOST_QUIET, max(QUIET, LONGER * self.back))
        return min(self.moved + quiet, self.waiting[0][0])

    def release(self, count: int) -> None:
        while self.waiting and count:
            _, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1


class Turns:
    """Whose turn it is, for each API server by itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: defaultdict[str, _Peer] = defaultdict(_Peer)

    def came(self, peer: str, connection: asyncio.BaseTransport) -> None:
        """A request came on this connection: if that was idle, the next answer may go."""
        known, now = self._peers[peer], self._clock()
        was_idle = connection in known.idle
        known.idle.discard(connection)
        if known.out is not None:
            took, known.out = now - known.out, None
            # After a pause it says nothing.
            known.back = max(took if took < MOST_QUIET else 0.0, 0.8 * known.back)
        known.moved = now
        if was_idle:
            known.release(1)

    async def turn(self, peer: str, connection: asyncio.BaseTransport, deadline: float) -> None:
        """Return when an answer to this peer may go, by `deadline` of the clock at the latest."""
        known, now = self._peers[peer], self._clock()
        if known.is_full() and deadline - now > PATIENCE:
            turn = asyncio.get_running_loop().create_future()
            known.waiting.append((now + PATIENCE, turn))
            if known.timer is None:
                self._wait(known)
            await turn
            now = self._clock()
        known.moved = now
        known.idle.add(connection)
        if known.out is None:
            known.out = now

    def _wait(self, known: _Peer) -> None:
        after = max(0.0, known.due() - self._clock())
        known.timer = asyncio.get_running_loop().call_later(after, self._look, known)

    def _look(self, known: _Peer) -> None:
        """Let go whoever has waited for long enough; all where nobody comes any more."""
        known.timer, now = None, self._clock()
        while known.waiting and known.due() <= now:
            if known.waiting[0][0] <= now:
                known.release(1)
            else:
                known.release(len(known.waiting))
        if known.waiting:
            self._wait(known)
