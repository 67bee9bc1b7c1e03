"""Completion: names of groups for every shell, and what kubectl asks of a plugin.

This file alone speaks kubectl's protocol for that: `kubectl_complete-bizrq WORD…` prints one candidate a line and then
a directive (cobra's; https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys

#: Nothing of ours fits: the shell may offer files. And: what is printed is all there is.
_FILES, _NO_FILES = 0, 4
#: Seconds that somebody who presses Tab waits for a cluster.
_PATIENCE = 2.0


def group_names(incomplete: str) -> list[str]:
    """The groups of the cluster that begin so; none where it cannot be asked, since nobody asked for an error."""
    from bizrq.cli.cluster import HERE, ask, client_for
    from bizrq.cli.output.failure import Failure
    from bizrq.kube.client import KubeClient
    from bizrq.store.groups import GROUPS

    async def work(client: KubeClient) -> list[str]:
        items, _ = await client.list(GROUPS, timeout=_PATIENCE)
        return [item["metadata"]["name"] for item in items]

    try:
        return [name for name in ask(client_for(HERE), work) if name.startswith(incomplete)]
    except Failure:
        return []


def run() -> None:
    """The console script `kubectl_complete-bizrq`."""
    words = ["bizrq", *sys.argv[1:]]
    asked = {
        "_BIZRQ_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(word for word in words if word),
        "COMP_CWORD": str(len(words) - 1),
    }
    os.environ.update(asked)
    from bizrq.cli.main import app

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        app(prog_name="bizrq")
    found = [line for line in told.getvalue().splitlines() if line]
    sys.stdout.write("".join(f"{line}\n" for line in [*found, f":{_NO_FILES if found else _FILES}"]))
