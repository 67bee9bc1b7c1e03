"""bizrq usage: count manifests without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.manifests import Files, Recursive, read_all
from bizrq.cli.options import Config, settings_of
from bizrq.cli.output.tables import NONE, OutputFormat, print_document, print_table

if TYPE_CHECKING:
    from bizrq.workloads.config import CountingConfig
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
    documents = list(read_all(file, recursive))
    rows = count(documents, settings.counting, settings.registry)
    unknown = [_unknown_models(row, documents, settings.counting) for row in rows]
    if output is UsageOutput.TABLE:
        show(rows, unknown)
    else:
        items = [{**_as_json(row), "warnings": lines} for row, lines in zip(rows, unknown, strict=True)]
        print_document(items, OutputFormat(output.value))


def _unknown_models(row: UsageRow, documents: Sequence[Any], config: CountingConfig) -> list[str]:
    """Return a sentence for each model of a workload that neither the files nor the configuration know.

    Where they know no model of its sort at all, they say nothing about it.
    """
    from bizrq.api.group import KIND as GROUP_KIND
    from bizrq.workloads.demand.offline import objects_in
    from bizrq.workloads.devices.models import known_model, models_named, unknown_model
    from bizrq.workloads.validation import expect_map

    groups = [each for each in objects_in(documents) if each.get("kind") == GROUP_KIND]
    ceilings = {str(name) for each in groups for name in expect_map((each.get("spec") or {}).get("hard"), "spec.hard")}
    known = models_named(ceilings, config.catalog) | {("gpu", model) for model in config.gpu_models}
    sorts = {sort for sort, _ in known}
    return [
        unknown_model(sort, model, known, "a group in these files or of gpuModels")
        for sort, model in sorted(models_named(row.usage or {}, config.catalog) - known)
        if sort in sorts and (sort != "gpu" or known_model(model, config) is None)
    ]


def _as_json(row: UsageRow) -> dict[str, Any]:
    """Return the item with whole numbers of a base unit in place of quantities."""
    from bizrq.units import base, quantity

    item = row.as_json()
    if row.usage is not None:
        item["usage"] = {name: base.plain(name, quantity.parse_sum(text)) for name, text in row.usage.items()}
    return item


def show(rows: list[UsageRow], unknown: list[list[str]]) -> None:
    """Print a line for each workload and resource, then what is `unknown` of each workload."""
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
    warnings = [
        f"warning: {row.kind} {row.namespace}/{row.name}: {line}"
        for row, lines in zip(rows, unknown, strict=True)
        for line in lines
    ]
    terminal.print_sentences(console, warnings, 0)
