"""bizrq tree: who has what, and how much of it is left."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import Context, Kubeconfig, ask, client_for
from bizrq.cli.failure import BAD_INPUT, Failure

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.api.group import GroupObject
    from bizrq.kube.client import KubeClient

#: Cells of a bar.
_BAR = 10
#: Columns of a terminal that has room for bars.
_ROOM = 96


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


def tree(
    group: Annotated[str | None, typer.Argument(help="Only this group and what is below it.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON.")] = Output.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the tree of groups: hard, used, self, reserved and left of each resource."""
    groups = ask(client_for(kubeconfig, context), _groups)
    known = {g.name: g for g in groups}
    if group is not None and group not in known:
        raise Failure(f"there is no group {group}; there are: {', '.join(sorted(known)) or 'none'}", BAD_INPUT)
    rows = in_order(known, group)
    if output is Output.JSON:
        import orjson

        document = [as_json(known, g) for g, _ in rows]
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        show(rows)


async def _groups(client: KubeClient) -> list[GroupObject]:
    from bizrq.api.group import from_dict
    from bizrq.kube.groups import GROUPS

    items, _ = await client.list(GROUPS)
    return [from_dict(item) for item in items]


def in_order(known: dict[str, GroupObject], top: str | None = None) -> list[tuple[GroupObject, str]]:
    """The groups depth first, by name, each with the lines that lead to it; one whose parent is gone is a root."""
    children: dict[str, list[GroupObject]] = {}
    for g in sorted(known.values(), key=lambda g: g.name):
        children.setdefault(g.parent if g.parent in known else "", []).append(g)
    rows: list[tuple[GroupObject, str]] = []
    # Each with the lines before its own, and the lines before its children's.
    todo = [(known[top], "", "")] if top else [(g, "", "") for g in reversed(children.get("", []))]
    while todo:
        g, lead, below = todo.pop()
        rows.append((g, lead))
        mine = children.get(g.name, [])
        for index, child in reversed(list(enumerate(mine))):
            last = index == len(mine) - 1
            todo.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
    return rows


def numbers(g: GroupObject) -> dict[str, dict[str, int | None]]:
    """Per resource hard, used, selfUsed, reserved and left, in nano-units; None what is not counted yet."""
    from bizrq.api import group as wire
    from bizrq.quota.ledger import Account

    try:
        hard, used = wire.hard_of(g), wire.amounts(g, g.status.used)
        own, entries = wire.amounts(g, g.status.self_used), wire.reservations_of(g)
    except wire.GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None
    account = Account(g.name, hard, used, entries)
    return {
        name: {
            "hard": amount,
            "used": used.get(name),
            "selfUsed": own.get(name),
            "reserved": account.reserved.get(name, 0),
            "left": amount - account.taken(name) if name in used else None,
        }
        for name, amount in sorted(hard.items())
    }


def as_json(known: dict[str, GroupObject], g: GroupObject) -> dict[str, Any]:
    """One group as `tree -o json` prints it; what is not counted yet is null."""
    from bizrq.quota import quantity

    return {
        "name": g.name,
        "parent": g.parent,
        "children": sorted(child.name for child in known.values() if child.parent == g.name),
        "resources": {
            name: {key: None if n is None else quantity.text(name, n) for key, n in row.items()}
            for name, row in numbers(g).items()
        },
    }


def show(rows: list[tuple[GroupObject, str]]) -> None:
    """The tree as a table; bars and colours only where a terminal shows them."""
    from rich.text import Text

    from bizrq.cli import terminal
    from bizrq.quota import quantity

    console = terminal.console()
    if not rows:
        console.print("There are no groups yet: kubectl apply -f examples/tree.yaml makes some.")
        return
    table = terminal.table("GROUP", "RESOURCE")
    bars = console.is_terminal and console.width >= _ROOM
    if bars:
        table.add_column("")
    for head in ("HARD", "USED", "SELF", "RESERVED", "LEFT"):
        table.add_column(head, justify="right", no_wrap=True)
    for g, lead in rows:
        resources = numbers(g)
        name = Text(f"{lead}{g.name}", style="bold")
        for resource, row in resources.items():
            cells = [_cell(quantity.text(resource, n)) if n is not None else Text("?", "dim") for n in row.values()]
            if row["left"] is not None and row["left"] < 0:
                cells[-1].stylize("red")
            bar = [_bar(row)] if bars else []
            table.add_row(name, resource, *bar, *cells)
            name = Text(lead.replace("├─ ", "│  ").replace("└─ ", "   "))
        if not resources:
            table.add_row(name, Text("no ceilings", "dim"))
    console.print(table)


def _cell(text: str) -> Text:
    from rich.text import Text

    return Text("-", "dim") if text == "0" else Text(text)


def _bar(row: dict[str, int | None]) -> Text:
    """Used, then reserved, of hard."""
    from rich.text import Text

    hard, used, reserved = row["hard"] or 0, row["used"], row["reserved"] or 0
    if used is None:
        return Text("?" * _BAR, "dim")
    taken = used + reserved
    if taken > hard:
        return Text("█" * _BAR, "red")
    full = used * _BAR // hard if hard else 0
    promised = taken * _BAR // hard - full if hard else 0
    style = "yellow" if hard and taken * 10 >= hard * 9 else "green"
    return Text.assemble(("█" * full, style), ("▒" * promised, "cyan"), ("░" * (_BAR - full - promised), "dim"))
