"""bizrq describe: show everything about a group on one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import end_unread, read_groups
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import Output, OutputFormat, print_as, print_table
from bizrq.figures.words import ago, few

if TYPE_CHECKING:
    from rich.console import Console

    from bizrq.figures.describe import GroupDescription
    from bizrq.figures.groups.view import GroupView, TreeView
    from bizrq.figures.simulate.charged import ChargedWorkloads
    from bizrq.kube.client import KubeClient


def describe(
    group: Annotated[list[str], typer.Argument(help="Names of the groups.", autocompletion=group_names)],
    output: Output = OutputFormat.TABLE,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Describe groups: conditions, resources, cost of each workload, reservations and events."""
    client, settings = client_for(where), settings_of(config)

    from bizrq.figures.describe import describe_group, plain_description
    from bizrq.figures.groups.source import check_known
    from bizrq.figures.groups.view import report_row, tree_view
    from bizrq.figures.tables import REPORT

    async def work(client: KubeClient) -> tuple[TreeView, list[GroupDescription]]:
        source = await read_groups(client, group)
        groups = source.groups
        found = tree_view(groups, catalog=settings.catalog, is_complete=source.is_complete)
        check_known([name for name in group if f"group {name}" not in source.unread], list(found.groups))
        unread.update(source.unread, () if source.is_complete else ["the list of groups"])
        if output in (OutputFormat.NAME, OutputFormat.CSV):
            return found, []
        wanted = [name for name in dict.fromkeys(group) if name in found.groups]
        return found, [await describe_group(client, settings, found, groups, name) for name in wanted]

    unread: set[str] = set()
    found, pages = run_on(client, work)
    group = [name for name in group if name in found.groups]
    print_as(
        output,
        names=group,
        heads=REPORT,
        rows=[report_row(found.groups[name], f) for name in group for f in found.groups[name].resources],
        document=[plain_description(page) for page in pages],
        table=lambda: _print_pages(pages),
    )
    for page in pages:
        unread.update(page.unread)
    end_unread(unread, so="what is above is not all there is")


def _print_pages(pages: Sequence[GroupDescription]) -> None:
    for number, page in enumerate(pages):
        if number:
            sys.stdout.write("\n")
        _print(page)


def _print(page: GroupDescription) -> None:
    """Print first what people ask for, the resources and conditions, and last what only support asks for."""
    from bizrq.cli.output import terminal
    from bizrq.figures.describe import OF_EVENTS, amounts_text, leftover_text

    view, events = page.view, page.events
    console, status = terminal.console(), view.group.status
    facts = {"Group": page.path}
    if contact := view.group.contact:
        facts["Contact"] = contact
    for name, value in facts.items():
        terminal.print_sentences(console, [f"{name + ':':<12}{value}"], 0)
    _resources(console, view)
    _section(console, "Conditions", [])
    for condition in status.conditions:
        terminal.print_sentences(console, [f"{condition.type} {condition.status}: {condition.message}"], 2)
    if not status.conditions:
        terminal.print_sentences(console, ["none: the controller has not seen the group yet"], 2)
    _workloads(console, view, page.workloads)
    none = "none" if view.is_complete else "unknown: you may not list groups"
    _section(console, "Children", [", ".join(view.children) or none])
    if status.leftovers:
        _section(console, "Leftovers", list(map(leftover_text, status.leftovers)))
    if view.reservations:
        from bizrq.units.times import format_timestamp

        reserved = [f"{e.slot} until {format_timestamp(e.expires)}: {amounts_text(e.extra)}" for e in view.reservations]
        _section(console, "Reserved but not counted yet", reserved)
    if view.ahead:
        held = [f"{entry.slot.name}: {amounts_text(entry.amount)}" for entry in view.ahead]
        _section(console, "Held ahead by webhook processes, of what is left", held)
    lines = [f"{ago(e.time)} ago, {e.reason}: {e.message}" for e in events or ()]
    _section(console, "Events", lines or ["none" if events is not None else f"unknown: you may not read {OF_EVENTS}"])
    _section(console, "Versions", _versions(view))


def _versions(view: GroupView) -> list[str]:
    """Return ages, and the versions from which the group was counted."""
    metadata, status = view.group.metadata, view.group.status
    counted = f"{ago(status.last_reconcile_time)} ago" if status.last_reconcile_time else "not yet"
    lines = [
        f"created {ago(metadata.creation_timestamp) if metadata.creation_timestamp else '?'} ago",
        f"counted {counted}, at generation {status.observed_generation} of {metadata.generation}",
    ]
    if metadata.deletion_timestamp:
        lines.insert(0, f"being deleted for {ago(metadata.deletion_timestamp)}")
    return lines + [f"{kind} at {version}" for kind, version in sorted(status.counted_at.items())]


def _section(console: Console, head: str, lines: list[str]) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal

    console.print(Text(f"{head}:", "bold"))
    terminal.print_sentences(console, lines, 2)


def _resources(console: Console, view: GroupView) -> None:
    from rich.text import Text

    _section(console, "Resources", [] if view.resources else ["unlimited: it has no ceilings"])
    some = (*(("liens",) if view.has_liens else ()), "left", *(("ahead",) if view.has_ahead else ()))
    amounts = ("hard", "used", "self", "granted", "reserved", *some)
    rows: list[list[Text]] = []
    for f in view.resources:
        texts = [f.text(f.amounts[head]) or "?" for head in amounts]
        rows.append([Text(text, "red" if f.is_over else "") for text in (f.resource, *texts)])
    if rows:
        print_table(("resource", *amounts), rows, right=amounts, margin=2)


def _workloads(console: Console, view: GroupView, found: ChargedWorkloads) -> None:
    """Print the cost of each workload in the resources that the group limits."""
    from bizrq.figures.describe import amounts_text

    lines: list[str] = []
    for workload in found.workloads:
        cost = {f.resource: workload.cost.get(f.resource, 0) for f in view.resources}
        text = f"cannot be counted: {workload.error}" if workload.error else amounts_text(cost)
        lines.append(f"{workload.kind} {workload.namespace}/{workload.name}: {text}")
    if found.missing:
        lines.append(f"{'others ' if lines else ''}unknown: you may not read {few(found.missing)}")
    _section(console, "Workloads", lines or ["none"])
