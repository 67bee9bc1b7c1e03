"""Where an experiment is played: a cluster with bizrq in parts on it, a second webhook for chaos, a seed.

The same experiments run small in `make test` (webhooks and controller in this process, expiry by a clock that is set
forward) and in full in `make reliability` (processes of their own, expiry by waiting for it).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import crds
from bizrq.api import group as wire
from bizrq.kube.client import ApiError, KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.journals import JournalStore
from bizrq.units.quantity import NANO
from bizrq.workloads.labels import LABEL
from tests.contract.conftest import Answer, Hook, rule, webhook
from tests.controller.conftest import Monotonic
from tests.reliability.people import Patient, people_on
from tests.support.accounts import SYSTEM
from tests.support.cluster import Cluster, Real, eventually, has_kinds
from tests.support.objects import DEPLOYMENTS, NAMESPACES, Object, deployment, group
from tests.support.oracle import Recorder, settled
from tests.support.serving import ALLOWANCES, Parts

COUNT = "count/deployments.apps"
#: Webhook replicas of every experiment.
REPLICAS = 3
#: How the name of the webhook beside ours begins.
CHAOS = "chaos"

#: Ends what was started.
Ended = Callable[[], Awaitable[None]]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Outcome:
    """What an experiment measured, and each target that it missed, in words. A broken law is raised instead."""

    figures: str
    missed: Sequence[str] = ()


@dataclass
class Ground:
    """A cluster without bizrq. `clock` is the controllers' own where a test may set it forward."""

    cluster: Cluster
    #: An administrator's.
    client: KubeClient
    #: Of those whose requests are the load.
    people: KubeClient
    #: The oracle's, so that its watches wait for nobody.
    watcher: KubeClient
    folder: Path
    seed: int
    say: Callable[[str], None] = lambda _: None
    clock: Monotonic | None = None
    #: Whether webhooks admit by allowances.
    allowances: bool = False

    def random(self, of: str) -> random.Random:
        """Everything that is drawn follows from the seed and the experiment."""
        return random.Random(f"{self.seed} {of}")

    @property
    def patience(self) -> float:
        """Seconds until what was promised in vain has to be gone."""
        return 60.0 if self.clock else 90.0

    @property
    def flags(self) -> Sequence[str]:
        """What a webhook process is started with."""
        return ALLOWANCES if self.allowances else ()

    def name(self) -> str:
        """A name for a group and a namespace that nothing else has."""
        return f"x{next(_numbers)}"

    async def namespace(self, name: str) -> str:
        await self.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    async def group(self, name: str, parent: str = "", /, **hard: str) -> str:
        """A group, once it is counted."""
        await self.client.create(GROUPS, group(name, parent, **hard))

        async def is_counted() -> bool:
            status = wire.from_dict(await self.client.get(GROUPS, name)).status
            return status.used is not None and not status.reservations

        await eventually(is_counted, 60, f"{name} counted")
        return name

    def recorder(self, only: str) -> Recorder:
        return Recorder(self.watcher, (only,))

    @contextlib.asynccontextmanager
    async def parts(self) -> AsyncIterator[Parts]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            async with Parts(self.cluster, Path(folder)) as parts:
                yield parts

    @contextlib.asynccontextmanager
    async def chaos(self, answer: Answer, *, resource: str, operation: str) -> AsyncIterator[Hook]:
        """A webhook beside ours: the API server asks both at once and awaits both."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            hook = Hook(self.client, Path(folder))
            hook.answer = answer
            await hook.start()
            try:
                beside = webhook(CHAOS, rule("apps", resource, operation), timeoutSeconds=20)
                await hook.register(beside)
                yield hook
            finally:
                await hook.stop()

    async def webhooks(self, parts: Parts) -> None:
        """All replicas: in this process where the clock can be set, else as processes behind one more."""
        if self.clock is not None:
            await parts.webhooks(REPLICAS, allowances=self.allowances)
        else:
            await asyncio.gather(*(parts.webhook_process(flags=self.flags) for _ in range(REPLICAS)))
            await parts.balance_apart()

    async def controller(self, parts: Parts, interval: float, kubeconfig: Path | None = None) -> Ended:
        """A controller, likewise; what is returned ends it, a process by kill -9."""
        if self.clock is not None:
            task = await parts.controller(clock=self.clock, recount_interval=interval, kubeconfig=kubeconfig)

            async def cancelled() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            return cancelled
        running = await parts.controller_process(kubeconfig, f"{max(1.0, interval):g}s")

        async def killed() -> None:
            running.kill()
            await running.process.wait()

        return killed

    async def expire(self, *names: str) -> None:
        """Have the promises that these groups have now expire, once the controller has seen them."""
        if self.clock is None:
            return
        for name in names:
            for _ in range(2):
                before = (await self.client.get(GROUPS, name))["status"].get("lastReconcileTime")

                async def looked(name: str = name, before: object = before) -> bool:
                    return (await self.client.get(GROUPS, name))["status"].get("lastReconcileTime") != before

                await eventually(looked, 60, f"{name} is looked at")
        self.clock.advance(61)

    async def counts(self, name: str) -> int:
        """The Deployments that a group is charged for, once nothing is promised any more."""
        [found] = (await settled(self.client, [name], self.patience)).values()
        return wire.parse_amounts(found, found.status.used)[COUNT] // NANO

    async def agreed(self, name: str) -> int:
        """The Deployments that the group is charged for, once those are the ones that are stored: nothing leaked."""
        charged, stored = -1, -1

        async def agree() -> bool:
            nonlocal charged, stored
            charged = await self.counts(name)
            stored = len((await self.client.list(DEPLOYMENTS, label_selector=f"{LABEL}={name}"))[0])
            return charged == stored

        await eventually(agree, self.patience, lambda: f"{charged} charged where {stored} are stored")
        return stored

    async def clear_groups(self, only: str) -> None:
        """Delete the groups that begin so, leaves first: what was promised to a child keeps its parent for a while."""

        async def gone() -> bool:
            groups = [obj["metadata"]["name"] for obj in (await self.client.list(GROUPS))[0]]
            ours = [name for name in groups if f"{name}-".startswith(f"{only}-")]
            await answers([lambda name=name: self.client.delete(GROUPS, name) for name in ours], 10)
            return not ours

        await eventually(gone, 600, f"the groups {only} are gone")

    async def clear(self, namespace: str) -> None:
        """Delete what an experiment left, so that the next one does not pay for it.

        Many at a time: of a collection the API server deletes one after the other, and the review of each waits for a
        list that reviews of the same moment share.
        """
        names, _ = await self.client.list(DEPLOYMENTS, namespace, transform=lambda obj: obj["metadata"]["name"])
        deletes = [lambda name=name: self.client.request("DELETE", DEPLOYMENTS.path(namespace, name)) for name in names]
        for error in await answers(deletes, 50):
            if error is not None:
                expected(error, 404)


@dataclass
class Stage(Ground):
    """A cluster with three webhooks and a controller, registered."""

    bizrq: Parts = field(kw_only=True)


@contextlib.asynccontextmanager
async def ground_on(
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    clock: Monotonic | None = None,
    allowances: bool = False,
) -> AsyncIterator[Ground]:
    async with (
        Patient.from_kubeconfig(cluster.kubeconfig) as client,
        Patient.from_kubeconfig(cluster.kubeconfig) as watcher,
        people_on(cluster, client) as people,
    ):
        yield Ground(cluster, client, people, watcher, folder, seed, say, clock, allowances)


@contextlib.asynccontextmanager
async def real_on(
    folder: Path, controllers: str = "resourcequota-controller,namespace-controller", *, apiserver: Sequence[str] = ()
) -> AsyncIterator[tuple[Real, Cluster]]:
    """A real cluster of one's own: native quota recounts every 50 ms as ours does, etcd keeps all, readable."""
    real = Real(
        folder,
        controllers=controllers,
        flags={
            "kube-apiserver": ["--storage-media-type=application/json", "--etcd-compaction-interval=0", *apiserver],
            "kube-controller-manager": ["--resource-quota-sync-period=50ms"],
        },
    )
    await asyncio.to_thread(real.start)
    try:
        async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
            await has_kinds(client, crds.stand_ins())
        yield real, Cluster(real.version, real.kubeconfig)
    finally:
        real.stop()


