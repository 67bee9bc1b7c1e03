"""Points in time on the wire: RFC 3339 with milliseconds, integers of milliseconds since 1970 inside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: The longest span that Kubernetes can hold, in seconds. It counts nanoseconds in 64 bits: with a longer grace the
#: `deletionTimestamp` wraps around, centuries into the past (kubernetes apiserver pkg/registry/rest/delete.go).
LONGEST: Final = (2**63 - 1) // 1_000_000_000


class TimestampError(ValueError):
    """A text that is no point in time."""


def format_timestamp(at: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    whole, millis = divmod(at, 1000)
    # Not strftime: it writes the year 999 with three digits, which is no RFC 3339.
    return f"{datetime.fromtimestamp(whole, UTC).replace(tzinfo=None).isoformat()}.{millis:03d}Z"


def parse_timestamp(text: str) -> int:
    """RFC 3339, with or without a fraction, as milliseconds since 1970; raises TimestampError."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise TimestampError(f"{text[:80]!r} has no time zone")
        # Overflows where it would be a year before 1 or after 9999, which no timestamp could say.
        since = at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, TimestampError):
            raise
        raise TimestampError(f"{text[:80]!r} is no time") from None
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
