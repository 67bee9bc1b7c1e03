"""The periods of grants: days, weeks or months by the wall clock of a time zone.

This file alone decides where periods begin and end. It does not know groups or clocks: instants are integer
milliseconds since 1970, periods half open, and the rules of time zones are data (IANA's, PEP 615).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

PERIODS = ("daily", "weekly", "monthly")
#: A Monday, and the first of a month: by default days begin at midnight, and weeks on Mondays.
DEFAULT_ANCHOR = datetime(2024, 1, 1)  # noqa: DTZ001 a wall time
#: The least notice for the end of a lifetime, in milliseconds: by then all processes that charge have seen it.
NOTICE = 600_000
#: The least move of an end, in milliseconds: a zone's new rules that move a boundary by less do not reschedule.
SLACK = 3 * 3_600_000

_ANCHOR = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", re.ASCII)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduleError(ValueError):
    """No schedule. The message is one line: what is wrong, what to write instead."""


class Period(NamedTuple):
    """From `start` up to `end`: None is from the beginning, or for ever."""

    start: int | None = None
    end: int | None = None

    def contains(self, at: int) -> bool:
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)

    def overlap(self, start: int, end: int) -> int:
        """Return how many milliseconds of an interval fall into the period."""
        first = start if self.start is None else max(start, self.start)
        last = end if self.end is None else min(end, self.end)
        return max(0, last - first)


#: The period of a budget that is granted once.
ALL_TIME = Period()


@dataclass(frozen=True, slots=True)
class Schedule:
    """`period` is one of PERIODS, or "" for a budget of a lifetime; `anchor` any wall time at which one begins."""

    period: str = ""
    zone: str = "UTC"
    anchor: datetime = DEFAULT_ANCHOR

    def next_boundary(self, at: int) -> int | None:
        """Return the first boundary after an instant; None for a lifetime, and at the end of the calendar."""
        if not self.period:
            return None
        zone = _zone(self.zone)
        number = self._number(_wall(at, zone)) - 2
        while (wall := self._boundary(number)) is not None:
            # Where a zone has skipped a whole day, two boundaries are one instant.
            if (found := _instant(wall, zone)) > at:
                return found
            number += 1
        return None

    def _number(self, wall: datetime) -> int:
        """Return about how many periods lie between the anchor and this wall time."""
        if self.period == "monthly":
            return (wall.year - self.anchor.year) * 12 + wall.month - self.anchor.month
        return (wall - self.anchor) // (_DAY * (7 if self.period == "weekly" else 1))

    def _boundary(self, number: int) -> datetime | None:
        """Return the wall time at which this period begins; days that a month lacks become its last day."""
        try:
            if self.period != "monthly":
                return self.anchor + number * _DAY * (7 if self.period == "weekly" else 1)
            months = self.anchor.year * 12 + self.anchor.month - 1 + number
            first = self.anchor.replace(year=months // 12, month=months % 12 + 1, day=1)
            return first + _DAY * (min(self.anchor.day, _days_of(first)) - 1)
        except (OverflowError, ValueError):
            return None


def parse_schedule(period: str = "", zone: str = "", anchor: str = "") -> Schedule:
    """Return the schedule of the fields of `spec.cash`; raises ScheduleError."""
    if period and period not in PERIODS:
        raise ScheduleError(f"period: {period[:80]!r} is none of {', '.join(PERIODS)}")
    if not period and (zone or anchor):
        raise ScheduleError(f"{'timeZone' if zone else 'anchor'}: there is no period: write period, or leave it out")
    if zone and zone not in _zones():
        near = difflib.get_close_matches(zone[:80], _zones(), n=1, cutoff=0.5)
        raise ScheduleError(
            f"timeZone: {zone[:80]!r} is no time zone: "
            + (f"did you mean {near[0]}?" if near else "write a name of the IANA database, like Europe/Berlin")
        )
    return Schedule(period, zone or "UTC", _anchor(anchor) if anchor else DEFAULT_ANCHOR)


def _anchor(text: str) -> datetime:
    try:
        if not _ANCHOR.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleError(
            f"anchor: {text[:80]!r} is no local time: write a date like 2026-01-05, or 2026-01-05T09:00"
        ) from None


def first_period(schedule: Schedule, now: int) -> Period:
    """Return the first period of a record."""
    return Period(None, schedule.next_boundary(now + NOTICE))


def rescheduled(schedule: Schedule, current: Period, now: int) -> Period:
    """Return the open period with the end that the schedule gives it.

    A changed schedule begins at its first boundary that is not before the published end; one that is removed
    ends there. So an end only moves on, and no hour that is settled changes its period.
    """
    if current.end is None:
        return Period(current.start, schedule.next_boundary(max(now, current.start or now) + NOTICE))
    boundary = schedule.next_boundary(current.end - SLACK)
    # Nearer than that it is the same boundary, and the next period makes up for it.
    moved = boundary is not None and boundary > current.end + SLACK
    return Period(current.start, boundary if moved else current.end)


def next_period(schedule: Schedule, current: Period) -> Period:
    """Return the period after one that has an end."""
    if current.end is None:
        raise ValueError("a lifetime has nothing after it")
    return Period(current.end, schedule.next_boundary(current.end + SLACK))


def split_at(start: int, end: int, edges: Sequence[int]) -> list[tuple[int, int]]:
    """Return an interval cut at the edges that lie in it, in order; nothing for an empty interval."""
    cuts = sorted({start, end, *(edge for edge in edges if start < edge < end)})
    return list(pairwise(cuts)) if start < end else []


def format_time(at: int, zone: str = "UTC") -> str:
    """Return an instant as text: the zone's wall time with its offset."""
    return (_EPOCH + timedelta(milliseconds=at)).astimezone(_zone(zone)).isoformat()


def _wall(at: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=at)).astimezone(zone).replace(tzinfo=None)


def _instant(wall: datetime, zone: tzinfo) -> int:
    """Return the first instant with this wall time; a skipped wall time moves later by what the zone skips."""
    return (wall.replace(tzinfo=zone, fold=0) - _EPOCH) // timedelta(milliseconds=1)


def _days_of(first: datetime) -> int:
    if first.month == 12:
        return 31
    return (first.replace(month=first.month + 1) - first).days


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # What is no place is no zone to be billed in: it is whatever the machine has.
    return frozenset(zone for zone in available_timezones() if zone not in ("localtime", "Factory", "posixrules"))


def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
