"""Failures and warnings of verbs: one line on stderr, one exit code."""

from __future__ import annotations

import sys
from collections.abc import Collection

from bizrq.units.text import printable

EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_CLUSTER = 3
#: The answer depends on something that the person may not read.
EXIT_UNKNOWN = 4


class Failure(Exception):
    """End a verb with a line on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def warn(message: str) -> None:
    """Print a line on stderr; the exit code stays as it is."""
    sys.stderr.write(printable(f"bizrq: {message}\n"))


def progress(message: str) -> None:
    """Tell a person at a terminal what the verb does or waits for; scripts and logs get nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(printable(f"{message}\n"))


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
