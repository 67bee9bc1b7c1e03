"""A webhook that is replaced while reviews come: who sends them learns late that it ends, and no call fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import deployment, group
from tests.support.serving import Parts, Running
from tests.webhooks.test_app import a_review

#: Seconds after SIGTERM until nothing new is sent to the process, and for which it serves on.
LATE, DRAIN = 3.0, 6
#: Who sends reviews at once, on a connection for each and on kept ones.
FRESH, KEPT = 4, 2


class Callers:
    """Send reviews, each to the next of `ports`: no other is tried if that one does not answer."""

    def __init__(self, ports: list[int], ca: Path) -> None:
        self.ports = ports
        self.answers = 0
        self.failures: list[str] = []
        #: How many answers ended a kept connection.
        self.left = 0
        self._trust = ssl.create_default_context(cafile=ca)
        self._turn = itertools.count()

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call(keeps=number >= FRESH)) for number in range(FRESH + KEPT)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    async def more(self, count: int) -> None:
        wanted = self.answers + count

        async def came() -> bool:
            return self.answers >= wanted

        await eventually(came, 60, "reviews are answered")

    async def _call(self, keeps: bool) -> None:
        connector = aiohttp.TCPConnector(ssl=self._trust, force_close=not keeps)
        async with aiohttp.ClientSession(connector=connector) as session:
            for number in itertools.count():
                port = self.ports[next(self._turn) % len(self.ports)]
                name = f"web-{id(session)}-{number}"
                review = a_review(deployment(name, "nlp", 1), f"u{number}")
                review["request"]["name"] = name
                url = f"https://127.0.0.1:{port}/validate/workloads?timeout=10s"
                try:
                    async with session.post(url, json=review) as answer:
                        response = (await answer.json())["response"]
                        self.left += keeps and answer.headers.get("Connection") == "close"
                    if not response["allowed"]:
                        self.failures.append(str(response["status"]))
                except (aiohttp.ClientError, OSError) as error:
                    self.failures.append(repr(error))
                self.answers += 1
                # Each leaves a reservation.
                await asyncio.sleep(0.1)


@asynccontextmanager
async def two_webhooks(folder: Path, drain: int) -> AsyncIterator[tuple[list[Running], Callers]]:
    """Two processes that know a group with room for all, and their callers."""
    async with Sandbox(tls=True) as box:
        cluster = Cluster("sandbox", box.write_kubeconfig(folder / "kubeconfig"), box)
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
            await has_kinds(client, crds.stand_ins())
        async with Parts(cluster, folder) as parts:
            await parts.controller()
            await parts.client.create(GROUPS, group("nlp", cpu="100000"))

            async def counted() -> bool:
                return "used" in (await parts.client.get(GROUPS, "nlp")).get("status", {})

            await eventually(counted, 60, "the group is counted")
            running = [await parts.webhook_process(drain=drain) for _ in range(2)]
            yield running, Callers(list(parts.balancer.backends), folder / "ca.crt")


@pytest.mark.parametrize("drain", [DRAIN, 0])
async def test_no_call_fails_while_a_webhook_ends_unless_it_does_not_drain(tmp_path: Path, drain: int) -> None:
    async with two_webhooks(tmp_path, drain) as ((first, _), callers), callers.calling():
        await callers.more(50)
        loop = asyncio.get_running_loop()
        began = loop.time()
        first.process.send_signal(signal.SIGTERM)
        loop.call_later(LATE, callers.ports.remove, first.port)
        if drain:
            await callers.more(20)
            assert first.process.returncode is None
            trust = ssl.create_default_context(cafile=tmp_path / "ca.crt")
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
                for path, wanted in (("healthz", (200, "ok")), ("readyz", (503, "draining"))):
                    async with session.get(f"https://127.0.0.1:{first.port}/{path}") as answer:
                        assert (answer.status, await answer.text()) == wanted
        assert await asyncio.wait_for(first.process.wait(), 60) == 0
        lasted = loop.time() - began
        await callers.more(20)
    if drain:
        assert callers.failures == []
        assert drain <= lasted < drain + 15
        assert callers.left, "kept connections are given up"
    else:
        assert callers.failures, "otherwise the test above could not fail"


async def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    async with two_webhooks(tmp_path, 600) as (webhooks, _):
        log = Path(tmp_path, "bizrq-webhooks.log")
        for running, number in zip(webhooks, (signal.SIGTERM, signal.SIGINT), strict=True):
            seen = log.read_text("utf-8").count("draining")
            running.process.send_signal(number)

            async def drains(seen: int = seen) -> bool:
                return log.read_text("utf-8").count("draining") > seen

            await eventually(drains, 60, "it drains")
            running.process.send_signal(number)
            assert await asyncio.wait_for(running.process.wait(), 10) == 130
