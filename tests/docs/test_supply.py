"""What is built and started comes by digest and by hash, and no credential lies about."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import crds
from bizrq.kube.client import ApiError, KubeClient
from bizrq.store.groups import GROUPS
from tests.docs.test_docs import ROOT, page
from tests.support.accounts import store
from tests.support.binaries import kubectl
from tests.support.cluster import Real, has_kinds
from tests.support.objects import NAMESPACES

DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_every_image_is_named_with_a_digest_or_not_at_all() -> None:
    """The Dockerfile and compose take images from variables; what writes those has their tags."""
    froms = re.findall(r"^FROM (\S+)", page("Dockerfile"), re.MULTILINE)
    images = [
        service["image"]
        for service in yaml.safe_load(page("docker-compose.yml"))["services"].values()
        if "image" in service
    ]
    assert set(froms) == {"${PYTHON_IMAGE}"}
    assert set(images) == {"${K3S_IMAGE:?run make images, which writes .env}"}
    written = re.findall(r"^  pinned (\w+) (\S+:\S+)$", page("deploy/images.sh"), re.MULTILINE)
    assert [name for name, _ in written] == ["PYTHON_IMAGE", "K3S_IMAGE"]
    assert "PYTHON_IMAGE: ${PYTHON_IMAGE:?run make images, which writes .env}" in page("docker-compose.yml")


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (f"python:3.11-slim@{DIGEST}", 0),
        (f"mirror:5000/python@{DIGEST}", 0),
        ("python:3.11-slim", 1),
        ("", 1),
        ("python@sha256:", 1),
        (f"python@{DIGEST[:-1]}", 1),
        (f"python@{DIGEST}0", 1),
        (f"python@{DIGEST.upper()}", 1),
        (f"python@{DIGEST}:latest", 1),
    ],
)
def test_the_build_ends_without_a_digest(image: str, code: int) -> None:
    """The first step of the Dockerfile, run as Docker runs it."""
    first = re.search(r"^RUN (.*)$", page("Dockerfile"), re.MULTILINE)
    assert first is not None
    done = subprocess.run(
        ["sh", "-c", first[1]], env={"PYTHON_IMAGE": image, "PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (code, b"PYTHON_IMAGE has no digest: run make images\n" if code else b"")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (f"echo {DIGEST}", ""),
        ("echo latest", "no digest of docker.io/library/python:3.11-slim: latest"),
        ("echo", "no digest of docker.io/library/python:3.11-slim: "),
        ("echo no such image >&2; exit 1", "no such image"),
        (f'case "$*" in *k3s*) exit 1 ;; esac; echo {DIGEST}', ""),
    ],
)
def test_images_are_written_all_or_none(answers: str, said: str, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{answers}\n")
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", ROOT / "deploy/images.sh", tmp_path / ".env"], env=env, capture_output=True, text=True)
    assert done.stderr.strip() == said.strip()
    if done.returncode:
        assert not (tmp_path / ".env").exists()
        return
    assert (tmp_path / ".env").read_text() == (
        f"PYTHON_IMAGE=docker.io/library/python:3.11-slim@{DIGEST}\n"
        f"K3S_IMAGE=docker.io/rancher/k3s:v1.36.1-k3s1@{DIGEST}\n"
    )


def test_the_installer_is_checked_by_hash_wherever_it_is_installed() -> None:
    """Nothing else is installed by pip, and the version is the one that made this environment."""
    lines = page("deploy/uv.txt").replace("\\\n", "").splitlines()
    [line] = lines
    version, *hashes = line.split()
    assert len(hashes) >= 10, "each platform has its own wheel"
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
    uv = subprocess.run([Path(sys.executable).parent / "uv", "--version"], capture_output=True, text=True, check=True)
    assert version == f"uv=={uv.stdout.split()[1]}"
    for name in ("Makefile", "Dockerfile", ".ci/run"):
        installs = [line for line in page(name).splitlines() if "pip install" in line]
        assert all("--require-hashes" in line and "-r deploy/uv.txt" in line for line in installs), name
    assert "!deploy/uv.txt\n" in page(".dockerignore")


def test_the_lock_has_a_hash_of_every_file_and_the_build_backend() -> None:
    lock = tomllib.loads(page("uv.lock"))
    packages = {package["name"]: package for package in lock["package"]}
    for package in packages.values():
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert files or package["source"] == {"editable": "."}, package["name"]
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]) for file in files), package["name"]
    project = tomllib.loads(page("pyproject.toml"))
    for requirement in project["build-system"]["requires"]:
        assert requirement in project["dependency-groups"]["build"]
    for name in ("Makefile", "Dockerfile"):
        text = page(name)
        assert "--group build" in text
        assert "--no-build-isolation" in text


_KUBECTL = """#!/bin/sh
echo "$@" >>{log}
exec {kubectl} "$@"
"""


@pytest.mark.real
@pytest.mark.kubectl
async def test_kubeconfigs_of_compose_hold_one_account_and_show_no_token(real_cluster: Real, tmp_path: Path) -> None:
    """Modes, contents, what other users of the machine could see, and what the files are good for."""
    log, made = tmp_path / "arguments", tmp_path / "made"
    made.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("kubectl", _KUBECTL.format(log=log, kubectl=kubectl())),
        # Only root may give files away.
        ("chown", f'#!/bin/sh\necho chown "$@" >>{log}\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    person = tmp_path / "person"
    async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as client:
        await has_kinds(client, crds.load())
        await store(client, yaml.safe_load_all(page("deploy/rbac.yaml")))
        admin = yaml.safe_load(real_cluster.kubeconfig.read_text())
        server = admin["clusters"][0]["cluster"]["server"]
        done = subprocess.run(
            ["sh", ROOT / "deploy/kubeconfigs.sh", real_cluster.kubeconfig, server, made, person],
            env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()} == dict.fromkeys(
        ("webhooks", "controller", "certs"), 0o400
    )
    assert person.stat().st_mode & 0o777 == 0o600
    assert person.read_text() == real_cluster.kubeconfig.read_text()
    secret = admin["users"][0]["user"]["token"]
    arguments = log.read_text()
    script = Path(ROOT / "deploy/kubeconfigs.sh").stat()
    assert f"chown {script.st_uid}:{script.st_gid} {person}.new\n" in arguments
    for path in made.iterdir():
        assert f"chown 10001:10001 {path}.new\n" in arguments
        document = yaml.safe_load(path.read_text())
        assert secret not in path.read_text()
        token = document["users"][0]["user"]["token"]
        assert token not in arguments
        async with KubeClient.from_kubeconfig(path) as client:
            if path.name != "certs":
                assert isinstance((await client.list(GROUPS))[0], list)
            with pytest.raises(ApiError) as refused:
                await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}})
            assert refused.value.status == 403
            assert f"bizrq-system:bizrq-{path.name}" in refused.value.message
    assert secret not in arguments