@contextlib.asynccontextmanager
async def stage_on(ground: Ground) -> AsyncIterator[Stage]:
    """bizrq on the cluster: in this process where the clock can be set, else as processes."""
    async with ground.parts() as parts:
        await ground.webhooks(parts)
        # What changes is recounted at once. To recount a thousand groups of R9 every second would be all that it does.
        await ground.controller(parts, parts.often if ground.clock is not None else 30)
        await parts.register()
        yield Stage(**{field.name: getattr(ground, field.name) for field in fields(ground)}, bizrq=parts)


async def noted(client: KubeClient) -> dict[str, int]:
    """The number of the last note of each journal that is stored, by its name."""
    found = await JournalStore(client, SYSTEM).list()
    return {name: stored.journal.last for name, stored in found.by_name.items()}


async def answers(requests: Sequence[Callable[[], Awaitable[Any]]], concurrency: int) -> list[ApiError | None]:
    """The refusal of each request, None for a yes; so many at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(request: Callable[[], Awaitable[Any]]) -> ApiError | None:
        async with gate:
            try:
                await request()
            except ApiError as error:
                return error
        return None

    return await asyncio.gather(*map(one, requests))


def creates(
    client: KubeClient, of: str, namespace: str, count: int, *, dry_run: bool = False
) -> list[Callable[[], Awaitable[Object]]]:
    """Creates of that many Deployments without replicas: they cost their count."""

    def make(number: int) -> Callable[[], Awaitable[Object]]:
        obj = deployment(f"w{number}", of, 0, namespace=namespace)
        return lambda: client.create(DEPLOYMENTS, obj, dry_run=dry_run)

    return [make(number) for number in range(count)]


async def asked_again(
    requests: Sequence[Callable[[], Awaitable[Any]]], answered: Sequence[ApiError | None], seconds: float = 60
) -> list[ApiError | None]:
    """The last answer of each request, where who is told to try again does so, one after the other.

    On a busy machine an admitted object may take seconds to be stored. Until then others are told that.
    """
    until, final = asyncio.get_running_loop().time() + seconds, list(answered)
    for number, request in enumerate(requests):
        while (error := final[number]) and error.status == 429 and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.2)
            [final[number]] = await answers([request], 1)
    return final


def expected(error: ApiError, *statuses: int) -> None:
    """Raise a refusal that must not reach a client."""
    if error.status not in statuses:
        raise error


def told(refused: Sequence[ApiError | None]) -> dict[str, int]:
    """How often each answer came, in the order of their words."""
    words = [f"{error.status}" if error else "yes" for error in refused]
    return {word: words.count(word) for word in sorted(set(words))}


class Tasks:
    """What runs beside the block of `under_way`."""

    def __init__(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        self._tasks = tasks

    def check(self) -> None:
        """Raise what ended one of them."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def ended(self) -> None:
        """Wait until all have ended by themselves."""
        await asyncio.gather(*self._tasks)


@contextlib.asynccontextmanager
async def under_way(*tasks: Awaitable[Any]) -> AsyncIterator[Tasks]:
    """What runs beside the block, and is cancelled after it; its failure is the block's."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        yield Tasks(running)
        Tasks(running).check()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
