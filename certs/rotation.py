"""The next step of a certificate directory: create, renew, or hand over from one CA to the next.

This file alone decides the order of a rotation. It does no I/O: files in, files out. All of its memory is in the
certificates, so that a process that was killed anywhere goes on from where the files are.

A CA hands over in three steps, so that a verifier always knows the CA of the served certificate:
  1. the next CA is made and announced: it joins the bundle, the serving certificate stays;
  2. once the bundle is known everywhere, and SETTLE has passed, the next CA signs the serving certificate;
  3. once the new serving certificate is served everywhere (RETIRE has passed), the old CA leaves the bundle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from certs import pki
from certs.pki import CertificateError, Key, Pair

#: ca.crt is the bundle of all CAs that are to be trusted; ca.key belongs to the one that signs.
CA_BUNDLE, CA_KEY = "ca.crt", "ca.key"
NEXT_CA_KEY = "ca-next.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
FILES = (CA_BUNDLE, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY)

#: API servers learn of a changed webhook configuration by watch, in milliseconds; this is for the slow one.
SETTLE = timedelta(minutes=2)
#: The kubelet brings a changed Secret to a pod within about two minutes.
RETIRE = timedelta(hours=1)

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class RotationState:
    """The files of a directory, understood. Whatever does not fit together is absent."""

    signing: Pair | None
    upcoming: Pair | None
    retired: tuple[x509.Certificate, ...]
    serving: Pair | None

    @property
    def bundle(self) -> list[x509.Certificate]:
        return [pair.certificate for pair in (self.signing, self.upcoming) if pair] + list(self.retired)


def read(files: Files, now: datetime) -> RotationState:
    """Read the files; those that are broken, expired or do not match count as absent, as new ones can be made."""
    bundle = _certificates(files, CA_BUNDLE)
    signing = _pair(bundle, _key(files, CA_KEY))
    upcoming = _pair(bundle, _key(files, NEXT_CA_KEY))
    if signing is not None and upcoming is not None and signing.certificate == upcoming.certificate:
        upcoming = None
    in_use = [pair.certificate for pair in (signing, upcoming) if pair]
    retired = tuple(ca for ca in bundle if ca not in in_use and now < ca.not_valid_after_utc)
    serving = _pair(_certificates(files, CERTIFICATE), _key(files, KEY))
    return RotationState(signing, upcoming, retired, serving)


def advance(
    files: Files, names: Sequence[str], now: datetime, *, announced: Collection[bytes] = (), rotate: bool = False
) -> dict[str, bytes]:
    """Return the files after the next due step, `files` if none is due. Raises CertificateError for `names`.

    `announced` is the bundle that each verifier has, b"" where that is not known; empty where there is no verifier.
    `rotate` asks for a new CA before the old one is due.
    """
    state = read(files, now)
    signing, upcoming, retired, serving = state.signing, state.upcoming, state.retired, state.serving
    if signing is not None and now >= signing.certificate.not_valid_after_utc:
        signing = None  # no verifier trusts it any more, so there is nothing to hand over
    if signing is None:
        # The first CA, or one whose key was lost: what that one signed is served on until its successor is known.
        upcoming = upcoming or pki.make_ca(now)
        still_trusted = any(_serves(serving, ca, names, now) for ca in retired)
        if not still_trusted or _is_known(upcoming.certificate, announced, now):
            signing, upcoming = upcoming, None
    elif upcoming is None and (rotate or pki.needs_renewal(signing.certificate, now)):
        upcoming = pki.make_ca(now)
    elif upcoming is not None and _is_known(upcoming.certificate, announced, now):
        signing, upcoming, retired = upcoming, None, (*retired, signing.certificate)
    if signing is not None and not _serves(serving, signing.certificate, names, now):
        serving = pki.make_serving(signing, names, now)
    if upcoming is None and serving is not None and now >= pki.made_at(serving.certificate) + RETIRE:
        retired = ()
    after = RotationState(signing, upcoming, retired, serving)
    return _written(after, files)


def _is_known(ca: x509.Certificate, announced: Collection[bytes], now: datetime) -> bool:
    if now < pki.made_at(ca) + SETTLE:
        return False
    return all(ca in _certificates({CA_BUNDLE: bundle}, CA_BUNDLE) for bundle in announced)


def _serves(serving: Pair | None, ca: x509.Certificate, names: Sequence[str], now: datetime) -> bool:
    return (
        serving is not None
        and not pki.needs_renewal(serving.certificate, now)
        and pki.covers(serving.certificate, names)
        and pki.signed_by(serving.certificate, ca)
    )


def _written(state: RotationState, before: Files) -> dict[str, bytes]:
    files = {CA_BUNDLE: pki.bundle_pem(state.bundle)}
    if state.signing is not None:
        files[CA_KEY] = state.signing.key_pem
    if state.upcoming is not None:
        files[NEXT_CA_KEY] = state.upcoming.key_pem
    if state.serving is not None:
        files |= {CERTIFICATE: state.serving.certificate_pem, KEY: state.serving.key_pem}
    # The same certificates and keys in another wording are no change.
    unchanged = {name: before[name] for name in files if name in before and _same(name, before[name], files[name])}
    return {**files, **unchanged}


def _same(name: str, before: bytes, after: bytes) -> bool:
    try:
        if name.endswith(".key"):
            return pki.read_key(before, name).public_key() == pki.read_key(after, name).public_key()
        return pki.read_certificates(before, name) == pki.read_certificates(after, name)
    except CertificateError:
        return False


def _certificates(files: Files, name: str) -> list[x509.Certificate]:
    try:
        return pki.read_certificates(files[name], name) if name in files else []
    except CertificateError:
        return []


def _key(files: Files, name: str) -> Key | None:
    try:
        return pki.read_key(files[name], name) if name in files else None
    except CertificateError:
        return None


def _pair(certificates: Sequence[x509.Certificate], key: Key | None) -> Pair | None:
    if key is None:
        return None
    return next((Pair(found, key) for found in certificates if pki.matches(found, key)), None)
