"""bizrq report: a row for every group and resource, for people, spreadsheets and scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import Context, Kubeconfig, client_for
from bizrq.cli.groups import Group, OnlyResource, check_known, decoded, listed
from bizrq.cli.tables import Form, Output, print_csv, print_document, print_names, print_table

if TYPE_CHECKING:
    from rich.text import Text

#: The columns of every form, in their order; a narrow table leaves some out.
HEADS = ("group", "parent", "resource", "hard", "used", "selfUsed", "granted", "reserved", "left", "percent")
_NARROW = ("group", "resource", "hard", "used", "reserved", "left", "percent")


def report(
    group: Group = None,
    output: Output = Form.TABLE,
    resource: OnlyResource = None,
    over: Annotated[int, typer.Option(min=0, help="Only what is taken to at least so many percent.")] = 0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Report what every group has of every resource: ceiling, used by itself and by its children, reserved, left."""
    items = listed(client_for(kubeconfig, context))

    from bizrq.cli.figures import forest, row_of

    found = forest(decoded(items), resource)
    if group is not None:
        check_known([group], list(found.sheets))
    rows = [
        row_of(sheet, figures)
        for sheet, _ in found.in_order(group)
        for figures in sheet.figures
        if not over or (figures.percent or 0) >= over
    ]
    print_rows(rows, output)


def print_rows(rows: list[dict[str, Any]], form: Form) -> None:
    if form in (Form.JSON, Form.YAML):
        print_document(rows, form)
    elif form is Form.NAME:
        print_names(dict.fromkeys(row["group"] for row in rows))
    elif form is Form.CSV:
        print_csv(HEADS, rows)
    else:
        heads = HEADS if form is Form.WIDE else _NARROW
        cells = [[_cell(head, row) for head in heads] for row in rows]
        print_table([head.upper() for head in heads], cells, right=[head.upper() for head in HEADS[3:]])


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
