"""TLS to the API server by kubeconfig: the trusted CA, the server's name, and the client certificate."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bizrq.kube.client import KubeClient, Resource, Unreachable
from certs import pki

NOW = datetime.now(UTC)
CA = pki.make_ca(NOW)
OTHER = pki.make_ca(NOW)
PODS = Resource("", "v1", "pods", "Pod")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the URL of a server named kubernetes.default.svc that returns the subject of the client certificate."""
    serving = pki.make_serving(CA, ["kubernetes.default.svc"], NOW)
    (tmp_path / "crt").write_bytes(serving.certificate_pem)
    (tmp_path / "key").write_bytes(serving.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    context.load_verify_locations(cadata=CA.certificate_pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        shown = request.transport.get_extra_info("peercert") or {}
        names = [value for entry in shown.get("subject", ()) for _, value in entry]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [{"names": names}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def client(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> KubeClient:
    path = tmp_path / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return KubeClient.from_kubeconfig(path)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def trusting(url: str, authority: pki.Pair, **more: Any) -> dict[str, Any]:
    return {"server": url, "certificate-authority-data": encoded(authority.certificate_pem), **more}


async def test_a_server_is_trusted_by_the_named_ca_and_its_name(url: str, tmp_path: Path) -> None:
    async with client(tmp_path, trusting(url, CA, **{"tls-server-name": "kubernetes.default.svc"})) as kube:
        assert (await kube.list(PODS))[1] == "1"


@pytest.mark.parametrize(
    ("authority", "name"),
    [(OTHER, "kubernetes.default.svc"), (CA, "kubernetes.elsewhere.svc"), (CA, None)],
)
async def test_another_ca_or_name_is_no_connection(
    url: str, tmp_path: Path, authority: pki.Pair, name: str | None
) -> None:
    more = {"tls-server-name": name} if name else {}
    async with client(tmp_path, trusting(url, authority, **more)) as kube:
        with pytest.raises(Unreachable, match=f"{url}: TLS: .*certificate") as caught:
            await kube.list(PODS)
        assert not caught.value.sent


async def test_verification_is_skipped_only_if_the_kubeconfig_says_so(url: str, tmp_path: Path) -> None:
    async with client(tmp_path, {"server": url, "insecure-skip-tls-verify": True}) as kube:
        assert (await kube.list(PODS))[1] == "1"


async def test_a_client_certificate_is_sent_and_leaves_no_file_behind(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    key = ec.generate_private_key(ec.SECP256R1())
    ours = pki.Pair(
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controller")]))
        .issuer_name(CA.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - pki.SKEW)
        .not_valid_after(NOW + pki.SKEW)
        .sign(CA.key, hashes.SHA256()),
        key,
    )
    user = {
        "client-certificate-data": encoded(ours.certificate_pem),
        "client-key-data": encoded(ours.key_pem),
    }
    skip = {"server": url, "insecure-skip-tls-verify": True}
    async with client(tmp_path, skip, user) as kube:
        items, _ = await kube.list(PODS)
        assert items[0]["names"] == ["controller"]
    assert list(place.iterdir()) == []
