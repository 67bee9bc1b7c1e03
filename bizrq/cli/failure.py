"""How a verb says that it could not: one line, one exit code."""

from __future__ import annotations

#: The answer is no.
NO = 1
BAD_INPUT = 2
CLUSTER = 3


class Failure(Exception):
    """A verb that ends with a line on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
