"""Options that several verbs have, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure

if TYPE_CHECKING:
    from bizrq.settings import Settings
    from bizrq.units.names import Catalog

Config = Annotated[
    Path | None, typer.Option(help="One YAML document: how workloads are counted. The one that the webhooks have.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Of what names none; by default the context's.")
]


def settings_of(config: Path | None) -> Settings:
    """The settings of `--config`; raises Failure."""
    from bizrq.api.config import ConfigurationError
    from bizrq.settings import load

    try:
        return load(config)
    except ConfigurationError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def catalog_of(config: Path | None) -> Catalog:
    """Return the resource names that `--config`, or the defaults without one, make known; raises Failure."""
    from bizrq.builtin import builtin_catalog

    return builtin_catalog() if config is None else settings_of(config).catalog
