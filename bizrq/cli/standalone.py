"""Webhooks, controller and web UI in one process, for `bizrq up` and `make demo`.

This file alone decides the order in which the parts start and stop, and when they are ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import structlog

import crds
from bizrq import registration
from bizrq.api import overlap
from bizrq.cli.output.failure import progress
from bizrq.cli.output.waits import Wait, said
from bizrq.figures.state import probe
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS, REGISTRATIONS
from bizrq.kube.client import AlreadyExists, ApiError, Conflict, KubeClient, NotFound, Resource, Unreachable
from bizrq.kube.config import default_kubeconfig
from bizrq.kube.informer import Informer
from bizrq.listener import EVERYWHERE
from bizrq.process import about
from bizrq.settings import Settings
from bizrq.store import pause, processes, registered
from bizrq.store.groups import GROUPS
from bizrq.store.processes import ProcessInfo, ProcessLease
from certs.pki import make_ca, make_serving
from certs.store import ServingCertificate, write_directory
from controller.manager import Controller
from controller.watch.cluster import now_ms
from web.local import serving
from webhooks import label_policy
from webhooks.app import Webhooks

if TYPE_CHECKING:
    from sandbox.server import Sandbox

log = structlog.get_logger(__name__)

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
#: Seconds until everything must be ready. The Lease of a killed process takes 15 of them.
START = 60.0
#: Seconds after which a failed registration is tried again.
RETRY = 2.0
#: Seconds to keep answering after the registration is deleted, for calls that are in progress.
LINGER = 1.0


class StandaloneError(Exception):
    """A failed start; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """A real cluster, by kubeconfig or context; the sandbox if both are None."""

    kubeconfig: Path | None
    context: str | None
    write_kubeconfig: Path

    @property
    def is_real(self) -> bool:
        return self.kubeconfig is not None or self.context is not None


def _new_sandbox() -> Sandbox:
    """Make a sandbox; raise StandaloneError where the extra that it needs is not installed."""
    try:
        from sandbox.server import Sandbox
    except ModuleNotFoundError as error:
        if error.name not in ("sandbox", "cel_expr_python"):
            raise
        raise StandaloneError(
            "the sandbox needs libraries that are not installed: pip install 'bizrq[sandbox]', "
            "or name a cluster with --kubeconfig"
        ) from None
    return Sandbox(tls=True)


