"""Stores which makers of pods are over their group's quota through overlap, for the API server to reject their pods.

This file alone writes that list (`bizrq.api.overlap`). The reconciler says which makers are listed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import structlog

from bizrq.api import overlap
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Unreachable
from bizrq.store.overlaps import OVERLAPS
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp

log = structlog.get_logger(__name__)

#: Seconds between two writes at least, and until a write that failed is tried again: twice as many after each failure.
PACE = 1.0
#: The same where a maker comes or goes: one that comes is replacing pods meanwhile, and the controller of one that goes
#: tries again ever more rarely.
_SOON = 0.2
#: Seconds after which the stored list is compared again, and between two tries at most. Others may have deleted it.
CHECK = 30.0
#: How many makers are listed at most by each text. The rest of the list is for those of groups that are over.
_MOST: Final = {overlap.LOWERED: overlap.MAX_LISTED // 4, overlap.GONE: overlap.MAX_LISTED // 2}


class _Late(NamedTuple):
    """A maker that is listed beside those of the groups that are over: until a time in milliseconds since 1970.

    `group` pays for it, or did; "" where that is not known.
    """

    until: int
    text: str
    group: str


class OverlapList:
    """The listed makers of all groups; `run` keeps the stored list equal to it."""

    def __init__(self, client: KubeClient, now: Callable[[], int], *, pace: float = PACE, check: float = CHECK) -> None:
        """`now` returns milliseconds since 1970."""
        self._client = client
        self._now = now
        self._pace = pace
        self._check = check
        #: Texts by key, by group; no group without any. Then the end by key, of those that have one.
        self._listed: dict[str, Mapping[str, str]] = {}
        self._ends: dict[str, Mapping[str, str]] = {}
        #: The makers that are gone or ask for fewer pods, by uid. With those that are gone of an earlier leader, once
        #: its list was read.
        self._late: dict[str, _Late] = {}
        self._has_read = False
        #: The keys that are stored, as far as is known; None while none can be.
        self._stored: Collection[str] | None = ()
        self._listed_late: Callable[[str], None] = _nobody
        self._changed = asyncio.Event()
        #: Some maker is newly listed, or no longer.
        self._urgent = asyncio.Event()

    def set(self, group: str, listed: Mapping[str, str], ends: Mapping[str, str] | None = None) -> None:
        """Replace the makers of a group: the text of the rejection by key, what matters most first.

        `ends` are the times from which a key rejects nothing (RFC 3339).
        """
        ends = ends or {}
        before, ended = self._listed.pop(group, {}), self._ends.pop(group, {})
        if listed:
            self._listed[group], self._ends[group] = dict(listed), dict(ends)
        if before != listed or ended != ends:
            self._changed.set()
        if before.keys() != listed.keys():
            self._urgent.set()

    def subscribe(self, listed_late: Callable[[str], None]) -> None:
        """Call `listed_late` with a group once makers of its pods that are gone are listed, or their time is over."""
        self._listed_late = listed_late

    def reject_late(self, uid: str, until: int, text: str, group: str) -> None:
        """List a maker with a text, beside those of the groups that are over, until a time in milliseconds since 1970.

        It is listed no longer where that time is over. `group` pays for it, or did.
        """
        if until > self._now():
            self._late[uid] = _Late(until, text, group)
        else:
            self._late.pop(uid, None)
        self._changed.set()
        self._urgent.set()

    def may_pass(self, uids: Iterable[str]) -> bool:
        """Return True while pods may pass of one of these that is gone: it is not listed yet, or has no place.

        Where the list cannot be stored, nothing waits for that.
        """
        if self._stored is None:
            return False
        late = (uid for uid in uids if uid in self._late and uid not in self._stored)
        return any(self._late[uid].text == overlap.GONE and self._late[uid].until > self._now() for uid in late)

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        self.set(group, {})

    async def run(self) -> None:
        """Keep the stored list until cancelled. The first write replaces what an earlier leader left."""
        pause = self._pace
        while True:
            self._changed.clear()
            self._urgent.clear()
            try:
                await self._write()
            except (ApiError, Unreachable) as error:
                # New pods pass meanwhile, and are counted.
                log.warning("overlap not stored, retrying", error=str(error))
                if pause > self._pace:
                    self._note_stored(None)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._check)
                continue
            pause, soon = self._pace, min(self._pace, _SOON)
            await asyncio.sleep(soon)
            await _happens(self._urgent, pause - soon)
            await _happens(self._changed, self._check)

    async def _write(self) -> None:
        try:
            stored = await self._client.get(OVERLAPS, overlap.NAME)
        except NotFound:
            stored = None
        body = self._wanted(stored or {})
        if stored is None:
            try:
                await self._client.create(OVERLAPS, body)
            except AlreadyExists:
                self._changed.set()
                return
        else:
            fields = ("listed", "ends")
            changes = {each: {**dict.fromkeys(stored.get(each) or {}), **body[each]} for each in fields}
            if any((stored.get(each) or {}) != body[each] for each in fields):
                await self._client.patch(OVERLAPS, overlap.NAME, changes)
        self._note_stored(body["listed"].keys())

    def _note_stored(self, keys: Collection[str] | None) -> None:
        """Note which keys are stored now, and tell the groups for whose makers that are gone nothing waits any more."""
        before = {key for key in self._late if self.may_pass([key])}
        self._stored = keys
        self._tell({self._late[key].group for key in before if not self.may_pass([key])})

    def _wanted(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the list as it has to be now, in place of the stored one."""
        self._take_over_gone(stored)
        self._drop_ended()
        # One of each group in turn: no group takes the place of others.
        turns = zip_longest(*(texts.items() for _, texts in sorted(self._listed.items())))
        listed = dict(each for turn in turns for each in turn if each is not None)
        late = {key: self._late[key] for key in self._with_place()}
        ends = {key: format_timestamp(each.until) for key, each in late.items()}
        ends |= {key: self._end(key) for key in listed}
        # What is late has places of its own, and short texts.
        listed = {key: each.text for key, each in late.items()} | listed
        body = overlap.overlap_list(listed, {key: end for key, end in ends.items() if end})
        if len(listed) > len(body["listed"]):
            log.warning("too many workloads overlap: pods of some are not rejected", listed=len(listed))
        if len(late) < len(self._late):
            log.warning("too many workloads go before they run: some are charged on", late=len(self._late))
        return body

    def _with_place(self) -> Iterator[str]:
        """Yield what is gone or asks for fewer, as far as there are places.

        What is stored keeps its place: nobody is charged for it any more. Of the others a group gets a place while it
        has fewer than are free then, so that no group takes the last one.
        """
        stored = self._stored or ()
        for text, most in _MOST.items():
            taken, groups = 0, Counter[str]()
            late = [key for key, each in self._late.items() if each.text == text]
            for key in sorted(late, key=lambda each: each not in stored):
                group = self._late[key].group
                if taken < most if key in stored else groups[group] < most - taken:
                    groups[group] += 1
                    taken += 1
                    yield key

    def _take_over_gone(self, stored: Mapping[str, Any]) -> None:
        """Keep the makers that are gone and that an earlier leader has listed: nobody sees them go again.

        What asks for fewer pods is found again where its controller has still not acted on that.
        """
        if self._has_read:
            return
        self._has_read = True
        listed, ends = stored.get("listed") or {}, stored.get("ends") or {}
        self._stored = listed.keys()
        for key in (key for key, text in listed.items() if text == overlap.GONE):
            with contextlib.suppress(TimestampError):
                self._late.setdefault(key, _Late(parse_timestamp(ends.get(key, "")), overlap.GONE, ""))

    def _drop_ended(self) -> None:
        now = self._now()
        self._tell({self._late.pop(key).group for key in [k for k, late in self._late.items() if late.until <= now]})

    def _tell(self, groups: set[str]) -> None:
        for group in groups - {""}:
            self._listed_late(group)

    def _end(self, key: str) -> str:
        """Return the last end of a key that several groups may list; "" where one of them has none."""
        ends = [self._ends[group].get(key, "") for group, texts in self._listed.items() if key in texts]
        return max(ends) if all(ends) else ""


async def _happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _nobody(group: str) -> None:
    """Tell nobody."""
