"""Up to which moment the watches have shown all that was written.

This file alone decides that: a revision of the API server was read after the moment, and the watches have reached it. A
revision is kept until then. To list very many objects takes longer than anybody waits, and by then the API server is at
a later revision: who asked for that one each time would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bizrq.kube.informer import Informer
from controller.watch.cluster import is_listed, lag_of, patience


@dataclass(slots=True)
class _Read:
    """A revision that was read after the moment `at`, in seconds, and the epochs of the watches then."""

    at: float
    revision: int
    epochs: tuple[int, ...]
    is_reached: bool = False
    #: The kinds that are listed for it.
    listed: set[str] = field(default_factory=set)


class ShownWrites:
    """Remembers by key the last revision that was read for some watches."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._reads: dict[str, _Read] = {}

    async def until(
        self, key: str, informers: Sequence[Informer], revision: Callable[[], Awaitable[int]], wanted: float
    ) -> float | None:
        """Return a moment by the clock: the watches have shown all that was written before it.

        None while they are late. It may be earlier than `wanted`: then ask again. `key` stands for these informers, and
        `revision` reads that of the API server. Raises what that raises.
        """
        read, epochs = self._reads.get(key), tuple(each.store.epoch for each in informers)
        if read is None or read.epochs != epochs or (read.is_reached and read.at < wanted):
            at = self._clock()
            read = self._reads[key] = _Read(at, await revision(), epochs)
        if not read.is_reached:
            read.is_reached = all(await asyncio.gather(*(self._reaches(each, read) for each in informers)))
        return read.at if read.is_reached else None

    async def _reaches(self, informer: Informer, read: _Read) -> bool:
        """Wait for a watch. Very many objects are listed once, and not waited for."""
        lag, kind = lag_of(informer), informer.resource.key
        is_late = informer.store.resource_version < read.revision and self._clock() - read.at >= lag
        if is_late and not is_listed(informer) and kind not in read.listed:
            read.listed.add(kind)
            informer.relist()
        return await informer.catch_up(read.revision, patience(informer), lag=lag)
