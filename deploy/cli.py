"""Print docs/cli.md: every command of bizrq as the program itself describes it.

`python deploy/cli.py > docs/cli.md` wrote the page; a test compares.
"""

from __future__ import annotations

import sys

import typer
from typer.testing import CliRunner

from bizrq.cli.main import app

HEAD = """\
# The command line

Written by `python deploy/cli.py` from the program itself. `kubectl bizrq tree` is `bizrq tree`, and so on, once
`kubectl-bizrq` is on `PATH`. Results are on stdout, everything else on stderr. Colours and bars are for terminals only;
`NO_COLOR` takes the colours away. Exit codes:

| code | means |
|---|---|
| 0 | done, or yes |
| 1 | the answer is no |
| 2 | bad usage or input |
| 3 | the cluster cannot be reached, or refused |

Verbs that ask a cluster take `--kubeconfig`, else `$KUBECONFIG`, else `~/.kube/config`, and `--context`. Like kubectl's
verbs they also take, without saying so in their help, `--cluster`, `--user`, `--server`, `--token`,
`--insecure-skip-tls-verify`, `--as`, `--as-group` and `--request-timeout`; and `-n`, though groups have no namespace.

## Completion

`bizrq --install-completion` sets it up for the shell that it is run in (bash, zsh); `bizrq --show-completion` prints
it. For `kubectl bizrq` kubectl 1.26 and newer asks the program `kubectl_complete-bizrq`, which is installed beside.
"""


def page() -> str:
    """The page as Markdown."""
    plain = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=app.info.context_settings)
    for command in app.registered_commands:
        plain.command(command.name)(command.callback)  # type: ignore[type-var]
    found = [HEAD]
    for command in app.registered_commands:
        answer = CliRunner().invoke(plain, [command.name or "", "--help"], prog_name="bizrq", terminal_width=100)
        found.append(f"## {command.name}\n\n```text\n{answer.output.strip()}\n```\n")
    return "\n".join(found)


if __name__ == "__main__":
    sys.stdout.write(page())
