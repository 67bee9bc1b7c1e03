"""bizrq report: print a row for each group and resource, or report the hours that were used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, OnlyResource, end_unread, read_groups
from bizrq.cli.options import Config, catalog_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_as, print_table
from bizrq.hours.bill import GroupBy

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.figures.groups.view import GroupView, ResourceView
    from bizrq.kube.client import KubeClient
    from bizrq.units.names import Catalog

_WIDE = ("group", "parent", "resource", "hard", "used", "self", "granted", "reserved", "left", "% of hard")
_NARROW = ("group", "resource", "hard", "used", "reserved", "left", "% of hard")
#: The columns to leave out of a table that is too wide for its terminal, in this order.
_DROPPED = ("reserved", "hard")

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
_Price = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RESOURCE=AMOUNT",
        help="Price of an hour of this resource, such as limits.cpu=0.05, to report what used hours "
        "cost; repeat it for others. Nothing is stored.",
    ),
]
_Currency = Annotated[str | None, typer.Option(metavar="CODE", help="Currency of the prices, such as EUR.")]


def report(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    over: Annotated[int, typer.Option(min=0, help="Show only resources at or above this usage, in percent.")] = 0,
    hours: _Hours = False,
    by: _By = None,
    period: _Period = None,
    html: _Html = None,
    price: _Price = None,
    currency: _Currency = None,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Report each resource of each group: ceiling, usage, reservations, and what is left.

    With --hours, --by, --period, --html or --price, report the hours that were used, when and for what.
    """
    client, catalog = client_for(where), catalog_of(config)
    if currency is not None and not price:
        raise Failure("--currency needs a --price", EXIT_BAD_INPUT)
    if not (hours or by or period is not None or html is not None or price):
        _report_quota(client, group, resource, over, output, catalog)
        return
    if over:
        raise Failure(
            "--over does not apply to used hours: remove it, or remove --hours, --by, --period, --html and --price",
            EXIT_BAD_INPUT,
        )
    if html is not None and (by or output is not OutputFormat.TABLE):
        raise Failure("--html always writes the whole page: remove --by and --output", EXIT_BAD_INPUT)

    from bizrq.figures.hours.prices import parse_prices

    prices = parse_prices(price or (), currency or "", catalog)
    if html is not None:
        from bizrq.cli.bills import write_page

        write_page(client, html, group, resource, period or "current", catalog, prices)
    else:
        from bizrq.cli.bills import print_bill

        print_bill(client, group, resource, by or [GroupBy.GROUP], period or "current", output, catalog, prices)


def _report_quota(
    client: KubeClient, group: str | None, resource: str | None, over: int, output: OutputFormat, catalog: Catalog
) -> None:
    """Print a row for each resource of each group. Raise Failure."""
    from bizrq.figures.groups.source import check_known
    from bizrq.figures.groups.view import report_row, report_rows, tree_view
    from bizrq.figures.tables import REPORT

    source = run_on(client, lambda client: read_groups(client, [group] if group else []))
    tree = tree_view(source.groups, catalog, resource, is_complete=source.is_complete)
    if group is not None:
        check_known([group], list(tree.groups))
    shown = report_rows(tree, group, over)
    print_as(
        output,
        names=dict.fromkeys(view.name for view, _ in shown),
        heads=REPORT,
        rows=[report_row(view, figures) for view, figures in shown],
        table=lambda: _print(shown, every=output is OutputFormat.WIDE),
    )
    if not source.is_complete:
        end_unread(["the list of groups"], so=f"whether there are groups below {group} is unknown")


def _print(shown: list[tuple[GroupView, ResourceView]], *, every: bool) -> None:
    from bizrq.cli.output import terminal

    if not shown:
        terminal.console().print("No group has such a resource.")
        return
    heads = _WIDE if every else _NARROW
    cells = [[_cell(head, view, figures) for head in heads] for view, figures in shown]
    print_table(heads, cells, right=_WIDE[3:], drop=() if every else _DROPPED)


def _cell(head: str, view: GroupView, figures: ResourceView) -> Text:
    from rich.text import Text

    texts = {
        "group": view.name,
        "parent": view.parent or NONE,
        "resource": figures.resource,
        **{name: figures.text(amount) for name, amount in figures.amounts.items()},
        "% of hard": None if figures.percent is None else f"{figures.percent}%",
    }
    text, percent = texts[head], figures.percent
    if text is None:
        # An amount is unknown until the first recount.
        return Text("?", "dim")
    if head in ("left", "% of hard") and percent is not None:
        return Text(text, "red" if percent > 100 else "yellow" if percent >= 90 else "")
    return Text(text, "dim" if text == "0" and head != "hard" else "")
