"""The files of `web/static`: style, scripts and icon, as they are served.

This file alone decides their addresses. An address has the digest of its content, so that a browser may keep a file
for ever and never has one of another version. Each file is compressed once.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: The folder in addresses.
PREFIX = "/static/"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file. `digest` is the SHA-256 of `body` in hexadecimal."""

    address: str
    content_type: str
    digest: str
    body: bytes
    gzipped: bytes

    @property
    def etag(self) -> str:
        return f'"{self.digest[:32]}"'


@cache
def by_name() -> Mapping[str, Asset]:
    """Return all files by their names."""
    found: dict[str, Asset] = {}
    for each in files("web").joinpath("static").iterdir():
        stem, _, suffix = each.name.rpartition(".")
        if suffix not in _TYPES:
            continue
        body = each.read_bytes()
        digest = hashlib.sha256(body).hexdigest()
        address = f"{PREFIX}{stem}.{digest[:12]}.{suffix}"
        found[each.name] = Asset(address, _TYPES[suffix], digest, body, gzip.compress(body, 9, mtime=0))
    return found


@cache
def by_address() -> Mapping[str, Asset]:
    return {asset.address: asset for asset in by_name().values()}


def address(name: str) -> str:
    """Return where a file is served. Raise KeyError for an unknown name."""
    return by_name()[name].address
