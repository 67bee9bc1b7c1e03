"""R3 and R23: kill -9 of the webhooks at the worst moments, of etcd and of the API server. Never over, no leak."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.client import ApiError, Unreachable
from bizrq.store.groups import GROUPS
from tests.reliability.stage import COUNT, REPLICAS, Ground, Outcome, Stage, expected, under_way
from tests.support.cluster import Real
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.oracle import EtcdRecorder
from tests.support.proxy import Proxy
from tests.support.serving import Parts, Running

#: Where a webhook is killed: its status write is on its way; stored, and nobody told it; it was told and has answered
#: nobody; it has answered the first of those that were decided together.
MOMENTS = ("before the write", "after the write", "before the reply", "mid-batch")

#: What is killed at once.
VICTIMS = (("etcd",), ("kube-apiserver",), ("etcd", "kube-apiserver"))


@dataclass
class Killer:
    """Kills the replica that comes first to the armed moment."""

    parts: Parts
    path: str
    armed: str = ""
    done: Counter[str] = field(default_factory=Counter)
    #: Chunks of answers that a doomed replica may still send, by its port.
    doomed: dict[int, tuple[str, int]] = field(default_factory=dict)
    killed: asyncio.Queue[Victim] = field(default_factory=asyncio.Queue)
    victims: dict[int, Victim] = field(default_factory=dict)

    def strike(self, moment: str, victim: Victim) -> None:
        self.armed = ""
        self.done[moment] += 1
        self.parts.balancer.backends.remove(victim.running.port)
        victim.running.kill()
        self.killed.put_nowait(victim)

    def passes(self, port: int, _chunk: bytes) -> bool:
        moment, left = self.doomed.get(port, ("", 0))
        if not moment:
            return True
        if left:
            self.doomed[port] = moment, left - 1
            return True
        del self.doomed[port]
        self.strike(moment, self.victims.pop(port))
        return False


class Victim:
    """A webhook replica with a proxy of its own to the API server, which knows the moment."""

    def __init__(self, killer: Killer, proxy: Proxy, kubeconfig: Path, flags: Sequence[str]) -> None:
        self._killer = killer
        self._flags = flags
        self._kubeconfig = proxy.write_kubeconfig(kubeconfig)
        self.running: Running
        proxy.before.append(self._before)
        proxy.after.append(self._after)

    async def start(self) -> None:
        self.running = await self._killer.parts.webhook_process(self._kubeconfig, self._flags)
        self._killer.victims[self.running.port] = self

    @property
    def _lives(self) -> bool:
        """A write may still be under way of a replica that was killed before."""
        return self.running.port in self._killer.parts.balancer.backends

    async def _before(self, line: str) -> web.Response | None:
        if self._killer.armed == MOMENTS[0] and line == self._killer.path and self._lives:
            self._killer.strike(MOMENTS[0], self)
            await self.running.process.wait()
            return web.Response(status=503)
        return None

    async def _after(self, line: str, status: int) -> bool:
        moment = self._killer.armed
        if line != self._killer.path or status != 200 or moment not in MOMENTS[1:] or not self._lives:
            return False
        if moment == MOMENTS[1]:
            self._killer.strike(moment, self)
            await self.running.process.wait()
            return True
        self._killer.armed = ""
        self._killer.doomed[self.running.port] = moment, MOMENTS.index(moment) - 2
        return False


async def r3(ground: Ground, *, kills: int, workers: int, fits: int, pause: float) -> Outcome:
    """Creates and deletes go on all the time, more than fit; each worker has a name of its own.

    `pause` is the seconds between two tries of what is refused.
    """
    rng = ground.random("R3")
    name = ground.name()
    await ground.namespace(name)
    answers: Counter[str] = Counter()
    over = asyncio.Event()
    async with ground.parts() as parts:
        await ground.controller(parts, parts.often)
        killer = Killer(parts, f"PUT {GROUPS.path(name=name, subresource='status')}")
        parts.balancer.passes = killer.passes
        proxies = [Proxy(parts.kubeconfigs[WEBHOOKS]) for _ in range(REPLICAS)]
        for proxy in proxies:
            await parts.enter(proxy)
        victims = [
            Victim(killer, proxy, parts.folder / f"proxied-{n}", ground.flags) for n, proxy in enumerate(proxies)
        ]
        await asyncio.gather(*(victim.start() for victim in victims))
        await parts.register()
        await ground.group(name, count=str(fits))

        async def work(number: int) -> None:
            obj = deployment(f"w{number}", name, 0, namespace=name)
            while not over.is_set():
                try:
                    await ground.people.create(DEPLOYMENTS, obj)
                except ApiError as error:
                    # 403 is full, 429 try again; 500 is the API server's: the webhook that it asked was killed, and
                    # 504 is where it gave up itself.
                    expected(error, 403, 429, 500, 504)
                    answers[str(error.status)] += 1
                    await asyncio.sleep(pause)
                else:
                    answers["stored"] += 1
                    await asyncio.sleep(rng.random() * 5 * pause)
                    await ground.people.delete(DEPLOYMENTS, f"w{number}", name)

        async def restart() -> None:
            while True:
                await (await killer.killed.get()).start()

        async with ground.recorder(name) as recorder:
            async with under_way(restart()) as restarts, under_way(*map(work, range(workers))) as tasks:
                moments = [MOMENTS[n % len(MOMENTS)] for n in range(kills)]
                rng.shuffle(moments)
                for number, moment in enumerate(moments, 1):
                    while len(parts.balancer.backends) < REPLICAS - 1:
                        restarts.check()
                        await asyncio.sleep(0.05)
                    before = killer.done.total()
                    killer.armed = moment
                    async with asyncio.timeout(120):
                        while killer.done.total() == before:
                            tasks.check()
                            await asyncio.sleep(0.01)
                    if number % 10 == 0:
                        ground.say(f"{number} kills")
                while len(parts.balancer.backends) < REPLICAS:
                    restarts.check()
                    await asyncio.sleep(0.05)
                over.set()
                await tasks.ended()
            await ground.expire(name)
            left = await ground.agreed(name)
            revisions = await recorder.laws()
        await ground.clear(name)
    listed = ", ".join(f"{killer.done[moment]} {moment}" for moment in MOMENTS)
    return Outcome(
        f"{kills} kills ({listed}) under {answers['stored']} creates stored, {answers['403']} refused, "
        f"{answers['500']} failed with their webhook; never over {fits}, {left} charged and stored at the end; "
        f"{revisions} revisions checked"
    )


async def r23(stage: Stage, *, real: Real, kills: int, requests: int, fits: int, concurrency: int) -> Outcome:
    """etcd, the API server or both are killed while creates go on. Read back from etcd itself."""
    rng = stage.random("R23")
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, count=str(fits))
    answers: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    numbers = itertools.count()
    over = asyncio.Event()

    async def work() -> None:
        for number in numbers:
            if number >= requests and over.is_set():
                return
            try:
                await stage.people.create(DEPLOYMENTS, deployment(f"w{number}", name, 0, namespace=name))
            except ApiError as error:
                # 403 is full, or a server that starts; the others are a server that was killed.
                expected(error, 403, 429, 500, 502, 503, 504)
                answers[str(error.status)] += 1
            except Unreachable:
                answers["no answer"] += 1
            else:
                answers["stored"] += 1
                continue
            await asyncio.sleep(0.05)

    async with EtcdRecorder(stage.watcher, name, real.etcd) as recorder:
        async with under_way(*(work() for _ in range(concurrency))) as tasks:
            programs = [VICTIMS[n % len(VICTIMS)] for n in range(kills)]
            rng.shuffle(programs)
            for number, struck_now in enumerate(programs, 1):
                # What was promised to requests that died may fill the group, so that no more are stored for a while.
                until = asyncio.get_running_loop().time() + 5
                while answers["stored"] < number * fits // (kills + 1) and asyncio.get_running_loop().time() < until:
                    tasks.check()
                    await asyncio.sleep(0.01)
                await asyncio.sleep(rng.random() * 0.2)
                for program in struck_now:
                    real.kill(program)
                    struck[program] += 1
                await asyncio.sleep(rng.random() * 0.3)
                for program in struck_now:
                    real.revive(program)
                await asyncio.to_thread(real.wait)
                stage.say(f"{number} kills, {answers['stored']} stored")
            over.set()
            await tasks.ended()
        await stage.expire(name)
        stored = await stage.agreed(name)
        assert stored <= fits, f"{stored} stored, {fits} fit"
        # What was lost with the servers is free again: exactly what fits can be stored now.
        for number in range(stored, fits):
            await stage.people.create(DEPLOYMENTS, deployment(f"z{number}", name, 0, namespace=name))
        assert await stage.counts(name) == fits
        revisions = await recorder.laws()
    listed = ", ".join(f"{program} {count} times" for program, count in sorted(struck.items()))
    lost = answers.total() - answers["stored"] - answers["403"]
    return Outcome(
        f"{listed} killed; {answers['stored']} stored, {answers['403']} refused, {lost} lost their answer or failed; "
        f"{stored} stored in fact, then filled up to exactly {fits} ({COUNT}); {revisions} revisions read from etcd "
        "and checked"
    )
