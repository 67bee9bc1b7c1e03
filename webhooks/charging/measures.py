"""What the charging of groups tells those who measure it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Measures(Protocol):
    """Is told of what is decided and written."""

    def waited(self, seconds: float) -> None:
        """A charge had its verdict, or ran out of time, so long after its arrival."""
        ...

    def decided(self, charges: int) -> None:
        """So many charges were decided together."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Return a context in which a group's status is written once."""
        ...

    def recalled(self, allowances: int) -> None:
        """So many allowances of a group were taken back."""
        ...


class Unmeasured:
    """Measures nothing."""

    def waited(self, seconds: float) -> None: ...

    def decided(self, charges: int) -> None: ...

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def recalled(self, allowances: int) -> None: ...
