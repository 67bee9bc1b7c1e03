"""The process `bizrq-certs`: it keeps a serving certificate valid, and its CA in the webhook configurations.

This file alone decides when a pass runs, and in which order it reads, decides and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from prometheus_client import Counter

from bizrq import command_line, flags, process
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, ConfigError, KubeClient, Unreachable
from bizrq.kube.informer import Informer
from bizrq.listener import EVERYWHERE
from bizrq.metrics import CERTIFICATE_EXPIRES, WatchAges, observed
from bizrq.metrics_access import MetricsAccess
from bizrq.store.processes import ProcessLease
from bizrq.units.text import printable
from certs import cabundle, pki, rotation
from certs.pki import CertificateError
from certs.secret import SharedFiles, read_secret, write_secret
from certs.store import read_directory, write_directory

#: How often everything is checked again; a changed webhook configuration is checked at once.
PASS_SECONDS = 30.0

PASSES = Counter("bizrq_certs_reconcile_total", "Passes over certificates and configurations", ["result"])

log = structlog.get_logger(__name__)


class CertificateKeeper:
    """Gathers files and announced bundles, decides by `rotation`, writes both."""

    def __init__(
        self,
        cert_dir: Path,
        names: Sequence[str],
        client: KubeClient | None,
        *,
        namespace: str,
        secret: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.done_once = False
        #: Empty without a client.
        self.informers: list[Informer] = []
        self._cert_dir = cert_dir
        self._names = list(names)
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._now = now

    @property
    def unready(self) -> str:
        """Return why there is no certificate, "" where there is one."""
        return "" if self.done_once else "no certificate yet"

    async def run_pass(self, *, rotate: bool = False) -> None:
        """Run one pass. Without a Secret, files are kept valid even while the API server is away.

        An error of the API server is raised at the end. Raises ApiError, Unreachable, OSError, CertificateError.
        """
        away: ApiError | Unreachable | None = None
        announced: list[bytes] = []
        configurations: list[str] = []
        if self._client is not None:
            try:
                listed, _ = await self._client.list(REGISTRATIONS, label_selector=cabundle.SELECTOR)
                found = [each for each in listed if cabundle.is_ours(each)]
                configurations = [each["metadata"]["name"] for each in found]
                announced = cabundle.announced_bundles(found, self._names)
                if any(each.get("webhooks") for each in found) and not announced:
                    log.warning(
                        "no webhook is reached by any of our names", names=self._names, configurations=configurations
                    )
            except (ApiError, Unreachable) as error:
                away, announced = error, [b""]
        shared = await self._shared()
        # Without a Secret yet, the files of the directory are the ones to share.
        before = shared.files if shared is not None and shared.files else read_directory(self._cert_dir)
        files = rotation.advance(before, self._names, self._now(), announced=announced, rotate=rotate)
        self._report(before, files)
        if shared is not None and self._client is not None and self._secret is not None and files != shared.files:
            await write_secret(self._client, self._namespace, self._secret, files, shared)
        write_directory(self._cert_dir, files)
        if away is not None:
            raise away
        if self._client is not None:
            await self._inject(self._client, configurations, files[rotation.CA_BUNDLE])
        self.done_once = True

    async def _inject(self, client: KubeClient, configurations: Sequence[str], bundle: bytes) -> None:
        """Write the bundle into each configuration, whether or not another takes it. Raise the first error."""
        failed: list[ApiError | Unreachable] = []
        for name in configurations:
            try:
                await cabundle.inject(client, name, bundle, self._names)
            except (ApiError, Unreachable) as error:
                log.warning("CA bundle not written", configuration=name, error=str(error))
                failed.append(error)
        if failed:
            raise failed[0]

    async def _shared(self) -> SharedFiles | None:
        if self._client is None or self._secret is None:
            return None
        return await read_secret(self._client, self._namespace, self._secret)

    def _report(self, before: rotation.Files, files: rotation.Files) -> None:
        state = rotation.read(files, self._now())
        for name, pair in (("ca", state.signing), ("serving", state.serving)):
            if pair is not None:
                CERTIFICATE_EXPIRES.labels(name).set(pair.certificate.not_valid_after_utc.timestamp())
        changed = sorted(name for name in files if before.get(name) != files[name])
        if changed:
            log.info("certificates changed", files=changed, cas=len(state.bundle))

    async def run(self) -> None:
        """Run passes until cancelled: every half minute, and whenever a webhook configuration changes."""
        changed = asyncio.Event()
        async with self._watching(changed):
            while True:
                try:
                    await self.run_pass()
                    PASSES.labels("done").inc()
                except (ApiError, Unreachable, ConfigError, CertificateError, OSError) as error:
                    PASSES.labels("failed").inc()
                    log.warning("certificates not fully kept; trying again", error=str(error))
                # Wait out a burst of changes, so that two writers of the bundle do not fight fast.
                await asyncio.sleep(0.5)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), PASS_SECONDS)
                changed.clear()

    @contextlib.asynccontextmanager
    async def _watching(self, changed: asyncio.Event) -> AsyncIterator[None]:
        if self._client is None:
            yield
            return

        def on_change(old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
            if new is not None and cabundle.is_ours(new):
                changed.set()

        informer = Informer(self._client, REGISTRATIONS, on_change=on_change, label_selector=cabundle.SELECTOR)
        self.informers = [informer]
        task = asyncio.create_task(informer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def certs(
    cert_dir: Annotated[Path, typer.Option(help="Where ca.crt, ca.key, tls.crt and tls.key are kept.")],
    names: Annotated[
        list[str] | None,
        typer.Option(
            help="DNS names and addresses of the webhooks, separated by commas; "
            "by default bizrq-webhooks.NAMESPACE.svc."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="By default the pod's service account; outside a pod, files only.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where bizrq itself runs.")] = "bizrq-system",
    secret: Annotated[
        str | None, typer.Option(help="A Secret in the namespace that shares the files between pods.")
    ] = None,
    metrics_port: flags.MetricsPort = 9092,
    metrics_anonymous: flags.MetricsAnonymous = False,
    log_format: flags.LogFormatOption = flags.LogFormat.TEXT,
    log_level: flags.LogLevelOption = flags.LogLevel.INFO,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, then end: 0 done, 2 bad input, 3 no cluster.")
    ] = False,
    rotate: Annotated[bool, typer.Option("--rotate", help="Begin with a new CA before the old one is due.")] = False,
) -> None:
    """Make and renew the webhooks' certificates, and keep the CA bundle in the webhook configurations."""
    process.configure_logging(log_format, log_level)
    try:
        wanted = _names(names, namespace)
        client = _client(kubeconfig)
    except (ConfigError, CertificateError) as error:
        _end(2, error)
    if secret is not None and client is None:
        _end(2, "--secret needs a cluster: pass --kubeconfig, or run inside one")
    keeper = CertificateKeeper(cert_dir, wanted, client, namespace=namespace, secret=secret)

    async def main(stop: process.Stop) -> None:
        def unready() -> str:
            return keeper.unready

        async with contextlib.AsyncExitStack() as stack:
            if client is not None:
                await stack.enter_async_context(client)
            if once or rotate:
                await keeper.run_pass(rotate=rotate)
            if once:
                return
            access, ages = None if metrics_anonymous else MetricsAccess(client), WatchAges(lambda: keeper.informers)
            metrics = process.metrics_served(EVERYWHERE, metrics_port, unready, access, collectors=[ages])
            await stack.enter_async_context(metrics)
            if client is not None:
                info = process.about("bizrq-certs", "", "")
                lease = ProcessLease(client, info, namespace=namespace, unready=unready)
                await stack.enter_async_context(lease.held())
            await process.until_stopped(stop, keeper.run())

    try:
        process.run(main)
    except (ApiError, Unreachable) as error:
        _end(3, error)
    except (ConfigError, CertificateError, OSError) as error:
        _end(2, error)


def _names(given: Sequence[str] | None, namespace: str) -> list[str]:
    """Return the names for the certificate. Raises CertificateError for a name that no certificate can have."""
    service = f"bizrq-webhooks.{namespace}.svc"
    names = [name.strip() for text in given or [f"{service},{service}.cluster.local"] for name in text.split(",")]
    names = list(dict.fromkeys(name.lower() for name in names if name))
    pki.check_names(names)
    return names


def _client(kubeconfig: Path | None) -> KubeClient | None:
    if kubeconfig is not None:
        return observed(KubeClient.from_kubeconfig(kubeconfig))
    return observed(KubeClient.in_cluster()) if os.environ.get("KUBERNETES_SERVICE_HOST") else None


def _end(code: int, why: object) -> NoReturn:
    typer.echo(printable(f"bizrq-certs: {why}"), err=True)
    raise typer.Exit(code)


def run() -> None:
    command_line.run_alone(certs, "bizrq-certs")
