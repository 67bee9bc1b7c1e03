"""Send answers no faster than the API server can keep their connections open.

This file alone decides when a finished answer may go. It does not know the answer.

An API server speaks HTTP/1.1 to webhooks and keeps 25 idle connections to one (client-go, transport/cache.go). A group
commit finishes many answers at once. The API server would close most of their connections, and both sides would pay
for new TLS handshakes, which cost more CPU than the decisions.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: Idle connections that an API server keeps.
IDLE = 25
#: Seconds without a request after which waiting answers go, where requests came sooner before.
QUIET = 0.05
#: Factor on the time that requests took before: an answered client has its object stored before it sends the next.
LONGER = 3
#: The longest that an answer waits for its turn, in seconds.
PATIENCE = 1.0
#: The longest time without a request while answers wait, in seconds.
MOST_QUIET = 0.5


@dataclass(slots=True)
class _Peer:
    """The connections of one API server."""

    #: Open connections that were answered on, and on which no request has come since.
    idle: set[asyncio.BaseTransport] = field(default_factory=set)
    #: The time of the last request or answer, in seconds of the clock.
    moved: float = 0.0
    #: The time of the first answer that no request has followed; None where one has.
    out: float | None = None
    #: Seconds that it took lately until a request followed.
    back: float = 0.0
    waiting: deque[tuple[float, asyncio.Future[None]]] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None

    def is_full(self) -> bool:
        """Return whether the API server would close one more connection."""
        if len(self.idle) >= IDLE:
            self.idle = {connection for connection in self.idle if not connection.is_closing()}
        return len(self.idle) >= IDLE

    def due(self) -> float:
        """Return the time at which the next answer goes without a request."""
        quiet = min(MOST_QUIET, max(QUIET, LONGER * self.back))
        return min(self.moved + quiet, self.waiting[0][0])

    def release(self, count: int) -> None:
        while self.waiting and count:
            _, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1


class ConnectionPacer:
    """Paces the answers to each API server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: defaultdict[str, _Peer] = defaultdict(_Peer)

    def received(self, peer: str, connection: asyncio.BaseTransport) -> None:
        """Note a request on this connection; where it was idle, release the next answer."""
        known, now = self._peers[peer], self._clock()
        was_idle = connection in known.idle
        known.idle.discard(connection)
        if known.out is not None:
            took, known.out = now - known.out, None
            # A pause is no measure.
            known.back = max(took if took < MOST_QUIET else 0.0, 0.8 * known.back)
        known.moved = now
        if was_idle:
            known.release(1)

    async def wait(self, peer: str, connection: asyncio.BaseTransport, deadline: float) -> None:
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
        """Release answers that have waited for long enough; all where no request comes any more."""
        known.timer, now = None, self._clock()
        while known.waiting and known.due() <= now:
            if known.waiting[0][0] <= now:
                known.release(1)
            else:
                known.release(len(known.waiting))
        if known.waiting:
            self._wait(known)
