"""The libraries of bizrq[sandbox] are for the sandbox alone: everything else works without them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What the extra brings, and what an evaluator of CEL was made of before.
REFUSED = ("cel_expr_python", "celpy", "lark", "re2")

PROGRAM = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {REFUSED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""
BIZRQ = "from bizrq.cli.main import run; sys.argv[0] = 'bizrq'; run()"


def python(code: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + code, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_sandbox_cannot_be_imported_without_its_extra() -> None:
    ended = python("import sandbox.server")
    assert "No module named 'cel_expr_python'" in ended.stderr


@pytest.mark.parametrize("module", ["webhooks.main", "controller.main", "certs.main", "bizrq.cli.standalone"])
def test_the_processes_do_without_it(module: str) -> None:
    ended = python(f"import {module}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_line_does_without_it() -> None:
    ended = python(BIZRQ, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage: bizrq" in ended.stdout


def test_bizrq_up_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    ended = python(BIZRQ, "up", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert line.endswith(
        "the sandbox needs libraries that are not installed: pip install 'bizrq[sandbox]', "
        "or name a cluster with --kubeconfig"
    )


def test_only_the_extra_names_its_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.split(r"[<>=]", name)[0] for name in project["optional-dependencies"]["sandbox"]] == ["cel-expr-python"]
    named = {re.split(r"[<>=;\[ ]", name)[0] for name in project["dependencies"]}
    assert not named & {"cel-expr-python", "cel-python", "lark", "google-re2"}
