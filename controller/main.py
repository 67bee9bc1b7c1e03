"""The process `bizrq-controller`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import structlog
import typer

from bizrq import command_line, flags, process, registration
from bizrq.listener import EVERYWHERE
from bizrq.metrics_access import MetricsAccess
from bizrq.store.processes import ProcessLease

log = structlog.get_logger(__name__)

_DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6}(?:\.\d{1,3})?)s)?", re.ASCII)


def seconds(text: str, flag: str) -> float:
    """Return the duration of a flag, such as `5m`, `90s` or `1h30m`, in seconds. Raises typer.BadParameter."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 5m, 90s or 1h30m", param_hint=flag)
    hours, minutes, rest = match.groups()
    total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest or 0)
    if total < 1:
        raise typer.BadParameter(f"{text!r} is shorter than a second: write 1s or more", param_hint=flag)
    return total


def address(text: str) -> str:
    """Return the URL of the webhooks as an API server takes it. Raises typer.BadParameter."""
    words = f"{text[:64]!r} is no address of webhooks: write https://HOST:PORT"
    wrong = typer.BadParameter(words, param_hint="--webhook-url")
    try:
        parts = urlsplit(text)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong from None
    if parts.scheme != "https" or not has_place or parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong
    return text.rstrip("/")


def control(
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the pod's service account.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file that configures how workloads are counted.")] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of bizrq and of its Lease.")] = "bizrq-system",
    metrics_port: flags.MetricsPort = 9091,
    metrics_anonymous: flags.MetricsAnonymous = False,
    log_format: flags.LogFormatOption = flags.LogFormat.TEXT,
    log_level: flags.LogLevelOption = flags.LogLevel.INFO,
    recount_interval: Annotated[str, typer.Option(help="Longest time between two recounts of a group.")] = "5m",
    cash_interval: Annotated[
        str, typer.Option(help="Time between two updates of the card-hours of running pods.")
    ] = "60s",
    webhook_url: Annotated[
        str | None,
        typer.Option(help="Where the API server reaches the webhooks, by https; by default at their Service."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Number of groups that are counted concurrently.")] = 5,
) -> None:
    """Keep the status of every group up to date. Of several replicas, only the holder of the Lease works."""
    from controller.manager import Controller
    from controller.metrics import OF_GROUPS

    process.configure_logging(log_format, log_level)
    recount, cash = seconds(recount_interval, "--recount-interval"), seconds(cash_interval, "--cash-interval")
    url = address(webhook_url) if webhook_url is not None else ""
    settings, client = process.prepare("bizrq-controller", config, kubeconfig)

    info = process.about("bizrq-controller", settings.text, registration.digest(settings, namespace))

    async def main(stop: process.Stop) -> None:
        controller = Controller(
            client,
            settings,
            recount_interval=recount,
            cash_interval=cash,
            workers=workers,
            keep_statements=settings.keep_statements,
            namespace=namespace,
            identity=info.identity,
            registers=True,
            webhook_url=url,
        )

        def unready() -> str:
            return controller.unready

        access = None if metrics_anonymous else MetricsAccess(client)
        collectors, oldest = controller.collectors(), controller.watch_ages.oldest
        lease = ProcessLease(client, info, namespace=namespace, unready=unready, oldest_watch=oldest)
        metrics = process.metrics_served(EVERYWHERE, metrics_port, unready, access, OF_GROUPS, collectors)
        async with client, metrics, lease.held():
            await process.until_stopped(stop, controller.run())

    process.serve("bizrq-controller", main)


def run() -> None:
    command_line.run_alone(control, "bizrq-controller")
