"""bizrq web: serve the web UI on this machine, as the user of the kubeconfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, warn

if TYPE_CHECKING:
    import asyncio

    from bizrq.kube.config import Endpoint
    from bizrq.settings import Settings


def web(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.")] = 0,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Serve the web UI on 127.0.0.1, as the user of the kubeconfig.

    Prints an address with a key that works once: the browser that opens it is let in, and nobody else. Ends with
    Ctrl-C.
    """
    from bizrq import process
    from bizrq.kube.client import ApiError, Unreachable
    from bizrq.kube.config import ConfigError

    settings, endpoint = settings_of(config), client_for(where).endpoint
    process.configure_logging(level=process.LogLevel.WARNING)
    try:
        process.run(lambda stop: _serve(endpoint, settings, port, stop))
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except (ApiError, Unreachable) as error:
        raise Failure(str(error), EXIT_CLUSTER) from None
    except OSError as error:
        raise Failure(error.strerror or str(error), EXIT_BAD_INPUT) from None


async def _serve(endpoint: Endpoint, settings: Settings, port: int, stop: asyncio.Event) -> None:
    from bizrq.kube.client import KubeClient
    from bizrq.store.access import whoami
    from web.local import serving

    async with KubeClient(endpoint) as client:
        warn(f"as {await whoami(client)} on {client.server}")
    async with serving(endpoint, settings, port) as address:
        typer.echo(f"web: {address}")
        await stop.wait()
