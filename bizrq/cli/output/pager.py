"""Show long output in the user's pager, on terminals only.

This file alone decides when a pager is started, and which one.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

#: Options of less without $LESS: quit if it fits one screen, pass colours on, leave the text on the screen.
_LESS = "FRX"


class _Buffer(io.StringIO):
    """Keep what is printed; to those who print it is the terminal itself."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] as io.TextIOWrapper has it
        return self._encoding

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def pager(*, enabled: bool = True) -> Iterator[None]:
    """Print what the block prints through $PAGER, by default less, if it is longer than the terminal.

    An empty PAGER, a terminal without abilities or a pager that is not found: print it at once.
    """
    command = shlex.split(os.environ.get("PAGER", "less"))
    wanted = enabled and command and os.environ.get("TERM", "dumb") != "dumb" and shutil.which(command[0])
    out = sys.stdout
    if not wanted or not _is_terminal():
        yield
        return
    buffer = _Buffer(out.encoding)
    try:
        with contextlib.redirect_stdout(buffer):
            yield
    finally:
        text = buffer.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines:
            out.write(text)
        else:
            _page(command, text)


def _is_terminal() -> bool:
    """Return True if standard output is a real terminal, which a pager needs."""
    try:
        return os.isatty(sys.stdout.fileno()) and os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):
        return False


def _page(command: list[str], text: str) -> None:
    sys.stdout.flush()
    here = {**os.environ, "LESS": os.environ.get("LESS", _LESS)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=here)  # noqa: S603 the user's own pager
    # Who quits the pager early has seen enough.
    with contextlib.suppress(BrokenPipeError):
        process.communicate(text.encode(sys.stdout.encoding, "replace"))
    # An interrupt is the pager's business.
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue
