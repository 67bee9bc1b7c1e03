"""What an API server and the way to it do wrong, put into a proxy: for webhooks and controller alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from aiohttp import web

from tests.support.proxy import Proxy

#: Puts the fault into the proxy, on requests whose "VERB /path" begin and end so.
Fault = Callable[[Proxy, str, str], None]


def refused(status: int, times: int, **headers: str) -> Fault:
    """The next requests get this answer and go no further."""

    def into(proxy: Proxy, begins: str, ends: str) -> None:
        left = [times]

        async def before(line: str) -> web.Response | None:
            if left[0] and line.startswith(begins) and line.endswith(ends):
                left[0] -= 1
                body = {"kind": "Status", "status": "Failure", "code": status, "message": "on purpose"}
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return web.json_response(body, status=status, headers=named)
            return None

        proxy.before.append(before)

    return into


def slow(seconds: float, times: int) -> Fault:
    """The next requests arrive late."""

    def into(proxy: Proxy, begins: str, ends: str) -> None:
        left = [times]

        async def before(line: str) -> None:
            if left[0] and line.startswith(begins) and line.endswith(ends):
                left[0] -= 1
                await asyncio.sleep(seconds)

        proxy.before.append(before)

    return into


def reset_after(times: int) -> Fault:
    """The next requests are done, and the connection is reset before anybody is told."""

    def into(proxy: Proxy, begins: str, ends: str) -> None:
        left = [times]

        async def after(line: str, status: int) -> bool:
            if left[0] and status < 300 and line.startswith(begins) and line.endswith(ends):
                left[0] -= 1
                return True
            return False

        proxy.after.append(after)

    return into


#: On writes of a group's status.
WRITES: dict[str, Fault] = {
    "throttled": refused(429, 3, Retry_After="0"),
    "throttled without a word on when": refused(429, 2),
    "500": refused(500, 3),
    "503": refused(503, 3),
    "a gateway that lost its server": refused(502, 2),
    "slow": slow(0.5, 2),
    "reset after the write was done": reset_after(1),
    "reset after each of two writes was done": reset_after(2),
}

#: The last that every open watch says before it breaks.
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
FAILED = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": "InternalError", "message": "unhappy"}}
WATCHES: dict[str, bytes] = {
    "broken mid-line": b'{"type":"ADDED","object":{"metadata":{"na',
    "410": json.dumps(GONE).encode() + b"\n",
    "an error of the server": json.dumps(FAILED).encode() + b"\n",
    "what is no event": b"<html>\n",
    "nothing more": b"",
}
