"""bizrq correct: credit or debit a group's hours, with the user and the reason in the record."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.options import catalog_of
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.cli.output.tables import OutputFormat, print_document

if TYPE_CHECKING:
    from collections.abc import Mapping


class CorrectOutput(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


_Hours = Annotated[
    list[str],
    typer.Argument(
        metavar="RES=HOURS...", help="For example requests.nvidia.com/gpu=-12.5; a negative amount gives hours back."
    ),
]


def correct(
    group: Annotated[str, typer.Argument(help="Group whose hours to correct.", autocompletion=group_names)],
    hours: _Hours,
    reason: Annotated[str, typer.Option(help="Reason for the correction; it stays in the record.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the correction, but do not store it.")] = False,
    output: Annotated[CorrectOutput, typer.Option("--output", "-o", help="Output format.")] = CorrectOutput.TEXT,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Credit or debit a group's hours in the open period, in your own name.

    The record is never edited: this creates a BizGroupCorrection, which becomes a new line of the record.
    """
    from bizrq.figures.changes.corrections import create_correction, parse_hours

    wanted = parse_hours(hours, catalog_of(None))
    if not reason.strip():
        raise Failure("--reason: must not be empty; it stays in the record", EXIT_BAD_INPUT)
    created = run_on(
        client_for(where), lambda client: create_correction(client, group, wanted, reason.strip(), dry_run=dry_run)
    )
    _print(created, wanted, output, dry_run)


def _print(created: dict[str, Any], hours: Mapping[str, str], output: CorrectOutput, dry_run: bool) -> None:
    from bizrq.api.group import API_GROUP

    if output in (CorrectOutput.JSON, CorrectOutput.YAML):
        print_document(created, OutputFormat(output.value))
        return
    name, spec = f"{created['kind'].lower()}.{API_GROUP}/{created['metadata'].get('name', '')}", created["spec"]
    if output is CorrectOutput.NAME:
        terminal.write(f"{name}\n")
        return
    amounts = ", ".join(f"{resource} {value}" for resource, value in hours.items())
    verb = "would be created" if dry_run else "created"
    terminal.write(f"{name} {verb}: {spec['group']} {amounts}, by {spec['by']}\n")
