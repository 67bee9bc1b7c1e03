"""bizrq report: a row for every group and resource, and bills of their hours; for people, spreadsheets and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for
from bizrq.cli.groups import Group, OnlyResource, check_known, decode_groups, list_groups
from bizrq.cli.options import Config, catalog_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import Output, OutputFormat, print_as, print_table
from bizrq.hours.bill import GroupBy

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.kube.client import KubeClient
    from bizrq.units.names import Catalog

#: The columns of every form, in their order; a narrow table leaves some out.
HEADS = ("group", "parent", "resource", "hard", "used", "selfUsed", "granted", "reserved", "left", "percent")
_NARROW = ("group", "resource", "hard", "used", "reserved", "left", "percent")

_Hours = Annotated[bool, typer.Option("--hours", help="Bill hours, by group and of the current period.")]
_By = Annotated[
    list[GroupBy] | None, typer.Option("--by", help="Bill hours by this; give it again to part them further.")
]
_Period = Annotated[
    str | None,
    typer.Option(
        metavar="<current|last|all|START>",
        help="Bill the hours of this period; START is the date or time at which it began, or one in it.",
    ),
]
_Html = Annotated[
    Path | None, typer.Option(help="Write bills of hours and a forecast as one page with charts, - to standard output.")
]


def report(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    over: Annotated[int, typer.Option(min=0, help="Only what is taken to at least so many percent.")] = 0,
    hours: _Hours = False,
    by: _By = None,
    period: _Period = None,
    html: _Html = None,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Report what every group has of every resource: ceiling, used by itself and by its children, reserved, left.

    With --hours, --by, --period or --html: which hours were spent, when and on what.
    """
    client, catalog = client_for(where), catalog_of(config)
    if not (hours or by or period is not None or html is not None):
        _report_quota(client, group, resource, over, output, catalog)
        return
    if over:
        raise Failure("--over is of ceilings, not of hours that were spent: leave it out, or --hours", EXIT_BAD_INPUT)
    if html is not None and (by or output is not OutputFormat.TABLE):
        raise Failure("--html writes one page with every bill: leave out --by and --output", EXIT_BAD_INPUT)

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

    tree = tree_view(decode_groups(list_groups(client)), catalog, resource)
    if group is not None:
        check_known([group], list(tree.groups))
    rows = [
        report_row(view, figures)
        for view, _ in tree.in_order(group)
        for figures in view.resources
        if not over or (figures.percent or 0) >= over
    ]
    print_rows(rows, output)


def print_rows(rows: list[dict[str, Any]], form: OutputFormat) -> None:
    def table() -> None:
        heads = HEADS if form is OutputFormat.WIDE else _NARROW
        print_table(heads, [[_cell(head, row) for head in heads] for row in rows], right=HEADS[3:])

    print_as(form, names=dict.fromkeys(row["group"] for row in rows), heads=HEADS, rows=rows, table=table)


def _cell(head: str, row: dict[str, Any]) -> Text:
    from rich.text import Text

    value, percent = row[head], row["percent"]
    if value is None:
        # Parents are "" for a root; amounts are None until they are counted.
        return Text("?", "dim")
    if value in ("", "0") and head != "hard":
        return Text("-", "dim")
    style = ""
    if head in ("left", "percent") and percent is not None:
        style = "red" if percent > 100 else "yellow" if percent >= 90 else ""
    return Text(f"{value}%" if head == "percent" else str(value), style)
