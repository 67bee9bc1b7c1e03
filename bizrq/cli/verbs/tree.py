"""bizrq tree: show the tree of groups with their usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import (
    Group,
    OnlyResource,
    Watch,
    end_unread,
    read_groups,
    watch_groups,
)
from bizrq.cli.options import Config, catalog_of
from bizrq.cli.output.tables import Output, OutputFormat, print_as

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bizrq.figures.groups.view import ResourceView, TreeRow

#: Cells of a bar on a wide and on a narrow terminal.
_LONG, _SHORT = 20, 8
#: The characters of bars: own, granted, reserved, left. Then the same, and the tree lines, in ASCII.
_BLOCKS, _ASCII = "█▓▒·", "#=+."
#: The last cell of the bar of a group that is over quota.
_OVER = "!"
_LEGEND = ("own workloads", "granted to children", "reserved", "left")
_LINES = str.maketrans("├└─│", "|`-|")


class TreeSort(StrEnum):
    NAME = "name"
    PERCENT = "percent"


_Depth = Annotated[int | None, typer.Option(min=1, help="Show only so many levels; 1 shows no children.")]
_Sort = Annotated[
    TreeSort, typer.Option("--sort", help="Order of siblings: by name, or the highest percentage of a ceiling first.")
]


def tree(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    depth: _Depth = None,
    sort: _Sort = TreeSort.NAME,
    watch: Watch = False,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Show the tree of groups, with the ceiling, usage, reservations and what is left of each resource.

    A terminal shows bars, and a legend for them. Models follow their base resource. JSON, YAML and CSV have whole
    numbers; `unit` says of what.
    """
    client, catalog = client_for(where), catalog_of(config)

    def show_items(items: list[dict[str, Any]], *, is_complete: bool = True) -> None:
        from bizrq.figures.groups.source import check_known, decode_groups
        from bizrq.figures.groups.view import tree_view

        found = tree_view(decode_groups(items), catalog, resource, is_complete=is_complete)
        if group is not None:
            check_known([group], list(found.groups))
        shown = found.pruned(group) if resource is not None else found
        rows = shown.in_order(group, depth, by_percent=sort is TreeSort.PERCENT)
        show_as(rows, output, paged=not watch)

    if not watch:
        source = run_on(client, lambda client: read_groups(client, [group] if group else []))
        show_items(list(source.items.values()), is_complete=source.is_complete)
        if not source.is_complete:
            end_unread(["the list of groups"], so=f"whether there are groups below {group} is unknown")
        return

    def show_again(items: list[dict[str, Any]]) -> None:
        from bizrq.cli.output import terminal

        terminal.console().clear()
        show_items(items)

    watch_groups(client, show_again)


def show_as(rows: list[TreeRow], form: OutputFormat, *, paged: bool) -> None:
    """Print the rows of a tree in one of the forms."""
    from bizrq.figures.groups.view import plain_group, report_row
    from bizrq.figures.tables import REPORT

    print_as(
        form,
        names=[row.view.name for row in rows],
        heads=REPORT,
        rows=[report_row(row.view, figures) for row in rows for figures in row.view.resources],
        document=[plain_group(row.view) for row in rows],
        table=lambda: show(rows, every=form is OutputFormat.WIDE),
        paged=paged,
    )


_Column = tuple[str, Callable[["ResourceView"], int | None]]
_EVERY: tuple[_Column, ...] = (
    ("HARD", lambda f: f.hard),
    ("USED", lambda f: f.used),
    ("SELF", lambda f: f.self_used),
    ("GRANTED", lambda f: f.granted),
    ("RESERVED", lambda f: f.reserved),
    ("LEFT", lambda f: f.left),
)
_PERCENT = "% OF HARD"
_WIDE: tuple[_Column, ...] = (*_EVERY, (_PERCENT, lambda f: f.percent))
#: What workloads may still cost, and what processes hold of what is left: shown where there is any.
_LIENS: _Column = ("LIENS", lambda f: f.liens)
_AHEAD: _Column = ("AHEAD", lambda f: f.ahead)
_FEW: tuple[_Column, ...] = (("HARD", lambda f: f.hard), ("USED", lambda f: f.used), ("LEFT", lambda f: f.left))


def show(rows: list[TreeRow], *, every: bool = False) -> None:
    """Print the tree as a table, with bars and colours on a terminal only; `every` keeps all numbers at any width.

    Names and numbers are never cut: a narrow terminal gets no bars, and then the numbers on lines below the names.
    """
    from bizrq.cli.output import terminal

    console = terminal.console()
    if not rows:
        console.print("There are no groups yet; kubectl apply -f examples/tree.yaml creates some.")
        return
    views = [row.view for row in rows]
    more = (
        *((_LIENS,) if any(view.has_liens for view in views) else ()),
        *((_AHEAD,) if any(view.has_ahead for view in views) else ()),
    )
    for cells, columns in _layouts(console, every, more):
        numbers = [head for head, _ in columns]
        heads, lines = ("group", "resource", *([""] if cells else []), *numbers), _lines(console, rows, cells, columns)
        table = terminal.plain_table(heads, lines, right=numbers)
        if not console.is_terminal or terminal.width_of(table) <= console.width:
            terminal.print_whole(table)
            if cells:
                _print_legend(console, hides=any(row.hidden for row in rows))
            return
    _print_stacked(console, rows, (*(_WIDE if every else _FEW), *more))


