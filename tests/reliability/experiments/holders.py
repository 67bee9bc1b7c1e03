"""R30: holders of allowances are stopped, killed and restarted in a storm, and stand beside replicas that have none."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bizrq.kube.client import ApiError
from bizrq.kube.lease import LEASES
from bizrq.quota.allowance import is_line_text
from bizrq.quota.reservation import Reservation, parse_reservation
from bizrq.store import processes
from bizrq.store.groups import GROUPS
from tests.reliability.stage import Ended, Ground, Outcome, expected, noted, under_way
from tests.support.accounts import SYSTEM
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, Object, deployment
from tests.support.serving import ALLOWANCES, Parts, Running


@dataclass
class Storm:
    """Creates of Deployments without replicas in one group. Who is told to try again does so, and is timed.

    Who asks has a namespace alone, so that nobody pays for writes of others that got lost.
    """

    ground: Ground
    group: str
    namespaces: Sequence[str]
    answers: Counter[str] = field(default_factory=Counter)
    #: The longest time in seconds from a request's first try to its answer.
    waited: float = 0.0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def create(self, name: str, namespace: str) -> None:
        """Create one until it is admitted, or refused for want of room."""
        began = asyncio.get_running_loop().time()
        for lost in itertools.count():
            obj = deployment(f"{self.group}-{name}-{lost}", self.group, 0, namespace=namespace)
            error = await self._error(obj)
            while error is not None and error.status == 429:
                await asyncio.sleep(0.1)
                error = await self._error(obj)
            if error is None or error.status == 403:
                break
            # What was promised to a name whose answer got lost stands for a minute.
        self.waited = max(self.waited, asyncio.get_running_loop().time() - began)
        self.moved.set()

    async def _error(self, obj: Object) -> ApiError | None:
        try:
            await self.ground.people.create(DEPLOYMENTS, obj)
        except ApiError as error:
            # 403 is full, 429 try again; 500 and 504 are the API server's, of a webhook that was stopped.
            expected(error, 403, 429, 500, 504)
            self.answers[str(error.status)] += 1
            return error
        self.answers["stored"] += 1
        return None

    @property
    def stored(self) -> int:
        return self.answers["stored"]

    async def run(self, of: str, count: int) -> None:
        """So many creates, by as many people at a time as there are namespaces."""
        numbers = iter(range(count))

        async def person(namespace: str) -> None:
            for number in numbers:
                await self.create(f"{of}{number}", namespace)

        await asyncio.gather(*map(person, self.namespaces))

    async def past(self, count: int) -> None:
        """Wait until so many are stored."""
        while self.stored < count:
            self.moved.clear()
            await self.moved.wait()


async def r30(
    ground: Ground,
    *,
    holders: int,
    fits: int,
    beyond: int,
    concurrency: int,
    frozen: Sequence[float],
    restarts: float,
    mixed: bool,
    bound: float,
) -> Outcome:
    """More creates than fit, each until it has an answer; in the midst of it something happens to a holder.

    `frozen` are the seconds for which one is stopped, `restarts` those after which the next is restarted; 0 for never.
    """
    async with ground.parts() as parts:
        # Of processes that others killed: they would count as some without the flag until their Leases are old.
        for left in await processes.read(ground.client, SYSTEM):
            await ground.client.delete(LEASES, left.name, SYSTEM)
        running = await asyncio.gather(*(parts.webhook_process(flags=ALLOWANCES) for _ in range(holders)))
        people = await asyncio.gather(*(ground.namespace(ground.name()) for _ in range(concurrency)))
        stage = _Holders(ground, parts, list(running), people, fits, beyond, bound)
        await eventually(stage.are_known, 60, "each webhook has its Lease and its journal")
        await ground.controller(parts, parts.often)
        await parts.register()
        for seconds in frozen:
            async with stage.storm(f"stopped for {seconds:g} s") as ended:
                await stage.stop_one(seconds, ended)
        async with stage.storm("killed"):
            await stage.kill_one()
        if restarts:
            async with stage.storm(f"one restarted every {restarts:g} s") as ended:
                await stage.restart(restarts, ended)
        if mixed:
            # From when that runs none is given, and what is held goes back.
            async with stage.storm("beside one without", begin=stage.one_without):
                pass
            await stage.is_given_back(stage.storms[-1].group)
        await stage.fill()
        revisions = sum(stage.revisions)
    waits = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in stage.waits.items())
    return Outcome(
        f"{holders} holders, {fits} fit each time, never over; longest until an answer: {waits}; "
        f"{stage.notes} of {stage.stored} admitted by notes, {stage.late} after the expiry; "
        f"{revisions} revisions checked",
        stage.missed,
    )


@dataclass
class _Holders:
    """The processes that hold allowances, one group after the other that they hold, and what was measured."""

    ground: Ground
    parts: Parts
    running: list[Running]
    people: Sequence[str]
    fits: int
    beyond: int
    bound: float
    storms: list[Storm] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    revisions: list[int] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    #: The last note of each journal, by its name.
    last: dict[str, int] = field(default_factory=dict)
    #: What was admitted once all that was promised in vain had expired.
    late: int = 0

    @property
    def notes(self) -> int:
        return sum(self.last.values())

    @property
    def stored(self) -> int:
        return sum(storm.stored for storm in self.storms)

    async def are_known(self) -> bool:
        """Return whether each process has its Lease and its journal: a controller gives to nobody before."""
        leases = await processes.read(self.ground.client, SYSTEM)
        return min(len(leases), len(await noted(self.ground.client))) >= len(self.running)

    async def _lines(self, group: str) -> list[Reservation]:
        status = (await self.ground.client.get(GROUPS, group))["status"]
        return [parse_reservation(text) for text in status.get("reservations", ()) if is_line_text(text)]

    @contextlib.asynccontextmanager
    async def storm(self, what: str, begin: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[Ended]:
        """Once a group has allowances, ask for more than fits. The block begins in the midst; what it gets awaits all.

        Within the bound each has its answer, and never is more stored or promised than fits.
        """
        ground, name = self.ground, self.ground.name()
        async with ground.recorder(name) as recorder:
            await ground.group(name, count=str(self.fits))
            storm = Storm(ground, name, self.people)
            self.storms.append(storm)
            await eventually(lambda: self._given(name), 90, f"{name} has allowances")
            if begin is not None:
                await begin()
            before = self.notes
            async with under_way(storm.run("w", self.fits + self.beyond)) as tasks:
                await storm.past(self.fits // 4)
                yield tasks.ended
                await tasks.ended()
            self.last |= await noted(ground.client)
            self.revisions.append(await recorder.laws())
        self.waits[what] = storm.waited
        if storm.waited > self.bound:
            self.missed.append(f"{what}: somebody waited {storm.waited:.1f} s for an answer")
        if self.notes == before:
            self.missed.append(f"{what}: nothing was admitted by a note")
        ground.say(f"{what}: {dict(storm.answers)}")

    async def _given(self, group: str) -> bool:
        """Allowances are given by counts that see creates, once the controller knows who holds any."""
        client = self.ground.client
        name = f"{group}-first"
        await client.create(DEPLOYMENTS, deployment(name, group, 0, namespace=self.people[0]))
        await client.delete(DEPLOYMENTS, name, self.people[0])
        await asyncio.sleep(0.5)
        return len(await self._lines(group)) >= len(self.running)

    async def _without(self, port: int) -> None:
        """Hand reviews to the others, as a Service does once a probe has failed."""
        self.parts.balancer.backends.remove(port)
        await self.parts.balancer.hang_up(port)

    async def stop_one(self, seconds: float, ended: Ended) -> None:
        """SIGSTOP a holder for so long, and at least until the others have answered all; then it goes on."""
        victim = self.running[0]
        victim.process.send_signal(signal.SIGSTOP)
        try:
            await self._without(victim.port)
            await asyncio.gather(asyncio.sleep(seconds), ended())
        finally:
            victim.process.send_signal(signal.SIGCONT)
        self.parts.balancer.backends.append(victim.port)
        await self.parts.balancer.hang_up()
        # It takes part again, and what it noted before is no room of its own.
        await self.storms[-1].run("thawed", len(self.people))

    async def kill_one(self) -> None:
        victim = self.running.pop(0)
        victim.kill()
        await self._without(victim.port)

    async def restart(self, pause: float, ended: Ended) -> None:
        """Replace a holder every so many seconds until all have their answer: one that ends by itself, one that is
        killed, and so on.
        """
        answered = asyncio.ensure_future(ended())
        for is_killed in itertools.cycle((False, True)):
            await asyncio.wait([answered], timeout=pause)
            if answered.done():
                break
            if is_killed:
                await self.kill_one()
            else:
                victim = self.running.pop(0)
                await self._without(victim.port)
                await victim.end()
            self.running.append(await self.parts.webhook_process(flags=ALLOWANCES))
            await self.parts.balancer.hang_up()
        await answered

    async def one_without(self) -> None:
        await self.parts.webhook_process()
        await self.parts.balancer.hang_up()

    async def is_given_back(self, name: str, *, but_empty: bool = False) -> None:
        """Wait until a group has no allowance: one that was killed keeps its own for 75 s at most.

        `but_empty`: one that its process has used up may stay, for to take it back gives nobody room.
        """

        async def none() -> bool:
            return not any(not but_empty or any(line.amount.values()) for line in await self._lines(name))

        await eventually(none, 120, f"{name} has no allowances")

    async def fill(self) -> None:
        """Once what was promised in vain has expired, exactly the rest fits: nothing leaked."""
        ground = self.ground
        await ground.expire(*(storm.group for storm in self.storms))
        for storm in self.storms:
            await self.is_given_back(storm.group, but_empty=True)
            rest = self.fits - await ground.agreed(storm.group)
            before = storm.stored
            await storm.run("late", rest + 1)
            self.late += (late := storm.stored - before)
            if late != rest:
                self.missed.append(f"{storm.group}: {late} of {rest} fit after the expiry")
        for namespace in self.people:
            await ground.clear(namespace)
