"""Objects in memory as packed bytes, and read when they are asked for.

In dicts an object takes up to twenty-five times as much memory as its JSON, which packs well besides. A tenant may
store as many as etcd takes. This file alone decides which objects are packed.
"""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Callable
from functools import lru_cache

import msgspec

from bizrq.kube.client import revision_of
from bizrq.kube.store import Kept, Object, OnChange, place_of, plain, uid_of

#: The bytes from which on an object is packed: in dicts it takes up to twenty times as many.
LEAST = 4 * 1024
#: zlib's fastest: most of what is repeated goes with it.
_LEVEL = 1
#: From so many bytes on, few unpacked objects are kept at hand. Whoever counts a workload reads it, and what it made,
#: several times in a row.
_LARGE, _FEW, _MANY = 64 * 1024, 2, 64


class PackedObject(msgspec.Struct, frozen=True):
    """An object of a watched kind, packed, with what a store finds it by."""

    uid: str
    namespace: str
    name: str
    revision: int
    packed: bytes
    is_large: bool

    def plain(self) -> Object:
        """Return the object, which is shared between those that ask soon after each other."""
        return _large(self.packed) if self.is_large else _small(self.packed)


def packing(transform: Callable[[Object], Object]) -> Callable[[Object], Kept]:
    """Return a transform of an informer that packs what is left of an object by this one."""

    def packed(obj: Object) -> Kept:
        kept = transform(obj)
        # The API server stores more levels than writers of JSON take. These bytes never leave the process.
        content = marshal.dumps(kept)
        if len(content) < LEAST:
            return kept
        packed = zlib.compress(content, _LEVEL)
        return PackedObject(uid_of(kept), *place_of(kept), revision_of(kept), packed, len(content) >= _LARGE)

    return packed


def unpacking(changed: Callable[[Object | None, Object | None], None]) -> OnChange:
    """Return a receiver of changes that gets each object whole."""
    return lambda old, new: changed(plain(old), plain(new))


def _unpacked(packed: bytes) -> Object:
    return marshal.loads(zlib.decompress(packed))  # noqa: S302 bytes of our own


_large, _small = lru_cache(_FEW)(_unpacked), lru_cache(_MANY)(_unpacked)
