"""Why a question about groups or hours has no answer.

The command line turns these into a line and an exit code, the web UI into a status and a place on the page. Errors of
the API server itself are those of `bizrq.kube.client`.
"""

from __future__ import annotations


class NoAnswer(Exception):
    """The question has no answer; the message is one line for the person who asked."""


class UnknownGroup(NoAnswer):
    """There is no group of this `name`, or it may not be read. The message names groups that there are."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class NotThere(NoAnswer):
    """Something else that was asked for is not there: a resource, a kind, a workload, or hours of a period."""


class BadValue(NoAnswer):
    """A given value means nothing. `field` is its name: `price`, `currency`, `period`; "" where only one is given."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotAllowed(NoAnswer):
    """The user may not read what the answer takes; the message says whom to ask."""


class Unreadable(NoAnswer):
    """Something stored means nothing to this version."""


class UnreadableLine(Unreadable):
    """A line of a record or statement means nothing; an audit finds it."""
