"""R17: what people are billed for, against the integral of the pods' own timestamps.

Controllers lead with clocks that are half a minute off, die at each write that has a name, are away for ten minutes,
and at the end two lead at once. The ten minutes are a shift of all later clocks and timestamps, not a wait.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

import crds
from bizrq.api import hours as wire
from bizrq.kube.client import KubeClient, NotFound, Unreachable
from bizrq.kube.groups import GROUPS
from bizrq.kube.hours import pages, statements
from bizrq.quota.cash import Page, sum_in, total
from bizrq.quota.ledger import milliseconds
from bizrq.quota.periods import LIFETIME
from bizrq.quota.quantity import NANO
from bizrq.settings import settings
from controller.manager import Controller
from sandbox.clock import rfc3339
from sandbox.server import Sandbox
from tests.cluster import Cluster, eventually, has_kinds
from tests.objects import PODS, TFJOBS, Object, group, template, tfjob
from tests.reliability.stage import Ground, Outcome, ground_on

GPU = "requests.nvidia.com/gpu"
#: Seconds by which the controllers' clocks are off, in turn.
SKEWS = (30, -30)
OUTAGE = 600
#: The writes at which a controller dies, before it is sent and after it was stored.
RECORDING = tuple(itertools.product(("finalizer", "page", "record", "status"), ("before", "after")))
LEAVING = tuple(itertools.product(("statement", "record", "removal", "finalizer"), ("before", "after")))


class Mortal(KubeClient):
    """A client whose process is killed at a write: nothing that it asks afterwards is answered."""

    point: tuple[str, str] | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dead = asyncio.Event()

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        write = _write(method, path)
        if self.dead.is_set() or self.point == (write, "before"):
            self.dead.set()
            raise Unreachable("killed", sent=False)
        answer = await super().request(method, path, **how)
        if self.point == (write, "after"):
            self.dead.set()
            raise Unreachable("killed", sent=True)
        return answer


def _write(method: str, path: str) -> str:
    if "/bizgroupstatements" in path and method == "POST":
        return "statement"
    if "/bizgroupcardhours" in path and method != "GET":
        return {"POST": "page", "PUT": "record", "DELETE": "removal"}[method]
    if "/bizgroupresourcequotas" in path and method in ("PUT", "PATCH"):
        return "status" if method == "PUT" else "finalizer"
    return ""


@dataclass
class Desk:
    """A group below another, with one job, its pods, and what became of each by its own timestamps."""

    ground: Ground
    parent: str
    name: str
    cards: int = 3
    shift: int = 0
    job: Object = field(default_factory=dict)
    #: By uid: when each began and ended, in milliseconds; of what vanished unseen, when it was still there at least.
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    unseen: dict[str, tuple[int, int]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)

    def now(self) -> int:
        """The time of the cluster, in milliseconds."""
        box = self.ground.cluster.box
        return self.shift * 1000 + int((box.clock.now().timestamp() if box else time.time()) * 1000)

    @asynccontextmanager
    async def controller(self, skew: int, point: tuple[str, str] | None = None) -> AsyncIterator[Mortal]:
        """A controller that leads at once, whoever leads besides; it is never ended in order."""
        number = next(self._numbers)
        space = await self.ground.namespace(f"{self.name}-lease-{number}")
        made = settings(None)
        async with Mortal.from_kubeconfig(self.ground.cluster.kubeconfig) as client:
            controller = Controller(
                client,
                made.registry,
                made.counting,
                catalog=made.catalog,
                recount_interval=0.3,
                cash_interval=0.2,
                namespace=space,
                identity=f"{self.name}-{number}",
                now=lambda: self.now() + skew * 1000,
            )
            client.point = point
            task = asyncio.create_task(controller.run())
            try:
                await asyncio.wait_for(controller.leading.wait(), 30)
                yield client
            finally:
                client.dead.set()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def pod(self, since: int) -> str:
        """A running pod, bound so many seconds ago; its name is its number."""
        name = f"{self.name}-{next(self._numbers)}"
        job = self.job["metadata"]
        reference = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": job["name"], "uid": job["uid"]}
        metadata = {"name": name, "namespace": "default", "ownerReferences": [{**reference, "controller": True}]}
        spec = template("1", **{"nvidia.com/gpu": self.cards})["spec"]
        made = await self.ground.client.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": "n1"}}
        )
        begun = self.now() // 1000 - since
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _stamp(begun)}
        await self._status(name, {"phase": "Running", "conditions": [condition]})
        self.lives[made["metadata"]["uid"]] = begun * 1000, 0
        return name

    async def ends(self, name: str, ago: int = 0) -> str:
        """The container ended so many seconds ago; gives the pod's uid."""
        at = self.now() // 1000 - ago
        state = {"terminated": {"exitCode": 0, "finishedAt": _stamp(at)}}
        found = await self._status(name, {"phase": "Succeeded", "containerStatuses": [_container(state)]})
        uid = found["metadata"]["uid"]
        self.lives[uid] = self.lives[uid][0], at * 1000
        return uid

    async def delete(self, name: str) -> str:
        """Delete at once, by the API server's clock; gives the pod's uid."""
        found = await self.ground.client.get(PODS, name, "default")
        uid, watching = found["metadata"]["uid"], self._last_state(name, found["metadata"]["resourceVersion"])
        task = asyncio.create_task(watching)
        options = orjson.dumps({"gracePeriodSeconds": 0})
        await self.ground.client.request("DELETE", PODS.path("default", name), body=options)
        last = (await asyncio.wait_for(task, 20))["metadata"]
        begun, ended = self.lives[uid]
        self.lives[uid] = begun, ended or milliseconds(last["deletionTimestamp"]) + self.shift * 1000
        return uid

    async def vanishes(self, name: str) -> None:
        """Delete while nobody looks."""
        uid = await self.delete(name)
        begun, _ = self.lives.pop(uid)
        self.unseen[uid] = begun, self.now()

    async def _last_state(self, name: str, since: str) -> Object:
        async for kind, obj in self.ground.watcher.watch(PODS, resource_version=since):
            if kind == "DELETED" and obj["metadata"]["name"] == name:
                return obj
        raise AssertionError("the watch ended")

    async def _status(self, name: str, status: Object) -> Object:
        return await self.ground.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")

    async def record(self, name: str = "") -> list[Page]:
        return [wire.page_of(page) for page in await pages(self.ground.client, name or self.name)]

    async def until(self, holds: Callable[[list[Page]], bool], what: str) -> list[Page]:
        last: list[list[Page]] = [[]]

        async def found() -> list[Page] | None:
            last[0] = await self.record()
            return last[0] if last[0] and holds(last[0]) else None

        record = await eventually(found, 30, lambda: f"{what}: {last[0]}")
        assert record is not None
        return record

    async def knows(self, *uids: str) -> None:
        """The record has settled these."""
        await self.until(
            lambda record: all(any(u in page.finished for page in record) for u in uids), f"{uids} settled"
        )

    async def runs(self, name: str) -> None:
        uid = (await self.ground.client.get(PODS, name, "default"))["metadata"]["uid"]
        await self.until(lambda record: uid in _running(record), f"{name} runs")

    def integral(self) -> int:
        """What all that was seen has occupied."""
        return self.cards * NANO * sum(end - begun for begun, end in self.lives.values())


