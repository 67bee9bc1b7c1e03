"""docs/quickstart.md and docs/tutorial.md, command by command, on the sandbox and on a real API server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from bizrq.kube.client import KubeClient
from tests.docs.test_docs import ROOT, blocks, page
from tests.support.cluster import Cluster
from tests.support.oracle import settled

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("station"),
    pytest.mark.kubectl,
]


def steps(text: str) -> list[tuple[str, str]]:
    """Each command of the page's consoles with what it prints."""
    found: list[tuple[str, str]] = []
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


def as_pattern(printed: str) -> str:
    """What is printed, where "…" is anything, and a line of it alone any lines."""
    lines = [r"(?:.*\n)*?" if line == "…" else _line(line) for line in printed.splitlines()]
    return "".join(lines)


def _line(line: str) -> str:
    return ".*".join(re.escape(part.rstrip()) for part in line.split("…")) + r" *\n"


async def printed_by(command: str, environment: dict[str, str]) -> str:
    """What a command prints, errors too, run in the project's directory."""
    process = await asyncio.create_subprocess_shell(
        command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(90):
        return (await process.communicate())[0].decode()


@pytest.mark.parametrize("name", ["quickstart", "tutorial"])
async def test_the_page_says_what_happens(name: str, cluster: Cluster, client: KubeClient, tmp_path: Path) -> None:
    """In this order: the quickstart deletes what it makes."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(cluster.kubeconfig)}
    told = steps(page(f"docs/{name}.md"))
    assert len(told) >= 9
    for command, printed in told:
        answer = ""
        # What the controller counts is there a moment after the change.
        for _ in range(10 if command.startswith("bizrq ") else 1):
            answer = await printed_by(command, here)
            if re.fullmatch(as_pattern(printed), answer):
                break
            await settled(client, ["corp", "ai", "nlp", "vision"])
        else:
            pytest.fail(f"$ {command}\n{answer}")
