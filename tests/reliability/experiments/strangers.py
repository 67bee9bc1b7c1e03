"""R27: requests that strangers begin and never end. Reviews are answered meanwhile, within a bound of memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from bizrq.listener import PortBounds
from tests.reliability.stage import Ground, Outcome
from tests.support.objects import deployment
from tests.webhooks.test_app import a_review

#: Strangers of a short form are gone sooner.
SHORT = PortBounds(connections=80, bytes=16 * 1024 * 1024, handshake=4.0, headers=2.0, body=2.0, grace=4.0)


async def r27(
    ground: Ground, *, halves: int, bodies: int, size: int, answered: float, closed: float, mebibytes: int
) -> Outcome:
    """Half-sent requests and stalled bodies at one webhook; dry-run reviews on a kept connection and on new ones."""
    name = ground.name()
    async with ground.parts() as parts:
        pid = 0
        if ground.clock is not None:
            await parts.webhooks(bounds=SHORT)
        else:
            pid = (await parts.webhook_process()).process.pid
        [port] = parts.balancer.backends
        await ground.controller(parts, 30)
        await parts.register()
        await ground.group(name, count="10")
        trust = ssl.create_default_context(cafile=parts.folder / "ca.crt")
        kept_waits: list[float] = []
        new_waits: list[float] = []
        most = idle = _resident(pid)
        program = "-m", "tests.support.half_sent", *map(str, (port, halves, bodies, size))
        strangers = await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE)
        told = asyncio.ensure_future(strangers.communicate())
        try:
            async with _session(port, trust) as kept:
                while not told.done():
                    kept_waits.append(await _review(kept, name))
                    async with _session(port, trust) as new:
                        new_waits.append(await _review(new, name))
                    most = max(most, _resident(pid))
                    await asyncio.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                strangers.kill()
        ended: dict[str, Any] = json.loads((await told)[0])
    slowest = max(*kept_waits, *new_waits)
    figures = (
        f"{ended['opened']} strangers, the last one closed after {ended['seconds']:.1f} s; "
        f"{2 * len(new_waits)} reviews meanwhile: p50 {median([*kept_waits, *new_waits]):.3f} s, "
        f"max {max(kept_waits):.2f} s on a kept connection and {max(new_waits):.2f} s on new ones"
    )
    missed = []
    if ended["opened"] != halves + bodies:
        missed.append(f"{ended['opened']} strangers came, not {halves + bodies}")
    if pid:
        figures += f"; {idle} MiB before, at most {most} MiB"
    if slowest > answered:
        missed.append(f"a review took {slowest:.2f} s, not {answered:g}")
    if ended["seconds"] > closed:
        missed.append(f"a stranger stayed for {ended['seconds']:.1f} s, not {closed:g}")
    if most > mebibytes:
        missed.append(f"{most} MiB, not {mebibytes}")
    return Outcome(figures, missed)


def _session(port: int, trust: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=aiohttp.TCPConnector(ssl=trust))


async def _review(session: aiohttp.ClientSession, group: str) -> float:
    """Return the seconds until a dry run is admitted."""
    review = a_review(deployment("w", group, 0))
    review["request"]["dryRun"] = True
    began = time.monotonic()
    async with session.post("/validate/workloads?timeout=10s", json=review) as answer:
        response = (await answer.json())["response"]
    assert response["allowed"], response
    return time.monotonic() - began


def _resident(pid: int) -> int:
    """Return the memory of a process in MiB, 0 for pid 0."""
    if not pid:
        return 0
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) // 1024