class Standalone:
    """Run webhooks and controller against one API server; they are ready inside the async context."""

    def __init__(
        self,
        settings: Settings,
        target: TargetCluster,
        *,
        webhook_url: str | None = None,
        port: int = 0,
        namespace: str = "bizrq-system",
        recount_interval: float = 300.0,
        cash_interval: float = 60.0,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._settings = settings
        self._target = target
        self._webhook_url = webhook_url
        self._port = port
        self._namespace = namespace
        self._recount_interval = recount_interval
        self._cash_interval = cash_interval
        self._stack = contextlib.AsyncExitStack()
        self._controlling: asyncio.Task[None] | None = None
        self._unready: Callable[[], str] = lambda: "the API server has not answered"
        self.sandbox = sandbox
        self.kubeconfig: Path | None = None
        #: The address of the web UI, with the key that lets one browser in.
        self.web = ""
        #: The pause that was found at the start; nothing is registered until it ends.
        self.paused: pause.Pause | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(START):
                await self._start()
        except TimeoutError:
            why = self._unready()
            await self._stack.aclose()
            raise StandaloneError(f"not ready after {START:.0f} s: {why or 'see the log above'}") from None
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set. Raise what ends the controller earlier."""
        waiting = asyncio.create_task(stop.wait())
        tasks = {waiting, *([self._controlling] if self._controlling else [])}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiting}:
                task.result()
        finally:
            waiting.cancel()

    async def _start(self) -> None:
        """Start the parts in order. Each ends with the stack, the last one first."""
        ends = asyncio.get_running_loop().time() + START
        server = "the API server" if self._target.is_real else "a sandbox"
        async with self._waiting(f"for {server} and its CRDs", ends):
            client, now = await self._cluster()
            await self._prepare(client)
        webhooks, url, bundle = await self._serve(client)
        info = about(processes.UP, self._settings.text, registration.digest(self._settings, self._namespace))
        controller = self._control(client, info, now)
        self._unready = lambda: controller.unready or webhooks.unready
        async with self._waiting("for the Lease, which another bizrq may hold", ends):
            await self._while_controlling(controller.leading.wait())
        async with self._waiting("until every kind is listed", ends):
            await webhooks.synced()
        async with self._waiting("until the webhooks are registered and answer", ends):
            await self._enforce(client, url, bundle)
        oldest = controller.watch_ages.oldest
        lease = ProcessLease(client, info, namespace=self._namespace, unready=self._unready, oldest_watch=oldest)
        await self._stack.enter_async_context(lease.held())
        self.web = await self._stack.enter_async_context(serving(client.endpoint, self._settings))

    def _waiting(self, what: str, ends: float) -> contextlib.AbstractAsyncContextManager[None]:
        """Say what the block waits for, and how long it still may."""
        return said(Wait(what, ends - asyncio.get_running_loop().time()))

    async def _prepare(self, client: KubeClient) -> None:
        """Create the namespace and the kinds."""
        await _ensure(client, NAMESPACES, {"metadata": {"name": self._namespace}})
        for crd in [*crds.load(), *([] if self._target.is_real else crds.stand_ins())]:
            await _apply(client, CRDS, crd)
        await _established(client)

    async def _serve(self, client: KubeClient) -> tuple[Webhooks, str, str]:
        """Start the webhooks. Returns also where they are, and the caBundle."""
        host = urlsplit(self._webhook_url).hostname if self._webhook_url else None
        tls, bundle = self._certificate(sorted({"127.0.0.1", "localhost", *([host] if host else [])}))
        webhooks = Webhooks(client, self._settings, namespace=self._namespace)
        self._stack.push_async_callback(webhooks.stop)
        bound = await webhooks.start("127.0.0.1" if host is None else EVERYWHERE, self._port, lambda: tls)
        return webhooks, (self._webhook_url or f"https://127.0.0.1:{bound}").rstrip("/"), bundle

    def _control(self, client: KubeClient, info: ProcessInfo, now: Callable[[], int]) -> Controller:
        """Start the controller. It does not lead yet."""
        controller = Controller(
            client,
            self._settings,
            recount_interval=self._recount_interval,
            cash_interval=self._cash_interval,
            keep_statements=self._settings.keep_statements,
            namespace=self._namespace,
            identity=info.identity,
            now=now,
        )
        self._controlling = asyncio.create_task(controller.run(), name="controller")
        self._stack.push_async_callback(_cancelled, self._controlling)
        return controller

    async def _enforce(self, client: KubeClient, url: str, bundle: str) -> None:
        """Apply the policies, and register the webhooks now or after a pause. Raise StandaloneError."""
        configuration = registration.configuration(
            self._settings, lambda path: {"url": url + path, "caBundle": bundle}, namespace=self._namespace
        )
        await _apply(client, POLICIES, overlap.policy(self._settings.registry.made_makers))
        await _apply(client, POLICY_BINDINGS, overlap.binding())
        for obj in label_policy.objects(self._settings, self._namespace):
            await _apply(client, POLICIES if obj["kind"] == POLICIES.kind else POLICY_BINDINGS, obj)
        self._stack.push_async_callback(_deregister, client, bundle)
        self.paused = await _register(client, configuration, self._namespace)
        if self.paused is None:
            await self._while_controlling(_decided(client))
        elif not self.paused.resumes:
            raise StandaloneError(
                f"bizrq uninstall has not ended in namespace {self._namespace}: run it again, or bizrq resume "
                "and then bizrq up"
            )
        after_pauses = _registered_after_pauses(
            client, configuration, self._namespace, is_paused=self.paused is not None
        )
        keeping = asyncio.create_task(after_pauses, name="pauses")
        self._stack.push_async_callback(_cancelled, keeping)

    async def _cluster(self) -> tuple[KubeClient, Callable[[], int]]:
        """Return the client, and the clock of the cluster in milliseconds."""
        if self._target.is_real:
            client = KubeClient.from_kubeconfig(self._target.kubeconfig or default_kubeconfig(), self._target.context)
            await self._stack.enter_async_context(client)
            return client, now_ms
        box = self.sandbox
        if box is None:
            box = self.sandbox = await self._stack.enter_async_context(_new_sandbox())
        self.kubeconfig = self._target.write_kubeconfig.absolute()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        box.write_kubeconfig(self.kubeconfig)
        client = await self._stack.enter_async_context(KubeClient.from_kubeconfig(self.kubeconfig))
        clock = box.clock
        return client, lambda: int(clock.now().timestamp() * 1000)

    def _certificate(self, names: list[str]) -> tuple[ssl.SSLContext, str]:
        """Return a TLS context with a certificate of a temporary CA, and the caBundle for it."""
        ca = make_ca(datetime.now(UTC))
        serving = make_serving(ca, names, datetime.now(UTC))
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bizrq-")))
        write_directory(folder, {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
        certificate = ServingCertificate(folder)
        certificate.load()
        return certificate.context, b64encode(ca.certificate_pem).decode()

    async def _while_controlling(self, work: Any) -> None:
        """Wait for `work`. Raise what ends the controller earlier."""
        task = asyncio.ensure_future(work)
        assert self._controlling is not None  # noqa: S101 started above
        await asyncio.wait({task, self._controlling}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            self._controlling.result()
        await task


async def _ensure(client: KubeClient, resource: Resource, obj: dict[str, Any]) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})


async def _apply(client: KubeClient, resource: Resource, obj: dict[str, Any]) -> None:
    """Create the object, or replace the stored one."""
    name = obj["metadata"]["name"]
    while True:
        try:
            stored = await client.get(resource, name)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await client.create(resource, obj)
                return
            continue
        version = stored["metadata"]["resourceVersion"]
        try:
            await client.replace(resource, {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}})
        except ApiError as error:
            if error.status != 409:
                raise
        else:
            return


async def _established(client: KubeClient) -> None:
    """Wait until groups can be listed."""
    while True:
        try:
            await client.list(GROUPS, limit=1)
        except (NotFound, Unreachable):
            await asyncio.sleep(0.1)
        else:
            return


async def _decided(client: KubeClient) -> None:
    """Wait until the API server calls our webhooks."""
    while answer := await probe.not_asked(client):
        log.info("webhooks are not asked yet", answer=answer[:200])
        await asyncio.sleep(0.05)


async def _registered_after_pauses(
    client: KubeClient, configuration: dict[str, Any], namespace: str, *, is_paused: bool
) -> None:
    """Register again when a pause ends, until cancelled. What somebody deletes without a pause stays deleted.

    A pause that was there at the start (`is_paused`) may have ended before the watch began.
    """
    ended = asyncio.Event()

    def on_change(old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        if new is None and old is not None and old["metadata"]["namespace"] == namespace and pause.of(old).resumes:
            ended.set()

    markers = Informer(client, pause.CONFIG_MAPS, on_change=on_change, field_selector=f"metadata.name={pause.NAME}")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(markers.run(), name="pauses")
        if is_paused:
            await markers.synced.wait()
            ended.set()
        while True:
            await ended.wait()
            ended.clear()
            try:
                if await _register(client, configuration, namespace) is None:
                    log.info("registered after a pause")
            except (ApiError, Unreachable) as error:
                log.warning("not registered after a pause, retrying", error=str(error))
                await asyncio.sleep(RETRY)
                ended.set()


async def _register(client: KubeClient, configuration: dict[str, Any], namespace: str) -> pause.Pause | None:
    """Register, unless bizrq is paused: return the pause. Raise ApiError, Unreachable.

    A pause writes its marker before it deletes the registration. So the marker is read after the write, too.
    """
    if (paused := await pause.read(client, namespace)) is not None:
        return paused
    await _apply(client, REGISTRATIONS, configuration)
    if (paused := await pause.read(client, namespace)) is not None:
        with contextlib.suppress(NotFound):
            await client.delete(REGISTRATIONS, registration.NAME)
    return paused


async def _deregister(client: KubeClient, bundle: str) -> None:
    """Delete the registration and the policy, unless another process has replaced them; then wait for open calls."""
    try:
        stored = await registered.stored(client)
        # None while paused: the policy is there all the same.
        if stored is not None:
            if any(webhook["clientConfig"].get("caBundle") != bundle for webhook in stored.get("webhooks", ())):
                return
            version = stored["metadata"]["resourceVersion"]
            await client.delete(REGISTRATIONS, registration.NAME, resource_version=version)
        # Without a controller, a workload that is listed would get no pods for ever.
        for name in (overlap.NAME, label_policy.NAME):
            for resource in (POLICY_BINDINGS, POLICIES):
                with contextlib.suppress(NotFound):
                    await client.delete(resource, name)
    except (NotFound, Conflict):
        return
    except (ApiError, Unreachable) as error:
        log.error("the registration or the policy stays: it could not be removed", error=str(error))
        return
    progress(f"the registration is removed; answering calls in progress for {LINGER:.0f} s")
    await asyncio.sleep(LINGER)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
