"""Certificates: a small CA, serving certificates signed by it, and when each has to be replaced.

This file alone decides the contents of a certificate. It reads no clock (`now` is given), no file and no cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=365)
SERVING_LIFETIME = timedelta(days=90)
#: Clocks of API servers may be this far behind ours.
SKEW = timedelta(hours=1)

Key = ec.EllipticCurvePrivateKey


class CertificateError(ValueError):
    """PEM that is no certificate or key of ours, or a name that no certificate can have; one line."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key (ECDSA P-256)."""

    certificate: x509.Certificate
    key: Key

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """Return the key as unencrypted PKCS 8. The mode of its file protects it."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_ca(now: datetime, *, name: str = "bizrq", lifetime: timedelta = CA_LIFETIME) -> Pair:
    """Return a self-signed CA that may sign serving certificates and nothing below it."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name keeps two CAs apart while both are trusted: verifiers look an issuer up by name.
    serial = x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA {serial:x}"[:64])])
    builder = (
        _builder(subject, subject, key, serial, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def make_serving(ca: Pair, names: Sequence[str], now: datetime, *, lifetime: timedelta = SERVING_LIFETIME) -> Pair:
    """Return a server's certificate for names and addresses, no longer than its CA's. Raises CertificateError."""
    alternatives = _alternatives(names)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    lifetime = min(lifetime, ca.certificate.not_valid_after_utc - now)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = (
        _builder(subject, ca.certificate.subject, key, x509.random_serial_number(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(authority, critical=False)
    )
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def needs_renewal(certificate: x509.Certificate, now: datetime) -> bool:
    """Return True in the last third of its life, after it, or before it: the clock was wrong when it was made."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begins <= now < ends - (ends - begins) / 3


def made_at(certificate: x509.Certificate) -> datetime:
    """Return the time at which a certificate of ours was made."""
    return certificate.not_valid_before_utc + SKEW


def covers(certificate: x509.Certificate, names: Iterable[str]) -> bool:
    """Return True where the certificate has each of `names`. Wildcards are not ours, so they cover nothing."""
    return {_value(name) for name in _alternatives(list(names))} <= {
        _value(name) for name in _stored_alternatives(certificate)
    }


def check_names(names: Sequence[str]) -> None:
    """Raise CertificateError for an empty list, or for a name that no certificate can have."""
    _alternatives(names)


def signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def matches(certificate: x509.Certificate, key: Key) -> bool:
    return certificate.public_key() == key.public_key()


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def bundle_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return several CAs in one file, as in a caBundle."""
    return b"".join(pem(certificate) for certificate in certificates)


def read_certificates(text: bytes, what: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one. `what` names the source in a CertificateError."""
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        raise CertificateError(f"{what} holds no PEM certificate") from None


def read_key(text: bytes, what: str) -> Key:
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{what} holds no unencrypted PEM private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{what} holds no ECDSA key; bizrq-certs signs with ECDSA P-256 only")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, serial: int, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    if not names:
        raise CertificateError("a serving certificate needs at least one name")
    return [_alternative(name) for name in dict.fromkeys(names)]


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.split(".")
    if len(name) > 253 or not all(_is_label(label) for label in labels):
        raise CertificateError(f"{name[:64]!r} is neither a DNS name nor an IP address")
    return x509.DNSName(name.lower())


def _is_label(label: str) -> bool:
    return (
        0 < len(label) <= 63
        and label.isascii()
        and label.replace("-", "a").isalnum()
        and label[0] != "-"
        and label[-1] != "-"
    )


def _stored_alternatives(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _value(name: x509.GeneralName) -> str:
    return str(name.value)
