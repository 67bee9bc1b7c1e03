"""What verbs print on: a terminal's own width and colours, or plain whole lines for a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A pipe has no width: lines stay whole there, for grep and for people's scripts.
PIPE = 4096


def console() -> Console:
    """Standard output; with NO_COLOR nothing but text."""
    from rich.console import Console

    colors = None if os.environ.get("NO_COLOR") else "auto"
    here = Console(highlight=False, color_system=colors)
    return here if here.is_terminal else Console(highlight=False, color_system=colors, width=PIPE)


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), margin: int = 0
) -> Table:
    """Make a table without lines, as kubectl's are. The columns in `right` are flush right; no cell is wrapped."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        text = " " * margin + head.upper() if not number else head.upper()
        made.add_column(text, no_wrap=True, justify="right" if head in right else "left")
    for first, *rest in rows:
        made.add_row(Text.assemble(" " * margin, first), *rest)
    return made


def sanitize(text: str) -> str:
    """What somebody wrote, without what a terminal would obey and what turns the direction of writing."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_sentences(console: Console, lines: Iterable[str], margin: int) -> None:
    """Print sentences right of a margin, where they stay on a terminal that is too narrow for one line.

    A CommandLine is never broken: it is there to be copied.
    """
    from rich.text import Text

    for line in lines:
        indent = margin + len(line) - len(line.lstrip())
        whole = not console.is_terminal or isinstance(line, CommandLine)
        text = Text(line.lstrip())
        for part in [text] if whole else text.wrap(console, max(20, console.width - indent)):
            console.print(Text(" " * indent) + part, soft_wrap=True)


def width_of(table: Table) -> int:
    """The columns that a table needs where nothing of it is cut."""
    from rich.measure import Measurement

    here = console()
    return Measurement.get(here, here.options.update(width=PIPE), table).maximum


def is_ascii(console: Console) -> bool:
    """Whether nothing but ASCII can be drawn there, as in the locale C."""
    return not console.encoding.startswith("utf")


def print_whole(table: Table) -> None:
    """Print a table whose lines are never cut: a terminal that is too narrow for them breaks them, as kubectl's."""
    here = console()
    here.width = PIPE
    here.print(table)


def print_json(document: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def ago(timestamp: str) -> str:
    """The time since then as kubectl tells it: 45s, 12m, 5h, 3d."""
    from datetime import UTC, datetime

    try:
        since = datetime.now(UTC) - datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    seconds = max(0, int(since.total_seconds()))
    for size, unit, most in ((1, "s", 120), (60, "m", 120 * 60), (3600, "h", 48 * 3600)):
        if seconds < most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


class CommandLine(str):
    """A line to type as it stands."""

    __slots__ = ()
