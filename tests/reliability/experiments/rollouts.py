"""R13: webhooks are replaced one by one while an API server asks them, by a balancer that learns late of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.registration import NAME
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability.stage import Ground, Outcome, under_way
from tests.support.accounts import SYSTEM
from tests.support.cluster import eventually
from tests.support.newer import ENTRY, FORMAT, REJECTED
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.oracle import Recorder
from tests.support.serving import Parts, Running

#: Seconds in which a webhook is ready after a rollback: a minute for reservations in a newer format, and some more.
ROLLBACK = 110.0
#: What fits into the group that is always full.
FITS = 5


@dataclass
class Rollout:
    """People ask in bursts while webhooks are replaced. `late` is how long the balancer hands on after SIGTERM."""

    ground: Ground
    parts: Parts
    group: str
    full: str
    burst: int
    pause: float
    late: float
    drain: int

    @contextlib.asynccontextmanager
    async def calls(self) -> AsyncIterator[Counter[str]]:
        """Ask within the block, and count the answers.

        Each burst has more requests than the API server keeps idle connections, so that some come on new ones. They
        are dry runs, but for one that is stored and one that may not fit.
        """
        done: Counter[str] = Counter()
        ended = asyncio.Event()

        async def call(number: int, caller: int) -> None:
            is_stored, may_fit = caller == 0, caller == 1
            of = self.full if may_fit else self.group
            obj = deployment(f"w{number}-{caller}", of, 0, namespace=self.group)
            try:
                await self.ground.people.create(DEPLOYMENTS, obj, dry_run=not (is_stored or may_fit))
                if is_stored or (may_fit and number % 3 == 0):
                    await self.ground.people.delete(DEPLOYMENTS, obj["metadata"]["name"], self.group)
                done["answered"] += 1
            except (ApiError, Unreachable) as error:
                is_full = may_fit and isinstance(error, ApiError) and "exceeded quota" in error.message
                done["answered" if is_full else str(error)[:300]] += 1

        async def bursts() -> None:
            for number in itertools.count():
                if ended.is_set():
                    return
                await asyncio.gather(*(call(number, caller) for caller in range(self.burst)))
                await asyncio.sleep(self.pause)

        async with under_way(bursts()) as calling:
            yield done
            ended.set()
            await calling.ended()
        self.ground.say(f"{dict(done)}")

    @contextlib.asynccontextmanager
    async def formats(self) -> AsyncIterator[set[str]]:
        """The formats of the group's reservations that are seen within the block."""
        seen: set[str] = set()

        async def look() -> None:
            while True:
                with contextlib.suppress(Unreachable):
                    status = (await self.parts.client.get(GROUPS, self.group)).get("status", {})
                    seen.update(entry.partition(" ")[0] for entry in status.get("reservations", ()))
                await asyncio.sleep(0.05)

        async with under_way(look()):
            yield seen

    async def replaced(
        self, running: Sequence[Running], *, is_newer: bool = False, within: float = 90
    ) -> list[Running]:
        """Replace these webhooks one by one, each once the next is ready, and return the new ones."""
        found = []
        for old in running:
            found.append(await self.parts.webhook_process(drain=self.drain, is_newer=is_newer, within=within))
            old.process.terminate()
            asyncio.get_running_loop().call_later(self.late, self.parts.balancer.backends.remove, old.port)
            assert await asyncio.wait_for(old.process.wait(), 60) == 0
        return found

    async def is_registered(self) -> bool:
        """Return whether the API server asks the path of the newer version."""
        with contextlib.suppress(NotFound):
            stored = await self.parts.client.get(REGISTRATIONS, NAME)
            return any(webhook["name"] == ENTRY for webhook in stored["webhooks"])
        return False

    async def decides(self) -> bool:
        """Return whether the newer version decides."""
        try:
            await self.parts.client.create(DEPLOYMENTS, deployment(REJECTED, None, 1), dry_run=True)
        except ApiError as error:
            return "as the newer version says" in error.message
        return False


