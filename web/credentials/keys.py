"""The keys that seal cookies: two files of a folder, as a Secret is mounted.

This file alone decides which keys are valid. `current` seals and opens, `other` opens only. To change the key without
signing anybody out, put a new one into `other`, wait until every replica has it, and swap the two.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from bizrq.kube.config import ConfigError

log = structlog.get_logger(__name__)

#: Files of the folder; the first seals.
FILES = ("current", "other")
#: Seconds between two looks at the folder.
_LOOK = 10.0


class Keyring:
    """The valid keys. Raise ConfigError for a folder without them at the start; a later fault keeps the last ones."""

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a folder, one random key: for a process that nobody else shares sessions with."""
        self._folder = folder
        self._clock = clock
        self._looked = clock()
        self._keys = (Fernet.generate_key(),) if folder is None else _read(folder)

    def seal(self, text: bytes) -> str:
        return self._box.encrypt(text).decode()

    def open(self, sealed: str, age: int) -> bytes | None:
        """Return what was sealed at most `age` seconds ago, None for anything else."""
        try:
            return self._box.decrypt(sealed.encode("utf-8", "replace"), ttl=age)
        except InvalidToken:
            return None

    @property
    def of_forms(self) -> Sequence[bytes]:
        """Return the keys of the tokens of forms, the one for new ones first."""
        return [hashlib.sha256(b"bizrq forms\0" + key).digest() for key in self._current()]

    @property
    def _box(self) -> MultiFernet:
        return MultiFernet([Fernet(key) for key in self._current()])

    def _current(self) -> Sequence[bytes]:
        if self._folder is not None and self._clock() - self._looked >= _LOOK:
            self._looked = self._clock()
            try:
                self._keys = _read(self._folder)
            except ConfigError as error:
                log.warning("the keys of the cookies cannot be read; the last ones stay", error=str(error))
        return self._keys


def _read(folder: Path) -> tuple[bytes, ...]:
    """Return the keys of a folder, the one that seals first. Raise ConfigError."""
    found: list[bytes] = []
    for name in FILES:
        try:
            key = (folder / name).read_bytes().strip()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder / name}: {error.strerror}") from None
        try:
            is_key = len(base64.urlsafe_b64decode(key)) == 32
        except ValueError:
            is_key = False
        if not is_key:
            raise ConfigError(f"{folder / name}: write 32 random bytes as URL-safe base64")
        found.append(key)
    if not (folder / FILES[0]).exists():
        raise ConfigError(f"{folder / FILES[0]}: there is no such file: it holds the key that seals cookies")
    return tuple(found)