def _layouts(console: Console, every: bool, more: Sequence[_Column]) -> list[tuple[int, Sequence[_Column]]]:
    """Return the lengths of bars and the columns to try, the best first; `more` are shown at any width."""
    most = (*(_WIDE if every else _EVERY), *more)
    if not console.is_terminal:
        return [(0, most)]
    least = most if every else (*_FEW, *more)
    return [(_LONG, most), (_SHORT, least), (0, least)]


def _lines(console: Console, rows: list[TreeRow], cells: int, columns: Sequence[_Column]) -> list[list[Text]]:
    """Return the cells of each line: group, resource, bar if it has `cells`, and numbers."""
    from rich.text import Text

    from bizrq.cli.output import terminal

    lines: list[list[Text]] = []
    ascii_only = terminal.is_ascii(console)
    for row in rows:
        name = _name(row, ascii_only)
        above: ResourceView | None = None
        for figures in row.view.resources:
            label = _label(figures, above) if console.is_terminal else Text(figures.resource)
            above = figures
            bar = [_bar(figures, cells, _ASCII if ascii_only else _BLOCKS)] if cells else []
            lines.append([name, label, *bar, *(_number(head, figures, of(figures)) for head, of in columns)])
            name = Text(_drawn(_below(row.lead), ascii_only))
        if not row.view.resources:
            lines.append([name, Text("unlimited", "dim")])
    return lines


def _print_stacked(console: Console, rows: list[TreeRow], columns: Sequence[_Column]) -> None:
    """Print each name, resource and its numbers on lines of their own, for a terminal that is too narrow for more."""
    from rich.text import Text

    from bizrq.cli.output import terminal

    ascii_only = terminal.is_ascii(console)
    for row in rows:
        console.print(_name(row, ascii_only), soft_wrap=True)
        lead = _drawn(_below(row.lead), ascii_only)
        for figures in row.view.resources:
            parts = [Text(f"{figures.resource}:")]
            for head, of in columns:
                parts.append(Text.assemble(f"{head.lower()} ", _number(head, figures, of(figures))))
            terminal.print_filled(console, parts, f"{lead}  ")
        if not row.view.resources:
            console.print(Text(f"{lead}  unlimited", "dim"), soft_wrap=True)


def _print_legend(console: Console, *, hides: bool) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal

    glyphs = _ASCII if terminal.is_ascii(console) else _BLOCKS
    words = [f"{glyph} {word}" for glyph, word in zip(glyphs, _LEGEND, strict=True)]
    words += [f"{_OVER} over quota", *(["(+N) groups below that are not shown"] if hides else [])]
    terminal.print_filled(console, [Text(text, "dim") for text in words], "")


def _name(row: TreeRow, ascii_only: bool) -> Text:
    """Return the name of a group behind its tree lines, with the number of groups that are not shown below it."""
    from rich.text import Text

    over = any(f.is_over for f in row.view.resources)
    hidden = f" (+{row.hidden})" if row.hidden else ""
    name = f"{_drawn(row.lead, ascii_only)}{row.view.name}"
    return Text.assemble((name, "bold red" if over else "bold"), (hidden, "dim"))


def _below(lead: str) -> str:
    """Return the tree lines for the lines below a name."""
    return lead.replace("├─ ", "│  ").replace("└─ ", "   ")


def _drawn(lead: str, ascii_only: bool) -> str:
    """Return the tree lines of a group as the terminal can show them."""
    return lead.translate(_LINES) if ascii_only else lead


def _label(figures: ResourceView, above: ResourceView | None) -> Text:
    """Return the resource, or the bare name of a model that follows its base."""
    from rich.text import Text

    if figures.base and above is not None and figures.base in (above.resource, above.base):
        return Text(f"  {figures.resource.removeprefix(figures.base)}")
    return Text(figures.resource)


def _number(head: str, figures: ResourceView, amount: int | None) -> Text:
    from rich.text import Text

    if amount is None:
        return Text("?", "dim")
    if head == _PERCENT:
        return Text(f"{amount}%", "bold red" if figures.is_over else "")
    if head == "LEFT" and figures.is_over:
        return Text(figures.text(amount) or "", "bold red")
    return Text(figures.text(amount) or "", "" if amount or head == "HARD" else "dim")


def _bar(figures: ResourceView, cells: int, glyphs: str) -> Text:
    """Draw the group's own usage, what its children hold, and what is reserved or liens, as parts of `hard`."""
    from rich.text import Text

    full, shaded, light, empty = glyphs
    hard, used, own, taken = figures.hard, figures.used, figures.self_used, figures.taken
    if used is None or own is None or taken is None:
        return Text("?" * cells, "dim")
    if taken > hard:
        return Text(full * (cells - 1) + _OVER, "red")
    ends = [_end(amount, hard, cells) for amount in (own, used, taken)]
    style = "yellow" if hard and taken * 10 >= hard * 9 else "green"
    return Text.assemble(
        (full * ends[0], style),
        (shaded * (ends[1] - ends[0]), style),
        (light * (ends[2] - ends[1]), "cyan"),
        (empty * (cells - ends[2]), "dim"),
    )


def _end(amount: int, hard: int, cells: int) -> int:
    """Return the cell at which an amount ends: the last one only if nothing is left, the first for any amount."""
    if amount <= 0 or hard <= 0:
        return 0
    return cells if amount >= hard else min(cells - 1, max(1, amount * cells // hard))
