"""Tables and documents in every form of `-o`: the same rows for people, for scripts and for spreadsheets."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer


class Form(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


Output = Annotated[Form, typer.Option("--output", "-o", help="How to print it.")]


def print_document(document: Any, form: Form) -> None:
    """As JSON or YAML."""
    from bizrq.cli.output import terminal

    if form is Form.JSON:
        terminal.print_json(document)
        return
    import yaml

    yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True, width=110)


def print_names(names: Iterable[str]) -> None:
    """As `kubectl get -o name` does."""
    from bizrq.api.group import API_GROUP, KIND

    for name in names:
        sys.stdout.write(f"{KIND.lower()}.{API_GROUP}/{name}\n")


def print_csv(heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """One line of heads, then the rows; nothing for what is not known."""
    import csv

    # Not the CRLF of RFC 4180: this goes to a terminal and to grep as well.
    writer = csv.DictWriter(sys.stdout, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if row[key] is None else row[key] for key in heads} for row in rows)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Columns as kubectl's; those that `right` names are flush right. Cells are text, or rich's Text."""
    from bizrq.cli.output import terminal

    table = terminal.table()
    for head in heads:
        table.add_column(head, no_wrap=True, justify="right" if head in right else "left")
    for row in rows:
        table.add_row(*row)
    terminal.print_whole(table)