async def r17(ground: Ground, *, rounds: int) -> Outcome:
    async with _alone(ground) as quiet:
        return await _r17(quiet, rounds)


@asynccontextmanager
async def _alone(ground: Ground) -> AsyncIterator[Ground]:
    """Where nobody but us makes or ends pods: on the sandbox one of our own, without its stand-ins for controllers."""
    if ground.cluster.box is None:
        yield ground
        return
    async with Sandbox(controllers=False) as box:
        cluster = Cluster("sandbox", box.write_kubeconfig(ground.folder / "alone"), box)
        async with ground_on(cluster, ground.folder, seed=ground.seed, say=ground.say, clock=ground.clock) as alone:
            yield alone


async def _r17(ground: Ground, rounds: int) -> Outcome:
    await has_kinds(ground.client, [*crds.load(), *crds.stand_ins()])
    desk = Desk(ground, ground.name(), ground.name())
    for name, parent in ((desk.parent, ""), (desk.name, desk.parent)):
        await ground.client.create(GROUPS, group(name, parent, gpu="1000", hours="1M"))
    desk.job = await ground.client.create(TFJOBS, tfjob(desk.name, desk.name, 1, gpu=desk.cards))
    kills = await _killed(desk, rounds)
    await _looked_at(desk, rounds)
    await _away(desk)
    spent = await _two_at_once(desk)
    await _left(desk, spent)
    figures = (
        f"{len(desk.lives)} pods to the millisecond by clocks of ±30 s; {kills} kills; "
        f"{len(desk.unseen)} inferred, within their bounds; two controllers; the same again"
    )
    return Outcome(figures)


async def _killed(desk: Desk, rounds: int) -> int:
    """Each controller dies at a write; what runs and what ends is the next one's."""
    kills = 0
    running = await desk.pod(3600)
    for number in range(rounds):
        # A record is begun once.
        points = RECORDING[4:] if number else RECORDING
        for skew, point in zip(itertools.cycle(SKEWS), points, strict=False):
            begins, ends = await desk.pod(100), await desk.pod(200)
            async with desk.controller(skew, point) as client:
                await desk.ends(ends, ago=50)
                await asyncio.wait_for(client.dead.wait(), 10)
                kills += 1
                await desk.ends(begins)
    async with desk.controller(0):
        uid = await desk.ends(running)
        await desk.knows(uid)
    return kills