async def r13(ground: Ground, *, replicas: int, burst: int, pause: float, late: float, drain: int) -> Outcome:
    """A rolling restart, an upgrade and a rollback.

    The newer version has a path and a format of reservations that this one does not know. The path is registered while
    all webhooks have it, the format is written while all processes read it, and only then.
    """
    name, full = ground.name(), ground.name()
    told: dict[str, Counter[str]] = {}
    connections: dict[str, int] = {}
    async with ground.parts() as parts:
        flags = ["--webhook-url", parts.url, "--namespace", SYSTEM]
        running = [await parts.webhook_process(drain=drain) for _ in range(replicas)]
        parts.balancer.tries_others = False
        rollout = Rollout(ground, parts, name, full, burst, pause, late, drain)

        @contextlib.asynccontextmanager
        async def asked(what: str) -> AsyncIterator[set[str]]:
            before = parts.balancer.taken
            async with rollout.calls() as told[what], rollout.formats() as seen:
                yield seen
            connections[what] = parts.balancer.taken - before

        async with under_way(parts.trust()):
            controller = await parts.controller_process(flags=flags)
            await ground.namespace(name)
            await ground.group(name, count="100000")
            await ground.group(full, count=str(FITS))
            await parts.asked()
            async with Recorder(ground.watcher, kinds=(DEPLOYMENTS,)) as recorder:
                async with asked("restart"):
                    running = await rollout.replaced(running)
                async with asked("upgrade") as seen:
                    newer = await parts.controller_process(flags=flags, is_newer=True)
                    await controller.end()
                    running = await rollout.replaced(running[:-1], is_newer=True) + running[-1:]
                    assert not await rollout.is_registered(), "an older webhook still runs"
                    assert seen == {"v1"}, seen
                    running = running[:-1] + await rollout.replaced(running[-1:], is_newer=True)
                    await eventually(rollout.decides, 90, "the newer version decides")

                    async def is_written(seen: set[str] = seen) -> bool:
                        return FORMAT in seen

                    await eventually(is_written, 60, "the newer version writes its format")
                async with asked("rollback") as seen:
                    # The webhooks come back first: they wait for the leader of their version.
                    returning = asyncio.create_task(rollout.replaced(running, within=ROLLBACK))
                    await asyncio.sleep(late)
                    controller = await parts.controller_process(flags=flags)
                    await newer.end()
                    await returning
                    seen.clear()
                    await asyncio.sleep(late)
                    assert seen == {"v1"}, seen
                    assert not await rollout.is_registered()
                    assert not await rollout.decides()
                await recorder.caught_up()
            # It would register the webhooks again.
            await controller.end()
        most = _most(recorder, full)
        await ground.client.delete(REGISTRATIONS, NAME)
        await ground.clear(name)
    failed = {answer: count for each in told.values() for answer, count in each.items() if answer != "answered"}
    missed = [f"calls failed: {failed}"] if failed else []
    if most > FITS:
        missed.append(f"{most} were stored where {FITS} fit")
    figures = ", ".join(
        f"{what} {sum(done.values())} calls on {connections[what]} new connections, "
        f"{sum(done.values()) - done['answered']} failed"
        for what, done in told.items()
    )
    return Outcome(
        f"{replicas} webhooks, a balancer {late:g} s late: {figures}; at most {most} of {FITS} stored", missed
    )


def _most(recorder: Recorder, group: str) -> int:
    """The Deployments of a group that were stored at once, at most."""
    stored: set[str] = set()
    most = 0
    for _, what, _, obj in sorted(recorder.events, key=lambda event: event[0]):
        if obj["metadata"].get("labels", {}).get(LABEL) == group:
            (stored.discard if what == "DELETED" else stored.add)(obj["metadata"]["name"])
            most = max(most, len(stored))
    return most
