"""bizrq install: apply the objects of bizrq to a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq import flags
from bizrq.cli.apply import DryRunOutput, ManifestOutput, print_objects
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import DryRun, SystemNamespace, settings_of
from bizrq.cli.output.failure import warn

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient


def install(
    image: Annotated[str | None, typer.Option(help="Image of the processes; by default bizrq of this version.")] = None,
    namespace: SystemNamespace = "bizrq-system",
    config: Annotated[Path | None, typer.Option(help="YAML file of the processes' configuration.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Replicas of the webhooks and of the controller, each; initially 2."),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="CA of the API server's client certificate, a PEM file; reviews without it are refused."),
    ] = None,
    client_name: Annotated[
        str | None, typer.Option(help="Common name of the API server's client certificate; needs --client-ca.")
    ] = None,
    no_client_ca: Annotated[
        bool, typer.Option("--no-client-ca", help="Remove the installed client CA and client name.")
    ] = False,
    api_server_cidr: Annotated[
        list[str] | None,
        typer.Option(
            help="Addresses of the API servers, for a NetworkPolicy of the webhooks' port; repeat it. Wrong ones block "
            "every write that is reviewed."
        ),
    ] = None,
    no_api_server_cidr: Annotated[
        bool, typer.Option("--no-api-server-cidr", help="Remove the installed NetworkPolicy.")
    ] = False,
    metrics_anonymous: Annotated[
        bool | None, typer.Option(help="Let everybody read /metrics, without a token; initially off.")
    ] = None,
    drain_delay: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=flags.LONGEST_DRAIN,
            help="Seconds that webhooks serve on after SIGTERM, until no new reviews come; "
            f"at first {flags.DRAIN_DELAY}.",
        ),
    ] = None,
    allowances: Annotated[
        bool | None,
        typer.Option(help="Let webhooks admit ahead of the write where groups have plenty of room; initially off."),
    ] = None,
    log_format: Annotated[flags.LogFormat | None, typer.Option(help="Format of the log; initially text.")] = None,
    log_level: Annotated[flags.LogLevel | None, typer.Option(help="Lowest level to log; initially info.")] = None,
    api_priority: Annotated[
        bool | None,
        typer.Option(help="Reserve a share of the API server's seats for the processes' own requests; initially on."),
    ] = None,
    web: Annotated[bool | None, typer.Option(help="Install the web UI too, or remove it; it needs --web-url.")] = None,
    web_url: Annotated[
        str | None, typer.Option(help="Address at which browsers reach the web UI, like https://quota.corp.")
    ] = None,
    web_tls_secret: Annotated[
        str | None,
        typer.Option(help="Secret with tls.crt and tls.key for the web UI; without it an ingress in front has TLS."),
    ] = None,
    web_oidc_issuer: Annotated[
        str | None, typer.Option(help="Provider to sign in to the web UI with, like https://login.corp.")
    ] = None,
    web_oidc_client_id: Annotated[
        str | None, typer.Option(help="Client of the provider; needs --web-oidc-issuer.")
    ] = None,
    web_oidc_secret: Annotated[
        str | None, typer.Option(help="Secret with the key client-secret, unless the client is a public one.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the webhooks are ready and registered.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for ready and registered webhooks.")] = 180,
    dry_run: DryRun = False,
    output: DryRunOutput = ManifestOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Install or update bizrq in a cluster. Repeating it changes nothing.

    Applies the CRDs, RBAC, processes and Service. The controller registers the webhooks once one of them is ready.
    Deletes what only an earlier install created. Requires administrator rights.

    In a new installation people need the verb use to charge a group: bizrq allow grants it. An update keeps what the
    installation has, and says so; a flag that is given wins, and an empty --web-... removes what it named. An image
    becomes that of this version, unless --image named one of another repository. --dry-run prints a new installation.
    """
    from bizrq.cli.installation import installed
    from bizrq.cli.installation.planned import advice, open_to_strangers, planned
    from bizrq.cli.installation.requested import given, requested
    from bizrq.cli.installation.rollout import roll_out

    asked = requested(
        namespace,
        settings_of(config).text if config is not None else None,
        given(
            image=image,
            replicas=replicas,
            metrics_anonymous=metrics_anonymous,
            drain_delay=drain_delay,
            allowances=allowances,
            log_format=log_format,
            log_level=log_level,
            api_priority=api_priority,
        ),
        client_ca=client_ca,
        client_name=client_name,
        no_client_ca=no_client_ca,
        api_server_cidr=api_server_cidr or (),
        no_api_server_cidr=no_api_server_cidr,
        web=web,
        pages=given(
            url=web_url,
            tls_secret=web_tls_secret,
            issuer=web_oidc_issuer,
            client=web_oidc_client_id,
            client_secret=web_oidc_secret,
        ),
    )
    if dry_run:
        new = planned(asked, installed.Installed())
        print_objects(new.all_objects, output)
        _say(open_to_strangers(new.plan))
        return

    async def work(client: KubeClient) -> None:
        before = await installed.read(client, namespace)
        plan = planned(asked, before)
        _say(plan.changes)
        await roll_out(client, plan, before, timeout if wait else None)
        _say(advice(plan.plan, before))

    run_on(client_for(where), work)


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        warn(line)
