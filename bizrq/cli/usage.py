"""bizrq usage: what manifests would be charged, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.failure import BAD_INPUT, Failure
from bizrq.cli.manifests import Files, read_all

if TYPE_CHECKING:
    from bizrq.workloads.usage import Row


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def usage(
    file: Files,
    output: Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON.")] = Output.TABLE,
    config: Annotated[Path | None, typer.Option(help="One YAML document: how workloads are counted.")] = None,
) -> None:
    """Show what these manifests would be charged; other documents in the files serve as the cluster."""
    from bizrq.api.config import ConfigurationError
    from bizrq.settings import load
    from bizrq.workloads.usage import usage as count

    try:
        settings = load(config)
    except ConfigurationError as error:
        raise Failure(str(error), BAD_INPUT) from None
    rows = count(read_all(file), settings.counting, settings.registry)
    if output is Output.JSON:
        import orjson

        typer.echo(orjson.dumps([row.as_json() for row in rows], option=orjson.OPT_INDENT_2).decode())
    else:
        show(rows)


def show(rows: list[Row]) -> None:
    """A line per workload and resource."""
    from rich.text import Text

    from bizrq.cli import terminal

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
    console.print(table)
