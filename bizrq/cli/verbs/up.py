"""bizrq up: run webhooks and controller in one process, on a sandbox or on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.options import settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, warn

if TYPE_CHECKING:
    from bizrq.cli.standalone import Standalone


def up(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig of a real cluster; without it and --context a sandbox is started.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig, for a real cluster.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of the counting configuration.")] = None,
    webhook_url: Annotated[
        str | None, typer.Option(help="URL at which the API server reaches this process; by default on 127.0.0.1.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the webhooks; 0 picks a free one.")] = 0,
    write_kubeconfig: Annotated[Path, typer.Option(help="File to write the sandbox's kubeconfig to.")] = Path(
        ".bizrq/kubeconfig"
    ),
    namespace: Annotated[str, typer.Option(help="Namespace of bizrq's Lease.")] = "bizrq-system",
    recount_interval: Annotated[str, typer.Option(help="Interval at which every group is recounted.")] = "5m",
    cash_interval: Annotated[
        str, typer.Option(help="Interval at which the card-hours of running pods are recorded.")
    ] = "60s",
) -> None:
    """Run webhooks, controller and web UI in one process, on a sandbox or, with --kubeconfig, on a real cluster.

    Prints `ready` when requests are decided. On exit it removes the webhook registration; CRDs and groups stay. During
    bizrq pause it registers nothing, says so, and registers when bizrq resume is run.
    Everybody may charge every group, unless --config sets rights.use.
    """
    from bizrq import process
    from bizrq.cli.standalone import Standalone, TargetCluster
    from controller.main import seconds

    process.configure_logging()
    settings = settings_of(config)
    standalone = Standalone(
        settings,
        TargetCluster(kubeconfig, context, write_kubeconfig),
        webhook_url=webhook_url,
        port=port,
        namespace=namespace,
        recount_interval=seconds(recount_interval, "--recount-interval"),
        cash_interval=seconds(cash_interval, "--cash-interval"),
    )
    _run(standalone, is_open=not settings.rights.use)


def _run(standalone: Standalone, *, is_open: bool) -> None:
    """Run until a signal stops the process; raise Failure. Everybody may charge every group if `is_open`."""
    from bizrq import process
    from bizrq.cli.standalone import StandaloneError
    from bizrq.kube.client import ApiError, ConfigError, Unreachable

    try:
        process.run(lambda stop: _serve(standalone, stop, is_open))
    except (ConfigError, StandaloneError) as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), EXIT_CLUSTER) from None
    except OSError as error:
        # The port is in use, for example; the error names the address.
        raise Failure(error.strerror or str(error), EXIT_BAD_INPUT) from None


async def _serve(standalone: Standalone, stop: object, is_open: bool) -> None:
    import asyncio

    async with standalone:
        if standalone.kubeconfig is not None:
            typer.echo(f"kubeconfig: {standalone.kubeconfig}")
        typer.echo(f"web: {standalone.web}")
        if is_open:
            warn("open: everybody may charge every group, since rights.use is off; docs/rights.md")
        if standalone.paused is not None:
            warn(f"{standalone.paused}; nothing is checked until bizrq resume; then bizrq up registers the webhooks")
        typer.echo("ready")
        assert isinstance(stop, asyncio.Event)  # noqa: S101 narrows for the type checker: process.run made it
        await standalone.until(stop)
