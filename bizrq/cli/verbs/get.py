"""bizrq get: list groups, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import (
    Selector,
    Watch,
    check_known,
    decode_groups,
    end_unread,
    read_groups,
    read_named,
    watch_groups,
)
from bizrq.cli.options import catalog_of
from bizrq.cli.output.tables import Output, OutputFormat, print_csv, print_document, print_names, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.cli.output.view import GroupView


def get(
    group: Annotated[
        list[str] | None, typer.Argument(help="Show only these groups.", autocompletion=group_names)
    ] = None,
    output: Output = OutputFormat.TABLE,
    selector: Selector = None,
    watch: Watch = False,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """List groups with their parents, conditions, and scarcest resource."""
    client, wanted = client_for(where), group or []

    def show(items: list[dict[str, Any]]) -> None:
        items = sorted(items, key=lambda item: item["metadata"]["name"])
        check_known(wanted, [item["metadata"]["name"] for item in items])
        chosen = [item for item in items if not wanted or item["metadata"]["name"] in wanted]
        show_list(chosen, output, f"No group matches {selector}." if selector else "There are no groups.")

    if watch:
        watch_groups(client, show, selector)
        return
    if not wanted or selector:
        show(list(run_on(client, lambda client: read_groups(client, selector=selector)).items.values()))
        return
    source = run_on(client, lambda client: read_named(client, list(dict.fromkeys(wanted))))
    wanted = [name for name in wanted if name in source.items]
    show(list(source.items.values()))
    end_unread(source.unread, so="it is not shown")


def show_list(chosen: list[dict[str, Any]], form: OutputFormat, nothing: str) -> None:
    """Print the chosen groups in one of the forms; `nothing` is the table without any."""
    if form in (OutputFormat.JSON, OutputFormat.YAML):
        print_document({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": chosen}, form)
        return
    names = [item["metadata"]["name"] for item in chosen]
    if form is OutputFormat.NAME:
        print_names(names)
        return
    from bizrq.cli.output.view import tree_view

    views = tree_view(decode_groups(chosen), catalog_of(None)).groups
    rows = [row_of(views[name]) for name in names]
    if form is OutputFormat.CSV:
        print_csv(HEADS, rows)
        return
    show_rows(rows, form, nothing)


#: The columns of every form; a narrow table leaves some out.
HEADS = (
    *("name", "parent", "ready", "over", "scarcest", "taken", "hard", "percent"),
    *("reservations", "counted", "age", "contact"),
)
_NARROW = ("name", "parent", "ready", "over", "scarcest", "percent", "age")


def row_of(view: GroupView) -> dict[str, Any]:
    """Return the values of a group by column."""
    group, scarce = view.group, view.tightest
    return {
        "name": view.name,
        "parent": view.parent,
        "ready": view.status_of("Ready"),
        "over": view.status_of("OverQuota"),
        "scarcest": scarce.resource if scarce else None,
        "taken": scarce.text(scarce.taken) if scarce else None,
        "hard": scarce.text(scarce.hard) if scarce else None,
        "percent": scarce.percent if scarce else None,
        "reservations": len(view.reservations),
        "counted": group.status.last_reconcile_time,
        "age": group.metadata.creation_timestamp,
        "contact": group.contact.strip(" ()"),
    }


def show_rows(rows: list[dict[str, Any]], form: OutputFormat, nothing: str) -> None:
    from bizrq.cli.output import terminal

    if not rows:
        terminal.console().print(nothing)
        return
    heads = HEADS if form is OutputFormat.WIDE else _NARROW
    right = ("taken", "hard", "percent", "reservations", "age", "counted")
    print_table(heads, [[_cell(head, row[head]) for head in heads] for row in rows], right=right)


def _cell(head: str, value: Any) -> Text:
    from rich.text import Text

    from bizrq.cli.output import terminal

    if value is None or value == "":
        return Text("-", "dim")
    if head in ("age", "counted"):
        return Text(terminal.ago(value))
    bad = (head, value) in (("ready", "False"), ("over", "True")) or (head == "percent" and value > 100)
    text = f"{value}%" if head == "percent" else str(value)
    return Text(text, "red" if bad else "yellow" if head == "percent" and value >= 90 else "")
