"""Which client certificates may send reviews: those of one CA file, with one name.

This file alone decides that. It knows no connection, and it verifies no signature: TLS does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from certs import pki
from certs.pki import CertificateError

#: Bytes of a CA file: a ConfigMap holds no more.
_LARGEST = 1024 * 1024
#: How often a PEM certificate has five dashes.
_DASHES = 4


@dataclass(frozen=True, slots=True)
class Clients:
    """The CA file of `--client-ca`, and the common name of `--client-name`."""

    ca: Path
    name: str

    def authorities(self) -> str:
        """Return the CA certificates of the file as PEM text. Raises CertificateError."""
        what = f"--client-ca {self.ca}"
        try:
            found = _read(self.ca, what)
        except OSError as error:
            raise CertificateError(
                f"{what} cannot be read: {error.strerror}; name the PEM file of the CA of the API server's client "
                "certificate"
            ) from None
        except CertificateError as error:
            raise CertificateError(f"{error}; name the CA of the API server's client certificate") from None
        for certificate in found:
            if not _is_authority(certificate):
                raise CertificateError(
                    f"{what} has a certificate that is no CA, {certificate.subject.rfc4514_string()[:100]!r}; name the "
                    "CA that signed the API server's client certificate"
                )
        now = datetime.now(UTC)
        if all(certificate.not_valid_after_utc <= now for certificate in found):
            raise CertificateError(f"{what} has only expired certificates; name a CA that is valid")
        if not any(each.not_valid_before_utc <= now < each.not_valid_after_utc for each in found):
            raise CertificateError(
                f"{what} has no certificate that is valid yet; name a CA that is valid, or correct the clock"
            )
        return pki.bundle_pem(found).decode()

    def accept(self, peer: Mapping[str, Any] | None) -> bool:
        """Return whether a verified certificate, as `ssl.SSLSocket.getpeercert` has it, is the API server's."""
        return common_names(peer) == [self.name]


def clients_of(ca: Path | None, name: str | None) -> Clients | None:
    """Return what the two flags say, None without them. Raises CertificateError for one without the other."""
    if ca is None and name is None:
        return None
    if name is None:
        raise CertificateError(
            "--client-ca needs --client-name: the common name of the API server's client certificate"
        )
    if ca is None:
        raise CertificateError("--client-name needs --client-ca: the CA of the API server's client certificate")
    if not name.strip():
        raise CertificateError("--client-name is empty: pass the common name of the API server's client certificate")
    if name != name.strip() or not name.isprintable():
        raise CertificateError(
            f"--client-name {name[:64]!r} has blanks around it or characters that cannot be printed; pass the common "
            "name as the API server's client certificate has it"
        )
    return Clients(ca, name)


def common_names(peer: Mapping[str, Any] | None) -> list[str]:
    """Return the common names of a certificate's subject, by which Kubernetes names its users."""
    return [value for names in (peer or {}).get("subject", ()) for key, value in names if key == "commonName"]


def _read(path: Path, what: str) -> list[x509.Certificate]:
    """Return the certificates of a file that holds nothing else. Raises OSError, CertificateError."""
    with path.open("rb") as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise CertificateError(f"{what} is larger than 1 MiB")
    found = pki.read_certificates(text, what)
    if text.count(b"-----") != _DASHES * len(found):
        raise CertificateError(f"{what} holds more than whole PEM certificates, or one that is cut off")
    return found


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        # A root of version 1 has no extensions.
        return certificate.subject == certificate.issuer
