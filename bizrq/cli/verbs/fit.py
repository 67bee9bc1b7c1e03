"""bizrq fit: check whether manifests would be admitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.manifests import Files, Recursive, read_objects
from bizrq.cli.options import Config, Namespace, settings_of
from bizrq.cli.output.failure import EXIT_NO, warn
from bizrq.cli.output.tables import OutputFormat, print_document

if TYPE_CHECKING:
    from bizrq.cli.simulate.outcome import DryRunOutcome


class FitOutput(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


TextOutput = Annotated[FitOutput, typer.Option("--output", "-o", help="Output format.")]


def fit(
    file: Files,
    recursive: Recursive = False,
    output: TextOutput = FitOutput.TEXT,
    namespace: Namespace = None,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Check whether these manifests would be admitted now, and show what is missing if not.

    Manifests are decided in file order, each after those before it, as admission decides them. Nothing is written.
    Exit code 0: everything fits; 1: something does not fit.
    """
    outcomes = run_dry_run(read_objects(file, recursive), namespace, config, where)
    if output is FitOutput.TEXT:
        show(outcomes)
    else:
        from bizrq.cli.simulate.wording import as_json

        print_document([as_json(outcome) for outcome in outcomes], OutputFormat(output.value))
    if not all(outcome.fits for outcome in outcomes):
        raise typer.Exit(EXIT_NO)


def run_dry_run(
    documents: Sequence[Any], namespace: str | None, config: Path | None, where: ClusterFlags
) -> list[DryRunOutcome]:
    """Run admission on the documents against the cluster, and warn of what cannot be read. Raise Failure.

    Without `config`, admission is run with the installed configuration where the user may read that.
    """
    given, client = settings_of(config), client_for(where)

    from bizrq.cli.simulate.dry_run import DryRun, read_groups
    from bizrq.cli.simulate.installed import installed_settings
    from bizrq.cli.simulate.manifest import in_namespace
    from bizrq.kube.client import KubeClient

    here = [in_namespace(document, namespace or client.namespace) for document in documents]

    async def work(client: KubeClient) -> list[DryRunOutcome]:
        groups = await read_groups(client)
        installed = given if config is not None else await installed_settings(client)
        dry_run = DryRun(client, installed or given, groups, here, is_configured=installed is not None)
        outcomes = await dry_run.outcomes()
        if dry_run.unread:
            warn_unread(dry_run.unread)
        return outcomes

    return run_on(client, work)


def warn_unread(unread: Iterable[str]) -> None:
    warn(f"you cannot read {', '.join(unread)}; the answer may be wrong")


def show(outcomes: list[DryRunOutcome]) -> None:
    """Print a line for each manifest, and below it why it does not fit."""
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.cli.simulate.wording import most_replicas, sentences

    console = terminal.console()
    if not outcomes:
        console.print("These files contain no group and no object of a charged kind.")
        return
    for outcome in outcomes:
        most = most_replicas(outcome)
        words = [f"{outcome.kind} {outcome.full_name}"]
        if outcome.group or outcome.is_chargeable:
            words.append(f"in {outcome.group}" if outcome.group else "charged to no group")
        if outcome.fits and most is not None:
            words.append(f"up to {most} {'replica' if most == 1 else 'replicas'}")
        answer = Text("fits ", "green") if outcome.fits else Text("no   ", "bold red")
        console.print(Text.assemble(answer, ", ".join(words)))
        terminal.print_sentences(console, [*(f"warning: {each}" for each in outcome.warnings), *sentences(outcome)], 5)
