"""The condition `Enforced` of groups, and how old a recount may be.

This file alone decides what the condition says, and when counts are stale. The controller's leader sets the condition,
and the command line reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bizrq.api.group import Condition, GroupObject
from bizrq.units.times import TimestampError, parse_timestamp

#: The name of the ValidatingWebhookConfiguration.
REGISTRATION: Final = "bizrq"
CONDITION: Final = "Enforced"
REGISTERED: Final = "Registered"
NOT_REGISTERED: Final = "NotRegistered"
PAUSED: Final = "Paused"
#: Seconds between two recounts where a status does not say it: the controller's default.
RECOUNT: Final = 300
#: Seconds that a recount may be late, besides the interval: it is written at the first look after nine tenths of it.
_LATE: Final = 30


@dataclass(frozen=True, slots=True)
class Stale:
    """Groups whose last recount is older than it may be, the oldest first, and the age of the oldest in seconds."""

    groups: tuple[str, ...]
    seconds: int


def draft(is_registered: bool, pause: str = "") -> tuple[str, bool, str, str]:
    """Return the condition without its times: type, status, reason and message.

    `pause` says since when bizrq is paused, by whom and why; "" where it is not.
    """
    if is_registered:
        return CONDITION, True, REGISTERED, f"the webhook registration {REGISTRATION} is there"
    if pause:
        return CONDITION, False, PAUSED, while_paused(pause)
    missing = f"the webhook registration {REGISTRATION} is missing: nothing is refused; bizrq doctor says more"
    return CONDITION, False, NOT_REGISTERED, missing


def while_paused(pause: str) -> str:
    """Return what follows from a pause; `pause` says since when, by whom and why."""
    return f"{pause}; nothing is refused until bizrq resume"


def stated(groups: Iterable[GroupObject]) -> Condition | None:
    """Return the condition of the group that was counted last, None where no group has it."""
    latest, found = -1, None
    for group in groups:
        condition = next((c for c in group.status.conditions if c.type == CONDITION), None)
        counted = counted_at(group)
        if condition is not None and condition.status != "Unknown" and (counted or 0) > latest:
            latest, found = counted or 0, condition
    return found


def is_stated(groups: Iterable[GroupObject]) -> bool | None:
    """Return what that condition says, None where no group has it."""
    condition = stated(groups)
    return None if condition is None else condition.status == "True"


def counted_at(group: GroupObject) -> int | None:
    """Return when the group was last recounted, in milliseconds since 1970; None where that is not known."""
    try:
        return parse_timestamp(group.status.last_reconcile_time or "")
    except TimestampError:
        return None


def stale(groups: Iterable[GroupObject], now: int) -> Stale | None:
    """Return the groups whose counts are older than they may be at `now`, in milliseconds since 1970; None for none.

    A group that was never counted is not among them: its condition `Ready` says so.
    """
    late: list[tuple[int, str]] = []
    for group in groups:
        counted = counted_at(group)
        # An interval may pass before a look, and another one because that look came a little early.
        allowed = (2 * (group.status.recount_seconds or RECOUNT) + _LATE) * 1000
        if counted is not None and now - counted > allowed:
            late.append((counted, group.name))
    if not late:
        return None
    late.sort()
    return Stale(tuple(name for _, name in late), (now - late[0][0]) // 1000)
