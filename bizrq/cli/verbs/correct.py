"""bizrq correct: credit or debit a group's hours, with the user and the reason in the record."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on, whoami
from bizrq.cli.completion import group_names
from bizrq.cli.options import catalog_of
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure
from bizrq.cli.output.tables import OutputFormat, print_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bizrq.kube.client import KubeClient
    from bizrq.units.names import Catalog


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
    wanted = _amounts(hours, catalog_of(None))
    if not reason.strip():
        raise Failure("--reason: must not be empty; it stays in the record", EXIT_BAD_INPUT)
    created = run_on(client_for(where), lambda client: _create(client, group, wanted, reason.strip(), dry_run))
    _print(created, wanted, output, dry_run)


async def _create(
    client: KubeClient, group: str, hours: Mapping[str, str], reason: str, dry_run: bool
) -> dict[str, Any]:
    """Create the correction in the user's own name, and return it. Raise Failure, ApiError or Unreachable."""
    from bizrq.api.group import API_VERSION
    from bizrq.kube.client import Forbidden
    from bizrq.store.hours import CORRECTIONS

    correction = {
        "apiVersion": API_VERSION,
        "kind": CORRECTIONS.kind,
        "metadata": {"generateName": f"{group}-"},
        "spec": {"group": group, "hours": dict(hours), "reason": reason, "by": await whoami(client)},
    }
    try:
        return await client.create(CORRECTIONS, correction, dry_run=dry_run)
    except Forbidden as error:
        if error.details.get("kind") != CORRECTIONS.plural:
            raise
        message = f"{error.message}: correcting hours requires the verb create on {CORRECTIONS.key}"
        raise Failure(message, EXIT_CLUSTER) from None


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


def _amounts(words: Sequence[str], catalog: Catalog) -> dict[str, str]:
    """Return the given hours by the canonical name of the resource. Raise Failure."""
    from bizrq.units import quantity
    from bizrq.units.names import UnknownResource, cash_name, metered_resource, normalize

    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise Failure(f"{word}: expected RESOURCE=HOURS, for example requests.nvidia.com/gpu=-12.5", EXIT_BAD_INPUT)
        try:
            resource = metered_resource(normalize(cash_name(metered_resource(name)), catalog))
            amount = quantity.parse(value)
        except (UnknownResource, quantity.QuantityError) as error:
            raise Failure(f"{word}: {error}", EXIT_BAD_INPUT) from None
        if not amount:
            raise Failure(f"{word}: the amount must not be 0", EXIT_BAD_INPUT)
        if resource in found:
            raise Failure(f"{word}: {resource} is given twice", EXIT_BAD_INPUT)
        found[resource] = value.removeprefix("+")
    return found
