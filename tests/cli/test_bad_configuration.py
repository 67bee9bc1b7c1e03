"""A configuration that cannot be used ends each process, and `install`, with one line that names field and remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
COMMANDS = [
    ("bizrq", "install", "--image", "bizrq:1", "--dry-run"),
    ("bizrq", "up"),
    ("bizrq-webhooks", "--cert-dir", "."),
    ("bizrq-controller",),
]
TEXT = "managedNamespaces: {matchLabel: {a: b}}"
WORDS = "config.yaml: managedNamespaces: matchLabel: no such field: write matchLabels or matchExpressions"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_one_line_names_the_field_and_the_remedy(tmp_path: Path, command: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    done = subprocess.run(
        [BIN / command[0], *command[1:], "--config", config],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if "config.yaml" in line]
    assert line.endswith(WORDS)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
