"""bizrq usage: count manifests without a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.manifests import Files, Recursive, read_all
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import NONE, OutputFormat, print_document, print_table

if TYPE_CHECKING:
    from bizrq.workloads.demand.offline import UsageRow


class UsageOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def usage(
    file: Files,
    recursive: Recursive = False,
    output: Annotated[UsageOutput, typer.Option("--output", "-o", help="Output format.")] = UsageOutput.TABLE,
    config: Config = None,
) -> None:
    """Count what these manifests would be charged; other documents in the files stand for the cluster."""
    from bizrq.workloads.demand.offline import usage as count

    settings = settings_of(config)
    rows = count(read_all(file, recursive), settings.counting, settings.registry)
    if output is UsageOutput.TABLE:
        show(rows)
    else:
        print_document([_as_json(row) for row in rows], OutputFormat(output.value))


def _as_json(row: UsageRow) -> dict[str, Any]:
    """Return the item with whole numbers of a base unit in place of quantities."""
    from bizrq.units import base, quantity

    item = row.as_json()
    if row.usage is not None:
        item["usage"] = {name: base.plain(name, quantity.parse_sum(text)) for name, text in row.usage.items()}
    return item


def show(rows: list[UsageRow]) -> None:
    """Print a line for each workload and resource."""
    from rich.text import Text

    from bizrq.cli.output import terminal

    console = terminal.console()
    if not rows:
        console.print("These files contain no workload of a kind that bizrq counts.")
        return
    cells: list[list[str | Text]] = []
    for row in rows:
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
