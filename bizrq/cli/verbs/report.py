"""bizrq report: print a row for each group and resource, or report the hours that were used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, OnlyResource, check_known, end_unread, read_groups
from bizrq.cli.options import Config, catalog_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import Output, OutputFormat, print_as, print_table
from bizrq.hours.bill import GroupBy

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.kube.client import KubeClient
    from bizrq.units.names import Catalog

#: The columns of every form; a narrow table leaves some out.
HEADS = ("group", "parent", "resource", "hard", "used", "selfUsed", "granted", "reserved", "left", "percent")
_NARROW = ("group", "resource", "hard", "used", "reserved", "left", "percent")

_Hours = Annotated[bool, typer.Option("--hours", help="Report used hours, by group, for the current period.")]
_By = Annotated[
    list[GroupBy] | None, typer.Option("--by", help="Report used hours by this column; repeat it to add columns.")
]
_Period = Annotated[
    str | None,
    typer.Option(
        metavar="<current|last|all|START>",
        help="Report used hours of this period; START is a date or time at its beginning or within it.",
    ),
]
_Html = Annotated[
    Path | None,
    typer.Option(help="Write an HTML page with charts of used hours and a forecast; - writes to standard output."),
]


def report(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    over: Annotated[int, typer.Option(min=0, help="Show only resources at or above this usage, in percent.")] = 0,
    hours: _Hours = False,
    by: _By = None,
    period: _Period = None,
    html: _Html = None,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Report each resource of each group: ceiling, usage, reservations, and what is left.

    With --hours, --by, --period or --html, report the hours that were used, when and for what.
    """
    client, catalog = client_for(where), catalog_of(config)
    if not (hours or by or period is not None or html is not None):
        _report_quota(client, group, resource, over, output, catalog)
        return
    if over:
        raise Failure(
            "--over does not apply to used hours: remove it, or remove --hours, --by, --period and --html",
            EXIT_BAD_INPUT,
        )
    if html is not None and (by or output is not OutputFormat.TABLE):
        raise Failure("--html always writes the whole page: remove --by and --output", EXIT_BAD_INPUT)

    from bizrq.cli.hours.bills import print_bill, write_page

    if html is not None:
        write_page(client, html, group, resource, period or "current", catalog)
    else:
        print_bill(client, group, resource, by or [GroupBy.GROUP], period or "current", output, catalog)


def _report_quota(
    client: KubeClient, group: str | None, resource: str | None, over: int, output: OutputFormat, catalog: Catalog
) -> None:
    """Print a row for each resource of each group. Raise Failure."""
    from bizrq.cli.output.view import report_row, tree_view

    source = run_on(client, lambda client: read_groups(client, [group] if group else []))
    tree = tree_view(source.groups, catalog, resource, is_complete=source.is_complete)
    if group is not None:
        check_known([group], list(tree.groups))
    rows = [
        report_row(view, figures)
        for view, _ in tree.in_order(group)
        for figures in view.resources
        if not over or (figures.percent or 0) >= over
    ]
    print_rows(rows, output)
    if not source.is_complete:
        end_unread(["the list of groups"], so=f"whether there are groups below {group} is unknown")


def print_rows(rows: list[dict[str, Any]], form: OutputFormat) -> None:
    def table() -> None:
        heads = HEADS if form is OutputFormat.WIDE else _NARROW
        print_table(heads, [[_cell(head, row) for head in heads] for row in rows], right=HEADS[3:])

    print_as(form, names=dict.fromkeys(row["group"] for row in rows), heads=HEADS, rows=rows, table=table)


def _cell(head: str, row: dict[str, Any]) -> Text:
    from rich.text import Text

    value, percent = row[head], row["percent"]
    if value is None:
        # The parent of a root is ""; amounts are None until the first recount.
        return Text("?", "dim")
    if value in ("", "0") and head != "hard":
        return Text("-", "dim")
    style = ""
    if head in ("left", "percent") and percent is not None:
        style = "red" if percent > 100 else "yellow" if percent >= 90 else ""
    return Text(f"{value}%" if head == "percent" else str(value), style)
