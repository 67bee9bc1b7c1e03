"""Controllers that R17 kills: in this process where a test has to be quick, else processes of their own, by kill -9.

Each leads at once unless it is given the Lease's namespace of another, and is never ended in order.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from bizrq.kube.client import KubeClient, Unreachable
from bizrq.settings import settings
from controller.manager import Controller
from tests.support.cluster import _free_ports, eventually
from tests.support.proxy import Proxy
from tests.support.serving import Running

#: A write that has a name, and whether a controller dies before it is sent or after it was stored.
Point = tuple[str, str]


class Leader(Protocol):
    """Set once it is dead."""

    dead: asyncio.Event


class Mortal(KubeClient):
    """A client whose process is killed at a write: nothing that it asks afterwards is answered."""

    point: Point | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dead = asyncio.Event()

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        write = write_of(method, path)
        if self.dead.is_set() or self.point == (write, "before"):
            self.dead.set()
            raise Unreachable("killed", sent=False)
        answer = await super().request(method, path, **how)
        if self.point == (write, "after"):
            self.dead.set()
            raise Unreachable("killed", sent=True)
        return answer


def write_of(method: str, path: str) -> str:
    """The name of a write, "" of what is none that matters to hours."""
    if "/bizgroupstatements" in path and method == "POST":
        return "statement"
    if "/bizgroupcardhours" in path and method != "GET":
        return {"POST": "page", "PUT": "record", "DELETE": "removal"}.get(method, "")
    if "/bizgroupresourcequotas" in path and method in ("PUT", "PATCH"):
        return "status" if method == "PUT" else "finalizer"
    return ""


@asynccontextmanager
async def in_this_process(
    kubeconfig: Path, space: str, now: Callable[[], int], point: Point | None
) -> AsyncIterator[Mortal]:
    async with Mortal.from_kubeconfig(kubeconfig) as client:
        controller = Controller(
            client,
            settings(None),
            recount_interval=0.3,
            cash_interval=0.2,
            namespace=space,
            identity=f"in-{space}",
            now=now,
        )
        client.point = point
        task = asyncio.create_task(controller.run())
        try:
            await asyncio.wait_for(controller.leading.wait(), 60)
            yield client
        finally:
            client.dead.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Apart:
    """A `bizrq-controller` with a proxy of its own to the API server, which knows the moment."""

    def __init__(self, proxy: Proxy, running: Running) -> None:
        self.proxy = proxy
        self.running = running
        self.dead = asyncio.Event()

    def arm(self, point: Point) -> None:
        write, moment = point

        async def before(line: str) -> web.Response | None:
            if moment == "before" and write_of(*line.split(" ", 1)) == write and not self.dead.is_set():
                await self.kill()
                return web.Response(status=503)
            return None

        async def after(line: str, status: int) -> bool:
            if moment == "after" and write_of(*line.split(" ", 1)) == write and status < 300 and not self.dead.is_set():
                await self.kill()
                return True
            return False

        self.proxy.before.append(before)
        self.proxy.after.append(after)

    async def kill(self) -> None:
        """kill -9."""
        self.dead.set()
        self.running.kill()
        await self.running.process.wait()

    def stand_still(self) -> None:
        """What a machine does that is suspended: it goes on later as if nothing had been."""
        self.running.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.running.process.send_signal(signal.SIGCONT)

    async def ready(self) -> None:
        """Until it has seen all that there is, so that it could lead."""

        async def is_ready() -> bool:
            assert self.running.process.returncode is None, "bizrq-controller ended by itself"
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{self.running.port}/readyz") as answer,
                ):
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(is_ready, 120, "a controller is ready")


@asynccontextmanager
async def apart(
    kubeconfig: Path, folder: Path, space: str, skew: int, *, cash_interval: int = 1, point: Point | None = None
) -> AsyncIterator[Apart]:
    """A process whose clock is off by so many seconds."""
    async with Proxy(kubeconfig) as proxy:
        [port] = _free_ports(1)
        with Path(folder, "controllers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.skewed", str(skew)),
                *("--kubeconfig", str(proxy.write_kubeconfig(folder / f"proxied-{port}"))),
                *("--namespace", space, "--metrics-port", str(port)),
                *("--recount-interval", "1s", "--cash-interval", f"{cash_interval}s"),
                stdout=log,
                stderr=log,
            )
        leader = Apart(proxy, Running(process, port))
        if point is not None:
            leader.arm(point)
        try:
            yield leader
        finally:
            await leader.kill()
