"""What a scrape of many groups costs the process that is scraped, in CPU time: others on the machine do not count."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from bizrq import process
from bizrq.process import quiet_collector
from controller import metrics
from tests.bench.measure import Spread, longest_stall
from tests.support.cluster import _free_ports

GROUPS, RESOURCES, ROUNDS = 10_000, 8, 5
_READ = "import sys, urllib.request; print(len(urllib.request.urlopen(sys.argv[1]).read()))"


def scrapes() -> list[str]:
    """B15: the controller's /metrics over HTTP, read by another process."""
    return asyncio.run(_scrapes())


async def _scrapes() -> list[str]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    names = [f"limits.cpu.M{number}" for number in range(RESOURCES)]
    began = time.thread_time()
    for number in range(GROUPS):
        for family in (metrics.HARD, metrics.USED, metrics.SELF_USED, metrics.RESERVED):
            family.set(f"group-{number}", dict.fromkeys(names, number + 0.125))
        metrics.MISMATCHES.set(f"group-{number}", {"": 0})
    a_group = (time.thread_time() - began) / GROUPS
    kept = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    quiet_collector()
    [port] = _free_ports(1)
    listener = await process.serve_metrics("127.0.0.1", port, lambda: "", None, metrics.OF_GROUPS)
    cpu, worst, size = list[float](), list[float](), 0
    try:
        for _ in range(ROUNDS):
            async with longest_stall() as stalls:
                size = await _scrape(port, stalls)
            worst.append(max(stalls) * 1000)
            # Once more with nothing else to do: to measure stalls takes all the CPU that there is.
            began = time.thread_time()
            await _scrape(port, [])
            cpu.append((time.thread_time() - began) * 1000)
    finally:
        await listener.cleanup()
        for family in metrics.OF_GROUPS:
            family.clear()
    series = GROUPS * (4 * RESOURCES + 1)
    return [
        f"| B15 | a scrape of {GROUPS:,} groups with {RESOURCES} resources each: {series:,} series, "
        f"{size / 1e6:.0f} MB | longest stall in ms {Spread(worst)}; CPU in ms {Spread(cpu)}; {kept:.0f} MB of memory; "
        f"{a_group * 1e6:.0f} µs of CPU to note a group's figures |"
    ]


async def _scrape(port: int, stalls: list[float]) -> int:
    """Let another process scrape, and return how many bytes it got. Stalls of its start are none of the scrape's."""
    arguments = (sys.executable, "-c", _READ, f"http://127.0.0.1:{port}/metrics")
    child = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    stalls[:] = [0.0]
    out, _ = await child.communicate()
    return int(out)
