"""A group whose hours R17 follows: one job, its pods, and what became of each by its own timestamps.

The cluster's time may be set forward where the controllers are in this process; else it passes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bizrq.api import hours as wire
from bizrq.cli.rbac import CONTROLLER
from bizrq.hours.metering import InferredInterval, RecordPage, group_total
from bizrq.hours.periods import ALL_TIME
from bizrq.settings import load
from bizrq.store.hours import pages
from bizrq.units.quantity import NANO
from bizrq.units.times import parse_timestamp
from sandbox.clock import rfc3339
from tests.reliability import leaders
from tests.reliability.leaders import Leader, Point
from tests.reliability.stage import Ground
from tests.support.accounts import give_lease, give_rights, kubeconfig_of
from tests.support.cluster import eventually
from tests.support.objects import PODS, Object, template

GPU = "requests.nvidia.com/gpu"
#: Seconds within which a controller has to be where it is awaited, on a machine that does other things too.
PATIENCE = 120


@dataclass
class Desk:
    ground: Ground
    parent: str
    name: str
    cards: int = 3
    shift: int = 0
    job: Object = field(default_factory=dict)
    #: By uid: when each began and ended, in milliseconds; of what vanished unseen, when it was still there at least.
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    unseen: dict[str, tuple[int, int]] = field(default_factory=dict)
    kills: int = 0
    _numbers: Any = field(default_factory=itertools.count)

    @property
    def waits(self) -> bool:
        """Whether time has to pass, and controllers are processes."""
        return self.ground.clock is None

    def now(self) -> int:
        """The time of the cluster, in milliseconds."""
        box = self.ground.cluster.box
        return self.shift * 1000 + int((box.clock.now().timestamp() if box else time.time()) * 1000)

    async def passes(self, seconds: int) -> None:
        if self.waits:
            await asyncio.sleep(seconds)
        else:
            self.shift += seconds

    async def lease(self) -> str:
        """A namespace in which nobody leads yet."""
        space = await self.ground.namespace(f"{self.name}-lease-{next(self._numbers)}")
        if self.ground.cluster.is_real:
            await give_lease(self.ground.client, space)
        return space

    async def account(self) -> Path:
        """The kubeconfig of a controller: that of its own account."""
        if self.ground.cluster.is_real:
            await give_rights(self.ground.client, load(None).registry)
        return await kubeconfig_of(self.ground.client, self.ground.cluster, CONTROLLER, self.ground.folder)

    @asynccontextmanager
    async def controller(self, skew: int, point: Point | None = None) -> AsyncIterator[Leader]:
        """A controller that leads, whoever leads besides."""
        space, kubeconfig = await self.lease(), await self.account()
        leader: AbstractAsyncContextManager[Leader] = (
            leaders.apart(kubeconfig, self.ground.folder, space, skew, point=point)
            if self.waits
            else leaders.in_this_process(kubeconfig, space, lambda: self.now() + skew * 1000, point)
        )
        async with leader as led:
            yield led

    async def pod(self, since: int = 0) -> str:
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
        uid = (await self.ground.client.get(PODS, name, "default"))["metadata"]["uid"]
        # The pod's own version may be older than what the API server still knows.
        since = await self.ground.client.revision(PODS)
        task = asyncio.create_task(self._last_state(name, str(since)))
        options = orjson.dumps({"gracePeriodSeconds": 0})
        await self.ground.client.request("DELETE", PODS.path("default", name), body=options)
        last = (await asyncio.wait_for(task, 60))["metadata"]
        begun, ended = self.lives[uid]
        self.lives[uid] = begun, ended or parse_timestamp(last["deletionTimestamp"])
        return uid

    async def pods(self) -> list[Object]:
        """Those that are stored now."""
        items, _ = await self.ground.client.list(PODS, "default")
        return [pod for pod in items if pod["metadata"]["name"].startswith(f"{self.name}-")]

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

    async def record(self, name: str = "") -> list[RecordPage]:
        return [wire.page_of(page) for page in await pages(self.ground.client, name or self.name)]

    async def until(self, holds: Callable[[list[RecordPage]], bool], what: str) -> list[RecordPage]:
        last: list[list[RecordPage]] = [[]]

        async def found() -> list[RecordPage] | None:
            last[0] = await self.record()
            return last[0] if last[0] and holds(last[0]) else None

        record = await eventually(found, PATIENCE, lambda: f"{what}: {last[0]}")
        assert record is not None
        return record

    async def knows(self, uids: Collection[str]) -> None:
        """The record has settled these."""
        await self.until(
            lambda record: all(any(u in page.finished for page in record) for u in uids), f"{uids} settled"
        )

    async def runs(self, name: str) -> None:
        uid = (await self.ground.client.get(PODS, name, "default"))["metadata"]["uid"]
        await self.until(lambda record: uid in running(record), f"{name} runs")

    async def is_exact(self) -> list[RecordPage]:
        """Until nothing runs by the record, and all that was seen is charged, to the millisecond."""

        def holds(record: list[RecordPage]) -> bool:
            return not running(record) and group_total(record, ALL_TIME) == {GPU: self.expected(record)}

        return await self.until(holds, f"{self.integral()} are charged")

    def integral(self) -> int:
        """What all that was seen has occupied."""
        return self.cards * NANO * sum(end - begun for begun, end in self.lives.values())

    def expected(self, record: list[RecordPage]) -> int:
        """That, and what the record says of those that vanished."""
        return self.integral() + sum(
            (gone.charged_to - gone.start) * dict(gone.rate.cost)[GPU] for gone in inferred(record).values()
        )


def running(record: list[RecordPage]) -> set[str]:
    return {uid for page in record for since in page.running.values() for uid in since}


def inferred(record: list[RecordPage]) -> dict[str, InferredInterval]:
    return {gone.uid: gone for page in record for gone in page.inferred}


def _stamp(seconds: int) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def _container(state: Object) -> Object:
    told = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    return {**told, "state": state}
