"""bizrq get: list groups, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import (
    Selector,
    Watch,
    end_unread,
    read_groups,
    read_named,
    watch_groups,
)
from bizrq.cli.options import catalog_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_csv, print_document, print_names, print_table
from bizrq.figures.words import ago

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.figures.groups.view import GroupView


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
    wanted = group or []
    if wanted and selector:
        raise Failure("--selector chooses from all groups: name groups or give a selector, not both", EXIT_BAD_INPUT)
    client = client_for(where, watches=len(wanted))

    def show(items: list[dict[str, Any]]) -> None:
        from bizrq.figures.groups.source import check_known

        items = sorted(items, key=lambda item: item["metadata"]["name"])
        check_known(wanted, [item["metadata"]["name"] for item in items])
        chosen = [item for item in items if not wanted or item["metadata"]["name"] in wanted]
        nothing = f"No group matches {selector}." if selector else "There are no groups."
        if len(wanted) == 1 and output in (OutputFormat.JSON, OutputFormat.YAML):
            print_document(chosen[0], output)
        else:
            show_list(chosen, output, nothing)

    if watch:
        watch_groups(client, show, selector, wanted)
        return
    if not wanted:
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
    from bizrq.figures.groups.source import decode_groups
    from bizrq.figures.groups.view import LISTED, listed_row, tree_view

    views = tree_view(decode_groups(chosen), catalog_of(None)).groups
    shown = [views[name] for name in names]
    if form is OutputFormat.CSV:
        print_csv(LISTED, [listed_row(view) for view in shown])
    else:
        show_rows(shown, nothing, every=form is OutputFormat.WIDE)


_PERCENT = "% of hard"
_WIDE = (
    *("name", "parent", "ready", "over", "scarcest", "taken", "hard", _PERCENT, "ahead"),
    *("reservations", "counted", "age", "contact"),
)
_NARROW = ("name", "parent", "ready", "over", "scarcest", _PERCENT, "age")
#: The columns to leave out of a table that is too wide for its terminal, in this order.
_DROPPED = ("age", "parent")


def show_rows(shown: list[GroupView], nothing: str, *, every: bool) -> None:
    """Print a table of the groups; `nothing` is what to say without any."""
    from bizrq.cli.output import terminal

    if not shown:
        terminal.console().print(nothing)
        return
    heads = _NARROW
    if every:
        has_contact = any(view.group.contact for view in shown)
        has_ahead = any(view.has_ahead for view in shown)
        hidden = {*(() if has_contact else ("contact",)), *(() if has_ahead else ("ahead",))}
        heads = tuple(head for head in _WIDE if head not in hidden)
    right = ("taken", "hard", _PERCENT, "ahead", "reservations", "age", "counted")
    cells = [[_cell(head, view) for head in heads] for view in shown]
    print_table(heads, cells, right=right, drop=() if every else _DROPPED)


def _cell(head: str, view: GroupView) -> Text:
    from rich.text import Text

    from bizrq.figures.groups.view import listed_row

    value, scarce = listed_row(view).get("created" if head == "age" else head), view.tightest
    if head in ("age", "counted"):
        return Text(ago(value)) if value else Text("?", "dim")
    if head in ("parent", "contact"):
        return Text(value or NONE)
    if head in ("scarcest", "taken", "hard", _PERCENT, "ahead"):
        if not view.resources:
            return Text("unlimited" if head == "scarcest" else "", "dim")
        if scarce is None:
            return Text("?", "dim")
        percent = scarce.percent or 0
        texts = {
            "scarcest": scarce.resource,
            "taken": scarce.text(scarce.taken) or "?",
            "hard": scarce.text(scarce.hard) or "?",
            _PERCENT: f"{percent}%",
            "ahead": scarce.text(scarce.ahead) or "?",
        }
        return Text(texts[head], "" if head != _PERCENT or percent < 90 else "red" if percent > 100 else "yellow")
    return Text(str(value), "red" if (head, value) in (("ready", "False"), ("over", "True")) else "")
