"""What an admission costs on a real API server, beside no quota, native quota and a webhook that allows all."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import pages
from tests.bench.arena import COUNT, MODES, PLENTY, Arena
from tests.bench.measure import Budget, Run, Spread, burst, ratios, steady
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, PODS, TFJOBS, Object, group, template, tfjob

#: Seconds for the rounds of one row: all rows together are ready in twelve minutes on a machine that has time for them.
ROW = 30.0
#: Rounds of a row whose baseline was steady; with fewer it is told that it cannot be relied on.
ENOUGH = 3


@dataclass
class Rounds:
    """Interleaved rounds of several modes whose baseline was steady."""

    runs: dict[str, list[Run]]
    #: Seconds of CPU an admission, of all processes together.
    cpu: dict[str, list[float]]
    #: Status writes of groups an admission, by whatever process, while requests of `ours` ran.
    writes: list[float]
    #: Rounds that were played.
    played: int

    @property
    def rates(self) -> dict[str, list[float]]:
        """Creates a second, by mode."""
        return {mode: [run.rate for run in runs] for mode, runs in self.runs.items()}


async def _rounds(
    here: Arena, count: int, concurrency: int, modes: tuple[str, ...], groups: Sequence[str] = ("hot",)
) -> Rounds:
    """Rounds of all modes in turn over these groups, without those in which the baseline was off."""
    turn = itertools.cycle(groups)
    for mode in modes:
        # Connections and caches are warm in every round that counts.
        await _round(here, mode, max(concurrency, len(groups)), concurrency, turn)
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    cpu: dict[str, list[float]] = {mode: [] for mode in modes}
    writes: list[float] = []
    for _ in Budget(ROW).rounds():
        for mode in modes:
            before, written = here.cpu(), await here.status_writes()
            run = await _round(here, mode, count, concurrency, turn)
            runs[mode].append(run.run)
            cpu[mode].append((sum(run.cpu.values()) - sum(before.values())) / count)
            if mode == "ours":
                writes.append((run.writes - written) / count)
    kept = steady([run.rate for run in runs[modes[0]]])
    return Rounds(
        {mode: [runs[mode][n] for n in kept] for mode in modes},
        {mode: [cpu[mode][n] for n in kept] for mode in modes},
        [writes[n] for n in kept],
        len(writes),
    )


class _Round(NamedTuple):
    run: Run
    cpu: dict[str, float]
    writes: float


async def _round(here: Arena, mode: str, count: int, concurrency: int, turn: Iterator[str]) -> _Round:
    """One round of creates, and the counters at its end, before its objects are deleted."""
    run = await burst(count, concurrency, lambda: here.client.create(DEPLOYMENTS, here.deployment(mode, next(turn))))
    if run.errors:
        raise RuntimeError(f"{mode}: {len(run.errors)} requests failed, first: {run.errors[0]}")
    found = _Round(run, here.cpu(), await here.status_writes())
    await here.clear(mode)
    return found


async def hot_group(here: Arena) -> list[str]:
    """B1: one hot group at several concurrencies."""
    rows = []
    for concurrency in (1, 10, 50, 200):
        count = min(600, max(100, 6 * concurrency))
        found = await _rounds(here, count, concurrency, MODES)
        rate = found.rates
        late = {mode: [run.percentile(0.99) for run in runs] for mode, runs in found.runs.items()}
        rows.append(
            f"| B1 | one hot group, concurrency {concurrency}, {count} creates a round{_doubt(found)} | "
            f"ours/allow {ratios(rate['ours'], rate['allow'])}, ours/native {ratios(rate['ours'], rate['native'])}, "
            f"ours/plain {ratios(rate['ours'], rate['plain'])}, native/plain {ratios(rate['native'], rate['plain'])}, "
            f"allow/native {ratios(rate['allow'], rate['native'])}; "
            f"by CPU allow/ours {ratios(found.cpu['allow'], found.cpu['ours'])}, "
            f"native/ours {ratios(found.cpu['native'], found.cpu['ours'])}, "
            f"native/allow {ratios(found.cpu['native'], found.cpu['allow'])}; "
            f"p99 ours/allow {ratios(late['ours'], late['allow'])}; "
            f"status writes of all processes an admission {Spread(found.writes)} |"
        )
    return rows


def _doubt(found: Rounds) -> str:
    """How many rounds stand behind a row, and whether those are too few."""
    steady, played = len(found.writes), found.played
    few = ": **too few to rely on**" if steady < ENOUGH else ""
    return f", {steady} of {played} rounds on a steady baseline{few}"


async def spread(here: Arena) -> list[str]:
    """B2: the same load over many groups, and a cold group beside a hot one."""
    rows = []
    for groups in (1, 10, 100, 1000):
        names = [f"g{groups}-{n}" for n in range(groups)]
        await here.groups(names)
        count = max(300, groups)
        found = await _rounds(here, count, 50, ("plain", "ours"), names)
        rate = found.rates
        rows.append(
            f"| B2 | {count} creates over {groups} group{'s' * (groups > 1)}, concurrency 50{_doubt(found)} | "
            f"ours/plain {ratios(rate['ours'], rate['plain'])}; "
            f"by CPU plain/ours {ratios(found.cpu['plain'], found.cpu['ours'])}; "
            f"status writes of all processes an admission {Spread(found.writes)} |"
        )
    rows.append(await _cold_beside_hot(here))
    return rows


async def _cold_beside_hot(here: Arena) -> str:
    await here.group("cold")
    alone, beside = [], []
    for _ in Budget(ROW).rounds():
        cold = await burst(60, 1, lambda: here.client.create(DEPLOYMENTS, here.deployment("ours", "cold")))
        alone.append(cold.percentile(0.99))
        stop = asyncio.Event()

        async def hot(stop: asyncio.Event = stop) -> None:
            while not stop.is_set():
                await here.client.create(DEPLOYMENTS, here.deployment("ours"))

        load = [asyncio.create_task(hot()) for _ in range(50)]
        await asyncio.sleep(0.5)
        async with KubeClient.from_kubeconfig(here.kubeconfig) as client:
            cold = await burst(60, 1, lambda client=client: client.create(DEPLOYMENTS, here.deployment("ours", "cold")))
        beside.append(cold.percentile(0.99))
        stop.set()
        await asyncio.gather(*load)
        await here.clear("ours")
    figure = ratios(beside, alone)
    return f"| B2 | p99 of a cold group beside a hot one at concurrency 50, against alone | {figure} |"


async def paced(here: Arena) -> list[str]:
    """B16: people who create something in each of 100 groups three times a second, for a minute, and nobody at all."""
    groups, each, seconds = 100, 3.0, 60.0
    names = [f"paced-{n}" for n in range(groups)]
    await here.groups(names)
    rows = []
    for mode in ("plain", "ours"):
        before, written, made = here.cpu(), await here.status_writes(), 0
        until = time.monotonic() + seconds

        async def person(name: str, offset: float, mode: str = mode, until: float = until) -> None:
            nonlocal made
            await asyncio.sleep(offset)
            while (began := time.monotonic()) < until:
                await here.client.create(DEPLOYMENTS, here.deployment(mode, name))
                made += 1
                await asyncio.sleep(max(0.0, began + 1 / each - time.monotonic()))

        await asyncio.gather(*(person(name, n / each / groups) for n, name in enumerate(names)))
        used = sum(here.cpu().values()) - sum(before.values())
        writes = await here.status_writes() - written
        rows.append(
            f"| B16 | 100 groups, in each three creates a second for a minute, {mode} | {made / seconds:.0f} a second; "
            f"{1000 * used / made:.1f} ms of CPU of all processes and {writes / made:.3f} status writes an admission |"
        )
        await here.clear(mode)
    # What the last counts still write, and what is given back, is no part of it.
    await asyncio.sleep(30)
    before, written = here.cpu(), await here.status_writes()
    await asyncio.sleep(seconds)
    used, writes = sum(here.cpu().values()) - sum(before.values()), await here.status_writes() - written
    stored = len((await here.client.list(GROUPS))[0])
    rows.append(
        f"| B16 | {stored} groups in which nothing happens, a minute | "
        f"{writes:.0f} status writes, {used:.1f} s of CPU of all processes |"
    )
    return rows


async def beside_hours(here: Arena) -> list[str]:
    """B14: admissions of a group with hours and running pods, in turn with those of a group without."""
    running = 200
    await here.group("timeless", count=PLENTY)
    await here.group("timed", count=PLENTY, hours="1M")
    job = await here.client.create(TFJOBS, tfjob("timed", "timed", running))
    await asyncio.gather(*(_runs(here, job, number) for number in range(running)))

    async def known() -> bool:
        return sum(page.status.count for page in await pages(here.client, "timed")) == running

    await eventually(known, 60, "the pods are in the record")
    rates: dict[str, list[float]] = {"timeless": [], "timed": []}
    for _ in Budget(ROW).rounds():
        for name, found in rates.items():
            run = await burst(300, 50, lambda name=name: here.client.create(DEPLOYMENTS, here.deployment("ours", name)))
            if run.errors:
                raise RuntimeError(f"{name}: {len(run.errors)} requests failed, first: {run.errors[0]}")
            found.append(run.rate)
            await here.clear("ours")
    kept = steady(rates["timeless"])
    figure = ratios([rates["timed"][n] for n in kept], [rates["timeless"][n] for n in kept])
    rounds = f"{len(kept)} of {len(rates['timed'])} steady rounds"
    return [
        f"| B14 | admissions to a group with hours and {running} running pods by one without, {rounds} | {figure} |"
    ]


async def _runs(here: Arena, job: Object, number: int) -> None:
    """A pod of the job that was bound a while ago."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": "timed", "uid": job["metadata"]["uid"]}
    metadata = {"name": f"timed-{number}", "ownerReferences": [{**owner, "controller": True}]}
    spec = template("1", **{"nvidia.com/gpu": 1})["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "namespace": "default"}, "spec": spec}
    await here.client.create(PODS, pod)
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"status": {"phase": "Running", "conditions": [bound]}}
    await here.client.patch(PODS, metadata["name"], status, namespace="default", subresource="status")


