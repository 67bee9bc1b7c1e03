"""A directory of certificates, and the TLS context that a server keeps while they change under it.

This file alone decides how certificate files are written and when they are read again. It neither makes
certificates nor knows who trusts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bizrq.metrics import CERTIFICATE_EXPIRES
from certs import pki
from certs.clients import Clients
from certs.pki import CertificateError
from certs.rotation import CA_BUNDLE, CERTIFICATE, FILES, KEY

#: How often a change of the files is looked for. A new pair is served well within a kubelet's sync of a Secret.
POLL_SECONDS = 1.0

log = structlog.get_logger(__name__)


def read_directory(directory: Path) -> dict[str, bytes]:
    """Return the certificate files that exist; {} where there is no directory. Raises OSError."""
    found = {}
    for name in FILES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found[name] = (directory / name).read_bytes()
    return found


def write_directory(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write changed files atomically, keys with mode 0600, and remove files that are not in `files`.

    The bundle comes first and the serving certificate last, so that no server uses a certificate that is not announced.
    A key and its certificate are two files: a process that reads between the writes sees a mismatch, and reads again.
    Raises OSError.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    before = read_directory(directory)
    for name in sorted(files, key=_writing_order):
        if before.get(name) != files[name]:
            _replace(directory / name, files[name], 0o600 if name.endswith(".key") else 0o644)
    for name in before.keys() - files.keys():
        (directory / name).unlink(missing_ok=True)


def _writing_order(name: str) -> int:
    return [CA_BUNDLE, KEY, CERTIFICATE].index(name) if name in (CA_BUNDLE, KEY, CERTIFICATE) else 0


def _replace(path: Path, content: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class ServingCertificate:
    """The TLS context of a server whose tls.crt and tls.key are replaced from time to time.

    `context` changes only with the CA of `clients`: a context cannot forget a CA. New handshakes use the newest
    context and the newest matching pair, and open connections continue.

    With `clients`, a handshake asks for a client certificate, takes none for an answer, and fails with one that none of
    the CAs signed.
    """

    def __init__(self, cert_dir: Path, clients: Clients | None = None, *, poll: float = POLL_SECONDS) -> None:
        self.context = _new_context("")
        self._clients = clients
        self._authorities = ""
        self.expires_at: datetime | None = None
        self.reloads = 0
        self._certificate = cert_dir / CERTIFICATE
        self._key = cert_dir / KEY
        self._poll = poll
        self._loaded: tuple[bytes, bytes] | None = None
        self._looked_at: tuple[object, ...] | None = None
        self._problem = ""

    def load(self) -> bool:
        """Load the pair on disk if it has changed. Raises CertificateError, and then keeps the pair that it had."""
        try:
            pair = self._certificate.read_bytes(), self._key.read_bytes()
        except OSError as error:
            raise CertificateError(f"{error.filename} cannot be read: {error.strerror}") from None
        if pair != self._loaded:
            expires_at = self._take(*pair)
            self._loaded, self.expires_at = pair, expires_at
            CERTIFICATE_EXPIRES.labels("serving").set(expires_at.timestamp())
            self.reloads += 1
            log.info("serving certificate loaded", expires=expires_at.isoformat())
            if expires_at <= datetime.now(UTC):
                log.error("the serving certificate has expired", expires=expires_at.isoformat())
            return True
        return False

    def load_clients(self) -> None:
        """Load the CAs of `clients` if they have changed. Raises CertificateError, and then keeps those it had."""
        if self._clients is None:
            return
        authorities = self._clients.authorities()
        if authorities == self._authorities:
            return
        context = _new_context(authorities)
        if self._loaded is not None:
            self._load_into([context], *self._loaded)
        self.context, self._authorities = context, authorities
        log.info("client CA loaded", file=str(self._clients.ca), cas=authorities.count("BEGIN"))

    async def wait(self) -> None:
        """Wait until there is a pair to serve: another process may still be making it."""
        while not self._try_load():  # noqa: ASYNC110 (files send no events)
            await asyncio.sleep(min(self._poll, 0.2))

    async def watch(self) -> None:
        """Load new pairs as they appear, until cancelled."""
        while True:
            await asyncio.sleep(self._poll)
            if self._signature() != self._looked_at:
                self._try_load()

    def _try_load(self) -> bool:
        """Load what has changed, each file as far as it is good. Return whether all are."""
        signature, problems = self._signature(), list[str]()
        for load in (self.load_clients, self.load):
            try:
                load()
            except CertificateError as error:
                problems.append(str(error))
        if problem := "; ".join(problems):
            if problem != self._problem:
                log.warning("certificate files cannot be used yet", error=problem)
        else:
            # Only now: what is not good yet is loaded again later.
            self._looked_at = signature
        self._problem = problem
        return not problem

    def _take(self, certificate: bytes, key: bytes) -> datetime:
        """Load a pair into the context after a test in another one: OpenSSL drops a key that does not match."""
        leaf = pki.read_certificates(certificate, str(self._certificate))[0]
        self._load_into([ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context], certificate, key)
        return leaf.not_valid_after_utc

    def _load_into(self, contexts: Sequence[ssl.SSLContext], certificate: bytes, key: bytes) -> None:
        """Load a pair into contexts, in order up to the first that cannot take it. Raises CertificateError."""
        with tempfile.TemporaryDirectory(prefix="bizrq-") as private:
            chain_file, key_file = Path(private, CERTIFICATE), Path(private, KEY)
            chain_file.write_bytes(certificate)
            key_file.touch(mode=0o600)
            key_file.write_bytes(key)
            try:
                for context in contexts:
                    context.load_cert_chain(chain_file, key_file, password=_refuse_password)
            except (ssl.SSLError, CertificateError) as error:
                reason = getattr(error, "reason", None) or str(error)
                raise CertificateError(f"{self._certificate} and {self._key.name} do not load: {reason}") from None

    def _signature(self) -> tuple[object, ...]:
        """Return a value that changes when a file is replaced, in place or by the symlink that a kubelet swaps."""
        files = (self._certificate, self._key, *([self._clients.ca] if self._clients else []))
        return tuple(map(_identity, files))


def _new_context(authorities: str) -> ssl.SSLContext:
    """Return a context without a pair, which verifies the certificates of clients by these CAs, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An API server keeps no TLS sessions, so tickets would be useless work in each handshake.
    context.num_tickets = 0
    if authorities:
        # Health endpoints answer clients without a certificate, such as the kubelet.
        context.verify_mode = ssl.CERT_OPTIONAL
        # The file may hold a CA without the one that signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=authorities)
    return context


def _refuse_password() -> str:
    """Raise CertificateError: for an encrypted key OpenSSL would otherwise ask on the terminal."""
    raise CertificateError("the key is encrypted; give one without a password")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
