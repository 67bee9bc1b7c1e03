"""The process `bizrq-webhooks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import structlog
import typer

from bizrq import command_line, flags, process, registration
from bizrq.listener import EVERYWHERE
from bizrq.metrics import WatchAges
from bizrq.metrics_access import MetricsAccess
from bizrq.store.processes import ProcessLease

log = structlog.get_logger(__name__)


def serve(
    cert_dir: Annotated[Path, typer.Option(help="Directory of tls.crt and tls.key; new files are picked up.")],
    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig; default: the pod's service account.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file, one YAML document.")] = None,
    namespace: Annotated[str, typer.Option(help="Namespace that bizrq itself runs in.")] = "bizrq-system",
    host: Annotated[str, typer.Option(help="Address to serve on; :: is every one, IPv4 and IPv6.")] = EVERYWHERE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.")] = 8443,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="CA of the API server's client certificate, a PEM file; reviews without it are refused."),
    ] = None,
    client_name: Annotated[
        str | None, typer.Option(help="Common name of the API server's client certificate; needs --client-ca.")
    ] = None,
    metrics_port: flags.MetricsPort = 9090,
    metrics_anonymous: flags.MetricsAnonymous = False,
    log_format: flags.LogFormatOption = flags.LogFormat.TEXT,
    log_level: flags.LogLevelOption = flags.LogLevel.INFO,
    drain_delay: flags.DrainDelay = flags.DRAIN_DELAY,
    allowances: Annotated[
        bool,
        typer.Option("--allowances", help="Admit ahead of the write where groups have plenty of room."),
    ] = False,
) -> None:
    """Answer the API server's admission reviews over TLS."""
    from certs.clients import clients_of
    from certs.pki import CertificateError
    from certs.store import ServingCertificate
    from webhooks.app import Webhooks

    process.configure_logging(log_format, log_level)
    try:
        clients = clients_of(client_ca, client_name)
        if clients is not None:
            clients.authorities()
        else:
            log.warning("reviews are accepted from everybody who reaches the port: --client-ca is not given")
    except CertificateError as error:
        process.end("bizrq-webhooks", str(error))
    settings, client = process.prepare("bizrq-webhooks", config, kubeconfig)
    info = process.about("bizrq-webhooks", settings.text, registration.digest(settings, namespace))

    async def main(stop: process.Stop) -> None:
        certificate = ServingCertificate(cert_dir, clients)
        webhooks = Webhooks(
            client, settings, namespace=namespace, clients=clients, identity=info.identity if allowances else ""
        )

        async def work() -> None:
            await certificate.wait()
            bound = await webhooks.start(host, port, lambda: certificate.context)
            log.info("serving", port=bound, namespace=namespace)
            await webhooks.synced()
            process.quiet_collector()
            await certificate.watch()

        def unready() -> str:
            return webhooks.unready

        ages = WatchAges(lambda: webhooks.informers)
        access = None if metrics_anonymous else MetricsAccess(client)
        lease = ProcessLease(client, info, namespace=namespace, unready=unready, oldest_watch=ages.oldest)
        async with client, process.metrics_served(host, metrics_port, unready, access, collectors=[ages]):
            try:
                async with lease.held():
                    await process.until_stopped(stop, work())
                    log.info("draining", seconds=drain_delay)
                    await webhooks.drain(drain_delay)
            finally:
                await webhooks.stop()

    process.serve("bizrq-webhooks", main)


def run() -> None:
    command_line.run_alone(serve, "bizrq-webhooks")
