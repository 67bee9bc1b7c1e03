"""bizrq's processes one by one, for tests that stop some: webhooks behind one address, a controller.

Each comes to the API server as its own service account. The address is a small TCP balancer, as a Service is: each
connection goes to the next webhook that takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

import crds
from bizrq import registration
from bizrq.api import overlap
from bizrq.cli.rbac import CONTROLLER, WEBHOOKS
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS, REGISTRATIONS
from bizrq.kube.client import AlreadyExists, ApiError, Conflict, KubeClient, NotFound
from bizrq.listener import PortBounds
from bizrq.quota.reservation import FORMATS
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.processes import ProcessInfo, ProcessLease
from certs.pki import make_ca, make_serving
from certs.store import ServingCertificate, write_directory
from controller.manager import Controller
from tests.support.accounts import SYSTEM, give_rights, kubeconfig_of
from tests.support.cluster import Cluster, _free_ports, eventually, has_kinds
from tests.support.gate import applies
from tests.support.nodes import agent
from tests.support.objects import NAMESPACES, group
from webhooks.app import Webhooks

T = TypeVar("T")

#: The flags of a webhook process that admits by allowances.
ALLOWANCES = ("--allowances",)


class Balancer:
    """Takes connections at one port and hands each to the next of `backends` that answers."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        self.port = 0
        #: Whether another backend gets the connection that one does not take: kube-proxy looks for none.
        self.tries_others = True
        #: Called with a backend's port and what it says; False withholds it and ends the connection.
        self.passes: Callable[[int, bytes], bool] = lambda _port, _chunk: True
        #: How many connections came.
        self.taken = 0
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        #: The connections with the backends that took them, 0 before one did.
        self._streams: dict[asyncio.Task[None], int] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.hang_up()

    async def hang_up(self, port: int | None = None) -> None:
        """Break every connection, or those to one backend: whoever comes again is handed to a backend anew."""
        broken = [task for task, backend in self._streams.items() if port in (None, backend)]
        for task in broken:
            task.cancel()
        await asyncio.gather(*broken, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = 0
        self.taken += 1
        try:
            for _ in range(max(1, len(self.backends)) if self.tries_others else 1):
                if not self.backends:
                    break
                port = self.backends[next(self._turn) % len(self.backends)]
                try:
                    there, back = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    continue
                self._streams[task] = port
                try:
                    await asyncio.gather(_copy(reader, back), self._replies(port, there, writer))
                finally:
                    back.close()
                return
        except asyncio.CancelledError:
            pass
        finally:
            del self._streams[task]
            writer.close()

    async def _replies(self, port: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (chunk := await source.read(65536)) and self.passes(port, chunk):
                target.write(chunk)
                await target.drain()
        target.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    target.close()


@dataclass(eq=False)
class Running:
    """A process of ours. `port` is where a webhook listens, 0 for a controller."""

    process: asyncio.subprocess.Process
    port: int

    def kill(self) -> None:
        """kill -9."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 60)
        except TimeoutError:
            self.kill()
            await self.process.wait()


class Parts:
    """`async with Parts(cluster, folder)`: nothing runs yet, the CRD is there; what is started ends with the block."""

    def __init__(self, cluster: Cluster, folder: Path, **configuration: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.settings = settings(configuration)
        self.client = KubeClient.from_kubeconfig(cluster.kubeconfig)
        self.balancer = Balancer()
        self.running: list[tuple[Webhooks, int]] = []
        #: A kubeconfig for each process, with its own rights.
        self.kubeconfigs: dict[str, Path] = {}
        #: Of the balancer that is a process.
        self._port = 0
        self._stack = contextlib.AsyncExitStack()
        ca = make_ca(datetime.now(UTC))
        serving = make_serving(ca, ["127.0.0.1", "localhost"], datetime.now(UTC))
        self.certificates = folder / "certificates"
        self.certificates.mkdir()
        Path(folder, "ca.crt").write_bytes(ca.certificate_pem)
        write_directory(self.certificates, {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
        self._bundle = b64encode(ca.certificate_pem).decode()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.client)
        await has_kinds(self.client, [*crds.load(), *crds.stand_ins()])
        with contextlib.suppress(AlreadyExists):
            await self.client.create(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
            )
        if self.cluster.is_real:
            await give_rights(self.client, self.settings.registry)
        for account in (WEBHOOKS, CONTROLLER):
            self.kubeconfigs[account] = await kubeconfig_of(self.client, self.cluster, account, self.folder)
        await self.balancer.start()
        self._stack.push_async_callback(self.balancer.stop)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(REGISTRATIONS, registration.NAME)
        for resource in (POLICY_BINDINGS, POLICIES):
            with contextlib.suppress(NotFound):
                await self.client.delete(resource, overlap.NAME)
        for webhooks, _port in self.running:
            await webhooks.stop()
        await self._stack.aclose()

    async def enter(self, other: AbstractAsyncContextManager[T]) -> T:
        """Something that ends with these parts."""
        return await self._stack.enter_async_context(other)

    async def run_pods(self) -> None:
        """Have pods run where no kubelet does: the sandbox runs them itself."""
        if self.cluster.is_real:
            client = await self.enter(KubeClient.from_kubeconfig(self.cluster.kubeconfig))
            await self.enter(agent(client))

    def tls(self) -> Callable[[], ssl.SSLContext]:
        certificate = ServingCertificate(self.certificates)
        certificate.load()
        return lambda: certificate.context

    async def webhooks(
        self,
        count: int = 1,
        *,
        bounds: PortBounds | None = None,
        kubeconfig: Path | None = None,
        allowances: bool = False,
        leases: bool = False,
    ) -> None:
        """Start webhooks behind the balancer, ready; each with a client of its own.

        With `leases` each has a Lease; with `allowances` it has one, too, and admits by them.
        """
        path = kubeconfig or self.kubeconfigs[WEBHOOKS]
        for _ in range(count):
            client = await self._stack.enter_async_context(KubeClient.from_kubeconfig(path))
            identity = f"{WEBHOOKS}-{len(self.running)}_{secrets.token_hex(4)}"
            webhooks = Webhooks(client, self.settings, bounds=bounds, identity=identity if allowances else "")
            port = await webhooks.start("127.0.0.1", 0, self.tls())
            self.running.append((webhooks, port))

            async def ready(webhooks: Webhooks = webhooks) -> bool:
                return not webhooks.unready

            await eventually(ready, what="a webhook is ready")
            if allowances or leases:
                info = ProcessInfo(WEBHOOKS, identity, "test", FORMATS)
                lease = ProcessLease(client, info, namespace=SYSTEM, unready=lambda: "")
                await self.enter(lease.held())
            self.balancer.backends.append(port)

    async def webhook_process(
        self,
        kubeconfig: Path | None = None,
        flags: Sequence[str] = (),
        *,
        drain: int = 0,
        is_newer: bool = False,
        within: float = 60,
    ) -> Running:
        """A `bizrq-webhooks` of its own, behind the balancer once it serves, `within` seconds.

        `drain` is its --drain-delay.
        """
        [port] = _free_ports(1)
        process = await self._spawn(
            "bizrq-webhooks",
            *("--cert-dir", str(self.certificates), "--kubeconfig", str(kubeconfig or self.kubeconfigs[WEBHOOKS])),
            *("--host", "127.0.0.1", "--port", str(port), "--metrics-port", "0", "--drain-delay", str(drain), *flags),
            is_newer=is_newer,
        )
        running = Running(process, port)
        self._stack.push_async_callback(running.end)

        async def serves() -> bool:
            assert process.returncode is None, f"bizrq-webhooks ended by itself: see {self.folder}/bizrq-webhooks.log"
            return await self._is_ready(port)

        await eventually(serves, within, "a webhook is ready")
        self.balancer.backends.append(port)
        return running

    async def balance_apart(self) -> None:
        """Have a process of its own hand connections to the webhooks that run now, for `register`."""
        program, ports = (sys.executable, "-m", "tests.support.balancer"), map(str, self.balancer.backends)
        process = await asyncio.create_subprocess_exec(*program, *ports, stdout=asyncio.subprocess.PIPE)
        self._stack.push_async_callback(Running(process, 0).end)
        assert process.stdout is not None
        self._port = int(await process.stdout.readline())

    async def controller_process(
        self,
        kubeconfig: Path | None = None,
        recount_interval: str = "1s",
        flags: Sequence[str] = (),
        *,
        is_newer: bool = False,
    ) -> Running:
        """A `bizrq-controller` of its own; whoever sees a group counted knows that it leads."""
        process = await self._spawn(
            "bizrq-controller",
            *("--kubeconfig", str(kubeconfig or self.kubeconfigs[CONTROLLER]), "--metrics-port", "0"),
            *("--recount-interval", recount_interval, *flags),
            is_newer=is_newer,
        )
        running = Running(process, 0)
        self._stack.push_async_callback(running.end)
        return running

    async def _spawn(self, name: str, *arguments: str, is_newer: bool = False) -> asyncio.subprocess.Process:
        newer = [sys.executable, "-m", "tests.support.newer", name]
        program = newer if is_newer else [str(Path(sys.executable).with_name(name))]
        with Path(self.folder, f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(*program, *arguments, stdout=log, stderr=log)

    @property
    def url(self) -> str:
        """Where the API server reaches the webhooks."""
        return f"https://127.0.0.1:{self._port or self.balancer.port}"

    async def trust(self) -> None:
        """Write the caBundle where it is missing, as bizrq-certs does, until cancelled."""
        while True:
            with contextlib.suppress(NotFound, Conflict):
                stored = await self.client.get(REGISTRATIONS, registration.NAME)
                without = [each for each in stored["webhooks"] if "caBundle" not in each["clientConfig"]]
                for webhook in without:
                    webhook["clientConfig"]["caBundle"] = self._bundle
                if without:
                    await self.client.replace(REGISTRATIONS, stored)
            await asyncio.sleep(0.1)

    async def _is_ready(self, port: int) -> bool:
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            try:
                async with session.get(f"https://127.0.0.1:{port}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

    @property
    def often(self) -> float:
        """Seconds between recounts that a test need not wait for.

        The sandbox runs in this process: many groups that are counted all the time keep it from answering.
        """
        return 5.0 if self.cluster.box is not None else 0.5

    async def controller(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        recount_interval: float = 1.0,
        kubeconfig: Path | None = None,
    ) -> asyncio.Task[None]:
        """A controller that leads; to cancel it is to stop it."""
        path = kubeconfig or self.kubeconfigs[CONTROLLER]
        client = await self._stack.enter_async_context(KubeClient.from_kubeconfig(path))
        made = self.settings
        box = self.cluster.box
        told: dict[str, Any] = {"now": lambda: int(box.clock.now().timestamp() * 1000)} if box else {}
        controller = Controller(
            client,
            made,
            recount_interval=recount_interval,
            cash_interval=1.0,
            identity=f"test-{time.monotonic_ns()}",
            clock=clock,
            **told,
        )
        task = asyncio.create_task(controller.run())
        self._stack.push_async_callback(_cancelled, task)

        async def leads() -> bool:
            if task.done():
                task.result()
            return controller.leading.is_set()

        await eventually(leads, 60, "the controller leads")
        return task

    async def register(self) -> None:
        """Have the API server ask us, and wait until it does."""
        # A controller of earlier tests on this cluster may have stored it once more as it ended.
        with contextlib.suppress(NotFound):
            await self.client.delete(REGISTRATIONS, registration.NAME)
        await self.client.create(REGISTRATIONS, self._registration())
        for resource, obj in (
            (POLICIES, overlap.policy(self.settings.registry.made_makers)),
            (POLICY_BINDINGS, overlap.binding()),
        ):
            await self.client.create(resource, obj)
        await applies(self.cluster, self.client)
        await self.asked()

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """The API server asks nobody within the block, and us again after it."""
        await self.client.delete(REGISTRATIONS, registration.NAME)

        async def nobody() -> bool:
            return not await self._is_asked()

        await eventually(nobody, 60, "nobody is asked")
        try:
            yield
        finally:
            await self.client.create(REGISTRATIONS, self._registration())
            await self.asked()

    def _registration(self) -> dict[str, Any]:
        return registration.configuration(
            self.settings, lambda path: {"url": self.url + path, "caBundle": self._bundle}, namespace=SYSTEM
        )

    async def asked(self) -> None:
        """Wait until a request that only a webhook of ours refuses is refused by it."""
        await eventually(self._is_asked, 60, "the webhooks are asked")

    async def _is_asked(self) -> bool:
        try:
            await self.client.create(GROUPS, group("probe", **{"requests.nvidia.com/gpux": "1"}), dry_run=True)
        except ApiError as error:
            return "denied the request" in error.message
        return False


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
