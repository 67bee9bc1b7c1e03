"""What verbs print on: a terminal's own width and colours, or plain whole lines for a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A pipe has no width: lines stay whole there, for grep and for people's scripts.
PIPE = 240


def console() -> Console:
    """Standard output; with NO_COLOR nothing but text."""
    from rich.console import Console

    colors = None if os.environ.get("NO_COLOR") else "auto"
    here = Console(highlight=False, color_system=colors)
    return here if here.is_terminal else Console(highlight=False, color_system=colors, width=PIPE)


def table(*heads: str) -> Table:
    """A table without lines, as kubectl's are; its first columns are not wrapped."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head, no_wrap=True)
    return made


def tell(console: Console, lines: Iterable[str], margin: int) -> None:
    """Print sentences right of a margin, where they stay on a terminal that is too narrow for one line.

    A Command is never broken: it is there to be copied.
    """
    from rich.text import Text

    from bizrq.cli.explanation import Command

    for line in lines:
        whole = not console.is_terminal or isinstance(line, Command)
        broken = [Text(line)] if whole else Text(line).wrap(console, max(20, console.width - margin))
        for part in broken:
            console.print(Text(" " * margin) + part, soft_wrap=True)


def print_json(document: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
