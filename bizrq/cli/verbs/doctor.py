"""bizrq doctor: what is wrong with an installation, or stands in the way of one, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import SystemNamespace
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_NO, EXIT_UNKNOWN, Failure

if TYPE_CHECKING:
    from bizrq.cli.doctor.checks import Finding
    from bizrq.cli.doctor.state import State
    from bizrq.kube.client import KubeClient


def doctor(
    pre: Annotated[bool, typer.Option("--pre", help="Check whether bizrq can be installed, before it is.")] = False,
    namespace: SystemNamespace = "bizrq-system",
    bundle: Annotated[
        Path | None,
        typer.Option(help="New file for what was found and read, as JSON without secrets, for whoever helps you."),
    ] = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Diagnose the installation, and say how to fix what is wrong. Changes nothing.

    Checks version, objects, processes, rights, reachability, CA bundles, the Lease, clocks, API priority and groups.
    It takes up to six seconds, to see whether the Lease is renewed. Requires administrator rights; with less, it names
    the rights that are missing.

    Exit code 0: no problems. 1: there are problems. 3: the cluster is unreachable. 4: no problem is known, but not
    everything could be checked. Notices do not count.
    """
    from bizrq.cli.doctor import checks, state

    if bundle is not None and bundle.exists():
        raise Failure(f"{bundle} exists: name a new file", EXIT_BAD_INPUT)

    async def look(client: KubeClient) -> tuple[State, list[Finding]]:
        seen = await (state.before_install if pre else state.installed)(client, namespace)
        return seen, checks.findings(seen, checks.BEFORE if pre else checks.INSTALLED)

    seen, found = run_on(client_for(where), look)
    if bundle is not None:
        _write(bundle, seen, found)
    _show(found)
    grades = {finding.grade for finding in found}
    if checks.Grade.PROBLEM in grades:
        raise typer.Exit(EXIT_NO)
    if checks.Grade.UNKNOWN in grades:
        raise typer.Exit(EXIT_UNKNOWN)
    terminal.write("ready to install\n" if pre else "no problems found\n")


def _show(found: list[Finding]) -> None:
    from rich.text import Text

    from bizrq.cli.doctor.checks import Grade

    console = terminal.console()
    for finding in found:
        notice = "notice: " if finding.grade is Grade.NOTICE else ""
        terminal.print_hanging(console, Text(f"{notice}{finding.check}: {finding.what}"), 2)
        terminal.print_sentences(console, [finding.fix], 4)


def _write(path: Path, seen: State, found: list[Finding]) -> None:
    from bizrq.cli.doctor import bundle

    try:
        bundle.write(path, bundle.document(seen, found))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", EXIT_BAD_INPUT) from None
