"""The page of a record that each interval goes to.

This file alone decides that, from the sizes of the pages. It does no I/O, but yields to the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bizrq.hours.metering import Interval, RecordPage
from controller.hours.collected import uids_of
from controller.watch.time_slice import Yielder

#: The capacity of a page. Beyond this many intervals or characters, new intervals go to the next page.
MAX_INTERVALS = 5_000
MAX_TEXT = 256 * 1024
#: About how many characters a line of the record takes without its uids, and each of those.
_LINE, _UID = 120, 52


async def place_intervals(
    pages: Sequence[RecordPage], intervals: Mapping[str, Interval]
) -> Sequence[Mapping[str, Interval]] | None:
    """Return the intervals of each page. An interval stays on its page; a new one goes to the first page with room.

    None where the pages have no room for all.
    """
    count = len(intervals)
    if len(pages) == 1 and count <= MAX_INTERVALS and count * (_UID + _LINE) < MAX_TEXT:
        return [intervals]
    yielder = Yielder()
    placed: list[dict[str, Interval]] = [{} for _ in pages]
    sizes = [_size(page) for page in pages]
    place: dict[str, int] = {}
    for index, page in enumerate(pages):
        place.update(dict.fromkeys(uids_of(page), index))
        await yielder.yield_if_due()
    rates = [set(page.running) for page in pages]
    for uid, interval in intervals.items():
        await yielder.step()
        index = place.get(uid)
        if index is None:
            fits = (n for n, size in enumerate(sizes) if size[0] < MAX_INTERVALS and size[1] < MAX_TEXT)
            index = next(fits, None)
            if index is None:
                return None
            more = _UID if interval.rate is None or interval.rate in rates[index] else _UID + _LINE
            if interval.rate is not None:
                rates[index].add(interval.rate)
            sizes[index] = sizes[index][0] + 1, sizes[index][1] + more
        placed[index][uid] = interval
    return placed


def _size(page: RecordPage) -> tuple[int, int]:
    """Return how many intervals a page has, and about how many characters they take."""
    count = sum(map(len, page.running.values())) + len(page.finished) + len(page.split)
    return count, count * _UID + (len(page.running) + len(page.split)) * _LINE
