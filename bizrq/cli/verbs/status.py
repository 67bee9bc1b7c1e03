"""bizrq status: the state of the installation at a glance."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import SystemNamespace
from bizrq.cli.output.failure import EXIT_NO, EXIT_UNKNOWN
from bizrq.cli.output.tables import OutputFormat, print_document

if TYPE_CHECKING:
    from bizrq.figures.state.glance import Glance, Report
    from bizrq.kube.client import KubeClient


class StatusOutput(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


#: The word for each exit code.
_STATES = {0: "healthy", EXIT_NO: "unhealthy", EXIT_UNKNOWN: "unknown"}


def status(
    output: Annotated[StatusOutput, typer.Option("--output", "-o", help="Output format.")] = StatusOutput.TEXT,
    namespace: SystemNamespace = "bizrq-system",
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Show whether quota is enforced, who counts, and which groups need attention. Changes nothing.

    Anybody who may list groups can run it. What you may not read is shown as unknown, such as the versions and the
    leader. Whether the webhooks answer is found out by a dry run: it takes the right to create groups, or Deployments
    in the namespace of the context.

    Exit code 0: healthy. 1: there is a problem. 3: the cluster is unreachable. 4: no problem is known, but something
    that matters could not be read. Notices do not count: groups over quota, exhausted hours, old CRDs.
    """
    from bizrq.figures.state import glance

    client = client_for(where)

    async def work(client: KubeClient) -> Glance:
        return await glance.look(client, namespace)

    seen = run_on(client, work)
    found = glance.report(seen)
    code = EXIT_NO if found.problems else EXIT_UNKNOWN if found.unknown else 0
    if output is StatusOutput.TEXT:
        _show(seen, found)
    else:
        print_document(glance.as_json(seen, found, _STATES[code]), OutputFormat(output.value))
    if code:
        raise typer.Exit(code)


def _show(seen: Glance, found: Report) -> None:
    """Print what is wrong first, then what there is."""
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.state.glance import lines

    console = terminal.console()
    rows = [("PROBLEM", "bold red", each.message) for each in found.problems]
    rows += [("unknown", "yellow", each) for each in found.unknown]
    rows += [("notice", "yellow", each.message) for each in found.notices]
    if not found.problems and not found.unknown:
        rows.insert(0, ("healthy", "green", "quota is enforced, and the counts are current"))
    rows += [(head, "", text) for head, text in lines(seen)]
    for head, style, text in rows:
        first, *rest = [part.plain for part in Text(text).wrap(console, max(20, console.width - 10))] or [""]
        console.print(Text.assemble((f"{head:<10}", style), first), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * 10 + line), soft_wrap=True)