async def depth(here: Arena) -> list[str]:
    """B3: a deep tree and a wide one."""
    parent = ""
    for level in range(1, 51):
        # Each keeps something for itself.
        await here.group(f"deep-{level}", parent, count=str(100_000 - 1_000 * level))
        parent = f"deep-{level}"
    shallow, deep = [], []
    for _ in Budget(ROW).rounds():
        for name, found in (("deep-1", shallow), ("deep-50", deep)):
            run = await burst(100, 1, lambda name=name: here.client.create(DEPLOYMENTS, here.deployment("ours", name)))
            if run.errors:
                raise RuntimeError(f"{name}: {len(run.errors)} requests failed, first: {run.errors[0]}")
            found.append(run.percentile(0.5))
            await here.clear("ours")
    rows = [f"| B3 | p50 of an admission at depth 50 against depth 1 | {ratios(deep, shallow)} |"]
    await here.group("wide", count="100000")
    before = await here.status_writes()
    children = 1000
    turn = iter(range(children))
    run = await burst(children, 20, lambda: here.client.create(GROUPS, group(f"wide-{next(turn)}", "wide", count="1")))
    await _settled(here, "wide")
    writes = (await here.status_writes()) - before
    rows.append(
        f"| B3 | {children} children of one parent, concurrency 20 | {len(run.errors)} refused; "
        f"status writes a child, its own first count among them: {writes / children:.2f} |"
    )
    return rows


