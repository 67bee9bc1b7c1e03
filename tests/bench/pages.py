"""What open pages of the web UI cost: admissions beside them, memory, and the time of a page of many groups."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.bench.admission import ENOUGH
from tests.bench.arena import BIN, Arena
from tests.bench.measure import Budget, Spread, burst, ratios, steady
from tests.support import objects
from tests.support.accounts import bearer
from tests.support.cluster import has_kinds
from web import assets

#: Pages that are open, each of another person.
OPEN = 100
#: Seconds for the rounds of B17: each opens all pages anew.
ROW = 240.0
#: Creates of one of them, and how many at a time.
_CREATES, _AT_ONCE = 600, 50
_ORIGIN = "http://127.0.0.1"


@contextlib.asynccontextmanager
async def serving(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """A process of the web UI: its address and its pid."""
    folder.mkdir(exist_ok=True)
    (folder / "current").write_bytes(urlsafe_b64encode(b"k" * 32))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, BIN / "bizrq-web", "--public-url", _ORIGIN, "--listen", "127.0.0.1:0"),
        *("--keys", folder, "--kubeconfig", kubeconfig, "--metrics-port", "0"),
        *("--drain-delay", "0", "--log-format", "json", "--log-level", "info"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    while (found := re.search(r'"port": (\d+)', said)) is None:
        line = (await process.stderr.readline()).decode()
        assert line, said
        said += line
    # A pipe that nobody reads would stop it.
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield f"{_ORIGIN}:{found[1]}", process.pid
    finally:
        process.terminate()
        await process.wait()
        await reading


@contextlib.asynccontextmanager
async def opened(address: str, tokens: Sequence[str]) -> AsyncIterator[None]:
    """Open a page for the bearer of each token, in a process of its own, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.readers", address, _ORIGIN),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(tokens).encode())
    process.stdin.close()
    line = await asyncio.wait_for(process.stdout.readline(), 120)
    assert line == b"open\n", line
    try:
        yield
        assert process.returncode is None, "the people went away"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def beside_pages(here: Arena) -> list[str]:
    """B17: B1 at concurrency 50 with 100 open pages that follow its group, and without, in turn."""
    role = objects.cluster_role("reads-groups", "get", "list", "watch")
    await here.client.create(objects.CLUSTER_ROLES, role)
    tokens = [await bearer(here.client, f"reader-{number}", "reads-groups") for number in range(OPEN)]
    rates: dict[bool, list[float]] = {False: [], True: []}
    #: Milliseconds of CPU an admission of what every cluster has: API server, etcd, webhooks and controller.
    cpu: dict[bool, list[float]] = {False: [], True: []}
    pages: list[float] = []
    await _round(here)
    with tempfile.TemporaryDirectory() as folder:
        for _ in Budget(ROW, most=10).rounds():
            rate, spent = await _round(here)
            rates[False].append(rate)
            cpu[False].append(spent)
            async with serving(here.kubeconfig, Path(folder)) as (address, pid), opened(address, tokens):
                here.pids["web"] = pid
                before = here.cpu()["web"]
                rate, spent = await _round(here)
                rates[True].append(rate)
                cpu[True].append(spent)
                pages.append(1000 * (here.cpu()["web"] - before) / _CREATES)
                del here.pids["web"]
    kept = steady(rates[False])
    rated, spent = (ratios(*([each[has][n] for n in kept] for has in (True, False))) for each in (rates, cpu))
    few = ": **too few to rely on**" if len(kept) < ENOUGH else ""
    return [
        f"| B17 | one hot group, concurrency {_AT_ONCE}, with {OPEN} open pages by without, {len(kept)} of "
        f"{len(rates[True])} steady rounds{few} | creates a second {rated}; CPU an admission without the web UI's "
        f"{spent}; the web UI itself {Spread(pages)} ms of CPU an admission |"
    ]


