"""Certificates of clients, right and wrong ones, for tests of who may ask."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.pki import SKEW, Pair


def make_client(
    ca: Pair,
    *names: str,
    dns: Sequence[str] = (),
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    until: timedelta = timedelta(days=1),
) -> Pair:
    """A certificate of a client with these common names, which ends so long from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    if dns:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in dns]), False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def make_intermediate(root: Pair, name: str) -> Pair:
    """A CA that another one signed."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(root.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.key.public_key()), critical=False)
    )
    return Pair(builder.sign(root.key, hashes.SHA256()), key)


def presenting(client: Pair | None, trusted: bytes) -> ssl.SSLContext:
    """A client's context that trusts this bundle and presents this certificate."""
    context = ssl.create_default_context(cadata=trusted.decode())
    context.check_hostname = False
    if client is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "client.pem")
            path.write_bytes(client.key_pem + client.certificate_pem)
            context.load_cert_chain(path)
    return context
