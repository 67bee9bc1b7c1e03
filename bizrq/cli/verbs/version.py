"""bizrq version: print the version."""

from __future__ import annotations


def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    import typer

    typer.echo(installed("bizrq"))
