"""The pages with consoles, command by command, on the sandbox and on a real API server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS as STORED
from tests.docs.test_docs import ROOT, blocks, page
from tests.support.cluster import Cluster, eventually
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


#: Pages that begin with nothing and use the examples, as their readers do in the project's directory. What the
#: quickstart makes it deletes.
FROM_NOTHING = ("quickstart", "tutorial")
#: Pages whose readers have groups and a workload, and files of their own.
LATER = ("for-engineers", "for-leads")
GROUPS = ("corp", "ai", "nlp", "vision")


async def printed_by(command: str, environment: dict[str, str], folder: Path = ROOT) -> str:
    """What a command prints, errors too, run in this folder."""
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(90):
        return (await process.communicate())[0].decode()


async def follow(name: str, client: KubeClient, environment: dict[str, str], folder: Path) -> None:
    """Run the commands of a page; fail where one prints something else than the page says."""
    told = steps(page(f"docs/{name}.md"))
    assert len(told) >= 3
    for command, printed in told:
        answer = ""
        # What the controller counts is there a moment after the change.
        for _ in range(10 if command.startswith("bizrq ") else 1):
            answer = await printed_by(command, environment, folder)
            if re.fullmatch(as_pattern(printed), answer):
                break
            await settled(client, list(GROUPS))
        else:
            pytest.fail(f"$ {command}\n{answer}")


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(cluster.kubeconfig)}


@pytest.mark.parametrize("name", LATER)
async def test_the_page_of_a_reader_says_what_happens(
    name: str, client: KubeClient, environment: dict[str, str], tmp_path: Path
) -> None:
    """The tree and the Deployment of the examples are there before, and go afterwards."""
    (tmp_path / "chat.yaml").write_text(page("examples/deployment.yaml").replace("replicas: 4", "replicas: 6"))
    (tmp_path / "speech.yaml").write_text(next(iter(blocks(page(f"docs/{name}.md"), "yaml")), ""))
    await printed_by("kubectl apply -f examples/tree.yaml", environment)
    ready = " ".join(f"bizrq/{group}" for group in GROUPS)
    await printed_by(f"kubectl wait --for=condition=Ready {ready} --timeout=60s", environment)
    await printed_by("kubectl apply -f examples/deployment.yaml", environment)
    await settled(client, list(GROUPS))
    await follow(name, client, environment, tmp_path)
    await printed_by("kubectl delete deployment chat", environment)

    async def gone() -> bool:
        # A group whose pods are ending is not deleted yet.
        for groups in ("speech nlp vision", "ai", "corp"):
            await printed_by(f"kubectl delete bizrq {groups} --ignore-not-found --timeout=60s", environment)
        return not any(found["metadata"]["name"] in GROUPS for found in (await client.list(STORED))[0])

    await eventually(gone, 60, "the tree goes")


@pytest.mark.parametrize("name", FROM_NOTHING)
async def test_the_page_says_what_happens(name: str, client: KubeClient, environment: dict[str, str]) -> None:
    await follow(name, client, environment, ROOT)
