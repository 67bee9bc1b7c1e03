"""Completion for kubectl, which runs `kubectl_complete-bizrq` for the plugin.

This file alone implements that protocol: `kubectl_complete-bizrq WORD…` prints one candidate a line and then
a directive of cobra ( https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys

#: Directives: the shell may offer files; the printed candidates are complete.
_FILES, _NO_FILES = 0, 4


def run() -> None:
    """Run the console script `kubectl_complete-bizrq`."""
    words = ["bizrq", *sys.argv[1:]]
    asked = {
        "_BIZRQ_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(word for word in words if word),
        "COMP_CWORD": str(len(words) - 1),
    }
    os.environ.update(asked)
    from bizrq.cli.main import app
    from bizrq.units.text import printable

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(prog_name="bizrq")
    found = [line for line in printable(printed.getvalue()).splitlines() if line]
    sys.stdout.write("".join(f"{line}\n" for line in [*found, f":{_NO_FILES if found else _FILES}"]))
