"""How long the command line takes to begin."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import Spread

BIZRQ = str(Path(sys.executable).parent / "bizrq")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def command_line() -> list[str]:
    """B10: whole processes, the one bare number."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        nowhere = Path(folder, "kubeconfig")
        nowhere.write_text(
            '{"clusters": [{"name": "n", "cluster": {"server": "http://127.0.0.1:1"}}], "contexts": '
            '[{"name": "n", "context": {"cluster": "n", "user": "n"}}], "users": [{"name": "n", "user": {}}], '
            '"current-context": "n"}'
        )
        for what, arguments, code in (
            ("--help", ["--help"], 0),
            ("version", ["version"], 0),
            ("usage", ["usage", "-f", str(EXAMPLES / "deployment.yaml")], 0),
            ("tree", ["tree", "--kubeconfig", str(nowhere)], 3),
            ("fit", ["fit", "-f", str(EXAMPLES / "deployment.yaml"), "--kubeconfig", str(nowhere)], 3),
        ):
            seconds = []
            for _ in range(7):
                began = time.perf_counter()
                done = subprocess.run([sys.executable, BIZRQ, *arguments], capture_output=True, check=False)
                seconds.append(time.perf_counter() - began)
                assert done.returncode == code, done.stderr
            until = ", up to its first request" if code else ""
            rows.append(f"| B10 | `bizrq {what}`{until}, seconds | {Spread(seconds[1:])} |")
    return rows
