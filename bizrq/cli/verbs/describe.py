"""bizrq describe: everything about a group on one page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import HERE, Where, ask, client_for
from bizrq.cli.groups import check_known, decoded
from bizrq.cli.kubectl_plugin import group_names
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import Form, Output, print_document, print_names

if TYPE_CHECKING:
    from rich.console import Console

    from bizrq.cli.output.view import Forest, Sheet
    from bizrq.cli.simulate.charged import Found
    from bizrq.kube.client import KubeClient


def describe(
    group: Annotated[list[str], typer.Argument(help="The groups' names.", autocompletion=group_names)],
    output: Output = Form.TABLE,
    config: Config = None,
    where: Where = HERE,
) -> None:
    """Describe groups: conditions, resources, workloads with what each costs, what is reserved, events."""
    client, settings = client_for(where), settings_of(config)

    from bizrq.cli.output.view import forest, row_of
    from bizrq.cli.simulate.charged import charged_to
    from bizrq.cli.verbs import report
    from bizrq.store.groups import GROUPS

    async def work(client: KubeClient) -> tuple[Forest, list[tuple[Sheet, Found, list[dict[str, Any]]]]]:
        items, _ = await client.list(GROUPS)
        found = forest(decoded(items), catalog=settings.catalog)
        check_known(group, list(found.sheets))
        if output in (Form.NAME, Form.CSV):
            return found, []
        return found, [
            (found.sheets[name], await charged_to(client, settings, name), await _events(client, name))
            for name in dict.fromkeys(group)
        ]

    found, pages = ask(client, work)
    if output is Form.NAME:
        print_names(group)
    elif output is Form.CSV:
        report.print_rows([row_of(found.sheets[name], f) for name in group for f in found.sheets[name].figures], output)
    elif output in (Form.JSON, Form.YAML):
        print_document([_as_json(*page) for page in pages], output)
    else:
        for number, page in enumerate(pages):
            if number:
                sys.stdout.write("\n")
            _print(found, *page)
    unread = sorted({what for _, workloads, _ in pages for what in workloads.unread})
    if unread:
        sys.stderr.write(f"bizrq: you may not read {', '.join(unread)}: they are not shown\n")


async def _events(client: KubeClient, name: str) -> list[dict[str, Any]]:
    """The group's events, the newest last; none where they may not be read."""
    from bizrq.api.group import KIND
    from bizrq.kube.client import Forbidden, Resource

    chosen = f"involvedObject.kind={KIND},involvedObject.name={name}"
    try:
        items, _ = await client.list(Resource("", "v1", "events", "Event"), "default", field_selector=chosen)
    except Forbidden:
        return []
    return sorted(items, key=_seen)


def _seen(event: dict[str, Any]) -> str:
    """When an event was last seen."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp", "")))


def _as_json(sheet: Sheet, found: Found, events: list[dict[str, Any]]) -> dict[str, Any]:
    from bizrq.cli.verbs import tree
    from bizrq.units.resources import text_of

    return {
        **tree.as_json(sheet),
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for c in sheet.group.status.conditions
        ],
        "workloads": [
            {
                "kind": workload.kind,
                "namespace": workload.namespace,
                "name": workload.name,
                **({"error": workload.error} if workload.error else {"usage": text_of(workload.cost)}),
            }
            for workload in found.workloads
        ],
        "reservations": [str(entry) for entry in sheet.reservations],
        "events": [{"time": _seen(e), "reason": e.get("reason"), "message": e.get("message")} for e in events],
    }


def _print(forest: Forest, sheet: Sheet, found: Found, events: list[dict[str, Any]]) -> None:
    from bizrq.cli.output import terminal

    console, metadata = terminal.console(), sheet.group.metadata
    counted = sheet.group.status.last_reconcile_time
    facts = {
        "Name": sheet.name,
        "Path": " > ".join([*forest.ancestry(sheet.name), sheet.name]),
        "Children": ", ".join(sheet.children) or "none",
        "Age": terminal.ago(metadata.creation_timestamp) if metadata.creation_timestamp else "?",
        "Counted": f"{terminal.ago(counted)} ago" if counted else "not yet",
    }
    if metadata.deletion_timestamp:
        facts["Deleting"] = f"for {terminal.ago(metadata.deletion_timestamp)}"
    for name, value in facts.items():
        terminal.tell(console, [f"{name + ':':<12}{value}"], 0)
    _section(console, "Conditions", [])
    for condition in sheet.group.status.conditions:
        terminal.tell(console, [f"{condition.type} {condition.status}: {condition.message}"], 2)
    if not sheet.group.status.conditions:
        terminal.tell(console, ["none yet: the controller has not seen the group"], 2)
    _resources(console, sheet)
    _workloads(console, sheet, found)
    if sheet.reservations:
        from bizrq.units.times import timestamp

        promised = [f"{e.slot} until {timestamp(e.expires)}: {_amounts(e.extra)}" for e in sheet.reservations]
        _section(console, "Reserved, and not counted yet", promised)
    lines = [f"{terminal.ago(_seen(e))} ago, {e.get('reason')}: {e.get('message')}" for e in events]
    _section(console, "Events", lines or ["none"])


def _section(console: Console, head: str, lines: list[str]) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal

    console.print(Text(f"{head}:", "bold"))
    terminal.tell(console, lines, 2)


def _resources(console: Console, sheet: Sheet) -> None:
    from bizrq.cli.output import terminal

    _section(console, "Resources", [] if sheet.figures else ["no ceilings"])
    table = terminal.table("  RESOURCE")
    for head in ("HARD", "USED", "SELF", "GRANTED", "RESERVED", "LEFT"):
        table.add_column(head, justify="right", no_wrap=True)
    for f in sheet.figures:
        amounts = [f.text(n) or "?" for n in (f.hard, f.used, f.own, f.granted, f.reserved, f.left)]
        table.add_row(f"  {f.resource}", *amounts, style="red" if f.is_over else "")
    if sheet.figures:
        terminal.print_whole(table)


def _workloads(console: Console, sheet: Sheet, found: Found) -> None:
    """What each workload costs of what the group has a ceiling for."""
    lines: list[str] = []
    for workload in found.workloads:
        cost = {f.resource: workload.cost.get(f.resource, 0) for f in sheet.figures}
        told = f"cannot be counted: {workload.error}" if workload.error else _amounts(cost)
        lines.append(f"{workload.kind} {workload.namespace}/{workload.name}: {told}")
    _section(console, "Workloads", lines or ["none"])


def _amounts(amounts: Any) -> str:
    from bizrq.units.resources import nonzero, text_of

    return ", ".join(f"{name}={value}" for name, value in text_of(nonzero(amounts)).items()) or "nothing"
