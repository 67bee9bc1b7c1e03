"""bizrq up: everything in one process, on a sandbox or on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.output.failure import BAD_INPUT, CLUSTER, Failure

if TYPE_CHECKING:
    from bizrq.cli.standalone import Station


def up(
    kubeconfig: Annotated[
        Path | None, typer.Option(help="A real cluster; without it or --context a sandbox is started.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="A context of the kubeconfig: a real cluster.")] = None,
    config: Annotated[Path | None, typer.Option(help="One YAML document: how workloads are counted.")] = None,
    webhook_url: Annotated[
        str | None, typer.Option(help="Where the API server reaches this process; by default on 127.0.0.1.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to serve webhooks on, 0 is any.")] = 0,
    write_kubeconfig: Annotated[Path, typer.Option(help="Where the sandbox's kubeconfig is written.")] = Path(
        ".bizrq/kubeconfig"
    ),
    namespace: Annotated[str, typer.Option(help="Where bizrq's Lease is.")] = "bizrq-system",
    recount_interval: Annotated[str, typer.Option(help="Every group is counted at least so often.")] = "5m",
    cash_interval: Annotated[str, typer.Option(help="Card-hours of what runs are added up so often.")] = "60s",
) -> None:
    """Everything in one process: webhooks and controller, on a sandbox or, with --kubeconfig, on a real cluster.

    Prints `ready` when the first request would be decided. CRDs and groups stay when it ends; the webhooks'
    registration does not.
    """
    from bizrq import process
    from bizrq.api.config import ConfigurationError
    from bizrq.cli.standalone import Station, StationError, Where
    from bizrq.kube.client import ApiError, ConfigError, Unreachable
    from bizrq.settings import load
    from controller.main import seconds

    process.configure_logging()
    recount, cash = seconds(recount_interval), seconds(cash_interval)
    try:
        settings = load(config)
    except ConfigurationError as error:
        raise Failure(str(error), BAD_INPUT) from None
    station = Station(
        settings,
        Where(kubeconfig, context, write_kubeconfig),
        webhook_url=webhook_url,
        port=port,
        namespace=namespace,
        recount_interval=recount,
        cash_interval=cash,
    )
    try:
        process.run(lambda stop: _serve(station, stop))
    except (ConfigError, StationError) as error:
        raise Failure(str(error), BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), CLUSTER) from None
    except OSError as error:
        # A port that is in use; the error names the address.
        raise Failure(error.strerror or str(error), BAD_INPUT) from None


async def _serve(station: Station, stop: object) -> None:
    import asyncio

    async with station:
        if station.kubeconfig is not None:
            typer.echo(f"kubeconfig: {station.kubeconfig}")
        typer.echo("ready")
        assert isinstance(stop, asyncio.Event)  # noqa: S101 narrows for the type checker: process.run made it
        await station.until(stop)
