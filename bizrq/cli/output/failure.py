"""Failures and warnings of verbs: one line on stderr, one exit code."""

from __future__ import annotations

import sys

from bizrq.figures.errors import BadValue, NoAnswer, NotAllowed, UnreadableLine
from bizrq.units.text import one_line

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


def failed(error: NoAnswer) -> Failure:
    """Return the failure of a question that has no answer: its line names the flag, and what to do."""
    message = str(error)
    if isinstance(error, BadValue) and error.field:
        message = f"--{error.field} {message}"
    if isinstance(error, UnreadableLine):
        message = f"{message}; run bizrq audit to find the line"
    return Failure(message, EXIT_CLUSTER if isinstance(error, NotAllowed) else EXIT_BAD_INPUT)


def warn(message: str) -> None:
    """Print a line on stderr; the exit code stays as it is."""
    sys.stderr.write(f"bizrq: {one_line(message)}\n")


def progress(message: str) -> None:
    """Tell a person at a terminal what the verb does or waits for; scripts and logs get nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{one_line(message)}\n")
