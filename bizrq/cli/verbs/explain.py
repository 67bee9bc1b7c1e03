"""bizrq explain: explain an answer of admission, the cost of a workload, or the budget of a group."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import end_unread, read_any_groups, read_groups
from bizrq.cli.manifests import Recursive, read_objects
from bizrq.cli.options import Config, Namespace, settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import OutputFormat, print_document, print_table
from bizrq.cli.verbs.fit import FitOutput, TextOutput, end_unsure, run_dry_run
from bizrq.units.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from bizrq.figures.groups.source import GroupSource
    from bizrq.figures.simulate.charged import ChargedWorkloads as Workloads
    from bizrq.figures.simulate.outcome import DryRunOutcome
    from bizrq.figures.simulate.stored_workload import StoredWorkload
    from bizrq.kube.client import KubeClient
    from bizrq.settings import Settings

_Files = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", "--filename", help="Explain these manifests; - reads standard input."),
]
_What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GROUP | KIND/NAME | KIND NAME]",
        help="A group, or a workload as in kubectl, for example deployment/web.",
        autocompletion=group_names,
    ),
]
_GROUPS = ("bizrq", "bizgroupresourcequota", "bizgroupresourcequotas")


def explain(
    what: _What = None,
    file: _Files = None,
    recursive: Recursive = False,
    output: TextOutput = FitOutput.TEXT,
    namespace: Namespace = None,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Explain an answer of admission, the cost of a workload, or the budget of a group.

    For manifests: the charged group, the request, what is left, and which groups could help. For a workload: its cost,
    and whether one more replica fits. For a group: where its budget goes.
    """
    if bool(what) == bool(file):
        raise Failure("name a group or a workload (KIND/NAME), or pass manifests with -f", EXIT_BAD_INPUT)
    if file:
        outcomes = run_dry_run(read_objects(file, recursive), namespace, config, where)
        if output is not FitOutput.TEXT:
            from bizrq.figures.simulate.wording import as_json, why_charged

            _print_as([{**as_json(each), "because": why_charged(each)} for each in outcomes], output)
            end_unsure(outcomes)
            return
        for number, outcome in enumerate(outcomes):
            if number:
                sys.stdout.write("\n")
            _explain(outcome)
        end_unsure(outcomes)
        return
    kind, name = _meant(what or [])
    settings, client = settings_of(config), client_for(where)
    if kind in _GROUPS:
        _explain_group(name, settings, client, output)
    else:
        _explain_workload(kind, namespace or client.namespace, name, settings, client, output)


def _print_as(document: Any, form: FitOutput) -> None:
    print_document(document, OutputFormat(form.value))


def _meant(words: Sequence[str]) -> tuple[str, str]:
    """Return the kind, by default that of groups, and the name. Raise Failure."""
    match [part for word in words for part in word.split("/")]:
        case [name] if name:
            return _GROUPS[0], name
        case [kind, name] if kind and name:
            return kind.lower().partition(".quota.biz.group")[0], name
    raise Failure(f"{' '.join(words)}: name one group, or one workload as KIND/NAME", EXIT_BAD_INPUT)


def _explain(outcome: DryRunOutcome) -> None:
    """Print the charged group, the numbers and the answer."""
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.simulate.wording import demand_rows, why_charged

    console = terminal.console()
    terminal.print_hanging(console, Text(f"{outcome.kind} {outcome.full_name}", "bold"), 2)
    terminal.print_sentences(console, why_charged(outcome), 2)
    _print_rows(("asks", "had", "left", "hard"), demand_rows(outcome))
    terminal.print_sentences(console, [f"warning: {warning}" for warning in outcome.warnings], 2)
    _answer(console, outcome, "It fits", "It does not fit:")


