"""Options that several verbs share, and the settings that they select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure

if TYPE_CHECKING:
    from bizrq.settings import Settings
    from bizrq.units.names import Catalog

Config = Annotated[Path | None, typer.Option(help="YAML file of the counting configuration; use the webhooks' file.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace for manifests that do not set one; by default the context's."),
]
SystemNamespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of bizrq itself.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the objects in order, and change nothing.")]


def settings_of(config: Path | None) -> Settings:
    """Return the settings of `--config`. Raise Failure."""
    from bizrq.api.config import ConfigurationError
    from bizrq.settings import load

    try:
        return load(config)
    except ConfigurationError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def catalog_of(config: Path | None) -> Catalog:
    """Return the resource names of `--config`, or the default ones without it. Raise Failure."""
    from bizrq.builtin import builtin_catalog

    return builtin_catalog() if config is None else settings_of(config).catalog
