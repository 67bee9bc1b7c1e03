"""bizrq up: everything in one process, on a sandbox or on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.options import settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure

if TYPE_CHECKING:
    from bizrq.cli.standalone import Standalone


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
    from bizrq.cli.standalone import Standalone, TargetCluster
    from controller.main import seconds

    process.configure_logging()
    standalone = Standalone(
        settings_of(config),
        TargetCluster(kubeconfig, context, write_kubeconfig),
        webhook_url=webhook_url,
        port=port,
        namespace=namespace,
        recount_interval=seconds(recount_interval),
        cash_interval=seconds(cash_interval),
    )
    _run(standalone)


def _run(standalone: Standalone) -> None:
    """Run until a signal stops the process; raise Failure."""
    from bizrq import process
    from bizrq.cli.standalone import StandaloneError
    from bizrq.kube.client import ApiError, ConfigError, Unreachable

    try:
        process.run(lambda stop: _serve(standalone, stop))
    except (ConfigError, StandaloneError) as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), EXIT_CLUSTER) from None
    except OSError as error:
        # A port that is in use; the error names the address.
        raise Failure(error.strerror or str(error), EXIT_BAD_INPUT) from None


async def _serve(standalone: Standalone, stop: object) -> None:
    import asyncio

    async with standalone:
        if standalone.kubeconfig is not None:
            typer.echo(f"kubeconfig: {standalone.kubeconfig}")
        typer.echo("ready")
        assert isinstance(stop, asyncio.Event)  # noqa: S101 narrows for the type checker: process.run made it
        await standalone.until(stop)
