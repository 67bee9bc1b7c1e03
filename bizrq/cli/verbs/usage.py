"""bizrq usage: what manifests would be charged, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.manifests import Files, Recursive, read_all
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import Form, print_document

if TYPE_CHECKING:
    from bizrq.workloads.demand.offline import Row


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def usage(
    file: Files,
    recursive: Recursive = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="A table for people, or a document.")] = Output.TABLE,
    config: Config = None,
) -> None:
    """Show what these manifests would be charged; other documents in the files serve as the cluster."""
    from bizrq.workloads.demand.offline import usage as count

    settings = settings_of(config)
    rows = count(read_all(file, recursive), settings.counting, settings.registry)
    if output is Output.TABLE:
        show(rows)
    else:
        print_document([row.as_json() for row in rows], Form(output.value))


def show(rows: list[Row]) -> None:
    """A line per workload and resource."""
    from rich.text import Text

    from bizrq.cli.output import terminal

    console = terminal.console()
    if not rows:
        console.print("No workload in these files is of a kind that bizrq counts.")
        return
    table = terminal.table("WORKLOAD", "GROUP", "RESOURCE")
    table.add_column("AMOUNT", justify="right")
    for row in rows:
        first = [f"{row.kind} {row.namespace}/{row.name}", row.group or "-"]
        if row.error is not None:
            table.add_row(*first, Text("refused", "red"), Text(row.error))
            continue
        for resource, amount in (row.usage or {"-": "0"}).items():
            table.add_row(*first, resource, amount)
            first = ["", ""]
    terminal.print_whole(table)
