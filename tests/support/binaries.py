"""The programs that some tests need and this project does not install: kubectl, a browser, and a real API server's.

envtest's convention says where: `$KUBEBUILDER_ASSETS`, else /usr/local/kubebuilder/bin. kubectl may be on PATH as well.
A program that is there and cannot run here counts as missing, and the reason names its file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ASSETS = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
#: Without these there is no API server. kube-controller-manager may be absent: nothing acts on objects then.
REQUIRED = ("etcd", "kube-apiserver")
OPTIONAL = ("kube-controller-manager",)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def program(name: str) -> Path | None:
    """Return the file of a program in the assets that runs on this machine."""
    return None if defect(name) else ASSETS / name


def output(name: str, *arguments: str) -> str:
    """Return all that a program of the assets prints, whatever its exit code. It has to be there."""
    return _run(ASSETS / name, *arguments, check=False).strip()


@cache
def defect(name: str) -> str | None:
    """Return why a program of the assets cannot be used, in one line that names the file."""
    return _defect(ASSETS / name, "--version")


@cache
def why_not_real() -> str | None:
    """Return why no API server can be started here, None if one can."""
    there = [name for name in OPTIONAL if (ASSETS / name).exists()]
    found = [problem for name in (*REQUIRED, *there) if (problem := defect(name))]
    return "; ".join(found) or None


@cache
def real_version() -> str:
    """Return what kube-apiserver calls itself, for example `Kubernetes v1.36.2`. It has to be there."""
    return output("kube-apiserver", "--version")


@cache
def kubectl() -> Path | None:
    """Return the kubectl to use: that of PATH, else that of the assets."""
    found = shutil.which("kubectl")
    return Path(found) if found else (ASSETS / "kubectl" if (ASSETS / "kubectl").exists() else None)


@cache
def why_no_kubectl() -> str | None:
    """Return why kubectl cannot be used, None if it can."""
    path = kubectl()
    return f"no kubectl on PATH or in {ASSETS}" if path is None else _defect(path, "version", "--client")


@cache
def browser() -> Path | None:
    """Return the browser to use: a Chromium or Chrome of PATH."""
    return next((Path(found) for name in BROWSERS if (found := shutil.which(name))), None)


@cache
def why_no_browser() -> str | None:
    """Return why no browser can be used, None if one can."""
    path = browser()
    return f"none of {', '.join(BROWSERS)} on PATH" if path is None else _defect(path, "--version")


def why_no_driver(package: str) -> str | None:
    """Return why a package that drives a browser cannot be used, None if it can or is not needed."""
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else None


def _defect(path: Path, *arguments: str) -> str | None:
    if not path.exists():
        return f"{path} does not exist"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable"
    try:
        _run(path, *arguments, check=True)
    except subprocess.CalledProcessError as error:
        return f"{path} does not run: exit code {error.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer within 60 s"
        return f"{path} does not run: {reason}"
    return None


def _run(path: Path, *arguments: str, check: bool) -> str:
    done = subprocess.run([path, *arguments], capture_output=True, text=True, errors="replace", check=check, timeout=60)
    return done.stdout + done.stderr


def main() -> int:
    """Say on one line what is missing for a real API server. The exit code is 2 then."""
    why = why_not_real()
    if why:
        sys.stderr.write(f"no real API server here: {why} (KUBEBUILDER_ASSETS says where to look)\n")
    return 2 if why else 0


if __name__ == "__main__":
    sys.exit(main())
