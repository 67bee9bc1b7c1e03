"""bizrq usage: count manifests without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.manifests import Files, Recursive, read_all
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import NONE, OutputFormat, print_document, print_table

if TYPE_CHECKING:
    from bizrq.figures.usage import OfflineUsage


class UsageOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def usage(
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace for manifests that do not set one.")
    ] = "default",
    output: Annotated[UsageOutput, typer.Option("--output", "-o", help="Output format.")] = UsageOutput.TABLE,
    config: Config = None,
) -> None:
    """Count what these manifests would be charged; other documents in the files stand for the cluster."""
    from bizrq.figures.simulate.manifest import in_namespace
    from bizrq.figures.usage import plain_usage, usage_of

    documents = [in_namespace(document, namespace) for document in read_all(file, recursive)]
    found = usage_of(documents, settings_of(config))
    if output is UsageOutput.TABLE:
        show(found)
    else:
        print_document([plain_usage(each) for each in found], OutputFormat(output.value))


def show(found: Sequence[OfflineUsage]) -> None:
    """Print a line for each workload and resource, then what is unknown of each workload."""
    from rich.text import Text

    from bizrq.cli.output import terminal

    console = terminal.console()
    if not found:
        console.print("These files contain no workload of a kind that bizrq counts.")
        return
    cells: list[list[str | Text]] = []
    for row in (each.row for each in found):
        first = [f"{row.kind} {row.namespace}/{row.name}", row.group or NONE]
        if row.error is not None:
            cells.append([*first, Text("refused", "red"), Text(row.error)])
            continue
        for resource, amount in (row.usage or {"nothing": "0"}).items():
            cells.append([*first, resource, amount])
            first = ["", ""]
        notes: list[list[str | Text]] = [["", "", "", remark] for remark in row.surge]
        cells += notes
    print_table(("workload", "group", "resource", "amount"), cells, right=("amount",))
    for each in found:
        for line in each.warnings:
            warning = f"warning: {each.row.kind} {each.row.namespace}/{each.row.name}: {line}"
            terminal.print_hanging(console, Text(warning), 2)