def _answer(console: Console, outcome: DryRunOutcome, yes: str, no: str) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.simulate.wording import dependence, later_sentences, most_replicas, sentences

    if outcome.is_unknown:
        console.print(Text.assemble("  ", ("Unknown", "yellow"), f": {dependence(outcome)}."))
        return
    if outcome.fits:
        most = most_replicas(outcome)
        more = f", up to {counted(most, 'replica')}" if most is not None else ""
        console.print(Text.assemble("  ", (yes, "green"), f"{more}."))
        terminal.print_sentences(console, later_sentences(outcome), 4)
        return
    console.print(Text.assemble("  ", (no, "red")))
    terminal.print_sentences(console, [*sentences(outcome), *later_sentences(outcome)], 4)


def _print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_table(("resource", *heads), rows, right=heads, margin=2)


def _explain_workload(
    kind: str, namespace: str, name: str, settings: Settings, client: KubeClient, form: FitOutput
) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.errors import NotThere
    from bizrq.figures.simulate.stored_workload import find_workload
    from bizrq.figures.simulate.wording import cost_rows, later_sentences, stored_as_json, who_pays

    async def work(client: KubeClient) -> tuple[StoredWorkload, Sequence[str]]:
        source = await read_any_groups(client)
        fetch = None if source.is_complete else source.fetch
        try:
            return await find_workload(client, settings, source.groups, kind, namespace, name, fetch)
        except NotThere as error:
            if await source.get(kind) is not None:
                why = f"{kind} is a group: explain takes one at a time, or one workload as KIND/NAME"
                raise Failure(why, EXIT_BAD_INPUT) from None
            raise error from None

    found, unread = run_on(client, work)
    missing = f"what it says of {found.kind} {found.namespace}/{found.name} may be wrong"
    if form is not FitOutput.TEXT:
        _print_as(stored_as_json(found), form)
        end_unread(unread, so=missing)
        return
    console = terminal.console()
    terminal.print_hanging(console, Text(f"{found.kind} {found.namespace}/{found.name}", "bold"), 2)
    terminal.print_sentences(console, who_pays(found), 2)
    if found.error:
        terminal.print_sentences(
            console, [f"It cannot be counted, so it counts as zero and cannot grow: {found.error}"], 2
        )
    _print_rows(("costs", "left", "hard"), cost_rows(found))
    terminal.print_sentences(console, found.remarks, 2)
    if found.later is not None:
        terminal.print_sentences(console, later_sentences(found.later), 2)
    if found.more is not None:
        _answer(console, found.more, "One more replica fits", "One more replica does not fit:")
    end_unread(unread, so=missing)


def _explain_group(name: str, settings: Settings, client: KubeClient, form: FitOutput) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.errors import NotThere, UnknownGroup
    from bizrq.figures.groups.source import check_known
    from bizrq.figures.groups.view import tree_view
    from bizrq.figures.simulate.budget_wording import group_as_json, of_group
    from bizrq.figures.simulate.charged import charged_to
    from bizrq.figures.simulate.stored_workload import kind_named

    async def work(client: KubeClient) -> tuple[GroupSource, Workloads]:
        try:
            source = await read_groups(client, [name])
            check_known([name], list(source.items))
        except UnknownGroup:
            with contextlib.suppress(NotThere):
                kind = (await kind_named(client, settings.registry, name)).kind.lower()
                raise Failure(f"{name} is a kind: name the workload too, as in {kind}/NAME", EXIT_BAD_INPUT) from None
            raise
        return source, await charged_to(client, settings, source.groups, name)

    source, found = run_on(client, work)
    known = tree_view(source.groups, catalog=settings.catalog, is_complete=source.is_complete)
    unread = {*source.unread, *found.missing, *([] if source.is_complete else ["the list of groups"])}
    if form is not FitOutput.TEXT:
        _print_as(group_as_json(known, name, found), form)
    else:
        console = terminal.console()
        console.print(Text(known.path(name), "bold"))
        terminal.print_sentences(console, of_group(known, name, found), 2)
    end_unread(unread, so="what is above is not all there is")
