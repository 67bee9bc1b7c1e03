"""Long output of a terminal goes through $PAGER, and nothing else does. Runs the program on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Bizrq
from tests.cli.test_commands import BIN

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TREE = 17


async def on_a_terminal(bizrq: Bizrq, line: str, lines: int, **environment: str) -> tuple[int, str]:
    """Return exit code and output on a terminal of so many lines."""
    if shutil.which("script") is None:
        pytest.skip("no script(1) on PATH")
    kept = {key: value for key, value in os.environ.items() if key not in ("LINES", "COLUMNS", "PAGER", "LESS")}
    here = {**kept, "KUBECONFIG": str(bizrq.kubeconfig), "TERM": "xterm-256color", "NO_COLOR": "1", **environment}
    command = f"stty cols 80 rows {lines}; {shlex.quote(str(BIN))}/{line}"
    done = await asyncio.to_thread(
        subprocess.run,
        ["script", "-qec", command, "/dev/null"],
        capture_output=True,
        text=True,
        env=here,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return done.returncode, done.stdout.replace("\r\n", "\n")


@pytest.fixture
def pager(tmp_path: Path) -> str:
    """A pager that says so, and numbers what it gets."""
    program = tmp_path / "a pager"
    program.write_text('#!/bin/sh\necho "paged: $1 $LESS"\nexec cat -n\n')
    program.chmod(0o755)
    return f"{shlex.quote(str(program))} -x"


async def test_what_is_longer_than_the_terminal_is_paged(bizrq: Bizrq, pager: str) -> None:
    code, out = await on_a_terminal(bizrq, "bizrq tree", 10, PAGER=pager)
    head, *lines = out.splitlines()
    assert (code, head) == (0, "paged: -x FRX")
    assert lines[0].split()[:3] == ["1", "GROUP", "RESOURCE"]
    assert len(lines) > _TREE
    assert (await on_a_terminal(bizrq, "bizrq tree", 10, PAGER=pager, LESS="S"))[1].startswith("paged: -x S\n")


@pytest.mark.parametrize(
    ("line", "lines", "environment"),
    [
        ("bizrq tree", 60, {}),
        ("bizrq tree", 10, {"PAGER": ""}),
        ("bizrq tree", 10, {"TERM": "dumb"}),
        ("bizrq tree", 10, {"PAGER": "/no/such/pager"}),
        ("bizrq tree -o json", 10, {}),
        ("bizrq tree | cat", 10, {}),
    ],
)
async def test_nothing_else_is_paged(
    bizrq: Bizrq, pager: str, line: str, lines: int, environment: dict[str, str]
) -> None:
    code, out = await on_a_terminal(bizrq, line, lines, **{"PAGER": pager, **environment})
    assert (code, "paged" in out, "limits.cpu" in out) == (0, False, True), out


async def test_who_quits_the_pager_early_has_seen_enough(bizrq: Bizrq) -> None:
    code, out = await on_a_terminal(bizrq, "bizrq tree", 10, PAGER="true")
    assert (code, out) == (0, "")
