"""The errors that bizrq logs while a test runs: in this process, and in the files of processes that it starts.

What nobody expects, bizrq logs and carries on. So a test that looks at answers and statuses alone does not notice it.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

#: An error line as `bizrq.process` writes it, or the begin of what Python says of an exception that nobody caught.
_LINE = re.compile(r"^(?:\S+ \[(?:error|critical) *\]|Traceback \(most recent call last\):)", re.MULTILINE)
#: How much of a file is shown from such a line on.
_SHOWN = 3000


class LoggedErrors:
    """Collects errors; `taken` returns them once."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._read: dict[Path, int] = {}
        self._expected: list[str] = []
        self._allowed: list[str] = []

    def allow(self, begin: str) -> None:
        """Check what came until now; from then on errors that begin so may come."""
        self.check()
        self._expected.clear()
        self._allowed.append(begin)

    def expect(self, event: str) -> None:
        """Have the test log errors of this event: without one of them it fails, too."""
        self._expected.append(event)

    def check(self) -> None:
        """Fail where an error came that was not expected, or an expected one did not come."""
        found = self.taken()
        known = (*(f"{event}:" for event in self._expected), *self._allowed)
        wrong = [each for each in found if not each.startswith(known)]
        assert not wrong, "\n".join(wrong)
        missing = [event for event in self._expected if not any(each.startswith(f"{event}:") for each in found)]
        assert not missing, f"not logged: {missing}"

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Collect what this process logs as an error within the block, bizrq and its libraries alike."""
        # Bound loggers keep this very list.
        processors: list[Any] = structlog.get_config()["processors"]
        handler = _Handler(self._found)
        processors.insert(0, self._of_structlog)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
            processors.remove(self._of_structlog)

    def read(self, folder: Path) -> None:
        """Collect what has been added to the log files of a folder since they were read last."""
        for path in sorted(folder.glob("*.log")):
            text = path.read_text("utf-8", errors="replace")
            added = text[self._read.get(path, 0) :]
            self._read[path] = len(text)
            if (first := _LINE.search(added)) is not None:
                self._found.append(f"{path.name}: {added[first.start() :][:_SHOWN]}")

    def taken(self) -> list[str]:
        """Return the errors that came since the last call."""
        taken = list(self._found)
        self._found.clear()
        return taken

    def _of_structlog(self, _logger: object, method: str, event: structlog.typing.EventDict) -> Any:
        # What a library logs has the name of its logger, and comes to the handler, too.
        if method in ("error", "critical", "exception") and "logger" not in event:
            trace = f"\n{traceback.format_exc()}" if event.get("exc_info") else ""
            told = ", ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "exc_info"))
            self._found.append(f"{event.get('event')}: {told}{trace}")
        return event


class _Handler(logging.Handler):
    """Collects what is logged by the standard library: also of tasks and callbacks that failed unseen."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self._found.append(f"{record.name}: {record.getMessage()}\n{trace}")
