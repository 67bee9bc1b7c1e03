"""A program that begins requests and never ends them: `python -m tests.support.half_sent PORT HALF BODIES SIZE`.

Prints one JSON object once the other side has closed every connection: how many were opened, and after how many
seconds the last one was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import time

PATH = "/validate/workloads?timeout=10s"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: webhooks\r\nContent-Type: application/json\r\n"
CHUNK = b"x" * 65536

#: What a half-sent request sends: None opens a connection without a handshake.
HALVES: tuple[bytes | None, ...] = (
    None,
    b"",
    b"POST /vali",
    HEAD.encode(),
    f'{HEAD}Content-Length: 100\r\n\r\n{{"a": '.encode(),
    b"GET /healthz HTTP/1.1\r\nHost: webhooks\r\n\r\nPOST /vali",
)


async def half(port: int, sends: bytes | None, tls: ssl.SSLContext) -> float:
    """Return the seconds until the other side closes. Raises OSError where nobody accepts a connection."""
    began = time.monotonic()
    connection = await _connected(port)
    with contextlib.suppress(OSError):
        options = {} if sends is None else {"ssl": tls, "server_hostname": "127.0.0.1"}
        reader, writer = await asyncio.open_connection(sock=connection, **options)
        with contextlib.closing(writer):
            writer.write(sends or b"")
            await reader.read()
    return time.monotonic() - began


async def body(port: int, number: int, size: int, tls: ssl.SSLContext) -> float:
    """Send all but the end of a body: one of `size`, in chunks without a length, or one that is not too large.

    Return the seconds until the other side closes. Raises OSError where nobody accepts a connection.
    """
    began = time.monotonic()
    connection = await _connected(port)
    framing, size = (
        (f"Content-Length: {size}", size),
        ("Transfer-Encoding: chunked", size),
        (f"Content-Length: {8_000_000}", 8_000_000),
    )[number % 3]
    chunk = b"10000\r\n" + CHUNK + b"\r\n" if "chunked" in framing else CHUNK
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(sock=connection, ssl=tls, server_hostname="127.0.0.1")
        with contextlib.closing(writer):
            writer.write(f"{HEAD}{framing}\r\n\r\n".encode())
            for _ in range(size // len(CHUNK)):
                writer.write(chunk)
                await writer.drain()
            await reader.read()
    return time.monotonic() - began


async def _connected(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def attack(port: int, halves: int, bodies: int, size: int) -> dict[str, float]:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    ends = await asyncio.gather(
        *(half(port, HALVES[number % len(HALVES)], tls) for number in range(halves)),
        *(body(port, number, size, tls) for number in range(bodies)),
        return_exceptions=True,
    )
    lasted = [seconds for seconds in ends if isinstance(seconds, float)]
    return {"opened": len(lasted), "seconds": max(lasted, default=0.0)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(attack(*map(int, sys.argv[1:])))) + "\n")
