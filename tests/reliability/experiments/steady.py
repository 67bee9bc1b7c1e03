"""R22: an hour of load. Processes as in a cluster neither grow nor keep descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median

import aiohttp
import yaml
from cryptography.fernet import Fernet

from bizrq.kube.client import ApiError, Unreachable
from bizrq.store.groups import GROUPS
from tests.reliability.people import People
from tests.reliability.stage import REPLICAS, Ground, Outcome, under_way
from tests.support.cluster import _free_ports, eventually
from tests.support.objects import DEPLOYMENTS, PODS, deployment, group
from tests.support.serving import Parts, Running

#: Groups of which each has a namespace, and the workloads that a person keeps in one.
TEAMS, KEPT = 4, 8
#: How many times as fast people work in the warm-up.
QUICK = 5
LOCALHOST = "127.0.0.1"
MEGABYTE = 1_000_000
#: The options of a deletion that waits for nobody.
AT_ONCE = b'{"gracePeriodSeconds":0}'
#: How the count of requests ends that got neither what they asked for nor a refusal.
FAILED = "failed"


@dataclass
class Measured:
    """A process: the seconds at which it was looked at, with its own memory in bytes and its open descriptors."""

    pid: int
    memory: list[tuple[float, int]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, elapsed: float) -> None:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [kilobytes] = [line.split()[1] for line in status if line.startswith("RssAnon")]
        self.memory.append((elapsed, int(kilobytes) * 1024))
        self.descriptors.append(len(list(Path(f"/proc/{self.pid}/fd").iterdir())))

    def forget(self, warm: float) -> None:
        """Keep what was seen from then on."""
        kept = [at >= warm for at, _ in self.memory]
        self.memory = [*itertools.compress(self.memory, kept)]
        self.descriptors = [*itertools.compress(self.descriptors, kept)]

    @property
    def slope(self) -> float:
        """Megabytes an hour, by a linear fit."""
        return linear_regression(*zip(*self.memory, strict=True)).slope * 3600 / MEGABYTE

    @property
    def megabytes(self) -> tuple[float, float]:
        """The medians of the first and of the last quarter."""
        return _ends([size / MEGABYTE for _, size in self.memory])

    @property
    def opened(self) -> tuple[float, float]:
        return _ends(self.descriptors)


def _ends(values: list[float] | list[int]) -> tuple[float, float]:
    quarter = max(1, len(values) // 4)
    return median(values[:quarter]), median(values[-quarter:])


async def r22(
    ground: Ground,
    *,
    seconds: float,
    warm: float,
    every: float,
    pause: float,
    slope: float,
    descriptors: int,
    failures: int,
) -> Outcome:
    """People create, change and delete, and look at pages; scrapes come as Prometheus sends them.

    What is measured begins after `warm` of the `seconds`. Before, people work `QUICK` times as fast: so caches of a
    fixed size are full, and connections have seen their largest answers. `pause` is that of each person between two
    requests, `slope` in megabytes an hour, `descriptors` how many more may be open at the end, `failures` the share of
    requests that may fail. Descriptors of the webhooks count together: one of them at a time has twice
    the connections of the others, and another has them later.
    """
    root = ground.name()
    async with ground.parts() as parts:
        ports = _free_ports(REPLICAS + 2)
        running = {
            f"webhook {number}": await parts.webhook_process(flags=(*ground.flags, "--metrics-port", str(port)))
            for number, port in enumerate(ports[:REPLICAS], 1)
        }
        await parts.balance_apart()
        flags = ("--metrics-port", str(ports[-2]))
        running["controller"] = await parts.controller_process(recount_interval="5m", flags=flags)
        running["web"] = await _web(ground, parts, ports[-1])
        await parts.register()
        await ground.group(root, cpu="1000")
        teams = [await ground.group(f"{root}-{number}", root, cpu="30", count="40") for number in range(TEAMS)]
        for team in teams:
            await ground.namespace(team)
        measured = {name: Measured(each.process.pid) for name, each in running.items()}
        answered: Counter[str] = Counter()

        def load(phase: str, people: int, pause: float) -> list[Awaitable[None]]:
            """What people do; those of another phase have other numbers, and so their workloads other names."""
            return [
                *(works(ground, team, people + person, pause, answered) for person, team in enumerate(teams)),
                _regroups(ground, f"{root}-{phase}", root, pause * 10, answered),
                _looks(ground, ports[-1], teams, pause * 5, answered),
                *(_scrapes(ground, port, min(every, 30.0), answered) for port in ports[:-1]),
            ]

        began = time.monotonic()
        phases = ("w", warm, pause / QUICK), ("m", seconds, pause)
        for number, (phase, until, rest) in enumerate(phases):
            async with under_way(*load(phase, number * TEAMS, rest)) as tasks:
                while (elapsed := time.monotonic() - began) < until:
                    await asyncio.sleep(every)
                    tasks.check()
                    for each in measured.values():
                        each.look(elapsed)
                    memory = (f"{name} {each.memory[-1][1] / MEGABYTE:.1f}" for name, each in measured.items())
                    ground.say(f"{elapsed:.0f} s: {', '.join(memory)}")
            await _clear(ground, teams)
        for each in measured.values():
            each.forget(warm)
        await ground.clear_groups(root)
    failed = sum(count for what, count in answered.items() if what.endswith(FAILED))
    missed = [f"{failed} requests failed"] if failed > failures * sum(answered.values()) else []
    for name, each in measured.items():
        if each.slope > slope:
            missed.append(f"{name} grows by {each.slope:.2f} MB/h, {slope:g} allowed")
    for kind in sorted({name.split()[0] for name in measured}):
        opened = [each.opened for name, each in measured.items() if name.split()[0] == kind]
        before, now = map(sum, zip(*opened, strict=True))
        if now > before + descriptors:
            missed.append(f"{kind}: {before:g} descriptors, then {now:g}")
    told = "; ".join(
        f"{name} {each.slope:+.2f} MB/h ({each.megabytes[0]:.1f} to {each.megabytes[1]:.1f} MB), "
        f"{each.opened[0]:g} to {each.opened[1]:g} descriptors"
        for name, each in measured.items()
    )
    requests = sum(answered.values())
    return Outcome(
        f"{seconds / 60:g} minutes, the first {warm / 60:g} not measured; {requests} requests "
        f"({requests / seconds:.1f} a second: {said(answered)}); {told}",
        missed,
    )


def said(answered: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(answered.items()))


async def works(
    ground: Ground,
    team: str,
    person: int,
    pause: float,
    answered: Counter[str],
    over: asyncio.Event | None = None,
    kept: dict[str, int] | None = None,
) -> None:
    """Create, scale and delete workloads with names that never come again, now and then more than fits.

    `kept` has the replicas of those that are left. What ends by `over` only grows, and has no pods: the laws at every
    revision know neither what a workload cost before a scale-down that nobody acts on, nor that a pod costs nothing
    once its grace is over.
    """
    rng = ground.random(f"{team} {person}")
    kept = {} if kept is None else kept
    for number in itertools.count():
        if over is not None and over.is_set():
            return
        name = f"w{person}-{number}"
        if over is None and rng.random() < 0.2:
            if await _asks(answered, "pods", ground.people.create(PODS, _pod(name, team))):
                await asyncio.sleep(pause)
                await _asks(answered, "deletions", ground.people.delete(PODS, name, team))
            await asyncio.sleep(pause)
            continue
        replicas = rng.randrange(5)
        obj = deployment(name, team, replicas, namespace=team)
        is_created = await _asks(answered, "creates", ground.people.create(DEPLOYMENTS, obj))
        if is_created:
            kept[name] = replicas
        await asyncio.sleep(pause)
        if kept:
            changed = rng.choice([*kept])
            replicas = rng.randrange(0 if over is None else kept[changed], 7)
            change = {"spec": {"replicas": replicas}}
            if await _asks(answered, "updates", ground.people.patch(DEPLOYMENTS, changed, change, namespace=team)):
                kept[changed] = replicas
            await asyncio.sleep(pause)
        if kept and (len(kept) > KEPT or not is_created):
            del kept[oldest := next(iter(kept))]
            await _asks(answered, "deletions", ground.people.delete(DEPLOYMENTS, oldest, team))
            await asyncio.sleep(pause)


def _pod(name: str, team: str) -> dict[str, object]:
    template = deployment(name, team, namespace=team)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"],
        "spec": template["spec"]["template"]["spec"],
    }


async def _asks(answered: Counter[str], what: str, request: Awaitable[object]) -> bool:
    """Return whether it was admitted; a full or busy group is an answer, too."""
    try:
        await request
    except (ApiError, Unreachable) as error:
        is_refusal = isinstance(error, ApiError) and error.status in (403, 429)
        answered[f"{what} {'refused' if is_refusal else FAILED}"] += 1
        return False
    answered[what] += 1
    return True


async def _clear(ground: Ground, teams: list[str]) -> None:
    for team in teams:
        await ground.clear(team)
        await ground.client.request("DELETE", PODS.path(team), body=AT_ONCE)


async def _regroups(ground: Ground, prefix: str, root: str, pause: float, answered: Counter[str]) -> None:
    """Groups come and go."""
    for number in itertools.count():
        name = f"{prefix}{number}"
        await _asks(answered, "groups", ground.people.create(GROUPS, group(name, root, cpu="2")))
        await asyncio.sleep(pause)
        await _asks(answered, "edits", ground.people.patch(GROUPS, name, {"spec": {"hard": {"limits.cpu": "3"}}}))
        await asyncio.sleep(pause)
        await _asks(answered, "group deletions", ground.people.delete(GROUPS, name))


async def _looks(ground: Ground, port: int, teams: list[str], pause: float, answered: Counter[str]) -> None:
    """Read pages, as the people in turn."""
    assert isinstance(ground.people, People)
    pages = itertools.cycle(["/", "/tree", *(f"/groups/{team}" for team in teams)])
    async with aiohttp.ClientSession(f"http://{LOCALHOST}:{port}") as session:
        for token in itertools.cycle(ground.people.tokens):
            is_answered = await _reads(session, next(pages), token)
            answered["pages" if is_answered else f"pages {FAILED}"] += 1
            await asyncio.sleep(pause)


async def _scrapes(ground: Ground, port: int, pause: float, answered: Counter[str]) -> None:
    token = admin_token(ground)
    async with aiohttp.ClientSession(f"http://{LOCALHOST}:{port}") as session:
        while True:
            # Not before the API server has said whose the token is.
            answered["scrapes"] += await _reads(session, "/metrics", token)
            await asyncio.sleep(pause)


def admin_token(ground: Ground) -> str:
    """Return a token that may read metrics."""
    return yaml.safe_load(ground.cluster.kubeconfig.read_text("utf-8"))["users"][0]["user"]["token"]


async def _reads(session: aiohttp.ClientSession, path: str, token: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
            await answer.read()
            return answer.status == 200
    return False


async def _web(ground: Ground, parts: Parts, port: int) -> Running:
    keys = parts.folder / "keys"
    keys.mkdir()
    (keys / "current").write_bytes(Fernet.generate_key())
    address = f"{LOCALHOST}:{port}"
    with (parts.folder / "bizrq-web.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("bizrq-web"),
            *("--public-url", f"http://{LOCALHOST}", "--listen", address, "--keys", str(keys)),
            *("--kubeconfig", str(ground.cluster.kubeconfig), "--metrics-port", "0"),
            *("--trusted-proxy", "127.0.0.0/8", "--drain-delay", "0"),
            stdout=log,
            stderr=log,
        )
    running = Running(process, port)
    await parts.enter(_ending(running))

    async def serves() -> bool:
        assert process.returncode is None, f"bizrq-web ended by itself: see {parts.folder}/bizrq-web.log"
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(f"http://{address}/readyz") as answer:
                return answer.status == 200
        return False

    await eventually(serves, 60, "the web UI serves")
    return running


@contextlib.asynccontextmanager
async def _ending(running: Running) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await running.end()
