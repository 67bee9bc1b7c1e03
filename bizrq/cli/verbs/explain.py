"""bizrq explain: why a manifest is refused or admitted, what a workload costs whom, what a group's budget goes into."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import HERE, Where, ask, client_for
from bizrq.cli.groups import check_known
from bizrq.cli.kubectl_plugin import group_names
from bizrq.cli.manifests import Recursive, read_objects
from bizrq.cli.options import Config, Namespace, settings_of
from bizrq.cli.output.failure import BAD_INPUT, Failure
from bizrq.cli.verbs.fit import named, rehearsed

if TYPE_CHECKING:
    from rich.console import Console

    from bizrq.api.group import GroupObject
    from bizrq.cli.simulate.charged import Found as Workloads
    from bizrq.cli.simulate.dry_run import Outcome
    from bizrq.cli.simulate.stored_workload import Found
    from bizrq.kube.client import KubeClient
    from bizrq.settings import Settings

_Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", "--filename", help="Explain these manifests; - for standard input."),
]
_What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GROUP | KIND/NAME | KIND NAME]",
        help="A group, or a workload as kubectl names it, like deployment/web.",
        autocompletion=group_names,
    ),
]
_GROUPS = ("bizrq", "bizgroupresourcequota", "bizgroupresourcequotas")


def explain(
    what: _What = None,
    file: _Files = None,
    recursive: Recursive = False,
    namespace: Namespace = None,
    config: Config = None,
    where: Where = HERE,
) -> None:
    """Explain an answer: for manifests who pays, what they ask for, what is left and who could help; for a workload
    what it costs and whether one more replica would fit; for a group what its budget goes into.
    """
    if bool(what) == bool(file):
        raise Failure("explain what? Give a group, a workload as KIND/NAME, or manifests with -f", BAD_INPUT)
    if file:
        outcomes = rehearsed(read_objects(file, recursive), namespace, config, where)
        for number, outcome in enumerate(outcomes):
            if number:
                sys.stdout.write("\n")
            _explain(outcome)
        return
    kind, name = _meant(what or [])
    settings, client = settings_of(config), client_for(where)
    if kind in _GROUPS:
        _explain_group(name, settings, client)
    else:
        _explain_workload(kind, namespace or client.namespace, name, settings, client)


def _meant(words: Sequence[str]) -> tuple[str, str]:
    """The kind, that of groups where none is given, and the name. Raises Failure."""
    match [part for word in words for part in word.split("/")]:
        case [name] if name:
            return _GROUPS[0], name
        case [kind, name] if kind and name:
            return kind.lower().partition(".quota.biz.group")[0], name
    raise Failure(f"{' '.join(words)}: give one group, or one workload as KIND/NAME", BAD_INPUT)


def _explain(outcome: Outcome) -> None:
    """Who pays, the numbers, and the answer."""
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.cli.simulate.wording import demand_rows, why_charged

    console = terminal.console()
    console.print(Text(f"{outcome.kind} {named(outcome)}", "bold"))
    terminal.tell(console, why_charged(outcome), 2)
    _print_rows(("ASKS", "HAD", "LEFT", "HARD"), demand_rows(outcome))
    terminal.tell(console, [f"warning: {warning}" for warning in outcome.warnings], 2)
    _answer(console, outcome, "It fits", "It does not fit:")


def _answer(console: Console, outcome: Outcome, yes: str, no: str) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.cli.simulate.wording import most_replicas, sentences

    if outcome.fits:
        most = most_replicas(outcome)
        more = f", up to {most} {'replica' if most == 1 else 'replicas'}" if most is not None else ""
        console.print(Text.assemble("  ", (yes, "green"), f"{more}."))
        return
    console.print(Text.assemble("  ", (no, "red")))
    terminal.tell(console, sentences(outcome), 4)


def _print_rows(heads: Iterable[str], rows: Sequence[Sequence[str]]) -> None:
    from bizrq.cli.output import terminal

    if not rows:
        return
    table = terminal.table("  RESOURCE")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(f"  {name}", *cells)
    terminal.print_whole(table)


def _explain_workload(kind: str, namespace: str, name: str, settings: Settings, client: KubeClient) -> None:
    from rich.text import Text

    from bizrq.api.group import GroupUnreadable
    from bizrq.cli.output import terminal
    from bizrq.cli.simulate.dry_run import list_groups
    from bizrq.cli.simulate.stored_workload import find
    from bizrq.cli.simulate.wording import cost_rows, who_pays

    async def work(client: KubeClient) -> tuple[Found, Sequence[str]]:
        return await find(client, settings, await list_groups(client), kind, namespace, name)

    try:
        found, unread = ask(client, work)
    except GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None
    console = terminal.console()
    console.print(Text(f"{found.kind} {found.namespace}/{found.name}", "bold"))
    terminal.tell(console, who_pays(found), 2)
    if found.error:
        terminal.tell(console, [f"It cannot be counted, so it counts as nothing and may not grow: {found.error}"], 2)
    _print_rows(("COSTS", "LEFT", "HARD"), cost_rows(found))
    if found.more is not None:
        _answer(console, found.more, "One replica more fits", "One replica more does not fit:")
    if unread:
        sys.stderr.write(f"bizrq: you may not read {', '.join(unread)}: taken as if there were none\n")


def _explain_group(name: str, settings: Settings, client: KubeClient) -> None:
    from rich.text import Text

    from bizrq.api.group import GroupUnreadable
    from bizrq.cli.output import terminal
    from bizrq.cli.output.view import forest
    from bizrq.cli.simulate.charged import charged_to
    from bizrq.cli.simulate.dry_run import list_groups
    from bizrq.cli.simulate.wording import of_group

    async def work(client: KubeClient) -> tuple[list[GroupObject], Workloads]:
        groups = await list_groups(client)
        check_known([name], [group.name for group in groups])
        return groups, await charged_to(client, settings, name)

    try:
        groups, found = ask(client, work)
    except GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None
    known = forest(groups, catalog=settings.catalog)
    console = terminal.console()
    console.print(Text(" > ".join([*known.ancestry(name), name]), "bold"))
    terminal.tell(console, of_group(known, name, found.workloads), 2)
    if found.unread:
        sys.stderr.write(f"bizrq: you may not read {', '.join(found.unread)}: they are left out\n")
