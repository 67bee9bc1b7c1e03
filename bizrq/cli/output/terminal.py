"""Print on a terminal with its width and colours, or whole plain lines into a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.units.text import escaped, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

#: The width of a pipe, which has none: lines stay whole, for grep and for scripts.
PIPE = 4096


def console() -> Console:
    """Return a console on standard output, without colours if NO_COLOR is set.

    It prints text as it is, markup included, and no character that a terminal would obey.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Filtered(Console):
        def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                plain = segment.control or segment.text.isprintable()
                yield segment if plain else segment._replace(text=printable(segment.text))

    colors = None if os.environ.get("NO_COLOR") else "auto"
    here = Filtered(highlight=False, markup=False, emoji=False, color_system=colors)
    if not here.is_terminal:
        here.width = PIPE
    return here


def write(text: str) -> None:
    """Write lines to standard output, without the characters that a terminal would obey."""
    sys.stdout.write(printable(text))


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
    """Return the text in one line, without the characters that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_sentences(console: Console, lines: Iterable[str], margin: int) -> None:
    """Print sentences right of a margin, and wrap them there on a narrow terminal.

    A CommandLine is never wrapped, so that it can be copied.
    """
    from rich.text import Text

    for line in lines:
        indent = margin + len(line) - len(line.lstrip())
        whole = not console.is_terminal or isinstance(line, CommandLine)
        text = Text(line.lstrip())
        for part in [text] if whole else text.wrap(console, max(20, console.width - indent)):
            console.print(Text(" " * indent) + part, soft_wrap=True)


def width_of(table: Table) -> int:
    """Return the number of columns that a table needs if nothing is cut."""
    from rich.measure import Measurement

    here = console()
    return Measurement.get(here, here.options.update(width=PIPE), table).maximum


def is_ascii(console: Console) -> bool:
    """Return True if the console can only show ASCII, as in the locale C."""
    return not console.encoding.startswith("utf")


def print_whole(table: Table) -> None:
    """Print a table whose lines are never cut; a narrow terminal wraps them, as with kubectl."""
    here = console()
    here.width = PIPE
    here.print(table)


def print_json(document: Any) -> None:
    import orjson

    sys.stdout.write(escaped(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()) + "\n")


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
