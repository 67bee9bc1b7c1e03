"""Large objects in memory as packed bytes, and read when they are asked for.

In dicts an object takes up to twenty-five times as much memory as its JSON, which packs well besides. A tenant may
store as many as etcd takes. This file alone decides which objects are large.
"""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Callable
from functools import lru_cache

import msgspec

from bizrq.kube.client import revision_of
from bizrq.kube.store import Kept, Object, OnChange, place_of, plain, uid_of

#: The bytes from which on an object is packed. An ordinary workload has a tenth of this.
LARGE = 64 * 1024
#: zlib's fastest: most of what is repeated goes with it.
_LEVEL = 1
#: How many unpacked objects are kept: whoever counts one reads it several times in a row.
_AT_HAND = 2


class PackedObject(msgspec.Struct, frozen=True):
    """An object of a watched kind, packed, with what a store finds it by."""

    uid: str
    namespace: str
    name: str
    revision: int
    packed: bytes

    def plain(self) -> Object:
        """Return the object, which is shared between those that ask soon after each other."""
        return _unpacked(self.packed)


def packing(transform: Callable[[Object], Object]) -> Callable[[Object], Kept]:
    """Return a transform of an informer that packs what is large after this one."""

    def packed(obj: Object) -> Kept:
        kept = transform(obj)
        # The API server stores more levels than writers of JSON take. These bytes never leave the process.
        content = marshal.dumps(kept)
        if len(content) < LARGE:
            return kept
        return PackedObject(uid_of(kept), *place_of(kept), revision_of(kept), zlib.compress(content, _LEVEL))

    return packed


def unpacking(changed: Callable[[Object | None, Object | None], None]) -> OnChange:
    """Return a receiver of changes that gets each object whole."""
    return lambda old, new: changed(plain(old), plain(new))


@lru_cache(maxsize=_AT_HAND)
def _unpacked(packed: bytes) -> Object:
    return marshal.loads(zlib.decompress(packed))  # noqa: S302 bytes of our own
