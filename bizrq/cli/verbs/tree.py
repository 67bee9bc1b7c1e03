"""bizrq tree: show the tree of groups with their usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import (
    Group,
    OnlyResource,
    Watch,
    check_known,
    decode_groups,
    end_unread,
    read_groups,
    watch_groups,
)
from bizrq.cli.options import Config, catalog_of
from bizrq.cli.output.tables import Output, OutputFormat, print_as

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bizrq.cli.output.view import GroupView, ResourceView, TreeView

#: Cells of a bar on a wide and on a narrow terminal.
_LONG, _SHORT = 20, 8
#: The characters of bars: own, granted, reserved, left. Then the same, and the tree lines, in ASCII.
_BLOCKS, _ASCII = "█▓▒░", "#=+."
_LINES = str.maketrans("├└─│", "|`-|")


def tree(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    watch: Watch = False,
    config: Config = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Show the tree of groups, with the ceiling, usage, reservations and what is left of each resource.

    A terminal shows bars: full for the group's own workloads, shaded for its children, light for reservations. Models
    follow their base resource.
    """
    client, catalog = client_for(where), catalog_of(config)

    def show_items(items: list[dict[str, Any]], *, is_complete: bool = True) -> None:
        from bizrq.cli.output.view import tree_view

        found = tree_view(decode_groups(items), catalog, resource, is_complete=is_complete)
        if group is not None:
            check_known([group], list(found.groups))
        show_as(found.pruned(group) if resource is not None else found, group, output)

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


def show_as(forest: TreeView, top: str | None, form: OutputFormat) -> None:
    """Print the tree below `top` in one of the forms."""
    from bizrq.cli.output.view import report_row
    from bizrq.cli.verbs import report

    rows = forest.in_order(top)
    print_as(
        form,
        names=[view.name for view, _ in rows],
        heads=report.HEADS,
        rows=[report_row(view, figures) for view, _ in rows for figures in view.resources],
        document=[as_json(view) for view, _ in rows],
        table=lambda: show(rows, every=form is OutputFormat.WIDE),
    )


def as_json(view: GroupView) -> dict[str, Any]:
    """Return a group as `tree -o json` prints it; an amount is null until the first recount.

    `children` is null where the user may not list groups.
    """
    from bizrq.api.enforcement import CONDITION

    def row(f: ResourceView) -> dict[str, Any]:
        amounts = {"hard": f.hard, "used": f.used, "selfUsed": f.self_used, "reserved": f.reserved, "left": f.left}
        return {key: f.text(amount) for key, amount in amounts.items()}

    return {
        "name": view.name,
        "parent": view.parent,
        "children": list(view.children) if view.is_complete else None,
        "enforced": view.status_of(CONDITION),
        "counted": view.group.status.last_reconcile_time,
        "resources": {figures.resource: row(figures) for figures in view.resources},
    }


_Column = tuple[str, Callable[["ResourceView"], int | None]]
_EVERY: tuple[_Column, ...] = (
    ("HARD", lambda f: f.hard),
    ("USED", lambda f: f.used),
    ("SELF", lambda f: f.self_used),
    ("GRANTED", lambda f: f.granted),
    ("RESERVED", lambda f: f.reserved),
    ("LEFT", lambda f: f.left),
)
_FEW: tuple[_Column, ...] = (("HARD", lambda f: f.hard), ("USED", lambda f: f.used), ("LEFT", lambda f: f.left))


def show(rows: list[tuple[GroupView, str]], *, every: bool = False) -> None:
    """Print the tree as a table, with bars and colours on a terminal only; `every` keeps all numbers at any width.

    Names and numbers are never cut: a narrow terminal gets no bars, and then wraps its lines.
    """
    from bizrq.cli.output import terminal

    console = terminal.console()
    if not rows:
        console.print("There are no groups yet; kubectl apply -f examples/tree.yaml creates some.")
        return
    *better, least = _layouts(console, every)
    for cells, columns in better:
        table = _table(console, rows, cells, columns)
        if terminal.width_of(table) <= console.width:
            break
    else:
        table = _table(console, rows, *least)
    terminal.print_whole(table)


def _layouts(console: Console, every: bool) -> list[tuple[int, Sequence[_Column]]]:
    """Return the lengths of bars and the columns to try, the best first; the last one is always used."""
    if not console.is_terminal:
        return [(0, _EVERY)]
    least = _EVERY if every else _FEW
    return [(_LONG, _EVERY), (_SHORT, least), (0, least)]


def _table(console: Console, rows: list[tuple[GroupView, str]], cells: int, columns: Sequence[_Column]) -> Table:
    from rich.text import Text

    from bizrq.cli.output import terminal

    numbers = [head for head, _ in columns]
    lines: list[list[Text]] = []
    ascii_only = terminal.is_ascii(console)
    for view, lead in rows:
        over = any(f.is_over for f in view.resources)
        name = Text(f"{_drawn(lead, ascii_only)}{view.name}", "bold red" if over else "bold")
        above: ResourceView | None = None
        for figures in view.resources:
            label = _label(figures, above) if console.is_terminal else Text(figures.resource)
            above = figures
            bar = [_bar(figures, cells, _ASCII if ascii_only else _BLOCKS)] if cells else []
            lines.append([name, label, *bar, *(_number(head, figures, of(figures)) for head, of in columns)])
            name = Text(_drawn(lead.replace("├─ ", "│  ").replace("└─ ", "   "), ascii_only))
        if not view.resources:
            lines.append([name, Text("no ceiling", "dim")])
    return terminal.plain_table(("group", "resource", *([""] if cells else []), *numbers), lines, right=numbers)


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
    if head == "LEFT" and figures.is_over:
        return Text(figures.text(amount) or "", "bold red")
    return Text("-", "dim") if amount == 0 and head != "HARD" else Text(figures.text(amount) or "")


def _bar(figures: ResourceView, cells: int, glyphs: str) -> Text:
    """Draw the group's own usage, what its children hold, and what is reserved, as parts of `hard`."""
    from rich.text import Text

    full, shaded, light, empty = glyphs
    hard, used, own = figures.hard, figures.used, figures.self_used
    if used is None or own is None:
        return Text("?" * cells, "dim")
    taken = used + figures.reserved
    if taken > hard:
        return Text(full * cells, "red")
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
