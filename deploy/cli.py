"""Print docs/cli.md, the help of every command of bizrq.

`python deploy/cli.py > docs/cli.md` writes the page; a test compares them.
"""

from __future__ import annotations

import sys

import typer
from typer.testing import CliRunner

from bizrq.cli.main import app

HEAD = """\
# The command line

`python deploy/cli.py` generates this page from the program. With `kubectl-bizrq` on `PATH`, `kubectl bizrq tree`
is `bizrq tree`, and so on. Results go to stdout, everything else to stderr. Only terminals get colours and bars;
`NO_COLOR` turns the colours off. Exit codes:

| code | meaning |
|---|---|
| 0 | done, or the answer is yes |
| 1 | the answer is no |
| 2 | bad usage or input |
| 3 | the cluster is unreachable or refused the request |
| 4 | unknown: the answer depends on something that you may not read; stderr names it |

Verbs that use a cluster take `--context` and `--kubeconfig`, by default `$KUBECONFIG` or `~/.kube/config`. They also
accept kubectl's global flags `--cluster`, `--user`, `--server`, `--token`, `--insecure-skip-tls-verify`, `--as`,
`--as-group` and `--request-timeout`, which their help does not list; and `-n`, although groups have no namespace.

## Completion

`bizrq --install-completion` installs completion for the current shell (bash, zsh), and `bizrq --show-completion` prints
it. For `kubectl bizrq`, kubectl 1.26 and newer runs `kubectl_complete-bizrq`, which is installed with bizrq.
"""


def page() -> str:
    """Return the page as Markdown."""
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
