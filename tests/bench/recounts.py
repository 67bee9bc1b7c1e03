"""What one recount costs the controller, and one commit a webhook: how long the event loop gets to nothing else."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import orjson
from aiohttp import web

from bizrq.api import group as wire
from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.process import quiet_collector
from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.change import Charge
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Granted
from bizrq.settings import load
from bizrq.store.groups import GROUPS
from bizrq.store.payers import PAYERS
from bizrq.units.quantity import NANO
from bizrq.units.slot import Slot
from controller.manager import Controller
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod
from tests.bench.hours import fill
from tests.bench.measure import longest_stall
from tests.support.catalog import CATALOG
from tests.support.objects import deployment, group


def recounts() -> list[str]:
    """B13: looks at a group with 10,000 Deployments, and at one with a job of 100,000 pods: what is new, and all."""
    return asyncio.run(_recounts())


async def _recounts() -> list[str]:
    more, checks = [], []
    for what, name, put in (("10,000 Deployments", "many", _deployments), ("a job of 100,000 pods", "g0", _pods)):
        looks = await _looks(name, put)
        more.append(f"{what}: {looks['one more']}")
        checks.append(f"{what}: {looks['check']}")
        if "one ends" in looks:
            more.append(f"one of those pods ends: {looks['one ends']}")
    return [
        f"| B13 | a recount after one more workload, CPU time | {'; '.join(more)} |",
        f"| B13 | the full check every five minutes, CPU time | {'; '.join(checks)} |",
        f"| B13 | a commit of 200 creates beside 1,000 promises, longest stall | {_commit() * 1000:.0f} ms |",
    ]


def _commit() -> float:
    """The CPU of deciding a batch and making the status to store, in seconds: nothing awaits in between."""
    stored = wire.from_dict(group("hot", cpu="1G", count="1M"))
    hard: dict[str, int] = dict.fromkeys(("limits.cpu", "count/deployments.apps"), 0)
    stored.status.used = wire.format_amounts(hard)

    def charge(number: int) -> Charge:
        slot = Slot("deployments.apps", "default", f"d{number}")
        return Charge(slot, f"uid-{number}", None, dict.fromkeys(hard, NANO))

    seconds = []
    account = wire.account_of(stored, CATALOG)
    for number in range(1_000):
        account.reserve(granted(account, charge(number)))
    stored = wire.decode(wire.with_reservations(stored, account.entries()))
    for again in range(5):
        began = time.thread_time()
        account = wire.account_of(stored, CATALOG)
        for number in range(200):
            account.reserve(granted(account, charge(10_000 + 200 * again + number)))
        wire.with_reservations(stored, account.entries())
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds)


def granted(account: Account, charge: Charge) -> Reservation:
    verdict = decide(account, charge, 1_800_000_000_000)
    assert isinstance(verdict, Granted)
    assert verdict.reservation is not None
    return verdict.reservation


def _deployments(cluster: Cluster) -> None:
    # With the one that is new, as many as a record of payers remembers.
    for number in range(9_999):
        _deployment(cluster, "many", number)


def _pods(cluster: Cluster) -> None:
    fill(cluster, 100_000)


def _deployment(cluster: Cluster, of: str, number: int) -> None:
    obj = deployment(f"d{number}", of, 3, namespace="default")
    obj["metadata"] |= {"uid": f"d{number}", "resourceVersion": str(number + 1)}
    cluster.informers.workloads["deployments.apps"].store.put(obj)
    cluster.workload_changed(None, obj)


async def _looks(name: str, put: Callable[[Cluster], None]) -> dict[str, str]:
    """The CPU of looks at a group and the longest stall in each, where all but what is new has been counted."""
    settings, ahead = load(None), [0.0]
    async with _api(name) as endpoint, KubeClient(endpoint) as client:
        controller = Controller(client, settings, identity="bench", clock=lambda: time.monotonic() + ahead[0])
        cluster = controller.cluster
        put(cluster)
        await cluster.groups.read(name, 5)
        # The part that is measured; the queue and the Lease are not.
        reconciler = controller._reconciler
        await reconciler.reconcile(name)
        quiet_collector()

        async def look() -> str:
            async with longest_stall() as stalls:
                began = time.thread_time()
                await reconciler.reconcile(name)
                cpu = time.thread_time() - began
                await asyncio.sleep(0)
            return f"{cpu * 1000:.0f} ms, longest stall {max(stalls) * 1000:.0f} ms"

        _deployment(cluster, name, 1_000_000)
        looks = {"one more": await look()}
        if pods := cluster.informers.pods.store.all_kept():
            running = cast("Pod", next(iter(pods)))
            over = msgspec.structs.replace(running, phase="Succeeded", ended=running.started)
            cluster.informers.pods.store.put(over)
            looks["one ends"] = await look()
        ahead[0] = 300.0
        looks["check"] = await look()
        found = cluster.groups.cached(name)
        assert found is not None
        assert found.status.used, found.status
        return looks


@asynccontextmanager
async def _api(name: str) -> AsyncIterator[Endpoint]:
    """An API server that has one group and the record of its payers, and stores the status of both."""
    stored = {GROUPS.plural: group(name, cpu="1G", count="1M"), PAYERS.plural: {"metadata": {"name": name}}}
    for obj in stored.values():
        obj["metadata"] |= {"uid": name, "resourceVersion": "1"}

    async def answer(http: web.Request) -> web.Response:
        plural = next((each for each in stored if f"/{each}" in http.path), "")
        if not plural:
            return web.Response(status=404, body=b"{}")  # An event.
        obj = stored[plural]
        if http.method != "GET":
            sent = orjson.loads(await http.read())
            sent["metadata"] |= {"uid": name, "resourceVersion": str(int(obj["metadata"]["resourceVersion"]) + 1)}
            obj = stored[plural] = sent
        return web.Response(body=orjson.dumps(obj))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", StaticCredentials({}))
    finally:
        await runner.cleanup()
