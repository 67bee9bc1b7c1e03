"""axe-core, which finds faults of accessibility in a page: by its digest from npm, fetched once and kept.

It is for tests only, and no part of what is built or installed.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from functools import cache
from pathlib import Path

VERSION = "4.10.3"
ADDRESS = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"
SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
_SECONDS = 30


class NotHere(Exception):
    """The package is not kept here, and cannot be fetched."""


@cache
def script() -> str:
    """Return the script to run in a page. Raise NotHere."""
    kept = _folder() / f"axe-core-{VERSION}.tgz"
    body = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(body).hexdigest() != SHA256:
        body = _fetched()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(body)
    with tarfile.open(fileobj=io.BytesIO(body)) as package:
        member = package.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _fetched() -> bytes:
    try:
        with urllib.request.urlopen(ADDRESS, timeout=_SECONDS) as response:
            body = response.read()
    except OSError as error:
        raise NotHere(f"{ADDRESS} cannot be fetched: {error}") from None
    assert hashlib.sha256(body).hexdigest() == SHA256, f"{ADDRESS} has another digest"
    return body


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bizrq-tests"
