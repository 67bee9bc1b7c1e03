"""TLS stacks accept our certificates for their names and during their lifetime only."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs import pki
from certs.pki import CertificateError, Pair

NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = ["bizrq-webhooks.bizrq-system.svc", "127.0.0.1", "::1"]


def handshake(serving: Pair, bundle: bytes, name: str, tmp_path: Path) -> str:
    """Make a TLS handshake between Python's server and client, and return the common name of the verified server."""
    (tmp_path / "crt").write_bytes(serving.certificate_pem)
    (tmp_path / "key").write_bytes(serving.key_pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            found = connection.getpeercert()
            assert found is not None
            return dict(entry[0] for entry in found["subject"])["commonName"]  # type: ignore[misc]
    finally:
        ours.close()
        thread.join()
        theirs.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_serving_certificate_is_accepted_for_each_of_its_names(name: str, tmp_path: Path) -> None:
    ca = pki.make_ca(NOW)
    assert handshake(pki.make_serving(ca, NAMES, NOW), ca.certificate_pem, name, tmp_path) == NAMES[0]


def test_a_serving_certificate_is_rejected_for_another_name_and_by_another_ca(tmp_path: Path) -> None:
    ca, other = pki.make_ca(NOW), pki.make_ca(NOW)
    serving = pki.make_serving(ca, NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(serving, ca.certificate_pem, "elsewhere.svc", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, other.certificate_pem, NAMES[0], tmp_path)
    both = pki.bundle_pem([other.certificate, ca.certificate])
    assert handshake(serving, both, NAMES[0], tmp_path)


def test_a_clock_less_than_an_hour_behind_accepts_a_new_certificate(tmp_path: Path) -> None:
    later = NOW + timedelta(minutes=59)
    ca = pki.make_ca(later)
    assert handshake(pki.make_serving(ca, NAMES, later), ca.certificate_pem, NAMES[0], tmp_path)


def test_renewal_is_due_in_the_last_third() -> None:
    ca = pki.make_ca(NOW)
    serving = pki.make_serving(ca, NAMES, NOW).certificate
    assert not pki.needs_renewal(serving, NOW)
    assert not pki.needs_renewal(serving, NOW + timedelta(days=59))
    assert pki.needs_renewal(serving, NOW + timedelta(days=61))
    assert pki.needs_renewal(serving, NOW + timedelta(days=1000))
    assert pki.needs_renewal(serving, NOW - timedelta(days=1))


def test_no_certificate_outlives_its_ca() -> None:
    ca = pki.make_ca(NOW)
    late = NOW + timedelta(days=360)
    serving = pki.make_serving(ca, NAMES, late).certificate
    assert serving.not_valid_after_utc == ca.certificate.not_valid_after_utc


@pytest.mark.parametrize(
    "names",
    [[], [""], ["a b"], ["-a"], ["a..b"], ["ä.svc"], ["a" * 64], [".".join(["a" * 60] * 5)], ["*.svc"]],
)
def test_a_name_that_no_certificate_can_have_is_rejected(names: list[str]) -> None:
    with pytest.raises(CertificateError):
        pki.make_serving(pki.make_ca(NOW), names, NOW)


def test_covers_compares_names_and_addresses() -> None:
    serving = pki.make_serving(pki.make_ca(NOW), NAMES, NOW).certificate
    assert pki.covers(serving, ["127.0.0.1", "BIZRQ-webhooks.bizrq-system.svc"])
    assert not pki.covers(serving, ["127.0.0.2"])


def test_an_invalid_certificate_or_key_is_a_one_line_error() -> None:
    with pytest.raises(CertificateError, match=r"ca.crt holds no PEM certificate"):
        pki.read_certificates(b"hello", "ca.crt")
    with pytest.raises(CertificateError, match=r"ca.key holds no unencrypted PEM private key"):
        pki.read_key(b"hello", "ca.key")