async def _settled(here: Arena, name: str) -> None:
    async def settled() -> bool:
        return not (await here.client.get(GROUPS, name))["status"].get("reservations")

    await eventually(settled, 90, f"{name} settles")


async def cold_start(here: Arena) -> list[str]:
    """B6: from the start of the processes to the first decided request, with many workloads stored."""
    import subprocess
    import sys

    from tests.bench.arena import BIN

    count = 10_000
    await burst(count, 50, lambda: here.client.create(DEPLOYMENTS, here.deployment("plain", "")))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, str(BIN / "bizrq"), "up", "--kubeconfig", str(here.kubeconfig), "--namespace", "default"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        seconds.append(time.perf_counter() - began)
        assert line == b"ready\n", line
        process.terminate()
        await asyncio.to_thread(process.wait)
    await here.clear("plain")
    return [f"| B6 | start to `ready` with {count} Deployments stored, seconds | {Spread(seconds)} |"]


async def handshakes(here: Arena) -> list[str]:
    """B7: 300 fresh TLS connections at once."""
    configuration = await here.client.get(REGISTRATIONS, "bizrq")
    url = configuration["webhooks"][0]["clientConfig"]["url"]
    port = int(url.split(":")[2].split("/")[0])
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    late, failed = [], 0
    for _ in Budget(ROW).rounds():
        seconds: list[float] = []

        async def one(seconds: list[float] = seconds) -> None:
            nonlocal failed
            began = time.perf_counter()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
                seconds.append(time.perf_counter() - began)
                writer.close()
            except OSError:
                failed += 1

        await asyncio.gather(*(one() for _ in range(300)))
        late.append(sorted(seconds)[int(len(seconds) * 0.99)])
    return [f"| B7 | 300 fresh TLS connections at once | {failed} failed; p99 in seconds {Spread(late)} |"]


async def capacity_back(here: Arena) -> list[str]:
    """B8: from a delete to the first create that the freed place admits."""
    await here.group("small", count="1")
    seconds = []
    obj = here.deployment("ours", "small")
    await here.client.create(DEPLOYMENTS, obj)
    for _ in range(40):
        await here.client.delete(DEPLOYMENTS, obj["metadata"]["name"], "ours")
        began = time.perf_counter()
        obj = here.deployment("ours", "small")

        async def admitted(obj: dict[str, object] = obj) -> bool:
            run = await burst(1, 1, lambda: here.client.create(DEPLOYMENTS, obj))
            return not run.errors

        await eventually(admitted, 30, "the place is free")
        seconds.append(time.perf_counter() - began)
    await here.clear("ours")
    seconds.sort()
    return [
        f"| B8 | delete to capacity back, 40 times, seconds | p50 {seconds[20]:.2f}, p99 {seconds[-1]:.2f} ({COUNT}) |"
    ]
