"""bizrq usage: what manifests would be charged, without a cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.failure import BAD_INPUT, Failure

if TYPE_CHECKING:
    from bizrq.workloads.usage import Row


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def usage(
    file: Annotated[list[Path], typer.Option("--file", "-f", help="A file of manifests, - for standard input.")],
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
    documents = [document for path in file for document in read(path)]
    rows = count(documents, settings.counting, settings.registry)
    if output is Output.JSON:
        import orjson

        typer.echo(orjson.dumps([row.as_json() for row in rows], option=orjson.OPT_INDENT_2).decode())
    else:
        show(rows)


def read(path: Path) -> list[Any]:
    """The documents of a file; raises Failure."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        return [document for document in yaml.load_all(text, loader) if document is not None]
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", BAD_INPUT) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Failure(f"{path}: not YAML: {' '.join(str(error).split())[:300]}", BAD_INPUT) from None


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