async def _round(here: Arena) -> tuple[float, float]:
    """Return creates a second, and the CPU of an admission in ms, without that of the web UI and of this process."""
    before = here.cpu()
    run = await burst(
        _CREATES, _AT_ONCE, lambda: here.client.create(objects.DEPLOYMENTS, here.deployment("ours", "hot"))
    )
    if run.errors:
        raise RuntimeError(f"{len(run.errors)} requests failed, first: {run.errors[0]}")
    after = here.cpu()
    spent = sum(after[name] - before[name] for name in after if name not in ("web", "load", "allow"))
    await here.clear("ours")
    return run.rate, 1000 * spent / _CREATES


def of_many_groups() -> list[str]:
    """B18: time, size and memory with 1,000 and 10,000 groups, on the sandbox."""
    return asyncio.run(_of_many_groups())


async def _of_many_groups() -> list[str]:
    rows: list[str] = []
    for count in (1_000, 10_000):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            async with Sandbox(controllers=False) as box:
                kubeconfig = box.write_kubeconfig(folder / "kubeconfig")
                await _plant(kubeconfig, count)
                tokens = [box.add_user(f"reader-{number}", "system:masters") for number in range(OPEN)]
                async with serving(kubeconfig, folder / "keys") as (address, pid):
                    empty = _megabytes(pid)
                    async with opened(address, tokens[:1]):
                        one = _megabytes(pid)
                        seconds, size = await _pages(address, tokens[0], count)
                    async with opened(address, tokens):
                        many = _megabytes(pid)
        figures = "; ".join(f"{what} {Spread(each)} s" for what, each in seconds.items())
        rows.append(
            f"| B18 | {count:,} groups | {figures}; the tree and its files {size / 1000:.0f} kB; memory {empty:.0f} MB "
            f"without anybody, {one:.0f} MB with one open page, {many:.0f} MB with {OPEN} of as many people |"
        )
    return rows


async def _plant(kubeconfig: Path, count: int) -> None:
    """A tree in which each group has ten children and is counted."""

    def name(number: int) -> str:
        return f"g{number}" if number else "hot"

    async with KubeClient.from_kubeconfig(kubeconfig) as client:
        await has_kinds(client, crds.load())

        async def make(number: int) -> None:
            parent = name((number - 1) // 10) if number else ""
            stored = await client.create(GROUPS, objects.group(name(number), parent, cpu=100, memory="1Ti", pods=50))
            hard = stored["spec"]["hard"]
            used = dict.fromkeys(hard, str(number % 50))
            stored["status"] = {"hard": hard, "used": used, "selfUsed": used, "observedGeneration": 1}
            await client.replace(GROUPS, stored, subresource="status")

        for start in range(0, count, 50):
            await asyncio.gather(*(make(number) for number in range(start, min(start + 50, count))))


async def _pages(address: str, token: str, count: int) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of each page, and the compressed bytes of the tree with all its files."""
    headers = {"Accept-Encoding": "gzip"}
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, headers=headers, auto_decompress=False) as session:

        async def body(path: str) -> bytes:
            async with session.get(address + path) as answer:
                assert answer.status == 200, path
                return await answer.read()

        form = gzip.decompress(await body("/sign-in")).decode()
        found = re.search('name="form-token" value="([^"]*)"', form)
        assert found, form
        fields = {"form-token": found[1], "token": token, "to": "/"}
        async with session.post(f"{address}/sign-in", data=fields, headers={"Origin": _ORIGIN}) as answer:
            assert answer.status == 200
        seconds: dict[str, list[float]] = {}
        for what, path in (
            ("tree", "/tree"),
            ("search", f"/tree?q={count - 7}"),
            ("overview", "/"),
            ("a group", "/groups/g1"),
        ):
            for _ in range(11):
                began = time.perf_counter()
                await body(path)
                seconds.setdefault(what, []).append(time.perf_counter() - began)
        size = len(await body("/tree")) + sum(len(each.gzipped) for each in assets.by_name().values())
    return seconds, size


def _megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024
