"""The command `bizrq`, and `kubectl bizrq`: one file per verb.

This file alone lists the verbs. Exit codes: 0 done or yes, 1 the answer is no, 2 bad usage or input, 3 the cluster is
unreachable or refused, 4 the answer is unknown. Verbs import heavy modules inside their functions, so that `--help` is
quick.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from pathlib import Path, PurePath
from typing import Annotated

import typer

from bizrq import command_line
from bizrq.cli.cluster import on_cluster, without_cluster
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, failed, warn
from bizrq.cli.output.terminal import is_ascii_locale
from bizrq.cli.verbs import (
    allow,
    audit,
    budget,
    completion,
    correct,
    describe,
    doctor,
    explain,
    fit,
    forecast,
    get,
    install,
    pause,
    report,
    status,
    tree,
    uninstall,
    up,
    usage,
    version,
    web,
)
from bizrq.figures.errors import NoAnswer

app = typer.Typer(
    name="bizrq",
    help="Hierarchical business-group quota for Kubernetes.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("up", short_help="Run bizrq in this process, on a sandbox or a real cluster.")(up.up)
app.command("status", short_help="Show whether quota is enforced and the counts are current.")(
    on_cluster(status.status)
)
app.command("tree", short_help="Show the tree of groups with ceilings and usage.")(on_cluster(tree.tree))
app.command("get", short_help="List groups with their scarcest resource.")(on_cluster(get.get))
app.command("describe", short_help="Show groups in detail: workloads, conditions, events.")(
    on_cluster(describe.describe)
)
app.command("report", short_help="Report ceilings and usage, or bills with --hours.")(on_cluster(report.report))
app.command("forecast", short_help="Predict when budgets of hours run out.")(on_cluster(forecast.forecast))
app.command("audit", short_help="Recompute bills and report mismatches.")(on_cluster(audit.audit))
app.command("create", short_help="Create a group.")(on_cluster(budget.create))
app.command("set", short_help="Change the ceilings of a group.")(on_cluster(budget.set_ceilings))
app.command("correct", short_help="Credit or debit a group's hours.")(on_cluster(correct.correct))
app.command("allow", short_help="Let somebody charge a group, or read it.")(on_cluster(allow.allow))
app.command("fit", short_help="Check whether manifests would be admitted now.")(on_cluster(fit.fit))
app.command("explain", short_help="Explain a refusal, the cost of a workload, or a budget.")(
    on_cluster(explain.explain)
)
app.command("web", short_help="Serve the web UI on 127.0.0.1.")(on_cluster(web.web))
app.command("usage", short_help="Count what manifests would be charged, without a cluster.")(
    without_cluster(usage.usage)
)
app.command("doctor", short_help="Diagnose the installation.")(on_cluster(doctor.doctor))
app.command("install", short_help="Install or update bizrq in a cluster.")(on_cluster(install.install))
app.command("uninstall", short_help="Remove bizrq from a cluster.")(on_cluster(uninstall.uninstall))
app.command("pause", short_help="Stop enforcing quota, even while no process runs.")(on_cluster(pause.pause))
app.command("resume", short_help="Enforce quota again after a pause.")(on_cluster(pause.resume))
app.command("completion", short_help="Print the completion script of a shell.")(completion.completion)
app.command("version", short_help="Print the version.")(version.version)


def _print_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@app.callback()
def bizrq(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del show


def program_name(called: str) -> str:
    """Return the name for help and usage: kubectl runs the plugin as kubectl-bizrq, people as kubectl bizrq."""
    name = PurePath(called).name
    return "kubectl bizrq" if name.startswith("kubectl-") else "bizrq"


@app.command("help", short_help="Show the help of a verb, or list all verbs.")
def help_(
    context: typer.Context,
    verb: Annotated[str | None, typer.Argument(help="Verb to explain; by default all are listed.")] = None,
) -> None:
    """Show the help of a verb, or list all verbs."""
    raise typer.Exit(command_line.run(app, [*([verb] if verb else []), "--help"], context.find_root().command_path))


for command in app.registered_commands:
    # typer keeps the line breaks of a docstring, and breaks its lines again for the terminal.
    paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


#: Why a file that was opened cannot be written.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run() -> None:
    """Run the console script."""
    # Who closes an output wants nothing of it.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale like C cannot encode every character: print a substitute instead of failing.
            plain = stream.isatty() and is_ascii_locale()
            stream.reconfigure(encoding="ascii" if plain else None, errors="replace")
    try:
        code = command_line.run(app, sys.argv[1:], program_name(sys.argv[0]))
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (*_FULL, errno.EPIPE):
            raise
        if error.errno == errno.EPIPE:
            code = command_line.NOBODY_READS
        else:
            warn(f"standard output: {error.strerror}")
            code = EXIT_BAD_INPUT
        # What is not written yet would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (Failure, NoAnswer) as error:
        failure = error if isinstance(error, Failure) else failed(error)
        warn(str(failure))
        code = failure.code
    sys.exit(code)
