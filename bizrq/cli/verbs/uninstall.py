"""bizrq uninstall: delete the objects of bizrq from a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.apply import DryRunOutput, ManifestOutput, print_objects
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import DryRun, SystemNamespace
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_UNKNOWN, Failure, warn

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient


def uninstall(
    namespace: SystemNamespace = "bizrq-system",
    crd: Annotated[
        bool, typer.Option("--crd", help="Delete the CRDs too, and with them every group and its hours.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete with --crd what that would delete, unasked.")] = False,
    dry_run: DryRun = False,
    output: DryRunOutput = ManifestOutput.NAME,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Remove bizrq from a cluster, the webhook registration first, so that no write is refused meanwhile.

    A marker as of bizrq pause keeps the controller from registering the webhooks again; it goes last.

    Groups and their CRDs are kept without --crd, which needs --yes: it deletes all groups, and the bills with them.
    With --dry-run it counts them, and exit code 4 means that some may not be listed. The namespace is deleted only if
    install created it.
    """
    from bizrq.cli.installation import records
    from bizrq.cli.installation.removal import removal, remove

    going = removal(namespace)
    if dry_run:
        print_objects([*going.objects, *(going.definitions if crd else [])], output)
        if crd:
            counts = run_on(client_for(where), records.count)
            warn(f"--crd deletes {records.summed(counts)}; save bills first")
            if None in counts.values():
                raise typer.Exit(EXIT_UNKNOWN)
        return

    async def work(client: KubeClient) -> None:
        if crd and not yes:
            lost = records.summed(await records.count(client))
            raise Failure(f"--crd deletes {lost}; save bills first, then add --yes", EXIT_BAD_INPUT)
        await remove(client, namespace, going.objects)
        if crd:
            await records.delete_all(client, going.definitions)
        else:
            await records.warn_of_kept(client)

    run_on(client_for(where), work)
