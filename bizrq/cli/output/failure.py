"""How a verb says that it could not: one line, one exit code."""

from __future__ import annotations

import sys
from collections.abc import Collection

#: The answer is no.
EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_CLUSTER = 3


class Failure(Exception):
    """A verb that ends with a line on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def warn(message: str) -> None:
    """Print a line on stderr; the exit code stays as it is."""
    sys.stderr.write(f"bizrq: {message}\n")


#: Names that a person still reads in one line.
_FEW = 12


def alternatives(name: str, known: Collection[str]) -> str:
    """What there is instead of a name that is not: all in their order where they are few, else the nearest."""
    if len(known) <= _FEW:
        return f"there are: {', '.join(known) or 'none'}"
    import difflib

    close = difflib.get_close_matches(name[:100], list(known), n=3)
    if close:
        return f"the nearest of {len(known)}: {', '.join(close)}"
    return f"there are {len(known)}, like {', '.join(list(known)[:3])}"
