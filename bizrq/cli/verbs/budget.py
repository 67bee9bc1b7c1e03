"""bizrq create and bizrq set: make a group, and change its ceilings. The API server decides, with your own rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.options import catalog_of
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import warn

if TYPE_CHECKING:
    from bizrq.figures.changes.ceilings import ChangedCeiling

_Ceilings = Annotated[
    list[str],
    typer.Argument(
        metavar="RES=AMOUNT...",
        help="For example limits.cpu=10, or limits.cpu=+2 and limits.cpu=-2 to raise or lower it by that much.",
    ),
]
_First = Annotated[list[str], typer.Argument(metavar="RES=AMOUNT...", help="Ceilings, for example limits.cpu=10.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask whether it would be accepted, and change nothing.")]


def set_ceilings(
    group: Annotated[str, typer.Argument(help="Group whose ceilings to change.", autocompletion=group_names)],
    ceilings: _Ceilings,
    dry_run: _DryRun = False,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Change ceilings of a group: to an amount, or by one with + or -.

    Prints each ceiling before and after, with what is used. With --dry-run the API server and the webhooks decide, and
    nothing changes. All ceilings of a command change together, or none does.
    """
    from bizrq.figures.changes.ceilings import change_ceilings, parse_ceilings

    catalog = catalog_of(None)
    wanted = parse_ceilings(ceilings, relative=True)
    changed = run_on(client_for(where), lambda client: change_ceilings(client, group, wanted, catalog, dry_run=dry_run))
    for each in changed:
        terminal.write(f"{_line(each)}{' (dry run)' if dry_run else ''}\n")


def create(
    group: Annotated[str, typer.Argument(help="Name of the new group.")],
    ceilings: _First,
    parent: Annotated[
        str, typer.Option(help="Group above it, for good; without it the group is a root.", autocompletion=group_names)
    ] = "",
    owner: Annotated[str, typer.Option(help="Who is responsible for the group.")] = "",
    contact: Annotated[str, typer.Option(help="Whom to ask about the group.")] = "",
    dry_run: _DryRun = False,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Create a group with these ceilings, below a parent or as a root."""
    from bizrq.api.group import API_VERSION, KIND
    from bizrq.cli.grants import is_group_name
    from bizrq.figures.changes.ceilings import parse_ceilings
    from bizrq.figures.errors import BadValue
    from bizrq.store.groups import GROUPS
    from bizrq.units import quantity

    if not is_group_name(group):
        raise BadValue(f"{group[:64]!r}: no group can have this name: write at most 63 of a-z, 0-9, '-' and '.'")
    hard = {each.name: quantity.text(each.name, each.nano) for each in parse_ceilings(ceilings, relative=False)}
    said = {"parentBizGroup": parent, "owner": owner, "contact": contact}
    spec = {**{key: value for key, value in said.items() if value}, "hard": hard}
    made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": group}, "spec": spec}
    run_on(client_for(where), lambda client: client.create(GROUPS, made, dry_run=dry_run))
    terminal.write(f"{KIND.lower()}.{GROUPS.group}/{group} {'would be created' if dry_run else 'created'}\n")


def _line(each: ChangedCeiling) -> str:
    """Return a changed ceiling with what is used, and warn where that is more."""
    from bizrq.units import quantity

    after = quantity.text(each.name, each.after)
    used = "?" if each.used is None else quantity.text(each.name, each.used)
    if each.is_over:
        text = f"{each.name} {after} (used {used})"
        warn(f"group {each.group} is over its quota then: {text}; nothing that runs is stopped, growth is refused")
    return f"{each.group} {each.name}: {'unlimited' if each.before is None else each.before} -> {after}, used {used}"
