"""Words that answers share: short lists, alternatives to an unknown name, ages and command lines."""

from __future__ import annotations

from collections.abc import Collection

#: The most names to list of what exists, and of many that share something.
_FEW, _FIRST = 12, 5


def few(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _FIRST} more" if len(names) > _FIRST else ""
    return ", ".join([*names][:_FIRST]) + more


def alternatives(name: str, known: Collection[str]) -> str:
    """Name what exists instead of an unknown name: all names if they are few, else the closest ones."""
    if len(known) <= _FEW:
        return f"there are: {', '.join(known) or 'none'}"
    import difflib

    close = difflib.get_close_matches(name[:100], list(known), n=3)
    if close:
        return f"the nearest of {len(known)}: {', '.join(close)}"
    return f"there are {len(known)}, like {', '.join(list(known)[:3])}"


def ago(timestamp: str) -> str:
    """Return the time since a timestamp as kubectl prints it: 45s, 12m, 5h, 3d."""
    from datetime import UTC, datetime

    try:
        since = datetime.now(UTC) - datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    return duration(max(0, int(since.total_seconds())))


def duration(seconds: int) -> str:
    """Return whole seconds as kubectl prints an age."""
    for size, unit, most in ((1, "s", 120), (60, "m", 120 * 60), (3600, "h", 48 * 3600)):
        if seconds < most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


class CommandLine(str):
    """A command line to copy."""

    __slots__ = ()
