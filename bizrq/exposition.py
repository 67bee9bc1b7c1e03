"""The text of /metrics, in slices: a scrape of many groups holds up nobody.

This file alone decides how much of it is written at once. It does not know what a metric means, nor who may read it.

prometheus_client renders all series of a registry in one go, which takes seconds for 10,000 groups. So series that
belong to groups are kept here: the lines of a group are written when its figures change, and a scrape only joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

#: Bytes that a scrape joins before the event loop has its turn. More only by the lines of one group.
SLICE = 64 * 1024
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class GroupFamily:
    """A metric with the label `group`, and where `by` is given with one more label. Its series end with the group."""

    kind = "gauge"

    def __init__(self, name: str, documentation: str, by: str = "") -> None:
        self.name = name
        self.labels = ("group", by) if by else ("group",)
        self._by = by
        self._head = f"# HELP {name} {documentation}\n# TYPE {name} {self.kind}\n".encode()
        #: The lines of each group. Each value is immutable, so that a scrape may keep it.
        self._lines: dict[str, bytes] = {}

    def set(self, group: str, values: Mapping[str, float]) -> None:
        """Replace all series of the group by these, by the value of the label `by`; "" where there is none."""
        if not values:
            self.forget(group)
            return
        self._lines[group] = "".join(self._line(group, value, amount) for value, amount in values.items()).encode()

    def forget(self, group: str) -> None:
        """End the series of the group."""
        self._lines.pop(group, None)

    def clear(self) -> None:
        """End all series."""
        self._lines.clear()

    def snapshot(self) -> tuple[bytes, ...]:
        """Return the text as it is now: the head, then the lines of each group."""
        return (self._head, *self._lines.values())

    def _line(self, group: str, value: str, amount: float) -> str:
        more = f',{self._by}="{value.translate(_ESCAPES)}"' if self._by else ""
        return f'{self.name}{{group="{group.translate(_ESCAPES)}"{more}}} {floatToGoString(amount)}\n'


class GroupCounter(GroupFamily):
    """A counter with the label `group`."""

    kind = "counter"

    def __init__(self, name: str, documentation: str) -> None:
        super().__init__(name, documentation)
        self._counts: dict[str, int] = {}

    def inc(self, group: str) -> None:
        count = self._counts[group] = self._counts.get(group, 0) + 1
        self.set(group, {"": count})

    def forget(self, group: str) -> None:
        self._counts.pop(group, None)
        super().forget(group)

    def clear(self) -> None:
        self._counts.clear()
        super().clear()


async def render(families: Sequence[GroupFamily] = (), collectors: Iterable[Collector] = ()) -> AsyncIterator[bytes]:
    """Yield the text of the process's registry, of the collectors and of the families, of one moment.

    The event loop has a turn after each slice. `collectors` have a bounded number of series, as the registry has.
    """
    snapshots = [family.snapshot() for family in families]
    more = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        more.register(collector)
    yield generate_latest(REGISTRY) + generate_latest(more)
    await asyncio.sleep(0)
    for piece in slices(chunk for snapshot in snapshots for chunk in snapshot):
        yield piece
        await asyncio.sleep(0)


def slices(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks joined to pieces of at least `SLICE` bytes, each without its last chunk smaller than that."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= SLICE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
