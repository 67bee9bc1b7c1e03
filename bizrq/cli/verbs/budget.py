"""bizrq create and bizrq set: make a group, and change its ceilings. The API server decides, with your own rights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.completion import group_names
from bizrq.cli.groups import GroupSource, check_known, known_names
from bizrq.cli.options import catalog_of
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, warn

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.kube.client import KubeClient
    from bizrq.units.names import Catalog

#: How often a change that is relative is tried, if somebody else changes the same ceiling meanwhile.
_TRIES: Final = 4

_Ceilings = Annotated[
    list[str],
    typer.Argument(
        metavar="RES=AMOUNT...",
        help="For example limits.cpu=10 or cash/requests.nvidia.com/gpu=1k; +2 and -2 change a ceiling by that much.",
    ),
]
_First = Annotated[list[str], typer.Argument(metavar="RES=AMOUNT...", help="Ceilings, for example limits.cpu=10.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask whether it would be accepted, and change nothing.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted ceiling in nano-units; `sign` is + or - for a change of the stored one."""

    name: str
    sign: str
    nano: int


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
    catalog = catalog_of(None)
    wanted = parse_ceilings(ceilings, relative=True)
    lines = run_on(client_for(where), lambda client: change_ceilings(client, group, wanted, catalog, dry_run=dry_run))
    for line in lines:
        terminal.write(f"{line}{' (dry run)' if dry_run else ''}\n")


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
    from bizrq.store.groups import GROUPS

    hard = {each.name: _text(each.name, each.nano) for each in parse_ceilings(ceilings, relative=False)}
    said = {"parentBizGroup": parent, "owner": owner, "contact": contact}
    spec = {**{key: value for key, value in said.items() if value}, "hard": hard}
    made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": group}, "spec": spec}
    run_on(client_for(where), lambda client: client.create(GROUPS, made, dry_run=dry_run))
    terminal.write(f"{KIND.lower()}.{GROUPS.group}/{group} {'would be created' if dry_run else 'created'}\n")


def parse_ceilings(words: Sequence[str], *, relative: bool) -> list[Wanted]:
    """Return the wanted ceilings. Raise Failure."""
    from bizrq.units import quantity

    found: dict[str, Wanted] = {}
    for word in words:
        name, equals, amount = word.partition("=")
        sign = amount[:1] if relative and amount[:1] in ("+", "-") else ""
        try:
            if not name or not equals:
                raise Failure(f"{word[:120]}: write RESOURCE=AMOUNT, for example limits.cpu=10", EXIT_BAD_INPUT)
            nano = quantity.parse(amount.removeprefix(sign))
        except quantity.QuantityError as error:
            raise Failure(f"{word[:120]}: {error}", EXIT_BAD_INPUT) from None
        if nano < 0 or (sign and re.match(r"[+-]", amount[1:])):
            raise Failure(f"{word[:120]}: a ceiling is not below 0", EXIT_BAD_INPUT)
        if name in found:
            raise Failure(f"{word[:120]}: {name} is given twice", EXIT_BAD_INPUT)
        found[name] = Wanted(name, sign, nano)
    return list(found.values())


async def change_ceilings(
    client: KubeClient, name: str, wanted: Sequence[Wanted], catalog: Catalog, *, dry_run: bool
) -> list[str]:
    """Change the ceilings, and return a line for each. Raise Failure, ApiError or Unreachable.

    The patch tests each ceiling that it changes by an amount, and is made again from a new read if a test fails.
    """
    from bizrq.kube.client import Invalid
    from bizrq.store.groups import GROUPS

    kind = "application/json-patch+json"
    before: Mapping[str, str | int] | None = None
    for _ in range(_TRIES):
        stored = await GroupSource(client, is_complete=False).fetch(name)
        if stored is None:
            check_known([name], await known_names(client), is_complete=False)
            continue
        changes = [_change(stored, each, catalog) for each in wanted]
        try:
            await client.patch(GROUPS, name, _operations(stored, changes), content_type=kind, dry_run=dry_run)
        except Invalid:
            if stored.spec.hard == before or not any(each.sign for each in wanted):
                raise
            # Somebody may have changed a ceiling between the read and the patch. If not, the next time says so.
            before = stored.spec.hard
            continue
        return [_line(stored, key, nano) for key, nano in changes]
    raise Failure(f"the ceilings of {name} change all the time: run the command again", EXIT_BAD_INPUT)


def _change(stored: GroupObject, wanted: Wanted, catalog: Catalog) -> tuple[str, int]:
    """Return the key of `spec.hard` that is meant, and its new amount. Raise Failure."""
    from bizrq.cli.output.view import canonical_name, meant_resources
    from bizrq.units import quantity

    keys = {canonical_name(key, catalog): key for key in stored.spec.hard}
    meant = sorted(meant_resources(wanted.name, keys, catalog))
    if len(meant) > 1:
        raise Failure(f"{wanted.name} may be {' or '.join(meant)}: name one of them", EXIT_BAD_INPUT)
    key = keys[meant[0]] if meant else canonical_name(wanted.name, catalog)
    if not wanted.sign:
        return key, wanted.nano
    if not meant:
        raise Failure(f"{stored.name} has no ceiling for {key}: write {key}=AMOUNT to set one", EXIT_BAD_INPUT)
    try:
        now = quantity.parse(stored.spec.hard[key])
    except quantity.QuantityError as error:
        raise Failure(f"group {stored.name}: spec.hard.{key}: {error}", EXIT_BAD_INPUT) from None
    after = now + wanted.nano if wanted.sign == "+" else now - wanted.nano
    if after < 0:
        text = f"{_text(key, now)} is less than {_text(key, wanted.nano)}"
        raise Failure(f"{stored.name}: {key}: {text}: a ceiling is not below 0", EXIT_BAD_INPUT)
    return key, after


def _operations(stored: GroupObject, changes: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return a JSON Patch (RFC 6902) that fails where a ceiling is not as it was read."""
    made: list[dict[str, Any]] = [] if stored.spec.hard else [{"op": "add", "path": "/spec/hard", "value": {}}]
    for key, nano in changes:
        path = "/spec/hard/" + key.replace("~", "~0").replace("/", "~1")
        if key in stored.spec.hard:
            made.append({"op": "test", "path": path, "value": stored.spec.hard[key]})
        made.append({"op": "add", "path": path, "value": _text(key, nano)})
    return made


def _line(stored: GroupObject, key: str, nano: int) -> str:
    """Return a changed ceiling with what is used, and warn where that is more."""
    from bizrq.api import group as wire

    used = wire.parse_amounts(stored, stored.status.used).get(key)
    if used is not None and used > nano:
        text = f"{key} {_text(key, nano)} (used {_text(key, used)})"
        warn(f"group {stored.name} is over its quota then: {text}; nothing that runs is stopped, growth is refused")
    said = "?" if used is None else _text(key, used)
    return f"{stored.name} {key}: {stored.spec.hard.get(key, 'unlimited')} -> {_text(key, nano)}, used {said}"


def _text(key: str, nano: int) -> str:
    from bizrq.units import quantity

    return quantity.text(key, nano)
