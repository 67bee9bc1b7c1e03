"""`bizrq-web` as a program: its options, its certificate, and what it says of bad ones."""

from __future__ import annotations

import asyncio
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.fernet import Fernet

from bizrq.kube.config import ConfigError
from certs.pki import make_ca, make_serving
from tests.support.cluster import eventually, write_kubeconfig
from tests.web.conftest import World
from web.main import _address, _origin, serve

WEB = Path(sys.executable).with_name("bizrq-web")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://quota.corp", "https://quota.corp"),
        ("https://Quota.corp:443/", "https://quota.corp"),
        ("https://quota.corp:8443", "https://quota.corp:8443"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_the_public_address_is_an_origin(url: str, origin: str):
    assert _origin(url) == origin


@pytest.mark.parametrize(
    "url", ["", "quota.corp", "http://quota.corp", "https://", "https://a/b", "https://u@a", "https://a:x", "ftp://a"]
)
def test_a_public_address_that_is_none_is_refused(url: str):
    with pytest.raises(ConfigError, match="--public-url"):
        _origin(url)


def test_the_address_to_listen_on():
    assert _address("[::]:8444") == ("::", 8444)
    assert _address("127.0.0.1:0") == ("127.0.0.1", 0)
    for wrong in ("8444", ":8444", "a:b", "a:70000", ""):
        with pytest.raises(ConfigError, match="--listen"):
            _address(wrong)


async def test_it_serves_over_tls_and_says_when_it_is_ready(world: World, tmp_path: Path):
    ca = make_ca(datetime.now(UTC))
    serving = make_serving(ca, ["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "tls.crt").write_bytes(serving.certificate_pem)
    (tmp_path / "tls.key").write_bytes(serving.key_pem)
    process = await asyncio.create_subprocess_exec(
        WEB,
        *("--public-url", "https://127.0.0.1", "--listen", "127.0.0.1:0", "--keys", str(world.keys)),
        *("--cert-dir", str(tmp_path), "--kubeconfig", str(tmp_path / "admin"), "--metrics-port", "0"),
        *("--drain-delay", "0", "--log-format", "json"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    while '"event": "serving", ' not in said and '"event": "serving"}' not in said:
        line = (await process.stderr.readline()).decode()
        assert line, said
        said += line
    port = int(said.split('"port": ')[1].split(",")[0].rstrip("}\n"))
    trust = ssl.create_default_context(cadata=ca.certificate_pem.decode())
    async with aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session:

        async def ready() -> bool:
            async with session.get("/readyz", ssl=trust) as answer:
                return answer.status == 200

        await eventually(ready)
        async with session.get("/", ssl=trust) as answer:
            assert answer.status == 401
            assert answer.headers["Strict-Transport-Security"]
            assert "__Host-bizrq-browser=" in answer.headers["Set-Cookie"]
            assert "Secure" in answer.headers["Set-Cookie"]
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"public_url": "quota"}, "--public-url"),
        ({"listen": "8444"}, "--listen"),
        ({"keys": Path("/nowhere")}, "/nowhere/current: there is no such file"),
        ({"trusted_proxy": ["10.0.0.0/99"]}, "10.0.0.0/99"),
        ({"oidc_issuer": "https://login.corp"}, "--oidc-issuer needs --oidc-client-id"),
        (
            {"oidc_issuer": "http://login.corp", "oidc_client_id": "x"},
            "'http://login.corp': secrets and tokens need https",
        ),
        ({"oidc_issuer": "login.corp", "oidc_client_id": "x"}, "'login.corp' is no address of a provider"),
        ({"oidc_issuer": "https://a:x", "oidc_client_id": "x"}, "'https://a:x' is no address of a provider"),
        ({"oidc_issuer": "https://[", "oidc_client_id": "x"}, "'https://[' is no address of a provider"),
        ({"kubeconfig": Path("/nowhere")}, "/nowhere: there is no such file"),
        ({"oidc_issuer": "https://login.corp", "oidc_client_id": "x", "oidc_ca": Path("/nowhere")}, "/nowhere"),
    ],
)
def test_a_bad_option_ends_the_start_with_one_line(tmp_path, capsys, monkeypatch, options: dict[str, Any], why: str):
    monkeypatch.setattr("bizrq.process.configure_logging", lambda *_: None)
    (tmp_path / "current").write_bytes(Fernet.generate_key())
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", {"server": "https://127.0.0.1:6443"}, "token")
    given = {"public_url": "https://quota.corp", "keys": tmp_path, "kubeconfig": kubeconfig}
    with pytest.raises(SystemExit) as ended:
        serve(**{**given, **options})
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("bizrq-web: ")
    assert why in lines[0]
