"""Kubeconfigs in common forms, and the errors of wrong ones."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from bizrq.kube import config
from bizrq.kube.client import KubeClient, Resource, Unreachable
from bizrq.kube.config import ConfigError, Identity
from tests.support.fake_server import FakeServer


def write(path: Path, **changes: Any) -> Path:
    document = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "t0"}}],
        **changes,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def of_cluster(**fields: Any) -> dict[str, Any]:
    return {"clusters": [{"name": "c", "cluster": {"server": "https://x", **fields}}]}


def of_user(**fields: Any) -> dict[str, Any]:
    return {"users": [{"name": "u", "user": fields}]}


def in_context(**fields: Any) -> dict[str, Any]:
    return {"contexts": [{"name": "one", "context": fields}]}


async def test_null_is_as_good_as_absent(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("auth-provider", "exec", "tokenFile", "client-certificate"))
    changes = of_user(token="t1", **nothing) | of_cluster(**{"proxy-url": None, "insecure-skip-tls-verify": None})
    endpoint = config.from_kubeconfig(write(tmp_path / "config", **changes))
    assert await endpoint.credentials.identity() == Identity("Bearer t1")
    assert endpoint.verify


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF\xff", "is not text"),
        (b"a\nb", "has a control character"),
        (b"a" * (4 * 1024**2 + 1), "is larger than"),
    ],
)
async def test_a_token_file_has_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "token").write_bytes(content)
    credentials = config.from_kubeconfig(write(tmp_path / "config", **of_user(tokenFile="token"))).credentials
    with pytest.raises(ConfigError, match=rf"^tokenFile: .*/token {said}"):
        await credentials.identity()


@pytest.mark.parametrize("field", ["token", "impersonated", "groups"])
def test_a_flag_that_becomes_a_header_is_one_line(tmp_path: Path, field: str) -> None:
    given: dict[str, Any] = {"impersonated": "a", field: ("a\nb",) if field == "groups" else "a\nb"}
    with pytest.raises(ConfigError, match=r"^--(token|as|as-group) has a control character: write one line of text$"):
        config.from_kubeconfig(write(tmp_path / "config"), None, config.Overrides(**given))


async def test_a_token_and_a_server_are_read(tmp_path: Path) -> None:
    endpoint = config.from_kubeconfig(write(tmp_path / "config"))
    assert endpoint.server == "https://10.0.0.1:6443"
    assert await endpoint.credentials.identity() == Identity("Bearer t0")
    assert endpoint.verify


async def test_files_are_relative_to_the_kubeconfig_and_data_wins(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "u.crt").write_bytes(b"chain")
    (tmp_path / "pki" / "token").write_text("t1\n")
    key = base64.b64encode(b"key").decode()
    user = {
        "client-certificate": "pki/u.crt",
        "client-key-data": key,
        "client-key": "missing",
        "tokenFile": "pki/token",
    }
    path = write(tmp_path / "config", users=[{"name": "u", "user": user}])
    endpoint = config.from_kubeconfig(path)
    assert await endpoint.credentials.identity() == Identity("Bearer t1", (b"chain", b"key"))
    (tmp_path / "pki" / "token").write_text("t2\n")
    assert (await endpoint.credentials.identity()).authorization == "Bearer t1"
    assert (await endpoint.credentials.identity(rejected=True)).authorization == "Bearer t2"


async def test_basic_authentication_and_anonymous_users(tmp_path: Path) -> None:
    path = write(tmp_path / "config", users=[{"name": "u", "user": {"username": "a", "password": "b"}}])
    identity = await config.from_kubeconfig(path).credentials.identity()
    assert identity.authorization == "Basic YTpi"
    contexts = [{"name": "one", "context": {"cluster": "c"}}]
    path = write(tmp_path / "config", contexts=contexts, users=None)
    assert await config.from_kubeconfig(path).credentials.identity() == Identity()


def test_the_first_file_of_a_list_wins_and_missing_ones_are_skipped(tmp_path: Path) -> None:
    first = write(tmp_path / "a", clusters=[{"name": "c", "cluster": {"server": "https://first"}}])
    second = write(tmp_path / "b", **{"current-context": "other"})
    endpoint = config.from_kubeconfig(f"{tmp_path / 'none'}:{first}:{second}")
    assert endpoint.server == "https://first"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "two"}, "no context 'two'; known: one"),
        ({"clusters": []}, "names the cluster 'c', which is not there"),
        ({"users": []}, "names the user 'u', which is not there"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "needs a server like"),
        ({"clusters": [{"cluster": {}}]}, r"clusters\.0 has no name"),
        ({"clusters": [{"name": "c", "cluster": 7}]}, r"clusters\.0: cluster is of the wrong type: write a map"),
        ({"clusters": {}}, "clusters is of the wrong type: write a list"),
        ({"current-context": ["one"]}, "current-context is of the wrong type: write a text"),
        (in_context(cluster=[]), r"contexts\.0\.context: cluster is of the wrong type: write a text"),
        (in_context(cluster="c", user=[]), "user is of the wrong type: write a text"),
        (in_context(cluster="c", namespace=7), "namespace is of the wrong type: write a text"),
        (of_cluster(**{"tls-server-name": ["x"]}), "tls-server-name is of the wrong type: write a text"),
        (of_cluster(**{"tls-server-name": ".x"}), "tls-server-name: write a name of a host, not '.x'"),
        (of_cluster(**{"proxy-url": ["x"]}), "proxy-url is of the wrong type: write a text"),
        (of_cluster(**{"proxy-url": "x"}), "proxy-url needs an address like http://host:3128, not 'x'"),
        (of_cluster(**{"insecure-skip-tls-verify": "no"}), "is of the wrong type: write true or false"),
        (of_cluster(**{"certificate-authority": "\0"}), "certificate-authority has a control character"),
        (of_cluster(**{"certificate-authority": "/dev/zero"}), "/dev/zero is larger than 4 MiB"),
        (of_cluster(server="http://a..b"), r"needs a server like https://host:6443, not 'http://a\.\.b'"),
        (of_cluster(server=f"http://{'a' * 300}"), "needs a server like"),
        # With a token besides, no request could be made.
        (of_cluster(server="https://me:secret@x"), "cluster 'c': an address of a server has no user: write username"),
        (of_cluster(server="https://@x"), "cluster 'c': an address of a server has no user: write username"),
        (of_user(**{"auth-provider": 5}), "auth-provider is of the wrong type: write a map"),
        (of_user(tokenFile="a\0"), "tokenFile has a control character: write one line of text"),
        (of_user(token=7), r"users\.0\.user: token is of the wrong type: write a text"),
        (of_user(token="a\nb"), "token has a control character"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority": "nope.crt"}}]},
            "nope.crt cannot be read",
        ),
    ],
)
def test_an_invalid_kubeconfig_is_a_one_line_error(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        config.from_kubeconfig(write(tmp_path / "config", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError):
        config.from_kubeconfig(tmp_path / "config")
    with pytest.raises(ConfigError, match="no such file"):
        config.from_kubeconfig(tmp_path / "none")


def plugin(tmp_path: Path, script: str) -> Path:
    program = tmp_path / "bin" / "login"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    user = {"exec": {"apiVersion": version, "command": "./bin/login", "args": ["x"]}}
    return write(tmp_path / "config", users=[{"name": "u", "user": user}])


async def test_an_exec_plugin_is_asked_once_and_again_when_its_token_is_rejected(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "TOKEN", "expirationTimestamp": "2099-01-01T00:00:00Z"},
    }
    (tmp_path / "answer").write_text(json.dumps(answer))
    path = plugin(
        tmp_path,
        f"echo >> {tmp_path}/calls\nsed s/TOKEN/t$(wc -l < {tmp_path}/calls | tr -d ' ')/ {tmp_path}/answer",
    )
    credentials = config.from_kubeconfig(path).credentials
    assert (await credentials.identity()).authorization == "Bearer t1"
    assert (await credentials.identity()).authorization == "Bearer t1"
    assert (await credentials.identity(rejected=True)).authorization == "Bearer t2"


async def test_a_failing_plugin_is_a_one_line_error(tmp_path: Path, server: FakeServer) -> None:
    credentials = config.from_kubeconfig(plugin(tmp_path, "echo no login >&2; exit 3")).credentials
    with pytest.raises(ConfigError, match=r"credentials plugin failed: .*no login"):
        await credentials.identity()


def test_outside_a_cluster_the_service_account_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="not inside a cluster"):
        config.in_cluster()
    with pytest.raises(ConfigError, match="no cluster"):
        config.from_environment()


def test_a_user_without_a_name_has_no_home_and_no_kubeconfig_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a numeric user has no HOME."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="no cluster"):
        config.from_environment()


async def test_https_trusts_only_the_named_ca(tmp_path: Path) -> None:
    """Without a CA the system's roots are trusted. A failed handshake is no connection."""
    async with FakeServer() as server:
        url = server.url.replace("http://", "https://")
        path = write(tmp_path / "config", clusters=[{"name": "c", "cluster": {"server": url}}])
        async with KubeClient.from_kubeconfig(path) as client:
            with pytest.raises(Unreachable, match=r"https://127.0.0.1") as caught:
                await client.list(Resource("", "v1", "pods", "Pod"))
            assert not caught.value.sent
