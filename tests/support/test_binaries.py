"""A set of programs that is broken or incomplete counts as missing, and one line names the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKS = "#!/bin/sh\necho Kubernetes v1.36.0\n"
#: The head of an ELF file for a machine of the architecture 0xffff, which nobody makes.
OTHER_ARCHITECTURE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\xff\x01\x00\x00\x00" + bytes(40)


def asked(assets: Path) -> tuple[int, str]:
    """Return exit code and stderr of what `make test-real` asks first."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.binaries"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(assets)},
    )
    return done.returncode, done.stderr


def put(assets: Path, name: str, content: str | bytes = WORKS, mode: int = 0o755) -> None:
    path = assets / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def test_a_whole_set_is_found(tmp_path: Path) -> None:
    put(tmp_path, "etcd")
    put(tmp_path, "kube-apiserver")
    assert asked(tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("name", "content", "mode", "reason"),
    [
        ("kube-apiserver", None, 0, "does not exist"),
        ("kube-apiserver", WORKS, 0o644, "is not executable"),
        ("kube-apiserver", OTHER_ARCHITECTURE, 0o755, "does not run: Exec format error"),
        ("kube-apiserver", "#!/nowhere/sh\n", 0o755, "does not run: No such file or directory"),
        ("kube-apiserver", "#!/bin/sh\nexit 3\n", 0o755, "does not run: exit code 3"),
        ("kube-controller-manager", WORKS, 0o644, "is not executable"),
    ],
    ids=["only etcd", "not executable", "another architecture", "no interpreter", "fails", "a broken third"],
)
def test_a_broken_set_is_named_on_one_line(
    tmp_path: Path, name: str, content: str | bytes | None, mode: int, reason: str
) -> None:
    put(tmp_path, "etcd")
    put(tmp_path, "kube-apiserver")
    (tmp_path / name).unlink(missing_ok=True)
    if content is not None:
        put(tmp_path, name, content, mode)
    code, said = asked(tmp_path)
    assert code == 2
    assert f"{tmp_path / name} {reason}" in said
    assert len(said.splitlines()) == 1


def test_a_run_without_them_says_what_it_left_out(tmp_path: Path) -> None:
    """One skipped test of each sort, in a run of its own, with one line that says how to run it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kube/test_on_clusters.py",
         "tests/cli/test_commands.py", "-k", "kubernetes or plugin"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path), "PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tests not run: ")]
    assert f"for want of a real API server ({tmp_path}/etcd does not exist; {tmp_path}/kube-apiserver does not" in line
    assert "run `make test-real`" in line
    assert "1 for want of kubectl (no kubectl on PATH" in line
