"""The verbs that read, on a tree of 200 groups and 6 levels: what every width, NO_COLOR and ASCII show.

The first lines of each screen are in `screens/`; BIZRQ_WRITE_SCREENS=1 writes them anew, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.support.cluster import has_kinds
from tests.support.objects import group, named
from tests.support.records import W2, W3, record, spent, stored

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Children of a group, by its level: 1 + 3 + 9 + 27 + 54 + 106 groups.
_CHILDREN = (3, 3, 3, 2, 2)
GROUP_COUNT, LEVELS = 200, 6
_SCREENS = Path(__file__).parent / "screens"
#: The lines of a screen that are kept.
_LINES = 24
VERBS = (
    *("tree", "tree -o wide", "tree --depth 3 --sort percent", "get", "get -o wide", "report", "report -o wide"),
    *("report --hours", "forecast", "forecast -o wide", "audit", "explain platform-a-b-c-a-b", "describe platform-a-b"),
    "help",
    "set platform-a-b limits.cpu=+5 limits.memory=-1Gi --dry-run",
)


def tree() -> list[tuple[str, str]]:
    """Return names with their parents, each parent first."""
    found, level = [("platform", "")], ["platform"]
    for children in _CHILDREN:
        level = [f"{parent}-{letter}" for parent in level for letter in "abc"[:children]]
        found += [(name, name.rpartition("-")[0]) for name in level]
    return found[:GROUP_COUNT]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    path = tmp_path_factory.mktemp("screens") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, [*crds.load(), *crds.stand_ins()])
        for number, (name, parent) in enumerate(tree()):
            made = await client.create(
                GROUPS, group(name, parent or None, cpu="1200", gpu="16", hours="1k", **{"limits.memory": "64Gi"})
            )
            used = {"cpu": f"{number * 7}", "limits.memory": f"{number % 64}Gi", "gpu": f"{number % 17}", "hours": "12"}
            made["status"] = {"used": named(used), "selfUsed": named(used), "lastReconcileTime": W2}
            await client.replace(GROUPS, made, subresource="status")
        line = spent("deployments.apps/team-with-a-long-name/inference-of-a-large-model", "gpu=12")
        await stored(client, record("platform-a-b", {"open": {"start": W2, "end": W3, "settled": [line]}}))
        yield Bizrq(path, client)


async def test_the_tree_has_200_groups_and_6_levels() -> None:
    names = [name for name, _ in tree()]
    assert (len(names), max(name.count("-") for name in names) + 1) == (GROUP_COUNT, LEVELS)


@pytest.mark.parametrize(
    ("verb", "width", "variant"),
    [
        *((verb, width, "") for verb in VERBS for width in (60, 80, 120)),
        *((verb, 80, variant) for verb in VERBS for variant in ("no-color", "ascii")),
    ],
)
async def test_a_screen_has_no_broken_line_and_no_dash_for_a_zero(
    bizrq: Bizrq, verb: str, width: int, variant: str
) -> None:
    environment = {"NO_COLOR": "1"} if variant == "no-color" else {}
    result = await bizrq(*verb.split(), width=width, encoding="ascii" if variant == "ascii" else "utf-8", **environment)
    assert result.code == 0, result.err
    lines = result.ageless.splitlines()
    # Only a command to copy may be longer.
    assert [line for line in lines if len(line) > width and "kubectl patch" not in line] == []
    assert not [line for line in lines if re.search(r"(^| )-( |$)", line)]
    if verb in ("tree", "get"):
        assert {word for line in lines for word in line.split()} >= {name for name, _ in tree()}
    assert (variant, "\x1b[3" in result.out) != ("no-color", True)
    assert (variant, result.out.isascii()) != ("ascii", False)
    text = "\n".join(lines[:_LINES]) + "\n"
    file = _SCREENS / f"{re.sub('[^a-z0-9]+', '-', verb.lower())}-{width}{f'-{variant}' if variant else ''}.txt"
    if os.environ.get("BIZRQ_WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    # Ages are of different lengths.
    assert re.sub(" +", " ", text) == re.sub(" +", " ", file.read_text("utf-8"))
