"""The balancer of `tests.support.serving` as a process: what keeps a test busy then slows no review on its way.

`python -m tests.support.balancer PORT…` prints the port at which it takes connections; each goes to the next of these.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import cast

import uvloop


class Half(asyncio.Protocol):
    """One side of a connection that is passed on: what comes here goes out at the other."""

    def __init__(self, other: Half | None = None) -> None:
        self._other = other
        self._waiting: list[bytes] = []
        self.transport: asyncio.Transport

    def joined(self, other: Half) -> None:
        self._other = other
        other.transport.writelines(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._waiting.append(data)
        else:
            self._other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None:
            self._other.transport.close()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.transport.resume_reading()


class Front(Half):
    """The side of whoever asks: looks for a backend that takes the connection, each of them once."""

    def __init__(self, backends: Iterator[int], tries: int) -> None:
        super().__init__()
        self._backends = backends
        self._tries = tries

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = asyncio.ensure_future(self._join())

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._tries):
            try:
                _, back = await loop.create_connection(lambda: Half(self), "127.0.0.1", next(self._backends))
            except OSError:
                continue
            if self.transport.is_closing():
                back.transport.close()
            else:
                self.joined(back)
            return
        self.transport.close()


async def main(ports: list[int]) -> None:
    backends = itertools.cycle(ports)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Front(backends, len(ports)), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
