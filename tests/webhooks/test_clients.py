"""Who may send reviews, where the API server presents a certificate: it alone, and nothing is written for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog.testing
import typer
from cryptography.x509.oid import ExtendedKeyUsageOID
from prometheus_client import REGISTRY
from typer.testing import CliRunner

from bizrq.kube.client import KubeClient
from bizrq.process import configure_logging
from bizrq.settings import settings
from certs import pki
from certs.clients import Clients
from certs.pki import CertificateError, Pair
from certs.store import ServingCertificate, write_directory
from tests.support.client_certificates import make_client, make_intermediate, presenting
from tests.support.cluster import eventually
from tests.support.objects import deployment
from tests.webhooks.conftest import Api
from tests.webhooks.test_app import a_review
from webhooks.app import Webhooks
from webhooks.main import serve

NAME = "kube-apiserver-admission"
REVIEW = a_review(deployment("web", "nlp", 1))


def ca(name: str = "clients") -> Pair:
    return pki.make_ca(datetime.now(UTC), name=name)


@dataclass
class Guarded:
    """Webhooks that ask for a certificate of `authority`."""

    authority: Pair
    trusted: bytes
    file: Path
    port: int
    certificate: ServingCertificate

    @asynccontextmanager
    async def session(self, client: Pair | None) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=presenting(client, self.trusted))
        async with aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=connector) as session:
            yield session

    async def asked(self, client: Pair | None, body: Any = REVIEW) -> int:
        """The status of the answer to a review on a new connection; 0 where the connection is refused."""
        async with self.session(client) as session:
            try:
                async with session.post("/validate/workloads?timeout=5s", json=body) as answer:
                    text = await answer.text()
                    assert answer.status != 200 or (await answer.json())["response"]["allowed"], text
                    return answer.status
            except aiohttp.ClientError:
                return 0


@pytest.fixture
async def guarded(through: KubeClient, api: Api, tmp_path: Path) -> AsyncIterator[Guarded]:
    await api.group("nlp", cpu="10")
    authority, serving_ca = ca(), ca("serving")
    serving = pki.make_serving(serving_ca, ["127.0.0.1"], datetime.now(UTC))
    write_directory(tmp_path / "serving", {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
    file = tmp_path / "clients.crt"
    file.write_bytes(authority.certificate_pem)
    clients = Clients(file, NAME)
    certificate = ServingCertificate(tmp_path / "serving", clients, poll=0.01)
    await certificate.wait()
    webhooks = Webhooks(through, settings({}), clients=clients, clock=asyncio.get_running_loop().time)
    port = await webhooks.start("127.0.0.1", 0, lambda: certificate.context)
    await webhooks.synced()
    watch = asyncio.create_task(certificate.watch())
    try:
        yield Guarded(authority, serving_ca.certificate_pem, file, port, certificate)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await webhooks.stop()


def refused() -> float:
    labels = {"webhook": "workloads", "verdict": "Unauthenticated"}
    return REGISTRY.get_sample_value("bizrq_admission_reviews_total", labels) or 0.0


async def test_the_api_servers_certificate_is_asked_for_and_nothing_is_written_without_it(
    guarded: Guarded, api: Api
) -> None:
    authority, stranger = guarded.authority, ca()
    before = refused()
    rows: list[tuple[Pair | None, int]] = [
        (None, 401),
        (make_client(authority, "system:node:n1"), 401),
        (make_client(authority, NAME, "other"), 401),
        (make_client(authority, f"{NAME} "), 401),
        (make_client(authority, NAME.upper()), 401),
        (make_client(authority, "other", dns=[NAME]), 401),
        (make_client(authority), 401),
        (make_client(stranger, NAME), 0),
        (make_client(authority, NAME, until=timedelta(minutes=-1)), 0),
        (make_client(authority, NAME, usage=ExtendedKeyUsageOID.SERVER_AUTH), 0),
    ]
    for client, status in rows:
        assert await guarded.asked(client) == status, client and client.certificate.subject
    assert refused() - before == 7
    assert await api.entries("nlp") == []
    assert await guarded.asked(make_client(authority, NAME)) == 200
    assert await guarded.asked(make_client(authority, NAME, dns=["other"])) == 200
    assert len(await api.entries("nlp")) == 1


async def test_health_is_told_to_everybody(guarded: Guarded) -> None:
    async with guarded.session(None) as session:
        for path in ("/healthz", "/readyz"):
            async with session.get(path) as answer:
                assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_refused_body_is_not_read_and_refusals_are_logged_once_a_minute(guarded: Guarded) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert await guarded.asked(None, {"padding": "x" * 1_000_000}) == 401
        assert await guarded.asked(make_client(guarded.authority, "x" * 60)) == 401
        await asyncio.sleep(61)
        assert await guarded.asked(make_client(guarded.authority, "x" * 60)) == 401
    told = [entry for entry in logs if "was refused" in entry["event"]]
    assert [entry["presented"] for entry in told] == ["no certificate", "x" * 60]
    assert told[0]["expected"] == NAME


async def test_the_ca_is_read_again_when_it_changes(guarded: Guarded) -> None:
    """New connections go by the new CA at once; one that is open is answered once more and closed."""
    old, following = make_client(guarded.authority, NAME), ca()
    async with guarded.session(old) as session:

        async def asked() -> tuple[int, str]:
            async with session.post("/validate/workloads", json=REVIEW) as answer:
                return answer.status, answer.headers.get("Connection", "")

        assert await asked() == (200, "")
        context = guarded.certificate.context
        both = guarded.authority.certificate_pem + following.certificate_pem
        await _written(guarded, both, lambda: guarded.certificate.context is not context)
        assert await asked() == (200, "close")
        assert await asked() == (200, "")
        for client in (old, make_client(following, NAME)):
            assert await guarded.asked(client) == 200
        context = guarded.certificate.context
        await _written(guarded, following.certificate_pem, lambda: guarded.certificate.context is not context)
        assert await guarded.asked(old) == 0
        assert await guarded.asked(make_client(following, NAME)) == 200
        assert await asked() == (200, "close")
        with pytest.raises(aiohttp.ClientError):
            await asked()


async def test_the_ca_may_be_one_that_another_ca_signed(guarded: Guarded) -> None:
    """Only what it signed itself is taken, although its file has no root."""
    root = ca("root")
    trusted, sibling = make_intermediate(root, "a"), make_intermediate(root, "b")
    context = guarded.certificate.context
    await _written(guarded, trusted.certificate_pem, lambda: guarded.certificate.context is not context)
    assert await guarded.asked(make_client(trusted, NAME)) == 200
    for authority in (sibling, root, guarded.authority):
        assert await guarded.asked(make_client(authority, NAME)) == 0
    assert await guarded.asked(make_client(trusted, "other")) == 401


@pytest.mark.parametrize("content", [b"", b"no PEM", None, "leaf"])
async def test_a_ca_file_that_is_bad_later_changes_nothing(guarded: Guarded, content: Any) -> None:
    client = make_client(guarded.authority, NAME)
    with structlog.testing.capture_logs() as logs:

        def told() -> bool:
            return any("cannot be used yet" in entry["event"] for entry in logs)

        await _written(guarded, client.certificate_pem if content == "leaf" else content, told)
        assert await guarded.asked(client) == 200
        assert await guarded.asked(make_client(ca(), NAME)) == 0
    following = ca()
    context = guarded.certificate.context
    await _written(guarded, following.certificate_pem, lambda: guarded.certificate.context is not context)
    assert await guarded.asked(make_client(following, NAME)) == 200
    assert await guarded.asked(client) == 0


async def test_a_new_serving_certificate_is_loaded_beside_a_bad_ca_file(guarded: Guarded, tmp_path: Path) -> None:
    reloads = guarded.certificate.reloads
    guarded.file.write_bytes(b"")
    serving = pki.make_serving(ca("other"), ["127.0.0.1"], datetime.now(UTC))
    files = {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem}
    write_directory(tmp_path / "serving", files)

    async def loaded() -> bool:
        return guarded.certificate.reloads == reloads + 1

    await eventually(loaded, 60, "the new pair is served")


async def test_without_tls_nobody_has_a_certificate(through: KubeClient, tmp_path: Path) -> None:
    webhooks = Webhooks(through, settings({}), clients=Clients(tmp_path / "ca.crt", NAME))
    port = await webhooks.start("127.0.0.1", 0, None)
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
            session.post("/validate/workloads", json=REVIEW) as answer,
        ):
            assert answer.status == 401
    finally:
        await webhooks.stop()


async def _written(guarded: Guarded, content: bytes | None, seen: Any) -> None:
    """Replace the file, and wait until that was seen."""
    if content is None:
        guarded.file.unlink()
    else:
        other = guarded.file.with_suffix(".new")
        other.write_bytes(content)
        other.replace(guarded.file)

    async def is_seen() -> bool:
        return seen()

    await eventually(is_seen, 60, "the new file is seen")


def test_a_ca_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    first, second = ca().certificate_pem, ca().certificate_pem
    file = tmp_path / "ca.crt"
    for length in range(5, len(second.rstrip())):
        file.write_bytes(first + second[:length])
        with pytest.raises(CertificateError, match="cut off"):
            Clients(file, NAME).authorities()
    for whole in (first + second, b"# ours\n" + first + b"\r\n# and theirs\r\n" + second.rstrip()):
        file.write_bytes(whole)
        assert Clients(file, NAME).authorities().count("BEGIN") == 2


def test_one_valid_ca_beside_others_is_enough(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    file = tmp_path / "ca.crt"
    early = pki.make_ca(now + timedelta(days=2)).certificate_pem
    expired = pki.make_ca(now - timedelta(days=9), lifetime=timedelta(days=8)).certificate_pem
    file.write_bytes(early + expired)
    with pytest.raises(CertificateError, match="has no certificate that is valid yet"):
        Clients(file, NAME).authorities()
    file.write_bytes(early + ca().certificate_pem + expired)
    assert Clients(file, NAME).authorities().count("BEGIN") == 3


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(CertificateError, match="--client-ca /dev/zero is larger than 1 MiB"):
        Clients(Path("/dev/zero"), NAME).authorities()


NO_CA = "name the CA of the API server's client certificate"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"ca": b"x"}, "--client-ca needs --client-name: the common name of the API server's client certificate"),
        ({"name": NAME}, "--client-name needs --client-ca: the CA of the API server's client certificate"),
        ({"ca": b"x", "name": ""}, "--client-name is empty: pass the common name of the API server's client"),
        ({"ca": b"x", "name": " "}, "--client-name is empty: pass the common name of the API server's client"),
        ({"ca": None, "name": NAME}, "cannot be read: No such file or directory; name the PEM file of the CA"),
        ({"ca": b"", "name": NAME}, f"holds no PEM certificate; {NO_CA}"),
        ({"ca": b"\xff\x00", "name": NAME}, f"holds no PEM certificate; {NO_CA}"),
        ({"ca": "leaf", "name": NAME}, "has a certificate that is no CA, 'CN=kube-apiserver-admission'; name the CA"),
        ({"ca": "expired", "name": NAME}, "has only expired certificates; name a CA that is valid"),
        (
            {"ca": "early", "name": NAME},
            "has no certificate that is valid yet; name a CA that is valid, or correct the",
        ),
        ({"ca": "cut off", "name": NAME}, f"holds more than whole PEM certificates, or one that is cut off; {NO_CA}"),
        ({"ca": b" " * 1_048_577, "name": NAME}, f"is larger than 1 MiB; {NO_CA}"),
        ({"ca": b"x", "name": f" {NAME} "}, "--client-name ' kube-apiserver-admission ' has blanks around it or"),
        (
            {"ca": b"x", "name": "a\nb"},
            "--client-name 'a\\nb' has blanks around it or characters that cannot be printed",
        ),
        (
            {"ca": b"x", "name": "\x1b[31m"},
            "--client-name '\\x1b[31m' has blanks around it or characters that cannot be",
        ),
    ],
)
def test_bad_flags_are_one_line_with_the_remedy(
    flags: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    arguments = ["--cert-dir", str(tmp_path), "--kubeconfig", str(tmp_path / "none")]
    now = datetime.now(UTC)
    if "ca" in flags:
        path = tmp_path / "ca.crt"
        made = {
            "leaf": make_client(ca(), NAME).certificate_pem,
            "expired": pki.make_ca(now - timedelta(days=9), lifetime=timedelta(days=8)).certificate_pem,
            "early": pki.make_ca(now + timedelta(days=2)).certificate_pem,
            "cut off": ca().certificate_pem + ca().certificate_pem[:-20],
        }
        if flags["ca"] is not None:
            path.write_bytes(made.get(flags["ca"], flags["ca"]))
        arguments += ["--client-ca", str(path)]
    if "name" in flags:
        arguments += ["--client-name", flags["name"]]
    app = typer.Typer()
    app.command()(serve)
    result = CliRunner().invoke(app, arguments)
    # The process logs to the stderr of the runner, which is closed by now.
    configure_logging()
    assert result.exit_code == 2
    [line] = result.output.splitlines()
    assert line.startswith("bizrq-webhooks: --client-")
    assert said in line
