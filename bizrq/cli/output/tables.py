"""Print the same rows in every form of `-o`: tables, JSON, YAML, CSV and names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from bizrq.units.text import printable


class OutputFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


#: The text of a cell that has no value, as kubectl prints it.
NONE = "<none>"
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]


def print_as(
    form: OutputFormat,
    *,
    names: Iterable[str],
    heads: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    table: Callable[[], None],
    document: Any = None,
    paged: bool = True,
) -> None:
    """Print the same result in one of the forms.

    `names` are names of groups; `heads` and `rows` are the columns and rows of CSV; `table` prints the table.
    `document` is the result for JSON and YAML, by default the rows. A long table is `paged` on a terminal.
    """
    if form in (OutputFormat.JSON, OutputFormat.YAML):
        print_document(rows if document is None else document, form)
    elif form is OutputFormat.NAME:
        print_names(names)
    elif form is OutputFormat.CSV:
        print_csv(heads, rows)
    else:
        from bizrq.cli.output.pager import pager

        with pager(enabled=paged):
            table()


def print_document(document: Any, form: OutputFormat) -> None:
    """Print JSON or YAML."""
    from bizrq.cli.output import terminal

    if form is OutputFormat.JSON:
        terminal.print_json(document)
        return
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    if printable(text) != text:
        text = yaml.safe_dump(document, sort_keys=False, width=110)
    sys.stdout.write(text)


def print_names(names: Iterable[str]) -> None:
    """Print the names of groups as `kubectl get -o name` does."""
    from bizrq.api.group import API_GROUP, KIND
    from bizrq.cli.output import terminal

    for name in names:
        terminal.write(f"{KIND.lower()}.{API_GROUP}/{name}\n")


def print_csv(heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one line of heads, then the rows; an unknown value is empty."""
    from bizrq.cli.output import terminal
    from bizrq.figures.tables import csv_text

    terminal.write(csv_text(heads, rows))


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    margin: int = 0,
    drop: Sequence[str] = (),
) -> None:
    """Print columns as kubectl does, right of a margin; the columns in `right` are flush right.

    Heads are printed in capitals. Cells are text, or rich's Text. On a terminal that is too narrow the columns in
    `drop` are left out, one after another; if that is not enough, each row is printed on lines of its own. So no line
    is longer than the terminal is wide, unless a single cell is.
    """
    from bizrq.cli.output import terminal

    cells = [list(row) for row in rows]
    console = terminal.console()
    for number in range(len(drop) + 1):
        kept = [column for column, head in enumerate(heads) if head not in drop[:number]]
        names, lines = [heads[column] for column in kept], [[row[column] for column in kept] for row in cells]
        table = terminal.plain_table(names, lines, right=right, margin=margin)
        if not console.is_terminal or terminal.width_of(table) <= console.width:
            terminal.print_whole(table)
            return
    terminal.print_stacked(heads, cells, margin)
