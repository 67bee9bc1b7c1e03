"""Print on a terminal with its width and colours, or whole plain lines into a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.figures.words import CommandLine
from bizrq.units.text import escaped, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

#: The width of a pipe, which has none: lines stay whole, for grep and for scripts.
PIPE = 4096
#: The space between two columns of a table: one right of a cell, one left of the next.
_GAP = 2
#: Locales of ASCII, and those that Python sets in place of them.
_PLAIN_LOCALES, _COERCED = ("C", "POSIX"), ("C.UTF-8", "C.utf8", "UTF-8")


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
    """Make a table without lines, as kubectl's are. The columns in `right` are flush right; no cell is wrapped.

    Each column has its width: rich would measure every cell again, three times to print the table once.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    lines = [[Text.assemble(" " * margin, first), *map(_as_text, rest)] for first, *rest in rows]
    for number, head in enumerate(heads):
        text = Text(" " * margin + head.upper() if not number else head.upper())
        cells = [text, *(line[number] for line in lines if number < len(line))]
        width = max(map(_cell_width, cells))
        made.add_column(text, no_wrap=True, justify="right" if head in right else "left", width=width)
    for line in lines:
        made.add_row(*line)
    return made


def _as_text(cell: Any) -> Text:
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(cell)


def _cell_width(cell: Text) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.plain.splitlines()), default=0)


def print_sentences(console: Console, lines: Iterable[str], margin: int) -> None:
    """Print sentences right of a margin, and wrap them on a narrow terminal: two columns further right, if in a margin.

    A CommandLine is never wrapped, so that it can be copied.
    """
    from rich.text import Text

    for line in lines:
        indent = margin + len(line) - len(line.lstrip())
        text = Text(line.lstrip())
        if isinstance(line, CommandLine):
            console.print(Text(" " * indent) + text, soft_wrap=True)
        else:
            print_hanging(console, text, indent + 2 if indent else 0, indent)


def print_hanging(console: Console, text: Text, hang: int, indent: int = 0) -> None:
    """Print one line; on a narrow terminal what does not fit goes on in lines that begin at the column `hang`."""
    from rich.text import Text

    whole = indent + _cell_width(text) <= console.width or not console.is_terminal
    first, *rest = [text] if whole else text.wrap(console, max(20, console.width - hang))
    console.print(Text(" " * indent) + first, soft_wrap=True)
    for part in rest:
        console.print(Text(" " * hang) + part, soft_wrap=True)


def width_of(table: Table) -> int:
    """Return the number of columns that a table of `plain_table` needs if nothing is cut."""
    return sum(column.width or 0 for column in table.columns) + _GAP * (len(table.columns) - 1)


def is_ascii(console: Console) -> bool:
    """Return True if the console can only show ASCII, or the locale asks for it."""
    return not console.encoding.startswith("utf") or is_ascii_locale()


def is_ascii_locale() -> bool:
    """Return True for the locale C. Python itself prints UTF-8 there, and may have set LC_CTYPE (PEP 538 and 540)."""
    everything, characters, language = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if language in _PLAIN_LOCALES and characters in _COERCED:
        characters = ""
    return (everything or characters or language) in _PLAIN_LOCALES


def print_whole(table: Table) -> None:
    """Print a table whose lines are never cut; a narrow terminal wraps them, as with kubectl. Pipes get no padding."""
    here = console()
    here.width = PIPE
    if here.is_terminal:
        here.print(table)
        return
    with here.capture() as printed:
        here.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def print_stacked(heads: Sequence[str], rows: Iterable[Sequence[Any]], margin: int = 0) -> None:
    """Print each row on lines of its own: the first cell, then the others behind their heads; empty ones are left out.

    A line is broken between cells only. An empty first cell continues the row above.
    """
    from rich.text import Text

    here = console()
    for first, *rest in rows:
        if len(first):
            here.print(Text.assemble(" " * margin, first), soft_wrap=True)
        pairs = [
            Text.assemble(head.upper(), " " if head else "", cell)
            for head, cell in zip(heads[1:], rest, strict=True)
            if len(cell)
        ]
        print_filled(here, pairs, " " * (margin + 2))


def print_filled(console: Console, parts: Sequence[Text], lead: str) -> None:
    """Print the parts after `lead`, as many in a line as the console has room for."""
    from rich.text import Text

    line = Text(lead)
    for part in parts:
        if len(line) > len(lead) and line.cell_len + 2 + part.cell_len > console.width:
            console.print(line, soft_wrap=True)
            line = Text(lead)
        line = Text.assemble(line, "  " if len(line) > len(lead) else "", part)
    if len(line) > len(lead):
        console.print(line, soft_wrap=True)


def print_json(document: Any) -> None:
    import json

    import orjson

    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:
        # A ceiling may be larger than an integer of 64 bits once it is in base units.
        text = json.dumps(document, indent=2, ensure_ascii=False)
    sys.stdout.write(escaped(text) + "\n")