async def _looked_at(desk: Desk, rounds: int) -> None:
    """Pods of ten seconds that are gone before anybody looks, and pods that are deleted while they run."""
    for skew in SKEWS * rounds:
        async with desk.controller(skew):
            runs, short = await desk.pod(1000), await desk.pod(10)
            await desk.runs(runs)
            await desk.ends(short)
            gone = {await desk.delete(short), await desk.delete(runs)}
            expected = desk.integral()
            await desk.until(
                lambda record, gone=gone, expected=expected: (
                    not gone & _running(record) and sum_in(record, LIFETIME).get(GPU) == expected
                ),
                f"{expected} are charged",
            )


async def _away(desk: Desk) -> None:
    """Nobody looks for ten minutes: pods end, begin and end, and vanish."""
    async with desk.controller(SKEWS[0]):
        ends, vanishes = await desk.pod(500), await desk.pod(700)
        await desk.runs(ends)
        await desk.runs(vanishes)
    await desk.vanishes(vanishes)
    desk.shift += OUTAGE
    await desk.ends(ends, ago=OUTAGE // 2)
    came = await desk.pod(OUTAGE // 3)
    await desk.ends(came, ago=OUTAGE // 4)


async def _two_at_once(desk: Desk) -> int:
    """Both believe that they lead; then one begins anew. What the record says is the same."""
    async with desk.controller(SKEWS[0]), desk.controller(SKEWS[1]):
        names = [await desk.pod(60 * n) for n in range(1, 9)]
        uids = [await desk.ends(name, ago=5) for name in names]
        await desk.knows(*uids)
    record = await _settled(desk)
    inferred = {gone.uid: gone for page in record for gone in page.inferred}
    assert inferred.keys() == desk.unseen.keys(), (inferred, desk.unseen)
    skew = max(SKEWS) * 1000
    for uid, (begun, seen) in desk.unseen.items():
        gone = inferred[uid]
        assert gone.start == begun
        assert gone.charged_to - skew <= seen <= gone.seen_gone + skew
    expected = desk.integral() + sum(
        (gone.charged_to - gone.start) * dict(gone.rate.cost)[GPU] for gone in inferred.values()
    )
    assert sum_in(record, LIFETIME) == {GPU: expected}, (sum_in(record, LIFETIME), expected)
    async with desk.controller(SKEWS[1]):
        before = await _counted(desk)
        await eventually(lambda: _is_newer(desk, before), 20, "the group is looked at")
    again = await _settled(desk)
    assert [page.open for page in again] == [page.open for page in record]
    return expected


async def _counted(desk: Desk) -> str:
    return (await desk.ground.client.get(GROUPS, desk.name))["status"]["lastReconcileTime"]


async def _is_newer(desk: Desk, than: str) -> bool:
    return await _counted(desk) != than


async def _settled(desk: Desk) -> list[Page]:
    record = await desk.record()
    assert not _running(record)
    assert not any(page.split for page in record)
    return record


async def _left(desk: Desk, spent: int) -> None:
    """The group goes; who hands over its hours dies at each write on the way. They are the parent's, once."""
    for skew, point in zip(itertools.cycle(SKEWS), LEAVING, strict=False):
        async with desk.controller(skew, point) as client:
            if point == LEAVING[0]:
                await _remove(desk)
            await asyncio.wait_for(client.dead.wait(), 10)
    async with desk.controller(0):

        async def gone() -> bool:
            with suppress(NotFound):
                await desk.ground.client.get(GROUPS, desk.name)
                return False
            return True

        await eventually(gone, 20, "the group is gone")
    [statement] = await statements(desk.ground.client, desk.name)
    assert wire.amounts_of(statement.spec.total) == {GPU: spent}
    assert not await desk.record()
    parent = await desk.record(desk.parent)
    assert total(parent[0]) == {GPU: spent}


async def _remove(desk: Desk) -> None:
    """Delete the group with its workloads: nobody admits anything here."""
    path = PODS.path("default")
    items, _ = await desk.ground.client.list(PODS, "default")
    for pod in items:
        if pod["metadata"]["name"].startswith(f"{desk.name}-"):
            options = orjson.dumps({"gracePeriodSeconds": 0})
            await desk.ground.client.request("DELETE", f"{path}/{pod['metadata']['name']}", body=options)
    await desk.ground.client.delete(TFJOBS, desk.name, "default")
    await desk.ground.client.delete(GROUPS, desk.name)


def _running(record: list[Page]) -> set[str]:
    return {uid for page in record for since in page.running.values() for uid in since}


def _stamp(seconds: int) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def _container(state: Object) -> Object:
    told = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    return {**told, "state": state}
