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
from bizrq.cli.output.failure import EXIT_NO, EXIT_UNKNOWN, Failure, warn
from bizrq.cli.output.tables import OutputFormat, print_document
from bizrq.figures.words import few
from bizrq.units.text import counted

if TYPE_CHECKING:
    from bizrq.figures.simulate.outcome import DryRunOutcome
    from bizrq.kube.client import KubeClient


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
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail for warnings and for answers that are unknown, too.")
    ] = False,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Check whether these manifests would be admitted now, and show what is missing if not.

    Manifests are decided in file order, each after those before it, as admission decides them: groups and their
    workloads may be together. Nothing is written. Exit code 0: everything fits. 1: something does not fit. 4: nothing
    is known not to fit, but an answer depends on something that you may not read; its line says what. With --strict
    the code is 1 for that, too, and for a warning.
    """
    outcomes = run_dry_run(read_objects(file, recursive), namespace, config, where)
    if output is FitOutput.TEXT:
        show(outcomes)
    else:
        from bizrq.figures.simulate.wording import as_json

        print_document([as_json(outcome) for outcome in outcomes], OutputFormat(output.value))
    if not all(outcome.fits or outcome.is_unknown for outcome in outcomes):
        raise typer.Exit(EXIT_NO)
    if strict and (unsure := [outcome for outcome in outcomes if not outcome.is_sure]):
        named = few([f"{outcome.kind} {outcome.full_name}" for outcome in unsure])
        raise Failure(f"--strict: not sure of {named}: see above", EXIT_NO)
    end_unsure(outcomes)


def end_unsure(outcomes: Iterable[DryRunOutcome]) -> None:
    """End with the exit code for an unknown answer where one is."""
    found = list(outcomes)
    if any(outcome.undecided for outcome in found):
        warn("pass the configuration that bizrq runs with as --config")
    if any(outcome.is_unknown for outcome in found):
        raise typer.Exit(EXIT_UNKNOWN)


def run_dry_run(
    documents: Sequence[Any], namespace: str | None, config: Path | None, where: ClusterFlags
) -> list[DryRunOutcome]:
    """Run admission on the documents against the cluster. Raise Failure.

    Without `config`, admission is run with the installed configuration where the user may read that.
    """
    given, client = settings_of(config), client_for(where)

    from bizrq.cli.groups import read_any_groups
    from bizrq.figures.simulate import fit as simulated

    async def work(client: KubeClient) -> list[DryRunOutcome]:
        source = await read_any_groups(client, namespace)
        settings = given if config is not None else None
        fetch = None if source.is_complete else source.fetch
        here = namespace or client.namespace
        return await simulated.fit(client, source.groups, documents, here, settings, fetch=fetch)

    return run_on(client, work)


def show(outcomes: list[DryRunOutcome]) -> None:
    """Print a line for each manifest, and below it why it does not fit."""
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.simulate.wording import later_sentences, most_replicas, sentences, unknown_sentences

    console = terminal.console()
    if not outcomes:
        console.print("These files contain no group and no object of a charged kind.")
        return
    for outcome in outcomes:
        most = most_replicas(outcome)
        words = [f"{outcome.kind} {outcome.full_name}"]
        if outcome.group or (outcome.is_chargeable and not outcome.is_unknown):
            words.append(f"in {outcome.group}" if outcome.group else "charged to no group")
        if outcome.fits and most is not None:
            words.append(f"up to {counted(most, 'replica')}")
        if outcome.is_unknown:
            terminal.print_hanging(console, Text.assemble(("unknown ", "yellow"), ", ".join(words)), 8)
            terminal.print_sentences(console, unknown_sentences(outcome), 8)
            continue
        answer = Text("fits ", "green") if outcome.fits else Text("no   ", "bold red")
        terminal.print_hanging(console, Text.assemble(answer, ", ".join(words)), 5)
        warnings = [f"warning: {each}" for each in outcome.warnings]
        terminal.print_sentences(console, [*warnings, *sentences(outcome), *later_sentences(outcome)], 5)
