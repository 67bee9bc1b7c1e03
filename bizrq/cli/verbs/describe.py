"""bizrq describe: show everything about a group on one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import check_known, end_unread, read_groups
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.failure import few
from bizrq.cli.output.tables import Output, OutputFormat, print_as, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from bizrq.cli.output.view import GroupView, TreeView
    from bizrq.cli.simulate.charged import ChargedWorkloads
    from bizrq.kube.client import KubeClient

    #: Events are None where the user may not read them.
    _Events = list[dict[str, Any]] | None
    _Page = tuple[GroupView, ChargedWorkloads, _Events]

_OF_EVENTS = "events in namespace default"


def describe(
    group: Annotated[list[str], typer.Argument(help="Names of the groups.", autocompletion=group_names)],
    output: Output = OutputFormat.TABLE,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Describe groups: conditions, resources, cost of each workload, reservations and events."""
    client, settings = client_for(where), settings_of(config)

    from bizrq.cli.output.view import report_row, tree_view
    from bizrq.cli.simulate.charged import charged_to
    from bizrq.cli.verbs import report

    async def work(client: KubeClient) -> tuple[TreeView, list[_Page]]:
        source = await read_groups(client, group)
        groups = source.groups
        found = tree_view(groups, catalog=settings.catalog, is_complete=source.is_complete)
        check_known([name for name in group if f"group {name}" not in source.unread], list(found.groups))
        unread.update(source.unread, () if source.is_complete else ["the list of groups"])
        if output in (OutputFormat.NAME, OutputFormat.CSV):
            return found, []
        return found, [
            (
                found.groups[name],
                await charged_to(client, settings, groups, name),
                await _events(client, found.groups[name]),
            )
            for name in dict.fromkeys(group)
            if name in found.groups
        ]

    unread: set[str] = set()
    found, pages = run_on(client, work)
    group = [name for name in group if name in found.groups]
    print_as(
        output,
        names=group,
        heads=report.HEADS,
        rows=[report_row(found.groups[name], f) for name in group for f in found.groups[name].resources],
        document=[_as_json(*page) for page in pages],
        table=lambda: _print_pages(found, pages),
    )
    for _, workloads, events in pages:
        unread.update(workloads.missing, [_OF_EVENTS] if events is None else ())
    end_unread(unread, so="what is above is not all there is")


def _print_pages(found: TreeView, pages: Sequence[_Page]) -> None:
    for number, page in enumerate(pages):
        if number:
            sys.stdout.write("\n")
        _print(found, *page)


async def _events(client: KubeClient, view: GroupView) -> _Events:
    """Return the group's events, the newest last; None if the user may not read them.

    They are found by uid: an event of the same name may be of another cluster's life, or anyone's.
    """
    from bizrq.api.group import KIND
    from bizrq.kube.client import Forbidden, Resource

    chosen = f"involvedObject.kind={KIND},involvedObject.uid={view.group.metadata.uid}"
    try:
        items, _ = await client.list(Resource("", "v1", "events", "Event"), "default", field_selector=chosen)
    except Forbidden:
        return None
    return sorted(items, key=_seen)


