"""bizrq explain: why a manifest is refused or admitted, or what a group's budget goes into."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import Context, Kubeconfig, ask, client_for
from bizrq.cli.completion import group_names
from bizrq.cli.failure import BAD_INPUT, Failure
from bizrq.cli.fit import named, rehearsed
from bizrq.cli.groups import check_known
from bizrq.cli.manifests import read_all
from bizrq.cli.options import Config, Namespace, settings_of

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.cli.payers import Found
    from bizrq.cli.rehearsal import Outcome
    from bizrq.kube.client import KubeClient

_Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", "--filename", help="Explain these manifests; - for standard input."),
]


def explain(
    group: Annotated[str | None, typer.Argument(help="Explain this group.", autocompletion=group_names)] = None,
    file: _Files = None,
    namespace: Namespace = None,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Explain an answer: for manifests who pays, what they ask for, what is left and who could help; for a group
    what its budget goes into.
    """
    if (group is None) == (not file):
        raise Failure("explain what? Give the name of a group, or manifests with -f", BAD_INPUT)
    if group is not None:
        _explain_group(group, config, kubeconfig, context)
        return
    for number, outcome in enumerate(rehearsed(read_all(file or []), namespace, config, kubeconfig, context)):
        if number:
            sys.stdout.write("\n")
        _explain(outcome)


def _explain(outcome: Outcome) -> None:
    """Who pays, the numbers, and the answer."""
    from rich.text import Text

    from bizrq.cli import terminal
    from bizrq.cli.explanation import demand_rows, most_replicas, sentences, why_charged

    console = terminal.console()
    console.print(Text(f"{outcome.kind} {named(outcome)}", "bold"))
    terminal.tell(console, why_charged(outcome), 2)
    rows = demand_rows(outcome)
    if rows:
        table = terminal.table("  RESOURCE")
        for head in ("ASKS", "HAD", "LEFT", "HARD"):
            table.add_column(head, justify="right", no_wrap=True)
        for name, *cells in rows:
            table.add_row(f"  {name}", *cells)
        terminal.print_whole(table)
    if outcome.fits:
        most = most_replicas(outcome)
        more = f", up to {most} {'replica' if most == 1 else 'replicas'}" if most is not None else ""
        console.print(Text.assemble("  ", ("It fits", "green"), f"{more}."))
        return
    console.print(Text.assemble("  ", ("It does not fit:", "red")))
    terminal.tell(console, sentences(outcome), 4)


def _explain_group(name: str, config: Path | None, kubeconfig: Path | None, context: str | None) -> None:
    settings, client = settings_of(config), client_for(kubeconfig, context)

    from rich.text import Text

    from bizrq.api.group import GroupUnreadable
    from bizrq.cli import terminal
    from bizrq.cli.explanation import of_group
    from bizrq.cli.figures import forest
    from bizrq.cli.payers import charged_to
    from bizrq.cli.rehearsal import list_groups

    async def work(client: KubeClient) -> tuple[list[GroupObject], Found]:
        groups = await list_groups(client)
        check_known([name], [group.name for group in groups])
        return groups, await charged_to(client, settings, name)

    try:
        groups, found = ask(client, work)
    except GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None
    known = forest(groups)
    console = terminal.console()
    console.print(Text(" > ".join([*known.ancestry(name), name]), "bold"))
    terminal.tell(console, of_group(known, name, found.workloads), 2)
    if found.unread:
        sys.stderr.write(f"bizrq: you may not read {', '.join(found.unread)}: they are left out\n")