def _seen(event: dict[str, Any]) -> str:
    """Return the time at which an event was last seen."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp", "")))


def _as_json(view: GroupView, found: ChargedWorkloads, events: _Events) -> dict[str, Any]:
    from bizrq.cli.verbs import tree
    from bizrq.units import base

    return {
        **tree.as_json(view),
        "workloads": [
            {
                "kind": workload.kind,
                "namespace": workload.namespace,
                "name": workload.name,
                **(
                    {"error": workload.error}
                    if workload.error
                    else {"usage": {n: base.plain(n, amount) for n, amount in workload.cost.items() if amount}}
                ),
            }
            for workload in found.workloads
        ],
        "leftovers": list(view.group.status.leftovers),
        "reservations": [str(entry) for entry in view.reservations],
        "events": None
        if events is None
        else [{"time": _seen(e), "reason": e.get("reason"), "message": e.get("message")} for e in events],
        "unread": [*found.missing, *([_OF_EVENTS] if events is None else [])],
    }


def _print(forest: TreeView, view: GroupView, found: ChargedWorkloads, events: _Events) -> None:
    """Print first what people ask for, the resources and conditions, and last what only support asks for."""
    from bizrq.cli.output import terminal

    console, status = terminal.console(), view.group.status
    facts = {"Group": forest.path(view.name)}
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
    _workloads(console, view, found)
    none = "none" if view.is_complete else "unknown: you may not list groups"
    _section(console, "Children", [", ".join(view.children) or none])
    if status.leftovers:
        _section(console, "Leftovers", list(map(_leftover, status.leftovers)))
    if view.reservations:
        from bizrq.units.times import format_timestamp

        reserved = [f"{e.slot} until {format_timestamp(e.expires)}: {_amounts(e.extra)}" for e in view.reservations]
        _section(console, "Reserved but not counted yet", reserved)
    lines = [f"{terminal.ago(_seen(e))} ago, {e.get('reason')}: {e.get('message')}" for e in events or ()]
    _section(console, "Events", lines or ["none" if events is not None else f"unknown: you may not read {_OF_EVENTS}"])
    _section(console, "Versions", _versions(view))


def _versions(view: GroupView) -> list[str]:
    """Return ages, and the versions from which the group was counted."""
    from bizrq.cli.output import terminal

    metadata, status = view.group.metadata, view.group.status
    counted = f"{terminal.ago(status.last_reconcile_time)} ago" if status.last_reconcile_time else "not yet"
    lines = [
        f"created {terminal.ago(metadata.creation_timestamp) if metadata.creation_timestamp else '?'} ago",
        f"counted {counted}, at generation {status.observed_generation} of {metadata.generation}",
    ]
    if metadata.deletion_timestamp:
        lines.insert(0, f"being deleted for {terminal.ago(metadata.deletion_timestamp)}")
    return lines + [f"{kind} at {version}" for kind, version in sorted(status.counted_at.items())]


def _section(console: Console, head: str, lines: list[str]) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal

    console.print(Text(f"{head}:", "bold"))
    terminal.print_sentences(console, lines, 2)


def _resources(console: Console, view: GroupView) -> None:
    from rich.text import Text

    _section(console, "Resources", [] if view.resources else ["unlimited: it has no ceilings"])
    amounts = ("hard", "used", "self", "granted", "reserved", "left")
    rows: list[list[Text]] = []
    for f in view.resources:
        texts = [f.text(n) or "?" for n in (f.hard, f.used, f.self_used, f.granted, f.reserved, f.left)]
        rows.append([Text(text, "red" if f.is_over else "") for text in (f.resource, *texts)])
    if rows:
        print_table(("resource", *amounts), rows, right=amounts, margin=2)


def _workloads(console: Console, view: GroupView, found: ChargedWorkloads) -> None:
    """Print the cost of each workload in the resources that the group limits."""
    lines: list[str] = []
    for workload in found.workloads:
        cost = {f.resource: workload.cost.get(f.resource, 0) for f in view.resources}
        text = f"cannot be counted: {workload.error}" if workload.error else _amounts(cost)
        lines.append(f"{workload.kind} {workload.namespace}/{workload.name}: {text}")
    if found.missing:
        lines.append(f"{'others ' if lines else ''}unknown: you may not read {few(found.missing)}")
    _section(console, "Workloads", lines or ["none"])


def _leftover(line: str) -> str:
    """Return a line of `status.leftovers` in words."""
    slot, place, since, *costs = line.split(" ")
    kind, _, where = place.partition("/")
    gone = f"{kind} {where} is gone since {since.removeprefix('since=')}"
    return f"{slot}: {gone}, charged until its pods end: {', '.join(costs) or 'nothing'}"


def _amounts(amounts: Any) -> str:
    from bizrq.units.resources import nonzero, text_of

    return ", ".join(f"{name}={value}" for name, value in text_of(nonzero(amounts)).items()) or "nothing"
